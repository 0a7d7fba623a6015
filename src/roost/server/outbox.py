"""What is due to one agent: merged until it is written, so that whatever happens in one turn costs one frame."""

import asyncio

from roost.core.effects import Orders
from roost.model.frames import Answer, Order, Welcome

Due = Welcome | Answer


class Outbox:
    """Gathers echoes, acknowledgements and orders of one session; one writer takes them as one frame."""

    __slots__ = ("_acknowledged", "_base", "_echo_ms", "_orders", "_unsaid", "_waiter", "_whole", "closed", "due",
                 "generation", "session")  # fmt: skip

    def __init__(self, session: int) -> None:
        self.session = session
        self.generation = 0  # the newest that was ever put in
        self.due = False
        self.closed = False
        self._unsaid = False  # something was put in since the last frame
        self._echo_ms = 0
        self._acknowledged = 0
        self._base = -1  # below 0: no orders are due
        self._whole = False
        self._orders: list[Order] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """How many orders are due."""
        return len(self._orders)

    def order(self, orders: Orders) -> None:
        """Orders: a whole set takes the place of all before it, a delta follows what is due already."""
        if orders.whole:
            self._whole, self._base, self._orders = True, orders.base, list(orders.orders)
        else:
            if self._base < 0:
                self._base = orders.base
            self._orders += orders.orders
        self.generation = orders.generation
        self._unsaid = True

    def echo(self, sent_ms: int) -> None:
        """A beat is to be answered. The newest counts: its echo gives the longest lease."""
        self._echo_ms = max(self._echo_ms, sent_ms)
        self._unsaid = True

    def acknowledge(self, sequence: int) -> None:
        """The reports of beats up to this one are durable."""
        self._acknowledged = max(self._acknowledged, sequence)
        self._unsaid = True

    def wake(self) -> None:
        """Something is to be written now."""
        self.due = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Nothing more will come; what is here is still to be written."""
        self.closed = True
        self.wake()

    async def ready(self) -> bool:
        """Wait until something is to be written; False: nothing ever will be."""
        if not self.due and not self.closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self.due = False
        return self._unsaid or not self.closed

    def welcome(self, echo_ms: int, lease_ms: int) -> Welcome:
        """The first frame: the whole assignment as it stands now."""
        orders, self._orders = self._orders, []
        self._base, self._whole, self.due, self._unsaid = -1, False, False, False
        return Welcome(self.session, echo_ms, lease_ms, self.generation, tuple(orders))

    def answer(self) -> Answer:
        """Everything that is due."""
        if self._base < 0:
            answer = Answer(self.session, self._echo_ms, self._acknowledged)
        else:
            answer = Answer(
                self.session,
                self._echo_ms,
                self._acknowledged,
                self._base,
                self.generation,
                self._whole,
                tuple(self._orders),
            )
            self._base, self._whole, self._orders = -1, False, []
        self._echo_ms, self._unsaid = 0, False
        return answer
