"""The network between agents and the server: late, lossy, repeating, one-way deaf. Harsher than what gRPC promises."""

from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec

from roost.model.protocol import Answer
from roost.sim.world.world import World

DELAY_MS_MAX = 8  # on a good day
LATE_MS_MAX = 2_500  # a message that took the long way
FIN_MS_MAX = 400  # until the other side learns that a stream was closed, if it learns it at all
AGENT, SERVER = 0, 1  # the ends of a stream; what goes to the server goes `up`


class SimulatedStreamEnd(Protocol):
    def received(self, stream: "SimulatedStream", frame: Any) -> None: ...

    def closed(self, stream: "SimulatedStream") -> None: ...


class UnsureAnswer(NamedTuple):
    """An answer of a server that does not know whether it still leads."""

    answer: Answer


class Way:
    """The present condition of one direction between a host and a server. By default all arrives, in order."""

    def __init__(self) -> None:
        self.blocked = False
        self.set()

    def set(self, loss: float = 0.0, late: float = 0.0, repeat: float = 0.0, *, ordered: bool = True) -> None:
        self.loss = loss
        self.late = late
        self.repeat = repeat
        self.ordered = ordered


Ways = tuple[Way, Way]  # to the agent, to the server


class SimulatedStream(msgspec.Struct, eq=False):
    """A stream of one agent process. One side may know that it is closed while the other does not yet."""

    number: int
    host: str
    ends: tuple[SimulatedStreamEnd, SimulatedStreamEnd]
    ways: Ways
    is_open: list[bool] = msgspec.field(default_factory=lambda: [True, True])  # as each end sees it
    last: list[int] = msgspec.field(default_factory=lambda: [0, 0])  # when the latest message to each end arrives
    held: list[tuple[bool, Any]] = []  # on their way when the way was blocked

    def __str__(self) -> str:
        return f"{self.host}/{self.number}"


class Net:
    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = count(1)
        self.streams: list[SimulatedStream] = []
        self._ways: dict[tuple[str, str], Ways] = {}

    def of(self, host: str, server: str) -> Ways:
        if (host, server) not in self._ways:
            self._ways[host, server] = (Way(), Way())
        return self._ways[host, server]

    def is_blocked(self, host: str, server: str) -> bool:
        return any(way.blocked for way in self.of(host, server))

    def open(self, host: str, agent: SimulatedStreamEnd, server: SimulatedStreamEnd, name: str) -> SimulatedStream:
        stream = SimulatedStream(next(self._numbers), host, (agent, server), self.of(host, name))
        self.streams = [stream for stream in self.streams if any(stream.is_open)]
        self.streams.append(stream)
        return stream

    def send(self, stream: SimulatedStream, frame: Any, *, up: bool) -> None:
        way, world = stream.ways[up], self._world
        if way.blocked:
            if way.ordered:
                stream.held.append((up, frame))  # as TCP does: sent again until it gets through
            return
        if world.happens(way.loss):
            world.tell("net", f"{stream} lost {'up' if up else 'down'} {type(frame).__name__}")
            return
        self._carry(stream, frame, up)
        if world.happens(way.repeat):
            self._carry(stream, frame, up)

    def heal(self, host: str) -> None:
        for (existing, _), ways in self._ways.items():
            for way in ways if existing == host else ():
                way.blocked = False
        for stream in self.streams:
            if stream.host == host and stream.held:
                held, stream.held = stream.held, []
                for up, frame in held:
                    if stream.is_open[not up]:  # a socket without a process gives up
                        self._carry(stream, frame, up)

    def close(self, stream: SimulatedStream, *, up: bool, quietly: bool = False) -> None:
        """One side closes the stream (`up`: the agent). The other learns it soon, or not at all."""
        stream.is_open[not up] = False
        if not quietly and not stream.ways[up].blocked:
            at_ms = self._world.now + self._world.between(0, FIN_MS_MAX)
            self._world.at(max(at_ms, stream.last[up]), self._fin, stream, up)  # the last word is the last to arrive

    def _carry(self, stream: SimulatedStream, frame: Any, up: bool) -> None:
        world, way = self._world, stream.ways[up]
        delay = world.between(1, LATE_MS_MAX) if world.happens(way.late) else world.between(1, DELAY_MS_MAX)
        at_ms = world.now + delay
        if way.ordered:
            at_ms = max(at_ms, stream.last[up])
        stream.last[up] = max(at_ms, stream.last[up])
        world.at(at_ms, self._arrive, stream, frame, up)

    def _arrive(self, stream: SimulatedStream, frame: Any, up: bool) -> None:
        if stream.is_open[up]:
            stream.ends[up].received(stream, frame)

    def _fin(self, stream: SimulatedStream, up: bool) -> None:
        if stream.is_open[up]:
            stream.is_open[up] = False
            stream.ends[up].closed(stream)
