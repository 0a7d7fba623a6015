"""Which blobs go: those that no record names, that no upload in progress names, and that are older than a grace.

A machine without I/O and without a clock. Its driver lists pages, deletes, and reports both. The rules for the others:
hold digests before asking which are missing; wait for those that are going; commit a record only while they are held.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import msgspec

from roost.ports.blobs import BlobInfo, BlobPage

GRACE_MS = 24 * 3_600_000  # an operator who deleted a workload by mistake has a day
HOLD_MS = 3_600_000  # an upload is asked for its digests again at least this often
ASKED_MS = 24 * 3_600_000  # a digest that its owner has not asked about for so long is held no more
HOLDS_MAX = 1_000_000  # digests of all uploads in progress: 100 MB
DELETES_MAX = 100  # at once: file systems are slow for a minute after a mass deletion


class ListBlobs(msgspec.Struct, frozen=True):
    """List the page after this digest, and pass it to `listed`."""

    after: str


class DeleteBlobs(msgspec.Struct, frozen=True):
    """Record these durably, delete them, and report each to `deleted`, also if that failed."""

    digests: tuple[str, ...]


class _Hold:
    __slots__ = ("digests", "until_ms")

    def __init__(self) -> None:
        self.digests: dict[str, int] = {}  # until when; in the order of their times
        self.until_ms = 0


class GarbageCollector:
    """One for a store, on the leader. One step at a time: `begin`, `step`, `listed` or `deleted`, and again.

    `going`: what an earlier leader recorded, and may still be deleting. Report each to `deleted` when none of its
    requests can still be under way.
    """

    def __init__(
        self, now_ms: int, going: Iterable[str] = (), *, grace_ms: int = GRACE_MS, hold_ms: int = HOLD_MS
    ) -> None:
        self._grace_ms = grace_ms
        self._hold_ms = hold_ms
        self._start_ms = now_ms
        self._aged_ms = now_ms
        self._holds: dict[str, _Hold] = {}
        self._candidates: list[BlobInfo] = []
        self._after: str | None = ""
        self.going = frozenset(going)

    def hold(self, owner: str, digests: Sequence[str], now_ms: int) -> frozenset[str] | None:
        """Keep these for an upload in progress, together with what it holds already. None: too many are held.

        Returns those that are going: wait until they are deleted, then ask the store which are missing.
        """
        self._expire(now_ms)
        if self.held_count + len(digests) > HOLDS_MAX:
            return None
        hold = self._holds.setdefault(owner, _Hold())
        for digest in digests:
            hold.digests.pop(digest, None)
            hold.digests[digest] = now_ms + ASKED_MS
        hold.until_ms = now_ms + self._hold_ms
        return self.going.intersection(digests)

    @property
    def held_count(self) -> int:
        return sum(len(hold.digests) for hold in self._holds.values())

    def is_held(self, owner: str, digests: Iterable[str], now_ms: int) -> bool:
        """Whether a record may be committed that names these: since they were held, none can have gone."""
        self._expire(now_ms)
        hold = self._holds.get(owner)
        return hold is not None and hold.digests.keys() >= set(digests)

    def release(self, owner: str) -> None:
        """After its record is committed, or when the upload is given up."""
        self._holds.pop(owner, None)

    def step(self, is_named: Callable[[str], bool], now_ms: int) -> ListBlobs | DeleteBlobs | None:
        """What to do next; None: a deletion is under way, or it is too early, or the round is complete.

        `is_named`: whether a record that is committed names a digest, asked in this call.
        """
        self._expire(now_ms)
        # An earlier leader held digests that this one does not know; none of its holds is longer than this.
        if self.going or now_ms < self._start_ms + self._hold_ms:
            return None
        chosen: list[str] = []
        while self._candidates and len(chosen) < DELETES_MAX:
            blob = self._candidates.pop()
            old = blob.stored_ms + self._grace_ms <= now_ms
            if old and not is_named(blob.digest) and not self._held(blob.digest):
                chosen.append(blob.digest)
        if chosen:
            self.going = frozenset(chosen)
            return DeleteBlobs(tuple(chosen))
        return None if self._after is None else ListBlobs(self._after)

    def listed(self, page: BlobPage) -> None:
        self._candidates = list(page.blobs)
        self._after = page.after

    def deleted(self, digest: str) -> None:
        """It is gone, or stays for another round."""
        self.going -= {digest}

    def begin(self) -> None:
        """Another round, when the last one is complete."""
        if self._after is None and not self._candidates:
            self._after = ""

    def _held(self, digest: str) -> bool:
        return any(digest in hold.digests for hold in self._holds.values())

    def _expire(self, now_ms: int) -> None:
        for owner in [owner for owner, hold in self._holds.items() if hold.until_ms <= now_ms]:
            del self._holds[owner]
        if self._aged_ms + self._hold_ms <= now_ms:  # an owner that always sends would hold all that it ever sent
            self._aged_ms = now_ms
            for hold in self._holds.values():
                for digest in list(takewhile(lambda digest: hold.digests[digest] <= now_ms, hold.digests)):  # noqa: B023
                    del hold.digests[digest]
