"""Parts of logs: bytes that are on the local disk of a server only, until they are sealed. Data of machine.py."""

from typing import NamedTuple

import msgspec

from roost.ports.logs import LocalLog
from roost.server.logs.segments import Segment, Stamp


class LogPart(msgspec.Struct, eq=False):
    """Bytes of a log that are on the local disk only."""

    start: int
    end: int
    stamps: list[Stamp]
    is_queued: bool = False  # to be sealed
    sealed: int = 0  # up to this offset of the log


class SealPart(NamedTuple):
    """Put a part into the store of objects; answer with `sealed` or `not_sealed`."""

    log: str
    segment: Segment
    stamps: tuple[Stamp, ...]
    entry: "LogEntry"

    @property
    def part(self) -> str:
        return part_key(self.log, self.segment.start)


class LogEntry(msgspec.Struct, eq=False, weakref=True):
    changed_ms: int  # when the last bytes came in this life of the server
    awaited_ms: int | None = None  # when a reader first found it shorter than its node had reported
    readers: int = 0
    is_gone: bool = False  # with its workload
    is_listed: bool = False  # its objects were listed
    known: set[Segment] = msgspec.field(default_factory=set)
    segments: list[Segment] = msgspec.field(default_factory=list)  # of the known, the chain from the beginning
    parts: list[LogPart] = msgspec.field(default_factory=list)  # without gaps between them

    @property
    def sealed(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def has_gap(self) -> bool:
        """Between the segments and the parts, as after a loss of objects."""
        return bool(self.parts) and self.is_listed and self.parts[0].start > self.sealed

    @property
    def size(self) -> int:
        return max(self.sealed, self.parts[-1].end) if self.parts and not self.has_gap else self.sealed


def part_key(log: str, start: int) -> str:
    return f"{log}/{start}"


def log_and_start(local: LocalLog) -> tuple[str, int]:
    """The log that a part is of, and where it starts; -1: this is no part."""
    log, _, start = local.key.rpartition("/")
    return log, int(start) if start.isascii() and start.isdigit() and log.count("/") >= 3 else -1
