"""Backup: all records of a store at one revision, in one file that any store can be filled from.

A file is the line `roost backup 1`, a header, the records in frames, and an end. Each of them is a frame: length,
checksum of the content, checksum of these two, content (msgpack; records are compressed). A file without its end is
incomplete, and nothing of it is used.
"""

import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO
from zlib import crc32

import msgspec
from msgspec.structs import replace

from roost import __version__
from roost.core.state.records import SERIALS_PER_MS, Meta
from roost.model.errors import Invalid, Unreadable
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.ports.store import Change, Snapshot
from roost.server.engine.recording import read_frame, write_frame
from roost.server.private_files import replacing
from roost.stores.batches import in_batches

FORMAT = 1
FIRST_LINE = f"roost backup {FORMAT}\n".encode()
FIRST_LINE_BYTES_MAX = 64

# Records per frame: enough to compress well, small enough to have in memory twice. One record may be larger.
FRAME_BYTES = 1 << 20

# The largest frame that is read: a damaged length must not ask for all memory. No store takes a larger commit.
CONTENT_BYTES_MAX = 256 << 20

LEVEL = 3  # of 9: records are small and alike, and higher levels gain a tenth for three times the time

# How many commits followed a backup is unknown. No store commits ten times a millisecond; and if it went on after the
# copy was made, this is a hundred commits a second for four months.
REVISIONS_PER_MS = 10
REVISIONS_UNKNOWN = 1_000_000_000
ATTEMPTS_UNKNOWN = 1_000  # of one instance: a service that restarts every minute needs 16 hours for them


class BackupHeader(msgspec.Struct, frozen=True):
    version: str  # of Roost
    taken_ms: int
    revision: int
    store: str  # a description of its place
    kinds: dict[str, tuple[int, int]]  # number of records, and bytes of their values


class BackupEnd(msgspec.Struct, frozen=True):
    """The end of a complete file."""

    frames: int
    records: int
    checksum: int  # of all frames of records, compressed, one after the other


def write_backup(path: Path, snapshot: Snapshot, store: str, now_ms: int) -> BackupHeader:
    """Write or replace a file, completely or not at all, readable only by its owner. Raises OSError."""
    header = BackupHeader(__version__, now_ms, snapshot.revision, store, kinds_of(snapshot.records))
    frames = checksum = 0
    with replacing(path) as file:
        file.write(FIRST_LINE)
        write_frame(file, _ENCODER.encode(header))
        for records in in_batches(snapshot.records, lambda record: len(record.value or b""), FRAME_BYTES):
            content = zlib.compress(_ENCODER.encode(records), LEVEL)
            write_frame(file, content)
            frames, checksum = frames + 1, crc32(content, checksum)
        write_frame(file, _ENCODER.encode(BackupEnd(frames, len(snapshot.records), checksum)))
    return header


def read_backup(path: Path) -> tuple[BackupHeader, list[Change]]:
    """All of a file. Raises Unreadable if it is damaged or incomplete, Invalid if it has another format; OSError."""
    with path.open("rb") as file:
        return _read(path, file)


def as_of_now(records: Sequence[Change], now_ms: int) -> list[Change]:
    """Records of an earlier time, made fit to continue from: serials that were given since then are not given again.

    A store begins at now * SERIALS_PER_MS and counts on from there, more slowly than time. So no serial of now or later
    was ever given, whatever happened after the records were read. Attempts of an instance go on after those that it
    may have had since: their logs have the number in their names. Raises MsgspecError.
    """
    fit = list(records)
    last = _last_attempts(records)
    for number, record in enumerate(fit):
        if record.kind == "workload" and record.value is not None:
            with suppress(msgspec.MsgspecError):  # a server will refuse it
                workload = msgspec.msgpack.decode(record.value, type=Workload)
                known = max(last.get(record.key, 0), workload.attempts_gone, workload.attempts_lost)
                workload.attempts_lost = known + ATTEMPTS_UNKNOWN
                fit[number] = replace(record, value=_ENCODER.encode(workload))
        if record.kind == "meta" and record.value is not None:
            meta = msgspec.msgpack.decode(record.value, type=Meta)
            meta.reserved = max(meta.reserved, now_ms * SERIALS_PER_MS)
            fit[number] = replace(record, value=_ENCODER.encode(meta))
    return fit


def _last_attempts(records: Sequence[Change]) -> dict[str, int]:
    """The greatest number of an attempt of each workload."""
    last: dict[str, int] = {}
    for record in records:
        if record.kind == "instance" and record.value is not None:
            with suppress(msgspec.MsgspecError):
                owner = record.key.rpartition(".")[0]
                last[owner] = max(last.get(owner, 0), msgspec.msgpack.decode(record.value, type=Instance).attempt)
    return last


def revision_as_of_now(revision: int, taken_ms: int, now_ms: int) -> int:
    """A revision that no client can have seen since then, of this store or of another one with the same records:
    a known revision must not come again with another content."""
    return revision + REVISIONS_UNKNOWN + REVISIONS_PER_MS * max(0, now_ms - taken_ms)


def kinds_of(records: Sequence[Change]) -> dict[str, tuple[int, int]]:
    """Number and bytes of the records of each kind."""
    kinds: dict[str, tuple[int, int]] = {}
    for record in records:
        count, size = kinds.get(record.kind, (0, 0))
        kinds[record.kind] = (count + 1, size + len(record.value or b""))
    return dict(sorted(kinds.items()))


def _read(path: Path, file: IO[bytes]) -> tuple[BackupHeader, list[Change]]:
    found = re.fullmatch(rb"roost backup (\d{1,9})\n", file.readline(FIRST_LINE_BYTES_MAX))
    if not found:
        raise Unreadable("this is no backup of Roost", path=path.name)
    if int(found[1]) != FORMAT:
        message = f"a backup of format {int(found[1])}; Roost {__version__} reads format {FORMAT}"
        raise Invalid(path.name, message, code="backup_format")
    records: list[Change] = []
    frames = checksum = 0
    try:
        header = _HEADERS.decode(_read_frame(path, file))
        content = _read_frame(path, file)
        # Compressed content begins with 0x78, a struct in msgpack with 0x80 and more.
        while content[:1] == b"\x78":
            records += _RECORDS.decode(_expanded(path, content))
            frames, checksum = frames + 1, crc32(content, checksum)
            content = _read_frame(path, file)
        end = _ENDS.decode(content)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"cannot be read: {error}", path=path.name) from None
    if end != BackupEnd(frames, len(records), checksum) or file.read(1):
        raise Unreadable("damaged: its end does not belong to it", path=path.name)
    if kinds_of(records) != header.kinds:
        raise Unreadable("damaged: the records are not those that its header counts", path=path.name)
    return header, records


def _read_frame(path: Path, file: IO[bytes]) -> bytes:
    content = read_frame(path, file, CONTENT_BYTES_MAX)
    if content is None:
        raise Unreadable(f"not whole: it ends at byte {file.seek(0, os.SEEK_END):,}", path=path.name)
    return content


def _expanded(path: Path, content: bytes) -> bytes:
    expander = zlib.decompressobj()
    try:
        expanded = expander.decompress(content, CONTENT_BYTES_MAX)
    except zlib.error as error:
        raise Unreadable(f"damaged: {error}", path=path.name) from None
    if not expander.eof:
        raise Unreadable(f"damaged: more than {CONTENT_BYTES_MAX:,} bytes in one frame", path=path.name)
    return expanded


_ENCODER = msgspec.msgpack.Encoder()
_HEADERS = msgspec.msgpack.Decoder(BackupHeader)
_ENDS = msgspec.msgpack.Decoder(BackupEnd)
_RECORDS = msgspec.msgpack.Decoder(list[Change])
