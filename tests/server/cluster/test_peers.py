"""Calls between servers: what surely did not reach the leader may be tried again."""

from typing import Any, cast

import grpc
import pytest

from roost.model.errors import NoService
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.peers import Peers
from roost.wire import servers_pb2 as pb
from tests.components.ports import free_ports


async def test_a_call_to_a_leader_that_is_gone_was_not_sent() -> None:
    (port,) = free_ports(1)

    async def make_channel(address: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address)

    peers = Peers(cast(Any, None), cast(Any, None), make_channel)
    leader = ServerIdentity("s1", "life", "http://127.0.0.1:1", f"127.0.0.1:{port}")
    try:
        with pytest.raises(NoService) as refused:
            await anext(peers.forward(leader, pb.ForwardedCall(operation="submit")))
        assert refused.value.code == "unavailable", "not outcome_unknown: clients send it again"
    finally:
        await peers.close()
