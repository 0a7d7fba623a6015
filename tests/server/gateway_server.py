"""Engine, gateway and logs in one process with a store in memory; agents are played by hand over real gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from roost.blobs.factory import memory_blobs
from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.core.state.outcome import IgnoredReport, Orders, Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.events import Cancel, Submit
from roost.model.protocol import Answer, Beat, Hello, Report, Run, Welcome
from roost.model.records.enrolment import Bundle
from roost.model.records.node import Facts
from roost.model.records.transition import NodeTransition
from roost.model.spec.submission import spec_of_document
from roost.ports.logs import Logs
from roost.ports.store import Store
from roost.server.agents.file_transfer import FileTransfer
from roost.server.agents.gateway import SERVICE, Gateway
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.questions import Questions
from roost.server.files.copying import Copying
from roost.server.files.store import Files
from roost.server.logs.ends import end_to_seal
from roost.server.logs.hub import LogHub
from roost.server.pki.certificates import Certificates
from roost.server.pki.encryption import Seal
from roost.server.pki.secrets import Secrets
from roost.server.tunnels.tunnels import TunnelBroker
from roost.stores.memory import Memory, MemoryStore
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_agent, unpack_server
from tests.certified import authority, channel_to, node_bundle, server_credentials

DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


class GatewayServer:
    """What a server is made of, without its API. It is the performer as well, and remembers every step."""

    def __init__(self, store: Store, blobs: Logs, settings: Settings, strict: bool = False) -> None:
        self.engine = Engine(store, settings, self, Clock())
        self.logs = LogHub(blobs, MemoryObjects(), settle_ms=200, stall_ms=500)
        self.secrets = Secrets(self.engine)
        self.secrets.seal = Seal(bytes(32))
        self.files = Files(memory_blobs(), self.engine.clock.now_ms, lambda: self.engine.machine.epoch)
        self.copying = Copying(self.engine, self.files, Questions(self.engine))
        transfer = FileTransfer(self.engine, self.files, Questions(self.engine), self.copying)
        self.gateway = Gateway(self.engine, self.logs, self.secrets, transfer, TunnelBroker(self.engine, None))
        # Every certificate of the CA is known, as after a restart that forgot; strict: only nodes that joined.
        self.certificates = Certificates(self.engine, authority(), forgetful=not strict)
        self.port = 0
        self.ignored: list[IgnoredReport] = []
        self.nodes: list[tuple[str, NodeTransition]] = []
        self._changed = asyncio.Event()

    async def act(self, state: State, done: Step) -> None:
        self.ignored += done.ignored
        self.nodes += done.node_transitions
        for orders in done.assignments:
            self.gateway.send(orders)
        self.gateway.acknowledge(done.acknowledged)
        for node, line in done.node_transitions:
            if line.state in ("lost", "stopped", "gone"):
                self.gateway.close(node)
        for prefix in done.swept:
            self.logs.drop(prefix)
        self._changed.set()

    def reset(self) -> None:
        self.gateway.reset()

    async def until(self, holds: Callable[[], Any], what: str = "") -> Any:
        """Wait until something holds; looked at after every step, and soon again for what has no step."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := holds()):
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what or holds}"
            self._changed.clear()
            await asyncio.wait((asyncio.ensure_future(self._changed.wait()),), timeout=0.01)
        return found

    async def submit(self, **fields: Any) -> None:
        """Submit a workload."""
        work = {} if "steps" in fields else {"command": ["/bin/true"]}
        wanted = spec_of_document({"name": "job", **work, **fields})
        await self.engine.ask(lambda request: Submit(request, (wanted,)))

    async def cancel(self, workload: str) -> None:
        await self.engine.ask(lambda request: Cancel(request, workload))

    def instance(self, name: str = "default/job.0") -> Any:
        return self.engine.state.instances.get(name)

    def states(self) -> list[str]:
        return [instance.state for _, instance in sorted(self.engine.state.instances.items())]


@asynccontextmanager
async def gateway_server(
    store: Store | None = None, blobs: Logs | None = None, port: int = 0, strict: bool = False, **settings: Any
) -> AsyncIterator[GatewayServer]:
    """A server that runs as long as the block."""
    made = GatewayServer(store or MemoryStore(Memory()), blobs or MemoryLogs(), Settings(**settings), strict)
    await made.engine.open("server")
    made.port = await made.gateway.start("127.0.0.1", port, made.certificates, server_credentials())
    async with asyncio.TaskGroup() as group:
        group.create_task(made.engine.run())
        sealing = group.create_task(made.logs.run(lambda name: end_to_seal(made.engine.state, name)))
        try:
            yield made
        finally:
            sealing.cancel()
            await made.gateway.stop(0.1)
            made.engine.stop()


class Played:
    """An agent played by hand: one stream, frames written and read one by one."""

    def __init__(self, port: int, node: str = "n1", bundle: Bundle | None = None) -> None:
        self.node = node
        self.channel = channel_to(port, bundle or node_bundle(node))
        self.call = self.channel.stream_stream(f"/{SERVICE}/Connect")()
        self.session = 0
        self.generation = 0
        self.sequence = 0

    async def hello(self, identity: str = "", runs: Any = (), **facts: Any) -> Welcome:
        """Say hello and expect to be welcome."""
        node = self.node
        facts = {"resources": {"cpu": 4_000, "memory": 1 << 30}, **facts}
        await self.transmit(Hello(node, identity or f"machine-{node}", Facts(**facts), 77, tuple(runs)))
        welcome = await self.hear()
        assert isinstance(welcome, Welcome), welcome
        self.session, self.generation = welcome.session, welcome.generation
        return welcome

    async def beat(self, *reports: Report, sent_ms: int = 1_000, **fields: Any) -> int:
        """Say a beat; returns its sequence."""
        self.sequence += 1
        fields = {"generation": self.generation, **fields}
        await self.transmit(Beat(self.session, self.sequence, sent_ms, reports=reports, **fields))
        return self.sequence

    async def transmit(self, frame: Hello | Beat) -> None:
        await self.call.write(pack_agent(frame).SerializeToString())

    async def hear(self) -> Welcome | Answer | None:
        """The next frame; None: the stream has ended."""
        async with asyncio.timeout(DEADLINE_S):
            data = await self.call.read()
        if data is grpc.aio.EOF:
            return None
        frame = unpack_server(pb.ServerFrame.FromString(data))
        if isinstance(frame, Answer) and frame.generation:
            self.generation = frame.generation
        return frame

    async def answer(self) -> Answer:
        frame = await self.hear()
        assert isinstance(frame, Answer), frame or await self.ending()
        return frame

    async def orders(self) -> Answer:
        """The next frame that holds orders."""
        while not (answer := await self.answer()).generation:
            pass
        return answer

    async def quiet(self, seconds: float = 0.15) -> None:
        """Nothing else was sent: a further frame comes only as the answer to a further beat."""
        sequence = await self.beat(sent_ms=9_999_999)
        answer = await self.answer()
        assert answer.echo_ms == 9_999_999 and not answer.generation, (sequence, answer)

    async def ending(self) -> tuple[grpc.StatusCode, str]:
        """How the stream was ended by the server."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return await self.call.code(), await self.call.details()

    async def close(self) -> None:
        await self.channel.close()


@asynccontextmanager
async def played(port: int, node: str = "n1", bundle: Bundle | None = None) -> AsyncIterator[Played]:
    """An agent's stream that breaks at the end of the block."""
    agent = Played(port, node, bundle)
    try:
        yield agent
    finally:
        await agent.close()


def ended(run: Run, code: int = 0, **fields: Any) -> Report:
    """The report of an end."""
    return Report(run.token, "ended", cause="exited", code=code, **fields)


def runs_of(orders: Answer | Welcome | Orders) -> list[Run]:
    """The attempts that were ordered."""
    return [order for order in orders.orders if isinstance(order, Run)]
