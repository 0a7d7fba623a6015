"""A server with real ports for agents and other servers, and the peers that connect to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from roost.core.invariants import check
from roost.core.state.records import Settings
from roost.model.records.enrolment import SERVER_NAME, Bundle
from roost.ports.logs import Logs
from roost.server.agents.file_transfer import FileTransfer
from roost.server.agents.gateway import SERVICE, Gateway
from roost.server.cluster.forwarding import answer
from roost.server.cluster.peers import ClusterMember
from roost.server.config import ServerConfig
from roost.server.feed.change_log import Watch
from roost.server.pki.certificates import Certificates
from roost.server.tunnels.tunnels import TunnelBroker
from roost.stores.memory import MemoryStore
from tests.certified import CHANNEL, another_authority, authority, channel_to, new_bundle, server_credentials
from tests.security.callers import LEASE_MS
from tests.server.gateway_server import Played, ended, played, runs_of
from tests.server.inprocess_server import DEADLINE_S, TOKEN, InprocessServer

SERVERS = "roost.server.v1.Servers"
AGENTS = SERVICE
#: How a call may end, whatever was sent. UNKNOWN and INTERNAL are how gRPC tells that a handler broke.
GOOD_ENDS = frozenset({
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ABORTED,
    grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED,
})  # fmt: skip


class SecuredServer(InprocessServer):
    """A server that may be one of several, with its gates open."""

    def __init__(self, blobs: Logs | None = None, **settings: Any) -> None:
        store = MemoryStore()
        super().__init__(store, Settings(**{"lease_ms": LEASE_MS, **settings}), Watch())
        if blobs is not None:
            self.logs.machine.tails = blobs
        transfer = FileTransfer(self.engine, self.files, self.context.reading, self.copying)
        self.gateway = Gateway(self.engine, self.logs, self.secrets, transfer, TunnelBroker(self.engine, None))
        self.perform.streams = self.gateway
        self.team = ClusterMember(
            store, ServerConfig(store="etcd://server", data=Path("."), admin_token=TOKEN), 1, self.engine.clock.now_ms
        )
        self.engine.leadership = self.team.leadership
        self.engine.machine.leadership = self.team.leadership.machine
        self.peers = self.team.begin(self.engine, self.logs)
        self.peers.answer = partial(answer, self.context)
        self.certificates = Certificates(self.engine, authority(), forgetful=True)
        self.port = 0

    def whole(self) -> None:
        """Nothing broke: it decides, and what it knows does not contradict itself."""
        assert self.engine.ready, self.engine.failed
        # A node may say that it runs more than it has room for; that is between it and its machine.
        complaints = [message for message in check(self.engine.state) if not message.startswith("room_is_enough")]
        assert not complaints, complaints

    async def works(self, node: str = "sound") -> None:
        """A caller decent comes, gets work, and it is done."""
        async with played(self.port, node, new_bundle(node)) as agent:
            await agent.hello(pool=node)
            await self.submit(f"for-{node}", placement={"pool": node})
            (run,) = runs_of(await agent.orders())
            await agent.beat(ended(run))
            key = f"default/for-{node}.0"
            await self.until(lambda: self.engine.state.instances[key].state == "succeeded")
        self.whole()


@asynccontextmanager
async def secured_server(blobs: Logs | None = None, **settings: Any) -> AsyncIterator[SecuredServer]:
    """A secured server that runs as long as the block."""
    made = SecuredServer(blobs, **settings)
    await made.engine.open("server")
    async with asyncio.TaskGroup() as group:
        group.create_task(made.engine.run())
        await made.until(lambda: made.engine.ready)
        made.port = await made.gateway.start("127.0.0.1", 0, made.certificates, server_credentials(), made.team)
        try:
            yield made
        finally:
            made.watch.close()
            await made.gateway.stop(0.1)
            made.engine.stop()
            await made.client.aclose()
    made.release_api()


def server_bundle(name: str = "other") -> Bundle:
    """Of a server beside this one."""
    return authority().for_server(name, ("127.0.0.1",))


def stranger(port: int, kind: str) -> grpc.aio.Channel:
    """A connection of a caller whose certificate is worth nothing here, or who has none."""
    address = f"127.0.0.1:{port}"
    if kind == "plain":
        return grpc.aio.insecure_channel(address, options=CHANNEL)
    if kind == "none":
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(authority().certificate.encode()), options=options
        )
    foreign = new_bundle("n1", another_authority())
    return channel_to(port, Bundle(foreign.key, foreign.certificate, authority().certificate, "n1", 0, 1 << 60))


async def spoken(channel: grpc.aio.Channel, method: str, text: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """Say all of it on one stream, listen to the end, and tell how it ended."""
    call: Any = channel.stream_stream(method)()
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for data in text:
            await call.write(data)
        await call.done_writing()
    async with asyncio.timeout(DEADLINE_S):
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return _ending(await call.code(), await call.details())


async def asked(channel: grpc.aio.Channel, method: str, text: bytes) -> tuple[grpc.StatusCode, list[bytes]]:
    """Ask once; how it ended, and what came. A stream without end is left after its first piece."""
    call: Any = channel.unary_stream(method)(text)
    received: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        with suppress(grpc.aio.AioRpcError):
            while (piece := await call.read()) is not grpc.aio.EOF:
                received.append(piece)
                if method.endswith("Attend"):
                    call.cancel()
                    return grpc.StatusCode.OK, received
        return await call.code(), received


def _ending(code: grpc.StatusCode, message: str) -> tuple[grpc.StatusCode, str]:
    """A client that writes to a stream which was ended just then says this by itself: it never heard why."""
    lost = code is grpc.StatusCode.INTERNAL and message == "Internal error from Core"
    return (grpc.StatusCode.CANCELLED if lost else code), message


__all__ = [
    "AGENTS",
    "GOOD_ENDS",
    "SERVERS",
    "SecuredServer",
    "Played",
    "asked",
    "secured_server",
    "server_bundle",
    "spoken",
    "stranger",
]
