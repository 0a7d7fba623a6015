"""What a step gives back: what to store, what to do once that is durable, and whom to answer."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from roost.model.errors import RoostError
from roost.model.frames import Order
from roost.model.instance import Instance
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
    counts: dict[str, int] = {}  # and how many were in which state


class Step:
    """One step's outcome. `orders` are per node until the step ends and become `assignments`."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.assignments: list[Orders] = []
        self.replies: list[Reply] = []
        self.placed: list[Placed] = []
        self.nodes: list[tuple[str, str, str]] = []  # (node, status, cause)
        self.ignored: list[str] = []  # reports nobody waits for, in words
        self.acknowledged: dict[str, int] = {}  # node -> sequence of the last beat whose reports are in this step
        self.swept: list[str] = []  # workloads whose logs can go: PROJECT/NAME/SERIAL
        self.forgotten: list[Forgotten] = []  # what of them was never stored as it ended
        self.wake_at_ms: int | None = None  # when something happens by itself next
        self.stepped_up: list[Instance] = []  # who got the room of whom it stood behind
        self.runs_made = 0  # by schedules
        self.orders: defaultdict[str, list[Order]] = defaultdict(list)
        self.whole: set[str] = set()

    def order(self, node: str, order: Order) -> None:
        """An order for a node, sent when the step is durable."""
        self.orders[node].append(order)

    def reply(self, request: int, value: Any | RoostError) -> None:
        """Answer a request, once the step is durable."""
        self.replies.append(Reply(request, value))

    def refuse_all(self, requests: Sequence[int], error: RoostError) -> None:
        """The same error for several requests."""
        self.replies.extend(Reply(request, error) for request in requests)
