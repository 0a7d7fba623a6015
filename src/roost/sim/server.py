"""The server in the simulated world: engine and gateway, rule by rule as in server/, around the very same core.

Batch, step, commit, and only then act. A failed commit throws the state away; a crash leaves only the store.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from roost.core.effects import Step
from roost.core.state import Settings, State, load
from roost.core.step import step
from roost.model.errors import NoService, RoostError
from roost.model.events import Event, Heard, Joined, Parted, Reported
from roost.model.frames import Beat, Hello
from roost.ports.store import Fenced
from roost.server.outbox import Outbox
from roost.sim.checkers import Checkers
from roost.sim.net import Net, Stream
from roost.sim.world import Clock, World
from roost.stores.memory import Memory

LACKING_MS = 1_000  # these two as in server/gateway.py, which a simulation has no other use for
COMMIT_MS_MAX = 500
MISSING_MAX = 0  # beats that may be missing in a stream
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


class Link:
    """The server's end of one stream; it has an outbox once it was taken in."""

    __slots__ = ("behind_since_ms", "hello", "node", "outbox", "sequence", "stream", "waiting_since_ms")

    def __init__(self, stream: Stream, hello: Hello) -> None:
        self.stream = stream
        self.hello = hello
        self.node = hello.node
        self.outbox: Outbox | None = None
        self.sequence = 0  # of the newest beat
        self.waiting_since_ms = 0  # a beat with reports that is not answered yet
        self.behind_since_ms = 0


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
        self._links: dict[Stream, Link] = {}
        self._joining: Counter[str] = Counter()
        self._early: dict[tuple[str, int], Outbox] = {}
        self._current: dict[str, Link] = {}
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
        for stream in self._links:
            self._net.close(stream, up=False)
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
        self._tell(make(self._requests))

    def heard(self, node: str, session: int) -> bool:
        """A sign of life; False: this session is over, do not answer."""
        known = self.state.nodes.get(node)
        if known is None or known.session != session or known.status == "lost" or not self.ready:
            return False
        self._heard[node] = (session, self.clock.now_ms())
        return True

    def _tell(self, event: Event) -> None:
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
        self._act(done)
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
        self._reset()
        self._world.after(self._world.between(0, RELOAD_MS[0]), self._awake, self._open, self.life)

    # the gateway

    def received(self, stream: Stream, frame: Any) -> None:
        """A frame from an agent."""
        self._awake(self._receive, stream, frame)

    def closed(self, stream: Stream) -> None:
        """A stream broke."""
        self._awake(self._closed, stream)

    def _receive(self, stream: Stream, frame: Any) -> None:
        link = self._links.get(stream)
        if link is None:
            if not self.up or not stream.server_open:
                return
            if isinstance(frame, Hello):
                self._greet(stream, frame)
            else:
                self._net.close(stream, up=False)
        elif isinstance(frame, Beat) and link.outbox is not None:
            self._beat(link, link.outbox, frame)

    def _closed(self, stream: Stream) -> None:
        link = self._links.get(stream)
        if link is not None:
            self._end(link)

    def _greet(self, stream: Stream, hello: Hello) -> None:
        """Ask the core. Its orders come before our turn does, and wait in `_early`."""
        link = self._links[stream] = Link(stream, hello)
        self._joining[link.node] += 1
        self.ask(lambda request: Joined(request, hello), lambda value: self._greeted(link, value))

    def _greeted(self, link: Link, value: Any) -> None:
        if link.stream not in self._links:
            return  # it broke while it was decided
        outbox = None if isinstance(value, RoostError) else self._early.pop((link.node, value), None)
        self._leave_joining(link)
        if outbox is None:
            self._world.tell("server", f"refuses {link.stream}: {value}")
            self._end(link)
            return
        older = self._current.get(link.node)
        if older is not None:
            self._end(older)
        link.outbox = outbox
        self._current[link.node] = link
        self._send(link, outbox.welcome(link.hello.sent_ms, self._settings.lease_ms))

    def _leave_joining(self, link: Link) -> None:
        self._joining[link.node] -= 1
        if not self._joining[link.node]:
            for name, session in [key for key in self._early if key[0] == link.node]:
                del self._early[name, session]
                self._tell(Parted(name, session))

    def _beat(self, link: Link, outbox: Outbox, beat: Beat) -> None:
        """A sign of life, renewed at once; reports are answered after their commit."""
        missing = beat.sequence > link.sequence + 1 + MISSING_MAX
        link.sequence = max(link.sequence, beat.sequence)
        if missing or beat.session != outbox.session or not self.heard(link.node, outbox.session):
            self._end(link)
            return
        outbox.echo(beat.sent_ms)
        now = self.clock.now_ms()
        lacking = beat.lacking or self._is_behind(link, outbox, beat.generation, now)
        if beat.reports or lacking:
            self._tell(Reported(link.node, outbox.session, beat.sequence, beat.reports, lacking))
            link.waiting_since_ms = link.waiting_since_ms or now
        if beat.leaving:
            self._tell(Parted(link.node, outbox.session, leaving=True))
        if not link.waiting_since_ms or now - link.waiting_since_ms > COMMIT_MS_MAX:
            self._send(link, outbox.answer())

    def _is_behind(self, link: Link, outbox: Outbox, generation: int, now: int) -> bool:
        if generation >= outbox.generation:
            link.behind_since_ms = 0
            return False
        link.behind_since_ms = link.behind_since_ms or now
        if now - link.behind_since_ms <= LACKING_MS:
            return False
        link.behind_since_ms = now
        return True

    def _act(self, done: Step) -> None:
        self._checkers.acted(self.state, done)
        due: dict[str, Link] = {}
        for orders in done.assignments:
            link = self._current.get(orders.node)
            if link is not None and link.outbox is not None and link.outbox.session == orders.session:
                link.outbox.order(orders)
                due[orders.node] = link
            elif self._joining[orders.node]:
                self._early.setdefault((orders.node, orders.session), Outbox(orders.session)).order(orders)
            else:
                self._tell(Parted(orders.node, orders.session))
        for node, sequence in done.acknowledged.items():
            link = self._current.get(node)
            if link is not None and link.outbox is not None:
                link.waiting_since_ms = 0
                link.outbox.acknowledge(sequence)
                due[node] = link
        for link in due.values():
            assert link.outbox is not None
            self._send(link, link.outbox.answer())
        self._close_lost(done)

    def _close_lost(self, done: Step) -> None:
        for node, status, _ in done.nodes:
            if status in ("lost", "gone") and node in self._current:
                self._end(self._current[node])

    def _send(self, link: Link, frame: Any) -> None:
        self._net.send(link.stream, frame, up=False)

    def _end(self, link: Link) -> None:
        """A stream ends here, whoever wanted it."""
        del self._links[link.stream]
        if link.stream.server_open:
            self._net.close(link.stream, up=False)
        if link.outbox is None:
            self._leave_joining(link)
            return
        if self._current.get(link.node) is link:
            del self._current[link.node]
        self._tell(Parted(link.node, link.outbox.session))

    def _reset(self) -> None:
        for link in list(self._links.values()):
            if link.stream in self._links:
                self._end(link)
