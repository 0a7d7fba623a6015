"""Tricks on the agents' port: the wrong certificate for a call, forwarded requests without a principal, streams that
never speak, never read or never end. Each is refused, and reported in one line with the address.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import msgpack
from structlog.testing import capture_logs

from roost import __version__
from roost.model.protocol import Hello, Report, Run
from roost.model.records.node import Facts
from roost.model.spec.document import encode_document, read_document
from roost.server.agents import gateway, machine
from roost.server.agents.validation import RUNS_MAX
from roost.server.cluster.forwarding import PROTOCOL
from roost.server.config import ServerConfig
from roost.server.pki.enrolment import BAD_MAX
from roost.wire import agent_pb2 as pb
from roost.wire import servers_pb2 as servers
from roost.wire.codec import pack_agent
from tests.certified import channel_to, node_bundle
from tests.security.secured_server import (
    AGENTS,
    SERVERS,
    SecuredServer,
    asked,
    secured_server,
    server_bundle,
    spoken,
    stranger,
)
from tests.server.gateway_server import Played, played, runs_of
from tests.server.inprocess_server import DEADLINE_S, TOKEN

OF_AGENTS = ("Connect", "Ship", "Renew", "Who")
OF_SERVERS = ("Attend", "Status", "Forward", "FetchLog")
SMUGGLED = {"text": b'{"name": "smuggled", "command": "true"}'}
SUBMIT = {"operation": "submit", "arguments": msgpack.encode({"document": SMUGGLED})}
MEMORY_BYTES_MAX = 200 << 20  # that a test may take more than before: ten times what it does


@pytest.fixture
async def made() -> AsyncIterator[SecuredServer]:
    async with secured_server() as credential:
        yield credential


def refusals(report: list[Any]) -> list[tuple[str, str]]:
    """Who was refused, without the port, and what the log has of it."""
    found = [item for item in report if item["event"] == "agent refused"]
    return [(item["peer"].rpartition(":")[0], item["reason"]) for item in found]


# --- the wrong certificate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", OF_SERVERS)
async def test_no_node_can_call_what_is_for_servers(made: SecuredServer, method: str) -> None:
    caller = servers.Caller(name="root", roles={"*": "admin"})
    text = servers.ForwardedCall(**SUBMIT, caller=caller)
    before = made.snapshot()
    with capture_logs() as report:
        async with channel_to(made.port, node_bundle("n1")) as channel:
            code, received = await asked(channel, f"/{SERVERS}/{method}", text.SerializeToString())
    assert code is grpc.StatusCode.PERMISSION_DENIED and received == []
    assert refusals(report) == [("ipv4:127.0.0.1", "this is for servers")]
    assert made.snapshot() == before and not made.peers.attending


@pytest.mark.parametrize("method", OF_AGENTS)
async def test_no_server_can_call_what_is_for_nodes(made: SecuredServer, method: str) -> None:
    with capture_logs() as report:
        async with channel_to(made.port, server_bundle("n1")) as channel:
            code, received = await asked(channel, f"/{AGENTS}/{method}", b"")
    assert code is grpc.StatusCode.UNAUTHENTICATED and received == []
    assert [event for event in report if "refused" in event["event"] or "not renewed" in event["event"]][0]["peer"]
    assert not made.engine.state.nodes


@pytest.mark.parametrize("kind", ["plain", "none", "foreign"])
async def test_strangers_are_not_heard(made: SecuredServer, kind: str) -> None:
    before = made.snapshot()
    async with stranger(made.port, kind) as channel:
        for service, methods in ((AGENTS, OF_AGENTS), (SERVERS, OF_SERVERS)):
            for method in methods:
                code, received = await asked(channel, f"/{service}/{method}", b"")
                assert code is grpc.StatusCode.UNAVAILABLE and received == []
    assert made.snapshot() == before


# --- forwarded operations ---------------------------------------------------------------------------------------------


async def forwarded(made: SecuredServer, **fields: Any) -> int:
    """The status of the answer to an operation that another server forwards; 200: it was performed."""
    first = await first_reply(made, **fields)
    return 200 if first.taken else first.refusal.status


async def first_reply(made: SecuredServer, **fields: Any) -> servers.ForwardedReply:
    text = servers.ForwardedCall(**{"protocol": PROTOCOL, **fields}).SerializeToString()
    async with channel_to(made.port, server_bundle()) as channel:
        code, received = await asked(channel, f"/{SERVERS}/Forward", text)
    assert code is grpc.StatusCode.OK
    return servers.ForwardedReply.FromString(received[0])


def about(project: str = "default", **more: object) -> bytes:
    return msgpack.encode({"project": project, "name": "job", **more})


ADMIN = servers.Caller(name="root", where="192.0.2.7", roles={"*": "admin"})


async def test_an_operation_is_forwarded_in_its_callers_name(made: SecuredServer) -> None:
    assert await forwarded(made, **SUBMIT, caller=ADMIN) == 200
    assert await forwarded(made, operation="status", arguments=msgpack.encode({}), caller=ADMIN) == 200
    assert list(made.engine.state.workloads) == ["default/smuggled"]


@pytest.mark.parametrize("operation", ["submit", "why", "status", "create_token", "drain", "transfer_leader"])
async def test_an_operation_without_a_caller_is_refused(made: SecuredServer, operation: str) -> None:
    before = made.snapshot()
    arguments = SUBMIT["arguments"] if operation == "submit" else about()
    anonymous = servers.Caller(where="192.0.2.7", roles={"*": "admin"})
    assert await forwarded(made, operation=operation, arguments=arguments, caller=anonymous) == 401
    assert await forwarded(made, operation=operation, arguments=arguments) == 401
    assert made.snapshot() == before


@pytest.mark.parametrize("role", ["", "root", "ADMIN", "admin ", "operator,admin", "owner", "\u0430dmin", "4"])
async def test_a_role_that_is_not_known_gives_nothing(made: SecuredServer, role: str) -> None:
    caller = servers.Caller(name="token:x", roles={"*": role, "default": role})
    before = made.snapshot()
    assert await forwarded(made, operation="status", arguments=msgpack.encode({}), caller=caller) == 403
    assert await forwarded(made, operation="cancel", arguments=about(fields={}), caller=caller) == 404
    assert await forwarded(made, operation="uncordon", arguments=msgpack.encode({"node": "n1"}), caller=caller) == 403
    assert await forwarded(made, **SUBMIT, caller=caller) == 403
    assert made.snapshot() == before


@pytest.mark.parametrize("operation", ["", "..", "submit ", "Submit", "__init__", "livez", "list_nodes", "x" * 100_000])
async def test_what_is_no_operation_of_a_leader_is_refused(made: SecuredServer, operation: str) -> None:
    assert await forwarded(made, operation=operation, arguments=SUBMIT["arguments"], caller=ADMIN) == 400


@pytest.mark.parametrize("arguments", [b"", b"\xc1", b"\x80", msgpack.encode([]), msgpack.encode({"project": 1})])
async def test_arguments_that_cannot_be_read_are_refused(made: SecuredServer, arguments: bytes) -> None:
    assert await forwarded(made, operation="cancel", arguments=arguments, caller=ADMIN) == 400


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1])
async def test_a_call_of_another_release_is_refused_with_both_versions(made: SecuredServer, protocol: int) -> None:
    before = made.snapshot()
    refusal = (await first_reply(made, **SUBMIT, caller=ADMIN, protocol=protocol, version="9.9.9")).refusal
    assert (refusal.status, refusal.code) == (503, "version_mismatch")
    assert "roost 9.9.9" in refusal.message and f"roost {__version__}" in refusal.message
    assert made.snapshot() == before


async def test_an_argument_that_the_leader_does_not_know_is_refused(made: SecuredServer) -> None:
    await made.submit("job")
    before = made.snapshot()
    arguments = about(fields={}, only_in_a_later_release=True)
    assert await forwarded(made, operation="cancel", arguments=arguments, caller=ADMIN) == 400
    assert made.snapshot() == before


async def test_guessing_a_join_token_through_another_server_is_counted_by_address(made: SecuredServer) -> None:
    guess = {"id": "0123456789", "secret": "x", "node": "n1", "request": "x"}
    join = {"operation": "join", "arguments": msgpack.encode({"asked": guess})}
    mine, other = servers.Caller(where="192.0.2.7"), servers.Caller(where="192.0.2.8")
    found = [await forwarded(made, caller=mine, **join) for _ in range(BAD_MAX + 1)]
    assert found[-1] == 429 and 429 not in found[:BAD_MAX], found
    assert await forwarded(made, caller=other, **join) == found[0]


# --- work that is made up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "postgresql://db/roost", "etcd://a:2379"])
async def test_a_node_cannot_make_up_work_and_so_read_secrets(store: str) -> None:
    """With a store that remembers, an attempt that it does not know was never ordered."""
    settings = ServerConfig(data=Path("."), admin_token=TOKEN, store=store).settings()
    async with secured_server(adopts=settings.adopts, lease_ms=100) as made:
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


async def test_a_stream_that_never_says_hello_is_ended(made: SecuredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "HELLO_S_MAX", 0.1)
    with capture_logs() as report:
        async with played(made.port) as agent:
            assert (await agent.ending())[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [where for where, _ in refusals(report)] == ["ipv4:127.0.0.1"]


@pytest.mark.parametrize(
    "text",
    [b"\xff\xff", b"", pb.AgentFrame(beat=pb.Beat(session=1)).SerializeToString()],
    ids=["no frame", "an empty frame", "a beat"],
)
async def test_a_stream_that_begins_otherwise_is_ended(made: SecuredServer, text: bytes) -> None:
    with capture_logs() as report:
        async with channel_to(made.port, node_bundle("n1")) as channel:
            assert (await spoken(channel, f"/{AGENTS}/Connect", [text]))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert [where for where, _ in refusals(report)] == ["ipv4:127.0.0.1"]


async def test_a_beat_that_tells_of_more_than_an_agent_can_hold_is_refused(made: SecuredServer) -> None:
    reports = [pb.Report(token=1, state="running")] * (RUNS_MAX + 1)
    async with played(made.port) as agent:
        await agent.hello()
        beat = pb.Beat(session=agent.session, sequence=1, reports=reports)
        await agent.call.write(pb.AgentFrame(beat=beat).SerializeToString())
        assert (await agent.ending())[0] is grpc.StatusCode.INVALID_ARGUMENT
    await made.works()


async def test_an_agent_that_never_reads_its_orders_is_ended(
    made: SecuredServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report of an attempt that is not its own is answered with an order to drop it."""
    monkeypatch.setattr(gateway, "ORDERS_MAX", 20_000)
    # A whole assignment would replace the orders that wait, once a second: on a busy machine before they are too many.
    monkeypatch.setattr(machine, "LACKING_MS", 600_000)
    reports = [pb.Report(token=1 + number, state="running") for number in range(5_000)]

    async def beats(agent: Played) -> None:
        for sequence in range(1, 1_000):
            beat = pb.Beat(session=agent.session, sequence=sequence, reports=reports)
            await agent.call.write(pb.AgentFrame(beat=beat).SerializeToString())

    with capture_logs() as report:
        async with played(made.port) as agent:
            await agent.hello()
            beating = asyncio.ensure_future(beats(agent))
            await made.until(lambda: not len(made.gateway.machine.sessions))
            beating.cancel()
            await asyncio.wait({beating})
    assert refusals(report) == [("ipv4:127.0.0.1", "node n1 does not read its orders")]
    await made.works()


async def test_many_streams_at_once_leave_one_of_each_node(made: SecuredServer) -> None:
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
    assert len(made.gateway.machine.sessions) == 1
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


@pytest.mark.parametrize("text", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
async def test_a_caller_that_speaks_no_tls_is_cut_off(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple((name, 200 if "handshake" in name else value) for name, value in gateway.OPTIONS)
    monkeypatch.setattr(gateway, "OPTIONS", short)
    async with secured_server() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(text)
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while await reader.read(1_000):
                    pass
        writer.close()
        await made.works()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
