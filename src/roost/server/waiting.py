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
SCAN_S = 0.0025  # of CPU time for one page: 350 workloads; a request costs 1 ms more, and agents wait meanwhile
SCANNED_AT_ONCE = 50
SLICE_S = 0.005  # of work before others have their turn
NEVER_S = -1.0  # no CPU time is left
RESTS = 4  # turns for others after a piece, as many as the answer to a heartbeat needs; without work they take no time
PIECE_S = SLICE_S / 5  # that each piece counts for, before it is known: it may come after an await, with all the others


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


def resume(waiting: "asyncio.Future[None]") -> bool:
    """Let a task go on that awaits this in its turn. False: it was cancelled meanwhile."""
    if not waiting.done():
        waiting.set_result(None)
        return True
    return False


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
    """The share of the loop for work whose cost is unknown: some of a turn, and nothing of the next ones.

    Further work waits: after RESTS turns for others, one turn has one piece, in order. Agents' messages need several
    turns each, and pieces in turn after turn would delay them by a piece in each of them.
    """

    def __init__(self) -> None:
        self._until_s = 0.0  # of CPU time, in this turn; 0: nothing was done in it or the ones before
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for a turn of the loop that has room for what follows at once."""
        if not self._waiting and not self._until_s:
            self._until_s = time.thread_time() + SLICE_S
            asyncio.get_running_loop().call_soon(self._rest, RESTS)
        elif self._waiting or time.thread_time() >= self._until_s:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        else:
            self._until_s -= PIECE_S

    def _rest(self, turns: int) -> None:
        """This turn is for others, and as many as `turns` are."""
        self._until_s = NEVER_S
        loop = asyncio.get_running_loop()
        if turns > 1:
            loop.call_soon(self._rest, turns - 1)
        else:
            loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._until_s = 0.0
        while self._waiting:
            if resume(self._waiting.popleft()):
                self._until_s = NEVER_S  # the next turn has this piece only
                asyncio.get_running_loop().call_soon(self._rest, RESTS)
                return


class TurnBudget:
    """So many units of work in each turn of the loop. Work beyond it has the next turns, in order.

    Units are counted, not timed: what others do in the same turn takes nothing from it.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._left = units
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def turn(self, units: int = 1) -> None:
        """Wait for a turn that has units left. The last work of a turn may take more than those."""
        if not self._waiting and self._left > 0:
            self._take(units)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, units))
        await future

    def _take(self, units: int) -> None:
        if self._left == self._units:
            asyncio.get_running_loop().call_soon(self._renew)
        self._left -= units

    def _renew(self) -> None:
        self._left = self._units
        while self._waiting and self._left > 0:
            future, units = self._waiting.popleft()
            if resume(future):
                self._take(units)


class Gathering:
    """Callers that come within a pause go on together."""

    def __init__(self) -> None:
        self._together: asyncio.Event | None = None

    async def wait(self, pause_s: float) -> None:
        """Wait for others. `pause_s`: for how long, if this is the first one."""
        if self._together is None:
            self._together = asyncio.Event()
            asyncio.get_running_loop().call_later(pause_s, self._go_on, self._together)
        await self._together.wait()

    def _go_on(self, together: asyncio.Event) -> None:
        self._together = None
        together.set()


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
