"""Tricks with names: whatever leads elsewhere, through the API or from a node, is refused and writes no file."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from roost.agent.connection.identity import make_request
from roost.blobs.log_files import FileLogs
from roost.core.state.records import Settings
from roost.model.records.enrolment import read_token
from roost.model.spec.document import encode_document, read_document
from roost.server.history.service import History
from roost.wire import agent_pb2 as pb
from roost.wire import servers_pb2 as servers
from tests.certified import channel_to, node_bundle
from tests.security.raw_http import HEAD, Port, port_of
from tests.security.secured_server import AGENTS, SERVERS, SecuredServer, asked, secured_server, server_bundle, spoken
from tests.server.gateway_server import played, runs_of
from tests.server.inprocess_server import InprocessServer, inprocess_server

NAMES = {
    "up": "..", "here": ".", "far up": "../../../etc/cron.d/x", "a folder": "a/b", "a path": "/etc/passwd",
    "backslash": "a\\..\\b", "NUL": "a\x00b", "a line": "a\nb", "escape": "a\x1b[2Jb", "wide": "\uff4aob",
    "another alphabet": "j\u043eb", "no dot": "j\u0131b", "backwards": "job\u202eboj", "invisible": "job\u200b",
    "long": "x" * 10_000, "empty": "", "space": " job", "option": "-rf", "percent": "a%2f..%2fb", "home": "~root",
    "dots": "a..b/", "a drive": "C:", "digits": "job/\u0661", "surrogate in JSON": "\ud800",
}  # fmt: skip


def tree(folder: Path) -> dict[str, int]:
    """Every file below, with its size."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
async def made(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InprocessServer]:
    folder = tmp_path_factory.mktemp("past")
    async with inprocess_server(history=History(folder, Settings()), lease_ms=600_000) as status:
        async with asyncio.timeout(10):
            while (await status.client.get("/v1/history")).status_code == 503:  # its files are being opened
                await asyncio.sleep(0.01)
        yield status


@pytest.fixture(scope="module")
async def port(made: InprocessServer) -> AsyncIterator[Port]:
    async with port_of(made) as found:
        yield found


async def sent(port: Port, method: str, path: str, body: Any) -> int:
    """Its status, as it came over the line: no client has made the path any better."""
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n".encode()
    async with port.line() as line:
        await line.transmit(head + HEAD + b"\r\n" + data)
        return (await line.hear())[0]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_no_name_leads_elsewhere(made: InprocessServer, port: Port, name: str) -> None:
    token = read_token((await made.post("/v1/join-tokens", {"uses": 9}, expect=201))["token"])
    made.context.joining._bad._counts.clear()  # else it is only reported to wait
    work, before = {"command": "true"}, made.snapshot()
    stored = {kind: dict(records) for kind, records in made.engine.state.opaque_records.items()}
    inside = quote(name.encode("utf-8", "surrogatepass"), safe="")
    _, request = make_request("n1")
    asked = [
        ("POST", "/v1/workloads", {"name": name, **work}),
        ("POST", "/v1/workloads", {"name": "job", "project": name, **work}),
        ("POST", "/v1/workloads", {"name": "job", "kind": "service", "placement": {"pool": name}, **work}),
        ("POST", "/v1/workloads", {"name": "job", "env": {"X": {"secret": name}}, **work}),
        ("POST", "/v1/plans", [{"name": name, **work}]),
        ("POST", "/v1/tokens", {"name": name, "role": "viewer", "projects": ["web"]}),
        ("POST", "/v1/tokens", {"name": "robot", "role": "viewer", "projects": [name]}),
        ("POST", "/v1/reservations", {"name": name, "project": "web", "nodes": ["n1"], "start": "1h"}),
        ("POST", "/v1/join", {"id": token.id, "secret": token.secret, "node": name, "request": request}),
        ("POST", "/v1/join", {"id": name, "secret": name, "node": "n1", "request": request}),
        ("PUT", f"/v1/projects/{inside}", {"weight": 2}),
        ("PUT", f"/v1/pools/{inside}", {"strategy": "best_fit"}),
        ("PUT", f"/v1/projects/{inside}/secrets/key", {"value": "v"}),
        ("PUT", f"/v1/projects/web/secrets/{inside}", {"value": "v"}),
        ("GET", f"/v1/workloads/{inside}/job/instances/0/log", None),
        ("GET", f"/v1/workloads/default/{inside}/instances/0/log", None),
        ("GET", f"/v1/history/default/{inside}/1/instances", None),
        ("DELETE", f"/v1/nodes/{inside}", None),
    ]  # fmt: skip
    for method, path, body in asked:
        if method == "POST" and body is not None and "pool" in str(body) and name == "":
            continue  # no pool in particular
        assert 400 <= await sent(port, method, path, body) < 500, (method, path[:80], str(body)[:80])
    assert made.snapshot() == before and made.engine.state.opaque_records == stored


@pytest.fixture
async def gate(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    async with secured_server(FileLogs(tmp_path / "data" / "logs")) as status:
        yield status


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_no_name_in_a_hello_leads_elsewhere(gate: SecuredServer, tmp_path: Path, name: str) -> None:
    if name == NAMES["surrogate in JSON"]:
        return  # protobuf has no such text
    before = tree(tmp_path)
    document = encode_document(read_document({"name": "job", "command": "true"}))
    facts = pb.Facts(resources={"cpu": 1_000}, pool="default")
    report = pb.Report(token=1, state="ended", cause="exited", log_size=10)
    runs = [pb.Held(run=pb.Run(token=1, workload=name, attempt=1, document=document, serial=1), report=report)]
    hellos = [
        pb.Hello(node=name, identity="m", facts=facts),
        pb.Hello(node="n1", identity="m", facts=facts, runs=runs),
        pb.Hello(node="n1", identity="m", facts=pb.Facts(resources={name: 1}, pool="default")),
        pb.Hello(node="n1", identity="m", facts=pb.Facts(pool=name)),
        pb.Hello(node="n1", identity="m", facts=pb.Facts(drivers=[name], pool="default")),
    ]
    async with channel_to(gate.port, node_bundle("n1")) as channel:
        for hello in hellos:
            text = [pb.AgentFrame(hello=hello).SerializeToString()]
            code, message = await spoken(channel, f"/{AGENTS}/Connect", text)
            assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED), message
    assert not gate.engine.state.nodes and tree(tmp_path) == before


async def test_a_node_ships_a_log_under_its_one_name_only(gate: SecuredServer, tmp_path: Path) -> None:
    """Another spelling of the same numbers would be another file, of which no caller knows when it can go."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root")
    async with played(gate.port) as agent:
        await agent.hello()
        await gate.submit()
        (run,) = runs_of(await agent.orders())
        good = f"default/job/{run.serial}/0.1"
        wide = "".join(chr(0xFF10 + int(digit)) for digit in str(run.serial))
        names = [
            f"default/job/{wide}/0.1", f"default/job/0{run.serial}/0.1", f"default/job/{run.serial}/00.1",
            f"default/job/{run.serial}/0.01", f"default/job/{run.serial}/0.\u0661", f"default/job/{run.serial}/0.1\n",
            f"./default/job/{run.serial}/0.1", f"default/../default/job/{run.serial}/0.1", f"{good}/", f"/{good}",
            f"default/job/{run.serial}/0.1+log", f"{good}\x00", "../../etc/passwd", "/etc/passwd", "", *NAMES.values(),
        ]  # fmt: skip
        async with channel_to(gate.port, node_bundle("n1")) as channel:
            for name in names:
                if name == NAMES["surrogate in JSON"]:
                    continue
                chunk = pb.LogChunk(log=name, data=b"planted")
                code, message = await spoken(
                    channel, f"/{AGENTS}/Ship", [pb.LogChunks(chunks=[chunk]).SerializeToString()]
                )
                assert code is grpc.StatusCode.INVALID_ARGUMENT, (name, message)
            assert tree(tmp_path) == {"etc/passwd": 4}
            chunk = pb.LogChunk(log=good, data=b"wanted")
            assert await spoken(channel, f"/{AGENTS}/Ship", [pb.LogChunks(chunks=[chunk]).SerializeToString()]) == (
                grpc.StatusCode.OK, "",
            )  # fmt: skip
    stored = {"etc/passwd": 4, f"data/logs/default/job/{run.serial}/0.1/0+log": 6}
    assert tree(tmp_path) == stored


async def test_a_server_fetches_no_file_that_is_no_log(gate: SecuredServer, tmp_path: Path) -> None:
    (tmp_path / "data" / "seal.key").parent.mkdir(exist_ok=True)
    (tmp_path / "data" / "seal.key").write_text("the key")
    async with channel_to(gate.port, server_bundle()) as channel:
        for name in ("../seal.key", "a/b/1/../../../../../seal.key", "a/b/1/0.1", "/etc/passwd", *NAMES.values()):
            if name != NAMES["surrogate in JSON"]:
                text = servers.LogRequest(log=name).SerializeToString()
                assert await asked(channel, f"/{SERVERS}/FetchLog", text) == (grpc.StatusCode.OK, [])
