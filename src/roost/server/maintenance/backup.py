"""A backup: everything of a store as of one revision, in one file that any store can be filled from.

A file is the line `roost backup 1`, a header, the records in frames, and an end. Each of them is a frame: length,
checksum of the content, checksum of these two, content (msgpack; of records compressed). A file without its end is
not whole, and nothing of it is used.
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar
from zlib import crc32

import msgspec

from roost import __version__
from roost.core.state.records import SERIALS_PER_MS, Meta
from roost.model.errors import Invalid, Unreadable
from roost.ports.store import Change, Snapshot

FORMAT = 1
FIRST_LINE = f"roost backup {FORMAT}\n".encode()
FIRST_LINE_BYTES_MAX = 64

# Records per frame: enough to compress well, small enough to be in memory twice. One record may be larger.
FRAME_BYTES = 1 << 20

# The largest frame that is read: a damaged length must not ask for all memory. No store takes a larger commit.
CONTENT_BYTES_MAX = 256 << 20

LEVEL = 3  # of 9: records are small and alike, and higher levels gain a tenth for three times the time

# What came after a backup is not known. No store commits ten times a millisecond; and where it went on after a copy was
# made of it, this is a hundred commits a second for four months.
REVISIONS_PER_MS = 10
REVISIONS_UNKNOWN = 1_000_000_000

_HEAD = struct.Struct("<IIH")  # length, checksum of the content, checksum of these eight bytes
_CHECKED = struct.Struct("<II")

Read = TypeVar("Read")


class BackupHeader(msgspec.Struct, frozen=True):
    """What a file holds."""

    version: str  # of Roost
    taken_ms: int
    revision: int
    store: str  # where it was: a description
    kinds: dict[str, tuple[int, int]]  # how many records, and how many bytes their values have


class BackupEnd(msgspec.Struct, frozen=True):
    """All of it was written."""

    frames: int
    records: int
    checksum: int  # of all frames of records, compressed, one after the other


def write_backup(path: Path, snapshot: Snapshot, store: str, now_ms: int) -> BackupHeader:
    """Write a file that is whole or not there, for its owner's eyes only. One of that name is replaced. OSError."""
    header = BackupHeader(__version__, now_ms, snapshot.revision, store, kinds_of(snapshot.records))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(FIRST_LINE)
            _write_frame(file, _ENCODER.encode(header))
            frames = checksum = 0
            for records in _frames(snapshot.records):
                content = zlib.compress(_ENCODER.encode(records), LEVEL)
                _write_frame(file, content)
                frames, checksum = frames + 1, crc32(content, checksum)
            _write_frame(file, _ENCODER.encode(BackupEnd(frames, len(snapshot.records), checksum)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    return header


def read_backup(path: Path) -> tuple[BackupHeader, list[Change]]:
    """All of a file. Raises Unreadable if it is damaged or not whole, Invalid if it is of another format; OSError."""
    with path.open("rb") as file:
        _check_first_line(path, file)
        header = _decoded(path, _HEADERS, _read_frame(path, file))
        records: list[Change] = []
        frames = checksum = 0
        content = _read_frame(path, file)
        # What is compressed begins with 0x78, a struct in msgpack with 0x80 and more.
        while content[:1] == b"\x78":
            some: list[Change] = _decoded(path, _RECORDS, _expanded(path, content))
            records += some
            frames, checksum = frames + 1, crc32(content, checksum)
            content = _read_frame(path, file)
        if _decoded(path, _ENDS, content) != BackupEnd(frames, len(records), checksum) or file.read(1):
            raise Unreadable("damaged: its end does not belong to it", path=path.name)
    if kinds_of(records) != header.kinds:
        raise Unreadable("damaged: the records are not those that its header counts", path=path.name)
    return header, records


def as_of_now(records: Sequence[Change], now_ms: int) -> list[Change]:
    """Records of an earlier moment, made fit to go on from: what was given a serial since then keeps it for itself.

    A store begins at now * SERIALS_PER_MS and counts on from there, more slowly than time. So no serial of now or later
    was ever given out, whatever happened after the records were read. Raises MsgspecError.
    """
    fit = []
    for record in records:
        if record.kind == "meta" and record.value is not None:
            meta = msgspec.msgpack.decode(record.value, type=Meta)
            meta.reserved = max(meta.reserved, now_ms * SERIALS_PER_MS)
            record = record._replace(value=_ENCODER.encode(meta))
        fit.append(record)
    return fit


def revision_as_of_now(revision: int, taken_ms: int, now_ms: int) -> int:
    """Beyond whatever clients may have seen since then, here or of another store that was filled from the same records:
    a revision that they know must not come again with another content."""
    return revision + REVISIONS_UNKNOWN + REVISIONS_PER_MS * max(0, now_ms - taken_ms)


def kinds_of(records: Sequence[Change]) -> dict[str, tuple[int, int]]:
    """How many records there are of each kind, and how many bytes."""
    kinds: dict[str, tuple[int, int]] = {}
    for kind, _, value in records:
        count, size = kinds.get(kind, (0, 0))
        kinds[kind] = (count + 1, size + len(value or b""))
    return dict(sorted(kinds.items()))


def _frames(records: Sequence[Change]) -> Iterator[Sequence[Change]]:
    start = size = 0
    for number, record in enumerate(records):
        size += len(record.value or b"")
        if size >= FRAME_BYTES:
            yield records[start : number + 1]
            start, size = number + 1, 0
    if start < len(records):
        yield records[start:]


def _write_frame(file: IO[bytes], content: bytes) -> None:
    checked = _CHECKED.pack(len(content), crc32(content))
    file.write(checked + (crc32(checked) & 0xFFFF).to_bytes(2, "little"))
    file.write(content)


def _read_frame(path: Path, file: IO[bytes]) -> bytes:
    offset = file.tell()
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise Unreadable(f"not whole: it ends at byte {offset + len(head):,}", path=path.name)
    length, wanted, check = _HEAD.unpack(head)
    if crc32(head[: _CHECKED.size]) & 0xFFFF != check or length > CONTENT_BYTES_MAX:
        raise Unreadable(f"damaged at byte {offset:,}", path=path.name)
    content = file.read(length)
    if len(content) < length:
        raise Unreadable(f"not whole: it ends at byte {file.tell():,}", path=path.name)
    if crc32(content) != wanted:
        raise Unreadable(f"damaged at byte {offset:,}: the checksum is wrong", path=path.name)
    return content


def _check_first_line(path: Path, file: IO[bytes]) -> None:
    line = file.readline(FIRST_LINE_BYTES_MAX)
    found = re.fullmatch(rb"roost backup (\d{1,9})\n", line)
    if not found:
        raise Unreadable("this is no backup of Roost", path=path.name)
    if int(found[1]) != FORMAT:
        message = f"a backup of format {int(found[1])}; Roost {__version__} reads format {FORMAT}"
        raise Invalid(path.name, message, code="backup_format")


def _expanded(path: Path, content: bytes) -> bytes:
    expander = zlib.decompressobj()
    try:
        expanded = expander.decompress(content, CONTENT_BYTES_MAX)
    except zlib.error as error:
        raise Unreadable(f"damaged: {error}", path=path.name) from None
    if not expander.eof:
        raise Unreadable(f"damaged: more than {CONTENT_BYTES_MAX:,} bytes in one frame", path=path.name)
    return expanded


def _decoded(path: Path, decoder: "msgspec.msgpack.Decoder[Read]", content: bytes) -> Read:
    try:
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"cannot be read: {error}", path=path.name) from None


def _sync_folder(folder: Path) -> None:
    """The name itself must survive a power cut, not only what is inside."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_ENCODER = msgspec.msgpack.Encoder()
_HEADERS = msgspec.msgpack.Decoder(BackupHeader)
_ENDS = msgspec.msgpack.Decoder(BackupEnd)
_RECORDS = msgspec.msgpack.Decoder(list[Change])
