"""Reading the status of a store without changing it: whether it exists, its lead, and whether a server leads now."""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.ports.store import Lead, unavailable
from roost.stores.etcd.url import EtcdPlace
from roost.stores.factory import MemoryPlace, Place, PostgresPlace, SqlitePlace

if TYPE_CHECKING:
    from roost.stores.etcd.client import EtcdClient

# An operator waits for this; a store that takes longer does not answer.
LOOK_LIMIT_S = 10.0

# A leader renews every 0.4 s by default, and its lead ends after 1.5 s without a renewal. This is three times that,
# for slower settings and slow moments.
WATCH_S = 5.0
WATCH_RELEASED_S = 1.0  # a released lead has no leader, or a successor that takes it at once
POLL_S = 0.2

LOCK_TEXT_MAX = 1_000

# Of a database's file, as SQLite promises: `user_version` is the number of the last migration.
HEADER_BYTES, VERSION_AT = 100, 60


class StoreStatus(NamedTuple):
    """What can be seen. `holder`: the process that has locked it (SQLite); then nothing else is known."""

    there: bool
    revision: int = 0
    lead: Lead = Lead()
    holder: str = ""
    outdated: bool = False  # an earlier release made it: opening it changes it


class StoreInspector:
    """Looks as often as it is asked to. This one is for memory, where nothing can be seen."""

    async def inspect(self) -> StoreStatus:
        return StoreStatus(False)

    async def close(self) -> None:
        """Let go of the connection."""


def inspector(place: Place) -> StoreInspector:
    match place:
        case SqlitePlace():
            return _SqliteInspector(place)
        case PostgresPlace():
            return _PostgresInspector(place)
        case EtcdPlace():
            return _EtcdInspector(place)
        case MemoryPlace():
            return StoreInspector()


async def inspect(place: Place) -> StoreStatus:
    looking = inspector(place)
    try:
        return await looking.inspect()
    finally:
        await looking.close()


async def live_leader(place: Place, watch_s: float = WATCH_S) -> str:
    """The identity of the server that leads it now; "" if none does.

    Of a shared store that is known when its lead or its revision changes, so this takes time, unless one does.
    """
    looking = inspector(place)
    try:
        first = await looking.inspect()
        if first.holder or not first.there or not first.lead.epoch:
            return first.holder
        clock = asyncio.get_running_loop().time
        ends = clock() + (min(watch_s, WATCH_RELEASED_S) if first.lead.successor else watch_s)
        while clock() < ends:
            await asyncio.sleep(POLL_S)
            now = await looking.inspect()
            if now != first:
                return now.lead.identity or "an unknown server"
        return ""
    finally:
        await looking.close()


class _SqliteInspector(StoreInspector):
    def __init__(self, place: SqlitePlace) -> None:
        self._directory = place.directory

    async def inspect(self) -> StoreStatus:
        from roost.stores.sqlite.file import FILE_NAME, LOCK_NAME

        if not (self._directory / FILE_NAME).is_file():
            return StoreStatus(False)
        try:
            outdated = self._is_outdated(self._directory / FILE_NAME)
            descriptor = os.open(self._directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return StoreStatus(True)
        except OSError as error:
            raise unavailable(
                f"cannot look at {self._directory}: {error.strerror}; do it as the user who runs the server"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return StoreStatus(True, outdated=outdated)
        except BlockingIOError:
            pid, _, identity = os.pread(descriptor, LOCK_TEXT_MAX, 0).decode(errors="replace").partition(" ")
            return StoreStatus(True, holder=f"process {pid or 'unknown'}" + (f" ({identity})" if identity else ""))
        finally:
            os.close(descriptor)

    def _is_outdated(self, path: Path) -> bool:
        """By its header alone: SQLite would make files beside it."""
        from roost.stores.migrations import numbered

        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        version = int.from_bytes(header[VERSION_AT : VERSION_AT + 4])
        return 0 < version < len(numbered("sqlite"))  # 0: nothing is in it yet, or only in its log


class _PostgresInspector(StoreInspector):
    def __init__(self, place: PostgresPlace) -> None:
        from roost.stores.postgres.connection import PostgresServer

        self._dsn, self._server = place.dsn, PostgresServer(place.dsn, place.schema)
        self._connection: Any = None

    async def inspect(self) -> StoreStatus:
        from roost.stores.migrations import numbered
        from roost.stores.sql import statement

        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                connection = await self._connected()
                there = await connection.fetchrow(statement("postgres", "migrated"), self._server.schema)
                if not there["migrations"]:
                    return StoreStatus(False)
                row = await connection.fetchrow(
                    "SELECT epoch, identity, renewals, successor, revision, "
                    "(SELECT max(version) FROM migrations) AS version FROM lead"
                )
        except Exception as error:
            raise self._server.explain(error) from error
        if row is None:
            raise self._server.damaged("it does not say who leads")
        lead = Lead(row["epoch"], row["identity"], row["renewals"], row["successor"])
        return StoreStatus(True, row["revision"], lead, outdated=(row["version"] or 0) < len(numbered("postgres")))

    async def _connected(self) -> Any:
        import asyncpg  # type: ignore[import-untyped]

        if self._connection is None:
            # Not by way of the store's own connections: those make the tables where there are none.
            settings = {
                "application_name": "roost",
                "search_path": self._server.schema,
                "default_transaction_read_only": "on",
            }
            self._connection = await asyncpg.connect(
                self._dsn, timeout=LOOK_LIMIT_S, target_session_attrs="primary", server_settings=settings
            )
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


class _EtcdInspector(StoreInspector):
    def __init__(self, place: EtcdPlace) -> None:
        self._place = place
        self._client: EtcdClient | None = None

    async def inspect(self) -> StoreStatus:
        from roost.stores.etcd.client import EtcdClient
        from roost.stores.etcd.layout import Layout
        from roost.stores.etcd.read import read_lead

        place = self._place
        if self._client is None:
            self._client = EtcdClient(place.endpoints, place.tls, place.user, place.password, LOOK_LIMIT_S)
        seen = await read_lead(self._client, Layout(place.prefix))
        return StoreStatus(seen.head_value is not None or seen.lead_written > 0, seen.head.revision, seen.lead)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
