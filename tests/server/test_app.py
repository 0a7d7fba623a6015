"""The server as a whole: started, stopped in order, started again; and what keeps it from starting, in one sentence."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from roost_lab.components import postgres
from roost_lab.components.ports import free_port

from roost.agent.connection.enrolment import join
from roost.agent.connection.identity import NodeIdentity
from roost.model.records.enrolment import Bundle, read_token
from roost.server.app import CannotStart, serve
from roost.server.config import ServerConfig
from roost.server.http.server import listen
from roost.wire import agent_pb2 as pb
from tests.server.gateway_server import SERVICE, Played, played, runs_of
from tests.server.inprocess_server import events

ADMIN = "the-admins-token"
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine

LEASE_MS = 60_000

PROGRAM = """
import json, sys
from pathlib import Path
from roost.server.app import run
from roost.server.config import ServerConfig
given = json.loads(sys.argv[1])
config = ServerConfig(**{**given, "data": Path(given["data"])})
sys.exit(run(config, lambda port, agents_port: print(json.dumps([port, agents_port]), flush=True)))
"""


def config(data: Path, **given: Any) -> ServerConfig:
    return ServerConfig(**{"data": data, "port": 0, "agents_port": 0, "admin_token": ADMIN, **given})


@asynccontextmanager
async def serving(data: Path, **given: Any) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """A server in this process; a client of it, and the agents' port. Its lease is long: played agents are silent."""
    given = {"lease_ms": LEASE_MS, **given}
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    ready: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(config(data, **given), lambda *ports: ready.set_result(ports), stopping))
        port, agents_port = await asyncio.wait_for(ready, DEADLINE_S)
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=DEADLINE_S
        ) as client:
            yield client, agents_port
        stopping.set()


async def joined(client: httpx.AsyncClient, folder: Path, name: str = "n1") -> Bundle:
    """The certificate of a node that has joined as machines do."""
    token = (await client.post("/v1/join-tokens")).json()["token"]
    return await asyncio.to_thread(join, NodeIdentity(str(folder)), read_token(token), name)


@contextmanager
def process(data: Path, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own."""
    answer = {"data": str(data), "port": 0, "agents_port": 0, "admin_token": ADMIN, **given}
    command = [sys.executable, "-c", PROGRAM, json.dumps(answer)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def ports(running: subprocess.Popen[str]) -> tuple[int, int]:
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, running.communicate()
    port, agents_port = json.loads(line)
    return port, agents_port


async def test_what_was_taken_in_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        answer = await client.post("/v1/workloads", json={"name": "kept", "command": "true"})
        assert answer.status_code == 201
        revision = (await client.get("/v1/status")).json()["revision"]
    async with serving(tmp_path) as (client, _):
        page = (await client.get("/v1/workloads")).json()
        assert [item["name"] for item in page["items"]] == ["kept"] and page["revision"] >= revision
        async with events(client, "/v1/changes", since=revision - 1) as report:
            assert (await report.next())["event"] == "reset"


@pytest.mark.parametrize("store", ["sqlite", "memory"])
async def test_a_job_goes_through_the_whole_server(tmp_path: Path, store: str) -> None:
    given = {"strategy": "best_fit", "store": store}
    async with (
        serving(tmp_path, **given) as (client, agents_port),
        played(agents_port, bundle=await joined(client, tmp_path)) as agent,
    ):
        await agent.hello()
        await client.post("/v1/workloads", json={"name": "job", "command": "true"})
        assert (await agent.orders()).orders[0].workload == "default/job"
        view = (await client.get("/v1/workloads/default/job")).json()
        assert view["state"] == "running"
        status = (await client.get("/v1/status")).json()
        assert (status["strategy"], status["agents_connected"], status["nodes"]) == ("best_fit", 1, {"ready": 1})


@pytest.mark.parametrize("store", ["sqlite", "memory"])
async def test_logs_are_files_with_every_store(tmp_path: Path, store: str) -> None:
    async with (
        serving(tmp_path, store=store) as (client, agents_port),
        played(agents_port, bundle=await joined(client, tmp_path)) as agent,
    ):
        await agent.hello()
        await client.post("/v1/workloads", json={"name": "job", "command": "true"})
        (run,) = runs_of(await agent.orders())
        ship = agent.channel.stream_stream(f"/{SERVICE}/Ship")()
        chunk = pb.LogChunk(log=f"default/job/{run.serial}/0.1", data=b"hello")
        await ship.write(pb.LogChunks(chunks=[chunk]).SerializeToString())
        await ship.read()
    assert [path.read_bytes() for path in (tmp_path / "logs").rglob("*") if path.is_file()] == [b"hello"]


async def test_a_server_that_forgets_still_knows_its_nodes_by_their_certificates(tmp_path: Path) -> None:
    async with serving(tmp_path, store="memory") as (client, agents_port):
        bundle = await joined(client, tmp_path)
    async with serving(tmp_path, store="memory") as (_, agents_port), played(agents_port, bundle=bundle) as agent:
        await agent.hello()


async def test_a_stop_ends_streams_and_moves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, agents_port):
        agent = Played(agents_port, bundle=await joined(client, tmp_path))
        await agent.hello()
        await client.post("/v1/workloads", json={"name": "job", "command": "true", "fenced": False})
        await agent.orders()
        async with asyncio.TaskGroup() as group, events(client, "/v1/changes") as answer:
            await answer.next(marks=True)
            following = group.create_task(answer.next())
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await following)["event"] == "stopping"
            assert await answer.ended()
    assert (await agent.ending())[0] == grpc.StatusCode.UNAVAILABLE
    await agent.close()
    async with serving(tmp_path) as (client, _):
        instance = (await client.get("/v1/workloads/default/job/instances/0")).json()
        assert (instance["state"], instance["attempt"], instance["node"]) == ("placed", 1, "n1")


def test_a_signal_stops_in_order(tmp_path: Path) -> None:
    with process(tmp_path) as running:
        port, _ = ports(running)
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/workloads",
            json={"name": "job", "command": "true"},
            headers={"authorization": f"Bearer {ADMIN}"},
        )
        assert answer.status_code == 201
        running.send_signal(signal.SIGTERM)
        output, lines = running.communicate(timeout=DEADLINE_S)
        assert running.returncode == 0
        report = [json.loads(line)["event"] for line in lines.splitlines()]
        assert report[:2] == ["a new CA was made", "ready"] and report[-1] == "stopped"
        assert ADMIN not in lines + output
        assert not (tmp_path / "roost.db-wal").exists()  # a clean end


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with process(tmp_path) as running:
        port, _ = ports(running)
        # A request whose body never comes keeps the server waiting for its grace.
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client, open_request(port):
            assert client.get("/livez").status_code == 200
            running.send_signal(signal.SIGINT)
            wait_until_closed(port)
            running.send_signal(signal.SIGINT)
            assert running.wait(DEADLINE_S) == 130, "0: it has waited for the request"


@contextmanager
def open_request(port: int) -> Iterator[None]:
    import socket

    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = (
            f"POST /v1/workloads HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 99\r\n\r\n{{"
        )
        connection.sendall(head.encode())
        yield


def wait_until_closed(port: int) -> None:
    """The first signal has been seen: the port is closed."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/livez", timeout=1.0)
        except httpx.ConnectError:
            return
        time.sleep(0.01)
    raise AssertionError("the server still listens")


def refusal(data: Path, **given: Any) -> str:
    """What a server that does not start says: one line, exit code 1, no traceback."""
    with process(data, **given) as running:
        output, lines = running.communicate(timeout=DEADLINE_S)
        assert running.returncode == 1 and output == ""
        assert "Traceback" not in lines
        answer = [line for line in lines.splitlines() if line.startswith("roost server: ")]
        assert len(answer) == 1, lines
        return answer[0]


def test_a_port_that_is_taken_is_reported(tmp_path: Path) -> None:
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    message = refusal(tmp_path, port=port)
    assert f"127.0.0.1:{port}" in message and "another --listen address" in message
    message = refusal(tmp_path, agents_port=port)
    assert str(port) in message and "another --agents-listen address" in message
    taken.close()


def test_a_damaged_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "roost.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    assert "roost.db" in refusal(tmp_path)


def test_a_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert "file" in refusal(tmp_path / "file" / "data")


def test_an_unknown_strategy_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    assert "round_robin" in refusal(tmp_path, strategy="cleverest")


PASSWORD = "not-to-be-seen-4711"


def test_a_store_that_refuses_the_user_is_an_error_at_the_start(tmp_path: Path) -> None:
    with postgres.running() as database:
        here = f"127.0.0.1:{database.port}"
        wrong = f"postgresql://guarded:{PASSWORD}@{here}/postgres"
        message = refusal(tmp_path, store=wrong, agents_port=free_port())
        assert "refused the user" in message and PASSWORD not in message
        message = refusal(tmp_path, store=f"postgresql://postgres@{here}/nowhere", agents_port=free_port())
        assert "has no such database" in message


async def test_large_documents_are_read_without_a_fork_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"name": f"job-{number}", "command": "x" * 1_000} for number in range(100)]
    async with serving(tmp_path) as (client, _):
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", lambda: pytest.fail("the server forks"))
            assert (await client.post("/v1/workloads/batch", json=jobs)).status_code == 201


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        with pytest.raises(CannotStart, match="in use"):
            await serve(config(tmp_path))
        assert (await client.get("/readyz")).status_code == 200
