"""The outcome of a step: what to store, and the orders and replies to send once that is durable."""

from collections import defaultdict
from collections.abc import Generator
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from roost.model.errors import RoostError
from roost.model.protocol import Order
from roost.model.reasons.subjects import Principal
from roost.model.records.instance import Instance
from roost.model.records.transition import NodeTransition, NodeTransitioned, Transitioned
from roost.model.records.workload import Workload
from roost.ports.store import Change

PHASE_SHARE = 10  # a tenth of a step is for each phase, even if the phases before it have used up the step


T = TypeVar("T")

#: Work that may be long. It yields how many units (see `Step.limit`) it has done since it last did, and can wait there.
Paced = Generator[int, None, T]


def at_once(work: Paced[T]) -> T:
    """Do paced work without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class Orders(NamedTuple):
    node: str
    session: int
    base: int
    generation: int
    whole: bool
    orders: tuple[Order, ...]


class Reply(NamedTuple):
    request: int
    value: Any | RoostError


class Placed(NamedTuple):
    """A placement as it is logged, with the strategy and how full the node is now."""

    instance: str
    node: str
    strategy: str
    resources: tuple[tuple[str, int, int], ...]  # (name, used, total)


class IgnoredBecause(StrEnum):
    OLD_SESSION = "old_session"
    NOT_ITS_ATTEMPT = "not_its_attempt"
    UNKNOWN_STATE = "unknown_state"


class IgnoredReport(NamedTuple):
    """A report that changed nothing."""

    node: str
    code: IgnoredBecause
    token: int = 0
    state: str = ""


class Step:
    """`orders` are per node until the step ends, and become `assignments` then."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.assignments: list[Orders] = []
        self.replies: list[Reply] = []
        self.placed: list[Placed] = []
        self.transitions: list[Transitioned] = []  # as the stories of instances and nodes have them
        self.ignored: list[IgnoredReport] = []
        self.principal: Principal = ""  # of the request that is being handled
        self.acknowledged: dict[str, int] = {}  # node -> sequence of the last beat whose reports are in this step
        self.swept: list[str] = []  # workloads whose logs can go: PROJECT/NAME/SERIAL
        self.wake_at_ms: int | None = None  # when the next timer is due
        self.activated: list[Instance] = []  # prefilled instances that got their allocation
        self.retired: list[Workload] = []  # finished ones whose retention has ended
        self.work = 0  # units done so far
        self.orders: defaultdict[str, list[Order]] = defaultdict(list)
        self.whole: set[str] = set()

    @property
    def node_transitions(self) -> list[tuple[str, NodeTransition]]:
        return [(item.key, item.transition) for item in self.transitions if isinstance(item, NodeTransitioned)]

    def limit(self, step_units: int) -> int:
        """Up to how many units a phase may go on. What is left over stays in the state, and the next step goes on.

        A unit is about 10 us of CPU, measured on a core of 2020: a timer or a cancelled instance is 1, a lost one 2,
        a class that fits nowhere 2, a report or a placement 5, a run of a schedule 30. So a step takes some 25 ms, and
        below 50 ms if every phase has more to do. Units are counted, not timed: a replay decides the same.
        """
        return max(step_units, self.work + max(1, step_units // PHASE_SHARE))

    def order(self, node: str, order: Order) -> None:
        self.orders[node].append(order)

    def reply(self, request: int, value: Any | RoostError) -> None:
        self.replies.append(Reply(request, value))
