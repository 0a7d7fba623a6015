"""Logs: bytes from agents into parts, segments and to followers. Nothing polls, and a slow reader costs no memory.

machine.py decides what is kept, what is sealed and when a log is complete; here followers wait and are woken, and
worker threads compress, put and get segments.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar
from weakref import WeakKeyDictionary

from roost.model.errors import NoService
from roost.ports.logs import Logs, LogsUnavailable
from roost.ports.objects import Objects, ObjectsUnavailable
from roost.server.logs.codec import DamagedSegment, decode, encode
from roost.server.logs.machine import (
    ENOUGH,
    LIVE,
    LOG_BYTES_MAX,
    SEALS_MAX,
    SETTLE_MS,
    STALL_MS,
    LogEnd,
    LogMachine,
    LogStatus,
)
from roost.server.logs.parts import LogEntry, SealPart
from roost.server.logs.segments import SEGMENT_BYTES, Segment, Stamp, read_key, workload_of
from roost.server.observability import logging

READ_BYTES_MAX = 256 << 10  # per turn of a follower: large enough to be cheap, small enough to be fair
LOOK_S = 1.0  # how often a follower asks whether the attempt is over: one that was lost with its node tells nothing
SWEEP_S = 1.0  # how often complete logs are looked for, to seal their ends
SWEPT_AT_ONCE = 200  # logs, 5 us each, before others have their turn
READERS = 4  # threads for readers, beside those that seal
LISTED_AT_ONCE = 1_000  # keys of segments, as many as S3 has in one answer
OPENED_MAX = 8  # segments in memory, 16 MiB: a follower reads one in eight turns
ROOT = "logs.d"  # of their keys; no project has a dot in its name, and so none has its blobs there

T = TypeVar("T")
EndOf = Callable[[str], LogEnd | None]

log = logging.logger("logs")


class LogHub:
    """A log has a name of model/keys.py. Reading raises NoService while its bytes cannot be read."""

    def __init__(
        self, tails: Logs, objects: Objects, *, size_max: int = LOG_BYTES_MAX, settle_ms: int = SETTLE_MS,
        stall_ms: int = STALL_MS, segment_bytes: int = SEGMENT_BYTES,
    ) -> None:  # fmt: skip
        self.machine = LogMachine(tails, _now_ms(), size_max, settle_ms, stall_ms, segment_bytes)
        self.size, self.missing, self.wanted, self.durable = (
            self.machine.size, self.machine.missing, self.machine.wanted, self.machine.durable,
        )  # fmt: skip
        self.sealed_bytes = 0
        self.seal_cpu_s = 0.0
        self._objects = objects
        self._pool = ThreadPoolExecutor(SEALS_MAX + READERS, "logs")
        self._waiters: WeakKeyDictionary[LogEntry, asyncio.Future[None]] = WeakKeyDictionary()
        self._opened: OrderedDict[tuple[str, Segment], tuple[bytes, list[Stamp]]] = OrderedDict()
        self._failures = logging.RateLimitedLogger("logs")
        self._is_closed = False
        found = tails.found()
        if isinstance(found, LogsUnavailable):
            log.error("local ends of logs cannot be read", error=found.reason)
        else:
            self.machine.begin(found)

    def append(self, name: str, offset: int, data: bytes) -> int | LogsUnavailable:
        """Keep a chunk and return the size: where the agent is to go on."""
        was_cut = offset + len(data) > self.machine.size_max and self.size(name) == self.machine.stored_max
        size = self.machine.append(name, offset, data, _now_ms(), time.time_ns() // 1_000_000)
        if size == ENOUGH and not was_cut:
            log.warning("log cut", log=name, bytes=self.machine.size_max)
        waiter = self._waiters.pop(self.machine.entry(name), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._seal_more()
        return size

    def status(self, name: str, end: LogEnd) -> LogStatus:
        return self.machine.status(name, end, _now_ms())

    def finished(self, name: str, end: LogEnd) -> bool:
        """Whether nothing will follow: all is here, or the node has been quiet for too long."""
        return self.machine.finished(name, end, _now_ms())

    async def list_segments(self, name: str, offset: int | None = None, *, again: bool = False) -> None:
        """List the segments of a log, if that was not done. `again`: another server may have led meanwhile.

        Raises NoService. Without it, sizes and reads lack what was sealed before.
        """
        if not again and not self.machine.must_list(name, offset):
            return
        keys = await self.in_thread(self._objects.list, f"{ROOT}/{name}")
        if isinstance(keys, ObjectsUnavailable):
            raise NoService(f"the segments of log {name} cannot be listed: {keys.reason}", code="log_unavailable")
        self.machine.listed(name, [segment for segment in map(read_key, keys) if segment is not None])

    async def read(self, name: str, offset: int, limit: int) -> bytes:
        """Bytes of a log, wherever they are; fewer than the limit at its end."""
        pieces: list[bytes] = []
        while limit > 0 and (place := self.machine.locate(name, offset)) is not None:
            if isinstance(place, Segment):
                data, _ = await self.open_segment(name, place)
                piece = data[offset - place.start : offset - place.start + limit]
            else:
                found = self.machine.tails.read(*place, limit)
                if isinstance(found, LogsUnavailable):
                    raise NoService(f"log {name} cannot be read here: {found.reason}", code="log_unavailable")
                piece = found
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            limit -= len(piece)
        return b"".join(pieces)

    async def open_segment(self, name: str, segment: Segment) -> tuple[bytes, list[Stamp]]:
        """The bytes of a segment and their stamps. Raises NoService."""
        opened = self._opened.get((name, segment))
        if opened is None:
            try:
                opened = await self.in_thread(self._load, name, segment)
            except DamagedSegment as error:
                key = f"{ROOT}/{segment.key(name)}"
                raise NoService(f"the segment {key} is damaged: {error}", code="log_unavailable") from None
            self._opened[name, segment] = opened
            while len(self._opened) > OPENED_MAX:
                self._opened.popitem(last=False)
        self._opened.move_to_end((name, segment))
        return opened

    async def stamps(self, name: str, start: int, end: int) -> list[Stamp]:
        """When the bytes of a range came, in order."""
        found: list[Stamp] = []
        for segment in self.machine.segments(name):
            if segment.start < end and segment.end > start:
                found += (await self.open_segment(name, segment))[1]
        return sorted(found + self.machine.stamps(name))

    async def arrived(self, name: str, beyond: int, end: LogEnd) -> None:
        """Wait until a log has more than so many bytes, or nothing will follow."""
        while (self.size(name) or 0) <= beyond and not self.finished(name, end):
            await self._changed(self.machine.entry(name))

    async def follow(
        self, name: str, offset: int, end: Callable[[], LogEnd] = lambda: LIVE
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of a log as they come, each with its offset, until nothing will follow."""
        entry = self.machine.entry(name)
        entry.readers += 1
        try:
            await self.list_segments(name)
            while True:
                data = await self.read(name, offset, READ_BYTES_MAX)
                if data:
                    yield offset, data
                    offset += len(data)
                elif self.finished(name, end()):
                    return
                else:
                    await self._changed(entry)
        finally:
            entry.readers -= 1

    def drop(self, prefix: str) -> "Future[None]":
        """Forget the logs of a workload (PROJECT/NAME/SERIAL), in the background."""
        self.machine.dropped(prefix)
        return self._pool.submit(self._drop, prefix)

    async def stored_workloads(self) -> AsyncIterator[list[str]]:
        """The workloads (PROJECT/NAME/SERIAL) that have segments, in pieces. Raises NoService."""
        after: str | None = ""
        while after is not None:
            keys = await self.in_thread(self._objects.list, ROOT, after, LISTED_AT_ONCE)
            if isinstance(keys, ObjectsUnavailable):
                raise NoService(f"the segments of logs cannot be listed: {keys.reason}", code="log_unavailable")
            yield list(dict.fromkeys(workload_of(key.removeprefix(f"{ROOT}/")) for key in keys))
            after = keys[-1] if len(keys) == LISTED_AT_ONCE else None

    async def run(self, end_of: EndOf) -> None:
        """Seal the ends of logs that are complete. `end_of`: what the state says; None: it has forgotten them."""
        while True:
            await asyncio.sleep(SWEEP_S)
            names = iter(list(self.machine.open))
            while batch := list(islice(names, SWEPT_AT_ONCE)):
                await self._settle(batch, end_of)
                self._seal_more()
                await asyncio.sleep(0)

    def close(self) -> None:
        """End with what is under way. The rest is in local parts, and sealed after the next start."""
        self._is_closed = True
        self._pool.shutdown()

    async def _settle(self, names: list[str], end_of: EndOf) -> None:
        for name in names:
            end = end_of(name)
            if end is not None and not end.over:
                continue
            try:
                await self.list_segments(name)
            except NoService as error:
                self._failures.warning("logs not sealed", error=str(error))
                return
            self.machine.settle(name, end, _now_ms())

    def _seal_more(self) -> None:
        for seal in () if self._is_closed else self.machine.seals(_now_ms()):
            sealing = asyncio.get_running_loop().run_in_executor(self._pool, self._seal, seal)
            sealing.add_done_callback(partial(self._was_sealed, seal))

    def _was_sealed(self, seal: SealPart, sealing: "asyncio.Future[str]") -> None:
        failure = "the server stops" if sealing.cancelled() else sealing.result()
        if failure:
            self._failures.warning("log not sealed", log=seal.log, error=failure)
            self.machine.not_sealed(seal, _now_ms())
            return
        self.sealed_bytes += seal.segment.end - seal.segment.start
        unwanted = self.machine.sealed(seal)
        if unwanted is not None:
            self._pool.submit(self._objects.delete, f"{ROOT}/{unwanted}")
        self._seal_more()

    # in threads

    def _seal(self, seal: SealPart) -> str:
        """Put a part as an object; returns why that failed."""
        began_s = time.thread_time()
        data = self.machine.tails.read(seal.part, 0, seal.segment.end - seal.segment.start)
        if isinstance(data, LogsUnavailable):
            return data.reason
        if len(data) != seal.segment.end - seal.segment.start:
            return "" if seal.entry.is_gone else f"the part has {len(data)} bytes"
        failure = self._objects.put(f"{ROOT}/{seal.segment.key(seal.log)}", encode(data, seal.stamps))
        self.seal_cpu_s += time.thread_time() - began_s
        return failure.reason if failure is not None else ""

    def _load(self, name: str, segment: Segment) -> tuple[bytes, list[Stamp]]:
        key = f"{ROOT}/{segment.key(name)}"
        stored = self._objects.get(key)
        if stored is None:
            raise NoService(f"the segment {key} is gone from the store of logs", code="log_unavailable")
        if isinstance(stored, ObjectsUnavailable):
            raise NoService(f"the segment {key} cannot be read: {stored.reason}", code="log_unavailable")
        return decode(segment, stored)

    def _drop(self, prefix: str) -> None:
        for failure in (self.machine.tails.drop(prefix), self._objects.delete(f"{ROOT}/{prefix}")):
            if failure is not None:
                log.error("logs not dropped", prefix=prefix, error=failure.reason)

    async def in_thread(self, call: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *given)

    async def _changed(self, entry: LogEntry) -> None:
        if entry not in self._waiters:
            self._waiters[entry] = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._waiters[entry],), timeout=LOOK_S)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
