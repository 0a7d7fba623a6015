"""A node that runs something, another one with bad intentions, and the streams of their logs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from roost.model.protocol import Report, Run
from roost.wire import agent_pb2 as pb
from tests.server.gateway_server import DEADLINE_S, SERVICE, GatewayServer, Played, gateway_server, played, runs_of


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[GatewayServer, Played, Played, Run]]:
    """One that runs something, one that has bad intentions."""
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        (run,) = runs_of(await agent.orders())
        await agent.beat(Report(run.token, "running"))
        await agent.answer()
        async with played(server.port, "evil") as evil:
            await evil.hello()
            yield server, agent, evil, run


@asynccontextmanager
async def shipping(agent: Played) -> AsyncIterator["grpc.aio.StreamStreamCall[bytes, bytes]"]:
    call = agent.channel.stream_stream(f"/{SERVICE}/Ship")()
    try:
        yield call
    finally:
        call.cancel()


def chunk(log: str, data: bytes) -> bytes:
    return pb.LogChunks(chunks=[pb.LogChunk(log=log, data=data)]).SerializeToString()


async def shipped(call: "grpc.aio.StreamStreamCall[bytes, bytes]", log: str, data: bytes) -> int:
    """How much of a log is kept, as the server says."""
    await call.write(chunk(log, data))
    async with asyncio.timeout(DEADLINE_S):
        (reported,) = pb.LogSizes.FromString(await call.read()).sizes
    return reported.size
