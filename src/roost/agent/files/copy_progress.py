"""Which copies into and out of runs an agent carries out. No clock, no I/O: copies.py drives it.

The server says which copies it wants; the agent begins those that are new, and leaves those that are no longer among
them. A copy is carried out once: a server that has forgotten its outcome gets it again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from roost.model.protocol import CopyOrder, CopyProblem, CopyReport

COPIES_MAX = 4  # at a time: they share network and disk with inputs and outputs, and each holds two chunks of 8 MiB
WAITING_MAX = 100  # the server sends fewer
TIME_MS_MAX = 2 * 3_600_000  # 64 GiB at 10 MB/s; the server gives up at the same time
OUTCOMES_MAX = 1_000  # that are remembered: 1 MB

IsRunning = Callable[[int], bool]  # whether the attempt with this token runs


class BeginCopy(msgspec.Struct, frozen=True):
    """Carry it out; answer with `finished`."""

    order: CopyOrder


class LeaveCopy(msgspec.Struct, frozen=True):
    """It is not wanted: do not answer."""

    id: str


class SendReport(msgspec.Struct, frozen=True):
    """Tell the server."""

    report: CopyReport


CopyEffect = BeginCopy | LeaveCopy | SendReport


class CopyProgress:
    """The copies of one agent, each at most in one of three places: waiting, under way, and done."""

    def __init__(self, is_running: IsRunning) -> None:
        self._is_running = is_running
        self.waiting: OrderedDict[str, CopyOrder] = OrderedDict()
        self.under_way: dict[str, CopyOrder] = {}
        self._until: dict[str, int] = {}  # of those under way
        self._done: OrderedDict[str, CopyReport] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.under_way

    def wanted(self, orders: Iterable[CopyOrder], now: int) -> list[CopyEffect]:
        """All that the server wants of this node now."""
        found = {order.id: order for order in orders}
        effects: list[CopyEffect] = [LeaveCopy(id) for id in self.under_way if id not in found]
        for id in [id for id in (*self.waiting, *self.under_way) if id not in found]:
            self._forget(id)
        for id, order in found.items():
            if id in self._done:
                effects.append(SendReport(self._done[id]))
            elif id not in self.under_way and id not in self.waiting:
                if len(self.waiting) < WAITING_MAX:
                    self.waiting[id] = order
                else:
                    effects.append(SendReport(_failed(order, "this node has too many copies")))
        return effects + self.tick(now)

    def finished(self, report: CopyReport, now: int) -> list[CopyEffect]:
        """A copy has ended. Whether its run went on until then decides whether it counts."""
        order = self.under_way.get(report.id)
        if order is None:
            return []
        if not self._is_running(order.token):
            report = not_running(order)
        return [*self._end(order, report), *self.tick(now)]

    def tick(self, now: int) -> list[CopyEffect]:
        """Leave what has no run and what takes too long, and begin what there is room for."""
        effects: list[CopyEffect] = []
        for order in list(self.under_way.values()):
            if not self._is_running(order.token):
                effects += [LeaveCopy(order.id), *self._end(order, not_running(order))]
            elif self._until[order.id] <= now:
                message = f"it was not done in {TIME_MS_MAX // 60_000} min"
                effects += [LeaveCopy(order.id), *self._end(order, _failed(order, message))]
        while self.waiting and len(self.under_way) < COPIES_MAX:
            id, order = self.waiting.popitem(last=False)
            if not self._is_running(order.token):
                effects += self._end(order, not_running(order))
                continue
            self.under_way[id] = order
            self._until[id] = now + TIME_MS_MAX
            effects.append(BeginCopy(order))
        return effects

    def _end(self, order: CopyOrder, report: CopyReport) -> list[CopyEffect]:
        self._forget(order.id)
        self._done[order.id] = report
        if len(self._done) > OUTCOMES_MAX:
            self._done.popitem(last=False)
        return [SendReport(report)]

    def _forget(self, id: str) -> None:
        self.waiting.pop(id, None)
        self.under_way.pop(id, None)
        self._until.pop(id, None)


def not_running(order: CopyOrder) -> CopyReport:
    return CopyReport(order.id, order.token, CopyProblem.NOT_RUNNING, "its attempt has ended")


def _failed(order: CopyOrder, message: str) -> CopyReport:
    return CopyReport(order.id, order.token, CopyProblem.FAILED, message)
