"""Waiting without asking again and again: look once, then follow the changes from that revision on."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from roost.client.errors import ApiError, WaitTimedOut
from roost.client.stream import Event, Follower
from roost.client.types import Change, Workload
from roost.model.states import FINISHED

if TYPE_CHECKING:
    from roost.client.client import Client

Until = Literal["finished", "running"]
Key = tuple[str, str]


def wait_for(client: "Client", keys: Sequence[Key], until: Until, timeout_s: float | None) -> list[Workload]:
    """The workloads once all of them are as wanted. A workload that is over is past running, too."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found, since = _look(client, keys)
    open_keys = [key for key in found if not _reached(found[key], until)]
    if open_keys:
        kinds = ("workload",) if until == "finished" else ("workload", "instance")
        only = "/".join(open_keys[0]) if len(open_keys) == 1 else ""
        with client.follow_changes(since=since, kinds=kinds, workload=only) as follower:
            _follow(client, follower, found, until, deadline)
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
    client: "Client", follower: Follower, found: dict[Key, Workload], until: Until, deadline: float | None
) -> None:
    while any(not _reached(workload, until) for workload in found.values()):
        left = None if deadline is None else deadline - time.monotonic()
        event = None if left is not None and left <= 0 else follower.next(left)
        if event is None:
            late = ", ".join(name for (_, name), each in found.items() if not _reached(each, until))
            raise WaitTimedOut(f"not {until} in time: {late}")
        for key in _touched(event, found):
            # One look for however many changes have come meanwhile.
            while follower.pending and _touched(follower.pending[0], found) == [key]:
                follower.pending.popleft()
            found[key] = _look(client, [key])[0][key]


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
    if until == "finished":
        return workload.is_over
    up = sum(number for state, number in workload.counts.items() if state == "running" or state in FINISHED)
    return up >= workload.count
