"""Logs of a separate stderr on their way in: whose they are, and their size."""

from roost.server.agents.gateway import SERVICE
from roost.server.logs.hub import ENOUGH
from roost.wire import agent_pb2 as pb
from tests.server.gateway_server import ended, gateway_server, played, runs_of


async def test_the_log_of_stderr_is_kept_for_its_node_alone_with_its_size_in_the_state() -> None:
    async with gateway_server() as server, played(server.port) as agent, played(server.port, "n2") as other:
        await agent.hello()
        await server.submit(stderr="separate")
        (run,) = runs_of(await agent.orders())
        log = f"default/job/{run.serial}/0.1.stderr"
        chunks = pb.LogChunks(chunks=[pb.LogChunk(log=log, offset=0, data=b"err")]).SerializeToString()
        await other.hello()
        for sender, size in ((other, ENOUGH), (agent, 3)):
            ship = sender.channel.stream_stream(f"/{SERVICE}/Ship")()
            await ship.write(chunks)
            assert [item.size for item in pb.LogSizes.FromString(await ship.read()).sizes] == [size]
        assert await server.logs.read(log, 0, 100) == b"err"
        await agent.beat(ended(run, stderr_size=3))
        await agent.answer()
        (instance,) = server.engine.state.instances.values()
        assert (instance.log_size, instance.stderr_size, instance.story[-1].stderr_size) == (0, 3, 3)
