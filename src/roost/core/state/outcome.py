"""What a step gives back: what to store, what to do once that is durable, and whom to answer."""

from collections import defaultdict
from typing import Any, NamedTuple

from roost.model.errors import RoostError
from roost.model.protocol import Order
from roost.model.reasons.subjects import Principal
from roost.model.records.instance import Instance
from roost.model.records.transition import Transitioned
from roost.model.states import InstanceState
from roost.ports.store import Change


class Orders(NamedTuple):
    """Orders for one node: a delta on `base`, or the whole assignment."""

    node: str
    session: int
    base: int
    generation: int
    whole: bool
    orders: tuple[Order, ...]


class Reply(NamedTuple):
    """The answer to a request: a value, or an error to be told."""

    request: int
    value: Any | RoostError


class Placed(NamedTuple):
    """A decision as it is logged: who went where, by which strategy, and how full the node is now."""

    instance: str
    node: str
    strategy: str
    resources: tuple[tuple[str, int, int], ...]  # (name, used, total)


class Forgotten(NamedTuple):
    """The last of a record that changed and went in the same step: no store sees it, whoever keeps history does."""

    change: Change
    begun: int = 0  # of a workload: how many of its instances had a record,
    counts: dict[InstanceState, int] = {}  # and how many were in which state


class IgnoredReport(NamedTuple):
    """A report that changed nothing: of an old session, of an attempt that is not the node's, or of no known state."""

    node: str
    code: str  # old_session | not_its_attempt | unknown_state
    token: int = 0
    state: str = ""


class Step:
    """One step's outcome. `orders` are per node until the step ends and become `assignments`."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.assignments: list[Orders] = []
        self.replies: list[Reply] = []
        self.placed: list[Placed] = []
        self.transitions: list[Transitioned] = []  # of instances and nodes, as their stories have them
        self.ignored: list[IgnoredReport] = []
        self.principal: Principal = ""  # who asked for what is being handled
        self.acknowledged: dict[str, int] = {}  # node -> sequence of the last beat whose reports are in this step
        self.swept: list[str] = []  # workloads whose logs can go: PROJECT/NAME/SERIAL
        self.forgotten: list[Forgotten] = []  # what of them was never stored as it ended
        self.wake_at_ms: int | None = None  # when something happens by itself next
        self.activated: list[Instance] = []  # who got the room of whom it stood behind
        self.runs_made = 0  # by schedules
        self.orders: defaultdict[str, list[Order]] = defaultdict(list)
        self.whole: set[str] = set()

    def order(self, node: str, order: Order) -> None:
        """An order for a node, sent when the step is durable."""
        self.orders[node].append(order)

    def reply(self, request: int, value: Any | RoostError) -> None:
        """Answer a request, once the step is durable."""
        self.replies.append(Reply(request, value))
