"""The queue: who waits, and in which order. Priority first, then age; asks that look alike wait in one line.

A line is a group of equal (ask, priority). When its head does not fit, nobody in the line fits, so the whole line is
passed over until something is freed; and then only the nodes that changed since can take it. A pass costs what
changed, not how many wait.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from roost.core.fleet import Fleet
from roost.model.workload import Ask, Workload

if TYPE_CHECKING:
    from roost.core.state import State


class Waiting(NamedTuple):
    """The head of a line: an instance that waits. Those never placed before have no record yet."""

    serial: int
    workload: Workload
    number: int  # its index within the workload
    again: bool


class Line:
    """Equal asks of one priority, oldest first: workloads with fresh instances, and instances that come back."""

    def __init__(self, ask: Ask, priority: int) -> None:
        self.ask = ask
        self.priority = priority
        self.fresh: deque[Workload] = deque()
        self.again: list[tuple[int, int, str]] = []
        self.blocked_at = -1  # the fleet's `freed` when the head last fitted nowhere
        self.layout = -1  # and its layout and position then; -1: it has fitted since
        self.position = 0

    def block(self, fleet: Fleet) -> None:
        """The head fits nowhere as the fleet is now."""
        self.blocked_at, self.layout, self.position = fleet.freed, fleet.layout, fleet.position

    def head(self, state: "State") -> Waiting | None:
        """The oldest that still waits; what has ended meanwhile is dropped on the way."""
        index = -1
        while self.fresh and (index := state.first_fresh(self.fresh[0])) < 0:
            self.fresh.popleft()
        while self.again and not state.waits_again(self.again[0]):
            heappop(self.again)
        fresh = self.fresh[0] if self.fresh else None
        if self.again and (fresh is None or self.again[0][0] <= fresh.serial):
            serial, index, key = self.again[0]
            return Waiting(serial, state.workloads[key], index, True)
        if fresh is None:
            return None
        return Waiting(fresh.serial, fresh, index, False)

    def take(self, head: Waiting) -> None:
        """The head was placed. A fresh workload leaves the line by itself when its last index has begun."""
        self.layout = -1
        if head.again:
            heappop(self.again)


class Queue:
    """All lines. Lines that ran empty are forgotten at the next pass."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Ask, int], Line] = {}
        self._seen = -1  # the fleet's `freed` at the last pass
        self._awake: dict[Line, None] = {}  # lines somebody has come to since

    def due(self, freed: int) -> list[Line]:
        """The lines a pass has to look at: all of them when something was freed, else only those with somebody new."""
        lines = list(self._awake if freed == self._seen else self.lines.values())
        self._awake.clear()
        self._seen = freed
        return lines

    def look_again(self) -> None:
        """The pass could not go through all lines."""
        self._seen = -1

    def add_fresh(self, workload: Workload) -> None:
        """A workload waits with all its instances that never ran. Whoever comes back keeps its place by age."""
        fresh = self._line(workload).fresh
        if fresh and fresh[-1].serial > workload.serial:
            insort(fresh, workload, key=lambda each: each.serial)
        else:
            fresh.append(workload)

    def add_again(self, workload: Workload, index: int) -> None:
        """An instance that ran before waits for another attempt; its age counts from the first submission."""
        heappush(self._line(workload).again, (workload.serial, index, workload.key))

    def forget(self, line: Line) -> None:
        """Nobody waits in this line any more."""
        del self.lines[line.ask, line.priority]

    def _line(self, workload: Workload) -> Line:
        ask, priority = workload.policy.ask, workload.policy.priority
        line = self.lines.get((ask, priority))
        if line is None:
            line = self.lines[ask, priority] = Line(ask, priority)
        self._awake[line] = None
        return line
