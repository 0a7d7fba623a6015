"""Watch, for controllers: everything once, then every change, at the pace of each.

A reader is a position in the ring that serves all who follow, and one frame on its way. A slow reader holds
nothing else; one that is too slow is disconnected with a message and the place to resume from. Changes of one object
that come faster than a reader's interval are sent as one; a change that reports a stop is always sent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from roost.core.state.state import State
from roost.model.errors import Forbidden, Invalid, NoService, Refused, RoostError
from roost.model.records.access import VIEWER
from roost.model.states import MOVES
from roost.server.auth.principal import Principal, Redactor
from roost.server.controller.calls import Caller
from roost.server.controller.encode import Encoded, encode_metrics, encode_record, encoded, redacted
from roost.server.controller.errors import RpcError, Slow
from roost.server.engine.engine import Engine
from roost.server.feed.change_log import KINDS, UNKNOWN, CommittedChanges, Watch
from roost.stores.batches import in_batches
from roost.wire import controller_pb2 as pb

INTERVAL_MS, INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 20, 60_000
METRICS_MS_MIN, METRICS_MS_MAX = 1_000, 3_600_000  # agents measure no more often than that
FRAME_BYTES = 64 << 10  # as much as HTTP/2 lets go at once; a frame ends with the piece that reaches it
GATHER_MAX = 2_000  # changes looked at for one frame or more: coalescing holds this many, some hundred kilobytes
ENCODE_MAX = 200  # encoded without a pause, some milliseconds: one reader must not hold up the others
PAGE = 500  # objects of one page of everything
SHARE_S = 5.0  # how long everything, once encoded, is good for those who come after
EVERYTHING_S_MAX = 120.0  # to take everything: who is slower holds what all others have long let go of
WRITE_S_MAX = 20.0  # a frame that is not read for so long: the reader is gone
PULSE_S = 10.0  # a word now and then, so that both sides notice that the other is gone

Write = Callable[[bytes], Awaitable[None]]


class Filter(NamedTuple):
    kinds: frozenset[str]
    project: str
    workload: str
    states: frozenset[str]
    redactor: Redactor

    def takes(self, kind: str, key: str) -> bool:
        if kind not in self.kinds:
            return False
        if kind == "node":
            return True
        if not self.redactor.sees(key) or (self.project and key.partition("/")[0] != self.project):
            return False
        return not self.workload or (key.rpartition(".")[0] if kind == "instance" else key) == self.workload

    def takes_states(self, change: Encoded) -> bool:
        return not self.states or not change.states or not self.states.isdisjoint(change.states)


class Everything:
    """All objects, encoded page by page when the first reader needs each. Valid until the ring drops its revision."""

    def __init__(self, state: State, generation: int) -> None:
        self.revision = state.revision
        self.generation = generation
        self.began_s = time.monotonic()
        objects: dict[str, Iterable[str]] = {
            "node": state.nodes,
            "workload": state.workloads,
            "instance": state.instances,
        }
        self._keys = [(kind, key) for kind, keys in objects.items() for key in keys]
        self._pages: list[list[tuple[str, str, Encoded]]] = []

    def __len__(self) -> int:
        return -(-len(self._keys) // PAGE)

    async def page(self, number: int, engine: Engine) -> list[tuple[str, str, Encoded]]:
        while len(self._pages) <= number:
            await asyncio.sleep(0)
            state = await engine.settled()
            start = len(self._pages) * PAGE
            found = [(*key, encode_record(state, *key)) for key in self._keys[start : start + PAGE]]
            self._pages.append([(kind, key, change) for kind, key, change in found if change is not None])
        return self._pages[number]


class Hub:
    """Shared by all readers: the ring, a recent snapshot, and measurements of nodes."""

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self.engine = engine
        self.watch = watch
        self._everything: Everything | None = None
        self._metrics: tuple[float, list[bytes]] = (0.0, [])

    async def everything(self) -> Everything:
        """All objects: a recent snapshot if another reader made one, because the ring has what came after."""
        state = await self.engine.settled()
        everything = self._everything
        if (
            everything is None
            or everything.generation != self.watch.generation
            or time.monotonic() - everything.began_s > SHARE_S
            or self.watch.after(everything.revision) is None
        ):
            everything = self._everything = Everything(state, self.watch.generation)
            asyncio.get_running_loop().call_later(SHARE_S, self._forget, everything)
        return everything

    def metrics(self) -> list[bytes]:
        """Measurements of all nodes, in frames; made at most once a second for all readers."""
        now = time.monotonic()
        if now - self._metrics[0] > METRICS_MS_MIN / 2_000:
            names = list(self.engine.state.nodes)
            pages = [names[start : start + PAGE] for start in range(0, len(names), PAGE)]
            self._metrics = (now, [encode_metrics(self.engine.state, page) for page in pages])
        return self._metrics[1]

    def _forget(self, stored: Everything) -> None:
        if self._everything is stored:
            self._everything = None


async def watch(hub: Hub, caller: Caller, request: pb.WatchRequest, write: Write) -> None:
    if caller.principal.access.highest < VIEWER:
        raise Forbidden("this needs the role viewer in a project, or everywhere")
    await WatchReader(hub, caller.principal, request, write).serve()


class WatchReader:
    def __init__(self, hub: Hub, principal: Principal, request: pb.WatchRequest, write: Write) -> None:
        self._hub = hub
        self._watch = hub.watch
        self._principal = principal
        self._write = write
        self._filter = _filter_of(request, principal)
        self._since = request.since
        self._once = request.once
        self._interval_s = _bounded(request, "interval_ms", INTERVAL_MS, INTERVAL_MS_MIN, INTERVAL_MS_MAX) / 1_000
        self._metrics_s = _bounded(request, "metrics_ms", 0, METRICS_MS_MIN, METRICS_MS_MAX) / 1_000
        self._position = 0
        self._marked = request.since  # the last place to come back to that was sent
        self._generation = 0
        self._marked_at = self._metrics_at = 0.0
        self._is_behind = False  # there is more than was gathered at once

    async def serve(self) -> None:
        """Send until the reader goes away or is disconnected. Raises RpcError."""
        self._watch.subscribers += 1
        try:
            if (revision := self._watch.revision_of(self._since)) != UNKNOWN:
                await self._hub.engine.reach(revision)
            position = self._watch.position(self._since) if self._since else None
            if position is None:
                await self._tell_everything("" if not self._since else "what came after `since` is not known here")
            else:
                self._position, self._generation = position, self._watch.generation
                await self._send_marked([], whole=True)
            while not self._once:
                await self._tell_changes()
                await self._rest()
        except RoostError as error:
            raise RpcError(error, self._marked) from None
        finally:
            self._watch.subscribers -= 1

    async def _tell_everything(self, message: str) -> None:
        await self._send(pb.WatchFrame(reset=True, reason=message).SerializeToString())
        shared = await self._hub.everything()
        self._generation, self._position = shared.generation, shared.revision
        wanted = self._filter
        began_s = time.monotonic()
        for number in range(len(shared)):
            if time.monotonic() - began_s > EVERYTHING_S_MAX:
                raise Slow(f"everything was not taken within {EVERYTHING_S_MAX:.0f} s: ask for less, or read faster")
            page = await shared.page(number, self._hub.engine)
            found = [
                redacted(change, wanted.redactor)
                for kind, key, change in page
                if wanted.takes(kind, key) and wanted.takes_states(change)
            ]
            await self._send_all(found)
        # What changed meanwhile may have been sent in part: only after it the reader knows everything as of one moment.
        until = self._watch.revision
        while self._position < until and self._generation == self._watch.generation:
            await self._tell_changes()
        await self._send_marked([], whole=True)

    async def _tell_changes(self) -> None:
        """Send some new changes: of each object the last one, and all that report a stop."""
        if not self._principal.still():
            raise Refused("your token expired or your roles changed; reconnect")
        if self._generation != self._watch.generation:
            await self._begin_again()
            return
        commits = self._watch.after(self._position)
        if commits is None:
            raise Slow("you read more slowly than things change: reconnect with `since`, everything is sent again then")
        pieces, self._position = await self._gather(commits)
        if pieces or time.monotonic() - self._marked_at >= PULSE_S:
            await self._send_marked(pieces)
        now = time.monotonic()
        if self._metrics_s and now >= self._metrics_at and "node" in self._filter.kinds:
            self._metrics_at = now + self._metrics_s
            for frame in self._hub.metrics():
                await self._send(frame)

    async def _begin_again(self) -> None:
        while not self._watch.generation and not self._watch.closed:
            await self._watch.next_commit(PULSE_S)
        if self._watch.closed:
            raise NoService("the server is stopping")
        position = self._watch.position(self._marked)
        if position is None:
            await self._tell_everything("the server has loaded its state anew")
        else:
            self._position, self._generation = position, self._watch.generation

    async def _gather(self, commits: Iterable[CommittedChanges]) -> tuple[list[bytes], int]:
        wanted, position = self._filter, self._position
        last: dict[tuple[str, str], int] = {}
        answer: list[Encoded | None] = []
        checked = fresh = 0
        for commit in commits:
            for at, committed in enumerate(commit.changes):
                checked += 1
                if not wanted.takes(*committed.record):
                    continue
                fresh += at not in commit.messages
                if fresh >= ENCODE_MAX:
                    fresh = 0
                    await asyncio.sleep(0)
                change = encoded(commit, at)
                if not wanted.takes_states(change):
                    continue
                before = last.get(committed.record)
                if before is not None and not answer[before].is_stop:  # type: ignore[union-attr]
                    answer[before] = None
                last[committed.record] = len(answer)
                answer.append(change)
            position = commit.revision
            if checked >= GATHER_MAX:
                break
        self._is_behind = position < self._watch.revision
        return [redacted(change, wanted.redactor) for change in answer if change is not None], position

    async def _rest(self) -> None:
        """Wait for a commit, and then for an interval, so that changes gather."""
        watch = self._watch
        if watch.closed:
            raise NoService("the server is stopping")
        if self._is_behind:
            await asyncio.sleep(0)
            return
        if self._position == watch.revision:
            pulse_at = self._marked_at + PULSE_S
            due_at = min(pulse_at, self._metrics_at) if self._metrics_s else pulse_at
            await watch.next_commit(max(0.0, due_at - time.monotonic()))
        if self._position < watch.revision and not watch.closed:
            await asyncio.sleep(self._interval_s)

    async def _send_all(self, pieces: list[bytes]) -> None:
        """Send pieces in few frames: each costs some hundred microseconds, whatever its size."""
        for frame in in_batches(pieces, len, FRAME_BYTES):
            await self._send(b"".join(frame))

    async def _send(self, frame: bytes) -> None:
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._write(frame)
        except TimeoutError:
            raise Slow(f"you have read nothing for {WRITE_S_MAX:.0f} s: come back with `since`") from None

    async def _send_marked(self, pieces: list[bytes], *, whole: bool = False) -> None:
        """Send pieces, and then the position to resume from: a reader that is cut off before gets them again."""
        mark = self._watch.mark(self._position)
        await self._send_all([*pieces, pb.WatchFrame(mark=mark, whole=whole).SerializeToString()])
        self._marked, self._marked_at = mark, time.monotonic()


def _filter_of(request: pb.WatchRequest, principal: Principal) -> Filter:
    kinds = frozenset(request.kinds or KINDS)
    for kind in sorted(kinds - set(KINDS)):
        raise Invalid("kinds", f"there are {', '.join(KINDS)}; not {kind!r:.60}")
    states = frozenset(request.states)
    for state in sorted(states - MOVES.keys()):
        raise Invalid("states", f"there are {', '.join(MOVES)}; not {state!r:.60}")
    if request.workload and not all(request.workload.partition("/")):
        raise Invalid("workload", f"this is like PROJECT/NAME, not {request.workload!r:.100}")
    return Filter(kinds, request.project, request.workload, states, Redactor(principal.access))


def _bounded(request: pb.WatchRequest, field: str, default: int, least: int, most: int) -> int:
    value: int = getattr(request, field)
    if value and not least <= value <= most:
        raise Invalid(field, f"this is {least:,} to {most:,} milliseconds, or 0; not {value:,}")
    return value or default
