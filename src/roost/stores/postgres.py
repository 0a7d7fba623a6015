"""PostgreSQL store: several servers share it; the commits that wait for one on its way become one transaction."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import asyncpg  # type: ignore[import-untyped]

from roost.ports.store import Change, Lead, News, Snapshot, StoreError, Unavailable
from roost.stores.postgres_follow import Follower
from roost.stores.postgres_rows import Commit, pack
from roost.stores.postgres_server import Server
from roost.stores.postgres_writer import CALL_LIMIT_S, Writer

# One transaction takes at most this much (and always at least one commit): 10,000 rows are about 0.3 s, the longest
# that a small commit waits behind a crowd; and PostgreSQL takes 1 GB in one message.
GROUP_CHANGES_MAX = 10_000
GROUP_BYTES_MAX = 64 << 20

LOAD_LIMIT_S = 120.0  # 10 million records

T = TypeVar("T")


class _Commit(NamedTuple):
    future: "asyncio.Future[int]"
    commit: Commit


class _Call(NamedTuple):
    future: "asyncio.Future[object]"
    work: Callable[[], Awaitable[object]]


class PostgresStore:
    """The SharedStore port on one schema of a PostgreSQL database. For one event loop; connects at the first call."""

    def __init__(self, dsn: str, schema: str = "roost") -> None:
        self._server = Server(dsn, schema)
        self._queue: deque[_Commit | _Call] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._writer = Writer(self._server)
        self._followers: set[Follower] = set()
        self._loading: set[asyncpg.Connection] = set()
        self._ending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._server!r})"

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        _check_text("identity", identity)
        return await self._call(partial(self._writer.lead, identity, seen))

    async def renew(self, epoch: int, heir: str = "") -> None:
        _check_text("heir", heir)
        await self._call(partial(self._writer.renew, epoch, heir))

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Commit(future, Commit(epoch, changes, pack(changes))))
        return await future

    async def load(self) -> Snapshot:
        """On a connection of its own: nobody waits for it, above all no renewal of the lead."""
        self._check_open()
        connection: asyncpg.Connection | None = None
        try:
            async with asyncio.timeout(LOAD_LIMIT_S):
                connection = await self._server.connect(CALL_LIMIT_S)
                self._loading.add(connection)
                revision, failure = await self._call(partial(self._writer.begin_load, connection))
                return await self._writer.load(connection, revision, failure)
        except StoreError:
            raise
        except Exception as error:
            raise self._server.explain(error) from error
        finally:
            if connection is not None:
                self._loading.discard(connection)
                connection.terminate()

    async def follow(self, revision: int) -> AsyncIterator[News]:
        self._check_open()
        follower = Follower(self._server, self._writer.versions, revision)
        self._followers.add(follower)
        try:
            while True:
                yield await follower.next()
        finally:
            self._followers.discard(follower)
            follower.stop()

    async def close(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name="store-close")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        for follower in list(self._followers):
            follower.stop()
        if self._worker is not None:
            await asyncio.wait([self._worker])
        for connection in list(self._loading):
            connection.terminate()
        await self._writer.close()

    def _call(self, work: Callable[[], Awaitable[T]]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Call(cast("asyncio.Future[object]", future), work))
        return future

    def _put(self, job: _Commit | _Call) -> None:
        self._check_open()
        self._queue.append(job)
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="store")

    def _check_open(self) -> None:
        if self._ending is not None:
            raise Unavailable("the store is closed")

    async def _work(self) -> None:
        """Everything that writes, in the order it was asked for."""
        try:
            while self._queue:
                job = self._queue[0]
                if isinstance(job, _Commit):
                    group = _take_group(self._queue)
                    _tell(group, await self._writer.commit([job.commit for job in group]))
                    await self._writer.trim()  # after the callers know: it is not theirs to wait for
                else:
                    self._queue.popleft()
                    _tell([job], [await self._writer.perform(job.work)])
        finally:
            self._worker = None


def _take_group(queue: "deque[_Commit | _Call]") -> list[_Commit]:
    """The commits that are there, up to the first other job and the first other epoch."""
    group: list[_Commit] = []
    changes = size = 0
    while queue and changes < GROUP_CHANGES_MAX and size < GROUP_BYTES_MAX:
        job = queue[0]
        if not isinstance(job, _Commit) or (group and job.commit.epoch != group[0].commit.epoch):
            break
        queue.popleft()
        group.append(job)
        changes += len(job.commit.changes)
        size += len(job.commit.packed)
    return group


def _tell(jobs: Sequence[_Commit | _Call], outcomes: Sequence[object]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        future = cast("asyncio.Future[object]", job.future)
        if future.done():
            continue  # a caller that was cancelled does not take its commit back
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _check_text(field: str, text: str) -> None:
    text.encode()  # raises ValueError
    if "\0" in text:
        raise ValueError(f"{field}: PostgreSQL cannot store a NUL character in a text")
