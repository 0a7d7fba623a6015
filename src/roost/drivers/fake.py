"""The keeper in memory: its own rules, with scripts instead of processes and time passed in.

Orders take effect at the time of the last `advance`. Orders, rules and events are the keeper's; only what a process
does is a script.
"""

from collections.abc import Callable, Sequence

import msgspec

from roost.keeper.clock import NEVER
from roost.keeper.rules import Host, Rules
from roost.keeper.run import KeeperRun, RunRefused
from roost.model.records.node import ENFORCEABLE
from roost.model.states import PowerAction
from roost.ports.driver import Event, KnownRuns, Order, Refusal, RunRequest, StartRefused, StopReason, Tell

SIGKILL, SIGTERM = 9, 15

_decode = msgspec.json.Decoder(Event).decode


class ScriptedAct(msgspec.Struct, frozen=True):
    """What one step does. The default ends well at once; `after_ms=None` runs until it is made to end."""

    after_ms: int | None = 0
    code: int = 0
    signal: int | None = None
    term_ms: int | None = 0  # how long it takes to end when asked to; None: it does not listen
    term_code: int | None = None  # with which code it ends then; None: by the signal itself
    error: str = ""  # it cannot be started


Script = Callable[[RunRequest], Sequence[ScriptedAct]]


def at_once(run: RunRequest) -> Sequence[ScriptedAct]:
    return (ScriptedAct(),)


class Exit(msgspec.Struct):
    at_ms: int
    code: int


class FakeDriver(Host):
    """The same orders as every driver, and the means to let time pass and to look in. Times are milliseconds."""

    def __init__(self, tell: Tell | None = None, script: Script = at_once, now: int = 0) -> None:
        self.now = now
        self.rules = Rules(self, "")
        self.exits: dict[str, Exit] = {}  # of processes that end by themselves, or because they were asked to
        self._tell = tell
        self._script = script
        self._acts: dict[str, Sequence[ScriptedAct]] = {}
        self._out: list[Event] = []
        self._pids = 1000

    # orders

    def start(self, run: RunRequest) -> None:
        if run.id not in self.rules.known:
            self._acts[run.id] = list(self._script(run)) or [ScriptedAct()]
        self._obey(self.rules.start, Order.START, msgspec.json.decode(msgspec.json.encode(run)))

    def stop(self, id: str, grace_ms: int, why: StopReason, detail: str = "") -> None:
        order: dict[str, object] = {"id": id, "grace_ms": grace_ms, "why": why.value, "detail": detail}
        self._obey(self.rules.stop, Order.STOP, order)

    def power(self, id: str, serial: int, action: PowerAction, grace_ms: int) -> None:
        order: dict[str, object] = {"id": id, "serial": serial, "action": action.value, "grace_ms": grace_ms}
        self._obey(self.rules.power, Order.POWER, order)

    def forget(self, id: str) -> None:
        self._obey(self.rules.forget, Order.FORGET, {"id": id})

    def lease(self, until_ms: int) -> None:
        self.rules.lease(until_ms, self.now)

    def _obey(self, follow: Callable[[dict[str, object], int], None], do: Order, order: dict[str, object]) -> None:
        try:
            follow(order, self.now)
        except RunRefused as error:
            self._out.append(StartRefused(str(error), str(order["id"]), do, self.now, Refusal(error.reason)))

    # the world

    def advance(self, now: int) -> list[Event]:
        """Let time pass; what happened on the way, in order. Also sent to the callback, if there is one."""
        while (at := self._next()) is not None and at <= now:
            self.now = max(self.now, at)
            for id in [id for id, exit in self.exits.items() if exit.at_ms <= self.now]:
                run = self.rules.live[id]
                run.code = self.exits.pop(id).code
                self.rules.step_over(run, self.now)
            self.rules.tick(self.now)
            self.happen()
        self.now = max(self.now, now)
        events, self._out = self._out, []
        if self._tell is not None:
            for event in events:
                self._tell(event)
        return events

    def happen(self) -> None:
        """What else is due, as `next_also` says; here nothing."""

    def next_also(self) -> int:
        return NEVER

    def next_at(self) -> int | None:
        return self.now if self._out else self._next()

    def connect(self) -> KnownRuns:
        """The first message to a new agent. What was on its way to the old one is lost: the state says it all."""
        self._out.clear()
        greeting = _decode(self.rules.greeting(self.now))
        assert isinstance(greeting, KnownRuns)
        return greeting

    def lose(self) -> None:
        self.rules = Rules(self, "")
        self.exits.clear()
        self._acts.clear()
        self._out.clear()

    def _next(self) -> int | None:
        at = min(self.rules.next_at(), self.next_also(), *(exit.at_ms for exit in self.exits.values()), NEVER)
        return None if at == NEVER else at

    # what the rules ask for: processes are scripts here

    def enforces(self) -> tuple[str, ...]:
        return ENFORCEABLE

    def forgotten(self, run: KeeperRun, now: int) -> None:
        del self._acts[run.id]

    def spawn(self, run: KeeperRun) -> str:
        act = self._act(run)
        if not act.error:
            self._pids += 1
            run.pid = self._pids
            if act.after_ms is not None:
                self.exits[run.id] = Exit(self.now + act.after_ms, act.code if act.signal is None else -act.signal)
        return act.error

    def terminate(self, run: KeeperRun) -> None:
        act, exit = self._act(run), self.exits.get(run.id)
        if act.term_ms is not None and (exit is None or self.now + act.term_ms < exit.at_ms):
            code = -SIGTERM if act.term_code is None else act.term_code
            self.exits[run.id] = Exit(self.now + act.term_ms, code)

    def kill(self, run: KeeperRun) -> None:
        self.exits[run.id] = Exit(self.now, -SIGKILL)

    def finished(self, run: KeeperRun, now: int) -> int:
        self.exits.pop(run.id, None)
        return 0

    def emit(self, line: str, now: int, hold_ms: int) -> None:
        self._out.append(_decode(line))

    def _act(self, run: KeeperRun) -> ScriptedAct:
        """What the current step does; a script that is too short repeats its last."""
        acts = self._acts[run.id]
        return acts[min(run.step, len(acts) - 1)]
