"""Following a workload until it is as it was applied. Nothing is asked again and again: changes are pushed."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.stream import Follower
from roost.client.types import Workload

if TYPE_CHECKING:
    from roost.client.client import Client

STARTING = ("placed", "starting")
BACK = "rolled back"  # how the change to a version begins that is an earlier one again


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a workload has come. `over`: it gets no further by itself; `well`: and it is as it was applied."""

    workload: Workload
    words: str
    over: bool = False
    well: bool = True


def follow_rollout(
    client: "Client", applied: Workload, timeout_s: float | None, tell: Callable[[Standing], object] | None
) -> Standing:
    """Look, and look again whenever something of it has changed, until it gets no further by itself."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    standing, since = _look(client, applied)
    if tell is not None:
        tell(standing)
    if standing.over:
        return standing
    with client.follow_changes(since=since, kinds=("workload", "instance"), workload=applied.key) as follower:
        while not standing.over:
            _next(follower, deadline, standing)
            standing, _ = _look(client, applied)
            if tell is not None:
                tell(standing)
    return standing


def standing_of(applied: Workload, now: Workload) -> Standing:
    """How a workload stands that was to become the version that was applied."""
    if now.kind == "service" and not now.is_over:
        return _of_service(applied, now)
    words = f"{now.state}" + (f": {now.cause}" if now.cause else "")
    if now.is_over:
        return Standing(workload=now, words=words, over=True, well=now.state == "succeeded")
    is_up = now.kind == "vm" and now.counts.get("running", 0) >= now.count
    return Standing(workload=now, words=words, over=is_up)


def readiness_of(looked: Workload, now: Workload) -> Standing:
    """How a service stands that is to be ready at its present version. `looked`: as it was when the waiting began."""
    if now.is_over:
        return standing_of(looked, now)
    rollout = now.rollout
    if now.version != looked.version and now.change.startswith(BACK):
        return Standing(workload=now, words=now.change, over=True, well=False)
    if rollout is not None and rollout.state == "failed":
        return Standing(workload=now, words=f"{rollout.cause}; it stays as it is", over=True, well=False)
    is_there = rollout is None or rollout.state == "done"
    return Standing(workload=now, words=progress_words(now), over=is_there and (now.ready or 0) >= now.count)


def progress_words(now: Workload) -> str:
    """`7 of 10 of version 3 available; 1 starting, 1 stopping`"""
    rollout = now.rollout
    if rollout is None or rollout.state == "done":
        there = f"{now.ready or 0} of {now.count} ready" + (f", version {now.version}" if now.version > 1 else "")
    else:
        there = f"{rollout.done} of {now.count} of version {now.version} available"
    others = {
        "starting": sum(now.counts.get(state, 0) for state in STARTING),
        "stopping": now.counts.get("stopping", 0),
        "waiting": now.counts.get("queued", 0),
        "in a crash loop": now.looping or 0,
    }
    told = ", ".join(f"{number} {what}" for what, number in others.items() if number)
    return f"{there}; {told}" if told else there


def _of_service(applied: Workload, now: Workload) -> Standing:
    rollout, words = now.rollout, progress_words(now)
    if now.version != applied.version:
        return _of_another(applied, now, words)
    if rollout is not None and rollout.state == "failed":
        return Standing(workload=now, words=f"{rollout.cause}; it stays as it is", over=True, well=False)
    if rollout is not None and rollout.state == "waiting":
        canaries = f"{rollout.done} {'canary' if rollout.done == 1 else 'canaries'}"
        words = f"{canaries} of version {now.version} available; `roost promote` lets the others follow"
        return Standing(workload=now, words=words, over=True)
    if rollout is not None:
        return Standing(workload=now, words=words, over=rollout.state == "done")
    if now.looping:
        return Standing(workload=now, words=words, over=True, well=False)
    return Standing(workload=now, words=words, over=(now.ready or 0) >= now.count)


def _of_another(applied: Workload, now: Workload, words: str) -> Standing:
    """It is of another version by now: somebody else has changed it, or it has gone back by itself."""
    if not now.change.startswith(BACK):
        words = f"version {applied.version} was overtaken by version {now.version}"
        return Standing(workload=now, words=words, over=True, well=False)
    is_going = now.rollout is not None and now.rollout.state == "rolling"
    words = f"going back: {words}" if is_going else now.change
    return Standing(workload=now, words=words, over=not is_going, well=False)


def _look(client: "Client", applied: Workload) -> tuple[Standing, int]:
    page = client.page(applied.project, applied.name)
    if not page.items:
        raise ApiError(404, "not_found", f"{applied.key} is gone")
    return standing_of(applied, page.items[0]), page.revision


def _next(follower: Follower, deadline: float | None, standing: Standing) -> None:
    """Wait for a change; all that have come meanwhile are one reason to look."""
    left = None if deadline is None else deadline - time.monotonic()
    event = None if left is not None and left <= 0 else follower.next(left)
    if event is None:
        raise WaitTimedOut(f"{standing.workload.key} is not there in time: {standing.words}")
    follower.pending.clear()
