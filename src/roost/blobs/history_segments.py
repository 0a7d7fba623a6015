"""History pages as segments: objects of about a megabyte of pages each, compressed, with an index.

The key of a segment has its first page, the term and the epoch of its writer. A leader replaces its newest segment by a
longer one until that is full. No object is written by two leaders, so no store needs to support conditional writes:
a leader begins a segment with a higher term after the last page that it has read, and that ends all older ones there.
What an older leader writes later, at any time, is beyond that end and does not count.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import zstandard

from roost.ports.history import PagesMoved, PagesUnavailable, StoredPage
from roost.ports.objects import Objects, ObjectsUnavailable

ROOT = "history.d"  # of their keys; no project has a dot in its name
SEGMENT_BYTES = 1 << 20  # of pages: the newest segment is written again with each append, in 2 ms of CPU time
PAGES_BYTES_MAX = 1 << 30  # of one segment: a snapshot of a million instances takes a part of it
LEVEL = 3
MAGIC = b"RHS1"
KEY = re.compile(rf"{re.escape(ROOT)}/([0-9a-f]{{16}})-([0-9a-f]{{1,16}})-([0-9a-f]{{1,16}})")

_LENGTH = struct.Struct("<I")
_INDEX = msgspec.msgpack.Decoder(tuple[int, list[int]])


class SegmentKey(NamedTuple):
    first: int
    term: int
    epoch: int

    def __str__(self) -> str:
        return f"{ROOT}/{self.first:016x}-{self.term:x}-{self.epoch:x}"

    @property
    def writer(self) -> tuple[int, int]:
        return self.term, self.epoch


class DamagedPages(Exception):
    """The object is no segment, or not the one that its key names."""


def read_key(key: str) -> SegmentKey | None:
    """The segment that a key names; None: the object is none."""
    found = KEY.fullmatch(key)
    return SegmentKey(*(int(number, 16) for number in found.groups())) if found is not None else None


def chain(keys: Iterable[SegmentKey]) -> list[SegmentKey]:
    """The segments that count, in order: each ends where the next one begins."""
    found: list[SegmentKey] = []
    for key in sorted(keys):
        if found and key.writer < found[-1].writer:
            continue  # its writer no longer led
        if found and key.first == found[-1].first:
            found.pop()
        found.append(key)
    return found


def encode(first: int, pages: Sequence[bytes]) -> bytes:
    index = msgspec.msgpack.encode((first, [len(page) for page in pages]))
    frame = zstandard.ZstdCompressor(LEVEL, write_checksum=True).compress(b"".join(pages))
    return b"".join((MAGIC, _LENGTH.pack(len(index)), index, frame))


def decode(first: int, stored: bytes) -> list[StoredPage]:
    """The pages of a segment. Raises DamagedPages."""
    try:
        if not stored.startswith(MAGIC):
            raise ValueError("it does not begin as a segment does")
        (length,) = _LENGTH.unpack_from(stored, len(MAGIC))
        begin = len(MAGIC) + _LENGTH.size
        found, lengths = _INDEX.decode(stored[begin : begin + length])
        if found != first:
            raise ValueError(f"it begins with page {found}")
        data = zstandard.ZstdDecompressor().decompress(stored[begin + length :], max_output_size=PAGES_BYTES_MAX)
        if sum(lengths) != len(data):
            raise ValueError(f"it has {len(data)} bytes in place of {sum(lengths)}")
    except (ValueError, msgspec.MsgspecError, struct.error, zstandard.ZstdError) as error:
        raise DamagedPages(str(error)) from None
    pages: list[StoredPage] = []
    offset = 0
    for number, length in enumerate(lengths, start=first):
        pages.append(StoredPage(number, data[offset : offset + length]))
        offset += length
    return pages


class SegmentPages:
    """The HistoryPages port on objects."""

    def __init__(self, objects: Objects, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._objects = objects
        self._segment_bytes = segment_bytes
        self._chain: list[SegmentKey] = []  # as last listed
        self._tail: SegmentKey | None = None  # the newest segment of this writer; None: read before writing
        self._pages: list[bytes] = []  # that are in it

    def append(self, epoch: int, pages: Sequence[StoredPage]) -> PagesMoved | PagesUnavailable | None:
        if self._tail is None or self._tail.epoch != epoch:
            failure = self._begin(epoch, pages[0].number)
            if failure is not None:
                return failure
        assert self._tail is not None
        if pages[0].number != self._tail.first + len(self._pages):
            return PagesMoved(self._tail.first + len(self._pages) - 1)
        tail, before = self._tail, list(self._pages)
        for page in pages:
            if sum(map(len, before)) >= self._segment_bytes:
                if isinstance(failure := self._put(tail, before), PagesUnavailable):
                    return failure
                tail, before = tail._replace(first=page.number), []
            before.append(page.content)
        return self._put(tail, before)

    def read(self, after: int, bytes_max: int) -> list[StoredPage] | PagesUnavailable:
        found: list[StoredPage] = []
        size = 0
        failure = self._list(after + 1)
        if failure is not None:
            return failure
        for place, key in enumerate(self._chain):
            end = self._chain[place + 1].first if place + 1 < len(self._chain) else 1 << 63
            if end <= after + 1:
                continue
            stored = self._objects.get(str(key))
            if isinstance(stored, ObjectsUnavailable):
                return PagesUnavailable(stored.reason)
            if stored is None:  # the leader has just forgotten it
                self._chain = []
                return PagesUnavailable(f"the segment {key} is gone")
            try:
                pages = decode(key.first, stored)
            except DamagedPages as error:
                return PagesUnavailable(f"the segment {key} is damaged: {error}; restore it from a backup")
            wanted = [page for page in pages if after < page.number < end]
            found += wanted
            size += sum(len(page.content) for page in wanted)
            if size >= bytes_max or (end < 1 << 63 and key.first + len(pages) < end):
                break
        return found

    def forget(self, epoch: int, before: int) -> PagesUnavailable | None:
        if self._tail is None or self._tail.epoch != epoch:
            return None
        keys = self._keys("")
        if isinstance(keys, PagesUnavailable):
            return keys
        first = max((key.first for key in chain(keys) if key.first <= before), default=0)
        for key in sorted(keys):
            if key.first < first:
                outcome = self._objects.delete(str(key))
                if isinstance(outcome, ObjectsUnavailable):
                    return PagesUnavailable(outcome.reason)
        self._chain = []
        return None

    def close(self) -> None:
        """There is nothing to let go of."""

    def _begin(self, epoch: int, first: int) -> PagesMoved | PagesUnavailable | None:
        """Begin to write: after the last page that counts, with a term above all others."""
        self._chain = []
        newest = self._newest()
        if isinstance(newest, PagesUnavailable):
            return newest
        if newest != first - 1:
            return PagesMoved(newest)
        term = max((key.term for key in self._chain), default=0)
        self._tail, self._pages = SegmentKey(first, max(epoch, term + 1), epoch), []
        return None

    def _newest(self) -> int | PagesUnavailable:
        failure = self._list(0)
        if failure is not None:
            return failure
        if not self._chain:
            return 0
        found = self.read(self._chain[-1].first - 1, 1)
        if isinstance(found, PagesUnavailable):
            return found
        return found[-1].number if found else self._chain[-1].first - 1

    def _list(self, number: int) -> PagesUnavailable | None:
        """List the segments, only the newest ones if the others are known."""
        known = [key for key in self._chain if key.first <= number][:-1]
        keys = self._keys(str(known[-1]) if known else "")
        if isinstance(keys, PagesUnavailable):
            return keys
        self._chain = chain([*known, *keys])
        return None

    def _keys(self, after: str) -> list[SegmentKey] | PagesUnavailable:
        listed = self._objects.list(ROOT, after)
        if isinstance(listed, ObjectsUnavailable):
            return PagesUnavailable(listed.reason)
        return list(filter(None, map(read_key, listed)))

    def _put(self, tail: SegmentKey, pages: list[bytes]) -> PagesUnavailable | None:
        outcome = self._objects.put(str(tail), encode(tail.first, pages))
        if isinstance(outcome, ObjectsUnavailable):
            self._tail = None  # it may have been put all the same
            return PagesUnavailable(outcome.reason)
        self._tail, self._pages = tail, pages
        return None
