"""The outcome of a step: what to store, and the orders and replies to send once that is durable."""

from collections import defaultdict
from enum import StrEnum
from typing import Any, NamedTuple

from roost.model.errors import RoostError
from roost.model.protocol import Order
from roost.model.reasons.subjects import Principal
from roost.model.records.instance import Instance
from roost.model.records.transition import Transitioned
from roost.model.states import InstanceState
from roost.ports.store import Change


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


class Forgotten(NamedTuple):
    """A record that changed and was removed in the same step: no store sees it, but history does."""

    change: Change
    begun: int = 0  # of a workload: how many of its instances had a record,
    counts: dict[InstanceState, int] = {}  # and how many were in which state


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
        self.transitions: list[Transitioned] = []  # of instances and nodes, as their stories have them
        self.ignored: list[IgnoredReport] = []
        self.principal: Principal = ""  # of the request that is being handled
        self.acknowledged: dict[str, int] = {}  # node -> sequence of the last beat whose reports are in this step
        self.swept: list[str] = []  # workloads whose logs can go: PROJECT/NAME/SERIAL
        self.forgotten: list[Forgotten] = []  # their last records that were never stored
        self.wake_at_ms: int | None = None  # when the next timer is due
        self.activated: list[Instance] = []  # prefilled instances that got their allocation
        self.runs_made = 0  # by schedules
        self.orders: defaultdict[str, list[Order]] = defaultdict(list)
        self.whole: set[str] = set()

    def order(self, node: str, order: Order) -> None:
        self.orders[node].append(order)

    def reply(self, request: int, value: Any | RoostError) -> None:
        self.replies.append(Reply(request, value))
