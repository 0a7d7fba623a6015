"""What is due to one agent: merged until it is written, so that whatever happens in one turn costs one frame."""

from dataclasses import dataclass, field

from roost.core.state.outcome import Orders
from roost.model.protocol import Answer, Order, Welcome

Due = Welcome | Answer


@dataclass(slots=True, eq=False)
class Outbox:
    """Merges echoes, acknowledgements and orders of one session into one frame."""

    session: int
    generation: int = 0  # the newest that was ever put in
    written: int = 0  # the newest generation that was written
    is_unsaid: bool = False  # something was put in since the last frame
    _echo_ms: int = 0
    _acknowledged: int = 0
    _base: int = -1  # below 0: no orders are due
    _whole: bool = False
    _orders: list[Order] = field(default_factory=list)
    _lease_ms: int = 0
    _sent_lease_ms: int = 0  # as the agent knows it

    @property
    def waiting(self) -> int:
        return len(self._orders)

    def order(self, orders: Orders) -> None:
        """A whole set of orders replaces all before it, a delta follows them."""
        if orders.whole:
            self._whole, self._base, self._orders = True, orders.base, list(orders.orders)
        else:
            if self._base < 0:
                self._base = orders.base
            self._orders += orders.orders
        self.generation = orders.generation
        self.is_unsaid = True

    def echo(self, sent_ms: int, lease_ms: int) -> None:
        """Answer a beat. The newest counts: its echo gives the longest lease. `lease_ms`: as it was when it came."""
        self._echo_ms = max(self._echo_ms, sent_ms)
        self._lease_ms = lease_ms
        self.is_unsaid = True

    def acknowledge(self, sequence: int) -> None:
        self._acknowledged = max(self._acknowledged, sequence)
        self.is_unsaid = True

    def welcome(self, echo_ms: int, lease_ms: int) -> Welcome:
        """The first frame: the whole assignment."""
        orders, self._orders = self._orders, []
        self._base, self._whole, self.is_unsaid = -1, False, False
        self.written = self.generation
        self._lease_ms = self._sent_lease_ms = lease_ms
        return Welcome(self.session, echo_ms, lease_ms, self.generation, tuple(orders))

    def answer(self) -> Answer:
        """What is due. A lease that has changed is part of it: the agent counts its next lease from its own beat."""
        changed_ms = self._lease_ms if self._lease_ms != self._sent_lease_ms else 0
        self._sent_lease_ms = self._lease_ms
        base, generation = (self._base, self.generation) if self._base >= 0 else (0, 0)
        orders = tuple(self._orders)
        answer = Answer(
            self.session, self._echo_ms, self._acknowledged, base, generation, self._whole, orders, changed_ms
        )
        self._base, self._whole, self._orders = -1, False, []
        self._echo_ms, self.is_unsaid, self.written = 0, False, self.generation
        return answer
