"""A world on one heap: one virtual time, one source of chance, one story. The same seed gives the same story."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar

LINES_KEPT = 400  # of the story, to find out why a seed failed
PPM = 1_000_000
PROJECTS = ("default", "red", "blue")  # of all work

T = TypeVar("T")


class Wrong(Exception):
    """Something happened that must never happen."""


class SideChance(Random):
    """Chance for logs and damaged stores: other choices of a seed do not depend on them."""

    def between(self, least: int, most: int) -> int:
        return least + int(self.random() * (most - least + 1))

    def happens(self, probability: float) -> bool:
        return self.random() < probability


class World:
    """The schedule of events. Times are true milliseconds, which cannot be read inside the world; hosts have clocks."""

    def __init__(self, seed: int, show: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now = 0
        self.chance = Random(seed)
        self.side_chance = SideChance(f"beside {seed}")
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._hash = blake2b(digest_size=8)
        self.story: deque[str] = deque(maxlen=LINES_KEPT)
        self._show = show

    def at(self, when_ms: int, action: Callable[..., None], *given: Any, **named: Any) -> None:
        """Call the function at a time; calls of equal times keep their order."""
        action = partial(action, **named) if named else action
        heappush(self._heap, (max(when_ms, self.now), next(self._numbers), action, given))

    def after(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self.at(self.now + delay_ms, action, *given)

    def run(self, until_ms: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now, _, action, given = heappop(heap)
            action(*given)
        self.now = until_ms

    def tell(self, who: str, message: str) -> None:
        line = f"{self.now:>7} {who}: {message}"
        self._hash.update(line.encode())
        self.story.append(line)
        if self._show is not None:
            self._show(line)

    def fingerprint(self) -> str:
        return self._hash.hexdigest()

    # chance

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    def between(self, least: int, most: int) -> int:
        """A random integer, both ends included."""
        return least + int(self.chance.random() * (most - least + 1))

    def one_of(self, things: Sequence[T]) -> T:
        return things[int(self.chance.random() * len(things))]


class SimulatedProcess:
    """A process that can hang: what happens to it meanwhile waits until it wakes."""

    def __init__(self) -> None:
        self.hung = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def awake(self, action: Callable[..., None], *given: Any) -> None:
        if self.hung:
            self.backlog.append((action, given))
        else:
            action(*given)

    def wake(self) -> None:
        self.hung = False
        backlog, self.backlog = self.backlog, []
        for action, given in backlog:
            self.awake(action, *given)


class SimulatedClock:
    """A clock of one host: it begins anywhere and runs a little too fast or too slow, but never jumps."""

    def __init__(self, world: World, offset_ms: int, drift_ppm: int) -> None:
        self._world = world
        self._began = world.now
        self._offset = offset_ms
        self._drift = drift_ppm

    def now_ms(self) -> int:
        return self._shown(self._world.now)

    def true_ms(self, shown_ms: int) -> int:
        """The first true time at which this clock shows at least that."""
        true = self._began + (shown_ms - self._offset - self._began) * PPM // (PPM + self._drift) - 1
        while self._shown(true) < shown_ms:
            true += 1
        return true

    def _shown(self, true_ms: int) -> int:
        return self._offset + true_ms + (true_ms - self._began) * self._drift // PPM
