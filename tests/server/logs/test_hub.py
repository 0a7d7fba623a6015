"""Logs: kept as they come, followed as they come, complete when they are complete, and never larger than allowed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from roost.blobs.log_files import FileLogs
from roost.blobs.log_memory import MemoryLogs
from roost.model.errors import NoService
from roost.ports.logs import LogsUnavailable
from roost.server.logs import hub as log_hub
from roost.server.logs import machine as log_machine
from roost.server.logs.hub import LogHub
from roost.server.logs.machine import ENOUGH, LIVE, LogEnd

LOG = "web/build/7/0.1"
LOST = LogEnd(over=True)  # with its node, which did not report a size
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


def hub_of(**limits: int) -> LogHub:
    return LogHub(MemoryLogs(), **{"settle_ms": 0, **limits})


class Reader:
    """A follower of a log."""

    def __init__(self, hub: LogHub, offset: int = 0, end: Callable[[], LogEnd] = lambda: LIVE) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.came = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(hub, offset, end))

    async def _read(self, hub: LogHub, offset: int, end: Callable[[], LogEnd]) -> None:
        async for piece in hub.follow(LOG, offset, end):
            self.pieces.append(piece)
            self.came.set()

    async def next(self) -> tuple[int, bytes]:
        async with asyncio.timeout(DEADLINE_S):
            await self.came.wait()
        self.came.clear()
        return self.pieces[-1]

    async def all(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            await self.task
        return b"".join(data for _, data in self.pieces)


def test_chunks_are_kept_at_their_offsets_and_repeats_are_harmless() -> None:
    hub = hub_of()
    assert hub.size(LOG) is None
    assert hub.append(LOG, 0, b"abc") == 3
    assert hub.append(LOG, 0, b"abc") == 3
    assert hub.append(LOG, 5, b"gap") == 3
    assert hub.append(LOG, 2, b"cde") == 5
    assert (hub.read(LOG, 0, 100), hub.read(LOG, 1, 2), hub.read(LOG, 5, 9)) == (b"abcde", b"bc", b"")


def test_an_announced_log_without_bytes_makes_no_blob() -> None:
    hub = hub_of()
    assert hub.append(LOG, 0, b"") == 0
    assert hub.append(LOG, 90, b"") == 0
    assert hub.size(LOG) is None


async def test_followers_get_what_is_there_and_then_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 60)
    hub, ends = hub_of(), [LIVE]
    hub.append(LOG, 0, b"one ")
    reader, late = Reader(hub, 0, lambda: ends[-1]), Reader(hub, 2, lambda: ends[-1])
    assert await reader.next() == (0, b"one ")
    assert await late.next() == (2, b"e ")
    hub.append(LOG, 4, b"two")
    assert await reader.next() == (4, b"two")
    assert not reader.task.done()
    ends.append(LogEnd(True, 8))
    hub.append(LOG, 7, b"!")
    assert (await reader.all(), await late.all()) == (b"one two!", b"e two!")


async def test_a_log_is_finished_when_it_has_the_reported_size() -> None:
    hub, end = hub_of(), LogEnd(True, 5)
    reader = Reader(hub, end=lambda: end)
    hub.append(LOG, 0, b"abc")
    assert await reader.next() == (0, b"abc")
    assert not hub.finished(LOG, end) and not reader.task.done()
    assert hub.missing(LOG, end) == 2
    hub.append(LOG, 3, b"de")
    assert await reader.all() == b"abcde"
    assert hub.finished(LOG, end) and not hub.missing(LOG, end)
    assert not hub.finished(LOG, LIVE)


async def test_an_attempt_that_printed_nothing_has_a_finished_log() -> None:
    hub = hub_of(settle_ms=60_000, stall_ms=60_000)
    assert not hub.finished(LOG, LIVE)
    assert hub.finished(LOG, LogEnd(True, 0))
    assert await Reader(hub, end=lambda: LogEnd(True, 0)).all() == b""


async def test_followers_of_a_quiet_attempt_notice_that_it_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 0.01)
    hub, ends = hub_of(), [LIVE]
    reader = Reader(hub, end=lambda: ends[-1])
    hub.append(LOG, 0, b"last words")
    await reader.next()
    ends.append(LOST)
    assert await reader.all() == b"last words"


def test_after_a_restart_agents_have_time_to_send_the_rest(tmp_path: Path) -> None:
    LogHub(FileLogs(tmp_path)).append(LOG, 0, b"abc")
    again = LogHub(FileLogs(tmp_path), settle_ms=60_000)
    assert again.size(LOG) == 3
    assert not again.finished(LOG, LOST)
    assert not again.finished(LOG, LogEnd(True, 4))
    assert again.finished(LOG, LogEnd(True, 3))
    assert LogHub(FileLogs(tmp_path), settle_ms=0).finished(LOG, LOST)


async def test_bytes_that_a_node_never_sends_are_missing_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 0.01)
    hub, end = hub_of(stall_ms=50), LogEnd(True, 100)
    hub.append(LOG, 0, b"abc")
    assert not hub.finished(LOG, end)
    assert await Reader(hub, end=lambda: end).all() == b"abc"
    assert hub.finished(LOG, end) and hub.missing(LOG, end) == 97


async def test_a_log_that_was_quiet_for_long_is_waited_for_when_its_attempt_ends() -> None:
    hub, end = hub_of(stall_ms=30_000), LogEnd(True, 6)
    hub.append(LOG, 0, b"abc")
    hub.machine.entry(LOG).changed_ms -= 3_600_000  # the last bytes came an hour ago
    assert not hub.finished(LOG, end)
    reading = asyncio.ensure_future(hub.arrived(LOG, 3, end))
    await asyncio.sleep(0)
    assert not reading.done()
    hub.append(LOG, 3, b"def")
    async with asyncio.timeout(DEADLINE_S):
        await reading


async def test_a_slow_reader_reads_from_the_blob_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "READ_BYTES_MAX", 10)
    hub = hub_of()
    pieces = hub.follow(LOG, 0, lambda: LogEnd(True, 54))
    hub.append(LOG, 0, b"0123456789" * 5)
    assert await anext(pieces) == (0, b"0123456789")
    hub.append(LOG, 50, b"rest")
    assert await anext(pieces) == (10, b"0123456789")
    assert [piece async for piece in pieces][-1] == (50, b"rest")


def test_a_log_that_is_too_long_is_cut_with_a_mark_and_the_agent_informed_that_it_is_enough() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 0, b"01234") == 5
    assert hub.append(LOG, 5, b"56789") == 10
    assert hub.append(LOG, 10, b"more") == ENOUGH
    assert hub.append(LOG, 14, b"and more") == ENOUGH
    text = hub.read(LOG, 0, 1_000)
    assert text.startswith(b"0123456789\n[roost: this log was cut here, after 10 bytes")
    assert text.count(b"roost") == 1
    assert hub.finished(LOG, LogEnd(True, 22)) and not hub.missing(LOG, LogEnd(True, 22))


def test_a_cut_in_the_middle_of_a_chunk_keeps_what_fits() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 4, b"456789abc") == 0, "a gap is a gap, also at the limit"
    assert hub.append(LOG, 0, b"0123456789abc") == ENOUGH
    assert hub.read(LOG, 0, 11) == b"0123456789\n"


async def test_a_workloads_logs_go_together_in_the_background_and_no_others() -> None:
    hub = hub_of()
    for name in (LOG, "web/build/7/1.1", "web/build/70/0.1", "web/build-7/7/0.1"):
        hub.append(name, 0, b"x")
    hub.drop("web/build/7")
    async with asyncio.timeout(DEADLINE_S):
        while any(hub.size(name) is not None for name in (LOG, "web/build/7/1.1")):
            await asyncio.sleep(0)
    assert [hub.size(name) for name in ("web/build/70/0.1", "web/build-7/7/0.1")] == [1, 1]


def test_what_is_remembered_beside_the_blobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_machine, "ENTRIES_MAX", 100)
    hub = hub_of()
    for number in range(1_000):
        hub.append(f"web/build/{number}/0.1", 0, b"x")
    assert len(hub.machine.entries) <= 100
    assert hub.finished("web/build/0/0.1", LogEnd(True, 1))


def test_a_disk_that_refuses_is_answered_to_the_sender_and_unavailable_to_readers(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the place of the root")
    hub = LogHub(FileLogs(tmp_path / "logs"))
    assert isinstance(hub.append(LOG, 0, b"abc"), LogsUnavailable)
    assert isinstance(LogHub(FileLogs(tmp_path / "logs"), size_max=2).append(LOG, 0, b"abc"), LogsUnavailable)
    for read in (lambda: hub.read(LOG, 0, 3), lambda: hub.size(LOG), lambda: hub.missing(LOG, LogEnd(True, 3))):
        with pytest.raises(NoService, match="cannot be read here"):
            read()


def test_a_log_that_is_over_is_fetched_until_it_is_whole() -> None:
    hub = hub_of()
    hub.append(LOG, 0, b"abc")
    assert hub.wanted(LOG, LIVE) == hub.wanted(LOG, LogEnd(True, 3)) == 0
    assert hub.wanted(LOG, LogEnd(True, 5)) == 5
    assert hub.wanted(LOG, LOST) == ENOUGH, "another server may have more of it"


def test_servers_are_asked_one_after_the_other_from_where_the_log_ends_here() -> None:
    hub = hub_of()
    asked = []
    for peer, offset in log_machine.sources(hub, LOG, 5, ["none", "some", "all", "more"]):
        asked.append((peer, offset))
        hub.append(LOG, offset, {"none": b"", "some": b"ab", "all": b"cde"}[peer])
    assert asked == [("none", 0), ("some", 0), ("all", 2)]
