"""Clients of the simulated servers: they send requests over a network that loses answers, and note the answers."""

from collections.abc import Callable, Sequence
from typing import Any

from roost.client import errors as client_errors
from roost.model.errors import Conflict, NoService, RoostError
from roost.model.events import Approve, Cancel, Drain, Event, Reserve, Retry, Rollback, Submit
from roost.model.records.access import RANKS
from roost.model.records.files import FileSet
from roost.model.records.project import Reservation
from roost.model.spec.submission import spec_of_document
from roost.sim.checks.safety import Checkers
from roost.sim.world.cluster import SimulatedCluster
from roost.sim.world.world import World

DELAY_MS = (1, 40)
AGAIN_MS = (300, 2_000)  # a client without an answer, or with a no for now, asks again


Make = Callable[[int], Event]
Answered = Callable[[Any], None]


def _nothing(*_: object) -> None:
    return


class Clients:
    def __init__(self, world: World, server: SimulatedCluster, checkers: Checkers) -> None:
        self._world = world
        self._server = server
        self._checkers = checkers
        self._submitted: dict[str, bool] = {}  # workloads that were submitted, answered or not
        self.answers_lost = 0.0
        self.pending = 0  # requests whose client still wants an answer

    def submit(self, raw: dict[str, Any]) -> None:
        key = f"{raw['project']}/{raw['name']}"
        self._hand_in((raw,), Conflict, is_new=key not in self._submitted)
        self._submitted[key] = True

    def apply(self, *raws: dict[str, Any]) -> None:
        """Submit workloads that may exist in another version: all of them are accepted, or none."""
        self._hand_in(raws, RoostError, is_new=False)

    def _hand_in(self, raws: tuple[dict[str, Any], ...], refusal: type[RoostError], *, is_new: bool) -> None:
        wanted = tuple(map(spec_of_document, raws))
        keys = [spec.key for spec in wanted]
        self._world.tell("client", f"submits {raws}")

        def answered(value: Any) -> None:
            if isinstance(value, refusal):
                self._world.tell("client", f"{keys} were refused: {value}")
                return
            assert [submitted.key for submitted in value] == keys, f"submitting {keys} was answered with {value!r}"
            for key in keys:
                self._checkers.answered_submit(key)

        def replaces() -> None:
            for key in keys:
                self._checkers.replaces(key)

        if not is_new:
            replaces()
        sets = [item.files for spec in wanted for item in spec.policy.inputs if item.files is not None]
        self._ask(lambda request: Submit(request, wanted, same_ok=True), answered, replaces, sets)

    def request(self, event: type[Any], *given: Any, once: bool = False) -> None:
        """Any request that no check has to know of. `once`: not idempotent, so it is not repeated."""
        self._world.tell("client", f"asks for {event.__name__} {given}")
        answered = _nothing if once else lambda value: self._world.tell("client", f"got {value}")
        self._ask(lambda request: event(request, *given), answered, None if once else _nothing)

    def rollback(self, key: str, version: int) -> None:
        self._checkers.replaces(key)
        self.request(Rollback, key, version)

    def cancel(self, key: str, index: int | None) -> None:
        whole = key if index is None else f"{key}.{index}"
        self._world.tell("client", f"cancels {whole}")

        def answered(value: Any) -> None:
            if not isinstance(value, RoostError):
                self._checkers.answered_cancel(whole)

        self._ask(lambda request: Cancel(request, key, index), answered)

    def retry(self, key: str, index: int | None, *, failed: bool = False, also: Sequence[str] = ()) -> None:
        """`also`: workloads that start again with it."""
        for again in (key, *also):
            self._checkers.asks_retry(again)
            self._checkers.pipelines.asks_retry(again)
        self.request(Retry, key, index, failed, once=True)

    def approve(self, key: str) -> None:
        self._checkers.pipelines.asks_approval(key)
        self.request(Approve, key, RANKS["operator"])

    def drain(self, node: str, deadline_ms: int) -> None:
        self._checkers.living.asks_drain(node, deadline_ms)
        self.request(Drain, node, deadline_ms)

    def reserve(self, name: str, project: str, count: int, after_ms: int, for_ms: int) -> None:
        start = self._server.leader.clock.now_ms() + after_ms
        self.request(Reserve, Reservation(name, project, (), start, start + for_ms), count)

    def _ask(
        self,
        make: Make,
        answered: Answered,
        again: Callable[[], None] | None = _nothing,
        sets: Sequence[FileSet] = (),
    ) -> None:
        """`again` is called before each repetition; None: the request is not idempotent."""
        self.pending += 1
        self._send(make if again else self._checkers.requests.not_idempotent(make), answered, again, sets)

    def _send(
        self, make: Make, answered: Answered, again: Callable[[], None] | None, sets: Sequence[FileSet]
    ) -> None:  # fmt: skip
        world = self._world
        waiting = [True]

        def received(value: Any) -> None:
            if not waiting:
                return
            waiting.clear()
            is_unanswered = value is None or isinstance(value, NoService)
            code = value.code if isinstance(value, NoService) else None
            if is_unanswered and client_errors.may_send_again(code, is_idempotent=again is not None):
                world.after(world.between(*AGAIN_MS), once_more)
                return
            self.pending -= 1
            answered(value)

        def once_more() -> None:
            if again is not None:
                again()
            self._send(make, answered, again, sets)

        def carried(value: Any) -> None:
            if not world.happens(self.answers_lost):
                world.after(world.between(*DELAY_MS), received, value)

        world.after(world.between(*DELAY_MS), self._server.ask, make, carried, sets)
        world.after(AGAIN_MS[1] * 2, received, None)
