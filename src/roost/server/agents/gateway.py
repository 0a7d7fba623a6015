"""The agents' port: one gRPC stream per agent. Its messages are checked and passed to the engine, answers written back.

A frame costs 100-200 us of CPU whatever it holds, so one turn of the loop is one frame per agent (see outbox). BDP
probes are off on both sides: they send a ping with every message and cost a third of the whole.
"""

import asyncio
import resource
from dataclasses import dataclass, field
from typing import assert_never

import grpc
import msgspec

from roost.core.state.outcome import Orders
from roost.model.events import NodeConnected
from roost.model.keys import host_and_port
from roost.model.protocol import Beat, Hello
from roost.server.agents.authentication import AgentAuthenticator, GrpcRefusal, parsed, refusing
from roost.server.agents.file_transfer import FileTransfer
from roost.server.agents.log_ingest import Shipping
from roost.server.agents.machine import BeatReply, Session, SessionMachine
from roost.server.agents.outbox import Outbox
from roost.server.agents.tunnels import tunnel_handlers
from roost.server.agents.validation import RUNS_MAX, check_beat, check_hello
from roost.server.cluster.peers import ClusterMember
from roost.server.engine.engine import Engine
from roost.server.logs.hub import LogHub
from roost.server.pki.certificates import Certificates, NodeCredential
from roost.server.pki.revocation import series_of
from roost.server.pki.secrets import Secrets
from roost.server.tunnels.tunnels import TunnelBroker
from roost.server.waiting import Gathering, TurnBudget
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_server, unpack_agent

SERVICE = "roost.agent.v1.Agents"
HELLO_S_MAX = 5  # a peer that opens a stream and sends nothing is no agent
JOINS_AT_ONCE = 64  # hellos being decided; after a restart thousands wait, and registered agents go first
STREAMS_MAX = 20_000  # two per agent, and 10,000 agents are as many as one server is made for
FILES_WANTED = 16_384  # one descriptor per agent's connection; many systems begin with 1,024
ORDERS_MAX = 4 * RUNS_MAX  # that an agent has not read: each of its attempts run, stopped and dropped, and some
MESSAGE_BYTES_MAX = 64 << 20  # a hello with 8,192 attempts of 8 KiB; agents keep below it
SIGN_BYTES_MAX = 64  # four numbers; a beat that is longer says more than that its agent lives
FRAMES_PER_TURN = 25  # of the loop: 5 ms
ORDERS_PER_FRAME = 25  # that cost as much as a frame: 2-6 us each
LAST_WRITE_S = 1.0  # before a refusal; an agent that does not read is not waited for
NO_FRAME = "this is not a frame of an agent"
PAUSE_S_PER_AGENT, PAUSE_S_MAX = 20e-6, 20e-3  # 1,000 agents at rest: twenty answers go out together and share wake-ups
JOIN_PAUSE_S_MAX = 50e-3  # 3,000 agents return, 400 a second: twenty hellos share a step and a commit, not three

OPTIONS = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 16),  # per connection; an agent needs two
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),  # garbage is dropped after this
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake, not a plan
)


@dataclass(slots=True, eq=False)
class GatewayStream:
    """The stream of one session: wakes its writer when there is something to write."""

    session: Session
    series: int = 0  # of the servers' certificates, as sent to its agent
    refusal: GrpcRefusal | None = None
    due: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closed: bool = False

    def end(self, code: grpc.StatusCode, message: str) -> None:
        """End the session: its agent registers again."""
        self.refusal = self.refusal or GrpcRefusal(code, message)
        self.close()

    def close(self) -> None:
        """Write what is pending, and nothing after it."""
        self._is_closed = True
        self.wake()

    def wake(self) -> None:
        self.due.set()

    async def ready(self) -> bool:
        """Wait until something is to be written; False: nothing ever will be."""
        if not self._is_closed:
            await self.due.wait()
        self.due.clear()
        return self.session.outbox.is_unsaid or not self._is_closed


class Gateway:
    """Streams of agents in, events to the engine; orders of the engine out."""

    def __init__(
        self, engine: Engine, logs: LogHub, secrets: Secrets, transfer: FileTransfer, tunnels: TunnelBroker
    ) -> None:
        self._engine = engine
        self._secrets = secrets
        self._transfer = transfer
        self._copying = transfer.copying
        self._tunnels = tunnels
        self._copying.wake = self._tunnels.wake = self.wake
        self.machine = SessionMachine(engine)
        self._shipping = Shipping(engine, logs, self.machine.sessions)
        self._streams: dict[str, GatewayStream] = {}  # of the sessions, by node
        self._joins = asyncio.Semaphore(JOINS_AT_ONCE)
        self._arriving = Gathering()  # hellos that are decided together
        self._resting: list[GatewayStream] = []  # answers that can wait for the next pause
        self._writing = TurnBudget(FRAMES_PER_TURN)  # one step may have orders for every node
        self._server: grpc.aio.Server | None = None
        self._team: ClusterMember | None = None

    # for the server

    async def start(
        self, host: str, port: int, certificates: Certificates, credentials: grpc.ServerCredentials,
        team: ClusterMember | None = None,
    ) -> int:  # fmt: skip
        """Listen, and return the port (of use when 0 was asked for). Raises OSError when it is taken."""
        _allow_files()
        self._door = AgentAuthenticator(certificates)
        self._team = team
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            "Ship": grpc.stream_stream_rpc_method_handler(self._ship),
            "Renew": grpc.unary_unary_rpc_method_handler(self._door.renew),
            "Who": grpc.unary_unary_rpc_method_handler(self._who),
            **self._transfer.handlers(self._door),
            **tunnel_handlers(self._tunnels, self._door),
        }
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if team is not None and team.peers is not None:
            self._server.add_generic_rpc_handlers((team.peers.handler(self._door.server_in),))
        address = host_and_port(host, port)
        try:
            bound: int = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for agents on {address}: {error}") from None
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        self._end_all("the server is stopping")
        if self._server is not None:
            await self._server.stop(grace_s)

    # for the performer: on the loop's thread, after the commit, never blocking

    def send(self, orders: Orders) -> None:
        session = self.machine.ordered(orders)
        if session is not None:
            self._streams[session.node].wake()

    def acknowledge(self, sequences: dict[str, int]) -> None:
        """The reports of these nodes, up to these beats, are durable."""
        for node, sequence in sequences.items():
            session = self.machine.acknowledged(node, sequence)
            if session is not None:
                self._streams[session.node].wake()

    def wake(self, node: str) -> None:
        """Answer a node now: there are copies or tunnels for it."""
        if (stream := self._streams.get(node)) is not None:
            stream.wake()

    def close(self, node: str) -> None:
        """A node was lost or removed: its agent registers again."""
        session = self.machine.lost(node)
        if session is not None:
            self._streams[session.node].end(
                grpc.StatusCode.ABORTED, f"the lease of node {node} has ended; say hello again"
            )

    def reset(self) -> None:
        """The state is loaded again: its sessions are void."""
        self._end_all("the server loads its state again")

    # one agent

    async def _connect(self, _: object, context: grpc.aio.ServicerContext) -> None:
        try:
            # Before any refusal: gRPC hides one that arrives while the agent writes behind an error of its own.
            first = await _first_frame(context)
            status = await self._door.admit(context)
            if self._team is not None and not self._engine.ready:
                raise GrpcRefusal(grpc.StatusCode.UNAVAILABLE, self._engine.failed or "this server does not lead")
            hello = await self._hello(first, status)
            await self._arriving.wait(min(PAUSE_S_PER_AGENT * len(self._engine.state.nodes), JOIN_PAUSE_S_MAX))
            async with self._joins:
                outbox = await self._join(hello)
            await self._serve(status, hello, outbox, context)
        except GrpcRefusal as refusal:
            leader = self._team.leadership.election.leader if self._team is not None else None
            answer = (("roost-leader", leader.agents),) if leader is not None and not self._engine.ready else ()
            await self._door.refuse(refusal, context, answer)

    async def _who(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Whether this server leads, for an agent whose server does not know."""
        try:
            await self._door.admit(context)
        except GrpcRefusal as refusal:
            await self._door.refuse(refusal, context)
        sure = self._team is None or self._team.leadership.is_sure()
        return pb.Leads(leads=self._engine.ready and sure).SerializeToString()

    async def _hello(self, first: bytes | None, status: NodeCredential) -> Hello:
        frame = unpack_agent(parsed(pb.AgentFrame, first, NO_FRAME)) if first is not None else None
        if not isinstance(frame, Hello):
            raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, "the first frame of an agent is its hello")
        with refusing():
            check_hello(frame)
        if frame.node != status.node:
            message = f"the certificate is of node {status.node}, and the agent says that it is {frame.node}"
            raise GrpcRefusal(grpc.StatusCode.PERMISSION_DENIED, message)
        if status.pool and frame.facts.pool != status.pool:  # its token says where it belongs
            facts = msgspec.structs.replace(frame.facts, pool=status.pool)
            frame = msgspec.structs.replace(frame, facts=facts)
        return await self._transfer.verified_hello(frame)

    async def _join(self, hello: Hello) -> Outbox:
        """Ask the core. Its orders come before our turn does, and wait in the machine."""
        session: int | None = None
        received_ms = self._engine.clock.now_ms()
        self.machine.greeted(hello.node)
        try:
            with refusing():
                self._shipping.hello(hello)
                session = await self._engine.ask(lambda request: NodeConnected(request, hello, received_ms))
        finally:
            outbox = self.machine.decided(hello.node, session)
        if outbox is None:
            raise GrpcRefusal(grpc.StatusCode.ABORTED, "a newer stream of this agent has taken its place")
        return outbox

    async def _serve(
        self, standing: NodeCredential, hello: Hello, outbox: Outbox, context: grpc.aio.ServicerContext
    ) -> None:
        older = self._streams.get(hello.node)
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer stream of this agent has taken its place")
        with refusing():
            series = series_of(await self._engine.settled())  # an agent never forgets it: it has to be durable
        stream = self._streams[hello.node] = GatewayStream(self.machine.began(hello.node, outbox), series)
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(stream, hello, context))
                try:
                    await self._read(stream, standing, context)
                except GrpcRefusal as refused:
                    # A write that is cancelled half-way makes the refusal fail, and the agent would not learn of it.
                    stream.end(refused.code, refused.message)
                    await asyncio.wait([writing], timeout=LAST_WRITE_S)
                    raise
                stream.close()
        except* GrpcRefusal as group_of_one:
            refusal = group_of_one.exceptions[0]
            assert isinstance(refusal, GrpcRefusal)
            stream.refusal = stream.refusal or refusal
        finally:
            if self._streams.get(hello.node) is stream:
                del self._streams[hello.node]
            self.machine.ended(stream.session)
            self._copying.offer_again(hello.node)
        if stream.refusal is not None:
            raise stream.refusal

    async def _write(self, stream: GatewayStream, hello: Hello, context: grpc.aio.ServicerContext) -> None:
        outbox, secrets = stream.session.outbox, self._secrets
        welcome = outbox.welcome(hello.sent_ms, self._engine.lease_ms)
        self._copying.offer_again(hello.node)
        stream.due.clear()
        allocated = {run.token for run, _ in hello.runs}
        try:
            await self._writing.turn(frames_of(outbox))
            first = pack_server(secrets.hand_over(welcome, allocated))
            if self._team is not None:
                first.welcome.servers.extend(self._team.addresses)
            first.welcome.series = stream.series
            await context.write(first.SerializeToString())
            while await stream.ready():
                await self._writing.turn(frames_of(outbox))
                frame = pack_server(secrets.hand_over(outbox.answer()))
                if self._team is not None and not self._team.leadership.is_sure():
                    frame.answer.unsure = True
                if self._copying.is_due(hello.node):
                    frame.answer.copies = True
                if self._tunnels.is_due(hello.node):
                    frame.answer.tunnels = True
                await context.write(frame.SerializeToString())
        except grpc.aio.BaseError:
            return  # the stream broke; its reader notices it
        if stream.refusal is not None:
            raise stream.refusal

    async def _read(self, stream: GatewayStream, standing: NodeCredential, context: grpc.aio.ServicerContext) -> None:
        session = stream.session
        while (data := await context.read()) is not grpc.aio.EOF:
            frame = parsed(pb.AgentFrame, data, NO_FRAME)
            self._door.check(standing)
            if stream.series != series_of(self._engine.state):
                raise GrpcRefusal(grpc.StatusCode.ABORTED, "certificates of servers were revoked; say hello again")
            if session.outbox.waiting > ORDERS_MAX:
                raise GrpcRefusal(grpc.StatusCode.RESOURCE_EXHAUSTED, f"node {session.node} does not read its orders")
            if frame.HasField("beat"):
                if len(data) > SIGN_BYTES_MAX or not self._sign(stream, frame.beat):
                    await self._beat(stream, unpack_agent(frame))
            elif frame.HasField("hello"):
                raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, "an agent says hello once per stream")
            else:
                raise GrpcRefusal(grpc.StatusCode.INVALID_ARGUMENT, NO_FRAME)

    def _sign(self, stream: GatewayStream, beat: pb.Beat) -> bool:
        """The short way for a beat that only renews the lease, as most do. False: it has more."""
        if (
            beat.reports
            or beat.lacking
            or beat.leaving
            or beat.HasField("usage")
            or not self.machine.signed(stream.session, beat.session, beat.sequence, beat.generation, beat.sent_ms)
        ):
            return False
        self._answer_soon(stream)
        return True

    async def _beat(self, stream: GatewayStream, beat: Hello | Beat | None) -> None:
        assert isinstance(beat, Beat)
        with refusing():
            check_beat(beat)
        beat = await self._transfer.verified_beat(stream.session.node, beat)
        reply = self.machine.beat(stream.session, beat, self._engine.clock.now_ms())
        match reply:
            case BeatReply.MISSING_BEATS:
                raise GrpcRefusal(grpc.StatusCode.ABORTED, f"beats before {beat.sequence} are missing; say hello again")
            case BeatReply.SESSION_OVER:
                raise GrpcRefusal(grpc.StatusCode.ABORTED, "this session is over; say hello again")
            case BeatReply.SOON:
                self._answer_soon(stream)
            case BeatReply.NOW:
                stream.wake()
            case BeatReply.AFTER_COMMIT:
                pass
            case _:
                assert_never(reply)

    def _answer_soon(self, stream: GatewayStream) -> None:
        """A lease is long; with many agents an answer waits a little for others to go out with."""
        if not self._resting:
            pause_s = min(PAUSE_S_PER_AGENT * len(self._streams), PAUSE_S_MAX)
            asyncio.get_running_loop().call_later(pause_s, self._wake_resting)
        self._resting.append(stream)

    def _wake_resting(self) -> None:
        resting, self._resting = self._resting, []
        for stream in resting:
            stream.wake()

    def _end_all(self, message: str) -> None:
        for stream in self._streams.values():
            stream.end(grpc.StatusCode.UNAVAILABLE, message)

    async def _ship(self, _: object, context: grpc.aio.ServicerContext) -> None:
        try:
            await self._shipping.serve(await self._door.admit(context), self._door, context)
        except GrpcRefusal as refusal:
            await self._door.refuse(refusal, context)


async def _first_frame(context: grpc.aio.ServicerContext) -> bytes | None:
    """None: the peer sends nothing at all."""
    try:
        async with asyncio.timeout(HELLO_S_MAX):
            data = await context.read()
    except TimeoutError:
        raise GrpcRefusal(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_S_MAX} s") from None
    return None if data is grpc.aio.EOF else bytes(data)


def frames_of(outbox: Outbox) -> int:
    """As how many frames the next one counts."""
    return 1 + outbox.waiting // ORDERS_PER_FRAME


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
