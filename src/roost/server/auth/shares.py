"""Places that principals share: connections and streams. Each principal has a bound, and higher roles have priority."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from roost.model.errors import NoService
from roost.model.records.access import ADMIN, OPERATOR, SUBMITTER, VIEWER
from roost.server.auth.principal import Principal

OWN = {VIEWER: 1 / 4, SUBMITTER: 1 / 2, OPERATOR: 3 / 4, ADMIN: 1.0}  # of all places, for one principal
LAST = {VIEWER: 3 / 4, SUBMITTER: 7 / 8, OPERATOR: 15 / 16, ADMIN: 1.0}  # the rest is kept for higher roles


class Shares:
    """`noun`: what is shared, for messages."""

    def __init__(self, most: int, noun: str) -> None:
        self._total = 0
        self._most = most
        self._noun = noun
        self._own: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are taken."""
        return self._total

    def take(self, principal: Principal) -> None:
        """Raises NoService `busy`."""
        rank = max(principal.access.highest, VIEWER)
        own = self._own[principal.name]
        if own >= self._most * OWN[rank]:
            raise NoService(f"you have {own:,} {self._noun} open already; close some", code="busy")
        if self._total >= self._most * LAST[rank]:
            raise NoService(f"{self._total:,} {self._noun} are open already; try again in a moment", code="busy")
        self._own[principal.name] += 1
        self._total += 1

    def give_back(self, name: str) -> None:
        self._total -= 1
        self._own[name] -= 1
        if not self._own[name]:
            del self._own[name]

    @contextmanager
    def one(self, principal: Principal) -> Iterator[None]:
        self.take(principal)
        try:
            yield
        finally:
            self.give_back(principal.name)
