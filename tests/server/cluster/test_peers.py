"""Calls between servers: what surely did not reach the leader may be tried again."""

from typing import Any, cast

import grpc
import pytest
from roost_lab.components.ports import free_ports

from roost.model.errors import NoService
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.forwarding import _items as read_items
from roost.server.cluster.peers import SERVICE, Peers
from roost.wire import servers_pb2 as pb


async def make_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


async def has_nothing_to_mirror(_: int) -> None:
    """The call is not accepted."""


async def test_a_call_to_a_leader_that_is_gone_was_not_sent() -> None:
    (port,) = free_ports(1)
    peers = Peers(cast(Any, None), cast(Any, None), make_channel)
    leader = ServerIdentity("s1", "life", "http://127.0.0.1:1", f"127.0.0.1:{port}")
    try:
        with pytest.raises(NoService) as refused:
            await anext(peers.forward(leader, pb.ForwardedCall(operation="submit")))
        assert refused.value.code == "unavailable", "not outcome_unknown: clients send it again"
    finally:
        await peers.close()


async def test_a_call_that_may_have_been_done_is_unknown_and_is_not_repeated() -> None:
    calls: list[bytes] = []

    async def dies(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        calls.append(data)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the process has ended")
        raise AssertionError("unreachable")

    (port,) = free_ports(1)
    server = grpc.aio.server()
    methods = {"Forward": grpc.unary_unary_rpc_method_handler(dies)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    peers = Peers(cast(Any, None), cast(Any, None), make_channel)
    leader = ServerIdentity("s1", "life", "http://127.0.0.1:1", f"127.0.0.1:{port}")
    try:
        with pytest.raises(NoService) as refused:
            await anext(read_items(peers.forward(leader, pb.ForwardedCall(operation="submit")), has_nothing_to_mirror))
        assert (refused.value.code, len(calls)) == ("outcome_unknown", 1)
    finally:
        await peers.close()
        await server.stop(0)
