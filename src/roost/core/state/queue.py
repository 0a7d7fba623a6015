"""The queue: pending instances by priority, share of the project, latest start for a deadline, and age.

An equivalence class has equal (ask, priority, project, timeout). When its head does not fit, no other of its instances
fits, so the class is skipped until something is freed; and then only the nodes that changed since can take it. A pass
costs what changed, not how many are pending. A gang is a class of its own, whose head is all of it.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from copy import copy
from heapq import heappop, heappush
from typing import NamedTuple

from roost.core.state.fleet import Fleet
from roost.core.state.shared import copy_part
from roost.model.records.workload import Ask, Workload

FOREVER = 1 << 62  # a moment that never comes
Key = tuple[Ask, int, str, int, str]
Rank = tuple[int, int]  # when it must start at the latest, and its age
Entry = tuple[int, int, int, str, int]  # a requeued instance: its rank, index, workload and version


class PendingHead(NamedTuple):
    """The head of a class: a pending instance. One that was never placed has no record yet."""

    rank: Rank
    workload: Workload
    number: int  # its index within the workload
    is_requeued: bool

    @property
    def key(self) -> str:
        return f"{self.workload.key}.{self.number}"


class EquivalenceClass:
    """Equal asks of one priority and project, most urgent first: unstarted and requeued instances."""

    def __init__(self, ask: Ask, priority: int, project: str, timeout_ms: int, alone: str) -> None:
        self.ask = ask
        self.priority = priority
        self.project = project
        self.timeout_ms = timeout_ms  # short jobs may backfill where others may not
        self.isolated = alone  # the workload that affinity keeps out where the rest may go, a gang, or @NODE
        self.unsatisfiable = False  # no node could ever take its head, as the fleet was at the last check
        self.depends_on_affinity = False  # it may fit after a placement, not only after a release
        self.unstarted: deque[Workload] = deque()
        self.requeued: list[Entry] = []
        self.blocked_at = -1  # the fleet's `freed` when the head last fitted nowhere
        self.layout = -1  # and its layout and position then; -1: check all nodes again
        self.position = 0
        self.taken_at = 0  # and its `taken`
        self.overdue_ms = 0  # from when its head, as it was at the last check, may get a backfill reservation

    @property
    def key(self) -> Key:
        return self.ask, self.priority, self.project, self.timeout_ms, self.isolated

    def __lt__(self, other: "EquivalenceClass") -> bool:
        """For two classes with the same head: an instance that was isolated and requeued is in both."""
        return self.isolated < other.isolated

    @property
    def urgency(self) -> tuple[int, Rank]:
        """About where its head stands among the heads of all classes: shares of projects are left out."""
        ranks = [rank_of(self.unstarted[0])] if self.unstarted else []
        ranks += [self.requeued[0][:2]] if self.requeued else []
        return -self.priority, min(ranks, default=(FOREVER, FOREVER))

    @property
    def is_gang(self) -> bool:
        return self.ask is GANG_ASK

    def has_isolated(self, head: PendingHead) -> bool:
        """Whether the instance that was its head has left it for a class of its own."""
        if head.is_requeued:
            return not self.requeued or self.requeued[0] != _entry(head.workload, head.number, head.rank)
        return not self.unstarted or self.unstarted[0] is not head.workload

    def block(self, fleet: Fleet, *, by_nodes: bool) -> None:
        """The head fits nowhere in the fleet as it is. `by_nodes`: only because of the nodes themselves."""
        self.blocked_at, self.position, self.taken_at = fleet.freed, fleet.position, fleet.taken
        self.layout = fleet.layout if by_nodes and not self.depends_on_affinity else -1

    def is_blocked(self, fleet: Fleet) -> bool:
        """Whether nothing has changed for the class since its head fitted nowhere."""
        return self.blocked_at == fleet.freed and not (self.depends_on_affinity and self.taken_at != fleet.taken)

    def copied(self, twin: Callable[[Workload], Workload]) -> "EquivalenceClass":
        made = copy(self)
        made.unstarted, made.requeued = deque(map(twin, self.unstarted)), list(self.requeued)
        return made

    def take(self, head: PendingHead) -> None:
        """The head was placed. A workload leaves `unstarted` by itself when its last index was placed."""
        self.layout = -1
        if head.is_requeued:
            heappop(self.requeued)


class Queue:
    """All classes. Empty ones are dropped at the next pass."""

    def __init__(self) -> None:
        self.classes: dict[Key, EquivalenceClass] = {}
        self.affinity_dependent: dict[EquivalenceClass, None] = {}
        self._seen = -1  # the fleet's `freed` at the last pass
        self._changed: dict[EquivalenceClass, None] = {}  # classes with new instances since

    def copied(self, twin: Callable[[EquivalenceClass], EquivalenceClass]) -> "Queue":
        made = Queue()
        made.classes = {key: twin(line) for key, line in self.classes.items()}
        made.affinity_dependent = {twin(line): None for line in self.affinity_dependent}
        made._changed = {twin(line): None for line in self._changed}
        made._seen = self._seen
        return made

    def due(self, fleet: Fleet) -> list[EquivalenceClass]:
        """The classes a pass has to check: all when something was freed, else only those with new instances."""
        if fleet.freed != self._seen:
            lines = list(self.classes.values())
        else:
            moved = {line: None for line in self.affinity_dependent if line.taken_at != fleet.taken}
            lines = list(self._changed | moved)
        self._changed.clear()
        self._seen = fleet.freed
        return lines

    def is_due(self, fleet: Fleet) -> bool:
        if self._seen != fleet.freed or self._changed:
            return True
        return any(line.taken_at != fleet.taken for line in self.affinity_dependent)

    def recheck_all(self) -> None:
        """Something changed that the nodes do not show: every class is checked on all nodes."""
        self._seen = -1
        for line in self.classes.values():
            line.layout = line.blocked_at = -1

    def recheck_next_pass(self) -> None:
        self._seen = -1

    def add_unstarted(self, workload: Workload) -> None:
        line = self._class_of(workload)
        fresh = line.unstarted
        if fresh and rank_of(fresh[-1]) > rank_of(workload):
            insort(fresh, workload, key=rank_of)
        else:
            fresh.append(workload)
        if fresh[0] is workload:
            line.blocked_at = line.layout = -1  # a new head may use what a backfill reservation kept from the last one

    def add_requeued(self, workload: Workload, index: int, alone: str = "") -> None:
        """Queue an instance for another attempt; its age counts from the first submission."""
        line, entry = self._class_of(workload, alone), _entry(workload, index, rank_of(workload))
        heappush(line.requeued, entry)
        if line.requeued[0] == entry:
            line.blocked_at = line.layout = -1

    def isolate(self, line: EquivalenceClass, head: PendingHead, name: str) -> None:
        """Only affinity or its home keeps the head out, which others of its class may not have: it leaves the class."""
        alone = self._class_of(head.workload, name)
        line.blocked_at = line.layout = -1
        self._changed[line] = None
        if head.is_requeued:
            heappush(alone.requeued, heappop(line.requeued))
        else:
            insort(alone.unstarted, line.unstarted.popleft(), key=rank_of)

    def forget(self, line: EquivalenceClass) -> None:
        self.classes.pop(line.key, None)
        self.affinity_dependent.pop(line, None)

    @staticmethod
    def key_of(workload: Workload, alone: str = "") -> Key:
        policy = workload.policy
        if policy.gang:  # its workloads may have different asks
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
            line.blocked_at = -1  # a new member may complete the gang
        self._changed[line] = None
        return line


def _entry(workload: Workload, index: int, rank: Rank) -> Entry:
    return *rank, index, workload.key, workload.version


GANG_ASK = Ask()  # of a class that is a gang


def rank_of(workload: Workload) -> Rank:
    """The order within a class: the earliest latest start, then age."""
    return start_by_ms(workload), workload.serial


def start_by_ms(workload: Workload) -> int:
    policy = workload.policy
    if policy.deadline_at_ms:
        return policy.deadline_at_ms - policy.expected_ms
    if policy.deadline_ms:
        return workload.submitted_ms + policy.deadline_ms - policy.expected_ms
    return FOREVER


Order = tuple[int, int, int]


class BackfillReservation(NamedTuple):
    node: str
    instance: str
    shadow_ms: int
    extra: dict[str, int]
    order: Order  # it counts only for workloads of a later order
    awaits_stops: bool = False  # then all others, also who would borrow, get only what is left over


class GangReservation(NamedTuple):
    nodes: tuple[str, ...]
    instance: str
    shadow_ms: int
    order: Order


class PendingWork:
    def __init__(self) -> None:
        self.queue = Queue()
        self.gangs: dict[str, dict[str, None]] = {}  # gang -> keys of its workloads
        self.rejectable: list[str] = []  # keys of workloads that do not queue, until the next pass
        self.run_lengths_ms: dict[Key, int] = {}  # how long runs of an equivalence class take
        self.backfill_reservations: dict[EquivalenceClass, BackfillReservation] = {}
        self.gang_reservations: dict[EquivalenceClass, GangReservation] = {}
        self.pending_preemptions: dict[str, str] = {}  # instance -> the node where stopping ones make room for it
        self.queue_check_ms = 0  # when the queue is checked again although nothing happened; 0: never
        self.preemptions = self.preemption_cycles = 0  # how often; and of its own preemptor, which must stay 0

    def copy_pending(self, origin: "PendingWork", twin: Callable[[Workload], Workload]) -> None:
        twins: dict[EquivalenceClass, EquivalenceClass] = {}

        def twin_class(line: EquivalenceClass) -> EquivalenceClass:
            if line not in twins:
                twins[line] = line.copied(twin)
            return twins[line]

        copy_part(self, origin, PendingWork)
        self.queue = origin.queue.copied(twin_class)
        self.backfill_reservations = {twin_class(line): kept for line, kept in origin.backfill_reservations.items()}
        self.gang_reservations = {twin_class(line): kept for line, kept in origin.gang_reservations.items()}
