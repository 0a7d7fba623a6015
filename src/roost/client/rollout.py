"""Following a workload until it is as it was applied. Nothing is asked again and again: changes are pushed."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.model.states import InstanceState
from roost.schema.work import WorkloadView

if TYPE_CHECKING:
    from roost.client.workloads import WorkloadCalls

STARTING = (InstanceState.PLACED, InstanceState.STARTING)
ROLLED_BACK = "rolled_back"  # the code of the change to a version that is an earlier one again


class RolloutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a workload has come. `over`: it gets no further by itself; `well`: and it is as it was applied."""

    workload: WorkloadView
    message: str
    over: bool = False
    well: bool = True


def follow_rollout(
    workloads: "WorkloadCalls", applied: WorkloadView, timeout_s: float | None, tell: Callable[[RolloutStatus], object]
) -> RolloutStatus:
    """Read its status after every change of it, until it gets no further by itself."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    status, since = _inspect(workloads, applied)
    tell(status)
    if status.over:
        return status
    with workloads.changes.open(since=since, kinds=("workload", "instance"), workload=applied.key) as follower:
        while not status.over:
            if follower.next_before(deadline) is None:
                raise WaitTimedOut(f"{status.workload.key} is not there in time: {status.message}")
            follower.pending.clear()  # one request for all changes that have come meanwhile
            status, _ = _inspect(workloads, applied)
            tell(status)
    return status


def standing_of(applied: WorkloadView, now: WorkloadView) -> RolloutStatus:
    """How a workload stands that was to become the version that was applied."""
    if now.kind == "service" and not now.is_over:
        return _of_service(applied, now)
    message = f"{now.state}: {now.message}" if now.message else now.state
    if now.is_over:
        return RolloutStatus(workload=now, message=message, over=True, well=now.state == "succeeded")
    is_up = now.kind == "vm" and now.counts.get(InstanceState.RUNNING, 0) >= now.count
    return RolloutStatus(workload=now, message=message, over=is_up)


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
        there = f"{rollout.done} of {now.count} of version {now.version} available"
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


def _inspect(workloads: "WorkloadCalls", applied: WorkloadView) -> tuple[RolloutStatus, int]:
    page = workloads.page(applied.project, applied.name)
    if not page.items:
        raise ApiError(404, "not_found", f"{applied.key} is gone")
    return standing_of(applied, page.items[0]), page.revision
