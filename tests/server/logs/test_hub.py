"""Logs: kept as they come, followed as they come, complete when they are complete, and never larger than allowed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from roost.blobs.log_files import FileLogs
from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_files import FileObjects
from roost.blobs.object_memory import MemoryObjects
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
    return LogHub(MemoryLogs(), MemoryObjects(), **{"settle_ms": 0, **limits})


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


async def test_chunks_are_kept_at_their_offsets_and_repeats_are_harmless() -> None:
    hub = hub_of()
    assert hub.size(LOG) is None
    assert hub.append(LOG, 0, b"abc") == 3
    assert hub.append(LOG, 0, b"abc") == 3
    assert hub.append(LOG, 5, b"gap") == 3
    assert hub.append(LOG, 2, b"cde") == 5
    assert [await hub.read(LOG, *place) for place in ((0, 100), (1, 2), (5, 9))] == [b"abcde", b"bc", b""]


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
    LogHub(FileLogs(tmp_path), MemoryObjects()).append(LOG, 0, b"abc")
    again = LogHub(FileLogs(tmp_path), MemoryObjects(), settle_ms=60_000)
    assert again.size(LOG) == 3
    assert not again.finished(LOG, LOST)
    assert not again.finished(LOG, LogEnd(True, 4))
    assert again.finished(LOG, LogEnd(True, 3))
    assert LogHub(FileLogs(tmp_path), MemoryObjects(), settle_ms=0).finished(LOG, LOST)


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


async def test_a_log_that_is_too_long_is_cut_with_a_mark_and_the_agent_informed_that_it_is_enough() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 0, b"01234") == 5
    assert hub.append(LOG, 5, b"56789") == 10
    assert hub.append(LOG, 10, b"more") == ENOUGH
    assert hub.append(LOG, 14, b"and more") == ENOUGH
    text = await hub.read(LOG, 0, 1_000)
    assert text.startswith(b"0123456789\n[roost: this log was cut here, after 10 bytes")
    assert text.count(b"roost") == 1
    assert hub.finished(LOG, LogEnd(True, 22)) and not hub.missing(LOG, LogEnd(True, 22))


async def test_a_cut_in_the_middle_of_a_chunk_keeps_what_fits() -> None:
    hub = hub_of(size_max=10)
    assert hub.append(LOG, 4, b"456789abc") == 0, "a gap is a gap, also at the limit"
    assert hub.append(LOG, 0, b"0123456789abc") == ENOUGH
    assert await hub.read(LOG, 0, 11) == b"0123456789\n"


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
        hub.finished(f"web/build/{number}/0.1", LogEnd(True, 1))
    assert len(hub.machine.entries) <= 100
    for number in range(1_000):
        hub.append(f"web/build/{number}/0.1", 0, b"x")
    assert hub.size("web/build/0/0.1") == 1, "what is on the local disk only is not forgotten"


async def test_a_disk_that_refuses_is_answered_to_the_sender(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the place of the root")
    hub = LogHub(FileLogs(tmp_path / "logs"), MemoryObjects())
    assert isinstance(hub.append(LOG, 0, b"abc"), LogsUnavailable)
    assert hub.missing(LOG, LogEnd(True, 3)) == 3, "nothing is taken for kept"
    shorter = LogHub(FileLogs(tmp_path / "logs"), MemoryObjects(), size_max=2)
    assert isinstance(shorter.append(LOG, 0, b"abc"), LogsUnavailable)


async def test_a_store_of_objects_that_refuses_is_unavailable_to_readers(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file in the place of the root")
    hub = LogHub(MemoryLogs(), FileObjects(tmp_path / "root"))
    with pytest.raises(NoService, match="cannot be listed"):
        await hub.list_segments(LOG)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def test_full_segments_are_sealed_and_read_again_by_another_server() -> None:
    objects, tails = MemoryObjects(), MemoryLogs()
    hub = LogHub(tails, objects, segment_bytes=10)
    data = bytes(range(47))
    hub.append(LOG, 0, data[:25])
    hub.append(LOG, 25, data[25:])
    assert hub.durable(LOG) == 0
    await until(lambda: hub.durable(LOG) == 40)
    assert await hub.read(LOG, 0, 100) == data and await hub.read(LOG, 8, 5) == data[8:13]
    assert [(local.key, local.size) for local in tails.found()] == [(f"{LOG}/40", 7)]
    other = LogHub(MemoryLogs(), objects)
    await other.list_segments(LOG)
    assert (other.size(LOG), await other.read(LOG, 5, 100)) == (40, data[5:40])
    assert other.append(LOG, 40, data[40:]) == 47, "it goes on where the segments end"
    assert await other.read(LOG, 38, 100) == data[38:]


async def test_the_rest_of_a_log_is_sealed_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "SWEEP_S", 0.01)
    tails, ends = MemoryLogs(), [LIVE]
    hub = LogHub(tails, MemoryObjects(), settle_ms=3_600_000)
    sweeping = asyncio.ensure_future(hub.run(lambda name: ends[-1]))
    hub.append(LOG, 0, b"abc")
    ends.append(LogEnd(True, 5))
    hub.append(LOG, 3, b"de")
    await until(lambda: hub.durable(LOG) == 5)
    assert not tails.found() and not hub.machine.local_bytes
    assert await hub.read(LOG, 0, 100) == b"abcde"
    sweeping.cancel()


async def test_a_log_that_is_dropped_while_it_is_sealed_leaves_no_object() -> None:
    objects = MemoryObjects()
    hub = LogHub(MemoryLogs(), objects, segment_bytes=10)
    hub.append(LOG, 0, bytes(10))
    hub.drop("web/build/7")
    await until(lambda: not hub.machine._sealing)
    hub.close()
    assert objects.list("logs.d") == []


async def test_parts_stay_while_objects_cannot_be_put_and_are_sealed_later(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file in the place of the root")
    tails = MemoryLogs()
    hub = LogHub(tails, FileObjects(root), segment_bytes=10)
    hub.append(LOG, 0, bytes(10))
    await until(lambda: not hub.machine._sealing)
    assert hub.durable(LOG) == 0 and await hub.read(LOG, 0, 100) == bytes(10)
    root.unlink()
    again = LogHub(tails, FileObjects(root), segment_bytes=10)  # after a restart
    again.append(LOG, 10, b"x")
    await until(lambda: again.durable(LOG) == 10)
    assert await again.read(LOG, 0, 100) == bytes(10) + b"x"


async def test_a_damaged_segment_is_refused_and_named() -> None:
    objects = MemoryObjects()
    hub = LogHub(MemoryLogs(), objects, segment_bytes=10)
    hub.append(LOG, 0, bytes(10))
    await until(lambda: hub.durable(LOG) == 10)
    (key,) = objects.list("logs.d")
    objects.put(key, objects.get(key)[:-1])
    with pytest.raises(NoService, match=f"{key} is damaged"):
        await hub.read(LOG, 0, 10)
    objects.delete(key)
    with pytest.raises(NoService, match="is gone"):
        await hub.read(LOG, 0, 10)


async def test_a_closed_hub_seals_no_more() -> None:
    hub, broken = hub_of(segment_bytes=1), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    hub.append(LOG, 0, b"more segments than are sealed at once")
    hub.close()
    await until(lambda: hub.sealed_bytes == log_machine.SEALS_MAX)
    assert not broken


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
