"""One look at a run's health: real servers, real commands, and everything that they may do instead of answering."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from roost.agent.health import probe as probe_module
from roost.agent.health.probe import CHECK_MARK, ProbeTarget, end_leftovers, probe
from roost.keeper.processes import MARK
from roost.model.spec.service import Check
from tests.agent.agent_harness import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
AGES_MS = 60_000  # a timeout that no test reaches


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """Something that listens on a port of its own."""
    tasks: list[asyncio.Task[Any]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def looked(port: int, path: str = "", timeout_ms: int = AGES_MS) -> str:
    return await probe(ProbeTarget(Check(path=path, port="web", timeout_ms=timeout_ms), port))


# --- connections ------------------------------------------------------------------------------------------------------


async def test_a_connection_is_enough_for_tcp() -> None:
    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(send_nothing) as port:
        assert await looked(port) == ""


async def test_where_no_server_listens_there_is_no_connection() -> None:
    assert await looked(free_port()) == "connection refused"
    assert await looked(free_port(), "/healthz") == "connection refused"


async def test_a_port_that_was_not_given_is_not_well() -> None:
    assert await looked(0) == "the run was given no such port"
    assert await looked(0, "/") == "the run was given no such port"


async def test_a_backlog_that_is_full_is_cut_at_the_timeout() -> None:
    """No server accepts: the kernel takes so many and lets the others wait."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listener.getsockname())
        assert await looked(listener.getsockname()[1], timeout_ms=100) == "no answer within 100 ms"
        for one in waiting:
            one.close()


# --- requests ---------------------------------------------------------------------------------------------------------


def answering(*parts: bytes, then: Serve | None = None) -> tuple[Serve, list[bytes]]:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then is not None:
            await then(reader, writer)

    return serve, received


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def endless_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"X-More: and more\r\n" * 1_000)
        await writer.drain()


ANSWERS = {
    "200": ([b"HTTP/1.1 200 OK\r\n\r\n"], None, ""),
    "204 in pieces": ([b"HT", b"TP/1.0 2", b"04", b" No Content\r", b"\n\r\n"], None, ""),
    "a redirection is not followed": ([b"HTTP/1.1 302 Found\r\nLocation: http://10.255.255.1/\r\n\r\n"], None, ""),
    "399": ([b"HTTP/1.1 399 \r\n\r\n"], None, ""),
    "400": ([b"HTTP/1.1 400 Bad\r\n\r\n"], None, "400"),
    "503": ([b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 9\r\n\r\nno, sorry"], None, "503"),
    "early hints": ([b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"], None, ""),
    "a body without an end": ([b"HTTP/1.1 200 OK\r\n\r\n"], endless_lines, ""),
    "headers without an end": ([b"HTTP/1.1 200 OK\r\n"], endless_lines, ""),
    "hints without an end": ([b"HTTP/1.1 100 Go on\r\n"], endless_lines, "the answer does not come to its point"),
    "a line without an end": ([b"HTTP" + bytes(100_000)], endless, "the answer is not HTTP: its line does not end"),
    "not HTTP": ([b"SSH-2.0-OpenSSH_9.2\r\n"], None, "the answer is not HTTP"),
    "bytes": ([b"\x00\xff\n"], None, "the answer is not HTTP"),
    "nothing": ([], None, "the answer ends before it says anything"),
    "half an answer": ([b"HTTP/1.1 102 Processing\r\n"], None, "the answer is not complete"),
    "silence": ([], endless, "no answer within 200 ms"),
    "half a line and silence": ([b"HTTP/1.1 20"], endless, "no answer within 200 ms"),
}  # fmt: skip


@pytest.mark.parametrize("parts, then, message", ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_answer_of_200_to_399_is_well(parts: list[bytes], then: Serve | None, message: str) -> None:
    serve, received = answering(*parts, then=then)
    async with serving(serve) as port:
        patience_ms = 200 if then is endless and "line" not in message else AGES_MS
        assert await looked(port, "/healthz", patience_ms) == message
        assert len(received) == 1


async def test_the_request_is_plain_whatever_the_path_says() -> None:
    serve, received = answering(b"HTTP/1.1 200 OK\r\n\r\n")
    async with serving(serve) as port:
        assert await looked(port, "/a b/ü?x=1&y=%20#z") == ""
        head = received[0].decode().split("\r\n")
        assert head[:2] == ["GET /a%20b/%C3%BC?x=1&y=%20%23z HTTP/1.1", f"Host: 127.0.0.1:{port}"]
        assert "Connection: close" in head


async def test_a_look_that_is_broken_off_closes_its_connection() -> None:
    closed = asyncio.Event()
    asked = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with suppress(OSError):
            await reader.read()
        closed.set()

    async with serving(wait) as port:
        task = asyncio.ensure_future(looked(port, "/"))
        await asked.wait()
        task.cancel()
        async with asyncio.timeout(10):
            await closed.wait()
        assert task.cancelled()


# --- commands ---------------------------------------------------------------------------------------------------------


def command(tmp_path: Path, script: str | list[str], timeout_ms: int = AGES_MS, **env: str) -> ProbeTarget:
    argv = ("/bin/sh", "-c", script) if isinstance(script, str) else tuple(script)
    check = Check(argv=argv, timeout_ms=timeout_ms)
    return ProbeTarget(check, directory=str(tmp_path), env={"PATH": "/usr/bin:/bin", CHECK_MARK: "1", **env})


@pytest.mark.parametrize(
    "script, message",
    [
        ("true", ""),
        ("echo all is well; exit 0", ""),
        ("exit 3", "exit code 3"),
        ("echo cannot reach the database >&2; echo 'try   again'; exit 1",
         "exit code 1: cannot reach the database try again"),
        ("kill -9 $$", "ended by signal 9"),
        ("printf '\\377\\000x'; exit 1", "exit code 1: \ufffd\x00x"),
        (["/no/such/program"], "/no/such/program: no such file or directory"),
        (["no-such-program"], "no-such-program: no such file or directory"),
        (["/"], "/: permission denied"),
        (["a\0b"], "a\0b: embedded null byte"),
    ],
)  # fmt: skip
async def test_a_command_is_well_when_it_ends_with_0(tmp_path: Path, script: str | list[str], message: str) -> None:
    assert await probe(command(tmp_path, script)) == message


async def test_a_command_has_the_runs_directory_and_environment_and_nothing_of_ours(tmp_path: Path) -> None:
    os.environ["TEST_OF_OURS"] = "secret"
    try:
        message = await probe(command(tmp_path, "pwd; env | grep -c OURS; echo $A; cat; exit 1", A="b"))
    finally:
        del os.environ["TEST_OF_OURS"]
    assert message == f"exit code 1: {tmp_path} 0 b"


async def test_a_run_without_a_directory_is_not_well(tmp_path: Path) -> None:
    assert await probe(command(tmp_path / "gone", "true")) == f"{tmp_path}/gone: no such file or directory"


async def test_megabytes_of_output_leave_their_end(tmp_path: Path) -> None:
    script = "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 1"
    message = await probe(command(tmp_path, script))
    assert message.endswith("x the end") and len(message) < 250


async def test_a_command_that_only_prints_is_read_at_leisure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each full read is followed by a pause, so others have their turn however much there is to read."""
    reads: list[float] = []
    take = probe_module._Output._take

    def count(self: Any) -> int:
        reads.append(time.monotonic())
        return take(self)

    monkeypatch.setattr(probe_module._Output, "_take", count)
    monkeypatch.setattr(probe_module, "READ_PAUSE_S", 0.05)
    message = await probe(command(tmp_path, ["/bin/cat", "/dev/zero"], 300))
    assert message.startswith("no end within 300 ms")
    assert 2 <= len(reads) <= 20


async def test_a_command_that_hangs_is_ended_at_its_timeout_with_all_it_has_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $! > pids; (sleep 300 & echo $! >> pids; wait) & echo waiting; wait"
    target = command(tmp_path, script, 1_000)
    assert await probe(target) == "no end within 1 s: waiting"
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    await until(lambda: not any(_lives(pid) for pid in pids))


async def test_what_a_command_leaves_behind_is_ended_with_it(tmp_path: Path) -> None:
    assert await probe(command(tmp_path, "sleep 300 & echo $! > pid")) == ""
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not _lives(pid))


async def test_a_command_that_is_broken_off_is_ended_and_taken_in(tmp_path: Path) -> None:
    task = asyncio.ensure_future(probe(command(tmp_path, "echo $$ > pid; sleep 300")))
    pid = int(await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() and not os.path.exists(f"/proc/{pid}"), "not even a zombie"


async def test_nothing_stays_open(tmp_path: Path) -> None:
    await probe(command(tmp_path, "true"))
    before = len(os.listdir("/proc/self/fd"))
    for script in ("true", "exit 1", "sleep 300", "echo $$"):
        await probe(command(tmp_path, script, 100 if "sleep" in script else AGES_MS))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_where_the_kernel_tells_nothing_a_command_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert await probe(command(tmp_path, "exit 3")) == "exit code 3"
    assert await probe(command(tmp_path, "sleep 300", 100)) == "no end within 100 ms"


async def test_what_a_dead_agent_has_left_behind_is_ended_and_nothing_else(tmp_path: Path) -> None:
    mark = str(tmp_path)
    sleep = ["/bin/sleep", "300"]
    left = await asyncio.create_subprocess_exec(*sleep, env={MARK: mark, CHECK_MARK: "1"})
    own = await asyncio.create_subprocess_exec(*sleep, env={MARK: mark})
    other = await asyncio.create_subprocess_exec(*sleep, env={MARK: f"{mark}/other", CHECK_MARK: "1"})
    try:
        await until(
            lambda: all(b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in (left, own, other))
        )
        assert end_leftovers("") == 0
        assert end_leftovers(mark) == 1
        assert await left.wait() == -9
        assert own.returncode is None and other.returncode is None
    finally:
        own.kill()
        other.kill()
        await own.wait()
        await other.wait()


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
