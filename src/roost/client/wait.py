"""Waiting without asking again and again: look once, then follow the changes from that revision on."""

import time
from collections.abc import Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Literal

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.stream import Event, Follower
from roost.client.types import Change, Workload
from roost.model.states import FINISHED

if TYPE_CHECKING:
    from roost.client.client import Client

Until = Literal["finished", "started", "running"]
Key = tuple[str, str]

NAMES_MAX = 10  # of those that were waited for in vain, told one by one


def wait_for(
    client: "Client", keys: Sequence[Key], until: Until, timeout_s: float | None, *, any_of: bool = False
) -> list[Workload]:
    """The workloads once all of them are as wanted; with `any_of` those that are, once one is.

    A workload that is over is past running, too. Of several that are over the one that ended first comes first.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found, since = _look(client, keys)
    if not _is_enough(found, until, any_of):
        kinds = ("workload",) if until == "finished" else ("workload", "instance")
        waiting = ["/".join(key) for key in found if not _reached(found[key], until)]
        only, prefix = (waiting[0], "") if len(waiting) == 1 else ("", commonprefix(waiting))
        with client.follow_changes(since=since, kinds=kinds, workload=only, prefix=prefix) as follower:
            _follow(client, follower, found, until, deadline, any_of)
    if any_of:
        done = [workload for workload in found.values() if _reached(workload, until)]
        return sorted(done, key=lambda workload: (not workload.is_over, workload.finished_ms or 0))
    return [found[key] for key in keys]


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
    client: "Client", follower: Follower, found: dict[Key, Workload], until: Until, deadline: float | None, any_of: bool
) -> None:
    while not _is_enough(found, until, any_of):
        left = None if deadline is None else deadline - time.monotonic()
        event = None if left is not None and left <= 0 else follower.next(left)
        if event is None:
            raise WaitTimedOut(f"not {until} in time: {_late(found, until)}")
        for key in _touched(event, found):
            # One look for however many changes have come meanwhile.
            while follower.pending and _touched(follower.pending[0], found) == [key]:
                follower.pending.popleft()
            found[key] = _look(client, [key])[0][key]


def _is_enough(found: dict[Key, Workload], until: Until, any_of: bool) -> bool:
    reached = (_reached(workload, until) for workload in found.values())
    return any(reached) if any_of else all(reached)


def _late(found: dict[Key, Workload], until: Until) -> str:
    names = [name for (_, name), each in found.items() if not _reached(each, until)]
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
