"""PostgreSQL store: several servers share it; the commits that wait for one on its way become one transaction."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import asyncpg  # type: ignore[import-untyped]

from roost.ports import store as port
from roost.stores.group_commit import CLOSED, TaskGroupCommit, Weight, load_failure
from roost.stores.postgres.connection import PostgresServer
from roost.stores.postgres.follow import PostgresFollower
from roost.stores.postgres.rows import PackedCommit, pack
from roost.stores.postgres.writer import CALL_LIMIT_S, PostgresWriter

# One transaction takes at most this much (and always at least one commit): 10,000 rows are about 0.3 s, the longest
# that a small commit waits behind a crowd; and PostgreSQL takes 1 GB in one message.
GROUP_MAX = Weight(10_000, 64 << 20)

LOAD_LIMIT_S = 120.0  # 10 million records


class PostgresStore:
    """The SharedStore port on one schema of a PostgreSQL database. For one event loop; connects at the first call."""

    def __init__(self, dsn: str, schema: str = "roost") -> None:
        self._server = PostgresServer(dsn, schema)
        self._writer = PostgresWriter(self._server)
        self._jobs = TaskGroupCommit(self._writer, GROUP_MAX)
        self._followers: set[PostgresFollower] = set()
        self._loading: set[asyncpg.Connection] = set()
        self._ending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._server!r})"

    async def lead(self, identity: str, seen: port.Lead | None = None) -> port.LeadResult:
        _check_text("identity", identity)
        return await self._jobs.call(partial(self._writer.lead, identity, seen))

    async def renew(self, epoch: int, successor: str = "") -> port.RenewResult:
        _check_text("successor", successor)
        return await self._jobs.call(partial(self._writer.renew, epoch, successor))

    async def commit(self, epoch: int, changes: Sequence[port.Change]) -> port.CommitResult:
        return await self._jobs.commit(epoch, PackedCommit(changes, pack(changes)))

    async def raise_revision(self, epoch: int, revision: int) -> port.LoadFailure | None:
        return await self._jobs.call(partial(self._writer.raise_revision, epoch, revision))

    async def load(self) -> port.LoadResult:
        """On a connection of its own: nothing waits for it, above all no renewal of the lead."""
        if self._jobs.closed:
            return CLOSED
        connection: asyncpg.Connection | None = None
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                connection = await self._server.connect(CALL_LIMIT_S)
                self._loading.add(connection)
                begun = port.require(await self._jobs.call(partial(self._writer.begin_load, connection)))
                return await self._writer.load(connection, *begun)
        except Exception as error:
            return load_failure(self._server.explain(error))
        finally:
            if connection is not None:
                self._loading.discard(connection)
                connection.terminate()

    async def follow(self, revision: int) -> AsyncIterator[port.FollowResult]:
        if self._jobs.closed:
            yield CLOSED
            return
        follower = PostgresFollower(self._server, self._writer.versions, revision)
        self._followers.add(follower)
        try:
            while isinstance(update := await follower.next(), port.News):
                yield update
            yield update
        except port.StoreError as error:
            yield load_failure(error)
        finally:
            self._followers.discard(follower)
            follower.stop()

    async def close(self) -> None:
        if self._ending is None:
            self._jobs.closed = True
            self._ending = asyncio.create_task(self._end(), name="store-close")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        for follower in list(self._followers):
            follower.stop()
        await self._jobs.close()
        for connection in list(self._loading):
            connection.terminate()
        await self._writer.close()


def _check_text(field: str, text: str) -> None:
    text.encode()  # raises ValueError
    if "\0" in text:
        raise ValueError(f"{field}: PostgreSQL cannot store a NUL character in a text")
