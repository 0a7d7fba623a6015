"""History pages in PostgreSQL: one row each, in the schema of the state, over a connection of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg  # type: ignore[import-untyped]
import zstandard

from roost.ports.history import PagesMoved, PagesUnavailable, StoredPage
from roost.ports.store import StoreError
from roost.stores.postgres.connection import PostgresServer
from roost.stores.sql import statement

CALL_LIMIT_S = 60.0  # a snapshot of a large state is some hundred megabytes
FORGET_ROWS_MAX = 1_000  # deleted at a time: a short transaction
LEVEL = 3

T = TypeVar("T")


class PostgresPages:
    """The HistoryPages port. For one thread, which gets an event loop of its own: no commit waits for it."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._server = PostgresServer(dsn, schema)
        self._runner: asyncio.Runner | None = None
        self._connection: asyncpg.Connection | None = None

    def append(self, epoch: int, pages: Sequence[StoredPage]) -> PagesMoved | PagesUnavailable | None:
        compress = zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress
        contents = [compress(page.content) for page in pages]
        sizes = [len(page.content) for page in pages]

        async def insert(connection: asyncpg.Connection) -> PagesMoved | PagesUnavailable | None:
            first = pages[0].number - 1
            try:
                rows = await connection.fetch(statement("postgres", "append_history"), epoch, first, sizes, contents)
            except asyncpg.UniqueViolationError:
                rows = []
            if rows:
                return None
            newest = int(await connection.fetchval("SELECT coalesce(max(number), 0) FROM history"))
            if newest != first:
                return PagesMoved(newest)
            return PagesUnavailable(f"{self._server.name}: another server leads now")

        return self._call(insert)

    def read(self, after: int, bytes_max: int) -> list[StoredPage] | PagesUnavailable:
        decompress = zstandard.ZstdDecompressor().decompress

        async def select(connection: asyncpg.Connection) -> list[StoredPage] | PagesUnavailable:
            rows = await connection.fetch(statement("postgres", "read_history"), after, bytes_max)
            try:
                return [StoredPage(row["number"], decompress(row["content"])) for row in rows]
            except zstandard.ZstdError as error:
                return PagesUnavailable(f"{self._server.name}: the history after page {after} is damaged: {error}")

        return self._call(select)

    def forget(self, epoch: int, before: int) -> PagesUnavailable | None:
        async def delete(connection: asyncpg.Connection) -> None:
            old = "SELECT number FROM history WHERE number < $1 ORDER BY number LIMIT $2"
            leads = "EXISTS (SELECT FROM lead WHERE epoch = $3)"
            query = f"DELETE FROM history WHERE number IN ({old}) AND {leads}"
            while await connection.execute(query, before, FORGET_ROWS_MAX, epoch) == f"DELETE {FORGET_ROWS_MAX}":
                pass

        return self._call(delete)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _call(self, call: Callable[[asyncpg.Connection], Awaitable[T]]) -> T | PagesUnavailable:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._connected(call))
        except Exception as error:
            if self._connection is not None:
                self._connection.terminate()
                self._connection = None
            explained = self._server.explain(error)
            if isinstance(explained, StoreError):
                return PagesUnavailable(explained.failure.reason)
            raise

    async def _connected(self, call: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        async with asyncio.timeout(CALL_LIMIT_S):
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._server.connect(CALL_LIMIT_S)
            return await call(self._connection)
