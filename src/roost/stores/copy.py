"""Filling a store with everything of another one, or of a backup: marked until it is whole, and never at an older
revision than clients may have seen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from msgspec.structs import replace

from roost.ports.store import ANYBODY, Change, Lead, LoadFailure, SharedStore, Snapshot, Store, require, unavailable
from roost.stores.batches import in_batches
from roost.stores.factory import open_store

# A commit of this size takes a good half second on a slow disk: between two of them the lead is renewed in time, and
# 100,000 records are 20 of them.
CHUNK_CHANGES = 5_000
CHUNK_BYTES = 8 << 20

# There from the first to the last commit. A server refuses a store with a kind of record that it does not know.
MARK = Change("unfinished copy", "run it again with --force", b"")

Progress = Callable[[int, int], None]  # records done, of how many


class FillableStore(Store, Protocol):
    """Every store that keeps something."""

    async def raise_revision(self, epoch: int, revision: int) -> LoadFailure | None:
        """Go on at a later revision, without commits in between: followers have to load again."""


class CopyResult(NamedTuple):
    revision: int
    records: int
    removed: int


async def fill(
    url: str, records: Sequence[Change], revision: int, progress: Progress, seen: Lead | None = None
) -> CopyResult:
    """Make these records all that the store has. It ends at this revision, or at a later one if it was there already.

    No server may lead the store; `seen`: its lead when none did. Raises StoreError, Fenced if one leads by now; after
    any StoreError on the way: the store is then marked as unfinished, and can be filled again.
    """
    store = cast(FillableStore, open_store(url))
    try:
        epoch = require(await store.lead("roost store", seen)).epoch
        before = require(await store.load())
        require(await store.commit(epoch, [MARK]))
        changes = [*_outdated(before, records), *records, replace(MARK, value=None)]
        chunks = list(in_batches(changes, lambda change: len(change.value or b""), CHUNK_BYTES, CHUNK_CHANGES))
        if revision - len(chunks) > before.revision + 1:
            require(await store.raise_revision(epoch, revision - len(chunks)))
            if require(await store.load()).revision != revision - len(chunks):
                raise unavailable("the revision of the store changed during the copy: stop other writers")
        done = 0
        for chunk in chunks:
            newest = require(await store.commit(epoch, chunk)).revision
            if isinstance(store, SharedStore):
                require(await store.renew(epoch))
            done += len(chunk)
            progress(min(done, len(records)), len(records))
        found = require(await store.load())
        _compare(found, records)
        if isinstance(store, SharedStore):
            require(await store.renew(epoch, ANYBODY))
        return CopyResult(newest, len(records), len(before.records))
    finally:
        await store.close()


def is_unfinished(records: Sequence[Change]) -> bool:
    return any(record.kind == MARK.kind for record in records)


def _outdated(before: Snapshot, records: Sequence[Change]) -> list[Change]:
    kept = {MARK.record, *(record.record for record in records)}
    return [replace(record, value=None) for record in before.records if record.record not in kept]


def _compare(found: Snapshot, records: Sequence[Change]) -> None:
    """Every record is there, byte by byte, and nothing else."""
    expected = {record.record: record.value for record in records}
    there = {record.record: record.value for record in found.records}
    for name in expected.keys() | there.keys():
        if expected.get(name) != there.get(name):
            kind, key = name
            raise unavailable(f"record {kind} {key} was not stored unchanged: stop other writers")
