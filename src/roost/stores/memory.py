"""Memory store: the state lives as long as the process. A synchronous core, and the async port around it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from roost.ports import store as port
from roost.stores.group_commit import CLOSED, check_storable, fenced, lead_changed

COMMITS_MAX = 10_000  # kept for followers; one that is further behind loads again


class Memory:
    """What a store remembers, without asyncio. Several `MemoryStore`s on one `Memory` are several servers."""

    def __init__(self, commits_max: int = COMMITS_MAX) -> None:
        self.lead_now = port.Lead()
        self._revision = 0
        self._records: dict[tuple[str, str], port.Change] = {}
        self._commits: deque[Sequence[port.Change]] = deque(maxlen=commits_max)  # the last ones, up to `_revision`
        self.listeners: dict[object, Callable[[], None]] = {}  # called when something is new

    def lead(self, identity: str, seen: port.Lead | None = None) -> port.LeadTaken | port.Fenced:
        if seen is not None and seen != self.lead_now:
            return lead_changed(self.lead_now)
        self._reported(port.Lead(self.lead_now.epoch + 1, identity))
        return port.LeadTaken(self.lead_now.epoch)

    def renew(self, epoch: int, successor: str = "") -> port.LeadRenewed | port.Fenced:
        if not self._leads(epoch):
            return fenced(epoch, self.lead_now)
        self._reported(self.lead_now._replace(renewals=self.lead_now.renewals + 1, successor=successor))
        return port.LeadRenewed()

    def apply(self, epoch: int, changes: Sequence[port.Change]) -> port.Committed | port.Fenced:
        if not self._leads(epoch):
            return fenced(epoch, self.lead_now)
        check_storable(changes)  # as a store on disk does, so that a mistake already shows in fast tests
        for change in changes:
            if change.value is None:
                self._records.pop(change.record, None)
            else:
                self._records[change.record] = change
        self._revision += 1
        self._commits.append(tuple(changes))
        self._reported(self.lead_now)
        return port.Committed(self._revision)

    def snapshot(self) -> port.Snapshot:
        """Everything applied so far. The list is the caller's own."""
        return port.Snapshot(self._revision, list(self._records.values()))

    def since(self, revision: int) -> port.News | port.Behind:
        count = self._revision - revision
        if not 0 <= count <= len(self._commits):
            return port.Behind(f"revision {revision} is not known here; {self._revision} is the newest")
        commits = list(self._commits)[len(self._commits) - count :]
        return port.News(self._revision, [change for commit in commits for change in commit], self.lead_now)

    def _leads(self, epoch: int) -> bool:
        return epoch == self.lead_now.epoch and epoch >= 1

    def _reported(self, lead: port.Lead) -> None:
        self.lead_now = lead
        self.wake()

    def wake(self) -> None:
        for listener in list(self.listeners.values()):
            listener()


class MemoryStore:
    """The SharedStore port on a `Memory`; its own one unless given."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()
        self._closed = False

    async def lead(self, identity: str, seen: port.Lead | None = None) -> port.LeadResult:
        return CLOSED if self._closed else self._memory.lead(identity, seen)

    async def renew(self, epoch: int, successor: str = "") -> port.RenewResult:
        return CLOSED if self._closed else self._memory.renew(epoch, successor)

    async def load(self) -> port.LoadResult:
        return CLOSED if self._closed else self._memory.snapshot()

    async def commit(self, epoch: int, changes: Sequence[port.Change]) -> port.CommitResult:
        return CLOSED if self._closed else self._memory.apply(epoch, changes)

    async def follow(self, revision: int) -> AsyncIterator[port.FollowResult]:
        memory, wake, mine = self._memory, asyncio.Event(), object()
        memory.listeners[mine] = wake.set
        try:
            while not self._closed:
                wake.clear()
                update = memory.since(revision)
                yield update
                if isinstance(update, port.Behind):
                    return
                revision = update.revision
                await wake.wait()
            yield CLOSED
        finally:
            del memory.listeners[mine]

    async def close(self) -> None:
        self._closed = True
        self._memory.wake()
