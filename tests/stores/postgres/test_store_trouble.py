"""The PostgreSQL store when its server restarts, hangs or throws us out: nothing half-done, nothing lost."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from roost_lab.components.postgres import Postgres, running

from roost.ports.store import InDoubt, News, Snapshot, Unavailable, require
from roost.stores.postgres import connection as postgres_connection
from roost.stores.postgres import follow
from roost.stores.postgres import writer as writer_module
from roost.stores.postgres.store import PostgresStore
from tests.stores.contract import (
    Records,
    apply,
    as_dict,
    gone,
    must,
    outcomes_of,
    put,
    refusal,
)
from tests.stores.shared import PATIENCE_S, reported

SCHEMAS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"trouble_{next(SCHEMAS)}"


@pytest.fixture
async def store(server: Postgres, schema: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.dsn, schema)
    yield store
    await store.close()


@pytest.fixture
async def other(server: Postgres, schema: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.dsn, schema)
    yield store
    await store.close()


async def loaded(store: PostgresStore) -> Snapshot:
    """As soon as the server is back."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            outcome = await store.load()
            if isinstance(outcome, Snapshot):
                return outcome
            assert isinstance(outcome, Unavailable)
            await asyncio.sleep(0.05)


async def led(store: PostgresStore) -> int:
    """The epoch of a lead that is taken as soon as the server is back."""
    async with asyncio.timeout(PATIENCE_S):
        while isinstance(outcome := await store.lead("server-1", None), Unavailable):
            await asyncio.sleep(0.05)
    return require(outcome).epoch


def backend(store: PostgresStore) -> int:
    """The server's process that writes for this store."""
    connection = store._writer._connection
    assert connection is not None
    return int(connection.get_server_pid())


async def ended(psql: asyncpg.Connection, *pids: int) -> None:
    """Until these processes are no more, or all that serve Roost."""
    ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'roost'"
    async with asyncio.timeout(PATIENCE_S):
        while left := {row["pid"] for row in await psql.fetch(ours)}:
            if pids and not left & set(pids):
                return
            await asyncio.sleep(0.01)


async def waiting(psql: asyncpg.Connection) -> None:
    """Until one of Roost's statements waits for a lock."""
    stuck = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'roost' AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_S):
        while not await psql.fetchval(stuck):
            await asyncio.sleep(0.01)


# A server that goes away and comes back


async def test_a_server_that_restarts_has_exactly_what_was_answered(
    server: Postgres, store: PostgresStore, other: PostgresStore
) -> None:
    epoch = await must(store).lead("server-1")
    expected: Records = {}
    number = failures = 0

    async def commit_some() -> None:
        nonlocal number, expected, failures
        commits = [[put(str(number + index)), gone(str(number + index - 7))] for index in range(5)]
        number += len(commits)
        outcomes = await outcomes_of(*(must(store).commit(epoch, commit) for commit in commits))
        assert all(isinstance(outcome, int | InDoubt | Unavailable) for outcome in outcomes), outcomes
        before = dict(expected)
        for commit, outcome in zip(commits, outcomes, strict=True):
            if isinstance(outcome, int):
                apply(before, commit)
        if any(isinstance(outcome, InDoubt | Unavailable) for outcome in outcomes):
            failures += 1
            expected = as_dict(await loaded(store))
            # What was answered is there; a commit that was not answered is there whole or not at all.
            possible = [before]
            for commit, outcome in zip(commits, outcomes, strict=True):
                if not isinstance(outcome, int):
                    possible.append(dict(possible[-1]))
                    apply(possible[-1], commit)
            assert expected in possible
        else:
            expected = before

    for _ in range(3):
        restart = asyncio.ensure_future(asyncio.to_thread(server.restart))
        while not restart.done():
            await commit_some()
        await restart
        await commit_some()
    assert failures >= 3, "the server was never away"
    assert as_dict(await must(other).load()) == as_dict(await must(store).load()) == expected


async def test_a_follower_lives_through_a_restart_and_misses_nothing(
    server: Postgres, store: PostgresStore, other: PostgresStore
) -> None:
    epoch = await must(store).lead("server-1")
    received: list[News] = []
    first = asyncio.Event()

    async def follow() -> None:
        async for update in other.follow(0):
            received.append(update)
            first.set()
            if any(change.key == "last" for change in update.changes):
                return

    following = asyncio.ensure_future(follow())
    await first.wait()
    await must(store).commit(epoch, [put("before")])
    await asyncio.to_thread(server.restart)
    await loaded(store)
    for key in (*map(str, range(10)), "last"):
        await must(store).commit(epoch, [put(key)])
    async with asyncio.timeout(PATIENCE_S):
        await following
    keys = [change.key for update in received for change in update.changes]
    assert keys == ["before", *map(str, range(10)), "last"]
    assert received[-1].lead.identity == "server-1"


async def test_a_follower_gives_up_when_the_server_stays_away(
    server: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "AWAY_LIMIT_S", 0.3)
    update = store.follow(0)
    await reported(update)
    await asyncio.to_thread(server.stop)
    try:
        error = await refusal(reported(update))
        assert isinstance(error, Unavailable) and "check that it runs" in str(error)
    finally:
        await asyncio.to_thread(server.start)


async def test_closing_does_not_wait_for_a_server_that_is_away(server: Postgres, store: PostgresStore) -> None:
    update = store.follow(0)
    await reported(update)
    await asyncio.to_thread(server.stop)
    try:
        following = asyncio.ensure_future(reported(update))
        await store.close()
        assert isinstance(await refusal(following), Unavailable)
    finally:
        await asyncio.to_thread(server.start)


# A connection that is cut


@pytest.fixture
async def psql(server: Postgres, schema: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def test_an_idle_connection_that_is_cut_is_made_again(store: PostgresStore, psql: asyncpg.Connection) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    connection = store._writer._connection
    await psql.fetch("SELECT pg_terminate_backend($1)", backend(store))
    async with asyncio.timeout(PATIENCE_S):
        while not connection.is_closed():
            await asyncio.sleep(0.01)
    assert await must(store).commit(epoch, [put("2")]) == 2
    assert await must(store).load() == Snapshot(2, [put("1"), put("2")])


async def test_a_connection_that_is_cut_under_a_commit_is_reported(
    store: PostgresStore, psql: asyncpg.Connection
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    await must(store).renew(epoch)  # the log has been looked after as well: the connection is idle
    writer = backend(store)
    async with psql.transaction():
        await psql.execute("SELECT FROM lead FOR UPDATE")
        commits = [asyncio.ensure_future(must(store).commit(epoch, [put(key, b"lost")])) for key in "12"]
        await waiting(psql)
        later = asyncio.ensure_future(must(store).commit(epoch, [put("3", b"lost")]))
        await psql.fetch("SELECT pg_terminate_backend($1)", writer)
        outcomes = await outcomes_of(*commits, later)
    assert [type(outcome) for outcome in outcomes] == [InDoubt, InDoubt, Unavailable]
    assert "terminating connection" in str(outcomes[0]) and "load first" in str(outcomes[2])
    assert isinstance(await refusal(must(store).commit(epoch, [put("4", b"lost")])), Unavailable)
    assert as_dict(await must(store).load()) == {("instance", "1"): b"value"}
    await must(store).commit(epoch, [put("5")])
    assert as_dict(await must(store).load()).keys() == {("instance", "1"), ("instance", "5")}


# A server that hangs


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "COMMIT_LIMIT_S", 0.5)
    monkeypatch.setattr(writer_module, "CALL_LIMIT_S", 0.5)
    monkeypatch.setattr(postgres_connection, "CONNECT_LIMIT_S", 0.5)


@pytest.mark.usefixtures("short_limits")
async def test_a_server_that_hangs_is_given_up(
    server: Postgres, store: PostgresStore, other: PostgresStore, psql: asyncpg.Connection
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    await must(other).load()
    with server.frozen():
        async with asyncio.timeout(5):
            failed = await refusal(must(store).commit(epoch, [put("2")]))
            assert isinstance(failed, InDoubt) and "did not answer in time" in str(failed)
            for attempt in (
                must(store).renew(epoch),
                must(store).load(),
                must(other).lead("server-2"),
                must(other).load(),
            ):
                assert isinstance(await refusal(attempt), Unavailable)
    # What the hanging server still does with all that is certain only after a load, and then for good.
    snapshot = await loaded(store)
    assert as_dict(snapshot).keys() in ({("instance", "1")}, {("instance", "1"), ("instance", "2")})
    new = await led(store)  # it still has to end what it was asked for before: the first answers may be late
    assert await must(store).commit(new, [put("3")]) == snapshot.revision + 1
    assert as_dict(await loaded(other)) == as_dict(snapshot) | {("instance", "3"): b"value"}


@pytest.mark.usefixtures("short_limits")
async def test_a_commit_that_was_given_up_cannot_happen_after_the_load(
    store: PostgresStore, psql: asyncpg.Connection
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    await must(store).renew(epoch)  # the log has been looked after as well: the connection is idle
    writer = backend(store)
    os.kill(writer, signal.SIGSTOP)
    try:
        assert isinstance(await refusal(must(store).commit(epoch, [put("1", b"late"), put("2", b"late")])), InDoubt)
        snapshot = await must(store).load()
        assert snapshot.records == [put("1")]
    finally:
        os.kill(writer, signal.SIGCONT)
    await ended(psql, writer)  # it has found our commit in its buffer, and no client to answer
    assert await must(store).load() == snapshot
    assert await must(store).commit(epoch, [put("3")]) == snapshot.revision + 1


@pytest.mark.usefixtures("short_limits")
async def test_a_server_that_waits_too_long_for_a_lock_is_reported(
    store: PostgresStore, psql: asyncpg.Connection
) -> None:
    epoch = await must(store).lead("server-1")
    async with psql.transaction():
        await psql.execute("SELECT FROM lead FOR UPDATE")
        assert isinstance(await refusal(must(store).renew(epoch)), Unavailable)
        assert isinstance(await refusal(must(store).commit(epoch, [put("1")])), InDoubt)
        assert isinstance(await refusal(must(store).load()), Unavailable), "the commit may still happen"
    await ended(psql)
    assert as_dict(await must(store).load()) == {}
    await must(store).renew(epoch)
    await must(store).commit(epoch, [put("2")])
