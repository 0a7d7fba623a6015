"""Store: where the state is kept. One writer at a time, fenced by its epoch; a commit is all or nothing."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

ANYBODY = "*"  # as an heir: whoever is first


class Change(NamedTuple):
    """One record as it is after the commit. `value` is None when the record is gone."""

    kind: str
    key: str
    value: bytes | None


class Snapshot(NamedTuple):
    """Everything that was committed up to `revision`, in no particular order."""

    revision: int
    records: list[Change]


class Lead(NamedTuple):
    """Who leads, as the store keeps it. Whoever sees it unchanged for long enough may conclude that nobody does."""

    epoch: int = 0  # 0: nobody ever led
    identity: str = ""  # in the leader's own words
    beat: int = 0  # grows with every renewal
    heir: str = ""  # not "": the leader has let go, and this one (or ANYBODY) is to be next


class News(NamedTuple):
    """What somebody who follows is told: whole commits, in order, and who leads as of then."""

    revision: int  # everything up to here has been told
    changes: Sequence[Change]  # none: only the lead is new
    lead: Lead


class StoreError(Exception):
    """The store cannot promise anything any more; whoever holds state in memory throws it away.

    StoreError
    ├── Fenced       somebody else leads now: this epoch may never commit again
    ├── Unavailable  not to be reached or not to be written just now (disk full, connection gone)
    ├── Behind       what is asked for was long ago and is not kept: load, and follow from there
    └── Damaged      what is stored cannot be read; a person has to look
    """


class Fenced(StoreError):
    """Another writer has taken the lead since this epoch began."""


class Unavailable(StoreError):
    """The commit may or may not have happened. The only safe answer is to load again."""


class Behind(StoreError):
    """The changes after that revision are not known any more."""


class Damaged(StoreError):
    """The stored bytes are not what was written."""


class Store(Protocol):
    """Four promises; the contract suite in tests/stores/contract.py holds every store to them."""

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        """Become the one writer and return an epoch larger than every earlier one. Raises Unavailable, Damaged.

        `seen`: only if the lead is still exactly this; otherwise Fenced, and nothing has changed.
        """

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


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that several servers use at once: one leads, the others follow. SharedStoreContract tests the rest."""

    async def renew(self, epoch: int, heir: str = "") -> None:
        """Say that this epoch still leads, or with an heir that it lets go. Raises Fenced, Unavailable.

        It overtakes no commit that was called before. The outcome of a failed one is not known; try again.
        """

    def follow(self, revision: int) -> AsyncIterator[News]:
        """First of all at once who leads (with whatever is there already); then whatever is committed after
        `revision`, and every change of the lead, pushed as it happens, until the caller stops.

        Raises Behind when some of it is not kept any more, Unavailable when the connection is lost for good.
        """
