"""Forwarding: operations that only the leader can answer, sent there from whichever server was asked.

What travels is the name of the operation, its typed arguments and the principal: the server that was asked has
authenticated it, and servers trust each other's certificates. An answer that breaks off half-way breaks off here also.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
import msgspec

from roost.model.errors import NoService, Refused, RoostError, Unreadable, error_of
from roost.server.auth.principal import Access, Principal
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.peers import Peers
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.operations.context import Call, Context
from roost.server.operations.dispatch import codec_of, redacted
from roost.server.operations.permit import Scope, permit
from roost.server.operations.table import OPERATIONS, RULES
from roost.wire import servers_pb2 as pb

WAIT_S = 5.0  # for a leader to appear: a failover takes less; the caller is spared the retry
LOOK_S = 0.02
PIECE_BYTES = 1 << 20  # of an answer: a message between servers may have 9 MiB

log = logging.logger("forward")


class Forwarder:
    def __init__(self, engine: Engine, peers: Peers) -> None:
        self._engine = engine
        self._peers = peers

    async def call(self, operation: str, arguments: bytes, principal: Principal) -> bytes:
        source = await self.stream(operation, arguments, principal)
        async with aclosing(source):
            async for item in source:
                return item
        raise NoService("the leader gave no answer", code="outcome_unknown")

    async def stream(self, operation: str, arguments: bytes, principal: Principal) -> AsyncGenerator[bytes, None]:
        leader = await self.leader()
        if leader is None:
            raise NoService("the leader changed meanwhile; try again")
        roles = principal.access.roles()
        caller = pb.Caller(name=principal.name, where=principal.where, roles=roles, expires_ms=principal.expires_ms)
        call = pb.ForwardedCall(operation=operation, arguments=arguments, caller=caller)
        source = _items(self._peers.forward(leader, call))
        try:
            await anext(source)
        except StopAsyncIteration:
            raise NoService("the leader gave no answer", code="outcome_unknown") from None
        return source

    async def leader(self) -> ServerIdentity | None:
        """The leader; None: this server. Waits up to WAIT_S for a leader."""
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


async def answer(context: Context, call: pb.ForwardedCall) -> AsyncGenerator[pb.ForwardedReply, None]:
    """Perform an operation that another server has forwarded. The first reply says that it was accepted."""
    try:
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
        yield pb.ForwardedReply(taken=True)
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


async def _items(replies: AsyncIterator[pb.ForwardedReply]) -> AsyncGenerator[bytes, None]:
    """First an empty item when the call was accepted, then each answer. Raises what the leader refused."""
    item = bytearray()
    try:
        async for reply in replies:
            if reply.HasField("refusal"):
                refusal = reply.refusal
                params = msgspec.msgpack.decode(refusal.params, type=dict[str, Any]) if refusal.params else None
                raise error_of(refusal.status, refusal.code, refusal.message, refusal.path, params)
            if reply.taken:
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
