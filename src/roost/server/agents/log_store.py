"""Logs: bytes from agents into blobs, and to followers. Nothing polls, and a slow reader costs no memory.

When is a log complete? The report of an attempt's end has the size of its log, and the size is part of the state. So a
caller passes what the state says of the end (`LogEnd`), and a log is complete when it has these bytes, on any server
and after any restart. An attempt that printed nothing has size 0 and never sends a chunk.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from roost.model.errors import NoService
from roost.model.limits import BYTES_MAX
from roost.ports.blobs import Blobs, BlobsUnavailable
from roost.server.observability import logging

LOG_BYTES_MAX = 1 << 30  # per attempt; more than is ever read, little enough that one run does not fill the disk
READ_BYTES_MAX = 256 << 10  # per turn of a follower: large enough to be cheap, small enough to be fair
ENTRIES_MAX = 20_000  # logs remembered beside their blobs; as many as may be open in a large cluster
SETTLE_S = 5.0  # of quiet, after which no more is expected of an attempt that was lost with its node
STALL_S = 10.0  # of quiet, after which bytes that a node has reported and not sent are called missing
LOOK_S = 1.0  # how often a follower asks whether the attempt is over: one that was lost with its node tells nothing
ENOUGH = BYTES_MAX  # instead of a size when nothing more of a log is wanted

log = logging.logger("logs")

T = TypeVar("T")


class LogEnd(NamedTuple):
    """What the state says of the end of an attempt. `size`: of its log, as its node reported; None: it did not."""

    over: bool = False
    size: int | None = None


LIVE = LogEnd()


@dataclass(slots=True, eq=False)
class LogEntry:
    changed_s: float  # when the last bytes came in this life of the server
    awaited_s: float | None = None  # when a reader first found it shorter than its node had reported
    readers: int = 0
    waiter: "asyncio.Future[None] | None" = None

    def wake(self, now_s: float) -> None:
        self.changed_s = now_s
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        self.waiter = None

    async def changed(self, timeout_s: float) -> None:
        if self.waiter is None:
            self.waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait((self.waiter,), timeout=timeout_s)


class LogHub:
    """A log is PROJECT/NAME/SERIAL/INDEX.ATTEMPT. Reading raises NoService while the disk refuses to."""

    def __init__(
        self, blobs: Blobs, *, size_max: int = LOG_BYTES_MAX, settle_s: float = SETTLE_S, stall_s: float = STALL_S
    ) -> None:
        self._blobs = blobs
        self._size_max = size_max
        self._settle_s = settle_s
        self._stall_s = stall_s
        self._began_s = time.monotonic()
        self._entries: OrderedDict[str, LogEntry] = OrderedDict()  # the one touched last is at the end

    def append(self, name: str, offset: int, data: bytes) -> int | BlobsUnavailable:
        """Keep a chunk and return the size: where the agent is to go on."""
        end = offset + len(data)
        if end > self._size_max:
            size = self._append_last(name, offset, data)
        elif data:
            size = self._blobs.append(name, offset, data)
        else:
            size = self._blobs.size(name) or 0
        self._entry(name).wake(time.monotonic())
        return size

    def size(self, name: str) -> int | None:
        """How many bytes are there; None: no log, or nothing in it yet."""
        return _readable(name, self._blobs.size(name))

    @property
    def stored_max(self) -> int:
        """The size of a log that was cut, with the line that says so."""
        return self._size_max + len(_cut_mark(self._size_max))

    def read(self, name: str, offset: int, limit: int) -> bytes:
        return _readable(name, self._blobs.read(name, offset, limit))

    def missing(self, name: str, end: LogEnd) -> int:
        """How many bytes the node has reported that are not here."""
        if not end.over or end.size is None:
            return 0
        return max(0, min(end.size, self._size_max) - (self.size(name) or 0))

    def finished(self, name: str, end: LogEnd) -> bool:
        """Whether nothing will follow: all is here, or the node has been quiet for too long."""
        if not end.over:
            return False
        now_s = time.monotonic()
        if end.size is None:
            entry = self._entries.get(name)
            return now_s - (entry.changed_s if entry is not None else self._began_s) >= self._settle_s
        if not self.missing(name, end):
            return True
        entry = self._entry(name)
        if entry.awaited_s is None:
            entry.awaited_s = now_s
        return now_s - max(entry.awaited_s, entry.changed_s) >= self._stall_s

    async def arrived(self, name: str, beyond: int, end: LogEnd) -> None:
        """Wait until a log has more than so many bytes, or nothing will follow."""
        while (self.size(name) or 0) <= beyond and not self.finished(name, end):
            await self._entry(name).changed(LOOK_S)

    async def follow(
        self, name: str, offset: int, end: Callable[[], LogEnd] = lambda: LIVE
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of a log as they come, each with its offset, until nothing will follow."""
        entry = self._entry(name)
        entry.readers += 1
        try:
            while True:
                data = self.read(name, offset, READ_BYTES_MAX)
                if data:
                    yield offset, data
                    offset += len(data)
                elif self.finished(name, end()):
                    return
                else:
                    await entry.changed(LOOK_S)
        finally:
            entry.readers -= 1

    def drop(self, prefix: str) -> None:
        """Forget the logs of a workload (PROJECT/NAME/SERIAL), in the background."""
        for name in [name for name in self._entries if name.startswith(f"{prefix}/")]:
            if not self._entries[name].readers:
                del self._entries[name]
        asyncio.get_running_loop().run_in_executor(None, self._drop_below, prefix)

    def _drop_below(self, prefix: str) -> None:
        failure = self._blobs.drop_below(prefix)
        if failure is not None:
            log.error("logs not dropped", prefix=prefix, error=failure.reason)

    def _append_last(self, name: str, offset: int, data: bytes) -> int | BlobsUnavailable:
        """The chunk that reaches the limit: what fits, and a line that tells where the log was cut."""
        size = self._blobs.size(name) or 0
        if isinstance(size, int) and size < self._size_max and offset < self._size_max:
            size = self._blobs.append(name, offset, data[: self._size_max - offset])
        if size == self._size_max:
            size = self._blobs.append(name, size, _cut_mark(self._size_max))
            log.warning("log cut", log=name, bytes=self._size_max)
        return ENOUGH if isinstance(size, int) and size >= self._size_max else size

    def _entry(self, name: str) -> LogEntry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = LogEntry(self._began_s)
            self._forget_oldest()
        else:
            self._entries.move_to_end(name)
        return entry

    def _forget_oldest(self) -> None:
        """Remember no more than the limit, beside those that are followed."""
        for name in list(self._entries) if len(self._entries) > ENTRIES_MAX else ():
            if not self._entries[name].readers:
                del self._entries[name]
            if len(self._entries) <= ENTRIES_MAX * 9 // 10:
                break


def _readable(name: str, outcome: T | BlobsUnavailable) -> T:
    if isinstance(outcome, BlobsUnavailable):
        raise NoService(f"the log {name} cannot be read here: {outcome.reason}")
    return outcome


def _cut_mark(size: int) -> bytes:
    return f"\n[roost: this log was cut here, after {size} bytes (--log-limit); the rest was not kept]\n".encode()
