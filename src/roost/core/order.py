"""The queue: who waits, and in which order. Priority first; then the project that has the smallest share of the fleet;
then who must start soonest to meet a deadline; then age. Asks that look alike wait in one line.

A line is a group of equal (ask, priority, project, timeout). When its head does not fit, nobody in the line fits, so
the whole line is passed over until something is freed; and then only the nodes that changed since can take it. A pass
costs what changed, not how many wait. A gang is a line of its own, whose head is all of it.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from roost.core.fleet import Fleet
from roost.model.workload import Ask, Workload

if TYPE_CHECKING:
    from roost.core.state import State

FOREVER = 1 << 62  # a moment that never comes
Key = tuple[Ask, int, str, int, str]
Rank = tuple[int, int]  # when it must start at the latest, and its age
Entry = tuple[int, int, int, str, int]  # one that comes back: its rank, index, workload and version


class Waiting(NamedTuple):
    """The head of a line: an instance that waits. Those never placed before have no record yet."""

    rank: Rank
    workload: Workload
    number: int  # its index within the workload
    again: bool


class Line:
    """Equal asks of one priority and project, most urgent first: workloads with fresh instances, and who comes back."""

    def __init__(self, ask: Ask, priority: int, project: str, timeout_ms: int, alone: str) -> None:
        self.ask = ask
        self.priority = priority
        self.project = project
        self.timeout_ms = timeout_ms  # who is sure to be gone in time may pass where others may not
        self.alone = alone  # the one workload whose neighbours keep it out where others of its kind may go; or a gang
        self.is_hopeless = False  # no node could ever take its head, as the fleet was when it was looked at last
        self.is_sociable = False  # whether somebody who comes may make room for it, not only somebody who goes
        self.fresh: deque[Workload] = deque()
        self.again: list[Entry] = []
        self.blocked_at = -1  # the fleet's `freed` when the head last fitted nowhere
        self.layout = -1  # and its layout and position then; -1: look at all nodes again
        self.position = 0

    @property
    def key(self) -> "Key":
        """What all in it have in common."""
        return self.ask, self.priority, self.project, self.timeout_ms, self.alone

    def __lt__(self, other: "Line") -> bool:
        """Which of two lines with the same head comes first: who was set apart and came back stands in both."""
        return self.alone < other.alone

    @property
    def is_gang(self) -> bool:
        """Whether it is one gang, all of which starts together."""
        return self.ask is NO_ASK

    def is_set_apart(self, head: Waiting) -> bool:
        """Whether somebody who was its head has left it for a line of its own."""
        if head.again:
            return not self.again or self.again[0] != (*head.rank, head.number, *_spec_key(head.workload))
        return not self.fresh or self.fresh[0] is not head.workload

    def block(self, fleet: Fleet, *, by_nodes: bool) -> None:
        """The head fits nowhere as the fleet is now. `by_nodes`: only because of the nodes themselves."""
        self.blocked_at, self.position = fleet.freed, fleet.position
        self.layout = fleet.layout if by_nodes and not self.is_sociable else -1

    def head(self, state: "State") -> Waiting | None:
        """The most urgent that still waits; what has ended meanwhile is dropped on the way."""
        index = -1
        while self.fresh and (index := state.first_fresh(self.fresh[0])) < 0:
            self.fresh.popleft()
        while self.again and not state.waits_again(self.again[0]):
            heappop(self.again)
        fresh = self.fresh[0] if self.fresh else None
        rank = rank_of(fresh) if fresh is not None else (FOREVER, FOREVER)
        if self.again and (fresh is None or self.again[0][:2] <= rank):
            start_by, serial, index, key, _ = self.again[0]
            return Waiting((start_by, serial), state.spec_of(state.instances[f"{key}.{index}"]), index, True)
        if fresh is None:
            return None
        return Waiting(rank, fresh, index, False)

    def take(self, head: Waiting) -> None:
        """The head was placed. A fresh workload leaves the line by itself when its last index has begun."""
        self.layout = -1
        if head.again:
            heappop(self.again)


class Queue:
    """All lines. Lines that ran empty are forgotten at the next pass."""

    def __init__(self) -> None:
        self.lines: dict[Key, Line] = {}
        self.sociable: dict[Line, None] = {}
        self._seen = -1  # the fleet's `freed` at the last pass
        self._awake: dict[Line, None] = {}  # lines somebody has come to since

    def due(self, fleet: Fleet) -> list[Line]:
        """The lines a pass has to look at: all of them when something was freed, else only those with somebody new."""
        if fleet.freed != self._seen:
            lines = list(self.lines.values())
        else:
            lines = list(self._awake | {line: None for line in self.sociable if line.position != fleet.position})
        self._awake.clear()
        self._seen = fleet.freed
        return lines

    def is_due(self, fleet: Fleet) -> bool:
        """Whether another pass would have something to look at, although nothing else happens."""
        if self._seen != fleet.freed or self._awake:
            return True
        return any(line.position != fleet.position for line in self.sociable)

    def look_again(self) -> None:
        """Something changed that is not seen from the nodes: every line is looked at, at all nodes."""
        self._seen = -1
        for line in self.lines.values():
            line.layout = line.blocked_at = -1

    def go_on(self) -> None:
        """The pass could not go through all lines."""
        self._seen = -1

    def add_fresh(self, workload: Workload) -> None:
        """A workload waits with all its instances that never ran."""
        fresh = self._line(workload).fresh
        if fresh and rank_of(fresh[-1]) > rank_of(workload):
            insort(fresh, workload, key=rank_of)
        else:
            fresh.append(workload)

    def add_again(self, workload: Workload, index: int) -> None:
        """An instance that ran before waits for another attempt; its age counts from the first submission."""
        heappush(self._line(workload).again, (*rank_of(workload), index, *_spec_key(workload)))

    def set_apart(self, line: Line, head: Waiting) -> None:
        """The head is kept out by its neighbours, which others of its line may not have: it waits alone."""
        alone = self._line(head.workload, head.workload.key)
        line.blocked_at = line.layout = -1
        self._awake[line] = None
        if head.again:
            heappush(alone.again, heappop(line.again))
        else:
            insort(alone.fresh, line.fresh.popleft(), key=rank_of)

    def forget(self, line: Line) -> None:
        """Nobody waits in this line any more."""
        self.lines.pop(line.key, None)
        self.sociable.pop(line, None)

    @staticmethod
    def key_of(workload: Workload, alone: str = "") -> Key:
        """The key of the line in which a workload waits."""
        policy = workload.policy
        if policy.gang:  # its workloads may ask for different things; what they share is the gang
            return NO_ASK, 0, workload.project, 0, policy.gang
        return policy.ask, policy.priority, workload.project, policy.timeout_ms, alone

    def _line(self, workload: Workload, alone: str = "") -> Line:
        policy, key = workload.policy, self.key_of(workload, alone)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(*key)
        if policy.ask.company is not None or policy.ask.require_now or (alone and not policy.gang):
            line.is_sociable = True
            self.sociable[line] = None
        if policy.gang:
            line.blocked_at = -1  # whoever comes may be the one who was missing
        self._awake[line] = None
        return line


def _spec_key(workload: Workload) -> tuple[str, int]:
    return workload.key, workload.version


NO_ASK = Ask()  # of a line that is a gang


def rank_of(workload: Workload) -> Rank:
    """Its place among its kind: who must start soonest goes first, then who came first."""
    return start_by_ms(workload), workload.serial


def start_by_ms(workload: Workload) -> int:
    """When it must start at the latest in order to meet its deadline."""
    policy = workload.policy
    if policy.deadline_at_ms:
        return policy.deadline_at_ms - policy.expected_ms
    if policy.deadline_ms:
        return workload.submitted_ms + policy.deadline_ms - policy.expected_ms
    return FOREVER
