"""Garbage collection on the leader: what nothing names goes after its grace, what is named or held stays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from roost.blobs.factory import memory_blobs
from roost.blobs.garbage import HOLD_MS
from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.files.manifest import FileEntry, Manifest, encode
from roost.model.errors import NoService
from roost.model.events import PutRecords
from roost.model.records.files import FileSet
from roost.model.records.opaque import OpaqueRecord
from roost.ports.blobs import BlobsUnavailable, digest_of
from roost.server.files import collection, store
from roost.server.files.collection import KIND, OWNER, Collection, going_in
from roost.server.files.store import Files
from roost.server.logs import hub
from roost.server.logs.ends import is_forgotten
from roost.server.logs.hub import ROOT, LogHub
from roost.server.operations.work.named_files import KIND as NAMES
from roost.server.operations.work.named_files import NamedFiles, named_in_state
from tests.server.inprocess_server import InprocessServer, inprocess_server

LATER_MS = 48 * 3_600_000
KEPT, OTHER = b"named by a set", b"named by nothing"
MANIFEST = encode(Manifest((FileEntry("a.txt", 0o644, len(KEPT), digest_of(KEPT)),)))


class Place:
    """A server, its blobs, and a clock that can be set."""

    def __init__(self, server: InprocessServer) -> None:
        self.server = server
        self.engine = server.engine
        self.epoch = server.engine.machine.epoch
        self.late_ms = 0
        self.objects = MemoryObjects()
        self.files = Files(memory_blobs(), self.now_ms, lambda: self.epoch, going=self.going)
        self.logs = LogHub(MemoryLogs(), self.objects)
        self.collection = Collection(
            self.engine, self.files, self.logs, self.objects, named_in_state, lambda state: b"state"
        )
        self.blobs = self.files.project("web").blobs

    def now_ms(self) -> int:
        return self.engine.clock.now_ms() + self.late_ms

    def going(self, project: str) -> tuple[str, ...]:
        return going_in(self.engine.state, project)

    async def put(self, *contents: bytes) -> None:
        assert await self.blobs.put([(digest_of(data), data) for data in contents]) is None

    async def name(self, manifest: bytes, name: str = "data") -> None:
        value = msgspec.json.encode(NamedFiles(FileSet(digest_of(manifest), 1, 1), 0, "ann"))
        await self.engine.ask(lambda request: PutRecords(request, (OpaqueRecord(NAMES, f"web/{name}", value),), ""))

    async def there(self) -> set[bytes]:
        found = await self.blobs.get([digest_of(data) for data in (KEPT, OTHER, MANIFEST)])
        assert not isinstance(found, BlobsUnavailable)
        return {data for data in found if data is not None}


@asynccontextmanager
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(collection, "PAUSE_S", 0.0)
    async with inprocess_server(adopts=False) as server:
        here = Place(server)
        yield here
        here.logs.close()


async def test_what_nothing_names_goes_after_its_grace_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(KEPT, OTHER, MANIFEST)
        await here.name(MANIFEST)
        here.late_ms = 2 * HOLD_MS
        await here.collection.round()
        assert await here.there() == {KEPT, OTHER, MANIFEST}, "it is not old enough"
        here.late_ms = LATER_MS
        await here.collection.round()
        assert await here.there() == {KEPT, MANIFEST}
        assert here.collection.deleted == 1 and going_in(here.engine.state, "web") == ()


async def test_a_set_that_is_held_stays_with_its_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(KEPT, OTHER, MANIFEST)
        here.late_ms = LATER_MS
        async with here.files.project("web").held_set(digest_of(MANIFEST)):
            await here.collection.round()
            assert await here.there() == {KEPT, MANIFEST}
        await here.collection.round()
        assert await here.there() == set()


async def test_a_set_that_is_named_during_a_round_counts_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(KEPT, OTHER, MANIFEST)
        await here.name(encode(Manifest()), "before")
        here.late_ms = LATER_MS
        list_blobs = here.blobs.page

        async def page(after: str = "", limit: int = 1_000) -> object:
            found = await list_blobs(after, limit)
            await here.name(MANIFEST)
            return found

        monkeypatch.setattr(here.blobs, "page", page)
        await here.collection.round()
        assert await here.there() == {KEPT, MANIFEST}


async def test_what_is_deleted_is_committed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(OTHER)
        here.late_ms = LATER_MS
        committed: list[tuple[str, ...]] = []
        delete = here.blobs.delete

        async def observed(digest: str) -> object:
            committed.append(here.going("web"))
            return await delete(digest)

        monkeypatch.setattr(here.blobs, "delete", observed)
        await here.collection.round()
        assert committed == [(digest_of(OTHER),)]


async def test_a_later_leader_lets_others_wait_for_deletions_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LATE_DELETE_S_MAX", 0.05)
    async with place(monkeypatch) as here:
        value = msgspec.msgpack.encode((digest_of(OTHER),))
        await here.engine.ask(lambda request: PutRecords(request, (OpaqueRecord(KIND, "web", value),), ""))
        here.epoch += 1
        files = here.files.project("web")
        assert files.garbage.going == {digest_of(OTHER)}
        await files.hold("ann", [digest_of(OTHER)])
        assert files.garbage.going == frozenset(), "it waited until none of the requests can be under way"


async def test_without_a_commit_nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(OTHER)
        here.late_ms = LATER_MS

        async def refused(*_: object) -> None:
            raise NoService("the store is away")

        monkeypatch.setattr(here.collection, "_record", refused)
        await here.collection.round()
        assert await here.there() == {OTHER}
        assert here.files.project("web").garbage.going == frozenset(), "the next round can go on"


async def test_a_leader_that_is_not_sure_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(OTHER)
        here.late_ms = LATER_MS
        recorded = here.collection._record

        async def lose_the_lead(project: str, value: bytes | None) -> None:
            await recorded(project, value)
            monkeypatch.setattr(here.collection, "_is_sure", lambda: False)

        monkeypatch.setattr(here.collection, "_record", lose_the_lead)
        await here.collection.round()
        assert await here.there() == {OTHER}


async def test_blobs_of_another_state_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(monkeypatch) as here:
        await here.put(OTHER)
        here.late_ms = LATER_MS
        here.objects.put(OWNER, b"another state")
        await here.collection.round()
        assert await here.there() == {OTHER}
        here.objects.delete(OWNER)
        await here.collection.round()
        assert await here.there() == set() and here.objects.get(OWNER) == b"state"


def segment_of(workload: str, serial: int) -> str:
    return f"{ROOT}/web/{workload}/{serial}/0.1/0-5-1"


async def test_segments_go_that_a_leader_left_when_it_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LISTED_AT_ONCE", 2)
    async with place(monkeypatch) as here:
        await here.server.submit("there", project="web")
        first, last = here.engine.state.meta.first_serial, here.engine.state.serial
        serial = here.engine.state.workloads["web/there"].serial
        left = [segment_of("gone", first), segment_of("gone", last), segment_of("there", first)]
        kept = [
            segment_of("there", serial),
            segment_of("older", first - 1),  # of another state
            segment_of("newer", last + 1),  # of a leader after this one
            f"{ROOT}/what/is/this",
        ]
        for key in (*left, *kept):
            here.objects.put(key, b"bytes")
        monkeypatch.setattr(here.collection, "_is_sure", lambda: False)
        await here.collection.round()
        assert here.objects.list(ROOT) == sorted((*left, *kept)), "another server may lead"
        monkeypatch.undo()
        here.objects.put(OWNER, b"another state")
        await here.collection.round()
        assert here.objects.list(ROOT) == sorted((*left, *kept)), "another state may name them"
        here.objects.delete(OWNER)
        await here.collection.round()
        assert here.objects.list(ROOT) == sorted(kept)


def test_a_server_without_memory_takes_no_log_for_forgotten() -> None:
    for adopts in (False, True):
        state = State(Settings(adopts=adopts))
        state.meta.first_serial, state.serial = 5, 9
        assert is_forgotten(state, "web/job/7") != adopts


def test_files_of_workloads_and_names_are_named() -> None:
    state = State()
    state.file_sets["web"] = {FileSet("sha256:1"): 1}
    value = msgspec.json.encode(NamedFiles(FileSet("sha256:2"), 0, "ann"))
    state.opaque_records[NAMES] = {"web/data": value, "webs/data": value}
    assert sorted(named_in_state(state, "web")) == ["sha256:1", "sha256:2"]
    assert list(named_in_state(state, "other")) == []
