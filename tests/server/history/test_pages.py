"""The shared places of a history keep the contract: segments in files, memory and S3, rows in PostgreSQL."""

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roost_lab.components.postgres import Postgres, running

from roost.blobs.history_segments import DamagedPages, SegmentKey, SegmentPages, chain, decode, encode
from roost.blobs.object_files import FileObjects
from roost.blobs.object_memory import MemoryObjects
from roost.blobs.object_s3 import S3Objects
from roost.ports.history import HistoryPages, PagesUnavailable, StoredPage
from roost.ports.objects import Objects, ObjectsUnavailable
from roost.ports.store import LeadTaken
from roost.stores.postgres.history_pages import PostgresPages
from roost.stores.postgres.store import PostgresStore
from tests.components.seaweedfs import bucket_of, shared_server
from tests.server.history.pages_contract import Opener, PagesContract, pages

SEGMENT_BYTES = 1_000
EPOCHS = itertools.count(1)
SCHEMAS = itertools.count()


class SegmentsContract(PagesContract):
    @pytest.fixture
    def objects(self) -> Objects:
        raise NotImplementedError

    @pytest.fixture
    def opener(self, objects: Objects) -> Opener:
        return lambda: SegmentPages(objects, SEGMENT_BYTES)

    def leads(self, place: HistoryPages) -> int:
        return next(EPOCHS)


class TestMemory(SegmentsContract):
    @pytest.fixture
    def objects(self) -> Objects:
        return MemoryObjects()


class TestFiles(SegmentsContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> Objects:
        return FileObjects(tmp_path)


class TestS3(SegmentsContract):
    @pytest.fixture
    def objects(self) -> Objects:
        objects = S3Objects(bucket_of(shared_server(), prefix=f"roost/{uuid.uuid4().hex}"))
        assert objects.put("other", b"") is None, "the bucket is made with its first object"
        return objects


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running() as server:
        yield server


class TestPostgres(PagesContract):
    @pytest.fixture
    def opener(self, server: Postgres) -> Iterator[Opener]:
        self._dsn, self._schema = server.dsn, f"history_{next(SCHEMAS)}"
        opened: list[HistoryPages] = []

        def opener() -> HistoryPages:
            opened.append(PostgresPages(self._dsn, self._schema))
            return opened[-1]

        yield opener
        for place in opened:
            place.close()

    def leads(self, place: HistoryPages) -> int:
        async def lead() -> int:
            store = PostgresStore(self._dsn, self._schema)
            taken = await store.lead("a server")
            await store.close()
            assert isinstance(taken, LeadTaken)
            return taken.epoch

        return asyncio.run(lead())


def test_a_server_that_is_away_is_an_answer() -> None:
    away = PostgresPages("postgresql://roost@127.0.0.1:1/roost", "roost")
    for outcome in (away.append(1, pages(1, b"x")), away.read(0, 1), away.forget(1, 1)):
        assert isinstance(outcome, PagesUnavailable) and "127.0.0.1:1" in outcome.reason
    away.close()


class Interrupted(MemoryObjects):
    """The answer to a put is lost when the test says so; what was put is there."""

    loses = False

    def put(self, key: str, data: bytes) -> ObjectsUnavailable | None:  # type: ignore[override]
        super().put(key, data)
        return ObjectsUnavailable("the answer was lost") if self.loses else None


def test_an_append_in_doubt_is_found_by_reading() -> None:
    objects = Interrupted()
    leader = SegmentPages(objects, SEGMENT_BYTES)
    leader.append(7, pages(1, b"one"))
    objects.loses = True
    assert isinstance(leader.append(7, pages(2, b"two")), PagesUnavailable)
    objects.loses = False
    assert leader.append(7, pages(2, b"other")) is not None, "it is there"
    assert leader.append(7, pages(3, b"three")) is None
    assert SegmentPages(objects).read(0, 1_000) == pages(1, b"one", b"two", b"three")


def test_a_store_whose_epochs_begin_again_goes_on_with_the_same_segments() -> None:
    objects = MemoryObjects()
    SegmentPages(objects).append(50, pages(1, b"one"))
    assert SegmentPages(objects).append(1, pages(2, b"two")) is None
    assert SegmentPages(objects).append(2, pages(3, b"three")) is None
    assert SegmentPages(objects).read(0, 1_000) == pages(1, b"one", b"two", b"three")


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 1 << 40))
def test_a_segment_is_read_as_it_was_written(contents: list[bytes], first: int) -> None:
    assert decode(first, encode(first, contents)) == pages(first, *contents)


def test_a_damaged_segment_is_refused() -> None:
    good = encode(1, [b"one" * 100, b"two" * 100])
    for bad in (b"", b"RLS1" + good[4:], good[:-1], good[:20], encode(2, [b"one"]), good[:-9] + b"\0" + good[-8:]):
        with pytest.raises(DamagedPages):
            decode(1, bad)
    objects = MemoryObjects()
    SegmentPages(objects).append(1, pages(1, b"one"))
    (key,) = objects.list("history.d")
    objects.put(key, b"nonsense")
    outcome = SegmentPages(objects).read(0, 1_000)
    assert isinstance(outcome, PagesUnavailable) and "damaged" in outcome.reason


Turn = tuple[int, int, bool]  # which leader, how many pages, and whether it looked for a new lead before


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=30))
def test_whatever_deposed_leaders_write_every_page_has_one_content(turns: list[Turn]) -> None:
    """Leaders come and go, and those that were deposed go on to write. What the newest wrote is never changed."""
    objects = MemoryObjects()
    servers = [SegmentPages(objects, 30) for _ in range(3)]
    epochs, epoch = [0, 0, 0], 0
    expected: list[StoredPage] = []
    for server, count, takes in turns:
        if takes:
            epoch += 1
            epochs[server] = epoch
        if not epochs[server]:
            continue
        first = len(expected) + 1
        made = [StoredPage(first + place, b"%d-%d-%d" % (epochs[server], first, place)) for place in range(count)]
        outcome = servers[server].append(epochs[server], made)
        if epochs[server] == epoch:
            assert outcome is None, "it leads"
            expected += made
        elif outcome is None and not has_claimed(objects, epoch):
            expected += made  # the new leader reads it before it begins
        assert SegmentPages(objects).read(0, 1 << 20) == expected


def has_claimed(objects: MemoryObjects, epoch: int) -> bool:
    return any(key.endswith(f"-{epoch:x}") for key in objects.list("history.d"))


def test_segments_of_older_terms_end_where_a_newer_one_begins() -> None:
    keys = [SegmentKey(1, 1, 1), SegmentKey(4, 1, 1), SegmentKey(6, 2, 2), SegmentKey(6, 1, 1), SegmentKey(9, 1, 1)]
    assert chain(keys) == [keys[0], keys[1], keys[2]]
    assert chain(reversed(keys)) == chain(keys)
    assert chain([SegmentKey(6, 3, 4), SegmentKey(6, 3, 3)]) == [SegmentKey(6, 3, 4)]
