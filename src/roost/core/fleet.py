"""The nodes as columns: a filter is a mask over all rows, a scorer a vector. Rows are in order of name."""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from roost.model.node import Facts

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Resources = Iterable[tuple[str, int]]

LOG_MAX = 4_096  # changed rows remembered for shortlists; one that is further behind starts anew


class Fleet:
    """Totals and use per resource, kept by three functions: join, leave and take.

    `layout` counts changes of the rows themselves, `freed` the moments at which something that did not fit may fit.
    `log` holds the rows whose use or openness changed, `dropped` how many entries were cut off its front.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.facts: list[Facts] = []
        self.open: Mask = np.zeros(0, np.bool_)
        self.online: Mask = np.zeros(0, np.bool_)
        self.total: dict[str, Ints] = {}
        self.used: dict[str, Ints] = {}
        self.layout = 0
        self.freed = 0
        self.log: list[int] = []
        self.dropped = 0
        self._asked = (-1, -1)
        self._changed_rows: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of a node, or -1."""
        row = bisect_left(self.names, name)
        return row if row < len(self.names) and self.names[row] == name else -1

    def join(self, name: str, facts: Facts) -> None:
        """Add a node, or let a known one tell anew what it offers. Use is kept."""
        row = self.row(name)
        if row < 0:
            row = bisect_left(self.names, name)
            self.names.insert(row, name)
            self.facts.insert(row, facts)
            self.open = np.insert(self.open, row, False)
            self.online = np.insert(self.online, row, False)
            for resource in self.total:
                self.total[resource] = np.insert(self.total[resource], row, 0)
                self.used[resource] = np.insert(self.used[resource], row, 0)
        elif self.facts[row] == facts:
            return
        self.facts[row] = facts
        for resource in [*self.total, *facts.resources]:
            self._column(resource)
            self.total[resource][row] = facts.resources.get(resource, 0)
        self._relaid()

    def leave(self, name: str) -> None:
        """Forget a node."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        del self.names[row], self.facts[row]
        self.open = np.delete(self.open, row)
        self.online = np.delete(self.online, row)
        for resource in self.total:
            self.total[resource] = np.delete(self.total[resource], row)
            self.used[resource] = np.delete(self.used[resource], row)
        self._relaid()

    def take(self, name: str, resources: Resources, sign: int = 1) -> None:
        """Count resources as used on a node; with sign -1, give them back."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        for resource, amount in resources:
            self._column(resource)[row] += sign * amount
        if sign < 0:
            self.freed += 1
        self._changed(row)

    def set_open(self, name: str, *, is_open: bool, is_online: bool) -> None:
        """Whether a node may take new work, and whether it is in touch at all."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        if self.open[row] == is_open and self.online[row] == is_online:
            return
        self.open[row] = is_open
        self.online[row] = is_online
        self.freed += 1
        self._changed(row)

    def free(self, resource: str) -> Ints:
        """Free amounts, row by row; a resource nobody has is 0 everywhere."""
        if resource not in self.total:
            return np.zeros(len(self.names), np.int64)
        return self.total[resource] - self.used[resource]

    def changed_since(self, position: int) -> tuple[int, ...] | None:
        """Rows changed since a position of the log, each once; None when that is too long ago.

        The last answer is kept, because a thousand lines ask the same question one after the other.
        """
        if self._asked != (position, self.position):
            start = position - self.dropped
            self._changed_rows = None if start < 0 else tuple(dict.fromkeys(self.log[start:]))
            self._asked = (position, self.position)
        return self._changed_rows

    @property
    def position(self) -> int:
        """Where the log stands now."""
        return self.dropped + len(self.log)

    def _column(self, resource: str) -> Ints:
        if resource not in self.used:
            self.total[resource] = np.zeros(len(self.names), np.int64)
            self.used[resource] = np.zeros(len(self.names), np.int64)
        return self.used[resource]

    def _relaid(self) -> None:
        self.layout += 1
        self.freed += 1

    def _changed(self, row: int) -> None:
        self.log.append(row)
        if len(self.log) > LOG_MAX:
            cut = LOG_MAX // 2
            del self.log[:cut]
            self.dropped += cut
