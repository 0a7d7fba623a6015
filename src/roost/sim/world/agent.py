"""An agent process in the simulated world: the product's machine, with the simulated network and keeper around it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roost.agent import machine
from roost.agent.actor import Actor, Forget, Lease
from roost.agent.connection import machine as link
from roost.agent.files.progress import CollectOutputs, FetchInputs
from roost.agent.health.effects import CheckHealth
from roost.drivers.container.engine import ContainerEngine
from roost.drivers.container.request import ContainerHost
from roost.drivers.qemu.host import MachineHost, QemuProgram
from roost.model.protocol import Hello, PowerOrder, Usage, Welcome
from roost.model.records.files import InputFailure, InputProblem, Outputs
from roost.model.spec.runs.container import image_key
from roost.ports.driver import Event, RunRequest
from roost.sim.world.engine import SimulatedEngine
from roost.sim.world.file_sets import parts_of
from roost.sim.world.keeper import SimulatedKeeper
from roost.sim.world.logs import SimulatedSpool
from roost.sim.world.net import SimulatedStream, UnsureAnswer
from roost.sim.world.server import SimulatedServer
from roost.sim.world.world import SimulatedProcess

if TYPE_CHECKING:
    from roost.sim.world.host import SimulatedHost

FILES_MS = (1, 3_000)  # how long inputs or outputs of a run take
LOOK_MS = 2_000  # between two looks at the container engine; a real agent takes its time
SWEEP_LOOKS = 3
PIPE_MS = 1  # between agent and keeper, both ways; in order, and nothing is lost while both live

HOST = MachineHost("/machines", {"linux": "/linux"}, qemu=QemuProgram("/qemu", "9"))  # on hosts that offer it
GONE = InputFailure(InputProblem.NOT_FOUND, is_final=True)


class SimulatedAgent(SimulatedProcess):
    def __init__(self, host: "SimulatedHost") -> None:
        super().__init__()
        self.host = host
        self.actor = Actor(host.node, host.identity, host.facts)
        self.machine = machine.AgentMachine(self.actor, "", "", "", host.world.chance.random, self._now())
        self.machine.machines = HOST
        self.spool = SimulatedSpool(self, host.files, host.checkers.logs)
        self.alive = True
        self.stream: SimulatedStream | None = None
        self._tick_ms: int | None = None
        self._engine: ContainerEngine | None = None  # that answered last
        self._looks = 0

    def begin(self) -> None:
        """Adopt the runs that the keeper has from an earlier agent, and the engine, then connect."""
        self._happened(self.host.keeper.connect(lambda event: self._later(PIPE_MS, self._happened, event)))
        if self.host.engine is not None:
            self.machine.containers = ContainerHost(self.host.engine.node)
            self.host.engine.begin_agent()
            self._look_at_engine(self.host.engine)

    # hanging and dying

    def die(self, *, quietly: bool = False) -> None:
        """kill -9. Orders already written to the keeper may or may not arrive."""
        self.alive = False
        if self.stream is not None:
            self.host.net.close(self.stream, up=True, quietly=quietly)

    def leave(self) -> None:
        """SIGTERM, after all runs have stopped."""
        self.awake(lambda: self._perform(self.machine.stop(self._now())))

    def awake(self, action: Callable[..., None], *given: Any) -> None:
        if self.alive:
            super().awake(action, *given)

    # events

    def received(self, stream: SimulatedStream, frame: Any) -> None:
        self.awake(self._receive, stream, frame)

    def closed(self, stream: SimulatedStream) -> None:
        self.awake(self._closed, stream)

    def _receive(self, stream: SimulatedStream, frame: Any) -> None:
        if stream is not self.stream:
            return
        session, generation = self.actor.session, self.actor.generation
        if isinstance(frame, Welcome):
            self._tell(f"welcomed in session {frame.session}, generation {frame.generation}")
        unsure = isinstance(frame, UnsureAnswer)
        frame = frame.answer if unsure else frame
        self._resolve(self.machine.link.received(frame, self._now(), self.host.door.addresses, unsure=unsure))
        self.host.checkers.followed(self.actor, session, generation)

    def _closed(self, stream: SimulatedStream) -> None:
        if stream is self.stream:
            self._tell(f"sees {stream} end")
            self.stream = None
            self._resolve(self.machine.link.closed(link.StreamEnd.BROKEN, "the stream broke", self._now()))

    def _happened(self, event: Event) -> None:
        self._perform(self.machine.happened(self.host.keeper.with_results(event), self._now()))

    def _probe(self, token: int) -> None:
        problem = "" if self.host.keeper.is_well(token) else "the check failed"
        self._perform(self.machine.probed(token, problem, self._now()))

    def _look_at_engine(self, engine: SimulatedEngine) -> None:
        found, self._looks = engine.found(), self._looks + 1
        if found is not None and (self._engine is None or self._looks % SWEEP_LOOKS == 0):
            engine.sweep(lambda run: int(run) in self.machine.live_attempts())
        engine.make_room(self.machine.logs.__contains__)
        if found != self._engine:
            self._engine = found
            self._perform(self.machine.engine_changed(found, self._now()))
        self._later(LOOK_MS, self._look_at_engine, engine)

    def _fetch_ms(self, effect: FetchInputs) -> int:
        engine, chance = self.host.engine, self.host.door.blobs.chance
        image_ms = engine.pull_ms(effect.image.image) if effect.image is not None and engine is not None else 0
        return image_ms + (chance.between(*FILES_MS) if effect.inputs or effect.image is None else 0)

    def _fetched(self, effect: FetchInputs, ms: int) -> None:
        token, digests = effect.token, [item.digest for item in effect.inputs if item.digest]
        blobs, attempt = self.host.door.blobs, self.actor.attempts.get(token)
        missing = blobs.missing(part for digest in digests for part in parts_of(digest))
        if missing and attempt is not None:
            blobs.checkers.fetch_failed(attempt.run)
        failure, image = GONE if missing else None, ""
        if failure is None and effect.image is not None and self.host.engine is not None:
            image = effect.image.image
            failure = self.host.engine.pulled(token, image, self._now())
            self.actor.identified(token, f"sha256:{image}", ms)
        self._perform(self.machine.fetched(token, failure, self._now(), image))

    def _collect(self, effect: CollectOutputs) -> None:
        """Hold the outputs, send what is missing, report them; again, until a server answers."""
        blobs, outputs = self.host.door.blobs, self.host.keeper.left(effect.token, effect.outputs)
        server = next(filter(None, map(self._reach, self.host.door.addresses)), None)
        sets = [outputs.files] if outputs.files is not None else []
        missing = server.files.hold(f"attempt {effect.token}", sets) if server is not None else None
        if missing is None:
            self._later(blobs.chance.between(*FILES_MS), self._collect, effect)
            return
        self._later(blobs.chance.between(*FILES_MS), self._collected, effect.token, outputs, missing)

    def _collected(self, token: int, outputs: Outputs, sent: list[str]) -> None:
        self.host.door.blobs.put(sent)
        self._perform(self.machine.collected(token, outputs, self._now()))

    def _tick(self, at_ms: int) -> None:
        if at_ms == self._tick_ms:
            self._tick_ms = None
            self._perform(self.machine.tick(self._now(), self._usage()))

    def _usage(self) -> Usage | None:
        engine = self.host.engine
        if engine is None or not self.machine.link.is_usage_due(self._now()):
            return None
        return Usage(images=tuple(sorted(map(image_key, engine.images))))

    # effects

    def _resolve(self, effects: list[link.Effect]) -> None:
        self._perform(self.machine.resolve(effects, self._now()))

    def _perform(self, effects: Sequence[machine.Effect]) -> None:
        for effect in effects:
            match effect:
                case link.ReadCertificate():
                    self._resolve(self.machine.link.certified(self.host.door.addresses))
                case link.OpenStream(address):
                    self._open(address)
                case link.SendFrame():
                    self._send(effect)
                case link.CloseStream():
                    assert self.stream is not None
                    self._tell(f"gives up {self.stream}")
                    self.host.net.close(self.stream, up=True, quietly=self.host.world.happens(0.3))
                    self.stream = None
                case link.FindLeader(addresses):
                    self._later(PIPE_MS, self._find_leader, addresses)
                case RunRequest() | machine.StopRun() | Forget() | Lease() | PowerOrder():
                    self._tell_driver(effect)
                case CheckHealth(token, pause_ms):
                    self._later(pause_ms, self._probe, token)
                case FetchInputs():
                    ms = self._fetch_ms(effect)
                    self._later(ms, self._fetched, effect, ms)
                case CollectOutputs():
                    self._later(self.host.door.blobs.chance.between(*FILES_MS), self._collect, effect)
                case machine.CompleteLog() | machine.ReleaseLog() | machine.TakenOver() | link.Connected():
                    self.spool.heard(effect)
                case _:
                    pass  # log lines, and notices to other parts of an agent
        self._plan()

    def _open(self, address: str) -> None:
        server = self._reach(address)
        if server is None:
            is_blocked = self.host.net.is_blocked(self.host.name, address)
            leader = "" if is_blocked else self.host.door.leader_known_at(address)
            self._resolve(self.machine.link.closed(link.StreamEnd.BROKEN, "no server", self._now(), leader))
            return
        self.stream = self.host.net.open(self.host.name, self, server, server.name)
        self._resolve(self.machine.link.opened("", self._now()))

    def _reach(self, address: str) -> SimulatedServer | None:
        is_cut_off = not self.host.up or self.host.net.is_blocked(self.host.name, address)
        return None if is_cut_off else self.host.door.find(address)

    def _find_leader(self, addresses: tuple[str, ...]) -> None:
        reached = filter(None, map(self._reach, addresses))
        found = next((server.name for server in reached if server.is_sure), "")
        self._resolve(self.machine.link.leader_found(found, self._now()))

    def _send(self, effect: link.SendFrame) -> None:
        assert self.stream is not None
        frame = effect.frame
        if isinstance(frame, Hello):
            self._tell(f"hello on {self.stream} with {[run.token for run, _ in frame.runs]}")
        else:
            self.host.checkers.caught_up(self.actor)
            if frame.reports or frame.lacking or frame.leaving:
                reports = [f"{item.token} {item.state} {item.cause}".strip() for item in frame.reports]
                self._tell(f"beat {frame.sequence}: {reports}{' lacking' * frame.lacking}")
        self.host.net.send(self.stream, frame, up=True)
        self.machine.link.sent()
        if effect.last:
            self._tell("says goodbye")
            self.host.world.after(self.host.world.between(5, 50), self.host.leave_now, self.host.keeper)

    def _tell_driver(self, effect: RunRequest | machine.StopRun | Forget | Lease | PowerOrder) -> None:
        keeper = self.host.keeper
        match effect:
            case RunRequest():
                self._order(keeper.start, effect)
            case machine.StopRun(id, grace_ms, reason, detail):
                self._order(keeper.driver.stop, id, grace_ms, reason, detail)
            case Forget(token):
                self._order(keeper.driver.forget, str(token))
            case Lease(until_ms):
                self._order(keeper.driver.lease, until_ms)
            case PowerOrder(token, serial, action, grace_ms):
                self._order(keeper.driver.power, str(token), serial, action, grace_ms)

    def _order(self, order: Callable[..., None], *given: Any) -> None:
        self.host.world.after(PIPE_MS, self._arrive, self.host.keeper, order, *given)

    def _arrive(self, keeper: SimulatedKeeper, order: Callable[..., None], *given: Any) -> None:
        if self.host.keeper.alive and (self.alive or self.host.world.happens(0.5)):
            keeper.follow(order, *given)

    def _plan(self) -> None:
        at_ms = self.machine.next_ms()
        if at_ms is not None and not self.machine.is_over:  # else it ends with its host
            at_ms = max(at_ms, self._now())
            if self._tick_ms is None or at_ms < self._tick_ms:
                self._tick_ms = at_ms
                self.host.world.at(self.host.clock.true_ms(at_ms), self.awake, self._tick, at_ms)

    def _later(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self.host.world.after(delay_ms, self.awake, action, *given)

    def _tell(self, text: str) -> None:
        self.host.world.tell(self.host.name, text)

    def _now(self) -> int:
        return self.host.clock.now_ms()
