"""etcd store: the state in an etcd cluster, for several servers. Commits that wait become one transaction.

How the state lies there and why a commit is whole to every reader: etcd_layout. Reading is in etcd_read, writing in
etcd_write, the connection in etcd_client. Everything this file adds is the order in which things are asked for.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

from roost.ports.store import Change, Lead, News, Snapshot, Unavailable
from roost.stores import etcd_read
from roost.stores.etcd_client import PATIENCE_S, Client, Tls
from roost.stores.etcd_layout import Changes, Layout, encode_changes
from roost.stores.etcd_write import Writer, size_of

# etcd's default for --max-txn-ops.
OPERATIONS_MAX = 128

T = TypeVar("T")


class _Commit(NamedTuple):
    future: "asyncio.Future[int]"
    epoch: int
    changes: Changes


class _Call(NamedTuple):
    future: "asyncio.Future[object]"
    work: Callable[[], Awaitable[object]]


class EtcdStore:
    """The SharedStore port on etcd. For one event loop; nothing is connected before the first call.

    `compact`: the leader drops etcd's history of more than some minutes ago. That is done for the whole etcd, not for
    the prefix; but an etcd whose history nobody drops runs full and stops for everybody. So it is on, unless somebody
    else does it (--auto-compaction-retention) or other users of the same etcd need more history than that.
    `patience_s`: how long a call tries one member after the other before it is Unavailable.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str = "/roost",
        *,
        tls: Tls | None = None,
        user: str = "",
        password: str = "",
        compact: bool = True,
        operations: int = OPERATIONS_MAX,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client = Client(endpoints, tls, user, password, patience_s)
        self._layout = Layout(prefix)
        self._writer = Writer(self._client, self._layout, operations, compact)
        self._jobs: deque[_Commit | _Call] = deque()
        self._serving: asyncio.Task[None] | None = None  # there while there are jobs
        self._closed = False

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        return await self._call(partial(self._writer.lead, identity, seen))

    async def renew(self, epoch: int, heir: str = "") -> None:
        await self._call(partial(self._writer.renew, epoch, heir))

    async def load(self) -> Snapshot:
        return await self._call(self._writer.load)

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Commit(future, epoch, encode_changes(changes)))
        return await future

    async def follow(self, revision: int) -> AsyncIterator[News]:
        self._check_open()
        async with contextlib.aclosing(etcd_read.follow(self._client, self._layout, revision)) as following:
            async for news in following:
                yield news

    async def close(self) -> None:
        self._closed = True
        while self._serving is not None:
            await asyncio.shield(self._serving)
        await self._client.close()

    def _call(self, work: Callable[[], Awaitable[T]]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Call(cast("asyncio.Future[object]", future), work))
        return future

    def _put(self, job: _Commit | _Call) -> None:
        self._check_open()
        self._jobs.append(job)
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")

    async def _serve(self) -> None:
        """Everything that was asked for, in that order. Ends when nothing is left: nothing has to be stopped."""
        try:
            while self._jobs:
                job = self._jobs.popleft()
                if isinstance(job, _Call):
                    _tell([job], *await _outcome(job.work(), 1))
                else:
                    await self._serve_commits(job)
                await self._writer.compact_if_due()
        except Exception as error:  # a mistake of ours; nobody is to wait for ever because of it
            _tell(list(self._jobs), *[error] * len(self._jobs))
            self._jobs.clear()
            raise
        finally:
            self._serving = None

    async def _serve_commits(self, first: _Commit) -> None:
        group = self._group(first)
        changes = [commit.changes for commit in group]
        _tell(group, *await _outcome(self._writer.commit(first.epoch, changes), len(group), each=True))
        await self._writer.settle(first.epoch)

    def _group(self, first: _Commit) -> list[_Commit]:
        """The commits that wait and fit into one transaction with the first."""
        group, merged, size = [first], dict(first.changes), size_of(first.changes)
        while self._jobs and isinstance(self._jobs[0], _Commit) and self._jobs[0].epoch == first.epoch:
            size += size_of(self._jobs[0].changes)
            merged.update(self._jobs[0].changes)
            if not self._writer.fits(merged, size):
                break
            group.append(cast(_Commit, self._jobs.popleft()))
        return group


async def _outcome(work: Awaitable[object], count: int, each: bool = False) -> list[object]:
    """What to tell each of those who asked."""
    try:
        result = await work
    except Exception as error:
        return [error] * count
    return list(cast("Sequence[object]", result)) if each else [result]


def _tell(jobs: Sequence[_Commit | _Call], *outcomes: object) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        future = cast("asyncio.Future[object]", job.future)
        if future.done():
            continue  # a caller that was cancelled does not take its commit back
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
