"""Forwarding: operations that only the leader can answer, sent there from whichever server was asked.

What travels is the name of the operation, its typed arguments and the principal: the server that was asked has
authenticated it, and servers trust each other's certificates. An answer that breaks off half-way breaks off here also.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import grpc
import msgspec

from roost import __version__
from roost.model.errors import NoService, Refused, RoostError, Unreadable, error_of
from roost.server.auth.principal import Access, Principal
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.peers import Peers
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.operations.context import Call, Context
from roost.server.operations.permit import Scope, permit, redacted
from roost.server.operations.table import OPERATIONS, RULES
from roost.server.waiting import cancel
from roost.wire import servers_pb2 as pb

WAIT_S = 5.0  # for a leader to appear: a failover takes less; the caller is spared the retry
LOOK_S = 0.02
PROTOCOL = 1  # grows with every change of operations that a leader has to understand
PIECE_BYTES = 1 << 20  # of an answer: a message between servers may have 9 MiB

log = logging.logger("forward")


class Forwarder:
    def __init__(self, engine: Engine, peers: Peers) -> None:
        self._engine = engine
        self._peers = peers

    async def perform(
        self, principal: Principal, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The leader's answer to an operation, or the source of its items."""
        codec = codec_of(operation)
        source = await self._stream(operation.__name__, codec.pack(args, kwargs), principal)
        if codec.streams:
            return codec.items(source)
        async with aclosing(source):
            async for item in source:
                return codec.answer(item)
        raise NoService("the leader gave no answer", code="outcome_unknown")

    async def _stream(self, operation: str, arguments: bytes, principal: Principal) -> AsyncGenerator[bytes, None]:
        leader = await self.leader()
        if leader is None:
            raise NoService("the leader changed meanwhile; try again")
        roles = principal.access.roles()
        caller = pb.Caller(name=principal.name, where=principal.where, roles=roles, expires_ms=principal.expires_ms)
        call = pb.ForwardedCall(
            operation=operation, arguments=arguments, caller=caller, protocol=PROTOCOL, version=__version__
        )
        source = _items(self._peers.forward(leader, call), self._engine.mirrors)
        try:
            await anext(source)
        except StopAsyncIteration:
            raise NoService("the leader gave no answer", code="outcome_unknown") from None
        return source

    async def tunnel(
        self, leader: ServerIdentity, id: str, caller: str, read: Callable[[], Awaitable[bytes | None]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Pass the frames of a tunnel on, until either side has left."""
        async with self._peers.tunnel(leader, pb.TunnelPiece(id=id, caller=caller)) as call:

            async def forth() -> None:
                while (data := await read()) is not None:
                    await call.write(pb.TunnelPiece(data=data).SerializeToString())

            async def back() -> None:
                while (piece := await call.read()) is not grpc.aio.EOF:
                    await write(pb.TunnelPiece.FromString(piece).data)

            tasks = asyncio.ensure_future(forth()), asyncio.ensure_future(back())
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if tasks[1].done():
                    tasks[1].result()
            finally:
                await cancel(*tasks)

    async def leader(self) -> ServerIdentity | None:
        """The leader; None: this server. Waits up to WAIT_S for a leader that can be reached."""
        team = self._engine.leadership
        assert team is not None
        leader: ServerIdentity | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                while not self._engine.ready:
                    leader = team.election.leader
                    if leader is not None and leader.life != team.identity.life and await self._peers.reaches(leader):
                        return leader
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            unreachable = f"the leader at {leader.agents} cannot be reached; try again" if leader is not None else ""
            raise NoService(unreachable or self._engine.failed or "no server leads just now") from None
        return None


class Codec(NamedTuple):
    """How one operation is forwarded. `streams`: it answers with many items."""

    arguments: type[msgspec.Struct]
    reply: Any
    streams: bool

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        try:
            return msgspec.msgpack.encode(self.arguments(*args, **kwargs))
        except (OverflowError, ValueError):
            raise Unreadable("this has a number or a text that no document can have") from None

    def unpack(self, data: bytes) -> dict[str, Any]:
        try:
            made = msgspec.msgpack.decode(data, type=self.arguments)
        except msgspec.DecodeError as error:
            raise Unreadable(f"another server has sent arguments that cannot be read: {error}") from None
        return {name: getattr(made, name) for name in made.__struct_fields__}

    def answer(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data, type=self.reply)

    async def items(self, source: AsyncGenerator[bytes, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(source):
            async for data in source:
                yield self.answer(data)


@lru_cache(maxsize=256)  # as many as there are operations
def codec_of(operation: Callable[..., Any]) -> Codec:
    hints = get_type_hints(operation, include_extras=True)
    fields: list[Any] = []
    for name, parameter in list(signature(operation).parameters.items())[1:]:
        field = (name, hints[name])
        fields.append(field if parameter.default is parameter.empty else (*field, parameter.default))
    reply, streams = hints["return"], False
    if get_origin(reply) is AsyncGenerator:
        reply, streams = get_args(reply)[0], True
    return Codec(
        msgspec.defstruct(f"{operation.__name__}_arguments", fields, forbid_unknown_fields=True), reply, streams
    )


async def answer(context: Context, call: pb.ForwardedCall) -> AsyncGenerator[pb.ForwardedReply, None]:
    """Perform an operation that another server has forwarded. The first reply says that it was accepted."""
    try:
        if call.protocol != PROTOCOL:
            raise NoService(_mismatch(call), code="version_mismatch")
        operation = OPERATIONS.get(call.operation)
        if operation is None or not RULES[operation].leader:
            raise Unreadable(f"another server has forwarded {call.operation!r:.100}, which is no operation of a leader")
        rule, codec = RULES[operation], codec_of(operation)
        caller = call.caller
        if not caller.name and rule.scope is not Scope.OPEN:
            raise Refused("a call was forwarded without its caller")
        arguments = codec.unpack(call.arguments)
        principal = Principal(caller.name, caller.where, Access(dict(caller.roles)), caller.expires_ms, lambda: True)
        with redacted(principal):
            permit(principal, rule, str(arguments.get("project", "")))
            performed = await operation(Call(context, principal), **arguments)
        yield pb.ForwardedReply(taken=True, revision=context.watch.revision)
        if not codec.streams:
            for piece in _pieces(performed):
                yield piece
            return
        async with aclosing(performed):
            async for item in performed:
                for piece in _pieces(item):
                    yield piece
    except RoostError as error:
        params = msgspec.msgpack.encode(error.params)
        refusal = pb.Refusal(
            status=error.status, code=error.code, message=error.message, path=error.path, params=params
        )
        yield pb.ForwardedReply(refusal=refusal)
    except Exception as error:
        log.error("forwarded call failed", operation=call.operation[:100], exc_info=error)
        yield pb.ForwardedReply(refusal=pb.Refusal(status=500, code="internal", message="internal error"))


def _mismatch(call: pb.ForwardedCall) -> str:
    theirs = f"the server that was asked (roost {call.version[:40] or 'of an older release'}) forwards with protocol"
    mine = f"the leader (roost {__version__}) understands {PROTOCOL}"
    return f"{theirs} {call.protocol}, {mine}; ask the leader, or install the same release on both"


async def _items(
    replies: AsyncIterator[pb.ForwardedReply], mirrors: Callable[[int], Awaitable[object]]
) -> AsyncGenerator[bytes, None]:
    """First an empty item when the call was accepted and is mirrored here, then each answer.

    Raises what the leader refused.
    """
    item = bytearray()
    try:
        async for reply in replies:
            if reply.HasField("refusal"):
                refusal = reply.refusal
                params = msgspec.msgpack.decode(refusal.params, type=dict[str, Any]) if refusal.params else None
                raise error_of(refusal.status, refusal.code, refusal.message, refusal.path, params)
            if reply.taken:
                await mirrors(reply.revision)  # who writes here also reads it here
                yield b""
                continue
            item += reply.data
            if not reply.more:
                yield bytes(item)
                item.clear()
    except grpc.aio.AioRpcError as error:
        text = f"the leader went away: {error.details() or error.code().name}; whether it did this is not known"
        raise NoService(text, code="outcome_unknown") from None


def _pieces(item: Any) -> list[pb.ForwardedReply]:
    data = msgspec.msgpack.encode(item)
    starts = range(0, len(data), PIECE_BYTES)
    return [pb.ForwardedReply(data=data[at : at + PIECE_BYTES], more=at + PIECE_BYTES < len(data)) for at in starts]
