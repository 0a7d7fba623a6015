"""Tricks on the agents' port: the wrong certificate for a call, requests handed on in nobody's name, and streams that
never speak, never read or never end. Each is refused, and told in one line with the address.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from roost.model.document import encode_document, read_document
from roost.model.frames import Hello, Report, Run
from roost.model.node import Facts
from roost.server import gateway
from roost.server.admission import RUNS_MAX
from roost.server.config import ServerConfig
from roost.server.join import BAD_MAX
from roost.wire import agent_pb2 as pb
from roost.wire import servers_pb2 as servers
from roost.wire.codec import pack_agent
from tests.certified import channel_to, node_bundle
from tests.security.fort import AGENTS, SERVERS, Fort, asked, fort, server_bundle, spoken, stranger
from tests.server.house import DEADLINE_S, TOKEN
from tests.server.stage import Played, played, runs_of

OF_AGENTS = ("Connect", "Ship", "Renew", "Who")
OF_SERVERS = ("Attend", "Status", "Forward", "FetchLog")
SUBMIT = b'{"name": "smuggled", "command": "true"}'
MEMORY_BYTES_MAX = 200 << 20  # that a test may take more than before: ten times what it does


@pytest.fixture
async def made() -> AsyncIterator[Fort]:
    async with fort() as standing:
        yield standing


def refusals(told: list[Any]) -> list[tuple[str, str]]:
    """Who was refused, without the port, and what the operator was told of it."""
    found = [each for each in told if each["event"] == "agent refused"]
    return [(each["peer"].rpartition(":")[0], each["reason"]) for each in found]


# --- the wrong certificate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OF_SERVERS)
async def test_no_node_can_call_what_is_for_servers(made: Fort, method: str) -> None:
    caller = servers.Caller(name="root", roles={"*": "admin"})
    said = servers.ForwardedRequest(method="POST", path="/v1/workloads", body=SUBMIT, caller=caller)
    before = made.snapshot()
    with capture_logs() as told:
        async with channel_to(made.port, node_bundle("n1")) as channel:
            code, heard = await asked(channel, f"/{SERVERS}/{method}", said.SerializeToString())
    assert code is grpc.StatusCode.PERMISSION_DENIED and heard == []
    assert refusals(told) == [("ipv4:127.0.0.1", "this is for servers")]
    assert made.snapshot() == before and not made.peers.attending


@pytest.mark.parametrize("method", OF_AGENTS)
async def test_no_server_can_call_what_is_for_nodes(made: Fort, method: str) -> None:
    with capture_logs() as told:
        async with channel_to(made.port, server_bundle("n1")) as channel:
            code, heard = await asked(channel, f"/{AGENTS}/{method}", b"")
    assert code is grpc.StatusCode.UNAUTHENTICATED and heard == []
    assert [event for event in told if "refused" in event["event"] or "not renewed" in event["event"]][0]["peer"]
    assert not made.engine.state.nodes


@pytest.mark.parametrize("kind", ["plain", "none", "foreign"])
async def test_strangers_are_not_heard(made: Fort, kind: str) -> None:
    before = made.snapshot()
    async with stranger(made.port, kind) as channel:
        for service, methods in ((AGENTS, OF_AGENTS), (SERVERS, OF_SERVERS)):
            for method in methods:
                code, heard = await asked(channel, f"/{service}/{method}", b"")
                assert code is grpc.StatusCode.UNAVAILABLE and heard == []
    assert made.snapshot() == before


# --- requests handed on -----------------------------------------------------------------------------------------------


async def forwarded(made: Fort, **fields: Any) -> int:
    """The status of the answer to what another server hands on."""
    said = servers.ForwardedRequest(**{"method": "GET", "path": "/v1/nodes", **fields}).SerializeToString()
    async with channel_to(made.port, server_bundle()) as channel:
        code, heard = await asked(channel, f"/{SERVERS}/Forward", said)
    assert code is grpc.StatusCode.OK
    return servers.ForwardedPiece.FromString(heard[0]).status


ADMIN = servers.Caller(name="root", where="192.0.2.7", roles={"*": "admin"})


async def test_a_request_is_handed_on_in_somebodys_name(made: Fort) -> None:
    assert await forwarded(made, caller=ADMIN) == 200
    assert await forwarded(made, method="POST", path="/v1/workloads", body=SUBMIT, caller=ADMIN) == 201
    assert await forwarded(made, path="/livez") == 200


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/workloads", "/v1/tokens", "/schema/openapi.json", "/v1/join/x"])
async def test_a_request_in_nobodys_name_is_refused(made: Fort, path: str) -> None:
    before = made.snapshot()
    with capture_logs() as told:
        assert await forwarded(made, path=path, caller=servers.Caller(where="192.0.2.7", roles={"*": "admin"})) == 401
        assert await forwarded(made, path=path, method="POST", body=SUBMIT) == 401
    assert [each["where"] for each in told if each["event"] == "forwarded request refused"] == ["192.0.2.7", ""]
    assert made.snapshot() == before


@pytest.mark.parametrize("role", ["", "root", "ADMIN", "admin ", "operator,admin", "owner", "\u0430dmin", "4"])
async def test_a_role_that_is_not_known_gives_nothing(made: Fort, role: str) -> None:
    caller = servers.Caller(name="token:x", roles={"*": role, "default": role})
    before = made.snapshot()
    for path in ("/v1/nodes", "/v1/workloads", "/v1/tokens", "/metrics", "/v1/audit"):
        assert await forwarded(made, path=path, caller=caller) == 403
    assert await forwarded(made, path="/v1/workloads/default/job", caller=caller) == 404
    assert await forwarded(made, method="POST", path="/v1/workloads", body=SUBMIT, caller=caller) == 403
    assert made.snapshot() == before


@pytest.mark.parametrize(
    "path",
    ["v1/nodes", "", "..", "/../v1/nodes", "/livez/../v1/nodes", "/v1/../v1/nodes", "/v1%2fnodes", "/v1/nodes%00",
     "/v1/nodes\x00", "http://house/v1/nodes", "\\v1\\nodes", "/v1/projects/web%2f..%2fdefault", "/" + "x" * 100_000],
)  # fmt: skip
async def test_a_path_that_is_none_leads_nowhere(made: Fort, path: str) -> None:
    assert await forwarded(made, path=path, caller=ADMIN) in (400, 404)


@pytest.mark.parametrize("method", ["", "get", "GET\r\nX: y", "GET /v1/tokens", "\x00", "X" * 1_000])
async def test_a_method_that_is_none_does_nothing(made: Fort, method: str) -> None:
    assert await forwarded(made, method=method, caller=ADMIN) in (400, 405)


async def test_what_belongs_to_one_connection_is_not_taken_over(made: Fort) -> None:
    """A length beside the real one, or a token beside the caller's name, changes nothing."""
    odd = [(b"Content-Length", b"1"), (b"TRANSFER-ENCODING", b"chunked"), (b"Authorization", b"Bearer x")]
    headers = [servers.Header(name=name, value=value) for name, value in odd]
    fields = {"method": "POST", "path": "/v1/workloads", "body": SUBMIT, "headers": headers}
    assert await forwarded(made, caller=ADMIN, **fields) == 201
    assert await forwarded(made, **fields) == 401


async def test_guessing_a_join_token_through_another_server_is_counted_by_address(made: Fort) -> None:
    guess = b'{"id": "0123456789", "secret": "x", "node": "n1", "request": "x"}'
    join = {"method": "POST", "path": "/v1/join", "body": guess}
    mine, other = servers.Caller(where="192.0.2.7"), servers.Caller(where="192.0.2.8")
    found = [await forwarded(made, caller=mine, **join) for _ in range(BAD_MAX + 1)]
    assert found[-1] == 429 and 429 not in found[:BAD_MAX], found
    assert await forwarded(made, caller=other, **join) == found[0]


# --- work that is made up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "postgresql://db/roost", "etcd://a:2379"])
async def test_a_node_cannot_make_up_work_and_so_read_secrets(store: str) -> None:
    """With a store that remembers, an attempt that it does not know was never ordered."""
    settings = ServerConfig(data=Path("."), admin_token=TOKEN, store=store).settings()
    async with fort(adopts=settings.adopts, lease_ms=100) as made:
        assert (await made.client.put("/v1/projects/web/secrets/db", json={"value": "x"})).status_code == 200
        wish = {"name": "evil", "project": "web", "kind": "service", "command": "true", "env": {"X": {"secret": "db"}}}
        run = Run(5, "web/evil", 0, 1, encode_document(read_document(wish)), serial=1)
        async with played(made.port) as agent:
            welcome = await agent.hello(runs=[(run, Report(5, "running"))])
            assert welcome.orders == () and not made.engine.state.workloads
            await agent.beat(Report(5, "ended", cause="exited", code=1))
            assert runs_of(await agent.answer()) == [] and not made.engine.state.workloads
            chunk = pb.LogChunks(chunks=[pb.LogChunk(log="web/evil/1/0.1", data=b"x")]).SerializeToString()
            await spoken(agent.channel, f"/{AGENTS}/Ship", [chunk])
            assert made.logs.size("web/evil/1/0.1") is None


# --- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_that_never_says_hello_is_ended(made: Fort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "HELLO_S_MAX", 0.1)
    with capture_logs() as told:
        async with played(made.port) as agent:
            assert (await agent.ending())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [where for where, _ in refusals(told)] == ["ipv4:127.0.0.1"]


@pytest.mark.parametrize(
    "said",
    [b"\xff\xff", b"", pb.AgentFrame(beat=pb.Beat(session=1)).SerializeToString()],
    ids=["no frame", "an empty frame", "a beat"],
)
async def test_a_stream_that_begins_otherwise_is_ended(made: Fort, said: bytes) -> None:
    with capture_logs() as told:
        async with channel_to(made.port, node_bundle("n1")) as channel:
            assert (await spoken(channel, f"/{AGENTS}/Connect", [said]))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert [where for where, _ in refusals(told)] == ["ipv4:127.0.0.1"]


async def test_a_beat_that_tells_of_more_than_an_agent_can_hold_is_refused(made: Fort) -> None:
    reports = [pb.Report(token=1, state="running")] * (RUNS_MAX + 1)
    async with played(made.port) as agent:
        await agent.hello()
        beat = pb.Beat(session=agent.session, sequence=1, reports=reports)
        await agent.call.write(pb.AgentFrame(beat=beat).SerializeToString())
        assert (await agent.ending())[0] is grpc.StatusCode.INVALID_ARGUMENT
    await made.works()


async def test_an_agent_that_never_reads_its_orders_is_ended(made: Fort, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report of an attempt that is not its own is answered with an order to drop it."""
    monkeypatch.setattr(gateway, "ORDERS_MAX", 20_000)
    reports = [pb.Report(token=1 + number, state="running") for number in range(5_000)]

    async def beats(agent: Played) -> None:
        for sequence in range(1, 1_000):
            beat = pb.Beat(session=agent.session, sequence=sequence, reports=reports)
            await agent.call.write(pb.AgentFrame(beat=beat).SerializeToString())

    with capture_logs() as told:
        async with played(made.port) as agent:
            await agent.hello()
            beating = asyncio.ensure_future(beats(agent))
            await made.until(lambda: not made.gateway.connected)
            beating.cancel()
            await asyncio.wait({beating})
    assert refusals(told) == [("ipv4:127.0.0.1", "node n1 does not read its orders")]
    await made.works()


async def test_many_streams_at_once_leave_one_of_each_node(made: Fort) -> None:
    before = _memory()
    hello = pack_agent(Hello("n1", "machine-n1", Facts({"cpu": 1_000}), 1)).SerializeToString()
    channels = [channel_to(made.port, node_bundle("n1")) for _ in range(10)]
    calls = [channel.stream_stream(f"/{AGENTS}/Connect")() for channel in channels for _ in range(10)]
    for call in calls:
        await call.write(hello)
    ends = [asyncio.ensure_future(_end(call)) for call in calls]
    async with asyncio.timeout(DEADLINE_S):
        while sum(end.done() for end in ends) < len(ends) - 1:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
    assert made.gateway.connected == 1
    codes = {end.result() for end in ends if end.done()}
    assert codes <= {grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE}
    assert sum(end.done() for end in ends) == len(ends) - 1
    for channel in channels:
        await channel.close()
    await made.works()
    assert _memory() - before < MEMORY_BYTES_MAX


async def _end(call: Any) -> grpc.StatusCode:
    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_whoever_speaks_no_tls_is_cut_off(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple((name, 200 if "handshake" in name else value) for name, value in gateway.OPTIONS)
    monkeypatch.setattr(gateway, "OPTIONS", short)
    async with fort() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(said)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while await reader.read(1_000):
                    pass
        writer.close()
        await made.works()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
