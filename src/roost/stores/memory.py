"""Memory store: the state lives as long as the process. A synchronous core, and the async port around it."""

from collections.abc import Sequence

from roost.ports.store import Change, Fenced, Snapshot, Unavailable


class Memory:
    """What a store remembers, without asyncio. Several `MemoryStore`s on one `Memory` are several servers."""

    def __init__(self) -> None:
        self._epoch = 0
        self._leader = ""
        self._revision = 0
        self._records: dict[tuple[str, str], Change] = {}

    def lead(self, identity: str) -> int:
        """Fence every earlier epoch and return the new one."""
        self._epoch += 1
        self._leader = identity
        return self._epoch

    def apply(self, epoch: int, changes: Sequence[Change]) -> int:
        """Apply all changes or none and return the new revision."""
        if epoch != self._epoch or epoch < 1:
            raise Fenced(f"epoch {epoch} may not commit: {self._leader or 'nobody'} leads with epoch {self._epoch}")
        for change in changes:
            _check(change)
        for change in changes:
            if change.value is None:
                self._records.pop(change[:2], None)
            else:
                self._records[change[:2]] = change
        self._revision += 1
        return self._revision

    def snapshot(self) -> Snapshot:
        """Everything applied so far. The list is the caller's own."""
        return Snapshot(self._revision, list(self._records.values()))


def _check(change: Change) -> None:
    # A twin refuses what a store on disk would refuse, so that a mistake shows in the fast tests already.
    if change.value is not None and not isinstance(change.value, bytes):
        raise TypeError(f"{change.kind} {change.key}: a value is bytes, not {type(change.value).__name__}")
    (change.kind + change.key).encode()


class MemoryStore:
    """The Store port on a `Memory`; its own one unless told."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory if memory is not None else Memory()
        self._closed = False

    async def lead(self, identity: str) -> int:
        return self._open().lead(identity)

    async def load(self) -> Snapshot:
        return self._open().snapshot()

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        return self._open().apply(epoch, changes)

    async def close(self) -> None:
        self._closed = True

    def _open(self) -> Memory:
        if self._closed:
            raise Unavailable("the store is closed")
        return self._memory
