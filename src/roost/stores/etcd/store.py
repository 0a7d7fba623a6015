"""etcd store: the state in an etcd cluster, for several servers. Commits that wait become one transaction.

How the state is laid out and why a commit is atomic to every reader: layout.py.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial

from roost.ports import store as port
from roost.stores.etcd import read
from roost.stores.etcd.client import PATIENCE_S, EtcdClient
from roost.stores.etcd.layout import Layout, encode_changes
from roost.stores.etcd.url import EtcdPlace
from roost.stores.etcd.write import EtcdWriter
from roost.stores.group_commit import CLOSED, TaskGroupCommit, load_failure


class EtcdStore:
    """The SharedStore port on etcd. For one event loop; nothing is connected before the first call.

    `patience_s`: how long a call tries one member after the other before it is Unavailable.
    """

    def __init__(self, place: EtcdPlace, patience_s: float = PATIENCE_S) -> None:
        self._client = EtcdClient(place, patience_s)
        self._layout = Layout(place.prefix)
        self._writer = EtcdWriter(self._client, self._layout, place.operations, place.compact)
        self._jobs = TaskGroupCommit(self._writer, self._writer.transaction_max)

    async def lead(self, identity: str, seen: port.Lead | None = None) -> port.LeadResult:
        return await self._jobs.call(partial(self._writer.lead, identity, seen))

    async def renew(self, epoch: int, successor: str = "") -> port.RenewResult:
        return await self._jobs.call(partial(self._writer.renew, epoch, successor))

    async def load(self) -> port.LoadResult:
        return await self._jobs.call(self._writer.load)

    async def commit(self, epoch: int, changes: Sequence[port.Change]) -> port.CommitResult:
        return await self._jobs.commit(epoch, encode_changes(changes))

    async def raise_revision(self, epoch: int, revision: int) -> port.LoadFailure | None:
        return await self._jobs.call(partial(self._writer.raise_revision, epoch, revision))

    async def follow(self, revision: int) -> AsyncIterator[port.FollowResult]:
        if self._jobs.closed:
            yield CLOSED
            return
        try:
            async with contextlib.aclosing(read.follow(self._client, self._layout, revision)) as following:
                async for update in following:
                    yield update
        except port.StoreError as error:
            yield error.failure if isinstance(error.failure, port.Behind) else load_failure(error)

    async def close(self) -> None:
        await self._jobs.close()
        await self._client.close()
