"""Logs: bytes from agents into blobs, and to followers. Nothing polls, and a slow reader costs no memory.

machine.py decides what is kept and when a log is complete; here followers wait and are woken.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from weakref import WeakKeyDictionary

from roost.ports.logs import Logs, LogsUnavailable
from roost.server.logs.machine import (
    ENOUGH,
    LIVE,
    LOG_BYTES_MAX,
    SETTLE_MS,
    STALL_MS,
    LogEnd,
    LogEntry,
    LogMachine,
    LogStatus,
)
from roost.server.observability import logging

READ_BYTES_MAX = 256 << 10  # per turn of a follower: large enough to be cheap, small enough to be fair
LOOK_S = 1.0  # how often a follower asks whether the attempt is over: one that was lost with its node tells nothing

log = logging.logger("logs")


class LogHub:
    """A log has a name of model/keys.py. Reading raises NoService while the disk refuses to."""

    def __init__(
        self, blobs: Logs, *, size_max: int = LOG_BYTES_MAX, settle_ms: int = SETTLE_MS, stall_ms: int = STALL_MS
    ) -> None:
        self.machine = LogMachine(blobs, _now_ms(), size_max, settle_ms, stall_ms)
        self.size, self.read, self.missing, self.wanted = (
            self.machine.size, self.machine.read, self.machine.missing, self.machine.wanted,
        )  # fmt: skip
        self._waiters: WeakKeyDictionary[LogEntry, asyncio.Future[None]] = WeakKeyDictionary()

    def append(self, name: str, offset: int, data: bytes) -> int | LogsUnavailable:
        """Keep a chunk and return the size: where the agent is to go on."""
        is_longer = offset + len(data) > self.machine.size_max
        before = self.machine.blobs.size(name) if is_longer else None
        size = self.machine.append(name, offset, data, _now_ms())
        if size == ENOUGH and before != self.machine.stored_max:
            log.warning("log cut", log=name, bytes=self.machine.size_max)
        waiter = self._waiters.pop(self.machine.entry(name), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return size

    def status(self, name: str, end: LogEnd) -> LogStatus:
        return self.machine.status(name, end, _now_ms())

    def finished(self, name: str, end: LogEnd) -> bool:
        """Whether nothing will follow: all is here, or the node has been quiet for too long."""
        return self.machine.finished(name, end, _now_ms())

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
            while True:
                data = self.read(name, offset, READ_BYTES_MAX)
                if data:
                    yield offset, data
                    offset += len(data)
                elif self.finished(name, end()):
                    return
                else:
                    await self._changed(entry)
        finally:
            entry.readers -= 1

    def drop(self, prefix: str) -> None:
        """Forget the logs of a workload (PROJECT/NAME/SERIAL), in the background."""
        self.machine.dropped(prefix)
        asyncio.get_running_loop().run_in_executor(None, self._drop_below, prefix)

    def _drop_below(self, prefix: str) -> None:
        failure = self.machine.blobs.drop_below(prefix)
        if failure is not None:
            log.error("logs not dropped", prefix=prefix, error=failure.reason)

    async def _changed(self, entry: LogEntry) -> None:
        if entry not in self._waiters:
            self._waiters[entry] = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._waiters[entry],), timeout=LOOK_S)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
