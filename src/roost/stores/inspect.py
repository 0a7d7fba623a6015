"""Reading the status of a store without changing it: whether it exists, its lead, and whether a server leads now."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from roost.ports.store import Lead, unavailable
from roost.stores.etcd.url import EtcdPlace
from roost.stores.factory import MemoryPlace, Place, PostgresPlace, SqlitePlace

if TYPE_CHECKING:
    import asyncpg  # type: ignore[import-untyped]

    from roost.stores.etcd.client import EtcdClient
    from roost.stores.postgres.connection import PostgresServer

# An operator waits for this; a store that takes longer does not answer.
LOOK_LIMIT_S = 10.0

# A leader renews every 0.4 s by default, and its lead ends after 1.5 s without a renewal. This is three times that,
# for slower settings and slow moments.
WATCH_S = 5.0
WATCH_RELEASED_S = 1.0  # a released lead has no leader, or a successor that takes it at once
POLL_S = 0.2

# Of a database's file, as SQLite promises: `user_version` is the number of the last migration.
HEADER_BYTES, VERSION_AT = 100, 60


class StoreStatus(NamedTuple):
    """What can be seen. `holder`: the process that has locked it (SQLite); then nothing else is known."""

    there: bool
    revision: int = 0
    lead: Lead = Lead()
    holder: str = ""
    outdated: bool = False  # an earlier release made it: opening it changes it


Inspect = Callable[[], Awaitable[StoreStatus]]  # raises StoreError


@contextlib.asynccontextmanager
async def inspection(place: Place) -> AsyncIterator[Inspect]:
    """A way to read the status of that store, as often as wanted on one connection. Raises StoreError."""
    match place:
        case SqlitePlace(directory):
            yield partial(_inspect_sqlite, directory)
        case PostgresPlace():
            from roost.stores.postgres.connection import PostgresServer

            server = PostgresServer(place.dsn, place.schema)
            connection = await _connect_postgres(server, place.dsn)
            try:
                yield partial(_inspect_postgres, server, connection)
            finally:
                connection.terminate()
        case EtcdPlace():
            from roost.stores.etcd.client import EtcdClient

            client = EtcdClient(place, LOOK_LIMIT_S)
            try:
                yield partial(_inspect_etcd, client, place.prefix)
            finally:
                await client.close()
        case MemoryPlace():
            yield _inspect_memory


async def inspect(place: Place) -> StoreStatus:
    """Raises StoreError."""
    async with inspection(place) as status:
        return await status()


async def live_leader(place: Place, watch_s: float = WATCH_S) -> str:
    """The identity of the server that leads it now; "" if none does.

    Of a shared store that is known when its lead or its revision changes, so this takes time, unless one does.
    """
    async with inspection(place) as status:
        first = await status()
        if first.holder or not first.there or not first.lead.epoch:
            return first.holder
        clock = asyncio.get_running_loop().time
        ends = clock() + (min(watch_s, WATCH_RELEASED_S) if first.lead.successor else watch_s)
        while clock() < ends:
            await asyncio.sleep(POLL_S)
            now = await status()
            if now != first:
                return now.lead.identity or "an unknown server"
        return ""


async def _inspect_memory() -> StoreStatus:
    return StoreStatus(False)


async def _inspect_sqlite(directory: Path) -> StoreStatus:
    from roost.stores.sqlite.file import FILE_NAME, LOCK_NAME, lock_holder
    from roost.stores.sqlite.mark import compare, read_mark

    if not (directory / FILE_NAME).is_file():
        compare(directory, read_mark(directory), None)
        return StoreStatus(False)
    try:
        outdated = _is_outdated(directory / FILE_NAME)
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return StoreStatus(True)
    except OSError as error:
        raise unavailable(
            f"cannot look at {directory}: {error.strerror}; do it as the user who runs the server"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return StoreStatus(True, outdated=outdated)
    except BlockingIOError:
        return StoreStatus(True, holder=lock_holder(descriptor))
    finally:
        os.close(descriptor)


def _is_outdated(path: Path) -> bool:
    """By its header alone: SQLite would make files beside it."""
    from roost.stores.migrations import numbered

    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    version = int.from_bytes(header[VERSION_AT : VERSION_AT + 4])
    return 0 < version < len(numbered("sqlite"))  # 0: nothing is in it yet, or only in its log


async def _inspect_postgres(server: "PostgresServer", connection: "asyncpg.Connection") -> StoreStatus:
    from roost.stores.migrations import numbered
    from roost.stores.sql import statement

    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            there = await connection.fetchrow(statement("postgres", "migrated"), server.schema)
            if not there["migrations"]:
                return StoreStatus(False)
            row = await connection.fetchrow(
                "SELECT epoch, identity, renewals, successor, revision, "
                "(SELECT max(version) FROM migrations) AS version FROM lead"
            )
    except Exception as error:
        raise server.explain(error) from error
    lead = server.lead_of(row)
    return StoreStatus(True, row["revision"], lead, outdated=(row["version"] or 0) < len(numbered("postgres")))


async def _connect_postgres(server: "PostgresServer", dsn: str) -> "asyncpg.Connection":
    """Not by way of the store's own connections: those make the tables where there are none."""
    import asyncpg

    read_only = {"default_transaction_read_only": "on"}
    settings = {"application_name": "roost", "search_path": server.schema, **read_only}
    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            return await asyncpg.connect(dsn, target_session_attrs="primary", server_settings=settings)
    except Exception as error:
        raise server.explain(error) from error


async def _inspect_etcd(client: "EtcdClient", prefix: str) -> StoreStatus:
    from roost.stores.etcd.layout import Layout
    from roost.stores.etcd.read import read_lead

    seen = await read_lead(client, Layout(prefix))
    return StoreStatus(seen.head_value is not None or seen.lead_written > 0, seen.head.revision, seen.lead)
