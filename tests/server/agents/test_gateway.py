"""The agents' door: hello, beats and answers, streams that break, and whatever else is thrown at the port."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator

import grpc
import pytest

from roost.model.protocol import Answer, Beat, Drop, Hello, Report, Stop, Usage
from roost.model.reasons.nodes import NodeLeft
from roost.model.records.node import Facts
from roost.server.logs.machine import ENOUGH
from roost.wire import agent_pb2 as pb
from tests.certified import channel_to, node_bundle
from tests.server.gateway_server import (
    DEADLINE_S,
    SERVICE,
    GatewayServer,
    Played,
    ended,
    gateway_server,
    played,
    runs_of,
)


async def test_hello_is_answered_with_the_session_the_lease_and_the_whole_assignment() -> None:
    async with gateway_server(lease_ms=3_000) as server, played(server.port) as agent:
        await server.submit()
        welcome = await agent.hello()
        assert (welcome.echo_ms, welcome.lease_ms) == (77, 3_000)
        assert welcome.session == server.engine.state.nodes["n1"].session
        assert [run.workload for run in runs_of(welcome)] == ["default/job"]
        assert len(server.gateway.machine.sessions) == 1
        await agent.quiet()


async def test_a_beat_without_news_is_answered_at_once_and_once() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        steps = server.engine.machine.steps
        await agent.beat(sent_ms=123)
        assert await agent.answer() == Answer(agent.session, echo_ms=123)
        assert server.engine.machine.steps == steps, "a sign of life alone is no reason to decide anything"
        await agent.quiet()


async def test_reports_are_acknowledged_after_the_commit_with_the_new_orders_in_one_frame() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello(resources={"cpu": 1_000})
        await server.submit(count=2)
        first = await agent.orders()
        (run,) = runs_of(first)
        sequence = await agent.beat(ended(run), sent_ms=555)
        answer = await agent.answer()
        assert (answer.echo_ms, answer.acknowledged) == (555, sequence)
        assert (answer.base, answer.generation) == (first.generation, first.generation + 1)
        assert Drop(run.token) in answer.orders
        assert [run.index for run in runs_of(answer)] == [1]
        await agent.quiet()


async def test_usage_reaches_the_state() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await agent.beat(usage=Usage(1_500, 2 << 20, 3 << 30))
        await agent.answer()
        await server.submit()
        await agent.orders()
        usage = server.engine.state.liveness["n1"].usage
        assert usage is not None and 0 < usage.at_ms <= server.engine.clock.now_ms()
        assert usage == Usage(1_500, 2 << 20, 3 << 30, usage.at_ms)


async def test_a_lacking_agent_gets_the_whole_set() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        before = await agent.orders()
        await agent.beat(lacking=True)
        answer = await agent.orders()
        assert answer.whole and runs_of(answer) == runs_of(before)
        await agent.quiet()


async def test_an_agent_that_stays_behind_gets_the_whole_set_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.server.agents.machine.LACKING_MS", 50)
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        lost = await agent.orders()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await agent.beat(generation=lost.base)
                answer = await agent.answer()
                if answer.generation:
                    break
        assert answer.whole and runs_of(answer) == runs_of(lost)


async def test_a_broken_stream_is_reported_at_once() -> None:
    async with gateway_server() as server:
        async with played(server.port) as agent:
            await agent.hello()
        await server.until(lambda: server.engine.state.nodes["n1"].status == "suspect")
        assert len(server.gateway.machine.sessions) == 0


async def test_a_goodbye_ends_the_node_at_once_and_its_last_reports_count() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        (run,) = runs_of(await agent.orders())
        sequence = await agent.beat(ended(run), leaving=True)
        assert (await agent.answer()).acknowledged == sequence
        await server.until(lambda: server.engine.state.nodes["n1"].status == "stopped")
        node, line = server.nodes[-1]
        assert (node, line.state, line.reason) == ("n1", "stopped", NodeLeft())
        assert server.states() == ["succeeded"]


async def test_a_second_hello_of_the_same_machine_takes_the_place_of_the_first() -> None:
    async with gateway_server() as server, played(server.port) as first, played(server.port) as second:
        await first.hello()
        await second.hello()
        code, message = await first.ending()
        assert code == grpc.StatusCode.ABORTED and "newer stream" in message
        assert second.session > first.session
        assert server.engine.state.nodes["n1"].status == "ready"
        assert len(server.gateway.machine.sessions) == 1
        await second.quiet()


async def test_two_hellos_of_one_machine_in_one_step_leave_one_stream() -> None:
    async with gateway_server() as server, played(server.port) as first, played(server.port) as second:
        hellos = [
            asyncio.ensure_future(agent.transmit(Hello("n1", "machine", Facts({"cpu": 1_000}), 1)))
            for agent in (first, second)
        ]
        await asyncio.gather(*hellos)
        await server.until(lambda: len(server.gateway.machine.sessions) == 1)
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(agent.ending()) for agent in (first, second)],
            return_when=asyncio.FIRST_COMPLETED,
            timeout=DEADLINE_S,
        )
        assert [task.result()[0] for task in done] == [grpc.StatusCode.ABORTED]
        assert server.engine.state.nodes["n1"].status == "ready"


async def test_a_name_in_use_by_another_machine_is_refused_and_free_again_when_it_is_gone() -> None:
    async with gateway_server() as server, played(server.port) as stranger:
        async with played(server.port) as agent:
            await agent.hello("one")
            await stranger.transmit(Hello("n1", "two", Facts({"cpu": 1}), 1))
            code, message = await stranger.ending()
            assert code == grpc.StatusCode.ALREADY_EXISTS and "n1 is connected" in message
            await agent.quiet()
        await server.until(lambda: len(server.gateway.machine.sessions) == 0)
        async with played(server.port) as successor:
            await successor.hello("two")


async def test_a_hello_whose_stream_breaks_while_it_is_decided_leaves_no_connected_node() -> None:
    async with gateway_server() as server:
        agent = Played(server.port)
        await agent.transmit(Hello("n1", "machine", Facts({"cpu": 1_000}), 1))
        await agent.close()
        async with played(server.port, "n2") as other:
            await other.hello()
            nodes = server.engine.state.nodes
            await server.until(lambda: "n1" not in nodes or nodes["n1"].status == "suspect")
            assert not server.gateway.machine._early and not server.gateway.machine._joining


@pytest.mark.parametrize(
    "report",
    [
        Report(1, "queued"),
        Report(1, "ended", cause="boredom"),
        Report(1, "ended", cause="exited", code=300),
        Report(1, "running", started_ago_ms=-1),
        Report(1, "ended", ended_ago_ms=1 << 60),
        Report(1, "ended", error="x" * 1_000),
    ],
)
async def test_a_report_that_makes_no_sense_ends_the_stream_and_changes_nothing(report: Report) -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        await agent.orders()
        await agent.beat(report)
        assert (await agent.ending())[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert server.states() == ["placed"]


async def test_signs_of_life_and_reports_follow_each_other_and_a_gap_ends_the_stream() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        (run,) = runs_of(await agent.orders())
        for _ in range(3):
            await agent.quiet()
        await agent.beat(ended(run))
        assert (await agent.answer()).acknowledged == agent.sequence
        agent.sequence += 1
        await agent.beat(Report(run.token, "ended"))
        code, message = await agent.ending()
        assert code == grpc.StatusCode.ABORTED and "missing" in message


async def test_words_of_another_session_end_the_stream() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await agent.transmit(Beat(agent.session - 1, 1, 5, 0))
        code, message = await agent.ending()
        assert code == grpc.StatusCode.ABORTED and "this session is over" in message


async def test_a_node_that_was_lost_is_not_answered_and_has_to_say_hello_again() -> None:
    async with gateway_server(lease_ms=150, lease_margin_ms=10) as server, played(server.port) as agent:
        await agent.hello()
        await server.until(lambda: server.engine.state.nodes["n1"].status == "lost")
        assert (await agent.ending())[0] == grpc.StatusCode.ABORTED
        async with played(server.port) as again:
            await again.hello()
            assert server.engine.state.nodes["n1"].status == "ready"


async def test_beats_keep_a_node_and_their_number_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_server(lease_ms=200, lease_margin_ms=10) as server, played(server.port) as agent:
        await agent.hello()
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 0.6:
            await agent.beat()
            await agent.answer()
        assert [line.state for _, line in server.nodes] == ["ready"]


async def test_a_reset_ends_all_streams() -> None:
    async with gateway_server() as server, played(server.port) as one, played(server.port, "n2") as two:
        await one.hello()
        await two.hello()
        server.gateway.reset()
        assert [(await agent.ending())[0] for agent in (one, two)] == [grpc.StatusCode.UNAVAILABLE] * 2


async def test_stop_orders_follow_run_orders() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit(grace="3s")
        (run,) = runs_of(await agent.orders())
        await server.cancel("default/job")
        assert (await agent.orders()).orders == (Stop(run.token, 3_000, "cancel_requested"),)
        await agent.quiet()


# --- whatever else comes to the port ----------------------------------------------------------------------------------


GARBAGE = {
    "nothing": b"",
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": b"\0" * 65_536,
    "noise": bytes(range(256)) * 64,
    "half a preface": b"PRI * HTTP/2.0\r\n\r\nSM",
    "a preface and noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 16,
    "a frame of four gigabytes": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\0\0\0\4\0\0\0\0\0"
    + b"\xff\xff\xff\0\0\0\0\0\1",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_on_the_port_disturbs_no_agent(sent: bytes) -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for _, writer in connections:
            writer.write(sent)
        await agent.quiet()
        for _, writer in connections:
            writer.transport.abort()
        await agent.quiet()
        assert len(server.gateway.machine.sessions) == 1


async def test_tls_on_the_port_disturbs_no_agent() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        context = ssl.create_default_context()
        with pytest.raises((ssl.SSLError, OSError)):
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
        await agent.quiet()


async def calls(server: GatewayServer, method: str, *frames: bytes) -> grpc.StatusCode:
    async def text() -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    async with channel_to(server.port, node_bundle("n1")) as channel:
        call = channel.stream_stream(method)(text())
        code: grpc.StatusCode = await call.code()
        return code


async def test_wrong_messages_are_refused() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        connect, ship = f"/{SERVICE}/Connect", f"/{SERVICE}/Ship"
        beat = pb.AgentFrame(beat=pb.Beat(session=1)).SerializeToString()
        assert await calls(server, connect, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        assert await calls(server, connect, b"") == grpc.StatusCode.INVALID_ARGUMENT
        assert await calls(server, connect, beat) == grpc.StatusCode.INVALID_ARGUMENT
        assert await calls(server, connect) == grpc.StatusCode.INVALID_ARGUMENT
        assert await calls(server, f"/{SERVICE}/Nothing", b"") == grpc.StatusCode.UNIMPLEMENTED
        assert await calls(server, ship, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        chunk = pb.LogChunks(chunks=[pb.LogChunk(log="../../etc/passwd", data=b"x")]).SerializeToString()
        assert await calls(server, ship, chunk) == grpc.StatusCode.INVALID_ARGUMENT
        assert await calls(server, ship, b"\0" * (65 << 20)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        await agent.quiet()


async def test_an_agent_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.server.agents.gateway.HELLO_S_MAX", 0.05)
    async with gateway_server() as server, played(server.port) as agent:
        assert (await agent.ending())[0] == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_port_that_is_taken_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            async with gateway_server(port=port):
                pass


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_shipped_chunks_are_kept_and_their_sizes_reported() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        (run,) = runs_of(await agent.orders())
        log = f"default/job/{run.serial}/0.1"
        ship = agent.channel.stream_stream(f"/{SERVICE}/Ship")()
        for offset, data, size in ((0, b"one\n", 4), (9, b"gap", 4), (2, b"e\ntwo\xff\0", 9)):
            chunks = pb.LogChunks(chunks=[pb.LogChunk(log=log, offset=offset, data=data)])
            await ship.write(chunks.SerializeToString())
            sizes = pb.LogSizes.FromString(await ship.read())
            assert [(log_size.log, log_size.size) for log_size in sizes.sizes] == [(log, size)]
        assert await server.logs.read(log, 0, 100) == b"one\ntwo\xff\0"


async def test_the_final_size_of_a_log_is_part_of_the_state() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.hello()
        await server.submit()
        (run,) = runs_of(await agent.orders())
        await agent.beat(ended(run, log_size=3))
        await agent.answer()
        assert server.states() == ["succeeded"]
        (instance,) = server.engine.state.instances.values()
        assert (instance.log_size, instance.story[-1].log_size) == (3, 3)


async def test_a_log_that_comes_before_the_hello_is_not_refused_for_good() -> None:
    async with gateway_server() as server, played(server.port) as agent:
        log = "default/earlier/9/0.1"
        chunks = pb.LogChunks(chunks=[pb.LogChunk(log=log, data=b"x")]).SerializeToString()
        early = agent.channel.stream_stream(f"/{SERVICE}/Ship")()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await early.write(chunks)
            await early.read()
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        await agent.hello()
        late = agent.channel.stream_stream(f"/{SERVICE}/Ship")()
        await late.write(chunks)
        (size,) = pb.LogSizes.FromString(await late.read()).sizes
        assert size.size == ENOUGH, "nothing is known of it, and the node does not claim to have run it"
