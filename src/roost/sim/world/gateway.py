"""The gateway in the simulated world: the session machine of the product, and frames over simulated streams."""

from collections.abc import Container
from typing import TYPE_CHECKING, Any, assert_never

from msgspec.structs import replace

from roost.core.state.outcome import Step
from roost.model.errors import RoostError
from roost.model.events import NodeConnected
from roost.model.protocol import Beat, Hello
from roost.model.states import ABSENT, NodeStatus
from roost.server.agents.machine import BeatReply, Session, SessionMachine
from roost.sim.world.net import SERVER, Net, SimulatedStream, UnsureAnswer
from roost.sim.world.world import World

if TYPE_CHECKING:
    from roost.sim.world.server import SimulatedServer


class SimulatedGateway:
    def __init__(self, world: World, net: Net, engine: "SimulatedServer") -> None:
        self._world = world
        self._net = net
        self._engine = engine
        self._machine = SessionMachine(engine)
        self._hellos: dict[SimulatedStream, Hello] = {}  # of all streams
        self._sessions: dict[SimulatedStream, Session] = {}  # of those that were taken in
        self._streams: dict[Session, SimulatedStream] = {}

    @property
    def sessions(self) -> Container[str]:
        """Nodes whose hello was accepted."""
        return self._machine.sessions

    def received(self, stream: SimulatedStream, frame: Any) -> None:
        if stream not in self._hellos:
            if not stream.is_open[SERVER]:
                return
            if isinstance(frame, Hello):
                self._greet(stream, frame)
            else:
                self._net.close(stream, up=False)
        elif isinstance(frame, Beat) and stream in self._sessions:
            self._beat(stream, self._sessions[stream], frame)

    def closed(self, stream: SimulatedStream) -> None:
        if stream in self._hellos:
            self._end(stream)

    def _greet(self, stream: SimulatedStream, hello: Hello) -> None:
        admitted = self._engine.files.admitted
        hello = replace(hello, runs=tuple((run, admitted(report)) for run, report in hello.runs))
        self._hellos[stream] = hello
        self._engine.ingest.hello(hello)
        self._machine.greeted(hello.node)
        received_ms = self._engine.clock.now_ms()
        self._engine.ask(
            lambda request: NodeConnected(request, hello, received_ms), lambda value: self._greeted(stream, value)
        )

    def _greeted(self, stream: SimulatedStream, value: Any) -> None:
        hello = self._hellos.get(stream)
        if hello is None:
            return  # it broke while it was decided
        outbox = self._machine.decided(hello.node, None if isinstance(value, RoostError) else value)
        if outbox is None:
            self._world.tell("server", f"refuses {stream}: {value}")
            del self._hellos[stream]
            self._net.close(stream, up=False)
            return
        older = self._machine.sessions.get(hello.node)
        if older is not None:
            self._end(self._streams[older])
        session = self._sessions[stream] = self._machine.began(hello.node, outbox)
        self._streams[session] = stream
        self._net.send(stream, outbox.welcome(hello.sent_ms, self._engine.lease_ms), up=False)

    def _beat(self, stream: SimulatedStream, session: Session, beat: Beat) -> None:
        beat = replace(beat, reports=tuple(map(self._engine.files.admitted, beat.reports)))
        reply = self._machine.beat(session, beat, self._engine.clock.now_ms())
        match reply:
            case BeatReply.MISSING_BEATS | BeatReply.SESSION_OVER:
                self._end(stream)
            case BeatReply.NOW | BeatReply.SOON:
                self._answer(session)
            case BeatReply.AFTER_COMMIT:
                pass
            case _:
                assert_never(reply)

    def act(self, done: Step) -> None:
        due = [self._machine.ordered(orders) for orders in done.assignments]
        due += [self._machine.acknowledged(node, sequence) for node, sequence in done.acknowledged.items()]
        for session in dict.fromkeys(due):
            if session is not None:
                self._answer(session)
        for node, line in done.node_transitions:
            is_lost = line.state in (*ABSENT, NodeStatus.GONE)
            if is_lost and (session := self._machine.lost(node)) is not None:
                self._end(self._streams[session])

    def _answer(self, session: Session) -> None:
        answer = session.outbox.answer()
        self._net.send(self._streams[session], answer if self._engine.is_sure else UnsureAnswer(answer), up=False)

    def _end(self, stream: SimulatedStream) -> None:
        hello, session = self._hellos.pop(stream), self._sessions.pop(stream, None)
        if stream.is_open[SERVER]:
            self._net.close(stream, up=False)
        if session is None:
            self._machine.decided(hello.node, None)
        else:
            del self._streams[session]
            self._machine.ended(session)

    def crash(self) -> None:
        for stream in self._hellos:
            self._net.close(stream, up=False)

    def reset(self) -> None:
        for stream in list(self._hellos):
            if stream in self._hellos:
                self._end(stream)
