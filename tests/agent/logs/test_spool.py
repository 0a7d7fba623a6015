"""Logs on their way: as they were written, while they are written, after restarts, and nothing about silent runs."""

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from roost.agent.logs.machine import ReadFile
from roost.agent.logs.spool import Spool
from roost.agent.prepare import log_file
from roost.blobs.log_memory import MemoryLogs
from roost.drivers.fake import ScriptedAct
from roost.keeper.run import KeeperRun
from roost.server.logs.machine import ENOUGH
from roost.stores.memory import Memory, MemoryStore
from roost.wire import agent_pb2 as pb
from tests.agent.agent_harness import PacedDriver, agent, until
from tests.server.gateway_server import GatewayServer, gateway_server


def log_of(server: GatewayServer, index: int = 0) -> str:
    workload = server.engine.state.workloads["default/job"]
    return f"default/job/{workload.serial}/{index}.1"


ERRORS = b"warning: \xff\n"


class Printing(PacedDriver):
    """Runs that print: their logs are written when they end, or as the test likes."""

    def __init__(self, output: bytes, after_ms: int | None = 0) -> None:
        super().__init__(lambda run: (ScriptedAct(after_ms=after_ms),))
        self.output = output

    def spawn(self, run: KeeperRun) -> str:
        for log in run.logs:
            with open(log, "ab") as file:
                file.write(self.output if log == run.log else ERRORS)
        return super().spawn(run)

    def finished(self, run: KeeperRun, now: int) -> int:
        super().finished(run, now)
        run.stderr_size = os.stat(run.stderr).st_size if run.stderr else 0
        return os.stat(run.log).st_size


@pytest.mark.parametrize(
    "output",
    [b"one line\n", b"x" * 65_531 + b"\n", bytes(range(256)) * 100, b"no newline \xff\xfe at the end", b"\0" * 300_000],
    ids=["a line", "a long line", "all bytes", "not text", "more than a chunk"],
)
async def test_log_bytes_arrive_unchanged_and_the_file_goes(tmp_path: Path, output: bytes) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, driver=Printing(output)):
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        log = log_of(server)
        await until(lambda: server.logs.size(log) == len(output))
        assert await server.logs.read(log, 0, len(output) + 10) == output
        await until(lambda: not os.listdir(tmp_path / "logs"))


async def test_a_separate_stderr_is_a_second_log_with_its_size_in_the_state(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path, driver=Printing(b"out\n")):
        await server.submit(stderr="separate")
        await server.until(lambda: server.states() == ["succeeded"])
        log = log_of(server)
        await until(lambda: (server.logs.size(log), server.logs.size(f"{log}.stderr")) == (4, len(ERRORS)))
        assert (await server.logs.read(log, 0, 99), await server.logs.read(f"{log}.stderr", 0, 99)) == (
            b"out\n",
            ERRORS,
        )
        (instance,) = server.engine.state.instances.values()
        assert (instance.log_size, instance.stderr_size) == (4, len(ERRORS))
        assert instance.story[-1].stderr_size == len(ERRORS)
        await until(lambda: not os.listdir(tmp_path / "logs"))


async def test_the_next_agent_sends_the_stderr_of_live_and_of_ended_runs(tmp_path: Path) -> None:
    async with gateway_server() as server:
        driver = Printing(b"", None)
        async with agent(server.port, tmp_path, driver=driver):
            await server.submit(stderr="separate", count=2)
            await server.until(lambda: server.states() == ["running"] * 2)
            logs = [f"{log_of(server, index)}.stderr" for index in range(2)]
            await until(lambda: all(server.logs.size(log) == len(ERRORS) for log in logs))
        live, over = driver.rules.live.values()
        for run in (live, over):
            with open(run.stderr, "ab") as file:
                file.write(b"without any agent!\n")
        driver.kill(over)
        async with agent(server.port, tmp_path, driver=driver):
            await until(lambda: all(server.logs.size(log) == len(ERRORS) + 19 for log in logs))
            await until(lambda: not os.path.exists(over.stderr))
            assert os.path.exists(live.stderr)


async def test_a_silent_run_says_nothing_of_its_log(tmp_path: Path) -> None:
    async with gateway_server() as server, agent(server.port, tmp_path) as (service, _):
        await server.submit(count=4)
        await server.until(lambda: server.states() == ["succeeded"] * 4)
        assert service.spool._call is None and not service.spool.machine.logs, "not even a stream was opened"


async def test_output_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    async with (
        gateway_server() as server,
        agent(server.port, tmp_path, driver=Printing(b"first\n", None)) as (_, driver),
    ):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        log = log_of(server)
        await until(lambda: server.logs.size(log) == 6)
        (run,) = driver.rules.live.values()
        for number in range(5):
            with open(run.log, "ab") as file:
                file.write(b"more\n")
            await until(lambda number=number: server.logs.size(log) == 6 + 5 * (number + 1))  # type: ignore[misc]


async def test_without_inotify_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.agent.logs.file_watch._watch", lambda folder: -1)
    monkeypatch.setattr("roost.agent.logs.file_watch.LOOK_S", 0.02)
    async with gateway_server() as server, agent(server.port, tmp_path, driver=Printing(b"first\n", None)):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        await until(lambda: server.logs.size(log_of(server)) == 6)


async def test_a_new_server_gets_a_log_from_its_beginning(tmp_path: Path) -> None:
    memory = Memory()
    async with gateway_server(MemoryStore(memory)) as server:
        port = server.port
        async with agent(port, tmp_path, driver=Printing(b"before\n", None)) as (_, driver):
            await server.submit()
            await server.until(lambda: server.states() == ["running"])
            await until(lambda: server.logs.size(log_of(server)) == 7)
            await server.gateway.stop(0)
            server.engine.stop()
            async with gateway_server(MemoryStore(memory), MemoryLogs(), port) as again:
                await until(lambda: again.logs.size(log_of(again)) == 7)
                assert await again.logs.read(log_of(again), 0, 100) == b"before\n"


async def test_unknown_leftovers_of_an_earlier_agent_are_removed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "default~job~77~0.1").write_bytes(b"left behind")
    (tmp_path / "logs" / "default~job~77~1.1").write_bytes(b"")
    async with gateway_server() as server, agent(server.port, tmp_path):
        await until(lambda: not os.listdir(tmp_path / "logs"))
        assert server.logs.size("default/job/77/0.1") is server.logs.size("default/job/77/1.1") is None


async def test_a_server_that_has_enough_of_a_log_gets_no_more_of_it(tmp_path: Path) -> None:
    async with (
        gateway_server() as server,
        agent(server.port, tmp_path, driver=Printing(b"0123456789" * 10_000)) as (service, _),
    ):
        server.logs.machine.size_max = 1_000
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        await until(lambda: not os.listdir(tmp_path / "logs"))
        text = await server.logs.read(log_of(server), 0, 5_000)
        assert text.startswith(b"0123456789" * 100 + b"\n[roost: this log was cut")


async def test_many_logs_share_a_stream_and_none_starves(tmp_path: Path) -> None:
    big = b"b" * 3_000_000
    async with gateway_server() as server:
        offer = {"cpu": 64_000}
        async with agent(server.port, tmp_path, driver=Printing(big, None), resources=offer) as (_, driver):
            await server.submit(count=20)
            await server.until(lambda: server.states() == ["running"] * 20)
            logs = [log_of(server, index) for index in range(20)]
            await until(lambda: all(server.logs.size(log) for log in logs))
            assert any((server.logs.size(log) or 0) < len(big) for log in logs), "all have begun before one is done"
            await until(lambda: all(server.logs.size(log) == len(big) for log in logs))


async def test_trouble_with_logs_is_waited_out_and_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.agent.logs.machine.RETRY_MS_MAX", 50)
    async with gateway_server() as server, agent(server.port, tmp_path, driver=Printing(b"words")):
        keep = server.logs.append

        def full(*args: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(server.logs, "append", full)
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        monkeypatch.setattr(server.logs, "append", keep)
        await until(lambda: server.logs.size(log_of(server)) == 5)


async def test_a_file_that_is_no_log_is_left_alone_and_disturbs_no_other_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "notes.txt").write_bytes(b"somebody's")
    async with gateway_server() as server, agent(server.port, tmp_path, driver=Printing(b"words")):
        (tmp_path / "logs" / "more~notes").write_bytes(b"of an operator")
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        await until(lambda: server.logs.size(log_of(server)) == 5)
        await until(lambda: sorted(os.listdir(tmp_path / "logs")) == ["more~notes", "notes.txt"])


async def test_of_a_log_that_was_taken_in_full_the_disk_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.agent.logs.machine.HOLE_BYTES", 1 << 20)
    async with gateway_server() as server:
        server.logs.machine.size_max = 1_000
        async with agent(server.port, tmp_path, driver=Printing(b"x" * 2_000, None)) as (service, driver):
            await server.submit()
            await server.until(lambda: server.states() == ["running"])
            await until(lambda: service.spool.machine.logs[log_of(server)].kept == ENOUGH)
            (run,) = driver.rules.live.values()
            with open(run.log, "ab") as file:
                file.write(b"y" * (4 << 20))
            found = os.stat(run.log)
            if not service.spool.machine.logs[log_of(server)].holed:
                await until(lambda: service.spool.machine.logs[log_of(server)].holed)
                found = os.stat(run.log)
            assert found.st_size == 2_000 + (4 << 20)
            assert found.st_blocks * 512 < 1 << 20 or not _punches(tmp_path)


def _punches(folder: Path) -> bool:
    """Whether the file system here can give back a part of a file."""
    return subprocess.run(["fallocate", "-l", "1M", "-p", folder / "probe"], capture_output=True).returncode == 0


class Shelf:
    """Takes logs as a server does; its oldest stream may hang or break, as the test likes."""

    def __init__(self) -> None:
        self.logs = MemoryLogs()
        self.streams = 0
        self.first_stream = "answers"  # answers | hangs | breaks
        self.troubled = asyncio.Event()

    async def ship(self, _: object, context: Any) -> None:
        """One stream."""
        self.streams += 1
        is_first = self.streams == 1
        while (data := await context.read()) is not grpc.aio.EOF:
            if is_first and self.first_stream != "answers":
                self.troubled.set()
                if self.first_stream == "breaks":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
                await asyncio.Event().wait()
            chunks = pb.LogChunks.FromString(data).chunks
            kept = [(log_chunk.log, self._keep(log_chunk)) for log_chunk in chunks]
            sizes = [pb.LogSize(log=log, size=size, durable=size) for log, size in kept]
            await context.write(pb.LogSizes(sizes=sizes).SerializeToString())

    def _keep(self, chunk: pb.LogChunk) -> int:
        return self.logs.append(chunk.log, chunk.offset, chunk.data) if chunk.data else self.logs.size(chunk.log) or 0


@asynccontextmanager
async def shelved(tmp_path: Path) -> AsyncIterator[tuple[Shelf, Spool]]:
    """A spool that has shipped a first log whole: a stream is open, and there is nothing to tell."""
    shelf, server = Shelf(), grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(shelf.ship)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shelf", {"Ship": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        spool = Spool(str(tmp_path / "logs"), lambda: channel.stream_stream("/shelf/Ship")(wait_for_ready=True), list)
        spool.begin(())
        running = asyncio.ensure_future(spool.run())
        try:
            over(spool, "p/job/1/0.1", b"first")
            await until(lambda: not os.listdir(tmp_path / "logs"))
            yield shelf, spool
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await server.stop(0)


def over(spool: Spool, name: str, output: bytes) -> None:
    """A run is over before a watch has seen its log grow: the file is moved to its place, which no watch tells of."""
    file = Path(spool._folder, log_file(name))
    written = file.parent.parent / "written"
    written.write_bytes(output)
    written.rename(file)
    spool.ended(name, len(output))
    spool.release(name)


async def test_a_new_session_begins_a_new_stream_even_if_there_was_nothing_to_ship(tmp_path: Path) -> None:
    async with shelved(tmp_path) as (shelf, spool):
        shelf.first_stream = "hangs"
        spool.reconnected()
        over(spool, "p/job/1/0.2", b"second")
        await until(lambda: shelf.logs.size("p/job/1/0.2") == 6)
        await until(lambda: not os.listdir(tmp_path / "logs"))
        assert shelf.streams == 2 and not shelf.troubled.is_set(), "nothing was reported on the old one"


async def test_a_new_session_ends_the_wait_for_an_answer_on_the_old_stream(tmp_path: Path) -> None:
    async with shelved(tmp_path) as (shelf, spool):
        shelf.first_stream = "hangs"
        over(spool, "p/job/1/0.2", b"second")
        await shelf.troubled.wait()
        spool.reconnected()
        await until(lambda: shelf.logs.size("p/job/1/0.2") == 6)
        await until(lambda: not os.listdir(tmp_path / "logs"))


async def test_what_was_on_a_stream_that_broke_is_sent_again_without_a_further_word(tmp_path: Path) -> None:
    async with shelved(tmp_path) as (shelf, spool):
        shelf.first_stream = "breaks"
        over(spool, "p/job/1/0.2", b"second")
        await until(lambda: shelf.logs.size("p/job/1/0.2") == 6)
        await until(lambda: not os.listdir(tmp_path / "logs"))
        await spool.idle.wait()


async def test_a_new_session_without_logs_opens_no_stream(tmp_path: Path) -> None:
    async with shelved(tmp_path) as (shelf, spool):
        spool.reconnected()
        await until(lambda: spool._call is None)
        assert shelf.streams == 1


async def test_a_link_in_the_place_of_a_log_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    async with shelved(tmp_path) as (shelf, spool):
        (tmp_path / "logs" / log_file("p/job/1/0.7")).symlink_to(tmp_path / "secret")
        spool.ended("p/job/1/0.7", 6)
        over(spool, "p/job/1/0.8", b"mine")
        await until(lambda: shelf.logs.size("p/job/1/0.8") == 4)
        assert not shelf.logs.read("p/job/1/0.7", 0, 100)


async def test_a_log_that_cannot_be_opened_for_a_moment_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shelved(tmp_path) as (shelf, spool):
        read, failures = Spool._read, [OSError(errno.EMFILE, "Too many open files")]

        def busy(self: Spool, wanted: ReadFile) -> tuple[bytes, int]:
            if failures:
                raise failures.pop()
            return read(self, wanted)

        monkeypatch.setattr(Spool, "_read", busy)
        over(spool, "p/job/1/0.2", b"second")
        await until(lambda: shelf.logs.size("p/job/1/0.2") == 6)
        await until(lambda: not os.listdir(tmp_path / "logs"))
        assert not failures
