"""The keeper of a virtual host: the product's rules and scripted processes, on the host's clock, with a witness.

It outlives agents and ends with its host. What it starts is the truth that the checkers look at.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from roost.agent.prepare import from_note
from roost.drivers.fake import Exit, FakeDriver
from roost.keeper.clock import NEVER
from roost.keeper.run import KeeperRun
from roost.model.protocol import Run
from roost.model.records.files import Outputs
from roost.model.spec.files import OutputBlock
from roost.ports.driver import Ended, Event, KnownRuns, RunRequest, Started, StepCommand, StopReason
from roost.sim.checks.machines import MachineTruth
from roost.sim.checks.oracle import Oracle
from roost.sim.world.engine import SimulatedEngine
from roost.sim.world.logs import LogFiles
from roost.sim.world.machines import SimulatedMachine
from roost.sim.world.world import SimulatedClock, World

#: How late a keeper handles a timer, at most: a busy host, and a killed process group that ends slowly.
LATE_MS_MAX = 140
PROMPT_MS_MAX = 3  # most of the time


class SimulatedDriver(FakeDriver):
    """Scripts that write logs, and virtual machines."""

    files: LogFiles
    engine: SimulatedEngine | None = None
    truth: MachineTruth

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.machines: dict[str, SimulatedMachine] = {}

    def spawn(self, run: KeeperRun) -> str:
        problem = ""
        if self.engine is not None and run.container is not None and run.step == 0:
            problem = self.engine.started(int(run.id), str(run.container.create["Image"]))
        error = problem or super().spawn(run)
        if not error:
            self.files.began(_log_of(run), int(run.id))
        if not error and run.machine is not None:
            power = "stopped" if run.machine.body.get("power") == "stopped" else "running"
            self.machines[run.id] = SimulatedMachine(self, run, self.truth, power)
        return error

    def finished(self, run: KeeperRun, now: int) -> int:
        super().finished(run, now)
        if self.engine is not None and run.container is not None:
            self.engine.ended(int(run.id))
        self.machines.pop(run.id, None)
        return self.files.ended(_log_of(run))

    def lose(self) -> None:
        super().lose()
        self.machines.clear()

    # virtual machines

    def command(self, run: KeeperRun, serial: int, action: str, grace_ms: int) -> None:
        if run.id in self.machines:
            self.machines[run.id].switch.command(serial, action, grace_ms, self.now)

    def terminate(self, run: KeeperRun) -> None:
        if run.id in self.machines:
            self.machines[run.id].switch.terminate(self.now)
        else:
            super().terminate(run)

    def powered(self, run: KeeperRun, power: str, serial: int, problem: str) -> None:
        self.rules.powered(run, power, serial, problem, self.now)

    def ended(self, run: KeeperRun, error: str) -> None:
        self.exits[run.id] = Exit(self.now, 1 if error else 0)

    def happen(self) -> None:
        for machine in list(self.machines.values()):
            machine.advance(self.now)

    def next_also(self) -> int:
        return min((machine.next_at() for machine in self.machines.values()), default=NEVER)


def _log_of(run: KeeperRun) -> str:
    return run.log.rpartition("/")[2].replace("~", "/")


class SimulatedKeeper:
    def __init__(
        self, world: World, host: str, clock: SimulatedClock, witness: Oracle, files: LogFiles,
        engine: SimulatedEngine | None = None,
    ) -> None:  # fmt: skip
        self._world = world
        self._host = host
        self._clock = clock
        self._witness = witness
        self.driver = SimulatedDriver(script=lambda job: witness.behaviour(self._runs[job.id]), now=clock.now_ms())
        self.driver.files, self.driver.engine, self.driver.truth = files, engine, witness.machines
        self._runs: dict[str, Run] = {}
        self._alive: dict[str, Run] = {}
        self._wake_ms: int | None = None
        self.alive = True
        self.tell: Callable[[Event], None] | None = None

    def connect(self, tell: Callable[[Event], None]) -> KnownRuns:
        self._catch_up()
        self.tell = tell
        return self.driver.connect()

    def start(self, job: RunRequest) -> None:
        """Start a run. A known one is not started again."""
        run = from_note(job.note)
        assert run is not None
        self._runs[job.id] = run
        steps = [StepCommand(["work"])] * len(self._witness.behaviour(run))
        self.driver.start(msgspec.structs.replace(job, steps=steps))

    def follow(self, order: Callable[..., None], *given: Any) -> None:
        """Call a method of the keeper or its driver, with all events before and after it."""
        if self.alive:
            self._catch_up()
            order(*given)
            self._catch_up()

    def stop_all(self, grace_ms: int) -> None:
        self.follow(lambda: self.driver.rules.stop_all(grace_ms, StopReason.SHUTDOWN, self.driver.now))

    def with_results(self, event: Event) -> Event:
        """An event as an agent has it once it has looked at what the runs have written."""
        if isinstance(event, KnownRuns):
            runs = [msgspec.structs.replace(run, ended=run.ended and self._ended(run.ended)) for run in event.runs]
            return msgspec.structs.replace(event, runs=runs)
        return self._ended(event) if isinstance(event, Ended) else event

    def _ended(self, event: Ended) -> Ended:
        return msgspec.structs.replace(event, result=self._witness.written(int(event.id)))

    def left(self, token: int, blocks: tuple[OutputBlock, ...]) -> Outputs:
        return self._witness.left(token, blocks)

    def is_well(self, token: int) -> bool:
        """The result of a health check; a run that does not exist is not well."""
        run = self._alive.get(str(token))
        return run is not None and self._witness.is_well(run)

    @property
    def closing(self) -> bool:
        """Whether the host shuts down: the keeper starts no run and no agent."""
        return self.driver.rules.closing

    def is_idle(self) -> bool:
        return not self._alive

    def die(self) -> None:
        self.alive = False
        self.driver.lose()
        for run in self._alive.values():
            self._witness.over(self._host, run, "host", None)
        self._alive.clear()

    def _catch_up(self) -> None:
        for event in self.driver.advance(self._clock.now_ms()):
            if isinstance(event, Started):
                self._alive[event.id] = self._runs[event.id]
                self._witness.began(self._host, self._runs[event.id])
            elif isinstance(event, Ended) and event.id in self._alive:
                self._witness.over(self._host, self._alive.pop(event.id), event.cause, event.code)
            if self.tell is not None:
                self.tell(event)
        at_ms = self.driver.next_at()
        if at_ms is not None and (self._wake_ms is None or at_ms < self._wake_ms):
            self._wake_ms = at_ms
            late = LATE_MS_MAX if self._world.happens(0.3) else PROMPT_MS_MAX
            self._world.at(self._clock.true_ms(at_ms) + self._world.between(0, late), self._wake, at_ms)

    def _wake(self, at_ms: int) -> None:
        if self.alive and at_ms == self._wake_ms:
            self._wake_ms = None
            self._catch_up()
