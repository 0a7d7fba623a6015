"""The server in the simulated world: the loop of server/engine.py, rule by rule, around the very same core.

Batch, step, commit, and only then act. A failed commit throws the state away; a crash leaves only the store.
"""

from collections.abc import Callable
from typing import Any

from roost.core.effects import Step
from roost.core.load import load
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.errors import NoService
from roost.model.events import Event, Heard
from roost.ports.store import Fenced
from roost.sim.checkers import Checkers
from roost.sim.gateway import Gateway
from roost.sim.net import Net, Stream
from roost.sim.world import Clock, World
from roost.stores.memory import Memory

RELOAD_MS = (100, 2_000)
START_MS = (50, 500)

Answered = Callable[[Any], None]


class Disk:
    """The store, and what is wrong with it just now."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.forgetful = False  # it is the memory of the server itself, and dies with it
        self.broken = False  # nothing can be written or read
        self.fails = 0.0  # the commit did not happen
        self.unsure = 0.0  # the commit happened, and was told as failed
        self.slow = 0.0
        self.slow_ms_max = 0


class Server:
    """One server at a time; a restart is a new life on the same disk."""

    def __init__(self, world: World, net: Net, disk: Disk, checkers: Checkers) -> None:
        self._world = world
        self._net = net
        self._disk = disk
        self._settings = Settings()
        self._checkers = checkers
        self.life = 0
        self.up = False
        self.ready = False
        self.epoch = 0
        self.state = State(self._settings)
        self.clock = Clock(world, 0, 0)
        self._clear()

    def _clear(self) -> None:
        self._inbox: list[Event] = []
        self._heard: dict[str, tuple[int, int]] = {}
        self._waiting: dict[int, Answered] = {}
        self._requests = 0
        self._committing = False
        self._wake_ms: int | None = None
        self._gateway = Gateway(self._world, self._net, self)
        self.hung = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    # life and death

    def start(self, clock: Clock, settings: Settings) -> None:
        """A new process, with the clock that its host shows it and what its operator chose."""
        self.life += 1
        self._clear()
        self._settings = settings
        self.up, self.ready = True, False
        self.clock = clock
        self._world.tell("server", f"starts at {clock.now_ms()} with leases of {settings.lease_ms} ms")
        self._world.after(self._world.between(*START_MS), self._awake, self._open, self.life)

    def crash(self) -> None:
        """kill -9. A commit under way may still reach the disk."""
        self._world.tell("server", "crashes")
        self.life += 1
        self.up = self.ready = False
        self._gateway.crash()
        self._clear()
        if self._disk.forgetful:
            self._disk.memory = Memory()
            self._checkers.forgotten()

    def hang(self) -> None:
        """SIGSTOP: everything waits, only time does not."""
        self._world.tell("server", "hangs")
        self.hung = True

    def wake(self) -> None:
        """SIGCONT: timers and sockets are looked at in any order."""
        if not self.hung:
            return
        self._world.tell("server", "wakes")
        self.hung = False
        backlog, self._backlog = self._backlog, []
        first = backlog if self._world.happens(0.5) else sorted(backlog, key=lambda each: each[0] != self._turn)
        for action, given in first:
            self._awake(action, *given)

    def _awake(self, action: Callable[..., None], *given: Any) -> None:
        if self.hung:
            self._backlog.append((action, given))
        else:
            action(*given)

    def reachable(self) -> bool:
        """Whether agents find anybody."""
        return self.up and self.ready and not self.hung

    def _open(self, life: int) -> None:
        if life != self.life:
            return
        if self._disk.broken:
            self._world.after(self._world.between(*RELOAD_MS), self._awake, self._open, life)
            return
        self.epoch = self._disk.memory.lead("server")
        self.state = load(self._disk.memory.snapshot(), self.clock.now_ms(), self._settings)
        self.ready = True
        self._checkers.loaded(self.state)
        self._world.tell("server", f"loads revision {self.state.revision}")
        self._wake()

    # the agents

    def received(self, stream: Stream, frame: Any) -> None:
        """A frame from an agent."""
        self._awake(self._gateway.received, stream, frame)

    def closed(self, stream: Stream) -> None:
        """A stream broke."""
        self._awake(self._gateway.closed, stream)

    def now_ms(self) -> int:
        """The time on this server's clock."""
        return self.clock.now_ms()

    def lease_ms(self) -> int:
        """How long a lease is."""
        return self._settings.lease_ms

    # the engine

    def ask(self, make: Callable[[int], Event], answered: Answered) -> None:
        """Put a request in; the answer comes after the commit."""
        self._awake(self._ask, make, answered)

    def _ask(self, make: Callable[[int], Event], answered: Answered) -> None:
        if not self.ready:
            answered(NoService("the server is starting"))
            return
        self._requests += 1
        self._waiting[self._requests] = answered
        self.tell(make(self._requests))

    def heard(self, node: str, session: int) -> bool:
        """A sign of life; False: this session is over, do not answer."""
        known = self.state.nodes.get(node)
        if known is None or known.session != session or known.status == "lost" or not self.ready:
            return False
        self._heard[node] = (session, self.clock.now_ms())
        return True

    def tell(self, event: Event) -> None:
        """Put an event in that nobody waits for."""
        self._inbox.append(event)
        self._wake()

    def _wake(self) -> None:
        if not self._committing:
            self._sleep_until(self.clock.now_ms())

    def _sleep_until(self, at_ms: int) -> None:
        if self._wake_ms is None or at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self._world.at(self.clock.true_ms(at_ms), self._awake, self._turn, self.life, at_ms)

    def _turn(self, life: int, at_ms: int) -> None:
        if life != self.life or at_ms != self._wake_ms:
            return
        self._wake_ms = None
        if self._committing or not self.ready:
            return
        batch = self._take_batch()
        done = step(self.state, batch, self.clock.now_ms())
        self._checkers.stepped(self.state, done)
        if not done.changes:
            self._done(done)
            return
        self._committing = True
        self._commit(life, done)

    def _take_batch(self) -> list[Event]:
        batch, self._inbox = self._inbox, []
        if self._heard:
            beats = tuple((node, session, at_ms) for node, (session, at_ms) in self._heard.items())
            batch.insert(0, Heard(beats))
            self._heard = {}
        return batch

    def _commit(self, life: int, done: Step) -> None:
        """The disk takes its time; when it has decided, the server hears of it a little later, if it still lives."""
        disk, world = self._disk, self._world
        slow = disk.slow_ms_max if world.happens(disk.slow) else 2
        world.after(world.between(0, slow), self._write, life, self.epoch, done)

    def _write(self, life: int, epoch: int, done: Step) -> None:
        disk, world = self._disk, self._world
        if life != self.life and (disk.forgetful or world.happens(0.5)):
            return  # it died with its process
        applied = not disk.broken and not world.happens(disk.fails)
        if applied:
            try:
                disk.memory.apply(epoch, done.changes)
            except Fenced:
                return  # of a server that died: another one leads by now
            self._checkers.committed(done.changes)
        told = applied and not world.happens(disk.unsure)
        world.after(world.between(0, 1), self._awake, self._committed, life, done, told)

    def _committed(self, life: int, done: Step, told: bool) -> None:
        if life != self.life:
            return
        self._committing = False
        if told:
            self._done(done)
        else:
            self._recover()

    def _done(self, done: Step) -> None:
        self._finish(done)
        if self._inbox:
            self._wake()
        elif done.wake_at_ms is not None:
            self._sleep_until(done.wake_at_ms)

    def _finish(self, done: Step) -> None:
        self._checkers.acted(self.state, done)
        self._gateway.act(done)
        for request, value in done.replies:  # whoever waits for an answer has its turn after the effects
            answered = self._waiting.pop(request, None)
            if answered is not None:
                answered(value)

    def _recover(self) -> None:
        self._world.tell("server", "a commit failed; loads again")
        self.ready = False
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(NoService("the store cannot be written"))
        self._inbox.clear()
        self._gateway.reset()
        self._world.after(self._world.between(0, RELOAD_MS[0]), self._awake, self._open, self.life)
