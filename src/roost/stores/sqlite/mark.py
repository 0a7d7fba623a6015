"""The high-water mark of a SQLite database: what was acknowledged, in a file beside the database and its log.

SQLite ignores the end of a write-ahead log whose checksums are wrong, and a log that is gone. The database is then
sound, and older than what clients were answered. The mark is written after every commit, in place and without an
fsync of its own: it is never ahead of the log, and after a power cut at most behind it.
"""

import contextlib
import os
from pathlib import Path

from roost.ports.store import Damaged, StoreError
from roost.stores.sqlite.high_water import (
    Acknowledged,
    LossKind,
    StoreLoss,
    decode_mark,
    encode_mark,
    find_loss,
    loss_message,
)

MARK_NAME = "roost.mark"


class HighWaterMark:
    """The open file. Raises OSError."""

    def __init__(self, directory: Path, acknowledged: Acknowledged) -> None:
        self._identity = acknowledged.identity
        path = directory / MARK_NAME
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self._descriptor, 0o600)
        self.write(acknowledged.revision, acknowledged.epoch)
        self.sync()
        if is_new:
            sync_directory(directory)

    def write(self, revision: int, epoch: int) -> None:
        os.pwrite(self._descriptor, encode_mark(Acknowledged(self._identity, revision, epoch)), 0)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def read_mark(directory: Path) -> Acknowledged | None:
    """None: there was never a database here. Raises StoreError."""
    try:
        data = (directory / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return None
    mark = decode_mark(data)
    if mark is None:
        raise _refused(directory, StoreLoss(LossKind.MARK_UNREADABLE))
    return mark


def compare(directory: Path, mark: Acknowledged | None, found: Acknowledged | None) -> None:
    """Refuse a database that has less than the mark says. Raises StoreError."""
    loss = find_loss(mark, found) if mark is not None else None
    if loss is not None:
        raise _refused(directory, loss)


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


def _refused(directory: Path, loss: StoreLoss) -> StoreError:
    return StoreError(
        Damaged(
            f"{directory} is damaged: {loss_message(loss)}. Keep a copy of it; bring back roost.db and roost.db-wal "
            "if you can, or restore the last backup into a new directory. "
            f"`roost store repair {directory}` goes on without the loss"
        )
    )


def sync_directory(directory: Path) -> None:
    """The names in it must survive a power cut, not only what the files hold."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
