"""Waiting in asyncio: for an event, for cancelled tasks, for a turn; and work in slices, so that others have theirs."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from roost.model.errors import NoService

Answer = TypeVar("Answer")

TURNS_MAX = 32  # of one principal that wait: a second each at most
SCAN_S = 0.010  # of CPU time for one page
SCANNED_AT_ONCE = 50
SLICE_S = 0.005  # of work before others have their turn


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> None:
    """Return when the event is set or the time is over. None: without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def unless(event: asyncio.Event, work: Awaitable[Answer]) -> Answer | None:
    """Do something without a time limit, but end it (None) when the event is set."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        await cancel(doing, waiting)


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended. Their errors are dropped."""
    cancel_futures(tasks)
    await asyncio.gather(*tasks, return_exceptions=True)


def cancel_futures(futures: "Iterable[asyncio.Future[Any]]") -> None:
    for future in futures:
        future.cancel()


class ScanLimit:
    """How long a scan may hold the loop: afterwards its page ends, even if it is short."""

    def __init__(self) -> None:
        self._count = 0
        self._until_s = time.thread_time() + SCAN_S

    def is_over(self) -> bool:
        """Called for every item; the clock is only read now and then."""
        self._count += 1
        return self._count % SCANNED_AT_ONCE == 0 and time.thread_time() >= self._until_s


class Slices:
    """Long work on the loop, cut into slices. Call `pause` after each item; what is read may change meanwhile."""

    def __init__(self) -> None:
        self._until_s = time.perf_counter() + SLICE_S

    async def pause(self) -> None:
        if time.perf_counter() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.perf_counter() + SLICE_S


class LoopShare:
    """The share that work of one kind has of each turn of the loop. Beyond it, each further turn has one, in order.

    Otherwise many short pieces of work that are due at once would hold the loop like a long one.
    """

    def __init__(self) -> None:
        self._until_s = 0.0  # of CPU time, in this turn; 0: nothing was done in it yet
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a turn of the loop that has room for what follows at once."""
        if not self._waiting and time.thread_time() < self._begin():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _begin(self) -> float:
        if not self._until_s:
            self._until_s = time.thread_time() + SLICE_S
            asyncio.get_running_loop().call_soon(self._end)
        return self._until_s

    def _end(self) -> None:
        """A turn is over, and the next one begins."""
        self._until_s = 0.0
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():  # it was not cancelled
                self._begin()
                future.set_result(None)
                return


class Turns:
    """One at a time for each name. Others wait in line, and too many are refused."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Wait for the turn of a name; the empty one never waits. Raises NoService `too_busy`."""
        if not name:
            yield
            return
        lock, count = self._lines.get(name) or (asyncio.Lock(), 0)
        if count >= TURNS_MAX:
            message = f"you have {count} large requests in progress; try again when some are answered"
            raise NoService(message, code="too_busy")
        self._lines[name] = lock, count + 1
        try:
            async with lock:
                yield
        finally:
            lock, count = self._lines.pop(name)
            if count > 1:
                self._lines[name] = lock, count - 1
