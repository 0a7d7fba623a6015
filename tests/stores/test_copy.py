"""A store is filled with everything of another one: whole or marked, at a revision that clients have not seen yet."""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from roost_lab.components.postgres import running

from roost.core.replica import mirror
from roost.ports.store import ANYBODY, Behind, Change, SharedStore, Snapshot, StoreError, require
from roost.stores import copy
from roost.stores.copy import MARK, CopyResult, fill, is_unfinished
from roost.stores.factory import PostgresPlace, open_store, read_place
from roost.stores.inspect import inspect, live_leader
from roost.stores.migrations import Migration, numbered
from roost.stores.sqlite.store import SqliteStore
from tests.components.etcd import shared_cluster
from tests.stores.contract import must

RECORDS = [Change("instance", f"default/job.{number}", b"x" * (number % 50)) for number in range(300)] + [
    Change("workload", "default/ä☃\0", b"\0\xff" * 40),
    Change("meta", "meta", b""),
]
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running() as server:
        yield server.dsn


Urls = Callable[[], str]


@pytest.fixture(params=["sqlite", "postgres", "etcd"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Urls:
    """Places where nothing is yet."""
    if request.param == "sqlite":
        return lambda: f"sqlite:{tmp_path / str(next(NUMBERS))}"
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres")
        return lambda: f"{dsn}?schema=filled_{next(NUMBERS)}"
    return lambda: f"etcd://{','.join(shared_cluster().endpoints)}/fill-{os.getpid()}-{next(NUMBERS)}"


async def filled(url: str, records: list[Change], revision: int) -> CopyResult:
    return await fill(url, records, revision, lambda done, total: None)


async def loaded(url: str) -> Snapshot:
    store = open_store(url)
    try:
        return await must(store).load()
    finally:
        await store.close()


def as_set(snapshot: Snapshot) -> set[Change]:
    return set(snapshot.records)


async def test_everything_is_there_at_the_revision_of_where_it_comes_from(new_url: Urls) -> None:
    url = new_url()
    answer: list[tuple[int, int]] = []
    done = await fill(url, RECORDS, 4_711, lambda *progress: answer.append(progress))
    assert done == CopyResult(4_711, len(RECORDS), 0)
    found = await loaded(url)
    assert (found.revision, as_set(found)) == (4_711, set(RECORDS))
    assert answer[-1] == (len(RECORDS), len(RECORDS))


async def test_commits_go_on_from_there(new_url: Urls) -> None:
    url = new_url()
    await filled(url, RECORDS, 4_711)
    store = open_store(url)
    epoch = await must(store).lead("server")
    assert await must(store).commit(epoch, [Change("node", "n", b"1")]) == 4_712
    await store.close()
    assert (await loaded(url)).revision == 4_712


async def test_what_was_there_goes_and_the_revision_never_goes_back(new_url: Urls) -> None:
    url = new_url()
    await filled(url, [Change("node", "old", b"1"), Change("meta", "meta", b"old")], 9_000)
    done = await filled(url, RECORDS, 10)
    assert done.removed == 2
    assert done.revision > 9_000
    assert as_set(await loaded(url)) == set(RECORDS)


async def test_many_chunks_end_at_the_same_revision(new_url: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "CHUNK_CHANGES", 50)
    url = new_url()
    assert (await filled(url, RECORDS, 4_711)).revision == 4_711
    assert as_set(await loaded(url)) == set(RECORDS)


async def test_an_early_revision_is_passed_by_the_chunks_themselves(
    new_url: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "CHUNK_CHANGES", 50)
    assert (await filled(new_url(), RECORDS, 1)).revision == 8  # the mark, and seven chunks


async def test_a_server_that_followed_before_has_to_load_again(new_url: Urls) -> None:
    url = new_url()
    store = open_store(url)
    epoch = await must(store).lead("server")
    revision = await must(store).commit(epoch, [Change("node", "old", b"1")])
    if not isinstance(store, SharedStore):
        await store.close()
        return
    following = store.follow(revision)
    await anext(following)
    await filled(url, RECORDS, 4_711)
    with pytest.raises(StoreError) as caught:
        while require(await anext(following)).revision < 4_711:
            pass
    assert isinstance(caught.value.failure, Behind)
    await store.close()


async def test_when_it_breaks_off_the_store_is_marked_and_can_be_filled_again(
    new_url: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_url()
    monkeypatch.setattr(copy, "CHUNK_CHANGES", 50)

    def pull_the_plug(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyError("pulled")

    with pytest.raises(KeyError):
        await fill(url, RECORDS, 4_711, pull_the_plug)
    half = await loaded(url)
    assert is_unfinished(half.records)
    assert len(half.records) < len(RECORDS)
    await filled(url, RECORDS, 4_711)
    whole = await loaded(url)
    assert not is_unfinished(whole.records)
    assert as_set(whole) == set(RECORDS)


async def test_a_store_that_was_filled_or_is_not_there_has_no_leader(new_url: Urls) -> None:
    url = new_url()
    place = read_place(url)
    assert (await inspect(place)).there is False
    assert (await inspect(place)).there is False, "looking makes nothing"
    assert await live_leader(place) == ""
    await filled(url, RECORDS, 4_711)
    sight = await inspect(place)
    assert sight.there is True
    if sight.lead.epoch:
        assert sight.lead.successor == ANYBODY, "a server that starts need not wait"
    assert await live_leader(place, watch_s=0.3) == ""


async def test_a_server_that_took_the_lead_meanwhile_keeps_its_store(new_url: Urls) -> None:
    url = new_url()
    place = read_place(url)
    await filled(url, RECORDS, 4_711)
    seen = (await inspect(place)).lead
    server = open_store(url)
    epoch = await must(server).lead("server")
    with pytest.raises(StoreError):  # Fenced; of SQLite, because it has the file
        await fill(url, [], 1, lambda done, total: None, seen)
    assert await must(server).commit(epoch, [Change("node", "n", b"1")]) == 4_712
    await server.close()
    assert as_set(await loaded(url)) == {*RECORDS, Change("node", "n", b"1")}


async def test_a_leader_that_renews_is_seen(new_url: Urls) -> None:
    """Of SQLite: that has the file."""
    url = new_url()
    store = open_store(url)
    epoch = await must(store).lead("the one")
    await must(store).commit(epoch, [])
    place = read_place(url)
    if isinstance(store, SharedStore):
        before = (await inspect(place)).lead
        assert (before.epoch, before.identity) == (epoch, "the one")
        await must(store).renew(epoch)
        assert (await inspect(place)).lead == before._replace(renewals=before.renewals + 1)
    else:
        assert "the one" in await live_leader(place)
    await store.close()


async def test_a_leader_is_live_when_its_beat_changes_while_it_is_looked_at(postgres: str) -> None:
    url = f"{postgres}?schema=beating_{next(NUMBERS)}"
    store = open_store(url)
    assert isinstance(store, SharedStore)
    epoch = await must(store).lead("the one")

    async def beat() -> None:
        while True:
            await must(store).renew(epoch)
            await asyncio.sleep(0.05)

    beating = asyncio.ensure_future(beat())
    assert await live_leader(read_place(url)) == "the one"
    beating.cancel()
    await asyncio.wait((beating,))
    assert await live_leader(read_place(url), watch_s=0.3) == ""
    await store.close()


async def test_the_log_of_postgresql_has_no_gap(postgres: str) -> None:
    url = f"{postgres}?schema=gapless_{next(NUMBERS)}"
    await filled(url, RECORDS[:5], 10)
    await filled(url, RECORDS, 4_711)
    place = read_place(url)
    assert isinstance(place, PostgresPlace)
    connection = await asyncpg.connect(postgres, server_settings={"search_path": place.schema})
    assert [row["revision"] for row in await connection.fetch("SELECT revision FROM log")] == [4_711]
    await connection.close()


@pytest.mark.parametrize("found", [RECORDS[1:], [*RECORDS, Change("node", "n", b"")], [Change("meta", "meta", b"x")]])
async def test_a_store_that_holds_something_else_in_the_end_is_reported(
    found: list[Change], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(self: SqliteStore) -> Snapshot:
        snapshot = await real_load(self)
        return snapshot if not snapshot.records else Snapshot(snapshot.revision, found)

    real_load = SqliteStore.load
    monkeypatch.setattr(SqliteStore, "load", load)
    with pytest.raises(StoreError, match="was not stored unchanged"):
        await filled(str(tmp_path), RECORDS, 1)


async def test_a_store_of_an_earlier_release_is_seen_to_be_one(new_url: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_url()
    if url.startswith("etcd"):
        return  # has no versions
    await filled(url, RECORDS, 4_711)
    assert not (await inspect(read_place(url))).outdated
    kind = "sqlite" if url.startswith("sqlite") else "postgres"
    later = [*numbered(kind), Migration(99, "later", "SELECT 1")]
    monkeypatch.setattr("roost.stores.migrations.numbered", lambda _: later)
    assert (await inspect(read_place(url))).outdated


async def test_what_cannot_be_reached_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="check that it runs"):
        await inspect(read_place("postgresql://me@127.0.0.1:1/none"))


def test_the_mark_is_a_kind_of_record_that_no_server_knows() -> None:
    with pytest.raises(StoreError, match="unfinished copy"):
        mirror(Snapshot(1, [MARK]))
