"""Looking at a store without changing anything in it: whether it is there, who leads, and whether somebody does now."""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from roost.ports.store import Lead, Unavailable
from roost.stores.opening import EtcdMembers, MemoryPlace, Place, PostgresPlace, SqlitePlace

if TYPE_CHECKING:
    from roost.stores.etcd_client import Client

# Whoever looks waits for a person; a store that takes longer than this is one that does not answer.
LOOK_LIMIT_S = 10.0

# A leader renews every 0.4 s unless told otherwise, and leads no more when it has not for 1.5 s. This is three times
# that, for slower settings and slow moments.
WATCH_S = 5.0
WATCH_RELEASED_S = 1.0  # a leader that has let go leaves nobody, or an heir that takes over at once
POLL_S = 0.2

LOCK_TEXT_MAX = 1_000

# Of a database's file, as SQLite promises: `user_version` is the number of the last migration.
HEADER_BYTES, VERSION_AT = 100, 60


class Sight(NamedTuple):
    """What can be seen. `holder`: who has locked it, where that is how a store is led; then nothing else is known."""

    there: bool
    revision: int = 0
    lead: Lead = Lead()
    holder: str = ""
    outdated: bool = False  # an earlier release made it: whoever opens it changes it


class Looker(Protocol):
    """Looks as often as it is asked to."""

    async def look(self) -> Sight:
        """Raises Unavailable, Damaged."""

    async def close(self) -> None: ...


def looker(place: Place) -> Looker:
    """Who looks at that store."""
    match place:
        case SqlitePlace():
            return _SqliteLooker(place)
        case PostgresPlace():
            return _PostgresLooker(place)
        case EtcdMembers():
            return _EtcdLooker(place)
        case MemoryPlace():
            return _MemoryLooker()


async def look(place: Place) -> Sight:
    """One look."""
    looking = looker(place)
    try:
        return await looking.look()
    finally:
        await looking.close()


async def live_leader(place: Place, watch_s: float = WATCH_S) -> str:
    """Who leads it just now, in the leader's own words; "" if nobody does.

    Of a shared store that is known when its lead or its revision changes; so this takes time, unless one does.
    """
    looking = looker(place)
    try:
        first = await looking.look()
        if first.holder or not first.there or not first.lead.epoch:
            return first.holder
        clock = asyncio.get_running_loop().time
        ends = clock() + (min(watch_s, WATCH_RELEASED_S) if first.lead.heir else watch_s)
        while clock() < ends:
            await asyncio.sleep(POLL_S)
            now = await looking.look()
            if now != first:
                return now.lead.identity or "somebody"
        return ""
    finally:
        await looking.close()


class _MemoryLooker:
    async def look(self) -> Sight:
        return Sight(False)

    async def close(self) -> None:
        pass


class _SqliteLooker:
    def __init__(self, place: SqlitePlace) -> None:
        self._directory = place.directory

    async def look(self) -> Sight:
        from roost.stores.sqlite_file import FILE_NAME, LOCK_NAME

        if not (self._directory / FILE_NAME).is_file():
            return Sight(False)
        try:
            outdated = self._is_outdated(self._directory / FILE_NAME)
            descriptor = os.open(self._directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Sight(True)
        except OSError as error:
            raise Unavailable(
                f"cannot look at {self._directory}: {error.strerror}; do it as the user who runs the server"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return Sight(True, outdated=outdated)
        except BlockingIOError:
            pid, _, identity = os.pread(descriptor, LOCK_TEXT_MAX, 0).decode(errors="replace").partition(" ")
            return Sight(True, holder=f"process {pid or 'unknown'}" + (f" ({identity})" if identity else ""))
        finally:
            os.close(descriptor)

    def _is_outdated(self, path: Path) -> bool:
        """By its header alone: SQLite would make files beside it."""
        from roost.stores.migrations import numbered

        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        version = int.from_bytes(header[VERSION_AT : VERSION_AT + 4])
        return 0 < version < len(numbered("sqlite"))  # 0: nothing is in it yet, or only in its log

    async def close(self) -> None:
        pass


class _PostgresLooker:
    def __init__(self, place: PostgresPlace) -> None:
        from roost.stores.postgres_server import Server

        self._dsn, self._server = place.dsn, Server(place.dsn, place.schema)
        self._connection: Any = None

    async def look(self) -> Sight:
        from roost.stores.migrations import numbered
        from roost.stores.sql import statement

        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                connection = await self._connected()
                there = await connection.fetchrow(statement("postgres", "migrated"), self._server.schema)
                if not there["migrations"]:
                    return Sight(False)
                row = await connection.fetchrow(
                    "SELECT epoch, identity, beat, heir, revision, (SELECT max(version) FROM migrations) AS version "
                    "FROM lead"
                )
        except Exception as error:
            raise self._server.explain(error) from error
        if row is None:
            raise self._server.damaged("it does not say who leads")
        lead = Lead(row["epoch"], row["identity"], row["beat"], row["heir"])
        return Sight(True, row["revision"], lead, outdated=(row["version"] or 0) < len(numbered("postgres")))

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


class _EtcdLooker:
    def __init__(self, place: EtcdMembers) -> None:
        self._told = place.told
        self._client: Client | None = None

    async def look(self) -> Sight:
        from roost.stores.etcd_client import Client
        from roost.stores.etcd_layout import Layout
        from roost.stores.etcd_read import glance

        told = self._told
        if self._client is None:
            self._client = Client(told.endpoints, told.tls, told.user, told.password, LOOK_LIMIT_S)
        seen = await glance(self._client, Layout(told.prefix))
        return Sight(seen.head_value is not None or seen.lead_written > 0, seen.head.revision, seen.lead)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
