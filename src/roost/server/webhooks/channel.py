"""A channel: the events of one hook, sent at its own pace. A dead or slow receiver delays no other hook."""

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, takewhile
from typing import NamedTuple

from msgspec.structs import replace

from roost.model.reasons.reason import Reason
from roost.model.records.access import EVERYWHERE
from roost.model.records.webhook import WebhookEvent, WebhookPosition, is_wanted
from roost.schema.reason_text import message_of, reason_data
from roost.server.observability import logging
from roost.server.waiting import wait_for
from roost.server.webhooks.events import SLACK_MS
from roost.server.webhooks.http import PostOutcome

log = logging.logger("hooks")


class RetryTiming(NamedTuple):
    first_ms: int = 1_000  # the pause after the first failure; it doubles
    pause_ms_max: int = 300_000
    tries_max: int = 20  # pauses of 1 s to 5 min: an hour
    age_ms_max: int = 3_600_000  # older events are given up
    at_once: int = 4  # of one hook


TIMING = RetryTiming()
Send = Callable[[WebhookEvent], Awaitable[PostOutcome]]


@dataclass(slots=True, eq=False)
class Delivery:
    """One event for one hook. `flying`: it is being sent."""

    event: WebhookEvent
    queued_ms: int
    due_ms: int = 0
    tries: int = 0
    flying: bool = False


@dataclass(slots=True)
class DeliveryCounts:
    """Since this server leads."""

    delivered: int = 0
    failed: int = 0  # tries
    given_up: int = 0
    dropped: int = 0  # for lack of room
    last_error: str = ""
    last_code: int = 0
    last_ms: int = 0  # of the last try


class WebhookQueue:
    """Deliveries of one hook. Those of one object are sent in order, those of different objects independently."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: OrderedDict[str, Delivery] = OrderedDict()  # in the order of commits; the first is found at once
        self._lines: dict[str, deque[Delivery]] = {}  # by object
        self._ready: deque[str] = deque()  # objects whose first delivery may be sent
        self._later: list[tuple[int, int, str]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, event: WebhookEvent, now_ms: int) -> int:
        """Queue an event, unless it is queued already; returns how many older ones were dropped for it."""
        if event.id in self._all:
            return 0
        delivery = self._all[event.id] = Delivery(event, now_ms)
        line = self._lines.setdefault(_object(event), deque())
        line.append(delivery)
        if len(line) == 1:
            self._ready.append(_object(event))
        return self.shrink()

    def shrink(self) -> int:
        """Drop the oldest deliveries above the limit; returns how many."""
        dropped = 0
        while len(self._all) > self.most:
            oldest = next((delivery for delivery in self._all.values() if not delivery.flying), None)
            if oldest is None:
                break
            self._remove(oldest)
            dropped += 1
        return dropped

    def next(self, now_ms: int) -> Delivery | None:
        """The next delivery that is due. It is `flying` until `settle` or `again`."""
        while self._later and self._later[0][0] <= now_ms:
            self._ready.append(heappop(self._later)[2])
        while self._ready:
            line = self._lines.get(self._ready.popleft())
            if line and not line[0].flying and line[0].due_ms <= now_ms:
                line[0].flying = True
                return line[0]
        return None

    def due_ms(self) -> int | None:
        """When `next` may have something; None: not before something changes."""
        if self._ready:
            return 0
        return self._later[0][0] if self._later else None

    def settle(self, delivery: Delivery) -> None:
        delivery.flying = False
        self._remove(delivery)

    def again(self, delivery: Delivery, due_ms: int) -> None:
        delivery.flying = False
        delivery.due_ms = due_ms
        heappush(self._later, (due_ms, next(self._serial), _object(delivery.event)))

    def expire(self, before_ms: int) -> int:
        """Give up deliveries that were queued before this time; returns how many."""
        aged = takewhile(lambda delivery: delivery.queued_ms < before_ms, self._all.values())
        old = [delivery for delivery in aged if not delivery.flying]
        for delivery in old:
            self._remove(delivery)
        return len(old)

    def floor(self) -> WebhookPosition | None:
        """The commit before the oldest delivery; None: the queue is empty."""
        oldest = next(iter(self._all.values()), None)
        if oldest is None:
            return None
        return WebhookPosition(oldest.event.revision - 1, min(delivery.event.at_ms for delivery in self._all.values()))

    def _remove(self, delivery: Delivery) -> None:
        key = _object(delivery.event)
        if self._all.pop(delivery.event.id, None) is None:
            return
        line = self._lines[key]
        was_first = line[0] is delivery
        line.remove(delivery)
        if not line:
            del self._lines[key]
        elif was_first:
            self._ready.append(key)


def _object(event: WebhookEvent) -> str:
    return f"{event.kind} {event.key}"


class Channel:
    """One hook: its queue, and the loop that empties it."""

    def __init__(
        self, key: str, events: tuple[str, ...], pattern: str, start: WebhookPosition, room: int, timing: RetryTiming,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self.key = key
        self.project = key.partition("/")[0]
        self.start = start
        self.counts = DeliveryCounts()
        self.changed = True  # its position differs from the stored one
        self.missing = ""
        self._queue = WebhookQueue(room)
        self._timing = timing
        self._now_ms = now_ms
        self._wake = asyncio.Event()
        self._flying = 0
        self._failures = 0  # in a row, without any answer: the receiver is away
        self._is_failing = False  # the last try has failed, and that was logged
        self._pause_until_ms = 0
        self._visible = None if self.project == EVERYWHERE else self.project.__eq__
        self.wish(events, pattern)

    def wish(self, events: tuple[str, ...], pattern: str) -> None:
        self._events, self._pattern = frozenset(events), pattern

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def position(self, seen: WebhookPosition) -> WebhookPosition:
        """Up to where all events are delivered or given up, if all until `seen` were offered."""
        return self._queue.floor() or max(self.start, seen, key=lambda item: item.revision)

    def offer(self, event: WebhookEvent, reason: Reason | None = None) -> None:
        if event.revision <= self.start.revision or not is_wanted(event, self._events, self._pattern):
            return
        if event.kind == "workload" and event.at_ms < self.start.at_ms - SLACK_MS:
            return  # read again for another hook, whose position is older
        if self._visible is not None and reason is not None:
            message = message_of(reason, self._visible)
            event = replace(event, message=message, reason=reason_data(reason, self._visible))
        self._drop(self._queue.add(event, self._now_ms()))
        self.changed = True
        self._wake.set()

    def set_room(self, room: int) -> None:
        self._queue.most = room
        self._drop(self._queue.shrink())

    async def run(self, send: Send, gate: asyncio.Semaphore) -> None:
        """Deliver until cancelled. Events that are being sent then count as not delivered."""
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
        await wait_for(self._wake, max(left_ms, 1) / 1_000)

    async def _deliver(self, delivery: Delivery, send: Send, gate: asyncio.Semaphore) -> None:
        try:
            async with gate:
                outcome = await send(delivery.event)
            self._settle(delivery, outcome)
        finally:
            if delivery.flying:  # cancelled: whether it has arrived is unknown
                self._queue.again(delivery, 0)
            self._flying -= 1
            self._wake.set()

    def _settle(self, delivery: Delivery, outcome: PostOutcome) -> None:
        now, counts = self._now_ms(), self.counts
        counts.last_ms, counts.last_code = now, outcome.code
        self.changed = True
        if outcome.ok:
            if self._is_failing:
                self._is_failing = False
                log.info("a hook accepts events again", hook=self.key, waiting=self.waiting)
            self._failures = 0
            counts.delivered += 1
            self._queue.settle(delivery)
            return
        counts.failed += 1
        counts.last_error = outcome.message
        delivery.tries += 1
        if not self._is_failing:
            self._is_failing = True
            log.warning("a hook does not accept an event", hook=self.key, why=outcome.message)
        pause_ms = self._pause_ms(delivery.tries)
        if not outcome.away:
            self._failures = 0
        elif now >= self._pause_until_ms:  # else it is one of several that failed together
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
        return longest // 2 + random.randrange(longest // 2 + 1)  # events that failed together are spread out

    def _give_up(self, number: int) -> None:
        if number and not self.counts.given_up:
            log.warning("events of a hook are given up: they are too old", hook=self.key, error=self.counts.last_error)
        self.counts.given_up += number

    def _drop(self, number: int) -> None:
        if number and not self.counts.dropped:
            log.warning("a hook cannot keep up: the oldest events are dropped", hook=self.key, room=self._queue.most)
        self.counts.dropped += number
