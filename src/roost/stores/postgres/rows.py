"""What commits become in PostgreSQL: rows with versions and log entries; and which versions are expected there."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from roost.ports.store import Change
from roost.stores.group_commit import check_storable

# PostgreSQL takes 1 GB in one value and one message; a commit of this size still leaves room for several in a group.
COMMIT_BYTES_MAX = 256 << 20

ABSENT = 0  # the version of a record that is not there; revisions begin at 1

unpack = msgspec.msgpack.Decoder(list[Change]).decode  # raises msgspec.DecodeError or ValueError for anything else


def pack(changes: Sequence[Change]) -> bytes:
    """A commit as the log keeps it. Raises TypeError or ValueError for what no store can keep."""
    check_storable(changes)
    packed = msgspec.msgpack.encode(changes)
    if len(packed) > COMMIT_BYTES_MAX:
        raise ValueError(f"a commit has at most {COMMIT_BYTES_MAX:,} bytes, this one has {len(packed):,}")
    return packed


class PackedCommit(NamedTuple):
    changes: Sequence[Change]
    packed: bytes


class RecordRows(NamedTuple):
    """Columns of what a group of commits leaves behind, one entry per record: the parameters of `commit_group`."""

    kinds: list[bytes]
    keys: list[bytes]
    expected: list[int]
    versions: list[int]
    checksums: list[int]
    contents: list[bytes | None]
    added: int
    changed: int
    removed: int


class Versions:
    """Which version each record has as far as this server knows, as of one revision.

    Fed by whatever tells what is there: a load, our own commits, following. Known keys cost some 150 bytes each.
    """

    def __init__(self) -> None:
        self.revision: int | None = None  # None: nothing is known
        self._kinds: dict[str, dict[str, int]] = {}

    def forget(self) -> None:
        self.revision = None
        self._kinds = {}

    def replace(self, revision: int, versions: Iterable[tuple[str, str, int]]) -> None:
        kinds: dict[str, dict[str, int]] = {}
        for kind, key, version in versions:
            kinds.setdefault(kind, {})[key] = version
        self._kinds = kinds
        self.revision = revision

    def learn(self, revision: int, changes: Iterable[Change]) -> None:
        """One more commit. Anything but the next one is known already or follows nothing we know."""
        if self.revision is None or revision != self.revision + 1:
            return
        for change in changes:
            if change.value is None:
                self._kinds.get(change.kind, {}).pop(change.key, None)
            else:
                self._kinds.setdefault(change.kind, {})[change.key] = revision
        self.revision = revision

    def rows(self, commits: Sequence[Sequence[Change]]) -> RecordRows:
        """The rows after these commits, which get the next revisions in order. The last change of a record counts."""
        assert self.revision is not None
        merged: dict[tuple[str, str], tuple[int, bytes | None]] = {}
        for revision, changes in enumerate(commits, start=self.revision + 1):
            for change in changes:
                merged[change.record] = (revision, change.value)
        rows = RecordRows([], [], [], [], [], [], 0, 0, 0)
        added = removed = 0
        for (kind, key), (version, value) in merged.items():
            expected = self._kinds.get(kind, {}).get(key, ABSENT)
            if value is None and expected == ABSENT:
                continue
            added += expected == ABSENT
            removed += value is None
            rows.kinds.append(kind.encode())
            rows.keys.append(key.encode())
            rows.expected.append(expected)
            rows.versions.append(version)
            rows.checksums.append(crc32(value, version) if value is not None else 0)
            rows.contents.append(value)
        return rows._replace(added=added, changed=len(rows.kinds) - added - removed, removed=removed)
