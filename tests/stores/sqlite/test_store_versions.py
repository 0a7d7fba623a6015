"""The SQLite store and versions of its file: brought up to date step by step, or refused."""

from pathlib import Path

import apsw
import pytest

from roost.ports.store import Snapshot, Unavailable
from roost.stores import migrations
from roost.stores.migrations import Migration
from roost.stores.sqlite import store as sqlite_store
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import must, put, refusal
from tests.stores.disk import written


def test_the_migrations_are_in_the_package_and_in_order() -> None:
    steps = migrations.numbered("sqlite")
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0].name == "0001_records.sql" and "CREATE TABLE records" in steps[0].sql


def version_of(path: Path) -> int:
    database = apsw.Connection(str(path))
    version = database.execute("PRAGMA user_version").get
    database.close()
    assert isinstance(version, int)
    return version


async def test_a_database_of_a_newer_release_is_refused(data: Path, store: SqliteStore) -> None:
    path = await written(data, [put("1")])
    newest = version_of(path)
    database = apsw.Connection(str(path))
    database.execute(f"PRAGMA user_version = {newest + 1}")
    database.close()
    failure = await refusal(must(store).lead("server-1"))
    assert isinstance(failure, Unavailable)
    assert f"has version {newest + 1}" in str(failure) and f"up to {newest}" in str(failure)
    assert version_of(path) == newest + 1


async def test_an_older_database_is_brought_up_to_date(
    data: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await written(data, [put("1")])
    steps = migrations.numbered("sqlite")
    count = len(steps)
    steps.append(Migration(count + 1, "0002_one.sql", "CREATE TABLE one (x); INSERT INTO one VALUES (1);"))
    steps.append(Migration(count + 2, "0003_two.sql", "ALTER TABLE one ADD COLUMN y; UPDATE one SET y = 2"))
    monkeypatch.setattr(sqlite_store, "numbered", lambda name: steps)
    assert await must(store).load() == Snapshot(1, [put("1")])
    await store.close()
    assert version_of(path) == count + 2
    database = apsw.Connection(str(path))
    assert database.execute("SELECT * FROM one").fetchall() == [(1, 2)]
    database.close()


@pytest.mark.parametrize("bad", ["INSERT INTO nowhere VALUES (1)", "nonsense", "COMMIT"])
async def test_a_migration_that_fails_midway_leaves_the_old_version(
    data: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    path = await written(data, [put("1")])
    steps = migrations.numbered("sqlite")
    count = len(steps)
    sql = f"CREATE TABLE one (x); DELETE FROM records; {bad}"
    monkeypatch.setattr(sqlite_store, "numbered", lambda name: [*steps, Migration(count + 1, "0002_one.sql", sql)])
    failure = await refusal(must(store).load())
    assert isinstance(failure, Unavailable)
    assert f"stays at version {count}: 0002_one.sql failed" in str(failure)
    await store.close()

    monkeypatch.undo()
    assert version_of(path) == count
    store = SqliteStore(data)
    assert await must(store).load() == Snapshot(1, [put("1")])
    await store.close()
