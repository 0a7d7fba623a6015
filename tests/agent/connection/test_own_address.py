"""Where others reach a machine: as its operator says, or the address from which it reaches its server."""

from pathlib import Path

import pytest

from roost.agent.connection.stream import own_address
from tests.agent.agent_harness import agent
from tests.server.gateway_server import gateway_server


@pytest.mark.parametrize(
    "server, found",
    [
        ("127.0.0.1:8421", "127.0.0.1"),
        ("localhost:8421", "127.0.0.1"),
        ("", ""),
        ("nowhere", ""),
        ("127.0.0.1:99999999999", ""),
        ("a..b:1", ""),
    ],
)
async def test_the_address_is_that_of_the_way_to_the_server(server: str, found: str) -> None:
    assert (await own_address(server)).replace("::1", "127.0.0.1") == found


async def test_a_server_learns_the_address(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path):
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        assert server.engine.state.nodes["n1"].facts.address == "127.0.0.1"


async def test_what_an_operator_says_is_not_looked_for(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, address="gpu-1.example"):
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        assert server.engine.state.nodes["n1"].facts.address == "gpu-1.example"
