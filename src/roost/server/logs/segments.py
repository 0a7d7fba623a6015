"""Segments: pieces of logs as objects. What a segment has is in its key.

Keys are LOG/START-END-TIME in hexadecimal digits: the range of the log, and when its first byte came. Any two segments
of a log agree where they overlap, so it does no harm that one is put twice, or that two servers cut a log differently.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

SEGMENT_BYTES = 2 << 20  # each costs files, syncs and threads; compression costs as much in any size. Opened in 2 ms
STAMP_MS = 100  # bytes that come within this time share a stamp: at most ten a second for each log
KEY = re.compile(r"(.+)/([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})")


class Stamp(NamedTuple):
    """When the bytes from this offset of the log on came, by the wall clock of the server."""

    offset: int
    at_ms: int


class Segment(NamedTuple):
    start: int
    end: int
    at_ms: int

    def key(self, log: str) -> str:
        return f"{log}/{self.start:x}-{self.end:x}-{self.at_ms:x}"


def read_key(key: str) -> Segment | None:
    """The segment that a key names; None: the object is none."""
    found = KEY.fullmatch(key)
    return Segment(*(int(number, 16) for number in found.groups()[1:])) if found is not None else None


def workload_of(key: str) -> str:
    """PROJECT/NAME/SERIAL, which the key of a log or a segment begins with."""
    return "/".join(key.split("/")[:3])


def chain(segments: Iterable[Segment]) -> list[Segment]:
    """Those that cover a log from its beginning on, up to the first gap."""
    found: list[Segment] = []
    end = 0
    for segment in sorted(segments, key=lambda segment: (segment.start, -segment.end)):
        if segment.start > end:
            break
        if segment.end > end:
            found.append(segment)
            end = segment.end
    return found


def covering(segments: Sequence[Segment], offset: int) -> Segment | None:
    """The segment of a chain that has the byte at an offset."""
    at = bisect_right(segments, offset, key=lambda segment: segment.end)
    return segments[at] if at < len(segments) else None
