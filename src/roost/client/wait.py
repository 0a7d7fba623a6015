"""Waiting without asking again and again: look once, then follow the changes from that revision on."""

import time
from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.rolling import Standing, readiness_of
from roost.client.stream import Event, Follower
from roost.client.types import Change, Workload
from roost.model.states import FINISHED

if TYPE_CHECKING:
    from roost.client.client import Client

Until = Literal["finished", "started", "running"]
Key = tuple[str, str]

NAMES_MAX = 10  # of those that were waited for in vain, told one by one


class Goal(NamedTuple):
    """What is waited for: in a word, of which changes it can come, and whether a workload has got there."""

    words: str
    kinds: tuple[str, ...]
    reached: Callable[[Workload], bool]
    any_of: bool

    def is_met(self, found: dict[Key, Workload]) -> bool:
        """Whether all that were found have got there, or any."""
        reached = map(self.reached, found.values())
        return any(reached) if self.any_of else all(reached)


def wait_for(
    client: "Client", keys: Sequence[Key], until: Until, timeout_s: float | None, *, any_of: bool = False
) -> list[Workload]:
    """The workloads once all of them are as wanted; with `any_of` those that are, once one is.

    A workload that is over is past running, too. Of several that are over the one that ended first comes first.
    """
    kinds = ("workload",) if until == "finished" else ("workload", "instance")
    goal = Goal(until, kinds, lambda workload: _reached(workload, until), any_of)
    found, since = _look(client, keys)
    _wait(client, found, since, goal, timeout_s)
    if any_of:
        done = [workload for workload in found.values() if goal.reached(workload)]
        return sorted(done, key=lambda workload: (not workload.is_over, workload.finished_ms or 0))
    return [found[key] for key in keys]


def wait_ready(
    client: "Client", keys: Sequence[Key], timeout_s: float | None, *, any_of: bool = False
) -> list[Standing]:
    """How services stand once all of them are ready at their present version, or get there no more; or one does."""
    looked, since = _look(client, keys)
    for workload in looked.values():
        if workload.kind != "service":
            words = f"{workload.key} is a {workload.kind}; only a service becomes ready"
            raise ApiError(422, "not_a_service", words, hint="wait until it is running, or finished")
    found = dict(looked)

    def standing(workload: Workload) -> Standing:
        return readiness_of(looked[workload.project, workload.name], workload)

    goal = Goal("ready", ("workload", "instance"), lambda workload: standing(workload).over, any_of)
    _wait(client, found, since, goal, timeout_s)
    standings = [standing(found[key]) for key in keys]
    return sorted((each for each in standings if each.over), key=lambda each: not each.well) if any_of else standings


def _wait(client: "Client", found: dict[Key, Workload], since: int, goal: Goal, timeout_s: float | None) -> None:
    """Follow what was found until it is as wanted."""
    if goal.is_met(found):
        return
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # Whoever is ready or runs may not be so any more by the time the last one is; only what is over stays as it is.
    waiting = ["/".join(key) for key in found if not found[key].is_over]
    only, prefix = (waiting[0], "") if len(waiting) == 1 else ("", commonprefix(waiting))
    with client.follow_changes(since=since, kinds=goal.kinds, workload=only, prefix=prefix) as follower:
        _follow(client, follower, found, goal, deadline)


def _look(client: "Client", keys: Sequence[Key]) -> tuple[dict[Key, Workload], int]:
    found: dict[Key, Workload] = {}
    since: int | None = None
    for project, name in keys:
        page = client.page(project, name)
        if not page.items:
            raise ApiError(404, "not_found", f"there is no workload {project}/{name}")
        found[project, name] = page.items[0]
        since = page.revision if since is None else min(since, page.revision)
    return found, since or 0


def _follow(
    client: "Client", follower: Follower, found: dict[Key, Workload], goal: Goal, deadline: float | None
) -> None:
    while not goal.is_met(found):
        left = None if deadline is None else deadline - time.monotonic()
        event = None if left is not None and left <= 0 else follower.next(left)
        if event is None:
            raise WaitTimedOut(f"not {goal.words} in time: {_late(found, goal)}")
        for key in _touched(event, found):
            # One look for however many changes have come meanwhile.
            while follower.pending and _touched(follower.pending[0], found) == [key]:
                follower.pending.popleft()
            found[key] = _look(client, [key])[0][key]


def _late(found: dict[Key, Workload], goal: Goal) -> str:
    names = [name for (_, name), each in found.items() if not goal.reached(each)]
    more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _touched(event: Event, found: dict[Key, Workload]) -> list[Key]:
    """The workloads an event is about; after a reset, all of them."""
    if event.name == "reset":
        return list(found)
    if event.name != "change":
        return []
    change = msgspec.json.decode(event.data, type=Change)
    project, _, rest = change.key.partition("/")
    key = (project, rest.rpartition(".")[0] if change.kind == "instance" else rest)
    return [key] if change.kind != "node" and key in found else []


def _reached(workload: Workload, until: Until) -> bool:
    if until == "finished" or workload.is_over:
        return workload.is_over
    up = sum(number for state, number in workload.counts.items() if state == "running" or state in FINISHED)
    return up >= (min(1, workload.count) if until == "started" else workload.count)
