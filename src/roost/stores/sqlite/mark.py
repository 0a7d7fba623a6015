"""The high-water mark of a SQLite database: what was acknowledged, in a file beside the database and its log.

SQLite ignores the end of a write-ahead log whose checksums are wrong, and a log that is gone. The database is then
sound, and older than what clients were answered. The mark is written after every commit, in place and without an
fsync of its own: it is never ahead of the log, and after a power cut at most behind it.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from roost.ports.store import Damaged, StoreError

MARK_NAME = "roost.mark"

# Of one width, so that it is written over in place; it fits into one sector of a disk, which is written as a whole.
PATTERN = re.compile(r"roost mark 1 ([0-9a-f]{32}) (\d{20}) (\d{20}) ([0-9a-f]{8})\n")


class Acknowledged(NamedTuple):
    """The database, and the newest revision and epoch that its clients may have seen."""

    identity: str
    revision: int
    epoch: int


class HighWaterMark:
    """The open file. Raises OSError."""

    def __init__(self, directory: Path, acknowledged: Acknowledged) -> None:
        self._identity = acknowledged.identity.encode()
        path = directory / MARK_NAME
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._descriptor, 0o600)
        self.write(acknowledged.revision, acknowledged.epoch)
        self.sync()
        if is_new:
            sync_directory(directory)

    def write(self, revision: int, epoch: int) -> None:
        line = b"roost mark 1 %s %020d %020d" % (self._identity, revision, epoch)
        os.pwrite(self._descriptor, b"%s %08x\n" % (line, crc32(line)), 0)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_mark(directory: Path) -> Acknowledged | None:
    """None: there was never a database here. Raises StoreError."""
    try:
        text = (directory / MARK_NAME).read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return None
    found = PATTERN.fullmatch(text)
    if found is None or crc32(text.rpartition(" ")[0].encode()) != int(found[4], 16):
        raise _refused(directory, f"{MARK_NAME} is not what was written, so lost commits would not be noticed")
    return Acknowledged(found[1], int(found[2]), int(found[3]))


def compare(directory: Path, mark: Acknowledged | None, found: Acknowledged | None) -> None:
    """Refuse a database that has less than the mark says. Raises StoreError."""
    if mark is None:
        return
    if found is None:
        raise _refused(directory, f"its database is gone, and {mark.revision:,} commits were acknowledged")
    if found.identity != mark.identity:
        raise _refused(directory, "its database is not the one that was here before")
    missing = mark.revision - found.revision
    if missing > 0:
        newest = f"the newest commit is {found.revision:,}, and {mark.revision:,} was acknowledged"
        raise _refused(directory, f"{missing:,} acknowledged commits are missing: {newest}")
    if found.epoch < mark.epoch:
        raise _refused(directory, f"its epoch is {found.epoch:,}, and {mark.epoch:,} was acknowledged")


def accept_database(directory: Path) -> int:
    """Accept the database as it is, also if there is none. Returns the acknowledged revision; 0: it is not known."""
    try:
        mark = read_mark(directory)
    except StoreError:
        mark = None
    with contextlib.suppress(FileNotFoundError):
        (directory / MARK_NAME).unlink()
    sync_directory(directory)
    return mark.revision if mark is not None else 0


def _refused(directory: Path, what: str) -> StoreError:
    return StoreError(
        Damaged(
            f"{directory} is damaged: {what}. Keep a copy of it; bring back roost.db and roost.db-wal if you can, or "
            f"restore the last backup into a new directory. `roost store repair {directory}` goes on without the loss"
        )
    )


def sync_directory(directory: Path) -> None:
    """The names in it must survive a power cut, not only what the files hold."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
