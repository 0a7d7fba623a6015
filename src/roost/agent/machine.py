"""The agent as a state machine: server, driver and health checks on one side, what to carry out on the other.

No I/O, no clock: the service feeds it and carries out its effects; so does the fault simulator, on its heap.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec

from roost.agent.actor import Action, Actor, Forget, Halt, Lease, Start
from roost.agent.connection.machine import Connected, LinkMachine, LogLine, Phase, StreamEffect
from roost.agent.connection.machine import Effect as LinkEffect
from roost.agent.effects import CompleteLog as CompleteLog
from roost.agent.effects import ReleaseLog as ReleaseLog
from roost.agent.effects import StopRun as StopRun
from roost.agent.effects import TakenOver as TakenOver
from roost.agent.files.progress import (
    FETCH_MS_MAX,
    CollectOutputs,
    FetchInputs,
    FileEffect,
    FileProgress,
    LeaveInputs,
    LeaveOutputs,
)
from roost.agent.health.effects import CheckHealth, LeaveHealth, WatchHealth
from roost.agent.offers import with_containers, with_machines
from roost.agent.prepare import (
    NO_CONTAINERS,
    NO_MACHINES,
    from_note,
    health,
    image_in_note,
    image_of,
    lacking,
    log_names,
    machine_files,
    moved_up,
    not_isolated,
    one_line,
    prepare,
    waits_for,
    work_folder,
)
from roost.drivers.container.engine import ContainerEngine
from roost.drivers.qemu.host import MachineHost
from roost.model.errors import Invalid
from roost.model.protocol import PowerOrder, Run, Usage
from roost.model.records.files import InputFailure, InputProblem, Outputs
from roost.model.records.node import Facts
from roost.model.records.secret import Hidden
from roost.ports import driver

ATTEMPTS_MAX = 4_096  # half of a keeper's table: ended attempts take room until the server knows of their end
DOCUMENT_BYTES_MAX = 48 << 20  # of all attempts together: a hello holds them all, and a server takes 64 MiB
LEASE_STEPS = 16  # the driver gets a lease when it grew by this part: a burst of answers costs one order
LAST_EVENTS_MS = 300  # what the keeper reported before it asked us to end is here by then
LAST_OUTPUTS_MS = 1_000  # for outputs, when the agent is to end: half of the time until it is gone

Effect = (
    StreamEffect | Connected | LogLine | driver.RunRequest | StopRun | Forget | Lease | WatchHealth | CheckHealth
    | LeaveHealth | CompleteLog | ReleaseLog | TakenOver | FileEffect | PowerOrder
)  # fmt: skip


class AgentMachine:
    """One agent. Methods take what happened and return what to carry out, in order."""

    def __init__(
        self, actor: Actor, server: str, directory: str, mark: str, chance: Callable[[], float], now: int
    ) -> None:
        self.actor = actor
        self.link = LinkMachine(actor, server, chance, now)
        self.logs: dict[int, tuple[str, ...]] = {}  # what the server calls the logs of each attempt
        self.containers = NO_CONTAINERS
        self.machines = NO_MACHINES
        self.isolation = not_isolated
        self._files = FileProgress()
        self._directory = directory
        self._mark = mark
        self._sizes: dict[int, int] = {}  # of the document, the variables and the inputs of each attempt
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
        times = (self.link.next_ms(), self._stop_at_ms, self._files.next_ms(self.actor.lease_until_ms))
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: int, usage: Usage | None = None) -> list[Effect]:
        if self._stop_at_ms is not None and now >= self._stop_at_ms:
            self._is_abandoned = True  # something still runs: another agent takes it over, and this is no goodbye
            return []
        return [*self._give_up_files(now), *self.resolve(self.link.tick(now, usage), now)]

    def resolve(self, effects: list[LinkEffect], now: int) -> list[Effect]:
        """Effects of the link, with the actor's actions replaced by what they mean on this host."""
        found: list[Effect] = []
        for effect in effects:
            found += self._act(effect, now) if isinstance(effect, Action) else [effect]
        unwanted = [token for token in self._files.collecting if self.actor.attempts[token].dropped]
        for token in unwanted:
            found += [LeaveOutputs(token), *self._complete(token, None, now)]
        return found + self._release(now)

    def stop(self, now: int) -> list[Effect]:
        """The agent is asked to end: its runs were stopped, or another agent is to take them over."""
        has_outputs = any(map(self._files.has_files_after, self.live_attempts()))
        self._stop_at_ms = now + (LAST_OUTPUTS_MS if has_outputs else LAST_EVENTS_MS)
        return self._say_goodbye(now)

    def _say_goodbye(self, now: int) -> list[Effect]:
        """Once nothing runs: the server gets the rest, and a goodbye. What has not begun, another node may start."""
        effects: list[Effect] = []
        if self._stop_at_ms is not None and all(map(self._files.is_before_driver, self.live_attempts())):
            self._stop_at_ms = None
            for token in self.live_attempts():
                effects += self._give_up(token, "stopped", "the agent ends", now)
            self.link.goodbye()
        return effects

    def live_attempts(self) -> list[int]:
        return [token for token, attempt in self.actor.attempts.items() if attempt.state != "ended"]

    # the driver

    def happened(self, event: driver.Event, now: int) -> list[Effect]:
        return [*self._happened(event, now), *self._release(now)]

    def _happened(self, event: driver.Event, now: int) -> list[Effect]:
        match event:
            case driver.Started():
                self.actor.started(int(event.id), event.at, now)
                lines: list[Effect] = [LogLine(f"run {event.id}: {event.limits}")] if event.limits else []
                return lines + self._check_health(int(event.id), now)
            case driver.StepBegan():
                self.actor.stepped(int(event.id), event.step, now)
                return []
            case driver.PowerChanged():
                self.actor.powered(event, now)
                return [LogLine(f"run {event.id}: {event.problem}")] if event.problem else []
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
        if token in self._files.collecting:
            return []
        error = event.error or ("out of memory" if event.oom else "")
        event = msgspec.structs.replace(event, error=one_line(error))
        effects: list[Effect] = [LeaveHealth(token)]
        sizes = (event.log_size, event.stderr_size or 0)
        effects += [CompleteLog(name, size) for name, size in zip(self.logs.get(token, ()), sizes, strict=False)]
        if event.why is driver.StopReason.SHUTDOWN:
            self.link.leave()
        is_running = self.actor.is_running(token)
        outputs = self._files.wanted(event) if is_running else []
        cache = self._files.saved_after(event) if is_running else None
        if outputs or cache is not None:
            self._files.collect(event, now)
            self.actor.exited(token, event.at, now)
            return [*effects, CollectOutputs(token, tuple(outputs), work_folder(self._directory, token), cache)]
        self.actor.ended(event, now)
        return effects + self._say_goodbye(now)

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
        if count := len(self.actor.attempts):
            effects.append(LogLine(f"took over {count} runs"))
        return [*effects, TakenOver(count)]

    def _restore_one(self, run: Run, existing: driver.KnownRun, now: int) -> list[Effect]:
        self._remember(run)
        stopping, image = existing.state == "stopping", image_in_note(existing.note)
        self.actor.restored(waits_for(run, existing), now, stopping=stopping, image=image)
        try:
            effects = self._watch_health(run)
        except Invalid as error:
            effects = [LogLine(f"run {run.token} goes on, but its health is not checked: {error}")]
        if existing.started_at:
            self.actor.started(run.token, existing.started_at, now)
            effects += self._check_health(run.token, now)
        if existing.step:
            self.actor.stepped(run.token, existing.step, now)
        if existing.power is not None:
            self.actor.powered(driver.PowerChanged(existing.id, existing.power, existing.power_serial, now), now)
        if existing.ended is not None:
            effects += self._ended(existing.ended, now)
        return effects

    def _refused(self, event: driver.StartRefused, now: int) -> list[Effect]:
        """An order that the driver did not follow. What a closing driver does not start, another node may."""
        text = f"the driver refuses to {event.do or 'understand'} {event.id or ''}: {event.error}"
        effects: list[Effect] = [LogLine(text)]
        starting = event.do is driver.Order.START
        closing = starting and event.reason is driver.Refusal.CLOSING
        if closing:
            self.link.leave()
        if (starting or event.do is driver.Order.STOP) and event.id is not None and event.id.isdecimal():
            cause = "error" if starting and not closing else "stopped"
            effects += self._give_up(int(event.id), cause, event.error, now)
        return effects

    def _give_up(
        self, token: int, cause: str, error: str, now: int, inputs_failed: InputFailure | None = None
    ) -> list[Effect]:
        effects: list[Effect] = [LeaveHealth(token)]
        if token in self._files.fetching:
            effects.append(LeaveInputs(token))
        if self._files.is_before_driver(token):
            self._files.taken(token)
        end = driver.Ended(str(token), cause, now, error=one_line(error), inputs_failed=inputs_failed)
        self.actor.ended(end, now)
        return effects + self._say_goodbye(now)

    # containers and virtual machines

    def engine_changed(self, engine: ContainerEngine | None, now: int) -> list[Effect]:
        """Another container engine answers, or none: the servers learn it with the next hello."""
        self.containers = msgspec.structs.replace(self.containers, engine=engine)
        return self._offers(with_containers(self.actor.facts, engine), now)

    def machines_changed(self, host: MachineHost, now: int) -> list[Effect]:
        """Its QEMU, images or bridges are others than before."""
        self.machines = host
        return self._offers(with_machines(self.actor.facts, host), now)

    def _offers(self, facts: Facts, now: int) -> list[Effect]:
        self.actor.facts = facts
        return self.resolve(self.link.greet_again("what this node offers has changed", now), now)

    # files

    def fetched(
        self, token: int, failure: InputFailure | None, now: int, image: str = "", machine: driver.Machine | None = None
    ) -> list[Effect]:
        """The inputs of a run are in its work directory, and its images are here; or a failure says why not."""
        if token not in self._files.fetching:
            return []
        self._files.fetched(token, image, machine)
        effects = self._give_up(token, "error", "", now, failure) if failure is not None else []
        return effects + self._release(now)

    def stored(self, token: int, outputs: Outputs) -> None:
        """The outputs of a run are stored, and its cache is still being saved."""
        self._files.stored(token, outputs)

    def collected(self, token: int, outputs: Outputs, now: int) -> list[Effect]:
        """The outputs of a run are stored, apart from what `outputs` names as gaps."""
        return [*self._complete(token, outputs, now), *self._release(now)] if token in self._files.collecting else []

    def _complete(self, token: int, outputs: Outputs | None, now: int) -> list[Effect]:
        self.actor.ended(self._files.collected(token, outputs), now)
        return self._say_goodbye(now)

    def _release(self, now: int) -> list[Effect]:
        """Give the driver what has its inputs, and whose predecessor is through with its own files.

        Nothing begins without a session: the server that hears a hello may have given up what is not in it.
        """
        effects: list[Effect] = []
        for token in list(self._files.held) if self.actor.session else ():
            attempt = self.actor.attempts[token]
            if not self._is_kept_from(attempt.run.after):
                self.actor.released(token, now)
                effects.append(moved_up(self._files.taken(token), attempt.run, attempt.image))
                effects += [attempt.power.order] if attempt.power.order is not None else []
        return effects + self._release(now) if effects else effects  # one may have waited for another

    def _is_kept_from(self, before: int) -> bool:
        """Whether the room of an attempt cannot be used by its follower, although the driver may have ended it."""
        attempt = self.actor.attempts.get(before)
        is_live = attempt is not None and attempt.state != "ended"
        return is_live and (self._files.has_files_after(before) or self._files.is_before_driver(before))

    def _give_up_files(self, now: int) -> list[Effect]:
        """Whose time is over. The driver ends runs with the lease, but not those that it does not have."""
        effects: list[Effect] = []
        for token in self._files.overdue(now):
            if token in self._files.fetching:
                effects += self._give_up(token, "error", "", now, InputFailure(InputProblem.TIMED_OUT))
            elif token in self._files.collecting:
                effects.append(LeaveOutputs(token))
                effects += self._complete(token, self._files.not_stored(token), now)
        for token in self._files.leased() if self.actor.lease_until_ms <= now else ():
            effects += self._give_up(token, "lease", "", now)
        return effects

    # health checks

    def probed(self, token: int, problem: str, now: int) -> list[Effect]:
        actions = self.actor.probed(token, not problem, one_line(problem), now)
        effects = [effect for action in actions for effect in self._act(action, now)]
        return effects + self._check_health(token, now)

    def _watch_health(self, run: Run) -> list[Effect]:
        target = health(run, self.actor.node, self._directory, self._mark, self.containers, self.isolation)
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
                return self._halt(action, now)
            case Forget():
                self._sizes_sum -= self._sizes.pop(action.token)
                self._files.forget(action.token)
                return [action, *map(ReleaseLog, self.logs.pop(action.token))]
            case Lease():
                return self._lease(action)
            case PowerOrder():
                return [] if self._files.is_before_driver(action.token) else [action]
            case _:
                assert_never(action)

    def _halt(self, halt: Halt, now: int) -> list[Effect]:
        if self._files.is_before_driver(halt.token):
            return self._give_up(halt.token, "stopped", "", now)
        if halt.token in self._files.collecting:
            self._files.hurry(halt.token, now + halt.grace_ms)
            return []
        return [LeaveHealth(halt.token), StopRun(str(halt.token), halt.grace_ms, halt.reason, halt.detail)]

    def _start(self, run: Run, now: int) -> list[Effect]:
        logs = self._remember(run)
        secrets = run.secrets
        run = self.actor.attempts[run.token].run  # the attempt it is to wait for may have been given up a moment ago
        if len(self.logs) > ATTEMPTS_MAX or self._sizes_sum > DOCUMENT_BYTES_MAX:
            return self._give_up(run.token, "stopped", f"this node has {len(self.logs) - 1} attempts already", now)
        try:
            request = prepare(
                run, self.actor.node, self._directory, logs, secrets, self.containers, self.isolation, self.machines
            )
            image, password = image_of(run, secrets) or (None, Hidden())
            watch = self._watch_health(run)
        except Invalid as error:
            return self._give_up(run.token, "error", str(error), now, lacking(error))
        cache, files = self._files.caches.get(run.token), machine_files(run, request, self.actor.facts.arch)
        fetches = bool(run.inputs) or image is not None or cache is not None or files is not None
        if fetches or self._is_kept_from(run.after):
            self.actor.held(run.token)
            self._files.hold(run.token, request, now + FETCH_MS_MAX if fetches else None)
            env = tuple(request.env.items()) if cache is not None else ()
            fetch = FetchInputs(run.token, run.inputs, request.dir, image, password, cache, env, request.owner, files)
            return [*watch, *([fetch] if fetches else [])]
        return [*watch, request]

    def _lease(self, lease: Lease) -> list[Effect]:
        grown_ms = lease.until_ms - self._lease_ms
        if 0 <= grown_ms < self.actor.lease_ms // LEASE_STEPS:
            return []
        self._lease_ms = lease.until_ms
        return [lease]

    def _remember(self, run: Run) -> tuple[str, ...]:
        texts = (field for item in run.inputs for field in msgspec.structs.astuple(item) if isinstance(field, str))
        size = len(run.document) + sum(len(name) + len(value) for name, value in run.env) + sum(map(len, texts))
        self._sizes[run.token] = size
        self._sizes_sum += size
        self._files.remember(run)
        names = self.logs[run.token] = log_names(run)
        return names
