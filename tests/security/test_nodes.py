"""Nodes on the agents' port: who is let in, as which, and what a node can do to others (nothing)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from roost.agent.connection import identity as node_identity
from roost.agent.connection.identity import NodeIdentity, bundle_of, make_request
from roost.model.events import Remove
from roost.model.protocol import Hello, Report, Run
from roost.model.records.enrolment import Bundle
from roost.model.records.node import Facts
from roost.model.spec.document import encode_document, read_document
from roost.server.logs.machine import ENOUGH
from roost.wire import agent_pb2 as pb
from tests.certified import another_authority, authority, channel_to, new_bundle
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

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE  # how gRPC calls a handshake that failed


async def joined(server: GatewayServer, node: str = "n1", pool: str = "") -> Bundle:
    """A node that has joined."""
    key, request = make_request(node)
    return bundle_of(node, key, await server.certificates.enrol(node, request, pool))


async def ending(server: GatewayServer, bundle: Bundle, node: str = "") -> tuple[grpc.StatusCode, str]:
    """How a hello is answered that is not welcome."""
    async with played(server.port, node or bundle.name, bundle) as agent:
        try:
            await agent.transmit(Hello(agent.node, "machine", Facts({"cpu": 1_000}), 1))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await agent.ending()


# --- who is let in ----------------------------------------------------------------------------------------------------


async def test_a_node_that_has_joined_is_let_in() -> None:
    async with gateway_server(strict=True) as server:
        async with played(server.port, bundle=await joined(server)) as agent:
            await agent.hello()
            assert list(server.engine.state.nodes) == ["n1"]


async def test_a_certificate_of_another_ca_is_refused() -> None:
    async with gateway_server() as server:
        foreign = new_bundle("n1", another_authority())
        # It trusts our server, and still is not let in.
        bundle = Bundle(foreign.key, foreign.certificate, authority().certificate, "n1", 0, 1 << 60)
        assert (await ending(server, bundle))[0] == UNAVAILABLE
        assert not server.engine.state.nodes


async def test_a_node_speaks_to_no_server_of_another_ca() -> None:
    async with gateway_server() as server:
        ours = new_bundle("n1")
        bundle = Bundle(ours.key, ours.certificate, another_authority().certificate, "n1", 0, 1 << 60)
        code, message = await ending(server, bundle)
        assert code == UNAVAILABLE and "CERTIFICATE_VERIFY_FAILED" in message


async def test_an_expired_certificate_is_refused() -> None:
    async with gateway_server() as server:
        assert (await ending(server, new_bundle("n1", life_ms=-60_000)))[0] == UNAVAILABLE
        assert not server.engine.state.nodes


async def test_without_a_certificate_nothing_is_heard() -> None:
    options = [("grpc.ssl_target_name_override", "roost-server")]
    async with gateway_server() as server:
        address = f"127.0.0.1:{server.port}"
        trusting = grpc.ssl_channel_credentials(authority().certificate.encode())
        for channel in (
            grpc.aio.insecure_channel(address),
            grpc.aio.secure_channel(address, trusting, options=options),
        ):
            async with channel:
                for method in ("Connect", "Ship"):
                    call = channel.stream_stream(f"/{SERVICE}/{method}")()
                    assert await asyncio.wait_for(call.code(), DEADLINE_S) == UNAVAILABLE


async def test_an_unregistered_certificate_is_refused() -> None:
    async with gateway_server(strict=True) as server:
        code, message = await ending(server, new_bundle("n1"))
        assert code == UNAUTHENTICATED and "join token" in message


async def test_a_server_is_no_node() -> None:
    async with gateway_server() as server:
        code, message = await ending(server, authority().for_server("n1", ()), "n1")
        assert code == UNAUTHENTICATED and "server n1" in message


async def test_a_refusal_waits_for_the_hello() -> None:
    """Sent while an agent writes, it would reach the agent as an internal error of gRPC."""
    async with gateway_server() as server:
        bundle = authority().for_server("n1", ())
        async with played(server.port, "n1", bundle) as agent:
            await agent.call.wait_for_connection()
            who = agent.channel.unary_unary(f"/{SERVICE}/Who")(b"")  # decided after the stream, on the same loop
            assert await who.code() == UNAUTHENTICATED
            assert not agent.call.done()
            await agent.transmit(Hello(agent.node, "machine", Facts({"cpu": 1_000}), 1))
            assert (await agent.ending())[0] == UNAUTHENTICATED


async def test_a_node_cannot_play_the_server() -> None:
    """Its certificate is of the CA that agents trust, but not for that use."""
    evil, victim = new_bundle("evil"), new_bundle("n1")
    pair = (evil.key.encode(), evil.certificate.encode())
    credentials = grpc.ssl_server_credentials([pair], authority().certificate.encode(), require_client_auth=True)
    playing = grpc.aio.server()
    port = playing.add_secure_port("127.0.0.1:0", credentials)
    await playing.start()
    try:
        async with channel_to(port, victim) as channel:
            call = channel.stream_stream(f"/{SERVICE}/Connect")()
            assert await asyncio.wait_for(call.code(), DEADLINE_S) == UNAVAILABLE
            assert "CERTIFICATE_VERIFY_FAILED" in (await call.details() or "")
    finally:
        await playing.stop(0)


# --- revoked and renewed ----------------------------------------------------------------------------------------------


async def removed(server: GatewayServer, node: str = "n1") -> None:
    await server.until(lambda: not server.engine.state.liveness[node].connected)
    await server.engine.ask(lambda request: Remove(request, node))


async def test_a_removed_node_is_refused_when_it_comes_back() -> None:
    async with gateway_server(strict=True) as server:
        bundle = await joined(server)
        async with played(server.port, bundle=bundle) as agent:
            await agent.hello()
        await removed(server)
        code, message = await ending(server, bundle)
        assert code == UNAUTHENTICATED and "revoked" in message
        assert not server.engine.state.nodes


async def test_a_removed_node_is_refused_also_by_a_server_that_forgets() -> None:
    async with gateway_server() as server:
        bundle = new_bundle("n1")
        async with played(server.port, bundle=bundle) as agent:
            await agent.hello()
        await removed(server)
        assert (await ending(server, bundle))[0] == UNAUTHENTICATED


async def test_open_streams_of_a_node_that_another_machine_replaces_are_ended() -> None:
    async with gateway_server(strict=True) as server:
        async with played(server.port, bundle=await joined(server)) as agent, shipping(agent) as ship:
            await agent.hello()
            await shipped(ship, "default/job/1/0.1", b"x")
            key, request = make_request("n1")
            await server.certificates.enrol("n1", request, local=True)
            await agent.beat()
            assert (await agent.ending())[0] == UNAUTHENTICATED
            await ship.write(chunk("default/job/1/0.1", b"x"))
            assert await asyncio.wait_for(ship.code(), DEADLINE_S) == UNAUTHENTICATED


async def renew(server: GatewayServer, bundle: Bundle, folder: Path) -> Bundle:
    """As an agent does it, over the wire."""
    identity = NodeIdentity(str(folder))
    await node_identity.renew(identity, lambda shown: channel_to(server.port, shown), bundle)
    renewed = identity.read()
    assert renewed is not None
    return renewed


async def test_a_renewed_certificate_and_the_one_before_it_are_good_and_no_older_one(tmp_path: Path) -> None:
    async with gateway_server(strict=True) as server:
        first = await joined(server, pool="ci")
        second = await renew(server, first, tmp_path)
        assert second.key != first.key and second.certificate != first.certificate
        for bundle in (first, second):
            async with played(server.port, bundle=bundle) as agent:
                await agent.hello()
        third = await renew(server, second, tmp_path)
        assert (await ending(server, first))[0] == UNAUTHENTICATED
        for bundle in (second, third):
            async with played(server.port, bundle=bundle) as agent:
                await agent.hello()
        assert server.engine.state.nodes["n1"].facts.pool == "ci"


async def test_a_node_whose_renewed_certificate_got_lost_on_its_way_renews_again(tmp_path: Path) -> None:
    async with gateway_server(strict=True) as server:
        first = await joined(server)
        lost = await renew(server, first, tmp_path)
        second = await renew(server, first, tmp_path)
        async with played(server.port, bundle=second) as agent:
            await agent.hello()
        assert (await ending(server, lost))[0] == UNAUTHENTICATED


async def test_renewals_end_no_stream_however_many_there_are(tmp_path: Path) -> None:
    async with gateway_server(strict=True) as server:
        bundle = await joined(server)
        async with played(server.port, bundle=bundle) as agent:
            await agent.hello()
            for _ in range(3):
                bundle = await renew(server, bundle, tmp_path)
            await agent.quiet()


async def test_a_removed_node_cannot_renew(tmp_path: Path) -> None:
    async with gateway_server(strict=True) as server:
        bundle = await joined(server)
        await server.engine.ask(lambda request: Remove(request, "n1"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await renew(server, bundle, tmp_path)
        assert refused.value.code() == UNAUTHENTICATED


async def test_a_renewal_that_asks_for_nonsense_changes_nothing() -> None:
    async with gateway_server(strict=True) as server:
        bundle = await joined(server)
        before = server.certificates.value("n1")
        async with channel_to(server.port, bundle) as channel:
            for data in (b"\xff\xff", pb.Renewal(request="none").SerializeToString()):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/{SERVICE}/Renew")(data)
                assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert server.certificates.value("n1") == before


# --- one node and another ---------------------------------------------------------------------------------------------


async def test_a_node_cannot_say_that_it_is_another() -> None:
    async with gateway_server(strict=True) as server:
        await joined(server, "n2")
        code, message = await ending(server, await joined(server), node="n2")
        assert code == grpc.StatusCode.PERMISSION_DENIED and "node n1" in message
        assert not server.engine.state.nodes


async def test_the_pool_of_the_token_goes_before_what_the_agent_says() -> None:
    async with gateway_server(strict=True) as server:
        async with played(server.port, bundle=await joined(server, pool="ci")) as agent:
            await agent.hello(pool="production")
            assert server.engine.state.nodes["n1"].facts.pool == "ci"
        async with played(server.port, "n2", await joined(server, "n2")) as agent:
            await agent.hello(pool="mine")
            assert server.engine.state.nodes["n2"].facts.pool == "mine"


async def test_the_pool_of_the_token_is_known_also_to_a_server_that_forgot_everything() -> None:
    async with gateway_server(strict=True) as server:
        bundle = await joined(server, pool="ci")
    async with gateway_server() as server, played(server.port, bundle=bundle) as agent:
        await agent.hello(pool="production")
        assert server.engine.state.nodes["n1"].facts.pool == "ci"


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


async def test_a_report_about_another_nodes_instance_is_ignored() -> None:
    async with two_nodes() as (server, agent, evil, run):
        await evil.beat(ended(run))
        await evil.answer()
        assert server.states() == ["running"]
        assert any(item.code == "not_its_attempt" for item in server.ignored)
        await agent.beat(ended(run))
        await agent.answer()
        assert server.states() == ["succeeded"]


async def test_a_beat_in_the_name_of_another_session_ends_the_stream() -> None:
    async with two_nodes() as (server, agent, evil, _):
        evil.session = agent.session
        await evil.beat()
        assert (await evil.ending())[0] == grpc.StatusCode.ABORTED
        await agent.quiet()
        assert server.engine.state.liveness["n1"].connected


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


async def test_another_nodes_log_is_not_written() -> None:
    async with two_nodes() as (server, agent, evil, run):
        log = f"default/job/{run.serial}/0.{run.attempt}"
        async with shipping(evil) as ship:
            assert await shipped(ship, log, b"lies") == ENOUGH
        assert server.logs.size(log) is None
        async with shipping(agent) as ship:
            assert await shipped(ship, log, b"truth") == 5


async def test_a_log_of_nothing_that_was_ever_there_is_not_written() -> None:
    async with two_nodes() as (server, _, evil, run):
        async with shipping(evil) as ship:
            for log in (f"default/job/{run.serial}/0.7", f"default/job/{run.serial + 1}/0.1", "default/other/1/0.1"):
                assert await shipped(ship, log, b"x") == ENOUGH
                assert server.logs.size(log) is None


async def test_a_log_of_an_earlier_attempt_comes_from_where_that_was() -> None:
    async with two_nodes() as (server, agent, evil, run):
        await agent.close()
        await server.cancel("default/job")
        await server.submit(name="moves", fenced=False)  # so it starts elsewhere as soon as its stream breaks
        (first,) = runs_of(await evil.orders())
        async with played(server.port, "n3") as successor, shipping(evil) as ship:
            await successor.hello()
            await evil.beat(Report(first.token, "running"))
            await evil.answer()
            evil.call.cancel()
            (second,) = runs_of(await successor.orders())
            assert (first.attempt, second.attempt) == (1, 2)
            log = f"default/moves/{first.serial}/0"
            assert await shipped(ship, f"{log}.1", b"first") == 5
            assert await shipped(ship, f"{log}.2", b"lies") == ENOUGH
            async with shipping(successor) as own:
                assert await shipped(own, f"{log}.2", b"second") == 6
                assert await shipped(own, f"{log}.1", b"lies") == ENOUGH


async def test_a_server_that_forgot_believes_a_hello_about_what_no_other_node_has() -> None:
    async with two_nodes() as (server, _, evil, run):
        document = encode_document(read_document({"name": "mine", "command": ["/bin/true"]}))
        own = Run(5, "default/mine", 0, 1, document, serial=9)
        stolen = Run(run.token, run.workload, 0, run.attempt, run.document, serial=run.serial)
        older = Run(4, run.workload, 0, 1, run.document, serial=8)
        claimed = (
            (own, Report(5, "ended", log_size=3)),
            (stolen, Report(run.token, "ended", log_size=0)),
            (older, Report(4, "ended", log_size=5)),
        )
        async with played(server.port, "n3") as agent:
            await agent.hello(runs=claimed)
            async with shipping(agent) as ship:
                assert await shipped(ship, "default/mine/9/0.1", b"own") == 3
                for suffix in ("", ".stderr"):  # of a workload whose name was given to another one since
                    assert await shipped(ship, f"default/job/8/0.1{suffix}", b"older") == 5
                assert await shipped(ship, f"default/job/{run.serial}/0.{run.attempt}", b"lies") == ENOUGH
        assert server.engine.state.instances["default/job.0"].log_size is None


async def test_a_node_that_claims_a_coming_attempt_of_another_node_neither_ends_nor_writes_its_log() -> None:
    async with two_nodes() as (server, agent, _, run):
        coming = Run(run.token + 1, run.workload, 0, run.attempt + 1, run.document, serial=run.serial)
        claims = {"ended": Report(coming.token, "ended", cause="exited", code=0, log_size=0)}
        claims["running"] = Report(coming.token, "running")
        log = f"default/job/{run.serial}/0.{coming.attempt}"
        for name, claim in claims.items():
            async with played(server.port, f"evil-{name}") as evil, shipping(evil) as ship:
                await evil.hello(runs=[(coming, claim)])
                assert await shipped(ship, log, b"lies") == ENOUGH, name
        instance = server.engine.state.instances["default/job.0"]
        assert (instance.state, instance.node, instance.attempt, instance.log_size) == ("running", "n1", 1, None)
        assert server.logs.size(log) is None
        await agent.quiet()
