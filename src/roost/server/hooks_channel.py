"""A channel: what one hook is told, at its own pace. A receiver that is dead or slow holds up nobody but itself."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec.structs import replace

from roost.model.access import EVERYWHERE
from roost.model.hook import Event, Position, is_wanted
from roost.server import say
from roost.server.auth_principal import Access
from roost.server.auth_veil import Veil
from roost.server.hooks_events import SLACK_MS
from roost.server.hooks_post import Outcome
from roost.server.hooks_queue import Delivery, Queue

log = say.logger("hooks")


class Timing(NamedTuple):
    """How often and how long it is tried."""

    first_ms: int = 1_000  # the pause after the first failure; it doubles
    pause_ms_max: int = 300_000
    tries_max: int = 20  # pauses of 1 s to 5 min: an hour
    age_ms_max: int = 3_600_000  # what waits longer is given up
    at_once: int = 4  # of one hook


TIMING = Timing()


class Counts:
    """What became of events, since this server leads."""

    __slots__ = ("delivered", "dropped", "failed", "given_up", "last_code", "last_error", "last_ms")

    def __init__(self) -> None:
        self.delivered = 0
        self.failed = 0  # tries
        self.given_up = 0
        self.dropped = 0  # for want of room
        self.last_error = ""
        self.last_code = 0
        self.last_ms = 0  # of the last try


class Channel:
    """One hook: its queue, and the loop that empties it."""

    def __init__(
        self, key: str, events: tuple[str, ...], pattern: str, start: Position, room: int, timing: Timing,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self.key = key
        self.project = key.partition("/")[0]
        self.start = start
        self.counts = Counts()
        self.changed = True  # its position is not what is stored
        self.missing = ""
        self._queue = Queue(room)
        self._timing = timing
        self._now_ms = now_ms
        self._wake = asyncio.Event()
        self._flying = 0
        self._failures = 0  # one after the other without any answer: nobody is there
        self._is_failing = False  # the last try has failed, and that was told
        self._pause_until_ms = 0
        self._veil = None if self.project == EVERYWHERE else Veil(Access({self.project: "viewer"}))
        self.wish(events, pattern)

    def wish(self, events: tuple[str, ...], pattern: str) -> None:
        """What it wants to be told from now on."""
        self._events, self._pattern = frozenset(events), pattern

    @property
    def waiting(self) -> int:
        """How many are not delivered yet."""
        return len(self._queue)

    def position(self, seen: Position) -> Position:
        """Up to where all is delivered or given up, if everything until `seen` was offered."""
        return self._queue.floor() or max(self.start, seen, key=lambda each: each.revision)

    def offer(self, event: Event) -> None:
        """Something has happened: it is queued, if it is wanted."""
        if event.revision <= self.start.revision or not is_wanted(event, self._events, self._pattern):
            return
        if event.kind == "workload" and event.at_ms < self.start.at_ms - SLACK_MS:
            return  # found again for another hook, which has not come as far
        if self._veil is not None:
            words = self._veil.words(event.cause)
            if words != event.cause:
                event = replace(event, cause=words)
        self._drop(self._queue.add(event, self._now_ms()))
        self.changed = True
        self._wake.set()

    def set_room(self, room: int) -> None:
        """So many may wait."""
        self._queue.most = room
        self._drop(self._queue.shrink())

    async def run(self, send: Callable[[Event], Awaitable[Outcome]], gate: asyncio.Semaphore) -> None:
        """Deliver until cancelled. What is on its way then counts as not delivered."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                at_once = 1 if self._failures else self._timing.at_once
                while self._flying < at_once and self._now_ms() >= self._pause_until_ms:
                    delivery = self._queue.next(self._now_ms())
                    if delivery is None:
                        break
                    self._flying += 1
                    group.create_task(self._deliver(delivery, send, gate))
                await self._until_due(at_once)

    async def _until_due(self, at_once: int) -> None:
        due_ms = self._queue.due_ms() if self._flying < at_once else None
        if due_ms is None:
            await self._wake.wait()
            return
        left_ms = max(due_ms, self._pause_until_ms) - self._now_ms()
        try:
            async with asyncio.timeout(max(left_ms, 1) / 1_000):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _deliver(
        self, delivery: Delivery, send: Callable[[Event], Awaitable[Outcome]], gate: asyncio.Semaphore
    ) -> None:
        try:
            async with gate:
                outcome = await send(delivery.event)
            self._settle(delivery, outcome)
        finally:
            if delivery.flying:  # cancelled: whether it has arrived is not known
                self._queue.again(delivery, 0)
            self._flying -= 1
            self._wake.set()

    def _settle(self, delivery: Delivery, outcome: Outcome) -> None:
        now, counts = self._now_ms(), self.counts
        counts.last_ms, counts.last_code = now, outcome.code
        self.changed = True
        if outcome.ok:
            if self._is_failing:
                self._is_failing = False
                log.info("a hook takes again what it is told", hook=self.key, waiting=self.waiting)
            self._failures = 0
            counts.delivered += 1
            self._queue.settle(delivery)
            return
        counts.failed += 1
        counts.last_error = outcome.words
        delivery.tries += 1
        if not self._is_failing:
            self._is_failing = True
            log.warning("a hook does not take what it is told", hook=self.key, why=outcome.words)
        pause_ms = self._pause_ms(delivery.tries)
        if not outcome.away:
            self._failures = 0
        elif now >= self._pause_until_ms:  # else it is one of several that have failed together
            self._failures += 1
            pause_ms = self._pause_ms(self._failures)
            self._pause_until_ms = now + pause_ms
        if delivery.tries >= self._timing.tries_max or now - delivery.queued_ms >= self._timing.age_ms_max:
            self._queue.settle(delivery)
            self._give_up(1)
        else:
            self._queue.again(delivery, now + pause_ms)
        if outcome.away:
            self._give_up(self._queue.expire(now - self._timing.age_ms_max))

    def _pause_ms(self, failures: int) -> int:
        longest = min(self._timing.first_ms << min(failures - 1, 20), self._timing.pause_ms_max)
        return longest // 2 + random.randrange(longest // 2 + 1)  # so that all who failed together do not come together

    def _give_up(self, number: int) -> None:
        if number:
            if not self.counts.given_up:
                log.warning(
                    "a hook is not told any more of what is too old", hook=self.key, error=self.counts.last_error
                )
            self.counts.given_up += number

    def _drop(self, number: int) -> None:
        if number:
            if not self.counts.dropped:
                log.warning(
                    "a hook cannot keep up: the oldest events are dropped", hook=self.key, room=self._queue.most
                )
            self.counts.dropped += number
