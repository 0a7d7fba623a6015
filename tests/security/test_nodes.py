"""Nodes on the agents' port: who is let in, as which, and what a node can do to others (nothing)."""

import asyncio
from pathlib import Path

import grpc
import pytest

from roost.agent.connection import identity as node_identity
from roost.agent.connection.identity import NodeIdentity, bundle_of, make_request
from roost.model.events import Remove
from roost.model.protocol import Hello
from roost.model.records.enrolment import Bundle
from roost.model.records.node import Facts
from roost.wire import agent_pb2 as pb
from tests.certified import another_authority, authority, channel_to, new_bundle
from tests.security.hostile_nodes import chunk, shipped, shipping, two_nodes
from tests.server.gateway_server import (
    DEADLINE_S,
    SERVICE,
    GatewayServer,
    ended,
    gateway_server,
    played,
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
