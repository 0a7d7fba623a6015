"""The controllers' door: `roost.v1.Controller` over gRPC, with health and reflection.

Whoever calls shows an API token, as for REST, and may do what its roles allow there. Serialised messages go in and out
as bytes: what many read is encoded once (see controller_encode).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message

from roost.model.access import VIEWER
from roost.model.errors import Forbidden, NoService, Refused, RoostError, Unreadable
from roost.server import controller_calls as calls
from roost.server import say
from roost.server.api.bodies import BODY_BYTES_MAX
from roost.server.auth import SAID_BYTES_MAX, App, Auth, bearer_of
from roost.server.auth_principal import Principal
from roost.server.controller_calls import Api
from roost.server.controller_errors import Told, told_of
from roost.server.controller_run import attach, run
from roost.server.controller_watch import Hub, Reader
from roost.server.engine import Engine
from roost.server.watch import Watch
from roost.wire import controller_pb2 as pb

SERVICE = "roost.v1.Controller"
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
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

log = say.logger("controller")


class Call(NamedTuple):
    """A method that is answered once: what it takes, and who answers."""

    takes: type[Message]
    answers: Callable[[Api, Any], Awaitable[Message]]


CALLS = {
    "Schedule": Call(pb.ScheduleRequest, calls.schedule),
    "Update": Call(pb.UpdateRequest, calls.update),
    "Unschedule": Call(pb.UnscheduleRequest, calls.unschedule),
    "Get": Call(pb.GetRequest, calls.get),
    "List": Call(pb.ListRequest, calls.list_workloads),
}


class Controllers:
    """The door, open from `start` to `stop`."""

    def __init__(self, app: App, engine: Engine, watch: Watch, auth: Auth) -> None:
        self._app = app
        self._engine = engine
        self._watch = watch
        self._auth = auth
        self._hub = Hub(engine, watch)
        self._server: grpc.aio.Server | None = None
        self._telling: asyncio.Task[None] | None = None
        self._seldom = say.Seldom("controller")
        self.readers = 0
        self.runs = 0

    async def start(self, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
        """Listen; the port. Without credentials nothing is encrypted. Raises OSError."""
        from grpc_health.v1.health import aio as health  # noqa: PLC0415  (only where there is such a door)

        server = self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        servicer = health.HealthServicer()
        server.add_generic_rpc_handlers((self._handler(), _health_handler(servicer), self._reflection_handler()))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        if not bound:
            raise OSError(f"cannot listen on {address}")
        await self._say_health(servicer)
        await server.start()
        self._telling = asyncio.ensure_future(self._tell_health(servicer))
        return int(bound)

    async def stop(self, grace_s: float) -> None:
        """End all calls; streams have been told by the ring's closing."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handler(self) -> grpc.GenericRpcHandler:
        methods = {name: grpc.unary_unary_rpc_method_handler(self._answering(call)) for name, call in CALLS.items()}
        streams: dict[str, tuple[type[Message], Callable[..., Awaitable[None]]]] = {
            "Run": (pb.RunRequest, self._run),
            "Attach": (pb.AttachRequest, self._attach),
            "Watch": (pb.WatchRequest, self._watched),
        }
        for name, (takes, tells) in streams.items():
            methods[name] = grpc.unary_stream_rpc_method_handler(self._telling_all(takes, tells))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _answering(self, call: Call) -> Any:
        async def serve(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                principal = await self._admit(context)
                reply = await call.answers(Api(self._app, principal), _read(data, call.takes))
                return reply.SerializeToString()
            except Told as told:
                return await self._refuse(told, context)

        return serve

    def _telling_all(self, takes: type[Message], tells: Callable[..., Awaitable[None]]) -> Any:
        async def serve(data: bytes, context: grpc.aio.ServicerContext) -> None:
            try:
                principal = await self._admit(context)
                await tells(_read(data, takes), principal, context)
            except Told as told:
                await self._refuse(told, context)
            except grpc.aio.BaseError:
                pass  # whoever called has gone

        return serve

    async def _run(self, request: pb.RunRequest, principal: Principal, context: grpc.aio.ServicerContext) -> None:
        with self._counted("runs", RUNS_MAX):
            await run(Api(self._app, principal), self._engine, self._watch, principal, request, context.write)

    async def _attach(self, request: pb.AttachRequest, principal: Principal, context: grpc.aio.ServicerContext) -> None:
        with self._counted("runs", RUNS_MAX):
            await attach(Api(self._app, principal), self._engine, self._watch, principal, request, context.write)

    async def _watched(self, request: pb.WatchRequest, principal: Principal, context: grpc.aio.ServicerContext) -> None:
        if principal.access.highest < VIEWER:
            raise told_of(Forbidden("this needs the role viewer in a project, or everywhere"))
        with self._counted("readers", READERS_MAX):
            await Reader(self._hub, principal, request, context.write).serve()

    @contextlib.contextmanager
    def _counted(self, what: str, most: int) -> Any:
        if getattr(self, what) >= most:
            raise told_of(NoService(f"{most:,} streams of this kind are open already", code="busy"))
        setattr(self, what, getattr(self, what) + 1)
        try:
            yield
        finally:
            setattr(self, what, getattr(self, what) - 1)

    async def _admit(self, context: grpc.aio.ServicerContext) -> Principal:
        """Who calls. Raises Told."""
        said = [(name.lower().encode(), _bytes(value)) for name, value in context.invocation_metadata() or ()]
        where = _address_of(context.peer())
        try:
            return await self._auth.admit(bearer_of(said), where)
        except RoostError as error:
            if isinstance(error, Refused):
                # Never what was shown: it may be a good token with a letter too many.
                self._seldom.warning("call refused", where=where, why=error.message)
            raise told_of(error) from None

    async def _refuse(self, told: Told, context: grpc.aio.ServicerContext) -> Any:
        await told.send(context)

    async def _tell_health(self, servicer: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self._say_health(servicer)

    async def _say_health(self, servicer: Any) -> None:
        """Serving: it decides itself, or follows a server that does. As /readyz."""
        from grpc_health.v1.health_pb2 import HealthCheckResponse  # noqa: PLC0415

        is_ready = not self._watch.closed and (self._engine.ready or self._engine.is_following)
        status = HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            await servicer.set(service, status)

    def _reflection_handler(self) -> grpc.GenericRpcHandler:
        """What there is to call, for those who are known."""
        from grpc_reflection.v1alpha import reflection_pb2 as described  # noqa: PLC0415
        from grpc_reflection.v1alpha.reflection import aio as reflection  # noqa: PLC0415

        servicer = reflection.ReflectionServicer((SERVICE, HEALTH, REFLECTION))

        async def serve(requests: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                await self._admit(context)
            except Told as told:
                await told.send(context)
            async for response in servicer.ServerReflectionInfo(requests, context):
                yield response

        method = grpc.stream_stream_rpc_method_handler(
            serve, described.ServerReflectionRequest.FromString, described.ServerReflectionResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": method})


def _health_handler(servicer: Any) -> grpc.GenericRpcHandler:
    """Health is told to everybody, as /readyz is."""
    from grpc_health.v1 import health_pb2 as pb_health  # noqa: PLC0415

    reading, writing = pb_health.HealthCheckRequest.FromString, pb_health.HealthCheckResponse.SerializeToString
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(servicer.Check, reading, writing),
        "Watch": grpc.unary_stream_rpc_method_handler(servicer.Watch, reading, writing),
    }
    return grpc.method_handlers_generic_handler(HEALTH, methods)


def _read(data: bytes, kind: type[Message]) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise told_of(Unreadable(f"this is no {kind.DESCRIPTOR.name}")) from None


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def _address_of(peer: str) -> str:
    """ipv4:127.0.0.1:4711 and ipv6:[::1]:4711 without the rest; gRPC writes brackets as %5B."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")
