"""Logs in the simulated world: files of machines, the product's spool on the heap, streams to servers, readers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from roost.agent.connection.machine import Connected
from roost.agent.logs import machine as spool
from roost.agent.machine import CompleteLog, ReleaseLog, TakenOver
from roost.model.errors import NoService
from roost.model.protocol import LogChunk
from roost.server.agents.ingest_machine import Admission, StreamListings
from roost.server.logs import machine as log_machine
from roost.server.logs.ends import end_of
from roost.server.logs.machine import ENOUGH
from roost.sim.checks.logs import LOG_BYTES_MAX, LogCheckers
from roost.sim.world.world import World, Wrong

if TYPE_CHECKING:
    from roost.sim.world.agent import SimulatedAgent
    from roost.sim.world.cluster import SimulatedCluster
    from roost.sim.world.server import SimulatedServer

WRITES = (0, 0, 1, 2, 3, 5)  # of one step, at any time of its first seconds
WRITE_MS_MAX = 3_000
WRITE_BYTES_MAX = 120
LAST_BYTES_MAX = 200  # just before a run ends
WATCH_MS_MAX = 30  # until the agent hears that a file has grown
STREAM_MS_MAX = 8  # for a message on a log stream; TCP sends again what is lost, so it only comes later
AGAIN_MS = 300  # while a way is blocked
LATE_MS_MAX = 2_500
BREAKS = 0.03  # of exchanges; half of them after the server has kept the bytes
SILENT = 0.2  # of broken streams: the agent never hears of it
CUT = 0.3  # of crashes: power loss, which takes the ends of files
READ_MS = (200, 1_500)  # between two reads of a client

Exchange = Callable[..., None]


class LogFiles:
    """The log files of one machine. They survive agents and reboots; power loss may take the end of each."""

    def __init__(self, world: World, truth: LogCheckers) -> None:
        self._world = world
        self._truth = truth
        self.sizes: dict[str, int] = {}
        self._open: dict[str, int] = {}  # logs of live runs, and their tokens
        self.grown: Callable[[str], None] | None = None  # the watch of the agent

    def began(self, name: str, token: int) -> None:
        chance = self._world.side_chance
        if self._open.get(name) != token:  # otherwise it is a further step
            self._truth.began(name, token)
        self._open[name] = token
        for _ in range(chance.choice(WRITES)):
            self._world.after(chance.between(0, WRITE_MS_MAX), self._write, name, chance.between(1, WRITE_BYTES_MAX))

    def ended(self, name: str) -> int:
        """The run writes its last bytes and is over; returns the size of its log."""
        if name in self._open:
            self._write(name, self._world.side_chance.between(0, LAST_BYTES_MAX))
        self._open.pop(name, None)
        return self.sizes.get(name, 0)

    def stopped(self, *, cut: bool) -> None:
        """The machine goes down."""
        self._open.clear()
        self.grown = None
        chance = self._world.side_chance
        if cut and chance.happens(CUT):
            names = [name for name in self.sizes if chance.happens(0.5)]
            for name in names:
                self.sizes[name] = chance.between(0, self.sizes[name])
            self._truth.file_cut(names)

    def lost(self) -> None:
        """The machine never comes back."""
        names = list(self.sizes)
        self.sizes.clear()
        self._truth.file_cut(names)

    def _write(self, name: str, count: int) -> None:
        size = min(self.sizes.get(name, 0) + count, LOG_BYTES_MAX)
        if name in self._open and size > self.sizes.get(name, 0):
            self.sizes[name] = size
            self._truth.wrote(name, size)
            if self.grown is not None:
                self._world.after(self._world.side_chance.between(0, WATCH_MS_MAX), self.grown, name)


class SimulatedSpool:
    """The spool of one agent process."""

    def __init__(self, agent: "SimulatedAgent", files: LogFiles, truth: LogCheckers) -> None:
        self._agent = agent
        self._world = agent.host.world
        self._files = files
        self._truth = truth
        self.machine = spool.SpoolMachine(self._world.side_chance.random)
        self._server: SimulatedServer | None = None
        self._stream = 0  # its number
        self._listings = StreamListings()  # at the server
        self._unwanted: set[str] = set()  # logs that a server has refused
        self._is_due = False
        self._timer_ms: int | None = None

    def heard(self, effect: CompleteLog | ReleaseLog | TakenOver | Connected) -> None:
        """What concerns logs among the effects of the agent's machine."""
        match effect:
            case CompleteLog(name, size):
                self.machine.ended(name, size, self._now())
                self._plan()
            case ReleaseLog(name):
                self._perform(self.machine.release(name))
            case TakenOver():
                self._begin()
            case Connected():
                self._perform(self.machine.reconnected())

    def _begin(self) -> None:
        """Take up the files of an earlier agent."""
        agent = self._agent.machine
        tokens = set(agent.live_attempts())
        live = {name for token, names in agent.logs.items() if token in tokens for name in names}
        ended = {name for token, names in agent.logs.items() if token not in tokens for name in names}
        self._files.grown = lambda name: self._agent.awake(self._grown, name)
        self.machine.start()
        self._perform(self.machine.begin(sorted(self._files.sizes.items()), live, ended, self._now()))

    def _grown(self, name: str) -> None:
        self.machine.grown(name, self._now())
        self._plan()

    def _perform(self, effects: Sequence[spool.Effect]) -> None:
        left = list(effects)
        while left:
            effect = left.pop(0)
            match effect:
                case spool.OpenLogStream():
                    self._stream += 1
                    self._listings = StreamListings()
                    door, address = self._agent.host.door, self._agent.machine.link.address
                    self._server = next((server for server in door.servers if server.name == address), None)
                case spool.CloseLogStream():
                    self._stream += 1
                case spool.SendBatch(chunks):
                    self._carry(self._stream, self._arrive, chunks)
                case spool.ReadFile(name, offset, limit):
                    size = self._files.sizes.get(name, 0)
                    data = self._truth.bytes_of(name)[offset : min(size, offset + limit)] if size else b""
                    left += self.machine.was_read(data, size, self._now())
                case spool.UnlinkFile(name):
                    size = self._files.sizes.pop(name, 0)
                    if name not in self._unwanted:
                        self._truth.released(name, size)
                case spool.GiveBack():
                    pass
                case _:
                    assert_never(effect)
        self._plan()

    def _plan(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._world.after(1, self._agent.awake, self._tick)

    def _tick(self) -> None:
        self._is_due = False
        effects = self.machine.tick(self._now())
        if effects:
            self._perform(effects)
        at_ms = self.machine.next_ms()
        if at_ms is not None and at_ms != self._timer_ms:
            self._timer_ms = at_ms
            self._world.at(self._agent.host.clock.true_ms(at_ms), self._agent.awake, self._timer, at_ms)

    def _timer(self, at_ms: int) -> None:
        if at_ms == self._timer_ms:
            self._timer_ms = None
            self._tick()

    # the stream

    def _carry(self, stream: int, action: Exchange, *given: Any) -> None:
        """One message of a stream, either way. It arrives in order and once, or the stream breaks."""
        host, server, chance = self._agent.host, self._server, self._world.side_chance
        if server is None or not host.up or stream != self._stream:
            self._break(stream)
        elif host.net.is_blocked(host.name, server.name):
            self._world.after(AGAIN_MS, self._carry, stream, action, *given)
        else:
            is_late = any(chance.happens(max(way.loss, way.late)) for way in host.net.of(host.name, server.name))
            delay_ms = chance.between(1, LATE_MS_MAX if is_late else STREAM_MS_MAX)
            self._world.after(delay_ms, action, stream, server, *given)

    def _arrive(self, stream: int, server: "SimulatedServer", chunks: tuple[LogChunk, ...]) -> None:
        breaks = self._world.side_chance.happens(BREAKS)
        if not server.up or (breaks and self._world.side_chance.happens(0.5)):
            self._break(stream)
            return

        def kept() -> None:
            sizes = keep(server, self._agent.host.node, chunks, listings)
            if sizes is None or breaks:
                self._break(stream)
            else:
                self._carry(stream, self._answered, sizes)

        life, listings = server.life, self._listings
        server.awake(lambda: kept() if server.life == life else self._break(stream))

    def _answered(self, stream: int, _: "SimulatedServer", sizes: list[tuple[str, int, int]]) -> None:
        self._agent.awake(self._heard, stream, sizes)

    def _heard(self, stream: int, sizes: list[tuple[str, int, int]]) -> None:
        if stream == self._stream:
            self._unwanted.update(name for name, _, durable in sizes if durable == ENOUGH)
            self._perform(self.machine.answered(sizes, self._now()))

    def _break(self, stream: int) -> None:
        if not self._world.side_chance.happens(SILENT):
            self._world.after(self._world.side_chance.between(1, STREAM_MS_MAX), self._agent.awake, self._broke, stream)

    def _broke(self, stream: int) -> None:
        if stream == self._stream:
            self._perform(self.machine.broken(self._now()))

    def _now(self) -> int:
        return self._agent.host.clock.now_ms()


def keep(
    server: "SimulatedServer", node: str, chunks: tuple[LogChunk, ...], listings: StreamListings
) -> list[tuple[str, int, int]] | None:
    """A batch at a server; None: it is refused, and the stream ends."""
    admissions = [server.ingest.admit(node, chunk) for chunk in chunks]
    if Admission.TOO_EARLY in admissions or (server.logs_away and Admission.KEEP in admissions):
        return None
    assert Admission.NO_LOG not in admissions
    admitted = [chunk for chunk, admission in zip(chunks, admissions, strict=True) if admission is Admission.KEEP]
    for name in listings.due(admitted):
        server.logs.list_segments(name, again=True)
    sizes: list[tuple[str, int, int]] = []
    for chunk, admission in zip(chunks, admissions, strict=True):
        if admission is Admission.KEEP:
            size = server.logs.keep(chunk.log, chunk.offset, chunk.data)
            sizes.append((chunk.log, size, server.logs.durable(chunk.log)))
        else:
            sizes.append((chunk.log, ENOUGH, ENOUGH))
    return sizes


class LogReaders:
    """Clients that read any log at the leader, now and then; each read is checked."""

    def __init__(self, world: World, cluster: "SimulatedCluster", truth: LogCheckers) -> None:
        self._world = world
        self._cluster = cluster
        self._truth = truth

    def begin(self, until_ms: int) -> None:
        at_ms = 0
        while (at_ms := at_ms + self._world.side_chance.between(*READ_MS)) < until_ms:
            self._world.at(at_ms, self._read_any)

    def short(self) -> list[str]:
        """Logs that must be whole and are not, at the leader and with the help of all other servers."""
        server = self._cluster.leader
        found = []
        for name in self._truth.written:
            missing = self._try_read(server, name) if not self._truth.may_be_short(name) else 0
            if missing:
                found.append(f"{name} lacks {missing} bytes")
        return found

    def _read_any(self) -> None:
        names, server = list(self._truth.written), self._cluster.leader
        if names and server.up and not server.hung:
            self._try_read(server, self._world.side_chance.choice(names))

    def _try_read(self, server: "SimulatedServer", name: str) -> int:
        try:
            return self._read(server, name)
        except NoService as error:
            self._truth.unreadable(server.name, name, error.message)
            return 0

    def _read(self, server: "SimulatedServer", name: str) -> int:
        """As `read_log` does; returns how many bytes are missing."""
        end = end_of(server.state, name)
        if end is None:
            return 0
        server.logs.list_segments(name)
        if server.logs.wanted(name, end):
            server.logs.list_segments(name, again=True)
        now, wanted = server.clock.now_ms(), server.logs.wanted(name, end)
        peers = [peer for peer in self._cluster.servers if peer is not server and peer.up and not peer.hung]
        self._world.side_chance.shuffle(peers)
        for peer, offset in log_machine.sources(server.logs, name, wanted, peers) if wanted else ():
            peer.logs.list_segments(name)
            server.logs.keep(name, offset, peer.logs.read(name, offset, LOG_BYTES_MAX))
        status = server.logs.status(name, end, now)
        more = max((peer.logs.size(name) or 0 for peer in peers), default=0)
        if end.over and status.size < more:
            raise Wrong(f"{server.name} serves {status.size} bytes of {name}, another server has {more}")
        self._truth.read(server.name, name, end, status, server.logs.read(name, 0, LOG_BYTES_MAX))
        return status.missing
