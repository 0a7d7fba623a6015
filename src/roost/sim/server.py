"""The server in the simulated world: the loop of server/engine.py, rule by rule, around the very same core.

Batch, step, commit, and only then act. A failed commit throws the state away; a crash leaves only the store.
"""

from collections.abc import Callable
from typing import Any

from roost.core.effects import Step
from roost.core.load import follow, load, mirror, take_over
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.errors import NoService
from roost.model.events import Event, Heard
from roost.ports.store import Fenced, News, Snapshot
from roost.server.election import Identity, Timing
from roost.sim.checkers import Checkers
from roost.sim.disk import Disk
from roost.sim.gateway import Gateway
from roost.sim.net import Net, Stream
from roost.sim.standing import Standing
from roost.sim.world import Clock, World
from roost.stores.memory import Memory

RELOAD_MS = (100, 2_000)
START_MS = (50, 500)

Answered = Callable[[Any], None]


class Server:
    """One server at a time has a store of its own; of several on one store, one leads. A restart is a new life."""

    def __init__(self, world: World, net: Net, disk: Disk, checkers: Checkers, name: str) -> None:
        self.name = name
        self.standing: Standing | None = None  # among others, if there are others
        self._holding = False  # the store is away, and agents are answered all the same:
        self._sessions: dict[str, int] = {}
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
        self._holding, self._sessions = False, {}
        self.hung = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    # life and death

    def start(self, clock: Clock, settings: Settings, timing: Timing) -> None:
        """A new process, with the clock that its host shows it and what its operator chose."""
        self.life += 1
        self._clear()
        self._settings = settings
        self.up, self.ready = True, False
        self.clock = clock
        self._world.tell(self.name, f"starts at {clock.now_ms()} with leases of {settings.lease_ms} ms")
        if self._disk.shared:
            identity = Identity(self.name, f"{self.name}-{self.life}", self.name, self.name)
            self.standing = Standing(self._world, self, self._disk, identity, timing)
        self._world.after(self._world.between(*START_MS), self.awake, self._open, self.life)

    def crash(self) -> None:
        """kill -9. A commit under way may still reach the disk."""
        self._world.tell(self.name, "crashes")
        self.life += 1
        self.up = self.ready = False
        if self.standing is not None:
            self.standing.over = True
        self._gateway.crash()
        self._clear()
        if self._disk.forgetful:
            self._disk.memory = Memory()
            self._checkers.forgotten()

    def hang(self) -> None:
        """SIGSTOP: everything waits, only time does not."""
        self._world.tell(self.name, "hangs")
        self.hung = True

    def wake(self) -> None:
        """SIGCONT: timers and sockets are looked at in any order."""
        if not self.hung:
            return
        self._world.tell(self.name, "wakes")
        self.hung = False
        backlog, self._backlog = self._backlog, []
        first = backlog if self._world.happens(0.5) else sorted(backlog, key=lambda each: each[0] != self._turn)
        for action, given in first:
            self.awake(action, *given)

    def awake(self, action: Callable[..., None], *given: Any) -> None:
        """Do something, or later if the process hangs."""
        if self.hung:
            self._backlog.append((action, given))
        else:
            action(*given)

    def reachable(self) -> bool:
        """Whether agents find anybody."""
        return self.up and self.ready and not self.hung

    def let_go(self) -> None:
        """Let another server lead, once nothing is under way."""
        if self.standing is not None and self.ready and not self._committing and not self.hung:
            self.standing.let_go()

    def _open(self, life: int) -> None:
        if life != self.life:
            return
        if self.standing is not None:
            self.standing.stand_by()
            return
        if self._disk.broken:
            self._world.after(self._world.between(*RELOAD_MS), self.awake, self._open, life)
            return
        self.epoch = self._disk.memory.lead("server")
        self.state = load(self._disk.memory.snapshot(), self.clock.now_ms(), self._settings)
        self._begin()

    def _begin(self) -> None:
        self.ready, self._committing = True, False
        self._hold_no_more()
        self._checkers.loaded(self.state)
        self._world.tell(self.name, f"leads from revision {self.state.revision} with epoch {self.epoch}")
        self._wake()

    # among others

    def notified(self) -> None:
        """Something is new in the store."""
        if self.up and self.standing is not None:
            self.standing.notified()

    def mirrored(self, snapshot: Snapshot) -> None:
        """Everything as it is stored."""
        self.state = mirror(snapshot, self._settings)

    def followed(self, news: News) -> None:
        """What another server has committed."""
        if news.lead.epoch > self.epoch:
            self._hold_no_more()
        if news.revision != self.state.revision:
            follow(self.state, news.revision, news.changes)

    def _hold_no_more(self) -> None:
        if self._holding:
            self._holding, self._sessions = False, {}
            self._gateway.reset()

    def elected(self, epoch: int, sudden: bool) -> None:
        """It leads."""
        self.epoch = epoch
        take_over(self.state, self.clock.now_ms(), sudden=sudden)
        self._begin()

    def fell(self, *, fenced: bool) -> None:
        """It leads no more. If only the store is away, its agents are kept."""
        self._world.tell(self.name, f"leads no more{' (fenced)' * fenced}")
        self.ready = False
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(NoService("the store cannot be written"))
        self._inbox.clear()
        if fenced:
            self._gateway.reset()
        else:
            self._holding = True
            self._sessions = {name: node.session for name, node in self.state.nodes.items() if node.status != "lost"}

    # the agents

    def received(self, stream: Stream, frame: Any) -> None:
        """A frame from an agent."""
        self.awake(self._gateway.received, stream, frame)

    def closed(self, stream: Stream) -> None:
        """A stream broke."""
        self.awake(self._gateway.closed, stream)

    def now_ms(self) -> int:
        """The time on this server's clock."""
        return self.clock.now_ms()

    def lease_ms(self) -> int:
        """How long a lease is."""
        return self._settings.lease_ms

    # the engine

    def ask(self, make: Callable[[int], Event], answered: Answered) -> None:
        """Put a request in; the answer comes after the commit."""
        self.awake(self._ask, make, answered)

    def _ask(self, make: Callable[[int], Event], answered: Answered) -> None:
        if not self.ready or (self.standing is not None and not self.standing.is_sure()):
            answered(NoService("this server does not lead"))
            return
        self._requests += 1
        self._waiting[self._requests] = answered
        self.tell(make(self._requests))

    def heard(self, node: str, session: int) -> bool:
        """A sign of life; False: this session is over, do not answer."""
        if self.standing is not None and not self.standing.may_answer():
            return False
        if not self.ready:
            return self._sessions.get(node) == session
        known = self.state.nodes.get(node)
        if known is None or known.session != session or known.status == "lost":
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
            self._world.at(self.clock.true_ms(at_ms), self.awake, self._turn, self.life, at_ms)

    def _turn(self, life: int, at_ms: int) -> None:
        if life != self.life or at_ms != self._wake_ms:
            return
        self._wake_ms = None
        if self._committing or not self.ready:
            return
        batch = self._take_batch()
        self._checkers.living.hears(batch)
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
        world.after(world.between(0, slow), self._write, life, self.epoch, done, self.clock.now_ms())

    def _write(self, life: int, epoch: int, done: Step, sent_ms: int) -> None:
        disk, world = self._disk, self._world
        if life != self.life and (disk.forgetful or world.happens(0.5)):
            return  # it died with its process
        outcome = "failed"
        if not disk.broken and self.name not in disk.cut_off and not world.happens(disk.fails):
            try:
                disk.memory.apply(epoch, done.changes)
                self._checkers.committed(done.changes, self.name, epoch)
                outcome = "failed" if world.happens(disk.unsure) else "durable"
                disk.announce()
            except Fenced:
                outcome = "fenced"
        world.after(world.between(0, 1), self.awake, self._committed, life, epoch, done, outcome, sent_ms)

    def _committed(self, life: int, epoch: int, done: Step, outcome: str, sent_ms: int) -> None:
        if life != self.life or epoch != self.epoch or not self.ready:
            return  # it fell while this was under way: whatever came of it is loaded with the rest
        self._committing = False
        if outcome == "durable":
            if self.standing is not None:
                self.standing.proved(sent_ms)
            self._done(done)
        else:
            self._recover(fenced=outcome == "fenced")

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

    def _recover(self, *, fenced: bool) -> None:
        self.fell(fenced=fenced)
        if self.standing is not None:
            self.standing.fall()
        else:
            self._world.after(self._world.between(0, RELOAD_MS[0]), self.awake, self._open, self.life)
