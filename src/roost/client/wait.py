"""Waiting without asking again and again: look once, then follow the changes from that revision on.

For workloads to be finished, started or running; for services to be ready; for a version to be rolled out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from os.path import commonprefix
from typing import Literal, NamedTuple

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.namespace import Namespace
from roost.client.stream import ServerEvent, StreamFollower
from roost.client.transport import Query
from roost.model.states import FINISHED, InstanceState, WorkloadState
from roost.schema.feed import ChangeView, ResetView
from roost.schema.work import WorkloadPage, WorkloadView

Until = Literal["finished", "started", "running"]
Key = tuple[str, str]

NAMES_MAX = 10  # unfinished workloads that are listed by name
STARTING = (InstanceState.PLACED, InstanceState.STARTING)
ROLLED_BACK = "rolled_back"  # the code of the change to a version that is an earlier one again
NEWS: dict[str, type[ChangeView | ResetView]] = {"change": ChangeView, "reset": ResetView}


class Goal(NamedTuple):
    """The goal of a wait: its name, the kinds of changes that can reach it, and the test of one workload."""

    message: str
    kinds: tuple[str, ...]
    reached: Callable[[WorkloadView], bool]
    any_of: bool

    def is_met(self, found: dict[Key, WorkloadView]) -> bool:
        reached = map(self.reached, found.values())
        return any(reached) if self.any_of else all(reached)


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a workload has come. `over`: it gets no further by itself; `well`: and it is as it was applied."""

    workload: WorkloadView
    message: str
    over: bool = False
    well: bool = True


class ChangeCalls(Namespace):
    def open(
        self, *, since: int | None = None, kinds: Sequence[str] = (), workload: str = "", prefix: str = ""
    ) -> StreamFollower:
        """The events from a revision (or from now) on, resumed when the connection breaks.

        `prefix`: only of workloads whose PROJECT/NAME begins so.
        """
        query: Query = {"since": since, "kind": kinds or None, "workload": workload, "prefix": prefix}
        return StreamFollower(lambda last_id: self._transport.stream("/v1/changes", query, last_id))

    def follow(
        self, *, since: int | None = None, kinds: Sequence[str] = (), workload: str = ""
    ) -> Iterator[ChangeView | ResetView]:
        """Every change from a revision (or from now) on. After a ResetView list again: changes were missed."""
        query: Query = {"since": since, "kind": kinds or None, "workload": workload}
        return self._followed("/v1/changes", query, NEWS)


class WaitCalls(Namespace):
    """Waits for workloads; a key is PROJECT and NAME."""

    def page(self, project: str, name: str) -> WorkloadPage:
        """One workload, if it exists, and the revision of the answer: changes can be followed from it."""
        return self._get("/v1/workloads", WorkloadPage, {"project": project, "name": name})

    def wait(
        self, keys: Sequence[Key], until: Until = "finished", timeout_s: float | None = None, *, any_of: bool = False
    ) -> list[WorkloadView]:
        """Wait until workloads are finished, started or running; a finished one is past running. Raises WaitTimedOut.

        With `any_of`: until one of them is; those that are by then, the one that ended first in front.
        A schedule is finished when it is cancelled. It never starts itself: its runs do.
        """
        kinds = ("workload",) if until == "finished" else ("workload", "instance")
        goal = Goal(until, kinds, lambda workload: _reached(workload, until), any_of)
        found, since = self._inspect(keys)
        for workload in found.values() if until != "finished" else ():
            if workload.state == WorkloadState.SCHEDULED:
                message = f"{workload.key} is scheduled and never {until} itself"
                raise ApiError(422, "is_a_schedule", message, hint="wait for one of its runs; `roost schedules`")
        self._follow(found, since, goal, timeout_s)
        if any_of:
            done = [workload for workload in found.values() if goal.reached(workload)]
            return sorted(done, key=lambda workload: (not workload.is_over, workload.finished_ms or 0))
        return [found[key] for key in keys]

    def wait_ready(
        self, keys: Sequence[Key], timeout_s: float | None = None, *, any_of: bool = False
    ) -> list[RolloutStatus]:
        """Wait until services are ready at their present version, all replicas; or one of them is.

        One that ended, or whose rollout failed or was rolled back, is not waited for and is not `well`.
        With `any_of`: those that are ready by then, those that are well in front. Raises WaitTimedOut.
        """
        first, since = self._inspect(keys)
        for workload in first.values():
            if workload.kind != "service":
                message = f"{workload.key} is a {workload.kind}; only a service becomes ready"
                raise ApiError(422, "not_a_service", message, hint="wait until it is running, or finished")
        found = dict(first)

        def status_of(workload: WorkloadView) -> RolloutStatus:
            return readiness_of(first[workload.project, workload.name], workload)

        goal = Goal("ready", ("workload", "instance"), lambda workload: status_of(workload).over, any_of)
        self._follow(found, since, goal, timeout_s)
        standings = [status_of(found[key]) for key in keys]
        if any_of:
            return sorted((status for status in standings if status.over), key=lambda status: not status.well)
        return standings

    def wait_for_version(
        self, applied: WorkloadView, timeout_s: float | None = None,
        tell: Callable[[RolloutStatus], object] = lambda _: None,
    ) -> RolloutStatus:  # fmt: skip
        """Wait until a workload is as it was applied: updated and available, or failed. Raises WaitTimedOut.

        `tell` is called with every status on the way.
        """
        key = (applied.project, applied.name)
        found, since = self._inspect([key])
        status = standing_of(applied, found[key])
        tell(status)
        changes = self._changed(found, since, ("workload", "instance"), timeout_s)
        while not status.over:
            if next(changes, None) is None:
                raise WaitTimedOut(f"{applied.key} is not there in time: {status.message}")
            status = standing_of(applied, found[key])
            tell(status)
        return status

    def _inspect(
        self, keys: Sequence[Key], missing: str = "there is no workload {}"
    ) -> tuple[dict[Key, WorkloadView], int]:
        """The workloads, and the revision from which their changes are to be followed."""
        found: dict[Key, WorkloadView] = {}
        revisions = []
        for project, name in keys:
            page = self.page(project, name)
            if not page.items:
                raise ApiError(404, "not_found", missing.format(f"{project}/{name}"))
            found[project, name] = page.items[0]
            revisions.append(page.revision)
        return found, min(revisions, default=0)

    def _follow(self, found: dict[Key, WorkloadView], since: int, goal: Goal, timeout_s: float | None) -> None:
        """Keep `found` current until the goal is met."""
        changes = self._changed(found, since, goal.kinds, timeout_s)
        while not goal.is_met(found):
            if next(changes, None) is None:
                late = [key[1] for key, workload in found.items() if not goal.reached(workload)]
                more = f" and {len(late) - NAMES_MAX:,} more" if len(late) > NAMES_MAX else ""
                raise WaitTimedOut(f"not {goal.message} in time: {', '.join(late[:NAMES_MAX])}{more}")

    def _changed(
        self, found: dict[Key, WorkloadView], since: int, kinds: Sequence[str], timeout_s: float | None
    ) -> Iterator[Key]:
        """Each workload that changed, after `found` has it as it is now; ends when the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # A ready or running workload may change before the last one is ready; only finished ones stay.
        waiting = ["/".join(key) for key in found if not found[key].is_over]
        only, prefix = (waiting[0], "") if len(waiting) == 1 else ("", commonprefix(waiting))
        changes = ChangeCalls(self._transport)
        with changes.open(since=since, kinds=kinds, workload=only, prefix=prefix) as follower:
            while (event := follower.next_before(deadline)) is not None:
                for key in _touched(event, found):
                    # One request for all changes of it that have come meanwhile; none for the end, which tells all.
                    while follower.pending and _touched(follower.pending[0], found) == [key]:
                        event = follower.pending.popleft()
                    found[key] = _ended(event) or self._inspect([key], "{} is gone")[0][key]
                    yield key


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


def _ended(event: ServerEvent) -> WorkloadView | None:
    """The workload, if the event is its end."""
    if event.name != "change":
        return None
    change = msgspec.json.decode(event.data, type=ChangeView)
    if change.kind != "workload" or change.object is None or not change.object.get("finished_ms"):
        return None
    return msgspec.convert(change.object, WorkloadView)


def _reached(workload: WorkloadView, until: Until) -> bool:
    if until == "finished" or workload.is_over:
        return workload.is_over
    up = sum(number for state, number in workload.counts.items() if state == InstanceState.RUNNING or state in FINISHED)
    return up >= (min(1, workload.count) if until == "started" else workload.count)


def standing_of(applied: WorkloadView, now: WorkloadView) -> RolloutStatus:
    """How a workload stands that was to become the version that was applied."""
    if now.kind == "service" and not now.is_over:
        return _of_service(applied, now)
    message = f"{now.state}: {now.message}" if now.message else now.state
    if now.is_over:
        return RolloutStatus(workload=now, message=message, over=True, well=now.state == "succeeded")
    is_up = now.kind == "vm" and now.counts.get(InstanceState.RUNNING, 0) >= now.count
    return RolloutStatus(workload=now, message=message, over=is_up or now.state == WorkloadState.SCHEDULED)


def readiness_of(first: WorkloadView, now: WorkloadView) -> RolloutStatus:
    """How a service stands that is to be ready at its present version. `first`: the service when the wait began."""
    if now.is_over:
        return standing_of(first, now)
    rollout = now.rollout
    if now.version != first.version and _is_rollback(now):
        return _failed(now, now.change)
    if rollout is not None and rollout.state == "failed":
        return _failed(now, f"{rollout.message}; it stays as it is")
    is_there = rollout is None or rollout.state == "done"
    return RolloutStatus(workload=now, message=_progress(now), over=is_there and (now.ready or 0) >= now.count)


def _failed(now: WorkloadView, message: str) -> RolloutStatus:
    return RolloutStatus(workload=now, message=message, over=True, well=False)


def _is_rollback(now: WorkloadView) -> bool:
    return now.change_reason is not None and now.change_reason.code == ROLLED_BACK


def _progress(now: WorkloadView) -> str:
    """`7 of 10 of version 3 available; 1 starting, 1 stopping`"""
    rollout = now.rollout
    if rollout is None or rollout.state == "done":
        there = f"{now.ready or 0} of {now.count} ready" + (f", version {now.version}" if now.version > 1 else "")
    else:
        version = f" of version {now.version}" if now.version > 1 else ""
        there = f"{rollout.done} of {now.count}{version} available"
    others = {
        "starting": sum(now.counts.get(state, 0) for state in STARTING),
        "stopping": now.counts.get(InstanceState.STOPPING, 0),
        "waiting": now.counts.get(InstanceState.QUEUED, 0),
        "in a crash loop": now.looping or 0,
    }
    answer = ", ".join(f"{number} {what}" for what, number in others.items() if number)
    return f"{there}; {answer}" if answer else there


def _of_service(applied: WorkloadView, now: WorkloadView) -> RolloutStatus:
    rollout, message = now.rollout, _progress(now)
    state = rollout.state if rollout is not None else None
    if now.version != applied.version:  # by another update, or by a rollback
        if not _is_rollback(now):
            return _failed(now, f"version {applied.version} was overtaken by version {now.version}")
        if state != "rolling":
            return _failed(now, now.change)
        return RolloutStatus(workload=now, message=f"going back: {message}", well=False)
    if rollout is None:
        if now.looping:
            return _failed(now, message)
        return RolloutStatus(workload=now, message=message, over=(now.ready or 0) >= now.count)
    if state == "failed":
        return _failed(now, f"{rollout.message}; it stays as it is")
    if state == "waiting":
        canaries = f"{rollout.done} {'canary' if rollout.done == 1 else 'canaries'}"
        message = f"{canaries} of version {now.version} available; `roost promote` lets the others follow"
    return RolloutStatus(workload=now, message=message, over=state in ("waiting", "done"))
