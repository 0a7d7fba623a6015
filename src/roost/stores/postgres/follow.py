"""Following a PostgreSQL store: the log is read when the server says that something is new, and now and then anyway."""

import asyncio
import contextlib

import asyncpg  # type: ignore[import-untyped]
import msgspec

from roost.ports.store import Behind, Change, Lead, News, StoreError, unavailable
from roost.stores.postgres.connection import PostgresServer, passing
from roost.stores.postgres.rows import Versions, unpack
from roost.stores.sql import statement

# A notification is a hint: one that is lost costs this long and nothing else. Reading nothing new takes 0.2 ms.
REREAD_S = 5.0

READ_LIMIT_S = 10.0  # as a commit: a server that takes longer hangs

# A server that restarts is back in seconds; after this long a follower should know that it is alone.
AWAY_LIMIT_S = 30.0

# The first attempt right after a break, then ever slower: a server that starts is not knocked over by its clients.
PAUSE_FIRST_S = 0.05
PAUSE_LAST_S = 2.0

# One piece of news; what is more is read faster by loading (100,000 records are about as many bytes).
NEWS_BYTES_MAX = 64 << 20


class PostgresFollower:
    """Follows the commits after a revision, on a connection of its own, which it makes again when it breaks."""

    def __init__(self, server: PostgresServer, versions: Versions, revision: int) -> None:
        self._server = server
        self._versions = versions
        self._revision = revision
        self._lead: Lead | None = None  # as last sent
        self._connection: asyncpg.Connection | None = None
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()

    async def next(self) -> News | Behind:
        """Wait for something new. Raises StoreError."""
        while True:
            if self._lead is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REREAD_S):
                        await self._wake.wait()
            self._wake.clear()
            update = self._news(await self._read())
            if isinstance(update, Behind):
                return update
            if (update.revision, update.lead) != (self._revision, self._lead):
                self._revision, self._lead = update.revision, update.lead
                return update

    def stop(self) -> None:
        """Let go of the connection; a waiting caller gets an error: the store is closed."""
        self._stopping.set()
        self._wake.set()
        self._drop()

    async def _read(self) -> asyncpg.Record:
        """The log after our revision. Goes on through a break of the connection, as long as that makes sense."""
        clock = asyncio.get_running_loop().time
        given_up = clock() + AWAY_LIMIT_S
        pause = PAUSE_FIRST_S
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(READ_LIMIT_S):
                    connection = await self._connected()
                    return await connection.fetchrow(statement("postgres", "since"), self._revision, NEWS_BYTES_MAX)
            except StoreError:
                self._drop()
                raise
            except Exception as error:
                self._drop()
                if not self._stopping.is_set() and (not passing(error) or clock() > given_up):
                    raise self._server.explain(error) from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(2 * pause, PAUSE_LAST_S)
        raise unavailable("the store is closed")

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._server.connect(READ_LIMIT_S)
            if self._stopping.is_set():
                connection.terminate()
                raise ConnectionAbortedError("the store was closed meanwhile")
            self._connection = connection
            connection.add_termination_listener(lambda *_: self._wake.set())
            await connection.add_listener(self._server.schema, lambda *_: self._wake.set())
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.terminate()

    def _news(self, row: asyncpg.Record) -> News | Behind:
        lead = self._server.lead_of(row)
        commits = reported(row, self._revision)
        if isinstance(commits, Behind):
            return commits
        for revision, changes in enumerate(commits, start=self._revision + 1):
            self._versions.learn(revision, changes)
        return News(row["revision"], [change for changes in commits for change in changes], lead)


def reported(row: asyncpg.Record, revision: int) -> list[list[Change]] | Behind:
    newest = row["revision"]
    if not 0 <= newest - revision == row["commits"]:
        return Behind(f"the changes after revision {revision} are not kept; {newest} is the newest: load again")
    if row["changes"] is None:
        return Behind(f"there are {row['bytes']:,} bytes of changes after revision {revision}: load instead")
    try:
        return [unpack(packed) for packed in row["changes"]]
    except (msgspec.MsgspecError, ValueError) as error:
        return Behind(f"the log after revision {revision} cannot be read ({error}): load again")
