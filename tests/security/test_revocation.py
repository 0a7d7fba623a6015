"""A server's certificate that was revoked: refused by servers, also on open streams, and by agents. Over real TLS."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from roost.agent.connection.identity import NodeIdentity
from roost.agent.connection.stream import secure_channel
from roost.model.errors import Conflict
from roost.model.records.enrolment import SERIES_SHOWN, Bundle, server_names
from roost.model.records.opaque import By
from roost.server.pki.revocation import revoke_certificates, series_of
from roost.server.pki.tls import ServerCertificate
from roost.wire import agent_pb2 as agents
from roost.wire import servers_pb2 as servers
from tests.certified import authority, channel_to, node_bundle
from tests.security.secured_server import AGENTS, SERVERS, SecuredServer, secured_server, server_bundle
from tests.server.gateway_server import played

DEADLINE_S = 30.0
ROOT = By("root")


@pytest.fixture
async def made() -> AsyncIterator[SecuredServer]:
    async with secured_server(adopts=False) as server:
        yield server


async def test_a_revoked_server_is_refused_also_on_an_open_stream(made: SecuredServer) -> None:
    stolen = server_bundle("s2")
    async with channel_to(made.port, stolen) as channel:
        presence = servers.Presence(name="s2", life="life").SerializeToString()
        stream = channel.unary_stream(f"/{SERVERS}/Attend")(presence, timeout=DEADLINE_S)
        assert servers.Presence.FromString(await stream.read()).role == "leader"
        assert await revoke_certificates(made.engine, ROOT) == 1
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await made.until(lambda: not made.peers.attending)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(f"/{SERVERS}/Status")(b"", timeout=DEADLINE_S)
        assert refused.value.details() == "the certificate of server s2 was revoked: it is of an earlier series"
    async with channel_to(made.port, authority().for_server("s2", ("127.0.0.1",), series=1)) as channel:
        await channel.unary_unary(f"/{SERVERS}/Status")(b"", timeout=DEADLINE_S)


async def test_an_agent_reconnects_at_once_and_its_node_stays(made: SecuredServer) -> None:
    async with played(made.port, "n1") as agent:
        await agent.hello()
        await revoke_certificates(made.engine, ROOT)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await agent.beat()
            await agent.call.read()
        assert ended.value.code() is grpc.StatusCode.ABORTED
    async with played(made.port, "n1") as agent:
        await agent.hello()
    assert made.engine.state.nodes["n1"].status != "lost"


async def test_an_agent_refuses_a_server_of_an_earlier_series(tmp_path: Path) -> None:
    identity = NodeIdentity(str(tmp_path))
    identity.write(node_bundle("n1"))
    series = 0
    certificate = ServerCertificate(authority(), "s1", ("127.0.0.1",), tmp_path, series=lambda: series)
    stolen = certificate.pair
    server, port = await listening(certificate)
    try:
        assert await leads(port, identity.read())
        identity.learn((), 1)
        identity.learn((), 0)  # a server that does not know of it yet
        assert NodeIdentity(str(tmp_path)).read() == msgspec.structs.replace(node_bundle("n1"), series=1)
        assert "Hostname Verification" in str(await leads(port, identity.read()))
        series = 1
        certificate.refresh()  # what a running server does when it sees the new series
        assert certificate.pair != stolen and certificate.bundle.series == 1
        assert await leads(port, identity.read())
        assert await leads(port, node_bundle("n1")), "a node that knows only of the series before"
    finally:
        await server.stop(0)


async def test_what_is_revoked_is_durable_and_audited(made: SecuredServer) -> None:
    for series in (1, 2, 3):
        assert await revoke_certificates(made.engine, ROOT) == series
    assert series_of(made.engine.state) == 3
    assert sum(b"series 3" in entry for entry in made.engine.state.opaque_records["audit"].values()) == 1
    async with secured_server() as forgetful:
        with pytest.raises(Conflict, match="without memory"):
            await revoke_certificates(forgetful.engine, ROOT)
        assert series_of(forgetful.engine.state) == 0


def test_a_certificate_names_a_bounded_number_of_series() -> None:
    assert server_names(0) == ("roost-server",)
    assert server_names(2) == ("roost-server", "roost-server-1", "roost-server-2")
    names = server_names(1_000_000)
    assert len(names) == SERIES_SHOWN + 1 and names[-1] == "roost-server-1000000"


async def listening(certificate: ServerCertificate) -> tuple[Any, int]:
    """A server of agents that always leads, with this certificate."""

    async def who(data: bytes, context: object) -> bytes:
        return agents.Leads(leads=True).SerializeToString()

    server = grpc.aio.server()
    methods = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(AGENTS, methods),))
    port = server.add_secure_port("127.0.0.1:0", certificate.grpc_credentials(authority().certificate))
    await server.start()
    return server, port


async def leads(port: int, bundle: Bundle | None) -> bool | str:
    """Its answer to an agent with this bundle, or why there is none."""
    assert bundle is not None
    async with secure_channel(f"127.0.0.1:{port}", bundle) as channel:
        try:
            answer = await channel.unary_unary(f"/{AGENTS}/Who")(b"", timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
        return agents.Leads.FromString(answer).leads
