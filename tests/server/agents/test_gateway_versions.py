"""Agents of another release: what the gateway does not understand is refused, and nothing of it is followed."""

import grpc

from roost import __version__
from roost.model.protocol import PROTOCOL, Hello
from roost.model.records.node import Facts
from roost.wire import agent_pb2 as pb
from tests.server.gateway_server import gateway_server, played


async def test_an_agent_of_another_protocol_is_refused_with_both_versions() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        facts = Facts({"cpu": 4_000})
        await agent.transmit(Hello("n1", "m", facts, 1, protocol=PROTOCOL + 1, software="9.9.9"))
        code, message = await agent.ending()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert f"the agent (roost 9.9.9) speaks agent protocol {PROTOCOL + 1}" in message
        assert f"this server (roost {__version__}) speaks {PROTOCOL}; install the same release on both" in message
        assert not server.engine.state.nodes


async def test_a_frame_of_an_unknown_kind_ends_the_stream() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await agent.call.write(pb.AgentFrame().SerializeToString())
        assert await agent.ending() == (grpc.StatusCode.INVALID_ARGUMENT, "this is not a frame of an agent")
