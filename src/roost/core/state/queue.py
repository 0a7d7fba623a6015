"""The queue: who waits, and in which order. Priority first; then the project that has the smallest share of the fleet;
then who must start soonest to meet a deadline; then age. Asks that look alike wait in one line.

A line is a group of equal (ask, priority, project, timeout). When its head does not fit, nobody in the line fits, so
the whole line is passed over until something is freed; and then only the nodes that changed since can take it. A pass
costs what changed, not how many wait. A gang is a line of its own, whose head is all of it.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from copy import copy
from heapq import heappop, heappush
from typing import NamedTuple

from roost.core.state.fleet import Fleet
from roost.model.records.workload import Ask, Workload

FOREVER = 1 << 62  # a moment that never comes
Key = tuple[Ask, int, str, int, str]
Rank = tuple[int, int]  # when it must start at the latest, and its age
Entry = tuple[int, int, int, str, int]  # one that comes back: its rank, index, workload and version


class PendingHead(NamedTuple):
    """The head of a line: an instance that waits. Those never placed before have no record yet."""

    rank: Rank
    workload: Workload
    number: int  # its index within the workload
    is_requeued: bool

    @property
    def key(self) -> str:
        """PROJECT/NAME.INDEX"""
        return f"{self.workload.key}.{self.number}"


class EquivalenceClass:
    """Equal asks of one priority and project, most urgent first: workloads with fresh instances, and who comes back."""

    def __init__(self, ask: Ask, priority: int, project: str, timeout_ms: int, alone: str) -> None:
        self.ask = ask
        self.priority = priority
        self.project = project
        self.timeout_ms = timeout_ms  # who is sure to be gone in time may pass where others may not
        self.isolated = alone  # the one workload that affinity keeps out where the rest of its class may go; or a gang
        self.unsatisfiable = False  # no node could ever take its head, as the fleet was when it was looked at last
        self.depends_on_affinity = False  # whether somebody who comes may make room for it, not only somebody who goes
        self.unstarted: deque[Workload] = deque()
        self.requeued: list[Entry] = []
        self.blocked_at = -1  # the fleet's `freed` when the head last fitted nowhere
        self.layout = -1  # and its layout and position then; -1: look at all nodes again
        self.position = 0

    @property
    def key(self) -> "Key":
        """What all in it have in common."""
        return self.ask, self.priority, self.project, self.timeout_ms, self.isolated

    def __lt__(self, other: "EquivalenceClass") -> bool:
        """Which of two lines with the same head comes first: who was set apart and came back stands in both."""
        return self.isolated < other.isolated

    @property
    def is_gang(self) -> bool:
        """Whether it is one gang, all of which starts together."""
        return self.ask is GANG_ASK

    def has_isolated(self, head: PendingHead) -> bool:
        """Whether somebody who was its head has left it for a line of its own."""
        if head.is_requeued:
            return not self.requeued or self.requeued[0] != (*head.rank, head.number, *_spec_key(head.workload))
        return not self.unstarted or self.unstarted[0] is not head.workload

    def block(self, fleet: Fleet, *, by_nodes: bool) -> None:
        """The head fits nowhere as the fleet is now. `by_nodes`: only because of the nodes themselves."""
        self.blocked_at, self.position = fleet.freed, fleet.position
        self.layout = fleet.layout if by_nodes and not self.depends_on_affinity else -1

    def copied(self, twin: Callable[[Workload], Workload]) -> "EquivalenceClass":
        """An independent copy whose workloads are those of another state."""
        made = copy(self)
        made.unstarted, made.requeued = deque(map(twin, self.unstarted)), list(self.requeued)
        return made

    def take(self, head: PendingHead) -> None:
        """The head was placed. A fresh workload leaves the line by itself when its last index has begun."""
        self.layout = -1
        if head.is_requeued:
            heappop(self.requeued)


class Queue:
    """All lines. Lines that ran empty are forgotten at the next pass."""

    def __init__(self) -> None:
        self.classes: dict[Key, EquivalenceClass] = {}
        self.affinity_dependent: dict[EquivalenceClass, None] = {}
        self._seen = -1  # the fleet's `freed` at the last pass
        self._changed: dict[EquivalenceClass, None] = {}  # lines somebody has come to since

    def copied(self, twin: Callable[[EquivalenceClass], EquivalenceClass]) -> "Queue":
        """An independent copy; `twin` is the copy of a class."""
        made = Queue()
        made.classes = {key: twin(line) for key, line in self.classes.items()}
        made.affinity_dependent = {twin(line): None for line in self.affinity_dependent}
        made._changed = {twin(line): None for line in self._changed}
        made._seen = self._seen
        return made

    def due(self, fleet: Fleet) -> list[EquivalenceClass]:
        """The lines a pass has to look at: all of them when something was freed, else only those with somebody new."""
        if fleet.freed != self._seen:
            lines = list(self.classes.values())
        else:
            moved = {line: None for line in self.affinity_dependent if line.position != fleet.position}
            lines = list(self._changed | moved)
        self._changed.clear()
        self._seen = fleet.freed
        return lines

    def is_due(self, fleet: Fleet) -> bool:
        """Whether another pass would have something to look at, although nothing else happens."""
        if self._seen != fleet.freed or self._changed:
            return True
        return any(line.position != fleet.position for line in self.affinity_dependent)

    def recheck_all(self) -> None:
        """Something changed that is not seen from the nodes: every line is looked at, at all nodes."""
        self._seen = -1
        for line in self.classes.values():
            line.layout = line.blocked_at = -1

    def recheck_next_pass(self) -> None:
        """The pass could not go through all lines."""
        self._seen = -1

    def add_unstarted(self, workload: Workload) -> None:
        """A workload waits with all its instances that never ran."""
        fresh = self._class_of(workload).unstarted
        if fresh and rank_of(fresh[-1]) > rank_of(workload):
            insort(fresh, workload, key=rank_of)
        else:
            fresh.append(workload)

    def add_requeued(self, workload: Workload, index: int) -> None:
        """An instance that ran before waits for another attempt; its age counts from the first submission."""
        heappush(self._class_of(workload).requeued, (*rank_of(workload), index, *_spec_key(workload)))

    def isolate(self, line: EquivalenceClass, head: PendingHead) -> None:
        """The head is kept out by its neighbours, which others of its line may not have: it waits alone."""
        alone = self._class_of(head.workload, head.workload.key)
        line.blocked_at = line.layout = -1
        self._changed[line] = None
        if head.is_requeued:
            heappush(alone.requeued, heappop(line.requeued))
        else:
            insort(alone.unstarted, line.unstarted.popleft(), key=rank_of)

    def forget(self, line: EquivalenceClass) -> None:
        """Nobody waits in this line any more."""
        self.classes.pop(line.key, None)
        self.affinity_dependent.pop(line, None)

    @staticmethod
    def key_of(workload: Workload, alone: str = "") -> Key:
        """The key of the line in which a workload waits."""
        policy = workload.policy
        if policy.gang:  # its workloads may ask for different things; what they share is the gang
            return GANG_ASK, 0, workload.project, 0, policy.gang
        return policy.ask, policy.priority, workload.project, policy.timeout_ms, alone

    def _class_of(self, workload: Workload, alone: str = "") -> EquivalenceClass:
        policy, key = workload.policy, self.key_of(workload, alone)
        line = self.classes.get(key)
        if line is None:
            line = self.classes[key] = EquivalenceClass(*key)
        if policy.ask.affinity is not None or policy.ask.require_now or (alone and not policy.gang):
            line.depends_on_affinity = True
            self.affinity_dependent[line] = None
        if policy.gang:
            line.blocked_at = -1  # whoever comes may be the one who was missing
        self._changed[line] = None
        return line


def _spec_key(workload: Workload) -> tuple[str, int]:
    return workload.key, workload.version


GANG_ASK = Ask()  # of a line that is a gang


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


Order = tuple[int, int, int]


class BackfillReservation(NamedTuple):
    """The node on which the head of a line is to start, when, and what is left over there then."""

    node: str
    instance: str  # the instance
    shadow_ms: int
    extra: dict[str, int]
    order: Order  # only who comes after it has to mind it
    by_preemption: bool = False  # by stopping others: then also who would only borrow the room


class GangReservation(NamedTuple):
    """Nodes kept for a gang, and when the last of them is empty."""

    nodes: tuple[str, ...]
    instance: str
    shadow_ms: int
    order: Order


class PendingWork:
    """The queue, and what else decides about pending work."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.gangs: dict[str, dict[str, None]] = {}  # gang -> keys of its workloads
        self.rejectable: list[str] = []  # keys of workloads that do not queue, until a pass has seen them
        self.run_lengths_ms: dict[Key, int] = {}  # how long runs of an equivalence class take
        self.backfill_reservations: dict[EquivalenceClass, BackfillReservation] = {}
        self.gang_reservations: dict[EquivalenceClass, GangReservation] = {}
        self.pending_preemptions: dict[str, str] = {}  # instance -> the node on which others are being stopped for it
        self.queue_check_ms = 0  # when the queue is checked again although nothing happened; 0: never
        self.preemptions = self.preemption_cycles = 0  # how often; and of its own preemptor, which must stay 0

    def copy_pending(self, origin: "PendingWork", twin: Callable[[Workload], Workload]) -> None:
        """Begin as another; `twin` is the copy of a workload."""
        twins: dict[EquivalenceClass, EquivalenceClass] = {}

        def twin_class(line: EquivalenceClass) -> EquivalenceClass:
            if line not in twins:
                twins[line] = line.copied(twin)
            return twins[line]

        self.queue = origin.queue.copied(twin_class)
        self.gangs = {gang: dict(keys) for gang, keys in origin.gangs.items()}
        self.rejectable = list(origin.rejectable)
        self.run_lengths_ms = dict(origin.run_lengths_ms)
        self.backfill_reservations = {twin_class(line): kept for line, kept in origin.backfill_reservations.items()}
        self.gang_reservations = {twin_class(line): kept for line, kept in origin.gang_reservations.items()}
        self.pending_preemptions = dict(origin.pending_preemptions)
        self.queue_check_ms = origin.queue_check_ms
        self.preemptions, self.preemption_cycles = origin.preemptions, origin.preemption_cycles
