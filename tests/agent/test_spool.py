"""Logs on their way: as they were written, while they are written, after restarts, and nothing about silent runs."""

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from roost.blobs.memory import MemoryBlobs
from roost.drivers.fake import Act
from roost.ports.driver import Ended, Event, Started
from roost.server.logs import ENOUGH
from roost.stores.memory import Memory, MemoryStore
from tests.agent.desk import PacedDriver, agent, until
from tests.server.stage import Stage, stage


def log_of(server: Stage, index: int = 0) -> str:
    workload = server.engine.state.workloads["default/job"]
    return f"default/job/{workload.serial}/{index}.1"


class Printing(PacedDriver):
    """Runs that print: their logs are written when they end, or as the test likes."""

    def __init__(self, output: bytes, after_ms: int | None = 0) -> None:
        super().__init__(lambda run: (Act(after_ms=after_ms),))
        self.output = output

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, Started):
            with open(self._known[event.id].run.log, "ab") as file:
                file.write(self.output)
        if isinstance(event, Ended):
            event = replace(event, log_size=os.stat(self._known[event.id].run.log).st_size)
            self._known[event.id].ended = event
        super()._pass_on(event)


@pytest.mark.parametrize(
    "output",
    [b"one line\n", b"x" * 65_531 + b"\n", bytes(range(256)) * 100, b"no newline \xff\xfe at the end", b"\0" * 300_000],
    ids=["a line", "a long line", "all bytes", "not text", "more than a chunk"],
)
async def test_log_bytes_arrive_unchanged_and_the_file_goes(tmp_path: Path, output: bytes) -> None:
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(output)):
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        log = log_of(server)
        await until(lambda: server.logs.finished(log, over=True))
        assert server.logs.read(log, 0, len(output) + 10) == output
        await until(lambda: not os.listdir(tmp_path / "logs"))


async def test_a_silent_run_says_nothing_of_its_log(tmp_path: Path) -> None:
    async with stage() as server, agent(server.port, tmp_path) as (service, _):
        await server.submit(count=4)
        await server.until(lambda: server.states() == ["succeeded"] * 4)
        assert service.spool._call is None and not service.spool._logs, "not even a stream was opened"


async def test_output_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(b"first\n", None)) as (_, driver):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        log = log_of(server)
        await until(lambda: server.logs.size(log) == 6)
        (life,) = driver._live.values()
        for number in range(5):
            with open(life.run.log, "ab") as file:
                file.write(b"more\n")
            await until(lambda number=number: server.logs.size(log) == 6 + 5 * (number + 1))  # type: ignore[misc]
        assert not server.logs.finished(log, over=False)


async def test_without_inotify_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.agent.notice._watch", lambda folder: -1)
    monkeypatch.setattr("roost.agent.notice.LOOK_S", 0.02)
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(b"first\n", None)):
        await server.submit()
        await server.until(lambda: server.states() == ["running"])
        await until(lambda: server.logs.size(log_of(server)) == 6)


async def test_a_new_server_gets_a_log_from_its_beginning(tmp_path: Path) -> None:
    memory = Memory()
    async with stage(MemoryStore(memory)) as server:
        port = server.port
        async with agent(port, tmp_path, driver=Printing(b"before\n", None)) as (_, driver):
            await server.submit()
            await server.until(lambda: server.states() == ["running"])
            await until(lambda: server.logs.size(log_of(server)) == 7)
            await server.gateway.stop(0)
            server.engine.stop()
            async with stage(MemoryStore(memory), MemoryBlobs(), port) as again:
                await until(lambda: again.logs.size(log_of(again)) == 7)
                assert again.logs.read(log_of(again), 0, 100) == b"before\n"


async def test_what_an_earlier_agent_left_behind_and_nobody_knows_is_removed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "default~job~77~0.1").write_bytes(b"left behind")
    (tmp_path / "logs" / "default~job~77~1.1").write_bytes(b"")
    async with stage() as server, agent(server.port, tmp_path):
        await until(lambda: not os.listdir(tmp_path / "logs"))
        assert server.logs.size("default/job/77/0.1") is server.logs.size("default/job/77/1.1") is None


async def test_a_server_that_has_enough_of_a_log_gets_no_more_of_it(tmp_path: Path) -> None:
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(b"0123456789" * 10_000)) as (service, _):
        server.logs._size_max = 1_000
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        await until(lambda: not os.listdir(tmp_path / "logs"))
        text = server.logs.read(log_of(server), 0, 5_000)
        assert text.startswith(b"0123456789" * 100 + b"\n[roost: this log was cut")


async def test_many_logs_share_a_stream_and_none_starves(tmp_path: Path) -> None:
    big = b"b" * 3_000_000
    async with stage() as server:
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
    monkeypatch.setattr("roost.agent.spool.RETRY_S_MAX", 0.05)
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(b"words")):
        keep = server.logs.append

        def full(*args: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(server.logs, "append", full)
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        monkeypatch.setattr(server.logs, "append", keep)
        await until(lambda: server.logs.size(log_of(server)) == 5)


async def test_a_file_that_is_no_log_is_left_alone_and_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "notes.txt").write_bytes(b"somebody's")
    async with stage() as server, agent(server.port, tmp_path, driver=Printing(b"words")):
        (tmp_path / "logs" / "more~notes").write_bytes(b"of somebody")
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        await until(lambda: server.logs.size(log_of(server)) == 5)
        await until(lambda: sorted(os.listdir(tmp_path / "logs")) == ["more~notes", "notes.txt"])


async def test_of_a_log_nobody_wants_more_of_the_disk_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roost.agent.spool.HOLE_BYTES", 1 << 20)
    async with stage() as server:
        server.logs._size_max = 1_000
        async with agent(server.port, tmp_path, driver=Printing(b"x" * 2_000, None)) as (service, driver):
            await server.submit()
            await server.until(lambda: server.states() == ["running"])
            await until(lambda: service.spool._logs[log_of(server)].kept == ENOUGH)
            (life,) = driver._live.values()
            with open(life.run.log, "ab") as file:
                file.write(b"y" * (4 << 20))
            found = os.stat(life.run.log)
            if not service.spool._logs[log_of(server)].holed:
                await until(lambda: service.spool._logs[log_of(server)].holed)
                found = os.stat(life.run.log)
            assert found.st_size == 2_000 + (4 << 20)
            assert found.st_blocks * 512 < 1 << 20 or not _punches(tmp_path)


def _punches(folder: Path) -> bool:
    """Whether the file system here can give back a part of a file."""
    return subprocess.run(["fallocate", "-l", "1M", "-p", folder / "probe"], capture_output=True).returncode == 0
