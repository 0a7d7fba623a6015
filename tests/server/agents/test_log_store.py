"""Logs: kept as they come, followed as they come, complete when they are complete, and never larger than allowed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from roost.blobs.files import FileBlobs
from roost.blobs.memory import MemoryBlobs
from roost.server.agents import log_store
from roost.server.agents.log_store import ENOUGH, LogHub

LOG = "web/build/7/0.1"
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


def hub_of(**limits: float) -> LogHub:
    return LogHub(MemoryBlobs(), **{"settle_s": 0.0, **limits})  # type: ignore[arg-type]


class Reader:
    """Somebody who follows a log."""

    def __init__(self, hub: LogHub, offset: int = 0, is_over: Callable[[], bool] = lambda: False) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.came = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(hub, offset, is_over))

    async def _read(self, hub: LogHub, offset: int, is_over: Callable[[], bool]) -> None:
        async for piece in hub.follow(LOG, offset, is_over):
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
    assert hub.append(LOG, 0, b"abc", False) == 3
    assert hub.append(LOG, 0, b"abc", False) == 3
    assert hub.append(LOG, 5, b"gap", False) == 3
    assert hub.append(LOG, 2, b"cde", False) == 5
    assert (hub.read(LOG, 0, 100), hub.read(LOG, 1, 2), hub.read(LOG, 5, 9)) == (b"abcde", b"bc", b"")


def test_an_announced_log_without_bytes_makes_no_blob() -> None:
    hub = hub_of()
    assert hub.append(LOG, 0, b"", False) == 0
    assert hub.append(LOG, 90, b"", False) == 0
    assert hub.size(LOG) is None


async def test_followers_get_what_is_there_and_then_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "LOOK_S", 60)
    hub = hub_of()
    hub.append(LOG, 0, b"one ", False)
    reader, late = Reader(hub), Reader(hub, 2)
    assert await reader.next() == (0, b"one ")
    assert await late.next() == (2, b"e ")
    hub.append(LOG, 4, b"two", False)
    assert await reader.next() == (4, b"two")
    assert not reader.task.done()
    hub.append(LOG, 7, b"!", True)
    assert (await reader.all(), await late.all()) == (b"one two!", b"e two!")


async def test_a_log_ends_when_it_has_the_bytes_that_its_report_told() -> None:
    hub = hub_of()
    reader = Reader(hub, is_over=lambda: True)
    hub.expect(LOG, 5)
    hub.append(LOG, 0, b"abc", False)
    assert await reader.next() == (0, b"abc")
    assert not hub.finished(LOG, over=True) and not reader.task.done()
    hub.append(LOG, 3, b"de", False)
    assert await reader.all() == b"abcde"
    assert hub.finished(LOG, over=False)


async def test_bytes_before_the_report_are_fine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "LOOK_S", 60)
    hub = hub_of()
    reader = Reader(hub)
    hub.append(LOG, 0, b"abc", False)
    await reader.next()
    hub.expect(LOG, 3)
    assert await reader.all() == b"abc"


async def test_an_attempt_that_printed_nothing_has_a_finished_log_without_a_word_about_it() -> None:
    hub = hub_of()
    assert not hub.finished(LOG, over=False)
    assert hub.finished(LOG, over=True)
    assert await Reader(hub, is_over=lambda: True).all() == b""


async def test_whoever_waits_for_a_silent_attempt_is_let_go_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "LOOK_S", 0.01)
    hub, over = hub_of(), asyncio.Event()
    reader = Reader(hub, is_over=over.is_set)
    hub.append(LOG, 0, b"last words", False)
    await reader.next()
    over.set()
    assert await reader.all() == b"last words"


def test_after_a_restart_agents_have_time_to_tell_what_they_have_not_sent(tmp_path: Path) -> None:
    LogHub(FileBlobs(tmp_path)).append(LOG, 0, b"abc", False)
    again = LogHub(FileBlobs(tmp_path), settle_s=60)
    assert again.size(LOG) == 3
    assert not again.finished(LOG, over=True)
    again.expect(LOG, 3)
    assert again.finished(LOG, over=True)
    assert LogHub(FileBlobs(tmp_path), settle_s=0).finished(LOG, over=True)


async def test_a_node_that_is_gone_with_the_rest_of_a_log_lets_readers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "LOOK_S", 0.01)
    hub = hub_of(stall_s=0.05)
    hub.append(LOG, 0, b"abc", False)
    hub.expect(LOG, 100)
    assert not hub.finished(LOG, over=True)
    assert await Reader(hub, is_over=lambda: True).all() == b"abc"


async def test_a_slow_reader_reads_from_the_blob_at_its_own_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "READ_BYTES_MAX", 10)
    hub = hub_of()
    pieces = hub.follow(LOG, 0)
    hub.append(LOG, 0, b"0123456789" * 5, False)
    assert await anext(pieces) == (0, b"0123456789")
    hub.append(LOG, 50, b"rest", True)
    assert await anext(pieces) == (10, b"0123456789")
    assert [piece async for piece in pieces][-1] == (50, b"rest")


def test_a_log_that_is_too_long_is_cut_with_a_mark_and_the_agent_told_that_it_is_enough() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 0, b"01234", False) == 5
    assert hub.append(LOG, 5, b"56789", False) == 10
    assert hub.append(LOG, 10, b"more", False) == ENOUGH
    assert hub.append(LOG, 14, b"and more", True) == ENOUGH
    text = hub.read(LOG, 0, 1_000)
    assert text.startswith(b"0123456789\n[roost: this log was cut here, after 10 bytes")
    assert text.count(b"roost") == 1
    hub.expect(LOG, 22)
    assert hub.finished(LOG, over=True)


def test_a_cut_in_the_middle_of_a_chunk_keeps_what_fits() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 4, b"456789abc", False) == 0, "a gap is a gap, also at the limit"
    assert hub.append(LOG, 0, b"0123456789abc", False) == ENOUGH
    assert hub.read(LOG, 0, 11) == b"0123456789\n"


def test_a_workloads_logs_go_together_and_no_others() -> None:
    hub = hub_of()
    for name in (LOG, "web/build/7/1.1", "web/build/70/0.1", "web/build-7/7/0.1"):
        hub.append(name, 0, b"x", True)
    hub.drop("web/build/7")
    assert [hub.size(name) for name in (LOG, "web/build/7/1.1")] == [None, None]
    assert [hub.size(name) for name in ("web/build/70/0.1", "web/build-7/7/0.1")] == [1, 1]


async def test_dropping_while_a_loop_runs_happens_in_the_background() -> None:
    hub = hub_of()
    hub.append(LOG, 0, b"x", True)
    hub.drop("web/build/7")
    async with asyncio.timeout(DEADLINE_S):
        while hub.size(LOG) is not None:
            await asyncio.sleep(0)


def test_what_is_remembered_beside_the_blobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "ENTRIES_MAX", 100)
    hub = hub_of()
    for number in range(1_000):
        hub.append(f"web/build/{number}/0.1", 0, b"x", True)
    assert len(hub._entries) <= 100
    assert hub.finished("web/build/999/0.1", over=False)
    assert hub.finished("web/build/0/0.1", over=True)
