"""Agents that say hello at the same time, as after a restart of the server."""

import asyncio

import pytest

from roost.server.agents import gateway
from tests.server.gateway_server import DEADLINE_S, gateway_server, played


async def test_hellos_that_come_within_a_pause_are_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["n1", "n2", "n3"]
    async with gateway_server() as server:
        for name in names:
            async with played(server.port, name) as agent:
                await agent.hello()
        await server.until(lambda: not server.gateway.machine.sessions)
        monkeypatch.setattr(gateway, "PAUSE_S_PER_AGENT", 1.0)
        monkeypatch.setattr(gateway, "JOIN_PAUSE_S_MAX", DEADLINE_S)
        paused: list[float] = []
        arriving = server.gateway._arriving
        gather = arriving.wait

        async def wait(pause_s: float) -> None:
            paused.append(pause_s)
            if len(paused) == len(names):
                asyncio.get_running_loop().call_soon(arriving._go_on, arriving._together)
            await gather(pause_s)

        monkeypatch.setattr(arriving, "wait", wait)
        steps = server.engine.machine.steps
        async with (
            played(server.port, "n1") as one,
            played(server.port, "n2") as two,
            played(server.port, "n3") as three,
        ):
            await asyncio.gather(*(agent.hello() for agent in (one, two, three)))
            assert paused == [3.0] * 3, "as long as the number of nodes says"
            assert server.engine.machine.steps == steps + 1
