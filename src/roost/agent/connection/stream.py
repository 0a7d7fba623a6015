"""The agent's stream to the server over gRPC. What is sent and when is the machine's to decide (machine.py)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, assert_never

import grpc

from roost.agent.connection import machine as link
from roost.agent.connection.identity import NodeIdentity, credentials_of
from roost.agent.connection.identity import now_ms as wall_ms
from roost.agent.machine import AgentMachine
from roost.agent.machine import Effect as AgentEffect
from roost.keeper.clock import now_ms
from roost.model.protocol import Usage
from roost.model.records.enrolment import Bundle, server_name
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_agent, unpack_server

SERVICE = "/roost.agent.v1.Agents"
WHO_S_MAX = 1.0
CALL_S_MAX = 60.0  # 8 MiB at 140 KB/s
LOOK_UP_S_MAX = 1.0  # for a name without an answer; then the address stays as it was

OPTIONS = (
    ("grpc.http2.bdp_probe", 0),  # a ping with every message costs both sides a third more
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 30),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # in truth: how long one attempt may take
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a renewed certificate is shown on a connection of its own
)

ENDS = {
    grpc.StatusCode.OK: link.StreamEnd.CLOSED,
    grpc.StatusCode.UNAUTHENTICATED: link.StreamEnd.BAD_CERTIFICATE,
    grpc.StatusCode.PERMISSION_DENIED: link.StreamEnd.REFUSED,
    grpc.StatusCode.INVALID_ARGUMENT: link.StreamEnd.REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: link.StreamEnd.NOT_ROOST,
    grpc.StatusCode.ALREADY_EXISTS: link.StreamEnd.NAME_TAKEN,
}  # any other code: the stream broke

BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)

Perform = Callable[[Sequence[AgentEffect]], None]
Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class AgentStream:
    """Carries out what the machine says: opens streams, moves frames over them, and wakes it when it is due."""

    def __init__(
        self, machine: AgentMachine, identity: NodeIdentity, perform: Perform, usage: Callable[[], Usage | None],
        look_for_copies: Callable[[], None] = lambda: None, look_for_tunnels: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.address = ""  # of the channel
        self._machine = machine
        self._identity = identity
        self._is_located = bool(machine.actor.facts.address)  # an operator has configured where this machine is reached
        self._perform = perform
        self._usage = usage
        self._look_for_copies = look_for_copies
        self._look_for_tunnels = look_for_tunnels
        self._channel: grpc.aio.Channel | None = None
        self._shown: Bundle | None = None  # on that channel
        self._stale: list[grpc.aio.Channel] = []  # with streams that began before a renewal
        self._streams: asyncio.TaskGroup | None = None
        self._stream: asyncio.Task[None] | None = None  # the current one
        self._finder: asyncio.Task[None] | None = None  # asks the other servers which one leads
        self._frames: asyncio.Queue[link.SendFrame] = (
            asyncio.Queue()
        )  # to be written to it; the machine sends one at a time
        self._planned_ms: int | None = None
        self._woken = asyncio.Event()  # clear: `run` waits until the machine is due
        self._woken.set()
        self._timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()

    # for the service

    async def run(self) -> None:
        machine = self._machine
        try:
            async with asyncio.TaskGroup() as self._streams:
                while not machine.is_over:
                    now = now_ms()
                    usage = self._usage() if machine.link.is_usage_due(now) else None
                    self._perform(machine.tick(now, usage))
                    await self._until_due()
        finally:
            self._leave_channel()
            await self._close_stale()

    def nudge(self) -> None:
        if self._machine.is_over:
            self.over.set()
            self._woken.set()
            return
        next_ms = self._machine.next_ms()
        if next_ms is not None and (self._planned_ms is None or next_ms < self._planned_ms):
            self._arm(next_ms)

    def perform(self, effect: link.StreamEffect) -> None:
        assert self._streams is not None
        match effect:
            case link.ReadCertificate():
                self._read_certificate()
            case link.OpenStream(address):
                self._frames = asyncio.Queue()
                self._stream = self._streams.create_task(self._serve(address, self._frames))
            case link.SendFrame():
                self._frames.put_nowait(effect)
            case link.CloseStream():
                assert self._stream is not None
                self._stream.cancel()
            case link.FindLeader(addresses):
                self._finder = self._streams.create_task(self._find_leader(addresses))
            case link.LearnServers(servers, series):
                self._identity.learn(servers, series)
            case _:
                assert_never(effect)

    def ship(self) -> Call:
        """A stream for logs. Raises ConnectionError while there is no server to send them to."""
        return self._channel_now().stream_stream(f"{SERVICE}/Ship")(wait_for_ready=True)

    async def call(self, method: str, request: bytes) -> bytes:
        """One call about files. Raises ConnectionError while there is no server."""
        answer = await self._channel_now().unary_unary(f"{SERVICE}/{method}")(request, timeout=CALL_S_MAX)
        return bytes(answer)

    def own_channel(self) -> grpc.aio.Channel:
        """A connection to the server for one purpose; its owner closes it. Raises ConnectionError, as `call` does."""
        self._channel_now()
        assert self._shown is not None
        return self.open_channel(self._shown)

    def _channel_now(self) -> grpc.aio.Channel:
        try:
            bundle = self._certificate()
        except ValueError as error:
            raise ConnectionError(str(error)) from None
        if not self.address:
            raise ConnectionError("there is no server yet")
        return self._newest_channel(bundle)

    # one stream

    def _resolve(self, effects: list[link.Effect]) -> None:
        self._perform(self._machine.resolve(effects, now_ms()))

    def _read_certificate(self) -> None:
        try:
            bundle = self._certificate()
        except ValueError as error:
            self._resolve(self._machine.link.uncertified(str(error), now_ms(), exists=self._identity.exists()))
        else:
            self._resolve(self._machine.link.certified(bundle.servers))

    async def _serve(self, address: str, frames: asyncio.Queue[link.SendFrame]) -> None:
        bundle = self._identity.read()
        assert bundle is not None, "the certificate was read a moment ago"
        if address != self.address or self._channel is None:
            self.address = address
            self._leave_channel()
        await self._close_stale()
        call = self._newest_channel(bundle).stream_stream(f"{SERVICE}/Connect")()
        code, reason, leader = grpc.StatusCode.OK, "the server ended the stream", ""
        try:
            await self._converse(call, frames)
        except* (*BROKEN, asyncio.CancelledError) as errors:  # gRPC itself cancels a call whose channel is closed
            code, reason = await _reason(call, errors)
            leader = await _leader(call)
        finally:
            call.cancel()
            if self._finder is not None:
                self._finder.cancel()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # A task group that has errors of its own forgets, before Python 3.13, that it was cancelled.
            raise asyncio.CancelledError
        self._stream = None
        self._resolve(self._machine.link.closed(ENDS.get(code, link.StreamEnd.BROKEN), reason, now_ms(), leader))

    async def _converse(self, call: Call, frames: asyncio.Queue[link.SendFrame]) -> None:
        own = "" if self._is_located else await own_address(self.address)
        self._resolve(self._machine.link.opened(own, now_ms()))
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(call, frames))
            while (data := await call.read()) is not grpc.aio.EOF:
                packed = pb.ServerFrame.FromString(data)
                welcome, unsure = packed.welcome, packed.answer.unsure
                servers, series = tuple(welcome.servers), welcome.series
                self._resolve(
                    self._machine.link.received(unpack_server(packed), now_ms(), servers, series, unsure=unsure)
                )
                if packed.answer.copies:
                    self._look_for_copies()
                if packed.answer.tunnels:
                    self._look_for_tunnels()
            writing.cancel()

    async def _write(self, call: Call, frames: asyncio.Queue[link.SendFrame]) -> None:
        last = False
        while not last:
            effect = await frames.get()
            await call.write(pack_agent(effect.frame).SerializeToString())
            last = effect.last
            self._machine.link.sent()
            self.nudge()
        await call.done_writing()

    async def _find_leader(self, addresses: tuple[str, ...]) -> None:
        bundle = self._identity.read()
        found = ""
        if bundle is not None:
            for address in addresses:
                if await _leads(address, bundle):
                    found = address
                    break
        self._finder = None
        self._resolve(self._machine.link.leader_found(found, now_ms()))

    # certificates and channels

    def _certificate(self) -> Bundle:
        """Ours. Raises ValueError if there is none that a server would take."""
        bundle = self._identity.read()
        if bundle is None:
            raise ValueError(
                f"{self._identity.path} is not there: this machine has not joined; `roost agent --join TOKEN`"
            )
        if bundle.expires_ms <= wall_ms():
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(bundle.expires_ms / 1_000))
            raise ValueError(
                f"our certificate has ended ({when} UTC); a new join token is needed: `roost agent --join`"
            )
        if not self._machine.link.servers.all(bundle.servers):
            raise ValueError(f"{self._identity.path} names no server; say --server HOST:PORT")
        return bundle

    def _newest_channel(self, bundle: Bundle) -> grpc.aio.Channel:
        """To where we are connected, showing this certificate. Streams of the one before go on."""
        if self._channel is None or bundle is not self._shown:
            self._leave_channel()
            self._channel, self._shown = self.open_channel(bundle), bundle
        return self._channel

    def open_channel(self, bundle: Bundle) -> grpc.aio.Channel:
        address = self.address or self._machine.link.servers.all(bundle.servers)[0]
        return secure_channel(address, bundle)

    def _leave_channel(self) -> None:
        if self._channel is not None:
            self._stale.append(self._channel)
            self._channel = None

    async def _close_stale(self) -> None:
        stale, self._stale = self._stale, []
        for channel in stale:
            await channel.close()

    # waking

    async def _until_due(self) -> None:
        next_ms = self._machine.next_ms()
        if self._machine.is_over or (next_ms is not None and next_ms <= now_ms()):
            return
        self._woken.clear()
        self._planned_ms = None
        try:
            if next_ms is not None:
                self._arm(next_ms)
            await self._woken.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _arm(self, at_ms: int) -> None:
        if self._woken.is_set():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._planned_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(max(0, at_ms - now_ms()) / 1_000, self._woken.set)


def secure_channel(address: str, bundle: Bundle) -> grpc.aio.Channel:
    """To a server whose certificate was not revoked, as far as this node knows."""
    options = (*OPTIONS, ("grpc.ssl_target_name_override", server_name(bundle.series)))
    return grpc.aio.secure_channel(address, credentials_of(bundle), options=options)


async def own_address(server: str) -> str:
    """The IP address of this machine on its route to HOST:PORT, at which others reach it; nothing: there is no route.

    Nothing is sent to find out.
    """
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or len(port) > len("65535"):
        return ""
    connecting = asyncio.get_running_loop().create_datagram_endpoint
    try:
        async with asyncio.timeout(LOOK_UP_S_MAX):
            transport, _ = await connecting(asyncio.DatagramProtocol, remote_addr=(host, int(port)))
    except (OSError, ValueError, OverflowError):  # no such name, none that can be, no such port
        return ""
    address = str(transport.get_extra_info("sockname")[0])
    transport.close()
    return address


async def _leads(address: str, bundle: Bundle) -> bool:
    async with secure_channel(address, bundle) as channel:
        try:
            answer = await channel.unary_unary(f"{SERVICE}/Who")(b"", timeout=WHO_S_MAX)
            return pb.Leads.FromString(answer).leads
        except grpc.aio.AioRpcError:
            return False


async def _leader(call: Call) -> str:
    if not call.done():
        return ""
    answer = await call.trailing_metadata()
    return next((str(value) for name, value in answer or () if name == "roost-leader"), "")


async def _reason(call: Call, errors: BaseExceptionGroup) -> tuple[grpc.StatusCode, str]:
    """Why a stream ended: the message of the server, if there is one."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), error.details() or error.code().name
    if call.done():
        return await call.code(), await call.details() or str(error)
    return grpc.StatusCode.UNAVAILABLE, str(error) or type(error).__name__
