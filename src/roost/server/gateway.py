"""The agents' door: one gRPC stream per agent, its words checked and told to the engine, what is due written back.

A frame costs 100-200 us of CPU whatever it holds, so one turn of the loop is one frame per agent (see outbox). BDP
probes are off on both sides: they send a ping with every message and cost a third of the whole.
"""

import asyncio
import resource
from collections import Counter

import grpc
import msgspec
from google.protobuf.message import DecodeError

from roost.core.effects import Orders
from roost.model.errors import Invalid, RoostError
from roost.model.events import Joined, Parted, Reported
from roost.model.frames import Beat, Hello
from roost.server.admission import RUNS_MAX, check_beat, check_hello
from roost.server.certificates import Certificates, Standing
from roost.server.doorkeeper import Doorkeeper
from roost.server.engine import Engine
from roost.server.logs import LogHub
from roost.server.outbox import Outbox
from roost.server.refusal import Refusal, refusal_of
from roost.server.secrets import Secrets
from roost.server.shipping import Shipping
from roost.server.team import Team
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_server, unpack_agent

SERVICE = "roost.agent.v1.Agents"
HELLO_S_MAX = 5  # whoever has opened a stream and says nothing is not an agent
STREAMS_MAX = 20_000  # two per agent, and 10,000 agents are as many as one server is made for
FILES_WANTED = 16_384  # one descriptor per agent's connection; many systems begin with 1,024
ORDERS_MAX = 4 * RUNS_MAX  # that an agent has not read: each of its attempts run, stopped and dropped, and some
LACKING_MS = 1_000  # an agent that is behind for longer has lost a delta
COMMIT_MS_MAX = 500  # a beat with reports is answered after their commit, but a slow disk must not end leases
MESSAGE_BYTES_MAX = 64 << 20  # a hello with 8,192 attempts of 8 KiB; agents keep below it
SIGN_BYTES_MAX = 64  # four numbers; a beat that is longer says more than that its agent lives
PAUSE_S_PER_AGENT, PAUSE_S_MAX = 20e-6, 20e-3  # 1,000 agents at rest: twenty answers go out together and share wake-ups

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


class Stream:
    """One agent that is connected."""

    __slots__ = ("behind_since_ms", "node", "outbox", "refusal", "sequence", "standing", "waiting_since_ms")

    def __init__(self, standing: Standing, outbox: Outbox) -> None:
        self.node = standing.node
        self.standing = standing
        self.outbox = outbox
        self.refusal: Refusal | None = None
        self.sequence = 0  # of the newest beat
        self.waiting_since_ms = 0  # a beat with reports that is not answered yet
        self.behind_since_ms = 0

    def end(self, code: grpc.StatusCode, words: str) -> None:
        """Let the agent go; it says hello again."""
        self.refusal = self.refusal or Refusal(code, words)
        self.outbox.close()


class Gateway:
    """Streams of agents in, events to the engine; orders of the engine out."""

    def __init__(self, engine: Engine, logs: LogHub, secrets: Secrets) -> None:
        self._engine = engine
        self._logs = logs
        self._secrets = secrets
        self._shipping = Shipping(engine, logs)
        self._streams: dict[str, Stream] = {}
        self._joining: Counter[str] = Counter()  # nodes whose hello is being decided
        self._early: dict[tuple[str, int], Outbox] = {}  # orders that came before their stream was taken in
        self._resting: list[Outbox] = []  # answers that can wait for the next pause
        self._server: grpc.aio.Server | None = None
        self._team: Team | None = None

    @property
    def connected(self) -> int:
        """How many agents are connected."""
        return len(self._streams)

    # for the server

    async def start(
        self, host: str, port: int, certificates: Certificates, credentials: grpc.ServerCredentials,
        team: Team | None = None,
    ) -> int:  # fmt: skip
        """Listen, and return the port (of use when 0 was asked for). Raises OSError when it is taken."""
        _allow_files()
        self._door = Doorkeeper(certificates)
        self._team = team
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            "Ship": grpc.stream_stream_rpc_method_handler(self._ship),
            "Renew": grpc.unary_unary_rpc_method_handler(self._door.renew),
            "Who": grpc.unary_unary_rpc_method_handler(self._who),
        }
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if team is not None and team.peers is not None:
            self._server.add_generic_rpc_handlers((team.peers.handler(self._door.server_in),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound: int = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen for agents on {address}: {error}") from None
        await self._server.start()
        return bound

    async def stop(self, grace_s: float) -> None:
        """Let all agents go and stop listening."""
        self._end_all("the server is stopping")
        if self._server is not None:
            await self._server.stop(grace_s)

    # for the performer: on the loop's thread, after the commit, never blocking

    def send(self, orders: Orders) -> None:
        """Orders for one node. If its stream is gone, so is the node."""
        stream = self._streams.get(orders.node)
        if stream is not None and stream.outbox.session == orders.session:
            stream.outbox.order(orders)
            stream.outbox.wake()
        elif orders.node in self._joining:
            self._early.setdefault((orders.node, orders.session), Outbox(orders.session)).order(orders)
        else:
            self._engine.tell(Parted(orders.node, orders.session))

    def acknowledge(self, sequences: dict[str, int]) -> None:
        """What these nodes reported, up to these beats, is durable."""
        for node, sequence in sequences.items():
            stream = self._streams.get(node)
            if stream is not None:
                stream.waiting_since_ms = 0
                stream.outbox.acknowledge(sequence)
                stream.outbox.wake()

    def close(self, node: str) -> None:
        """A node was lost or removed: whoever speaks for it has to say hello again."""
        stream = self._streams.get(node)
        if stream is not None:
            stream.end(grpc.StatusCode.ABORTED, f"the lease of node {node} has ended; say hello again")

    def reset(self) -> None:
        """The state is being loaded anew; sessions of the old one mean nothing."""
        self._end_all("the server loads its state again")

    # one agent

    async def _connect(self, _: object, context: grpc.aio.ServicerContext) -> None:
        try:
            standing = await self._door.admit(context)
            self._check_leads()
            hello = await self._hello(standing, context)
            outbox = await self._join(hello)
            await self._serve(standing, hello, outbox, context)
        except Refusal as refusal:
            leader = self._team.leadership.election.leader if self._team is not None else None
            told = (("roost-leader", leader.agents),) if leader is not None and not self._engine.ready else ()
            await self._door.send_away(refusal, context, told)

    def _check_leads(self) -> None:
        """Nodes are for the leader; another server says who that is."""
        if self._team is not None and not self._engine.ready:
            raise Refusal(grpc.StatusCode.UNAVAILABLE, self._engine.failed or "this server does not lead")

    async def _who(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Whether this server leads: for an agent whose own one does not know any more."""
        try:
            await self._door.admit(context)
        except Refusal as refusal:
            await self._door.send_away(refusal, context)
        sure = self._team is None or self._team.leadership.is_sure()
        return pb.Leads(leads=self._engine.ready and sure).SerializeToString()

    async def _hello(self, standing: Standing, context: grpc.aio.ServicerContext) -> Hello:
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                data = await context.read()
        except TimeoutError:
            raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_S_MAX} s") from None
        frame = unpack_agent(_parsed(data)) if data is not grpc.aio.EOF else None
        if not isinstance(frame, Hello):
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the first frame of an agent is its hello")
        try:
            check_hello(frame)
        except Invalid as error:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if frame.node != standing.node:
            words = f"the certificate is of node {standing.node}, and the agent says that it is {frame.node}"
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, words)
        if standing.pool and frame.facts.pool != standing.pool:  # its token says where it belongs
            facts = msgspec.structs.replace(frame.facts, pool=standing.pool)
            frame = msgspec.structs.replace(frame, facts=facts)
        return frame

    async def _join(self, hello: Hello) -> Outbox:
        """Ask the core. Its orders come before our turn does, and wait in `_early`."""
        node = hello.node
        self._joining[node] += 1
        try:
            self._shipping.hello(hello)
            session: int = await self._engine.ask(lambda request: Joined(request, hello))
            outbox = self._early.pop((node, session), None)
        except RoostError as error:
            raise refusal_of(error) from None
        finally:
            self._joining[node] -= 1
            if not self._joining[node]:
                del self._joining[node]
                self._drop_early(node)
        if outbox is None:
            raise Refusal(grpc.StatusCode.ABORTED, "a newer stream of this agent has taken its place")
        return outbox

    def _drop_early(self, node: str) -> None:
        """Orders for a hello whose stream broke while it was decided."""
        for name, session in [key for key in self._early if key[0] == node]:
            del self._early[name, session]
            self._engine.tell(Parted(name, session))

    async def _serve(self, standing: Standing, hello: Hello, outbox: Outbox, context: grpc.aio.ServicerContext) -> None:
        older = self._streams.get(hello.node)
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "a newer stream of this agent has taken its place")
        stream = self._streams[hello.node] = Stream(standing, outbox)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write(stream, hello, context))
                await self._read(stream, context)
                outbox.close()
        except* Refusal as group_of_one:
            refusal = group_of_one.exceptions[0]
            assert isinstance(refusal, Refusal)
            stream.refusal = stream.refusal or refusal
        finally:
            if self._streams.get(stream.node) is stream:
                del self._streams[stream.node]
            self._engine.tell(Parted(stream.node, outbox.session))
        if stream.refusal is not None:
            raise stream.refusal

    async def _write(self, stream: Stream, hello: Hello, context: grpc.aio.ServicerContext) -> None:
        outbox, secrets = stream.outbox, self._secrets
        welcome = outbox.welcome(hello.sent_ms, self._engine.state.settings.lease_ms)
        held = {run.token for run, _ in hello.runs}
        try:
            first = pack_server(secrets.hand_over(welcome, held))
            if self._team is not None:
                first.welcome.servers.extend(self._team.addresses)
            await context.write(first.SerializeToString())
            while await outbox.ready():
                frame = pack_server(secrets.hand_over(outbox.answer()))
                if self._team is not None and not self._team.leadership.is_sure():
                    frame.answer.unsure = True
                await context.write(frame.SerializeToString())
        except grpc.aio.BaseError:
            return  # the stream broke; whoever reads it notices too
        if stream.refusal is not None:
            raise stream.refusal

    async def _read(self, stream: Stream, context: grpc.aio.ServicerContext) -> None:
        while (data := await context.read()) is not grpc.aio.EOF:
            frame = _parsed(data)
            self._door.check(stream.standing)
            if stream.outbox.waiting > ORDERS_MAX:
                raise Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, f"node {stream.node} does not read its orders")
            if frame.HasField("beat"):
                if len(data) > SIGN_BYTES_MAX or not self._sign(stream, frame.beat):
                    self._beat(stream, unpack_agent(frame))
            elif frame.HasField("hello"):
                raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "an agent says hello once per stream")

    def _sign(self, stream: Stream, beat: pb.Beat) -> bool:
        """A beat that says only that its agent lives: most do, so they take the short way. False: it says more."""
        outbox = stream.outbox
        if (
            beat.session != outbox.session
            or beat.sequence != stream.sequence + 1
            or beat.generation != outbox.generation
            or stream.waiting_since_ms
            or beat.reports
            or beat.lacking
            or beat.leaving
            or beat.HasField("usage")
            or not self._engine.heard(stream.node, outbox.session, None)
        ):
            return False
        stream.sequence = beat.sequence
        outbox.echo(beat.sent_ms)
        self._answer_soon(outbox)
        return True

    def _beat(self, stream: Stream, beat: Hello | Beat | None) -> None:
        """A sign of life, renewed at once; reports are answered after their commit."""
        assert isinstance(beat, Beat)
        node, outbox, engine = stream.node, stream.outbox, self._engine
        try:
            check_beat(beat)
        except Invalid as error:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if beat.sequence > stream.sequence + 1:  # an acknowledgement covers all before it, so none may be missing
            raise Refusal(grpc.StatusCode.ABORTED, f"beats before {beat.sequence} are missing; say hello again")
        stream.sequence = max(stream.sequence, beat.sequence)
        if beat.session != outbox.session or not engine.heard(node, outbox.session, beat.usage):
            raise Refusal(grpc.StatusCode.ABORTED, "this session is over; say hello again")
        outbox.echo(beat.sent_ms)
        now = engine.clock.now_ms()
        lacking = beat.lacking or self._is_behind(stream, beat.generation, now)
        if beat.reports or lacking:
            self._expect_logs(node, beat)
            engine.tell(Reported(node, outbox.session, beat.sequence, beat.reports, lacking))
            stream.waiting_since_ms = stream.waiting_since_ms or now
        if beat.leaving:
            engine.tell(Parted(node, outbox.session, leaving=True))
        if not stream.waiting_since_ms:
            self._answer_soon(outbox)
        elif now - stream.waiting_since_ms > COMMIT_MS_MAX:
            outbox.wake()

    def _is_behind(self, stream: Stream, generation: int, now: int) -> bool:
        if generation >= stream.outbox.generation:
            stream.behind_since_ms = 0
            return False
        stream.behind_since_ms = stream.behind_since_ms or now
        if now - stream.behind_since_ms <= LACKING_MS:
            return False
        stream.behind_since_ms = now
        return True

    def _expect_logs(self, node: str, beat: Beat) -> None:
        """Tell how long logs will be before anybody can see that their attempts have ended."""
        state = self._engine.state
        for report in beat.reports:
            instance = state.held.get(node, {}).get(report.token) if report.state == "ended" else None
            if instance is not None:
                serial = state.spec_of(instance).serial
                name = f"{instance.workload}/{serial}/{instance.index}.{instance.attempt}"
                self._logs.expect(name, report.log_size)

    def _answer_soon(self, outbox: Outbox) -> None:
        """A lease is long; with many agents an answer waits a little for others to go out with."""
        if not self._resting:
            pause_s = min(PAUSE_S_PER_AGENT * len(self._streams), PAUSE_S_MAX)
            asyncio.get_running_loop().call_later(pause_s, self._wake_resting)
        self._resting.append(outbox)

    def _wake_resting(self) -> None:
        resting, self._resting = self._resting, []
        for outbox in resting:
            outbox.wake()

    def _end_all(self, words: str) -> None:
        for stream in self._streams.values():
            stream.end(grpc.StatusCode.UNAVAILABLE, words)

    async def _ship(self, _: object, context: grpc.aio.ServicerContext) -> None:
        try:
            await self._shipping.serve(await self._door.admit(context), self._door, context)
        except Refusal as refusal:
            await self._door.send_away(refusal, context)


def _parsed(data: bytes) -> pb.AgentFrame:
    try:
        return pb.AgentFrame.FromString(data)
    except DecodeError:
        raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "this is not a frame of an agent") from None


def _allow_files() -> None:
    """Raise the soft limit on open files as far as we need and may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
