"""What one hook has still to be told: in order for each object, bounded, tried again after pauses that grow.

Pure: the time is passed in. Whoever sends takes the next one, and says what became of it.
"""

from collections import OrderedDict, deque
from heapq import heappop, heappush
from itertools import count

from roost.model.hook import Event, Position


class Delivery:
    """One event on its way to one hook."""

    __slots__ = ("due_ms", "event", "flying", "queued_ms", "tries")

    def __init__(self, event: Event, now_ms: int) -> None:
        self.event = event
        self.queued_ms = now_ms
        self.due_ms = 0
        self.tries = 0
        self.flying = False


class Queue:
    """Deliveries of one hook. Those of one object go one after the other, those of others do not wait for them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: OrderedDict[str, Delivery] = OrderedDict()  # in the order of commits; its first is found at once
        self._lines: dict[str, deque[Delivery]] = {}  # by object
        self._ready: deque[str] = deque()  # objects of which something may go
        self._later: list[tuple[int, int, str]] = []
        self._serial = count()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, event: Event, now_ms: int) -> int:
        """One more; how many older ones had to go for it. What waits already is not added again."""
        if event.id in self._all:
            return 0
        delivery = self._all[event.id] = Delivery(event, now_ms)
        line = self._lines.setdefault(_object(event), deque())
        line.append(delivery)
        if len(line) == 1:
            self._ready.append(_object(event))
        return self.shrink()

    def shrink(self) -> int:
        """Drop the oldest until no more wait than may; how many."""
        dropped = 0
        while len(self._all) > self.most:
            oldest = next((each for each in self._all.values() if not each.flying), None)
            if oldest is None:
                break
            self._remove(oldest)
            dropped += 1
        return dropped

    def next(self, now_ms: int) -> Delivery | None:
        """The next one that may go now. It is on its way until `settle` or `again`."""
        while self._later and self._later[0][0] <= now_ms:
            self._ready.append(heappop(self._later)[2])
        while self._ready:
            line = self._lines.get(self._ready.popleft())
            if line and not line[0].flying and line[0].due_ms <= now_ms:
                line[0].flying = True
                return line[0]
        return None

    def due_ms(self) -> int | None:
        """When something is to be looked at again; None: not before something changes."""
        if self._ready:
            return 0
        return self._later[0][0] if self._later else None

    def settle(self, delivery: Delivery) -> None:
        """It was delivered, or is given up."""
        delivery.flying = False
        self._remove(delivery)

    def again(self, delivery: Delivery, due_ms: int) -> None:
        """It has failed and is tried again then."""
        delivery.flying = False
        delivery.due_ms = due_ms
        heappush(self._later, (due_ms, next(self._serial), _object(delivery.event)))

    def expire(self, before_ms: int) -> int:
        """Give up what has waited since before then; how many that were."""
        old: list[Delivery] = []
        for each in self._all.values():
            if each.queued_ms >= before_ms:
                break
            if not each.flying:
                old.append(each)
        for each in old:
            self._remove(each)
        return len(old)

    def floor(self) -> Position | None:
        """The commit before the oldest that waits; None: nothing waits."""
        oldest = next(iter(self._all.values()), None)
        if oldest is None:
            return None
        return Position(oldest.event.revision - 1, min(each.event.at_ms for each in self._all.values()))

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


def _object(event: Event) -> str:
    return f"{event.kind} {event.key}"
