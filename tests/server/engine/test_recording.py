"""The journal: every event comes back as it was, files stay within bounds, and a bad disk stops nothing but history."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, get_args

import msgspec
import pytest

from roost.core.invariants import differences
from roost.core.replica import mirror
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model import events as happened
from roost.model.errors import Invalid, Unreadable
from roost.model.events import Event
from roost.model.protocol import Hello, Report, Run, Usage
from roost.model.records.cache import CacheProblem
from roost.model.records.node import Facts
from roost.model.records.opaque import By, OpaqueRecord
from roost.model.records.plan import BlockerText, Pending, Placing, Plan, Stopping
from roost.model.records.project import Pool, Project, Reservation
from roost.model.states import PowerAction
from roost.ports.store import Change, Snapshot, Unavailable
from roost.server.config import ServerConfig, check_config
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.recording import (
    FIRST_LINE,
    Journal,
    RecordedStep,
    checksum,
    journals_in,
    read_entries,
    read_part,
    records_of,
)
from roost.stores.memory import Memory, MemoryStore
from tests.core.scene import Scene, facts_of, job, service, wanted

GENEROUS = 1 << 40

FACTS = facts_of(
    labels={"disk": "fast"}, zone="z", rack="r", region="e", pool="far", arch="arm64", gpu_model="A100",
    taints=("t=v:soft",),
)  # fmt: skip
RUN = Run(1 << 60, "default/one", 3, 2, b"\x00\xff", 1, 2, False, 3, 4, (0, 1), (8_080,), 5)
REPORT = Report(7, "ended", 5, 3, "exited", 1, 9, 2, "why", False, 12)
PLAN = Plan(
    ("default/one",), ("default/three",), ("default/two",), (Placing("default/one.0", "a", "best_fit", (1,), (2,)),),
    (Pending("default/one", 2, "no_room", ("words",), (BlockerText("no_room", ("words",), 3),)),),
    (Stopping("x/y.0", "b"),),
)  # fmt: skip
SOME_OF_EACH: list[Event] = [
    happened.Submit(1, (wanted(job("one", count=3, priority=70, labels={"a": "b"})),), True, PLAN),
    happened.Cancel(2, "default/one", 1),
    happened.Cancel(2, "default/one"),
    happened.Retry(3, "default/one", 0),
    happened.Delete(3, "default/one"),
    happened.ResultPosted(4, "default/job", 7, 12, 3, "seen elsewhere"),
    happened.Approve(4, "default/release", 3),
    happened.RunNow(4, "default/nightly"),
    happened.Promote(4, "default/web"),
    happened.Rollback(4, "default/web", 3),
    happened.SetPower(4, "default/machine", PowerAction.STOP, 0, 30_000),
    happened.Cordon(4, "a"),
    happened.Maintain(4, True, "new switches", 7_200_000),
    happened.MarkPool(4, "far", "failed", "power is out"),
    happened.Drain(4, "a", 600),
    happened.Uncordon(5, "a"),
    happened.Remove(6, "a"),
    happened.SetProject(7, Project("red", 3, {"cpu": 4_000}, True, True)),
    happened.SetPool(8, Pool("far", "best_fit", {"cpu": 150})),
    happened.Reserve(9, Reservation("r", "red", ("a", "b"), 5, 6), 2, "far"),
    happened.Unset(10, "pool", "far"),
    happened.PutRecords(9, (OpaqueRecord("token", "ci", b"hash"), OpaqueRecord("token", "old", None, None))),
    happened.DeleteCaches(9, "red", ("pip",)),
    happened.RestoreCache(9, "a", 7, "pip-1", ("pip-",)),
    happened.SaveCache(9, "a", 7, "pip-1", None, CacheProblem.EMPTY, "x"),
    happened.AttributedRequest(By("ann", "::1"), happened.Cancel(9, "default/a")),
    happened.NodeConnected(11, Hello("a", "machine/2", FACTS, 99, ((RUN, REPORT),))),
    happened.ReportsReceived("a", 1 << 60, 4, (REPORT, Report(8, "running")), True),
    happened.NodeDisconnected("a", 12, True),
    happened.ReadingPaused(120),
    happened.HeartbeatsReceived((("a", 12, 1_700_000_000_000), ("b", 13, 5)), (("a", Usage(1, 2, 3)),)),
]


class NoLeader:
    """Acts on nothing, and counts."""

    def __init__(self) -> None:
        self.acted = 0

    async def act(self, state: State, done: Step) -> None:
        self.acted += 1

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        raise AssertionError("no other client leads")

    def reset(self) -> None:
        pass


@asynccontextmanager
async def engine_with(journal: Journal, store: MemoryStore | None = None) -> AsyncIterator[Engine]:
    engine = Engine(store or MemoryStore(), Settings(), NoLeader(), Clock(), journal)
    await engine.open("test")
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        yield engine
        engine.stop()
    journal.close()


async def submit(engine: Engine, name: str) -> Any:
    return await engine.ask(lambda request: happened.Submit(request, (wanted(job(name)),)))


def written(folder: Path, entries: int = 5) -> Path:
    """A journal with some entries."""
    journal = Journal(folder, GENEROUS, 2 * GENEROUS)
    state = State()
    journal.begin(Snapshot(0, []), 1_000, state.settings)
    for number in range(entries):
        state.now_ms = 1_000 + number
        journal.record(state, [happened.Uncordon(number, "a" * 50)], [Change("node", "a", b"x")])
    journal.close()
    return journals_in(folder)[-1]


def entries_of(path: Path) -> list[RecordedStep]:
    part = read_part(path)
    return list(read_entries(part)) if part else []


def test_every_kind_of_event_comes_back_as_it_was(tmp_path: Path) -> None:
    assert {type(event) for event in SOME_OF_EACH} == set(get_args(Event))
    journal = Journal(tmp_path, GENEROUS, 2 * GENEROUS)
    journal.begin(Snapshot(3, []), 1_000, Settings())
    journal.record(State(), SOME_OF_EACH, [])
    journal.close()
    [entry] = entries_of(*journals_in(tmp_path))
    assert list(entry.events) == SOME_OF_EACH
    assert entry.changes == 0
    for event in SOME_OF_EACH:  # nothing was left at its default by chance
        answer = [name for name in event.__struct_fields__ if name != "request"]
        assert any(getattr(event, name) for name in answer)


async def test_an_engine_records_every_step_and_a_header_with_what_it_loaded(tmp_path: Path) -> None:
    memory = Memory()
    memory.lead("before")
    memory.apply(1, [Change("project", "red", msgspec.msgpack.encode(Project("red", 2)))])
    async with engine_with(Journal(tmp_path), MemoryStore(memory)) as engine:
        facts = Facts({"cpu": 4_000})
        session = await engine.ask(lambda request: happened.NodeConnected(request, Hello("a", "machine", facts, 1)))
        await submit(engine, "one")
        assert engine.heard("a", session, Usage(5))
        await submit(engine, "two")
    [path] = journals_in(tmp_path)
    part = read_part(path)
    assert part is not None
    assert (part.header.part, part.header.first, part.header.settings) == (0, 1, Settings())
    assert [(record.kind, record.key) for record in part.header.records] == [("project", "red")]
    entries = list(read_entries(part))
    assert len(entries) == engine.machine.steps
    kinds = [type(event).__name__ for entry in entries for event in entry.events]
    assert kinds == ["NodeConnected", "Submit", "HeartbeatsReceived", "Submit"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_store_that_failed_begins_a_new_life(tmp_path: Path) -> None:
    class Failing(MemoryStore):
        failing = False

        async def commit(self, epoch: int, changes: Any) -> Any:
            if self.failing:
                self.failing = False
                return Unavailable("no space left")
            return await super().commit(epoch, changes)

    store = Failing()
    async with engine_with(Journal(tmp_path), store) as engine:
        await submit(engine, "kept")
        store.failing = True
        with pytest.raises(Exception, match="no space left"):
            await submit(engine, "gone")
        await eventually(lambda: engine.ready)
        await submit(engine, "again")
    parts = [read_part(path) for path in journals_in(tmp_path)]
    assert [part.header.part for part in parts if part] == [0, 0]
    names = [
        event.specs[0].name
        for part in parts
        if part
        for entry in read_entries(part)
        for event in entry.events
        if isinstance(event, happened.Submit)
    ]
    assert names == ["kept", "again"]  # what was not made durable did not happen


class Full(Journal):
    """On a disk that is full, from a file on."""

    def __init__(self, folder: Path, good: int) -> None:
        super().__init__(folder, 2_000, GENEROUS)
        self._good = good

    def _new_file(self, now_ms: int) -> tuple[Path, IO[bytes]]:
        self._good -= 1
        if self._good >= 0:
            return super()._new_file(now_ms)
        return self._folder / "full.journal", open("/dev/full", "wb", buffering=256)


@pytest.mark.parametrize("good", [0, 1])
async def test_a_full_disk_ends_history_and_nothing_else(
    tmp_path: Path, good: int, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Full(tmp_path, good)
    async with engine_with(journal) as engine:
        for number in range(20):
            assert [done.key for done in await submit(engine, f"job-{number}")] == [f"default/job-{number}"]
        assert journal._file is None
        assert engine.ready
    assert capsys.readouterr().out.count("the journal cannot be written") == 1


async def test_a_folder_that_has_gone_ends_history_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file")  # no folder can be made there
    async with engine_with(journal) as engine:
        await submit(engine, "one")
        assert journal._file is None and engine.ready


def test_files_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 10_000, 50_000)
    state = State()
    journal.begin(Snapshot(0, []), 1_000, state.settings)
    first = journals_in(tmp_path)[0]
    for number in range(3_000):
        state.now_ms = 1_000 + number
        journal.record(state, [happened.Uncordon(number, "a" * 60)], [])
        if number % 100 == 0:
            assert sum(path.stat().st_size for path in journals_in(tmp_path)) < 50_000
    journal.close()
    files = journals_in(tmp_path)
    assert first not in files and 3 <= len(files) <= 5
    assert all(path.stat().st_size < 10_200 for path in files)
    parts = [read_part(path) for path in files]
    numbers = [part.header.part for part in parts if part]
    assert numbers == list(range(numbers[0], numbers[0] + len(files)))
    following = [part.header.first + len(list(read_entries(part))) for part in parts if part]
    assert following[:-1] == [part.header.first for part in parts[1:] if part]


def test_a_large_state_does_not_begin_a_new_file_at_every_step(tmp_path: Path) -> None:
    scene = Scene("a")
    scene.submit(*(job(f"job-{number}") for number in range(50)))
    journal = Journal(tmp_path, 1_000, GENEROUS)
    journal.begin(Snapshot(scene.state.revision, records_of(scene.state)), scene.now, scene.settings)
    for _ in range(20):
        journal.record(scene.state, [happened.Uncordon(1, "a")], [])
    journal.close()
    assert len(journals_in(tmp_path)) == 1


def test_the_records_of_a_state_are_what_a_store_would_load() -> None:
    scene = Scene("a", "b")
    scene.step(
        happened.SetProject(1, Project("red", 2)),
        happened.SetPool(2, Pool("far")),
        happened.Reserve(3, Reservation("r", "red", ("b",), scene.now)),
    )
    scene.submit(job("one", count=9), job("two"))
    scene.ended("one.0")
    assert sorted(records_of(scene.state)) == sorted(scene.memory.snapshot().records)


def test_a_server_may_be_killed_at_any_byte(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    most = 0
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        found = len(entries_of(path))
        assert found >= most
        most = found
    assert most == 5
    path.write_bytes(whole + bytes(5_000))  # a machine that lost power
    assert len(entries_of(path)) == 5


def test_a_damaged_byte_is_reported_with_its_offset(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    part = read_part(path)
    assert part is not None
    size = (len(whole) - part.offset) // 5
    start = part.offset + 2 * size
    for at in range(start, start + size):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with pytest.raises(Unreadable, match=f"{path.name}: damaged at byte {start:,}"):
            entries_of(path)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (b"roost journal 2\n", Invalid, "a journal of format 2; Roost .* reads format 1"),
        (b"roost journal 17\n", Invalid, "a journal of format 17"),
        (b"; MaxProcs: 100\n 1 2 3 4", Unreadable, "this is no journal"),
        (bytes(100), Unreadable, "this is no journal"),
    ],
)
def test_what_is_no_journal_of_this_format_is_refused(
    tmp_path: Path, line: bytes, error: type[Exception], message: str
) -> None:
    path = written(tmp_path)
    path.write_bytes(line + path.read_bytes()[len(FIRST_LINE) :])
    with pytest.raises(error, match=message):
        read_part(path)


def test_a_checksum_tells_order_keys_and_what_has_gone_apart() -> None:
    one, two = Change("node", "a", b"x"), Change("node", "b", b"x")
    tried = [[one, two], [two, one], [one], [Change("node", "a", None)], [Change("node", "a", b"")], []]
    assert len({checksum(item) for item in tried}) == len(tried)


@pytest.mark.parametrize(("most", "total"), [(1_000, GENEROUS), (1 << 30, 1 << 29)])
def test_limits_that_cannot_hold_are_refused(tmp_path: Path, most: int, total: int) -> None:
    config = ServerConfig(
        data=tmp_path, admin_token="a" * 20, record_decisions=tmp_path, record_max=most, record_total=total
    )
    with pytest.raises(Invalid, match="record_max"):
        check_config(config)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


def test_what_a_recording_begins_with_holds_the_versions_that_still_run() -> None:
    scene = Scene("a")
    scene.submit(service("web", command="serve 1"))
    scene.running("web.0")
    scene.apply(service("web", command="serve 2"))
    assert scene.instance("web.0").version == 1
    again = mirror(Snapshot(scene.state.revision, records_of(scene.state)), scene.settings)
    assert differences(again, mirror(scene.memory.snapshot(), scene.settings)) == []
