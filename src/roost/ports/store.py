"""Store: where the state is kept. One writer at a time, fenced by its epoch; a commit is all or nothing."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Change(NamedTuple):
    """One record as it is after the commit. `value` is None when the record is gone."""

    kind: str
    key: str
    value: bytes | None


class Snapshot(NamedTuple):
    """Everything that was committed up to `revision`, in no particular order."""

    revision: int
    records: list[Change]


class StoreError(Exception):
    """The store cannot promise anything any more; whoever holds state in memory throws it away.

    StoreError
    ├── Fenced       somebody else leads now: this epoch may never commit again
    ├── Unavailable  not to be reached or not to be written just now (disk full, connection gone)
    └── Damaged      what is stored cannot be read; a person has to look
    """


class Fenced(StoreError):
    """Another writer has taken the lead since this epoch began."""


class Unavailable(StoreError):
    """The commit may or may not have happened. The only safe answer is to load again."""


class Damaged(StoreError):
    """The stored bytes are not what was written."""


class Store(Protocol):
    """Four promises; the contract suite in tests/stores/contract.py holds every store to them."""

    async def lead(self, identity: str) -> int:
        """Become the one writer and return an epoch larger than every earlier one. Raises Unavailable, Damaged."""

    async def load(self) -> Snapshot:
        """Everything that was committed, as of one revision. Raises Unavailable, Damaged."""

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        """Make all changes durable or none; return the new revision, one more than the last.

        Several may be under way: they take effect in the order they were called. Where a commit names a record twice,
        the last change counts. A caller that is cancelled does not take its commit back.

        Raises Fenced, Unavailable, Damaged. After the latter two every commit is refused until `load` was called again.
        Raises TypeError or ValueError for what cannot be stored (no bytes, text that is not UTF-8); nothing of that
        commit is kept, and the store goes on.
        """

    async def close(self) -> None:
        """Let go of files and threads, after the commits under way. Whatever comes later is refused (Unavailable)."""
