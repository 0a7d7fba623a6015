"""The PostgreSQL store keeps the contract on a real server; versions, the log and migrations do what they are for."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest
from roost_lab.components.postgres import Postgres, running

from roost.ports.store import Behind, Change, Damaged, Snapshot, Unavailable, WriteConflict
from roost.stores.migrations import Migration, numbered
from roost.stores.postgres import connection as postgres_connection
from roost.stores.postgres import follow, writer
from roost.stores.postgres.store import PostgresStore
from tests.stores.contract import Opener, as_dict, gone, must, put, refusal
from tests.stores.shared import SharedStoreContract, led, reported, reported_until

SCHEMAS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running() as server:
        yield server


class TestPostgres(SharedStoreContract):
    @pytest.fixture
    def opener(self, server: Postgres) -> Opener:
        places: dict[str, str] = {}

        def opener(place: str = "here") -> PostgresStore:
            schema = places.setdefault(place, f"place_{next(SCHEMAS)}")
            return PostgresStore(server.dsn, schema)

        return opener


@pytest.fixture
def schema() -> str:
    return f"place_{next(SCHEMAS)}"


@pytest.fixture
async def store(server: Postgres, schema: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.dsn, schema)
    yield store
    await store.close()


@pytest.fixture
async def psql(server: Postgres, schema: str) -> AsyncIterator[asyncpg.Connection]:
    """A client that goes behind our back."""
    connection = await asyncpg.connect(server.dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


# Versions

KEY_1 = "kind = 'instance' AND key = '1'"


@pytest.mark.parametrize(
    ("change", "behind", "message"),
    [
        (put("1", b"ours"), f"UPDATE records SET version = version + 1 WHERE {KEY_1}", "1 has version 2, expected 1"),
        (gone("1"), f"UPDATE records SET version = 7 WHERE {KEY_1}", "1 has version 7, expected 1"),
        (put("1", b"ours"), f"DELETE FROM records WHERE {KEY_1}", "1 is gone, expected 1"),
        (gone("1"), f"DELETE FROM records WHERE {KEY_1}", "1 is gone, expected 1"),
        (put("new"), "INSERT INTO records VALUES ('instance', 'new', 1, 0, '')", "new has version 1, expected none"),
    ],
    ids=["changed", "changed-removed", "removed", "removed-twice", "added"],
)
async def test_a_commit_that_meets_another_version_fails_as_a_whole(
    store: PostgresStore, psql: asyncpg.Connection, change: Change, behind: str, message: str
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1"), put("2")])
    await psql.execute(behind)
    before = await psql.fetch("SELECT * FROM records ORDER BY key")
    error = await refusal(must(store).commit(epoch, [put("0"), put("2", b"ours"), change, put("3")]))
    assert isinstance(error, WriteConflict)
    assert f"record instance {message}" in str(error) and "load again" in str(error)
    assert await psql.fetch("SELECT * FROM records ORDER BY key") == before
    assert await psql.fetchval("SELECT revision FROM lead") == await psql.fetchval("SELECT max(revision) FROM log") == 1
    assert "load first" in str(await refusal(must(store).commit(epoch, [put("4")])))


async def test_after_a_load_the_versions_are_known_again(store: PostgresStore, psql: asyncpg.Connection) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1"), put("2")])
    await psql.execute("DELETE FROM records WHERE key = '1'")
    assert isinstance(await refusal(must(store).commit(epoch, [gone("1")])), WriteConflict)
    assert await must(store).load() == Snapshot(1, [put("2")])
    assert await must(store).commit(epoch, [put("1", b"again"), gone("2")]) == 2
    assert await must(store).load() == Snapshot(2, [put("1", b"again")])


async def test_a_server_that_lost_what_it_had_answered_is_noticed(
    server: Postgres, store: PostgresStore, psql: asyncpg.Connection
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    await must(store).commit(epoch, [put("2")])
    # A standby that was behind took over: epoch 1 leads, and revision 2 never was.
    await psql.execute("UPDATE lead SET revision = 1; DELETE FROM log WHERE revision = 2")
    await psql.execute("DELETE FROM records WHERE key = '2'")
    error = await refusal(must(store).commit(epoch, [put("3")]))
    assert isinstance(error, Unavailable) and "is at revision 1, but 2 was committed" in str(error)
    assert isinstance(await refusal(reported(store.follow(2))), Behind)
    assert await must(store).load() == Snapshot(1, [put("1")])
    assert await must(store).commit(epoch, [put("2"), put("3")]) == 2


async def test_every_record_carries_the_revision_that_wrote_it(store: PostgresStore, psql: asyncpg.Connection) -> None:
    epoch = await must(store).lead("server-1")
    await asyncio.gather(*(must(store).commit(epoch, [put(str(number)), put("last")]) for number in range(3)))
    rows = await psql.fetch("SELECT key, version FROM records ORDER BY key")
    assert [tuple(row) for row in rows] == [(b"0", 1), (b"1", 2), (b"2", 3), (b"last", 3)]


async def test_a_server_that_followed_leads_without_loading(
    server: Postgres, store: PostgresStore, schema: str
) -> None:
    other = PostgresStore(server.dsn, schema)
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1"), put("2")])
    update = other.follow((await must(other).load()).revision)
    await reported(update)
    await must(store).commit(epoch, [put("1", b"changed"), gone("2"), put("3")])
    await reported_until(update, 2)
    assert other._writer.versions.revision == 2  # learned on the way, not read when it matters
    new = await must(other).lead("server-2")
    assert await must(other).commit(new, [gone("1"), put("2", b"new"), put("3", b"changed")]) == 3
    # And the one who led before, with what it knew then, once it leads again.
    again = await must(store).lead("server-1")
    assert await must(store).commit(again, [put("1"), gone("2"), put("3", b"last")]) == 4
    assert as_dict(await must(other).load()) == {("instance", "1"): b"value", ("instance", "3"): b"last"}
    await other.close()


async def test_commits_that_wait_become_one_transaction(store: PostgresStore, psql: asyncpg.Connection) -> None:
    epoch = await must(store).lead("server-1")
    await asyncio.gather(*(must(store).commit(epoch, [put(str(number))]) for number in range(300)))
    assert await psql.fetchval("SELECT count(*) FROM log") == 300
    assert await psql.fetchval("SELECT count(DISTINCT xmin::text) FROM log") <= 2


async def test_a_record_that_is_not_what_was_written_is_found(store: PostgresStore, psql: asyncpg.Connection) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1", b"one"), put("2", b"two")])
    await psql.execute("UPDATE records SET value = 'tow' WHERE key = '2'")
    error = await refusal(must(store).load())
    assert isinstance(error, Damaged) and "record b'instance' b'2'" in str(error) and "restore" in str(error)
    assert isinstance(await refusal(must(store).commit(epoch, [put("3")])), Unavailable)
    await psql.execute("UPDATE records SET value = 'two' WHERE key = '2'")
    assert len((await must(store).load()).records) == 2
    assert await must(store).commit(epoch, [put("3")]) == 2


# The log


async def test_the_log_is_cut_and_a_server_that_is_too_far_behind_learns_it(
    store: PostgresStore, psql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOG_COMMITS_MAX", 10)
    monkeypatch.setattr(writer, "TRIM_COMMITS", 5)
    epoch = await must(store).lead("server-1")
    for number in range(50):
        await must(store).commit(epoch, [put(str(number))])
        assert await psql.fetchval("SELECT count(*) FROM log") <= 10 + 5 + 1
    assert isinstance(await refusal(reported(store.follow(30))), Behind)
    assert [change.key for change in (await reported(store.follow(45))).changes] == ["45", "46", "47", "48", "49"]


async def test_the_log_is_cut_by_bytes_too(
    store: PostgresStore, psql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOG_BYTES_MAX", 100_000)
    monkeypatch.setattr(writer, "TRIM_BYTES", 10_000)
    epoch = await must(store).lead("server-1")
    for _ in range(30):
        await must(store).commit(epoch, [put("1", bytes(9_990))])
    await must(store).lead("server-1")  # behind the last cut
    assert 5 <= await psql.fetchval("SELECT count(*) FROM log") <= 12


async def test_more_news_than_is_read_at_once_is_behind(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "NEWS_BYTES_MAX", 5_000)
    epoch = await must(store).lead("server-1")
    for _ in range(3):
        await must(store).commit(epoch, [put("1", bytes(2_000))])
    assert isinstance(await refusal(reported(store.follow(0))), Behind)
    assert (await reported(store.follow(1))).revision == 3


async def test_news_is_pushed(
    server: Postgres, schema: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "REREAD_S", 1_000.0)
    other = PostgresStore(server.dsn, schema)
    update = other.follow(0)
    await reported(update)
    epoch = await must(store).lead("server-1")
    assert (await led(update, epoch)).identity == "server-1"
    await must(store).renew(epoch)
    await led(update, epoch, beat=1)
    await must(store).commit(epoch, [put("1")])
    assert (await reported(update)).changes == [put("1")]
    await other.close()


async def test_a_lost_notification_loses_no_news(
    store: PostgresStore, psql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "REREAD_S", 0.05)
    epoch = await must(store).lead("server-1")
    update = store.follow(0)
    await reported(update)
    await psql.execute("UPDATE lead SET renewals = 41")  # without a notification
    assert (await led(update, epoch, beat=41)).renewals == 41


async def test_a_log_that_cannot_be_read_is_behind(store: PostgresStore, psql: asyncpg.Connection) -> None:
    await must(store).commit(await must(store).lead("server-1"), [put("1")])
    await psql.execute("UPDATE log SET changes = 'x'")
    assert isinstance(await refusal(reported(store.follow(0))), Behind)
    assert (await reported(store.follow(1))).revision == 1


# Migrations


async def test_servers_that_start_at_once_migrate_once(server: Postgres, schema: str, psql: asyncpg.Connection) -> None:
    stores = [PostgresStore(server.dsn, schema) for _ in range(3)]
    assert await asyncio.gather(*(must(store).load() for store in stores)) == [Snapshot(0, [])] * 3
    rows = await psql.fetch("SELECT version, name FROM migrations ORDER BY version")
    assert [tuple(row) for row in rows] == [(migration.version, migration.name) for migration in numbered("postgres")]
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_refused(store: PostgresStore, psql: asyncpg.Connection) -> None:
    await must(store).load()
    await psql.execute("INSERT INTO migrations VALUES (99, '0099_future.sql')")
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable)
    assert f"has version 99, this release of Roost knows versions up to {len(numbered('postgres'))}" in str(error)
    assert isinstance(await refusal(reported(store.follow(0))), Unavailable)


async def test_a_failed_migration_changes_nothing(
    server: Postgres, store: PostgresStore, psql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await must(store).commit(await must(store).lead("server-1"), [put("1")])
    broken = Migration(
        3, "0003_broken.sql", "ALTER TABLE records ADD COLUMN half integer; ALTER TABLE nowhere ADD x int"
    )
    monkeypatch.setattr(postgres_connection, "numbered", lambda name: [*numbered(name), broken])
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable)
    assert "stays at version 2: 0003_broken.sql failed" in str(error) and "nothing was changed" in str(error)
    monkeypatch.undo()
    assert await must(store).load() == Snapshot(1, [put("1")])


async def test_a_schema_of_another_program_is_left_alone(
    server: Postgres, store: PostgresStore, schema: str, psql: asyncpg.Connection
) -> None:
    await psql.execute(f"CREATE SCHEMA {schema}; CREATE TABLE log (line text)")
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable) and "Does something else use this schema?" in str(error)
    assert [row[0] for row in await psql.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)] == [
        "log"
    ]


# What cannot be stored


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["nul", "surrogate"])
async def test_a_name_that_cannot_be_stored_is_refused_in_a_message(store: PostgresStore, text: str) -> None:
    epoch = await must(store).lead("server-1")
    asks: list[Callable[[], Awaitable[object]]] = [
        lambda: must(store).lead(text),
        lambda: must(store).renew(epoch, text),
    ]
    for ask in asks:
        assert isinstance(await refusal(ask()), ValueError)
    assert await must(store).commit(epoch, [put("1")]) == 1
