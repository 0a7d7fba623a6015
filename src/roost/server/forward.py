"""Forward: what only the leader can answer goes there, from whichever server was asked, and its answer comes back.

Reads are answered here, from the mirror. A server hands on who asks: it has made sure of that itself, and servers trust
each other's certificates. An answer that breaks off half-way breaks off here, too.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

import grpc

from roost.model.errors import NoService, Refused, RoostError, TooMuch, Unreadable
from roost.server import say
from roost.server.api.bodies import BODY_BYTES_MAX, BODY_S_MAX
from roost.server.api.errors import RETRY_AFTER_S, encode_error
from roost.server.auth import OPEN_PATHS, PRINCIPAL, App, Receive, Scope, Send
from roost.server.auth_principal import Access, Principal
from roost.server.election import Identity
from roost.server.engine import Engine
from roost.wire import servers_pb2 as pb

READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Reads that need what only the leader has: its queue, its agents, the logs it is being sent.
LEADER_READS = ("/why", "/log", "/log/follow", "/v1/servers", "/v1/status", "/v1/hooks")
SCHEDULES = "/v1/schedules"  # which runs are whose is noted by who decides
HOOKS = "/hooks/"  # what was delivered is counted where it is delivered from
WAIT_S = 5.0  # for a leader to appear: a failover takes less; who asks is spared the retry
LOOK_S = 0.02
# What a message of ours may have beside a body: a head of 64 KiB.
MESSAGE_BYTES_MAX = BODY_BYTES_MAX + (1 << 20)
#: Of one connection only, or said anew by whoever sends.
NOT_HANDED_ON = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer",
                           b"authorization", b"expect", b"content-length", b"host"})  # fmt: skip

METHOD = re.compile("[A-Z]{1,20}")

log = say.logger("forward")


class Leaders(Protocol):
    """Whoever can reach the leader."""

    def forward(self, leader: Identity, request: pb.ForwardedRequest) -> AsyncIterator[pb.ForwardedPiece]:
        """Its answer, in pieces."""


class Forwarder:
    """A layer between the door and the API."""

    def __init__(self, app: App, engine: Engine, leaders: Leaders) -> None:
        self._app = app
        self._engine = engine
        self._leaders = leaders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._engine.ready or not _is_for_leader(scope):
            await self._app(scope, receive, send)
            return
        sent = False

        async def sending(message: Any) -> None:
            nonlocal sent
            sent = True
            await send(message)

        try:
            request = await _packed(scope, receive)
            leader = await self._leader()
            if leader is None:  # it is us by now
                await self._app(scope, _replayed(request.body, receive), send)
                return
            await self._hand_on(leader, request, sending)
        except RoostError as error:
            await _refuse(error, send)
        except grpc.aio.AioRpcError as error:
            if sent:
                raise ConnectionError("the leader's answer has broken off") from None
            words = f"the leader went away: {error.details() or error.code().name}; whether it did this is not known"
            await _refuse(NoService(words, code="outcome_unknown"), send)

    async def _leader(self) -> Identity | None:
        """Who leads; None: this server. Waits a little for one to be found."""
        team = self._engine.leadership
        assert team is not None
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._engine.ready:
                    leader = team.election.leader
                    if leader is not None and leader.life != team.identity.life:
                        return leader
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise NoService(self._engine.failed or "no server leads just now") from None
        return None

    async def _hand_on(self, leader: Identity, request: pb.ForwardedRequest, send: Send) -> None:
        begun = False
        async for piece in self._leaders.forward(leader, request):
            if not begun:
                begun = True
                headers = [(each.name, each.value) for each in piece.headers]
                await send({"type": "http.response.start", "status": piece.status, "headers": headers})
            if piece.data:
                await send({"type": "http.response.body", "body": piece.data, "more_body": True})
        if not begun:
            raise NoService("the leader gave no answer", code="outcome_unknown")
        await send({"type": "http.response.body", "body": b""})


async def answer(app: App, request: pb.ForwardedRequest) -> AsyncGenerator[pb.ForwardedPiece, None]:
    """What our own API says to a request that another server has forwarded."""
    pieces: asyncio.Queue[pb.ForwardedPiece | None] = asyncio.Queue(maxsize=8)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [pb.Header(name=name, value=value) for name, value in message.get("headers", ())]
            await pieces.put(pb.ForwardedPiece(status=message["status"], headers=headers))
        elif message.get("body"):
            await pieces.put(pb.ForwardedPiece(data=message["body"]))

    async def work() -> None:
        try:
            _check(request)
            await app(_unpacked(request), _body_of(request.body), send)
        except RoostError as error:
            log.warning("forwarded request refused", where=request.caller.where[:80], path=request.path[:200])
            await _refuse(error, send)
        finally:
            await pieces.put(None)

    working = asyncio.ensure_future(work())
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _check(request: pb.ForwardedRequest) -> None:
    """What a server hands on is a request that it could have been sent, of somebody whom it has let in."""
    if METHOD.fullmatch(request.method) is None or not request.path.startswith("/"):
        raise Unreadable("what was forwarded is no request")
    if not request.caller.name and request.path not in OPEN_PATHS:
        raise Refused("a request was forwarded without saying who asks")


def _is_for_leader(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    path = scope["path"]
    if scope["method"] not in READS or path.startswith(SCHEDULES):
        return True
    return bool(path.endswith(LEADER_READS) or HOOKS in path)


async def _packed(scope: Scope, receive: Receive) -> pb.ForwardedRequest:
    """The whole request: a body is small, and a leader must not wait for a slow client of another server."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise NoService("the client went away")
                body += message.get("body", b"")
                if len(body) > BODY_BYTES_MAX:
                    raise TooMuch(f"a body has at most {BODY_BYTES_MAX:,} bytes")
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise TooMuch(f"the body did not come within {BODY_S_MAX:.0f} s") from None
    principal: Principal | None = scope.get(PRINCIPAL)
    if principal is None:  # of an operation that is open to all; where it comes from counts there, too
        client = scope.get("client")
        caller = pb.Caller(where=client[0] if client else "")
    else:
        caller = pb.Caller(
            name=principal.name, where=principal.where, roles=principal.access.roles(), expires_ms=principal.expires_ms
        )
    return pb.ForwardedRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=[pb.Header(name=name, value=value) for name, value in scope["headers"] if name not in NOT_HANDED_ON],
        body=bytes(body),
        caller=caller,
    )


def _unpacked(request: pb.ForwardedRequest) -> Scope:
    headers = [(each.name.lower(), each.value) for each in request.headers if each.name.lower() not in NOT_HANDED_ON]
    headers.append((b"content-length", str(len(request.body)).encode()))
    where = request.caller.where
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
        "method": request.method, "path": request.path, "raw_path": request.path.encode(), "root_path": "",
        "query_string": request.query, "headers": headers, "client": (where, 0) if where else None, "server": None,
    }  # fmt: skip
    if request.caller.name:
        caller = request.caller
        access = Access(dict(caller.roles))
        scope[PRINCIPAL] = Principal(caller.name, caller.where, access, caller.expires_ms, lambda: True)
    return scope


def _body_of(body: bytes) -> Receive:
    """The body at once, and then nothing until whoever listens has enough."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if left:
            return left.pop()
        await asyncio.get_running_loop().create_future()

    return receive


def _replayed(body: bytes, receive: Receive) -> Receive:
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again


async def _refuse(error: RoostError, send: Send) -> None:
    body = encode_error(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 503:
        headers.append((b"retry-after", RETRY_AFTER_S.encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
