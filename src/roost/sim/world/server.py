"""A server in the simulated world: the machines of the product, and chance in place of disks, sockets and clocks.

It only schedules effects: when a commit reaches the store, whether its outcome comes back, when a timer goes off.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.events import Event
from roost.model.protocol import Usage
from roost.model.records.files import FileSet
from roost.ports.store import ANYBODY, Change, Committed, Fenced, InDoubt, LeadTaken, News, Unavailable
from roost.server.agents.ingest_machine import IngestMachine
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.machine import Load
from roost.server.engine import machine as engine
from roost.server.engine.machine import EngineMachine
from roost.sim.checks.requests import EffectiveRequests
from roost.sim.checks.safety import Checkers
from roost.sim.world.files import CHECK_MS, ServerFiles, SimulatedBlobs
from roost.sim.world.gateway import SimulatedGateway
from roost.sim.world.leadership import SimulatedLeadership
from roost.sim.world.log_store import SimulatedLogs, cut_blobs
from roost.sim.world.net import Net, SimulatedStream
from roost.sim.world.store import SimulatedStore
from roost.sim.world.world import SimulatedClock, SimulatedProcess, World
from roost.stores.memory import Memory
from roost.stores.sqlite.high_water import StoreLoss, loss_message

RELOAD_MS = (100, 2_000)
START_MS = (50, 500)
HURT = 0.35  # of crashes of a server with a store of its own: the disk has lied
SLICE_UNITS = 10  # two reports: steps of a small fleet pause as well, and heartbeats and crashes come in between

Answered = Callable[[Any], None]


class Disk:
    """One store: of one server alone, or shared by several."""

    def __init__(self, blobs: SimulatedBlobs) -> None:
        self.memory = Memory()
        self.blobs = blobs
        self.shared = False
        self.forgetful = False  # it is the memory of the server itself, and dies with it
        self.broken = False  # nothing can be written or read
        self.cut_off: set[str] = set()  # servers that cannot reach it; only ever asked for members
        self.fails = 0.0  # the commit did not happen
        self.unsure = 0.0  # the commit happened, and was reported as failed
        self.slow = 0.0
        self.slow_ms_max = 0
        self.late_ms: dict[str, int] = {}  # server -> by how much answers come late to it
        self.followers: list[Callable[[], None]] = []
        self.objects: MemoryObjects | None = None  # the segments of logs, if all servers have the same ones
        self.store: SimulatedStore | None = None  # the file of a server that has one to itself

    def apply(self, epoch: int, changes: Sequence[Change]) -> Committed | Fenced:
        applied = self.memory.apply(epoch, changes)
        if self.store is not None and isinstance(applied, Committed):
            self.store.wrote(epoch, applied.revision, changes)
        return applied

    def lead(self) -> int:
        taken = self.memory.lead("server")
        assert isinstance(taken, LeadTaken)
        if self.store is not None:
            self.store.wrote(taken.epoch, self.memory.snapshot().revision)
        return taken.epoch

    def announce(self) -> None:
        for notified in self.followers:
            notified()

    def repair(self) -> None:
        self.fails = self.unsure = self.slow = 0.0
        self.late_ms.clear()
        self.broken = False


class SimulatedServer(SimulatedProcess):
    """A server with a store of its own, or one of several on one store. A restart is a new life."""

    def __init__(self, world: World, net: Net, disk: Disk, checkers: Checkers, name: str) -> None:
        self.name = name
        self.leadership: SimulatedLeadership | None = None  # among others, if there are others
        self.world = world
        self._net = net
        self._disk = disk
        self.settings = Settings()
        self._checkers = checkers
        self.life = 0
        self.up = False
        self.call_operator: Callable[[], None] = lambda: None  # its store was refused
        self.epoch = 0  # of its last lead, in whichever life
        self.logs_away = False  # its blobs cannot be written
        self.clock = SimulatedClock(world, 0, 0)
        self.blobs = MemoryLogs()  # on its own disk: also a server without a store keeps its logs
        self.objects = disk.objects or MemoryObjects()
        checkers.logs.roots.append(self.objects)
        self._clear()

    def _clear(self) -> None:
        self.machine = EngineMachine(self.settings, slice_units=SLICE_UNITS)
        self._waiting: dict[int, Answered] = {}
        self._wake_ms: int | None = None
        self._gateway = SimulatedGateway(self.world, self._net, self)
        self.logs = SimulatedLogs(self)
        self.ingest = IngestMachine(lambda: self.state, self._gateway.sessions, lambda: self.ready and self.is_sure)
        self.files = ServerFiles(self._disk.blobs, self)
        SimulatedProcess.__init__(self)

    @property
    def is_forgetful(self) -> bool:
        return self._disk.forgetful

    @property
    def ready(self) -> bool:
        return self.up and self.machine.is_leading

    @property
    def is_sure(self) -> bool:
        """Whether no other server can lead yet."""
        return self.leadership is None or self.leadership.machine.is_sure(self.clock.now_ms())

    @property
    def state(self) -> State:
        return self.machine.state

    # life and death

    def start(self, clock: SimulatedClock, settings: Settings, timing: LeaderTiming) -> None:
        self.life += 1
        self.settings = settings
        self.clock = clock
        self._clear()
        self.up = True
        self.world.tell(self.name, f"starts at {clock.now_ms()} with leases of {settings.lease_ms} ms")
        if self._disk.shared:
            identity = ServerIdentity(self.name, f"{self.name}-{self.life}", self.name, self.name)
            self.leadership = SimulatedLeadership(self.world, self, self._disk, identity, timing)
            self.machine.leadership = self.leadership.machine
        self.world.after(self.world.between(*START_MS), self.awake, self._start, self.life)

    def crash(self) -> None:
        """kill -9. A commit on its way may still reach the disk."""
        self.world.tell(self.name, "crashes")
        self.life += 1
        self.up = False
        if self.leadership is not None:
            self.leadership.over = True
        self._gateway.crash()
        self._clear()
        if self._disk.forgetful:
            self._disk.memory = Memory()
            self._checkers.forgotten()
        if self._disk.store is not None and self.world.side_chance.happens(HURT):
            self._disk.store.hurt()
            self.world.tell("disk", f"damage: {self._disk.store.damage}")
        cut_blobs(self.world.side_chance, self.blobs)

    def hang(self) -> None:
        self.world.tell(self.name, "hangs")
        self.hung = True

    def wake(self) -> None:
        """SIGCONT: timers and sockets are handled in any order."""
        if self.hung:
            self.world.tell(self.name, "wakes")
            if not self.world.happens(0.5):
                self.backlog.sort(key=lambda item: item[0] != self._turn)
            super().wake()

    def let_go(self) -> None:
        if self.leadership is not None and self.ready and not self.machine.is_deciding and not self.hung:
            self.machine.let_go(self.world.one_of((ANYBODY, ANYBODY, "s0", "s1", "s2")))
            self._turn_now()

    def _start(self, life: int) -> None:
        if life != self.life:
            return
        self.machine.start()
        if self.leadership is not None:
            self.leadership.stand_by()
        else:
            self._open(life)

    def _open(self, life: int) -> None:
        if life != self.life:
            return
        if self._disk.broken:
            self.machine.out_of_touch(Unavailable("the disk is broken"))
            self.world.after(self.world.between(*RELOAD_MS), self.awake, self._open, life)
            return
        found = self._disk.store.open() if self._disk.store is not None else None
        if isinstance(found, StoreLoss):
            self._refuse(found)
            return
        self._disk.memory = found or self._disk.memory
        self.machine.mirrored(self._disk.memory.snapshot())
        self.elected(self._disk.lead(), unclean=False)

    def _refuse(self, loss: StoreLoss) -> None:
        """The process ends with a message, and an operator is called."""
        self.world.tell(self.name, f"does not start: {loss_message(loss)}")
        self._checkers.store_refused(loss_message(loss), self._disk.store.damage if self._disk.store else "")
        self.life += 1
        self.up = False
        self._clear()
        self.call_operator()

    # among others

    def notified(self) -> None:
        if self.up and self.leadership is not None:
            self.leadership.notified()

    def followed(self, update: News) -> None:
        self._carry_out(self.machine.followed(update))

    def elected(self, epoch: int, unclean: bool) -> None:
        self._carry_out(self.machine.elected(epoch, self.clock.now_ms(), unclean=unclean))

    def overtaken(self, failure: Fenced) -> None:
        self.world.tell(self.name, "leads no more (fenced)")
        self.machine.overtaken(failure)
        self._turn_now()

    # the agents

    def received(self, stream: SimulatedStream, frame: Any) -> None:
        self.awake(self._gateway.received, stream, frame)

    def closed(self, stream: SimulatedStream) -> None:
        self.awake(self._gateway.closed, stream)

    # the engine

    def ask(self, make: Callable[[int], Event], answered: Answered, sets: Sequence[FileSet] = ()) -> None:
        """`sets`: files that the client has sent with it."""
        self.awake(self._ask, make, answered, sets)

    def _ask(self, make: Callable[[int], Event], answered: Answered, sets: Sequence[FileSet] = ()) -> None:
        if sets and not (self.up and self.files.asked(id(answered), sets)):
            answered(NoService("files are being deleted"))
        elif sets:
            checked_ms = self._disk.blobs.chance.between(*CHECK_MS)
            self.world.after(checked_ms, self.awake, self._ask_engine, make, answered, self.files)
        else:
            self._ask_engine(make, answered, self.files)

    def _ask_engine(self, make: Callable[[int], Event], answered: Answered, files: ServerFiles) -> None:
        if files is not self.files:
            answered(NoService("another server leads, and does not know which files were sent"))
            return
        request = self.machine.ask(make, None, self.clock.now_ms()) if self.up else NoService("nothing listens there")
        if isinstance(request, NoService):
            self._answer(answered, request)
            return
        self._waiting[request] = partial(self._answer, answered)
        self._wake()

    def _answer(self, answered: Answered, value: Any) -> None:
        self.files.answered(id(answered))
        answered(value)

    @property
    def lease_ms(self) -> int:
        return self.state.sent_lease_ms

    def heard(self, node: str, session: int, usage: Usage | None) -> bool:
        """A heartbeat; False: this session has ended, do not answer."""
        return self.machine.heard(node, session, usage, self.clock.now_ms())

    def tell(self, event: Event) -> None:
        self.machine.tell(event)
        self._wake()

    def _wake(self) -> None:
        if not self.machine.is_deciding:
            self._sleep_until(self.clock.now_ms())

    def _sleep_until(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self.world.at(self.clock.true_ms(at_ms), self.awake, self._turn, self.life, at_ms)

    def _turn(self, life: int, at_ms: int) -> None:
        if life == self.life and at_ms == self._wake_ms:
            self._wake_ms = None
            self._turn_now()

    def _turn_now(self) -> None:
        if self.ready and not self.machine.is_deciding:
            self._decided(self.machine.turn(self.clock.now_ms()))

    @property
    def is_fenced(self) -> bool:
        return self._disk.memory.lead_now.epoch != self.epoch

    def _go_on(self, life: int) -> None:
        if life == self.life and self.machine.is_deciding:
            self._decided(self.machine.go_on())

    def _decided(self, effects: list[engine.Effect]) -> None:
        decided = self.machine.deciding or effects[0]
        if isinstance(effects[-1], engine.Pause):
            self._checkers.paused()
        elif isinstance(decided, engine.Act):
            self._checkers.living.hears(decided.batch)
            self._checkers.stepped(self.state, decided.done, is_fenced=self.is_fenced)
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[engine.Effect]) -> None:
        for effect in effects:
            self._do(effect)

    def _do(self, effect: engine.Effect) -> None:
        world = self.world
        match effect:
            case engine.Act(_, done):
                self._checkers.acted(self.state, done)
                self._gateway.act(done)
                for prefix in done.swept:
                    self.logs.drop(prefix)
            case engine.AnswerRequest(request, value):
                self._checkers.requests.answered(self.name, self.life, request, value)
                self._waiting.pop(request)(value)
            case engine.Mirrored():
                pass  # no change feed here
            case engine.ResetExecutor():
                self._gateway.reset()
            case engine.Began():
                self.epoch = self.machine.epoch
                self.files = ServerFiles(self._disk.blobs, self)
                self.files.began()
                self._checkers.loaded(self.state, is_fenced=self.is_fenced)
                world.tell(self.name, f"leads from revision {self.state.revision} with epoch {self.epoch}")
            case engine.SleepUntil(at_ms):
                if at_ms == 0 or self.machine.inbox:
                    self._wake()
                elif at_ms is not None:
                    self._sleep_until(at_ms)
            case engine.Pause():
                world.after(1, self.awake, self._go_on, self.life)
            case engine.CommitChanges(epoch, changes):
                slow = self._disk.slow_ms_max if world.happens(self._disk.slow) else 2
                sent_ms = self.clock.now_ms()
                assert self.machine.deciding is not None
                requests = self._checkers.requests.effective(self.name, self.life, self.machine.deciding)
                world.after(world.between(0, slow), self._write, self.life, epoch, changes, sent_ms, requests)
            case engine.Release(epoch, successor):
                assert self.leadership is not None
                world.tell(self.name, "leads no more (fenced)")
                self.leadership.release(epoch, successor)
                self._carry_out(self.machine.released())
            case Load():
                world.after(world.between(0, RELOAD_MS[0]), self.awake, self._open, self.life)
            case engine.StandBy():
                assert self.leadership is not None
                self.leadership.stand_by()
            case _:
                assert_never(effect)

    def _write(
        self, life: int, epoch: int, changes: Sequence[Change], sent_ms: int, requests: EffectiveRequests
    ) -> None:
        """A commit reaches the disk, or does not; the server gets the outcome later, if it still lives."""
        disk, world = self._disk, self.world
        is_damaged = disk.store is not None and disk.store.damage
        if life != self.life and (disk.forgetful or world.happens(0.5) or is_damaged):
            return  # it died with its process
        outcome: Committed | Fenced | InDoubt = InDoubt("the disk does not answer")
        if not disk.broken and self.name not in disk.cut_off and not world.happens(disk.fails):
            applied = disk.apply(epoch, changes)
            if isinstance(applied, Committed):
                self._checkers.committed(changes, self.name, epoch)
                self._checkers.requests.committed(requests)
                outcome = outcome if world.happens(disk.unsure) else applied
                disk.announce()
            else:
                outcome = applied
        late_ms = world.between(0, 1) + disk.late_ms.get(self.name, 0)
        world.after(late_ms, self.awake, self._written, life, outcome, sent_ms)

    def _written(self, life: int, outcome: Committed | Fenced | InDoubt, sent_ms: int) -> None:
        if life != self.life:
            return
        if isinstance(outcome, Committed):
            self._carry_out(self.machine.committed(sent_ms))
            return
        self.world.tell(self.name, f"leads no more{' (fenced)' * isinstance(outcome, Fenced)}")
        self._carry_out(self.machine.commit_failed(outcome))
