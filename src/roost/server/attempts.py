"""Wrong attempts: counted per key and minute, so that guessing is slow. What is remembered is bounded."""

import time
from collections import OrderedDict

WINDOW_S = 60.0
KEYS_MAX = 10_000  # the oldest are dropped


class WrongAttempts:
    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()  # key -> (since, how many)

    def are_too_many(self, key: str) -> bool:
        since, count = self._counts.get(key, (0.0, 0))
        return count >= self._most and time.monotonic() - since < WINDOW_S

    def note(self, key: str) -> None:
        now = time.monotonic()
        since, count = self._counts.pop(key, (now, 0))
        self._counts[key] = (since, count + 1) if now - since < WINDOW_S else (now, 1)
        if len(self._counts) > KEYS_MAX:
            self._counts.popitem(last=False)
