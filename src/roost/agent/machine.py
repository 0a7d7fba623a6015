"""The agent as a state machine: server, driver and health checks on one side, what to carry out on the other.

No I/O, no clock: the service feeds it and carries out its effects, and the fault simulator does the same on its heap.
The actor knows the attempts, the link machine the connection; what they need of the host is decided here.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.agent.connection.machine import Connected, LinkMachine, LogLine, Phase, StreamEffect
from roost.agent.connection.machine import Effect as LinkEffect
from roost.agent.health.probe import ProbeTarget
from roost.agent.prepare import from_note, health, log_names, prepare, waits_for
from roost.model.errors import Invalid
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.protocol import Run, Usage
from roost.ports import driver

ATTEMPTS_MAX = 4_096  # half of a keeper's table: ended attempts take room until the server knows of their end
DOCUMENT_BYTES_MAX = 48 << 20  # of all attempts together: a hello holds them all, and a server takes 64 MiB
LEASE_STEPS = 16  # the driver gets a lease when it grew by this part: a burst of answers costs one order
LAST_EVENTS_MS = 300  # what the keeper reported before it asked us to end is here by then


class StopRun(msgspec.Struct, frozen=True):
    id: str
    grace_ms: int
    reason: driver.StopReason
    detail: str


class WatchHealth(msgspec.Struct, frozen=True):
    token: int
    target: ProbeTarget


class CheckHealth(msgspec.Struct, frozen=True):
    """Carry out the health check of a run after this pause; answer with `probed`."""

    token: int
    pause_ms: int


class LeaveHealth(msgspec.Struct, frozen=True):
    token: int


class CompleteLog(msgspec.Struct, frozen=True):
    name: str
    size: int


class ReleaseLog(msgspec.Struct, frozen=True):
    name: str


class TakenOver(msgspec.Struct, frozen=True):
    count: int


Effect = (
    StreamEffect | Connected | LogLine | driver.RunRequest | StopRun | Forget | Lease | WatchHealth | CheckHealth
    | LeaveHealth | CompleteLog | ReleaseLog | TakenOver
)  # fmt: skip


class AgentMachine:
    """One agent. Methods take what happened and return what to carry out, in order."""

    def __init__(
        self, actor: Actor, server: str, directory: str, mark: str, chance: Callable[[], float], now: int
    ) -> None:
        self.actor = actor
        self.link = LinkMachine(actor, server, chance, now)
        self.logs: dict[int, tuple[str, ...]] = {}  # what the server calls the logs of each attempt
        self._directory = directory
        self._mark = mark
        self._sizes: dict[int, int] = {}  # of the document and the variables of each attempt
        self._sizes_sum = 0
        self._lease_ms = 0  # as sent to the driver
        self._is_abandoned = False  # ended without a goodbye
        self._stop_at_ms: int | None = None  # asked to end; until then events of the driver are waited for

    @property
    def is_over(self) -> bool:
        return self._is_abandoned or self.has_sent_goodbye

    @property
    def has_sent_goodbye(self) -> bool:
        """The server has everything, or there is none."""
        return self.link.phase is Phase.OVER

    # time

    def next_ms(self) -> int | None:
        return min((at for at in (self.link.next_ms(), self._stop_at_ms) if at is not None), default=None)

    def tick(self, now: int, usage: Usage | None = None) -> list[Effect]:
        if self._stop_at_ms is not None and now >= self._stop_at_ms:
            self._is_abandoned = True  # something still runs: another agent takes it over, and this is no goodbye
            return []
        return self.resolve(self.link.tick(now, usage), now)

    def resolve(self, effects: list[LinkEffect], now: int) -> list[Effect]:
        """Effects of the link, with the actor's actions replaced by what they mean on this host."""
        found: list[Effect] = []
        for effect in effects:
            found += self._act(effect, now) if isinstance(effect, Action) else [effect]
        return found

    def stop(self, now: int) -> list[Effect]:
        """The agent is asked to end: its runs were stopped, or another agent is to take them over."""
        self._stop_at_ms = now + LAST_EVENTS_MS
        self._say_goodbye()
        return []

    def _say_goodbye(self) -> None:
        """Once nothing runs: the server gets the rest, and a goodbye."""
        if self._stop_at_ms is not None and not self.live_attempts():
            self._stop_at_ms = None
            self.link.goodbye()

    def live_attempts(self) -> list[int]:
        return [token for token, attempt in self.actor.attempts.items() if attempt.state != "ended"]

    # the driver

    def happened(self, event: driver.Event, now: int) -> list[Effect]:
        match event:
            case driver.Started():
                self.actor.started(int(event.id), event.at, now)
                lines: list[Effect] = [LogLine(f"run {event.id}: {event.limits}")] if event.limits else []
                return lines + self._check_health(int(event.id), now)
            case driver.StepBegan():
                self.actor.stepped(int(event.id), event.step, now)
                return []
            case driver.Ended():
                return self._ended(event, now)
            case driver.KnownRuns():
                return self._restore(event, now)
            case driver.StartRefused():
                return self._refused(event, now)
            case _:
                assert_never(event)

    def _ended(self, event: driver.Ended, now: int) -> list[Effect]:
        token = int(event.id)
        error = event.error or ("out of memory" if event.oom else "")
        self.actor.ended(msgspec.structs.replace(event, error=_line(error)), now)
        effects: list[Effect] = [LeaveHealth(token)]
        sizes = (event.log_size, event.stderr_size or 0)
        effects += [CompleteLog(name, size) for name, size in zip(self.logs.get(token, ()), sizes, strict=False)]
        if event.why is driver.StopReason.SHUTDOWN:
            self.link.leave()
        self._say_goodbye()
        return effects

    def _restore(self, event: driver.KnownRuns, now: int) -> list[Effect]:
        self._lease_ms = event.lease
        self.actor.facts = msgspec.structs.replace(self.actor.facts, enforces=tuple(event.enforces))
        effects: list[Effect] = []
        for known_run in event.runs:
            run = from_note(known_run.note)
            if run is None or str(run.token) != known_run.id:
                effects.append(LogLine(f"run {known_run.id} is not of this agent: stopped"))
                effects.append(StopRun(known_run.id, 0, driver.StopReason.UNKNOWN, ""))
            elif run.token not in self.actor.attempts:
                effects += self._restore_one(run, known_run, now)
        count = len(self.actor.attempts)
        if count:
            effects.append(LogLine(f"took over {count} runs"))
        return [*effects, TakenOver(count)]

    def _restore_one(self, run: Run, existing: driver.KnownRun, now: int) -> list[Effect]:
        self._remember(run)
        self.actor.restored(waits_for(run, existing), now, stopping=existing.state == "stopping")
        effects: list[Effect] = []
        try:
            effects += self._watch_health(run)
        except Invalid as error:
            effects.append(LogLine(f"run {run.token} goes on, but its health is not checked: {error}"))
        if existing.started_at:
            self.actor.started(run.token, existing.started_at, now)
            effects += self._check_health(run.token, now)
        if existing.step:
            self.actor.stepped(run.token, existing.step, now)
        if existing.ended is not None:
            effects += self._ended(existing.ended, now)
        return effects

    def _refused(self, event: driver.StartRefused, now: int) -> list[Effect]:
        """An order that the driver did not follow. What a closing driver does not start, another node may."""
        effects: list[Effect] = [
            LogLine(f"the driver refuses to {event.do or 'understand'} {event.id or ''}: {event.error}")
        ]
        starting = event.do is driver.Order.START
        closing = starting and event.reason is driver.Refusal.CLOSING
        if closing:
            self.link.leave()
        if (starting or event.do is driver.Order.STOP) and event.id is not None and event.id.isdecimal():
            cause = "error" if starting and not closing else "stopped"
            effects += self._give_up(int(event.id), cause, event.error, now)
        return effects

    def _give_up(self, token: int, cause: str, error: str, now: int) -> list[Effect]:
        self.actor.ended(driver.Ended(str(token), cause, now, error=_line(error)), now)
        self._say_goodbye()
        return [LeaveHealth(token)]

    # health checks

    def probed(self, token: int, problem: str, now: int) -> list[Effect]:
        actions = self.actor.probed(token, not problem, _line(problem), now)
        effects = [effect for action in actions for effect in self._act(action, now)]
        return effects + self._check_health(token, now)

    def _watch_health(self, run: Run) -> list[Effect]:
        target = health(run, self.actor.node, self._directory, self._mark)
        if target is None:
            return []
        self.actor.watched(run.token, target.check)
        return [WatchHealth(run.token, target)]

    def _check_health(self, token: int, now: int) -> list[Effect]:
        pause_ms = self.actor.next_look_ms(token, now)
        return [] if pause_ms is None else [CheckHealth(token, pause_ms)]

    # the actor's actions

    def _act(self, action: Action, now: int) -> list[Effect]:
        match action:
            case Start():
                return self._start(action.run, now)
            case Halt():
                stop = StopRun(str(action.token), action.grace_ms, action.reason, action.detail)
                return [LeaveHealth(action.token), stop]
            case Forget():
                self._sizes_sum -= self._sizes.pop(action.token)
                return [action, *map(ReleaseLog, self.logs.pop(action.token))]
            case Lease():
                return self._lease(action)
            case _:
                assert_never(action)

    def _start(self, run: Run, now: int) -> list[Effect]:
        logs = self._remember(run)
        secrets = run.secrets
        run = self.actor.attempts[run.token].run  # the attempt it is to wait for may have been given up a moment ago
        if len(self.logs) > ATTEMPTS_MAX or self._sizes_sum > DOCUMENT_BYTES_MAX:
            return self._give_up(run.token, "stopped", f"this node has {len(self.logs) - 1} attempts already", now)
        try:
            request = prepare(run, self.actor.node, self._directory, logs, secrets)
            watch = self._watch_health(run)
        except Invalid as error:
            return self._give_up(run.token, "error", str(error), now)
        return [*watch, request]

    def _lease(self, lease: Lease) -> list[Effect]:
        grown_ms = lease.until_ms - self._lease_ms
        if 0 <= grown_ms < self.actor.lease_ms // LEASE_STEPS:
            return []
        self._lease_ms = lease.until_ms
        return [lease]

    def _remember(self, run: Run) -> tuple[str, ...]:
        size = len(run.document) + sum(len(name) + len(value) for name, value in run.env)
        self._sizes[run.token] = size
        self._sizes_sum += size
        names = self.logs[run.token] = log_names(run)
        return names


def _line(text: str) -> str:
    return "".join(item if item.isprintable() else " " for item in text)[:TEXT_LENGTH_MAX]
