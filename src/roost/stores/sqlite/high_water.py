"""Whether a database has all that was acknowledged: the mark as bytes, and what a database lacks of it. No I/O.

mark.py keeps the mark in a file beside the database; the fault simulator keeps it on a disk that lies.
"""

import re
from enum import Enum, auto
from typing import NamedTuple
from zlib import crc32

# Of one width, so that it is written over in place; it fits into one sector of a disk, which is written as a whole.
PATTERN = re.compile(rb"roost mark 1 ([0-9a-f]{32}) (\d{20}) (\d{20}) ([0-9a-f]{8})\n")


class Acknowledged(NamedTuple):
    """The database, and the newest revision and epoch that its clients may have seen."""

    identity: str
    revision: int
    epoch: int


class LossKind(Enum):
    MARK_UNREADABLE = auto()  # so lost commits would not be noticed
    DATABASE_GONE = auto()
    OTHER_DATABASE = auto()
    COMMITS_MISSING = auto()
    EPOCH_MISSING = auto()


class StoreLoss(NamedTuple):
    """What a database lacks of what was acknowledged."""

    kind: LossKind
    acknowledged: int = 0  # a revision, or an epoch
    found: int = 0


def encode_mark(acknowledged: Acknowledged) -> bytes:
    identity, revision, epoch = acknowledged
    line = b"roost mark 1 %s %020d %020d" % (identity.encode(), revision, epoch)
    return b"%s %08x\n" % (line, crc32(line))


def decode_mark(data: bytes) -> Acknowledged | None:
    """None: it is not what was written."""
    found = PATTERN.fullmatch(data)
    if found is None or crc32(data.rpartition(b" ")[0]) != int(found[4], 16):
        return None
    return Acknowledged(found[1].decode(), int(found[2]), int(found[3]))


def find_loss(mark: Acknowledged, found: Acknowledged | None) -> StoreLoss | None:
    """What is missing of what the mark says. `found`: what the database has; None: there is no database."""
    if found is None:
        return StoreLoss(LossKind.DATABASE_GONE, mark.revision)
    if found.identity != mark.identity:
        return StoreLoss(LossKind.OTHER_DATABASE)
    if found.revision < mark.revision:
        return StoreLoss(LossKind.COMMITS_MISSING, mark.revision, found.revision)
    if found.epoch < mark.epoch:
        return StoreLoss(LossKind.EPOCH_MISSING, mark.epoch, found.epoch)
    return None


def loss_message(loss: StoreLoss) -> str:
    kind, acknowledged, found = loss
    match kind:
        case LossKind.MARK_UNREADABLE:
            return "roost.mark is not what was written, so lost commits would not be noticed"
        case LossKind.DATABASE_GONE:
            return f"its database is gone, and {acknowledged:,} commits were acknowledged"
        case LossKind.OTHER_DATABASE:
            return "its database is not the one that was here before"
        case LossKind.COMMITS_MISSING:
            newest = f"the newest commit is {found:,}, and {acknowledged:,} was acknowledged"
            return f"{acknowledged - found:,} acknowledged commits are missing: {newest}"
        case LossKind.EPOCH_MISSING:
            return f"its epoch is {found:,}, and {acknowledged:,} was acknowledged"
