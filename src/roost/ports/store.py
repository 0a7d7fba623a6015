"""Store: where the state is kept. One writer at a time, fenced by its epoch; a commit is all or nothing.

Every expected outcome of a call is a value, and callers match them all. Exceptions are for defects, and for changes
that no store can keep.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

ANYBODY = "*"  # as a successor: the first server that tries


class Change(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """One record as it is after the commit. `value` is None when the record is gone.

    The garbage collector does not look at changes: with 100,000 tuples in one commit it held the loop for 60 ms.
    """

    kind: str
    key: str
    value: bytes | None

    @property
    def record(self) -> tuple[str, str]:
        return self.kind, self.key


class Snapshot(NamedTuple):
    revision: int
    records: list[Change]


class Lead(NamedTuple):
    """The leader as the store keeps it. A lead that is not renewed for long enough has ended."""

    epoch: int = 0  # 0: no server ever led
    identity: str = ""  # as the leader gave it
    renewals: int = 0  # grows with every renewal
    successor: str = ""  # not "": the leader has released the lead, and this server (or `ANYBODY`) is next


class News(NamedTuple):
    revision: int  # the follower has everything up to here
    changes: Sequence[Change]  # none: only the lead is new
    lead: Lead


class Committed(msgspec.Struct, frozen=True):
    """The changes are durable."""

    revision: int


class LeadTaken(msgspec.Struct, frozen=True):
    """This server is the one writer."""

    epoch: int


class LeadRenewed(msgspec.Struct, frozen=True):
    """This epoch still leads."""


class StoreFailure(msgspec.Struct, frozen=True):
    """An outcome other than the wanted one; `reason` says what an operator can do.

    StoreFailure
    ├── Fenced         another server leads: this epoch may never commit again
    ├── WriteConflict  a stored record is not as this server knows it; nothing of the commit was kept
    ├── InDoubt        the commit may or may not have happened; only a load tells
    ├── Unavailable    cannot be reached, or cannot be written (disk full); a commit was not made
    ├── Behind         the changes after that revision are not kept: load, and follow from there
    └── Damaged        the stored bytes are not what was written; an operator has to repair it
    """

    reason: str

    def __str__(self) -> str:
        return self.reason


class Fenced(StoreFailure, frozen=True):
    """Another writer has taken the lead since this epoch began."""


class WriteConflict(StoreFailure, frozen=True):
    """A record was changed by something that does not lead."""


class InDoubt(StoreFailure, frozen=True):
    """The answer was lost. Nothing is certain before the next load."""


class Unavailable(StoreFailure, frozen=True):
    """Not now; try again later. `denied`: the store refuses the user, so only an operator can help."""

    denied: bool = False


class Behind(StoreFailure, frozen=True):
    """A follower has to load again."""


class Damaged(StoreFailure, frozen=True):
    """What is stored cannot be read."""


CommitFailure = Fenced | WriteConflict | InDoubt | Unavailable | Damaged
LoadFailure = Unavailable | Damaged
CommitResult = Committed | CommitFailure
LeadResult = LeadTaken | Fenced | LoadFailure
RenewResult = LeadRenewed | Fenced | LoadFailure
LoadResult = Snapshot | LoadFailure
FollowResult = News | Behind | LoadFailure

T = TypeVar("T")


class StoreError(Exception):
    """A failure for which this program can do nothing but end its work."""

    def __init__(self, failure: StoreFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def unavailable(reason: str) -> StoreError:
    """For the code inside a store, which answers with the failure in the end."""
    return StoreError(Unavailable(reason))


def require(outcome: T | CommitFailure | Behind) -> T:
    """The wanted outcome. Raises StoreError: for commands that have no other way to go on."""
    if isinstance(outcome, StoreFailure):
        raise StoreError(outcome)
    return outcome


class Store(Protocol):
    """Four promises; the contract suite in tests/stores/contract.py holds every store to them."""

    async def lead(self, identity: str, seen: Lead | None = None) -> LeadResult:
        """Become the one writer, with an epoch larger than every earlier one.

        `seen`: only if the lead is still exactly this; otherwise Fenced, and nothing has changed.
        """

    async def load(self) -> LoadResult:
        """Everything that was committed, as of one revision."""

    async def commit(self, epoch: int, changes: Sequence[Change]) -> CommitResult:
        """Make all changes durable or none; the new revision is one more than the last.

        Several may be under way: they take effect in the order they were called. Where a commit names a record twice,
        the last change counts. A caller that is cancelled does not take its commit back.

        After every failure but Fenced all commits are refused (Unavailable) until `load` was called again.
        Raises TypeError or ValueError for what cannot be stored (no bytes, text that is not UTF-8); nothing of that
        commit is kept, and the store goes on.
        """

    async def close(self) -> None:
        """Let go of files and threads, after the commits under way. Every later call is Unavailable."""


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that several servers use at once: one leads, the others follow. SharedStoreContract tests the rest."""

    async def renew(self, epoch: int, successor: str = "") -> RenewResult:
        """Keep the lead of this epoch, or release it to a successor.

        It overtakes no commit that was called before. The outcome of an Unavailable one is not known; try again.
        """

    def follow(self, revision: int) -> AsyncIterator[FollowResult]:
        """First, at once, the lead (with what is already committed); then every commit after `revision` and every
        change of the lead, pushed as it happens, until the caller stops.

        A failure is the last item: Unavailable when the connection is lost for good.
        """
