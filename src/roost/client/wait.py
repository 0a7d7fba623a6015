"""Waiting without asking again and again: look once, then follow the changes from that revision on."""

import time
from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.rollout import RolloutStatus, readiness_of
from roost.client.stream import ServerEvent
from roost.model.states import FINISHED, InstanceState
from roost.schema.feed import ChangeView
from roost.schema.work import WorkloadView

if TYPE_CHECKING:
    from roost.client.workloads import WorkloadCalls

Until = Literal["finished", "started", "running"]
Key = tuple[str, str]

NAMES_MAX = 10  # unfinished workloads that are listed by name


class Goal(NamedTuple):
    """What is waited for: in a word, of which changes it can come, and whether a workload has got there."""

    message: str
    kinds: tuple[str, ...]
    reached: Callable[[WorkloadView], bool]
    any_of: bool

    def is_met(self, found: dict[Key, WorkloadView]) -> bool:
        reached = map(self.reached, found.values())
        return any(reached) if self.any_of else all(reached)


def wait_for(
    workloads: "WorkloadCalls", keys: Sequence[Key], until: Until, timeout_s: float | None, *, any_of: bool
) -> list[WorkloadView]:
    """The workloads once all of them are as wanted; with `any_of` those that are, once one is.

    A finished workload is past running also. Of several finished ones the one that ended first comes first.
    """
    kinds = ("workload",) if until == "finished" else ("workload", "instance")
    goal = Goal(until, kinds, lambda workload: _reached(workload, until), any_of)
    found, since = _inspect(workloads, keys)
    _follow(workloads, found, since, goal, timeout_s)
    if any_of:
        done = [workload for workload in found.values() if goal.reached(workload)]
        return sorted(done, key=lambda workload: (not workload.is_over, workload.finished_ms or 0))
    return [found[key] for key in keys]


def wait_ready(
    workloads: "WorkloadCalls", keys: Sequence[Key], timeout_s: float | None, *, any_of: bool
) -> list[RolloutStatus]:
    """How services stand once all of them are ready at their present version, or get there no more; or one does."""
    first, since = _inspect(workloads, keys)
    for workload in first.values():
        if workload.kind != "service":
            message = f"{workload.key} is a {workload.kind}; only a service becomes ready"
            raise ApiError(422, "not_a_service", message, hint="wait until it is running, or finished")
    found = dict(first)

    def status_of(workload: WorkloadView) -> RolloutStatus:
        return readiness_of(first[workload.project, workload.name], workload)

    goal = Goal("ready", ("workload", "instance"), lambda workload: status_of(workload).over, any_of)
    _follow(workloads, found, since, goal, timeout_s)
    standings = [status_of(found[key]) for key in keys]
    if any_of:
        return sorted((status for status in standings if status.over), key=lambda status: not status.well)
    return standings


def _inspect(workloads: "WorkloadCalls", keys: Sequence[Key]) -> tuple[dict[Key, WorkloadView], int]:
    found: dict[Key, WorkloadView] = {}
    since: int | None = None
    for project, name in keys:
        page = workloads.page(project, name)
        if not page.items:
            raise ApiError(404, "not_found", f"there is no workload {project}/{name}")
        found[project, name] = page.items[0]
        since = page.revision if since is None else min(since, page.revision)
    return found, since or 0


def _follow(
    workloads: "WorkloadCalls", found: dict[Key, WorkloadView], since: int, goal: Goal, timeout_s: float | None
) -> None:
    """Keep `found` current until the goal is met."""
    if goal.is_met(found):
        return
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # A ready or running workload may change before the last one is ready; only finished ones stay.
    waiting = ["/".join(key) for key in found if not found[key].is_over]
    only, prefix = (waiting[0], "") if len(waiting) == 1 else ("", commonprefix(waiting))
    with workloads.changes.open(since=since, kinds=goal.kinds, workload=only, prefix=prefix) as follower:
        while not goal.is_met(found):
            event = follower.next_before(deadline)
            if event is None:
                raise WaitTimedOut(f"not {goal.message} in time: {_late(found, goal)}")
            for key in _touched(event, found):
                # One request for all changes of it that have come meanwhile.
                while follower.pending and _touched(follower.pending[0], found) == [key]:
                    follower.pending.popleft()
                found[key] = _inspect(workloads, [key])[0][key]


def _late(found: dict[Key, WorkloadView], goal: Goal) -> str:
    names = [name for (_, name), workload in found.items() if not goal.reached(workload)]
    more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _touched(event: ServerEvent, found: dict[Key, WorkloadView]) -> list[Key]:
    """The workloads an event is about; after a reset, all of them."""
    if event.name == "reset":
        return list(found)
    if event.name != "change":
        return []
    change = msgspec.json.decode(event.data, type=ChangeView)
    project, _, rest = change.key.partition("/")
    key = (project, rest.rpartition(".")[0] if change.kind == "instance" else rest)
    return [key] if change.kind != "node" and key in found else []


def _reached(workload: WorkloadView, until: Until) -> bool:
    if until == "finished" or workload.is_over:
        return workload.is_over
    up = sum(number for state, number in workload.counts.items() if state == InstanceState.RUNNING or state in FINISHED)
    return up >= (min(1, workload.count) if until == "started" else workload.count)
