"""The gateway in the simulated world: streams, sessions and outboxes, rule by rule as in server/gateway.py."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from roost.core.effects import Step
from roost.model.errors import RoostError
from roost.model.events import Event, Joined, Parted, Reported
from roost.model.frames import Beat, Hello
from roost.server.outbox import Outbox
from roost.sim.net import Net, Stream
from roost.sim.world import World

LACKING_MS = 1_000  # these two as in server/gateway.py, which brings gRPC along
COMMIT_MS_MAX = 500
MISSING_MAX = 0  # beats that may be missing in a stream


class Engine(Protocol):
    """Whom the gateway tells what agents say."""

    def ask(self, make: Callable[[int], Event], answered: Callable[[Any], None]) -> None:
        """Put a request in; the answer comes after the commit."""

    def tell(self, event: Event) -> None:
        """Put an event in that nobody waits for."""

    def heard(self, node: str, session: int) -> bool:
        """A sign of life; False: this session is over, do not answer."""

    def now_ms(self) -> int:
        """The time on the server's clock."""

    def lease_ms(self) -> int:
        """How long a lease is."""


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


class Gateway:
    """The agents' door, for one life of a server."""

    def __init__(self, world: World, net: Net, engine: Engine) -> None:
        self._world = world
        self._net = net
        self._engine = engine
        self._links: dict[Stream, Link] = {}
        self._joining: Counter[str] = Counter()
        self._early: dict[tuple[str, int], Outbox] = {}
        self._current: dict[str, Link] = {}

    def received(self, stream: Stream, frame: Any) -> None:
        """A frame from an agent."""
        link = self._links.get(stream)
        if link is None:
            if not stream.server_open:
                return
            if isinstance(frame, Hello):
                self._greet(stream, frame)
            else:
                self._net.close(stream, up=False)
        elif isinstance(frame, Beat) and link.outbox is not None:
            self._beat(link, link.outbox, frame)

    def closed(self, stream: Stream) -> None:
        """A stream broke."""
        link = self._links.get(stream)
        if link is not None:
            self._end(link)

    def _greet(self, stream: Stream, hello: Hello) -> None:
        """Ask the core. Its orders come before our turn does, and wait in `_early`."""
        link = self._links[stream] = Link(stream, hello)
        self._joining[link.node] += 1
        self._engine.ask(lambda request: Joined(request, hello), lambda value: self._greeted(link, value))

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
        self._send(link, outbox.welcome(link.hello.sent_ms, self._engine.lease_ms()))

    def _leave_joining(self, link: Link) -> None:
        self._joining[link.node] -= 1
        if not self._joining[link.node]:
            for name, session in [key for key in self._early if key[0] == link.node]:
                del self._early[name, session]
                self._engine.tell(Parted(name, session))

    def _beat(self, link: Link, outbox: Outbox, beat: Beat) -> None:
        """A sign of life, renewed at once; reports are answered after their commit."""
        missing = beat.sequence > link.sequence + 1 + MISSING_MAX
        link.sequence = max(link.sequence, beat.sequence)
        if missing or beat.session != outbox.session or not self._engine.heard(link.node, outbox.session):
            self._end(link)
            return
        outbox.echo(beat.sent_ms)
        now = self._engine.now_ms()
        lacking = beat.lacking or self._is_behind(link, outbox, beat.generation, now)
        if beat.reports or lacking:
            self._engine.tell(Reported(link.node, outbox.session, beat.sequence, beat.reports, lacking))
            link.waiting_since_ms = link.waiting_since_ms or now
        if beat.leaving:
            self._engine.tell(Parted(link.node, outbox.session, leaving=True))
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

    def act(self, done: Step) -> None:
        """Send what a step decided, once it is durable."""
        due: dict[str, Link] = {}
        for orders in done.assignments:
            link = self._current.get(orders.node)
            if link is not None and link.outbox is not None and link.outbox.session == orders.session:
                link.outbox.order(orders)
                due[orders.node] = link
            elif self._joining[orders.node]:
                self._early.setdefault((orders.node, orders.session), Outbox(orders.session)).order(orders)
            else:
                self._engine.tell(Parted(orders.node, orders.session))
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
        self._engine.tell(Parted(link.node, link.outbox.session))

    def crash(self) -> None:
        """The process is gone, and with it every stream."""
        for stream in self._links:
            self._net.close(stream, up=False)

    def reset(self) -> None:
        """The state is being loaded anew: end all streams."""
        for link in list(self._links.values()):
            if link.stream in self._links:
                self._end(link)
