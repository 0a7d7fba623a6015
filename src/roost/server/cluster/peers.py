"""Peers: what servers say to each other, on the agents' port: who is there, requests handed on, logs fetched."""

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from roost import __version__
from roost.model.errors import NoService, RoostError
from roost.model.records.enrolment import server_name
from roost.model.tunnels import TunnelEnd, ended
from roost.ports.logs import LogsUnavailable
from roost.ports.store import SharedStore
from roost.server.agents.validation import LOG_NAME
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.leadership import Leadership
from roost.server.config import ServerConfig
from roost.server.engine.engine import Engine
from roost.server.logs.hub import LogHub
from roost.server.logs.machine import sources
from roost.server.observability import logging
from roost.server.pki.bootstrap import agents_addresses, api_urls, controller_address
from roost.server.pki.tls import ServerTls
from roost.server.waiting import cancel
from roost.wire import servers_pb2 as pb

SERVICE = "roost.server.v1.Servers"
PEERS_MAX = 16  # servers that stand by; three are enough
STATUS_S_MAX = 2.0
KNOCK_S_MAX = 1.0
CHECK_S = 1.0  # how often the other server's certificate is checked while a call goes on
LOG_S_MAX = 60.0  # to fetch a log from another server
PIECE_BYTES = 256 << 10
MESSAGE_BYTES_MAX = 9 << 20  # a request's body of 8 MiB, and what goes with it
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),  # without it a silent cut is not noticed, whatever keepalive says
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)

log = logging.logger("peers")

MakeChannel = Callable[[str], Awaitable[grpc.aio.Channel]]
Answering = Callable[[pb.ForwardedCall], AsyncGenerator[pb.ForwardedReply, None]]
Frames = Callable[[], Awaitable[bytes | None]]
TunnelClient = Callable[[str, str, Frames, Callable[[bytes], Awaitable[None]]], Awaitable[None]]
Check = Callable[[grpc.aio.ServicerContext], Awaitable[str]]


class Peers:
    def __init__(self, engine: Engine, logs: LogHub, make_channel: MakeChannel) -> None:
        self._engine = engine
        self._logs = logs
        self._make_channel = make_channel
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stale: list[grpc.aio.Channel] = []  # show a former certificate; calls on them go on
        self.answer: Answering | None = None  # performs what other servers forward
        self.tunnel_client: TunnelClient | None = None  # serves the client's side of a tunnel
        self.attending: dict[str, ServerIdentity] = {}  # who stands by here, by the life of its process

    # what others ask of us

    def handler(self, check: Check) -> grpc.GenericRpcHandler:
        """The service. `check` tells the name of the server at the other end, or ends the call."""

        async def checked(pieces: AsyncGenerator[Any, None], context: Any) -> AsyncIterator[Any]:
            """The pieces; a server whose certificate is revoked meanwhile gets no more of them."""
            coming: asyncio.Future[Any] = asyncio.ensure_future(anext(pieces, None))
            check_s = time.monotonic() + CHECK_S
            try:
                while not coming.done() or coming.result() is not None:
                    if coming.done():
                        yield coming.result()
                        coming = asyncio.ensure_future(anext(pieces, None))
                    await asyncio.wait((coming,), timeout=check_s - time.monotonic())
                    if time.monotonic() >= check_s:
                        await check(context)
                        check_s = time.monotonic() + CHECK_S
            finally:
                await cancel(coming)

        def guarded(work: Callable[[Any], AsyncGenerator[Any, None]], kind: Any) -> Any:
            async def serve(data: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
                await check(context)
                try:
                    request = kind.FromString(data)
                except DecodeError:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"this is no {kind.__name__}")
                async with aclosing(work(request)) as pieces:
                    async for piece in checked(pieces, context):
                        yield piece.SerializeToString()

            return serve

        async def status(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            await check(context)
            return self._presence().SerializeToString()

        async def tunnel(_: object, context: grpc.aio.ServicerContext) -> None:
            await check(context)
            await self._tunnelled(context)

        methods = {
            "Tunnel": grpc.stream_stream_rpc_method_handler(tunnel),
            "Attend": grpc.unary_stream_rpc_method_handler(guarded(self._attended, pb.Presence)),
            "Status": grpc.unary_unary_rpc_method_handler(status),
            "Forward": grpc.unary_stream_rpc_method_handler(guarded(self._forwarded, pb.ForwardedCall)),
            "FetchLog": grpc.unary_stream_rpc_method_handler(guarded(self._fetched, pb.LogRequest)),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _attended(self, presence: pb.Presence) -> AsyncGenerator[pb.Presence, None]:
        """A server stands by here until its stream or this server ends."""
        if len(self.attending) >= PEERS_MAX:
            return
        peer = ServerIdentity(presence.name, presence.life, presence.api, presence.agents, presence.controller)
        self.attending[presence.life] = peer
        try:
            yield self._presence()
            await asyncio.get_running_loop().create_future()
        finally:
            self.attending.pop(presence.life, None)

    def _forwarded(self, call: pb.ForwardedCall) -> AsyncGenerator[pb.ForwardedReply, None]:
        assert self.answer is not None
        return self.answer(call)

    async def _fetched(self, request: pb.LogRequest) -> AsyncGenerator[pb.LogPiece, None]:
        offset = max(0, request.offset)
        if LOG_NAME.fullmatch(request.log):
            await self._logs.list_segments(request.log)
            while data := await self._logs.read(request.log, offset, PIECE_BYTES):
                offset += len(data)
                yield pb.LogPiece(data=data)

    async def _tunnelled(self, context: grpc.aio.ServicerContext) -> None:
        assert self.tunnel_client is not None
        first = pb.TunnelPiece.FromString(await context.read())

        async def read() -> bytes | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else pb.TunnelPiece.FromString(data).data

        async def write(data: bytes) -> None:
            await context.write(pb.TunnelPiece(data=data).SerializeToString())

        try:
            await self.tunnel_client(first.id, first.caller, read, write)
        except RoostError as error:
            await write(ended(TunnelEnd(error=error.message, reason="refused")))

    def _presence(self) -> pb.Presence:
        engine = self._engine
        assert engine.leadership is not None
        me = engine.leadership.identity
        return pb.Presence(
            name=me.name, life=me.life, api=me.api, agents=me.agents, role="leader" if engine.ready else "standby",
            revision=engine.state.revision, now_ms=engine.clock.now_ms(), version=__version__,
            failed="" if engine.ready else engine.failed, controller=me.controller,
        )  # fmt: skip

    # what we ask of others

    async def attend(self, leader: ServerIdentity) -> bool:
        """Be with the leader until its stream breaks. True: its process is gone, nothing listens there."""
        channel = await self._channel(leader.agents)
        call = channel.unary_stream(f"/{SERVICE}/Attend")(self._presence().SerializeToString())
        task = asyncio.current_task()
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:  # gRPC itself cancels a call whose channel is closed
            if task is None or task.cancelling():
                raise
        finally:
            call.cancel()
        return await is_gone(leader.agents)

    async def statuses(self) -> list[pb.Presence]:
        """How all servers stand: this one, and those that stand by here. Who does not answer says so."""
        others = await asyncio.gather(*(self._status(identity) for identity in self.attending.values()))
        return [self._presence(), *others]

    async def _status(self, peer: ServerIdentity) -> pb.Presence:
        try:
            call = (await self._channel(peer.agents)).unary_unary(f"/{SERVICE}/Status")
            return pb.Presence.FromString(await call(b"", timeout=STATUS_S_MAX))
        except grpc.aio.AioRpcError as error:
            message = f"does not answer: {error.details() or error.code().name}"
            return pb.Presence(name=peer.name, life=peer.life, api=peer.api, agents=peer.agents, failed=message)

    async def reaches(self, peer: ServerIdentity) -> bool:
        return await _is_connected(await self._channel(peer.agents))

    async def forward(self, leader: ServerIdentity, forwarded: pb.ForwardedCall) -> AsyncIterator[pb.ForwardedReply]:
        if not await self.reaches(leader):  # nothing was sent, so the client may try again
            raise NoService(f"the leader at {leader.agents} cannot be reached; try again")
        channel = await self._channel(leader.agents)
        call = channel.unary_stream(f"/{SERVICE}/Forward")(forwarded.SerializeToString())
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                yield pb.ForwardedReply.FromString(data)
        finally:
            call.cancel()

    @asynccontextmanager
    async def tunnel(
        self, leader: ServerIdentity, first: pb.TunnelPiece
    ) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
        """The client's side of a tunnel that the leader has. On a connection of its own: it may be full for long."""
        channel = await self._make_channel(leader.agents)
        try:
            call = channel.stream_stream(f"/{SERVICE}/Tunnel")()
            await call.write(first.SerializeToString())
            yield call
        finally:
            await channel.close()

    async def fetch_log(self, name: str, size: int) -> None:
        """Get what other servers were sent of a log while they led, up to a size, and keep it here."""
        for peer, offset in sources(self._logs, name, size, list(self.attending.values())):
            with contextlib.suppress(grpc.aio.AioRpcError, NoService, TimeoutError):
                async with asyncio.timeout(LOG_S_MAX):
                    await self._copy_log(peer, name, offset)

    async def _copy_log(self, peer: ServerIdentity, name: str, offset: int) -> None:
        request = pb.LogRequest(log=name, offset=offset).SerializeToString()
        call = (await self._channel(peer.agents)).unary_stream(f"/{SERVICE}/FetchLog")(request)
        try:
            while (data := await call.read()) is not grpc.aio.EOF and offset < self._logs.machine.stored_max:
                piece = pb.LogPiece.FromString(data).data
                if isinstance(self._logs.append(name, offset, piece), LogsUnavailable):
                    return
                offset += len(piece)
        finally:
            call.cancel()

    async def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            if len(self._channels) > PEERS_MAX:
                await self.close()
            self._channels[address] = await self._make_channel(address)
        return self._channels[address]

    async def renew_channels(self) -> None:
        """This server has a new certificate: show it on new connections."""
        stale, self._stale, self._channels = self._stale, list(self._channels.values()), {}
        for channel in stale:
            await channel.close()

    async def close(self) -> None:
        channels, self._channels, self._stale = [*self._channels.values(), *self._stale], {}, []
        for channel in channels:
            await channel.close()


async def _is_connected(channel: grpc.aio.Channel) -> bool:
    """Whether the other server can be reached now. Connects first where that was not done yet."""
    waiting = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
    try:
        async with asyncio.timeout(KNOCK_S_MAX):
            while (state := channel.get_state(try_to_connect=True)) in waiting:
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return state is grpc.ChannelConnectivity.READY


async def is_gone(address: str) -> bool:
    """Whether nothing listens there: the machine says so itself. No answer at all proves nothing."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(KNOCK_S_MAX):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (TimeoutError, socket.gaierror, ValueError):
        return False
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    writer.close()
    return False


class ClusterMember:
    def __init__(self, store: SharedStore, config: ServerConfig, api_port: int, now_ms: Callable[[], int]) -> None:
        self.peers: Peers | None = None
        self.transport: ServerTls | None = None  # None: no certificates yet, so no server can be called
        identity = ServerIdentity(
            config.server_name,
            os.urandom(8).hex(),
            api_urls(config, api_port)[0],
            agents_addresses(config, config.agents_port)[0],
            controller_address(config),
        )
        self.leadership = Leadership(store, identity, config.timing(), now_ms, self._attend)

    def begin(self, engine: Engine, logs: LogHub) -> Peers:
        self.peers = Peers(engine, logs, self._channel)
        return self.peers

    async def close(self) -> None:
        if self.peers is not None:
            await self.peers.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        others = [identity.agents for identity in self.peers.attending.values()] if self.peers is not None else []
        return tuple(dict.fromkeys((self.leadership.identity.agents, *others)))

    @property
    def apis(self) -> tuple[str, ...]:
        return tuple(identity.api for identity in self.peers.attending.values()) if self.peers is not None else ()

    async def _attend(self, leader: ServerIdentity) -> bool:
        if self.peers is None or self.transport is None:
            return False
        return await self.peers.attend(leader)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        assert self.transport is not None, "the others are spoken to before there are certificates"
        bundle = self.transport.server.bundle
        credentials = grpc.ssl_channel_credentials(
            bundle.authority.encode(), bundle.key.encode(), bundle.certificate.encode()
        )
        options = (*OPTIONS, ("grpc.ssl_target_name_override", server_name(bundle.series)))
        return grpc.aio.secure_channel(address, credentials, options=options)
