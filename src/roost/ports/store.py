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
    """Five promises; the contract suite in tests/stores/contract.py holds every store to them."""

    async def lead(self, identity: str) -> int:
        """Become the one writer and return an epoch larger than every earlier one."""

    async def load(self) -> Snapshot:
        """Everything that was committed, as of one revision."""

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        """Make all changes durable or none; return the new revision. Raises Fenced, Unavailable."""

    async def close(self) -> None:
        """Let go of files and threads. Waits for a commit under way."""
