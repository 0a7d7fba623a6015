"""Memory store: the state lives as long as the process. A synchronous core, and the async port around it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from roost.ports.store import Behind, Change, Fenced, Lead, News, Snapshot, Unavailable

COMMITS_MAX = 10_000  # kept for those who follow; whoever is further behind loads again


class Memory:
    """What a store remembers, without asyncio. Several `MemoryStore`s on one `Memory` are several servers."""

    def __init__(self, commits_max: int = COMMITS_MAX) -> None:
        self.lead_now = Lead()
        self._revision = 0
        self._records: dict[tuple[str, str], Change] = {}
        self._commits: deque[Sequence[Change]] = deque(maxlen=commits_max)  # the last ones, up to `_revision`
        self.listeners: dict[object, Callable[[], None]] = {}  # called when something is new

    def lead(self, identity: str, seen: Lead | None = None) -> int:
        """Fence every earlier epoch and return the new one."""
        if seen is not None and seen != self.lead_now:
            raise Fenced(f"{self.lead_now.identity or 'nobody'} leads with epoch {self.lead_now.epoch} by now")
        self._told(Lead(self.lead_now.epoch + 1, identity))
        return self.lead_now.epoch

    def renew(self, epoch: int, heir: str = "") -> None:
        """The lead is still there, or is given up."""
        self._check(epoch)
        self._told(self.lead_now._replace(beat=self.lead_now.beat + 1, heir=heir))

    def apply(self, epoch: int, changes: Sequence[Change]) -> int:
        """Apply all changes or none and return the new revision."""
        self._check(epoch)
        for change in changes:
            _check(change)
        for change in changes:
            if change.value is None:
                self._records.pop(change[:2], None)
            else:
                self._records[change[:2]] = change
        self._revision += 1
        self._commits.append(tuple(changes))
        self._told(self.lead_now)
        return self._revision

    def snapshot(self) -> Snapshot:
        """Everything applied so far. The list is the caller's own."""
        return Snapshot(self._revision, list(self._records.values()))

    def since(self, revision: int) -> News:
        """Everything after a revision."""
        count = self._revision - revision
        if not 0 <= count <= len(self._commits):
            raise Behind(f"revision {revision} is not known here; {self._revision} is the newest")
        commits = list(self._commits)[len(self._commits) - count :]
        return News(self._revision, [change for commit in commits for change in commit], self.lead_now)

    def _check(self, epoch: int) -> None:
        now = self.lead_now
        if epoch != now.epoch or epoch < 1:
            raise Fenced(f"epoch {epoch} may not commit: {now.identity or 'nobody'} leads with epoch {now.epoch}")

    def _told(self, lead: Lead) -> None:
        self.lead_now = lead
        for listener in list(self.listeners.values()):
            listener()


def _check(change: Change) -> None:
    # A twin refuses what a store on disk would refuse, so that a mistake shows in the fast tests already.
    if change.value is not None and not isinstance(change.value, bytes):
        raise TypeError(f"{change.kind} {change.key}: a value is bytes, not {type(change.value).__name__}")
    (change.kind + change.key).encode()


class MemoryStore:
    """The SharedStore port on a `Memory`; its own one unless told."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()
        self._closed = False

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        return self._open().lead(identity, seen)

    async def renew(self, epoch: int, heir: str = "") -> None:
        self._open().renew(epoch, heir)

    async def load(self) -> Snapshot:
        return self._open().snapshot()

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        return self._open().apply(epoch, changes)

    async def follow(self, revision: int) -> AsyncIterator[News]:
        memory, wake, mine = self._open(), asyncio.Event(), object()
        memory.listeners[mine] = wake.set
        try:
            while True:
                wake.clear()
                news = memory.since(revision)
                revision = news.revision
                yield news
                await wake.wait()
                self._open()
        finally:
            del memory.listeners[mine]

    async def close(self) -> None:
        self._closed = True
        for listener in list(self._memory.listeners.values()):
            listener()

    def _open(self) -> Memory:
        if self._closed:
            raise Unavailable("the store is closed")
        return self._memory
