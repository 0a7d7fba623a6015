"""The gRPC API for controllers: `roost.controller.v1.Controller`, with health and reflection.

A caller shows an API token, as for REST, and may do what its roles allow there. Serialised messages go in and out as
bytes: what many readers get is encoded once (see encode.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError, Message

from roost.model.errors import Refused, RoostError, Unreadable
from roost.model.keys import host_and_port
from roost.server.auth.middleware import SAID_BYTES_MAX, bearer_of
from roost.server.auth.principal import Principal
from roost.server.auth.shares import Shares
from roost.server.controller.calls import CALLS, Caller, RpcCall
from roost.server.controller.errors import RpcError
from roost.server.controller.run import attach, run
from roost.server.controller.watch import Hub, watch
from roost.server.observability import logging
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.work.documents import BODY_BYTES_MAX
from roost.server.waiting import cancel
from roost.wire import controller_pb2 as pb

SERVICE = "roost.controller.v1.Controller"
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"  # the same messages under another name
RUNS, READERS = "runs", "readers"  # kinds of streams
READERS_MAX = 1_000  # that watch: each may hold a frame of 64 KiB
RUNS_MAX = 5_000  # actions that are followed at once: each may hold two pieces of a log, 256 KiB
CALLS_MAX = READERS_MAX + RUNS_MAX + 1_000
LOOK_S = 0.2  # how often it is looked at whether this server can be asked
# A little more than the API takes, so that it can say itself what is too large.
MESSAGE_BYTES_MAX = BODY_BYTES_MAX + (1 << 20)

OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 1_000),  # per connection: a controller may follow many actions
    ("grpc.max_metadata_size", SAID_BYTES_MAX + (8 << 10)),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake, not a plan
)


class RpcStream(NamedTuple):
    takes: type[Message]
    tells: Callable[[Caller, Any, Callable[[bytes], Awaitable[None]]], Awaitable[None]]
    kind: str


class Controllers:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._context = dispatcher.context
        self._hub = Hub(self._context.engine, self._context.watch)
        self._server: grpc.aio.Server | None = None
        self._telling: asyncio.Task[None] | None = None
        self._seldom = logging.RateLimitedLogger("controller")
        self.streams = {RUNS: Shares(RUNS_MAX, "runs"), READERS: Shares(READERS_MAX, "streams of changes")}

    async def start(self, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
        """Listen and return the port. Without credentials nothing is encrypted. Raises OSError."""
        from grpc_health.v1.health import aio as health
        from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

        server = self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        servicer = health.HealthServicer()
        server.add_generic_rpc_handlers((self._handler(), *self._reflection_handlers()))
        add_HealthServicer_to_server(servicer, server)  # open to all callers, as /readyz is
        address = host_and_port(host, port)
        try:
            bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        if not bound:
            raise OSError(f"cannot listen on {address}")
        await self._say_health(servicer)
        await server.start()
        self._telling = asyncio.ensure_future(
            self._context.engine.tasks.keep("controllers' health", lambda: self._keep_health(servicer))
        )
        return int(bound)

    async def stop(self, grace_s: float) -> None:
        if self._telling is not None:
            await cancel(self._telling)
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handler(self) -> grpc.GenericRpcHandler:
        methods = {name: grpc.unary_unary_rpc_method_handler(self._answering(call)) for name, call in CALLS.items()}
        streams = {
            "Run": RpcStream(pb.RunRequest, run, RUNS),
            "Attach": RpcStream(pb.AttachRequest, attach, RUNS),
            "Watch": RpcStream(pb.WatchRequest, partial(watch, self._hub), READERS),
        }
        for name, stream in streams.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(self._telling_all(stream))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _answering(self, call: RpcCall) -> Any:
        async def serve(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                caller = Caller(self._dispatcher, await self._admit(context))
                return (await call.answers(caller, _read(data, call.takes))).SerializeToString()
            except RoostError as error:
                await RpcError(error).send(context)
                return b""  # never sent: the call was aborted

        return serve

    def _telling_all(self, stream: RpcStream) -> Any:
        async def serve(data: bytes, context: grpc.aio.ServicerContext) -> None:
            try:
                caller = Caller(self._dispatcher, await self._admit(context))
                request = _read(data, stream.takes)
                with self.streams[stream.kind].one(caller.principal):
                    await stream.tells(caller, request, context.write)
            except RpcError as report:
                await report.send(context)
            except RoostError as error:
                await RpcError(error).send(context)
            except grpc.aio.BaseError:
                pass  # the caller has gone

        return serve

    async def _admit(self, context: grpc.aio.ServicerContext) -> Principal:
        text = [(name.lower().encode(), _bytes(value)) for name, value in context.invocation_metadata() or ()]
        # ipv4:127.0.0.1:4711 or ipv6:[::1]:4711; gRPC writes brackets as %5B.
        where = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")
        try:
            return await self._context.auth.admit(bearer_of(text), where)
        except Refused as error:
            # The token is never logged: it may be a valid one with one character too many.
            self._seldom.warning("call refused", where=where, why=error.message)
            raise

    async def _keep_health(self, servicer: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._say_health(servicer)

    async def _say_health(self, servicer: Any) -> None:
        """Serving: as for /readyz."""
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        is_ready = not self._context.watch.closed and not self._context.engine.unready()
        status = HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            await servicer.set(service, status)

    def _reflection_handlers(self) -> list[grpc.GenericRpcHandler]:
        """Reflection is for authenticated callers."""
        from grpc_reflection.v1alpha import reflection_pb2 as described
        from grpc_reflection.v1alpha.reflection import aio as reflection

        servicer = reflection.ReflectionServicer((SERVICE, HEALTH, REFLECTION))

        async def serve(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                await self._admit(context)
            except RoostError as error:
                await RpcError(error).send(context)
            async for response in servicer.ServerReflectionInfo(requests, context):
                yield response

        method = grpc.stream_stream_rpc_method_handler(
            serve, described.ServerReflectionRequest.FromString, described.ServerReflectionResponse.SerializeToString
        )
        methods = {"ServerReflectionInfo": method}
        return [grpc.method_handlers_generic_handler(name, methods) for name in (REFLECTION, REFLECTION_V1)]


def _read(data: bytes, kind: type[Message]) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Unreadable(f"this is no {kind.DESCRIPTOR.name}") from None


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
