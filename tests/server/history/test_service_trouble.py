"""Trouble with the history: killed, deleted, full, damaged, too slow, too large. The server never feels it, and what is
missing is reported."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from roost.core.replica import load
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService, NotFound
from roost.ports.store import Change, Snapshot
from roost.server.history import database as database_module
from roost.server.history import retention
from roost.server.history import service as front
from roost.server.history import writer as writer_module
from roost.server.history.as_of import Moment, earliest_ms, state_at
from roost.server.history.database import open_for_reading
from roost.server.history.queue import Begin, Front, Item, Mark, Signal
from roost.server.history.search import EventsWanted, Period, search_events, search_workloads
from roost.server.history.service import History
from roost.server.history.writer import HistoryWriter
from tests.core.random_clusters import small_cluster
from tests.server.recorded_history import FOREVER_MS, RecordedHistory, recorded_history, until

JOB = {"name": "one", "command": "true", "resources": {"cpu": 1}}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_S_MIN", "LOOK_S", "LINGER_S", "ROOM_EVERY_S"):
        monkeypatch.setattr(writer_module, name, 0.01)


async def names(made: RecordedHistory) -> list[str]:
    found, _ = await made.history.read(search_workloads, "", "", "", Period(), 1_000, "")
    return sorted(over_view.name for over_view in found)


async def whats(made: RecordedHistory, **wanted: Any) -> list[str]:
    found, _ = await made.history.read(search_events, EventsWanted(**wanted), 1_000, "")
    return [event.what for event in found[::-1]]


def reloaded(made: RecordedHistory) -> State:
    return load(Snapshot(made.state.revision, made.was[made.state.revision]), made.state.now_ms)


async def test_what_the_writer_did_not_see_is_found_in_the_state(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        await made.written()
    unseen = RecordedHistory(History(tmp_path / "nowhere", Settings()), reloaded(made))
    unseen.happens("run", 0)
    unseen.happens("end", 0)
    unseen.happens("submit", {**JOB, "name": "two"})
    async with recorded_history(tmp_path, reloaded(unseen)) as after:
        after.happens("run", 0)
        await after.written()
        assert after.history.standing().gaps == 1
        assert await names(after) == ["one"]
        seen = ["submitted", "queued", "placed", "running", "succeeded", "succeeded"]
        assert sorted(await whats(after, project="default", workload="one")) == sorted(seen), "each once"
        moment = await after.history.moment(f"{after.state.now_ms - unseen.state.now_ms + 5}ms", after.state.now_ms)
        assert moment.revision == made.state.revision and moment.gap == (
            "what happened next is not known: no history was kept then"
        )
        after.was |= made.was
        for revision in after.was:
            assert await after.differs(f"@{revision}", revision) == []
        with pytest.raises(NotFound):
            await after.history.moment(f"@{made.state.revision + 1}", after.state.now_ms)


@pytest.mark.parametrize("small", [True, False])
async def test_a_deleted_file_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    monkeypatch.setattr(front, "SMALL_RECORDS", 500 if small else 0)
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        made.happens("end", 0)
        await made.written()
        for path in tmp_path.glob("history.db*"):
            path.unlink()
        await until(lambda: (made.history.take(made.state, ()), made.history.standing().gaps)[1] == 1)
        made.happens("submit", {**JOB, "name": "two"})
        await made.written()
        assert await names(made) == ["one"], "the state still knows it"
        assert await made.differs(f"@{made.state.revision}", made.state.revision) == []
        with pytest.raises(NotFound):
            await made.history.moment("@1", made.state.now_ms)


async def test_a_full_disk_is_reported_and_overcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [60]
    opened = database_module.open_for_writing

    def open_small(path: Path) -> apsw.Connection:
        database = opened(path)
        database.execute(f"PRAGMA max_page_count = {pages[0]}").fetchall()
        return database

    monkeypatch.setattr(database_module, "open_for_writing", open_small)
    async with recorded_history(tmp_path) as made:
        await made.written()
        while not made.history.standing().failed:
            name = f"job-{made.state.revision}"
            made.happens("submit", {**JOB, "name": name, "env": {"NOISE": os.urandom(2_000).hex()}})
            made.happens("end", 0)
            await asyncio.sleep(0.001)
        assert "full" in made.history.standing().failed
        made.happens("submit", {**JOB, "name": "unseen"})
        made.happens("end", 0)
        pages[0] = 1_000_000
        await until(lambda: (made.history.take(made.state, ()), not made.history.standing().failed)[1])
        await made.written()
        assert "unseen" in await names(made) and made.history.standing().gaps == 1
        assert set(await names(made)) == {workload.name for workload in made.state.workloads.values()}
        assert await made.differs(f"@{made.state.revision}", made.state.revision) == []


async def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        await made.written()
    (tmp_path / "history.db").write_bytes(b"this is no database at all " * 1_000)
    async with recorded_history(tmp_path, reloaded(made)) as after:
        after.happens("end", 0)
        await after.written()
        assert await names(after) == ["one"]
    assert (tmp_path / "history.db.aside").read_bytes().startswith(b"this is no database")


async def test_when_the_writer_falls_behind_the_engine_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_take = threading.Event()
    gather = writer_module.HistoryWriter._gather

    def gather_when_allowed(self: writer_module.HistoryWriter) -> list[Item]:
        may_take.wait()
        return gather(self)

    monkeypatch.setattr(front, "QUEUE_CHANGES_MAX", 30)
    monkeypatch.setattr(writer_module.HistoryWriter, "_gather", gather_when_allowed)
    async with recorded_history(tmp_path) as made:
        try:
            for number in range(40):  # the writer takes nothing meanwhile, and this does not wait for it
                made.happens("submit", {**JOB, "name": f"job-{number}"})
                made.happens("end", 0)
            assert made.history.standing().waiting <= 30, "the rest was not queued"
        finally:
            may_take.set()
        await made.written()
        assert made.history.standing().gaps == 1
        assert len(await names(made)) == 40
        assert len(await whats(made, what="placed")) == 40
        made.happens("submit", JOB)
        await made.written()
        assert await made.differs(f"@{made.state.revision}", made.state.revision) == []


def test_a_mark_for_an_earlier_scan_does_not_end_a_later_one(tmp_path: Path) -> None:
    state, shared = small_cluster(), Front()
    writer = writer_module.HistoryWriter(tmp_path / "history.db", FOREVER_MS, 1 << 40, shared, lambda: None)
    writer._ready()
    writer._take([Begin(state, 1, state.revision, state.revision, state.now_ms, {}, None)])
    writer._take([Signal.LOST])
    assert shared.scans == 2
    writer._take([Mark(1, 0, state.revision, state.now_ms)])
    assert shared.revision == 0, "the second scan may have seen what came after that mark"
    writer._take([Mark(2, 0, state.revision, state.now_ms)])
    assert shared.revision == state.revision


async def test_a_record_that_cannot_be_read_costs_a_gap_and_no_more(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        await made.written()
        made.state.revision += 1
        made.history.take(made.state, [Change("workload", "default/odd", b"this is no record")])
        await until(lambda: (made.history.take(made.state, ()), made.history.standing().gaps)[1] == 1)
        made.happens("submit", JOB)
        made.happens("end", 0)
        await made.written()
        assert await names(made) == ["one"] and not made.history.standing().failed


async def test_what_is_old_goes_and_the_rest_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SNAPSHOT_CHANGES_MIN", 20)
    monkeypatch.setattr(writer_module, "SNAPSHOT_SHARE", 0)
    async with recorded_history(tmp_path) as made:
        for number in range(30):
            made.happens("submit", {**JOB, "name": f"job-{number:02}", "retention": 0})
            made.happens("end", 0)
            made.happens("wait", 40)
            await made.written()
    now_ms = made.state.now_ms
    cutoff_ms = now_ms - 300_000
    database = database_module.open_for_writing(tmp_path / "history.db")
    room = retention.HistoryRetention()
    while room.make(database, cutoff_ms, 1 << 40, {}) == "more":
        pass
    database.close()
    after = RecordedHistory(History(tmp_path, Settings(), retention_ms=FOREVER_MS), reloaded(made))
    after.was |= made.was
    stored = await names(after)
    assert 0 < len(stored) < 10 and "job-29" in stored
    earliest = await after.history.read(earliest_ms)
    assert earliest is not None and now_ms - 600_000 < earliest <= cutoff_ms, "one snapshot before, for what comes next"
    with pytest.raises(NotFound, match="does not go back that far"):
        await after.history.moment("10m", now_ms + 600_000 - (now_ms - earliest) - 1)
    shown = [revision for revision, at_ms in made.times.items() if at_ms >= cutoff_ms]
    for revision in shown:
        assert await after.differs(f"@{revision}", revision) == []
    found, _ = await after.history.read(search_events, EventsWanted(), 10_000, "")
    assert found and all(event.at_ms >= cutoff_ms for event in found)
    await after.history.close()


async def test_a_history_stays_within_its_size(tmp_path: Path) -> None:
    most = 1 << 20
    async with recorded_history(tmp_path, bytes_max=most) as made:
        for number in range(60):
            for index in range(10):
                noise = os.urandom(1_500).hex()
                made.happens(
                    "submit", {**JOB, "name": f"job-{number}-{index}", "retention": 0, "env": {"NOISE": noise}}
                )
                made.happens("end", 0)
            made.happens("wait", 1)
            await made.written()
        await until(lambda: made.history.standing().bytes <= most)
        await made.written()
        stored = await names(made)
        assert 0 < len(stored) < 600 and "job-59-9" in stored
        assert await made.differs(f"@{made.state.revision}", made.state.revision) == []


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.server.recorded_history import recorded_history

async def main():
    async with recorded_history(Path(sys.argv[1])) as made:
        number = 0
        while True:
            number += 1
            made.happens("submit", {"name": f"job-{number}", "command": "true", "resources": {"cpu": 1}})
            made.happens("run", 0)
            made.happens("end", 0)
            if number == 200:
                await made.written()  # some of it is there, whichever of the two threads is quicker
            if number % 20 == 0:
                print(number, flush=True)
                await asyncio.sleep(0)

asyncio.run(main())
"""


def test_killed_while_it_writes_the_file_is_whole(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 400 and (tmp_path / "history.db-wal").exists():
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    database = database_module.open_for_writing(tmp_path / "history.db")
    assert database.execute("PRAGMA integrity_check").get == "ok"
    stretch = database_module.last_stretch(database)
    assert stretch is not None and stretch.revision > 1
    shown = state_at(database, Moment(stretch.revision, stretch.at_ms, stretch.id), Settings())
    assert shown.revision == stretch.revision
    over = {f"job-{number}" for number in range(1, 10_000)} & {
        workload.name for workload in shown.workloads.values() if workload.finished_ms
    }
    found = {row[0] for row in database.execute("SELECT name FROM workloads")}
    assert over and over == found, "finished workloads and the state were written together"
    database.close()
    open_for_reading(tmp_path / "history.db").close()


@pytest.mark.parametrize("defect", [RuntimeError("planted"), SystemExit("planted")], ids=["error", "exit"])
async def test_a_writer_that_dies_is_started_again_and_reported_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: BaseException
) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        await made.written()
        gather, reported = HistoryWriter._gather, threading.Event()

        def fail(writer: HistoryWriter) -> list[Item]:
            monkeypatch.setattr(HistoryWriter, "_gather", gather)
            monkeypatch.setattr(writer_module.time, "sleep", lambda _: reported.wait(60))
            raise defect

        monkeypatch.setattr(HistoryWriter, "_gather", fail)
        made.happens("end", 0)
        await until(lambda: (made.history.take(made.state, ()), "planted" in made.history.standing().failed)[1])
        reported.set()
        made.happens("submit", {**JOB, "name": "two"})
        made.happens("end", 0)
        await made.written()
        assert made.history.standing().failed == ""
        assert await names(made) == ["one", "two"]


async def test_a_writer_that_has_ended_for_good_is_reported(tmp_path: Path) -> None:
    async with recorded_history(tmp_path) as made:
        assert not made.history.standing().failed
        made.history._front.stopping = True
        made.history._front.queue.put(Signal.STOP)
        await until(lambda: made.history.standing().failed)
        assert "thread has ended" in made.history.standing().failed


async def test_a_question_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with recorded_history(tmp_path) as made:
        made.happens("submit", JOB)
        await made.written()

        def endless(database: apsw.Connection) -> int:
            query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
            return int(database.execute(query).get)

        monkeypatch.setattr(front, "QUERY_S_MAX", 0.05)
        with pytest.raises(NoService) as caught:
            await made.history.read(endless)
        assert caught.value.code == "busy" and "more than 0.05 s" in caught.value.message
        monkeypatch.setattr(front, "QUERY_S_MAX", 60.0)
        assert await names(made) == []
