"""The journal: what the engine was given, step by step, so that its decisions can be made again. It is not the store.

A file is the line `roost journal 1`, a header with the state it begins with, and one entry per step. Header and entries
are frames: length, checksum of the content, checksum of these two, content (msgpack). Every step has an entry, also one
that only looked at its timers: what it found out without changing a record may matter to the next one.
"""

import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from roost import __version__
from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC, AffinityFilter, DynamicFilter, StaticFilter
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import Invalid, Unreadable
from roost.model.events import Event
from roost.model.protocol import Usage
from roost.ports.store import Change, Snapshot
from roost.server.observability import logging

FORMAT = 1
SUFFIX = ".journal"
FIRST_LINE = f"roost journal {FORMAT}\n".encode()
FIRST_LINE_BYTES_MAX = 64

FILE_BYTES_MAX = 1 << 30  # a day of some hundred nodes; small enough to be sent
TOTAL_BYTES_MAX = 10 << 30
FILE_BYTES_MIN = 1 << 16
BUFFER_BYTES = 1 << 16  # beats between two commits
FRAME_BYTES_MAX = (1 << 32) - 1  # what the length can say

HEAD = struct.Struct("<IIH")  # length, checksum of the content, checksum of these eight bytes
CHECKED = struct.Struct("<II")

#: What writing may raise: a disk that is full or gone, or something in an event that msgpack cannot say.
FAILURES = (OSError, TypeError, ValueError, OverflowError, msgspec.MsgspecError)

log = logging.logger("journal")

Read = TypeVar("Read")


class Touch(msgspec.Struct, frozen=True, array_like=True):
    """A connected node when a file begins in the middle of a life."""

    node: str
    lease_until_ms: int
    usage: Usage | None = None


class RecordingHeader(msgspec.Struct, frozen=True):
    """What a file begins with. A life is one state from being loaded to being thrown away, in one file or several."""

    version: str
    life: str  # the name of its first file
    part: int  # 0: the state was loaded just now; later ones go on with the state of the part before
    first: int  # the number of the first entry within the life, from 1
    now_ms: int
    settings: Settings
    strategies: tuple[str, ...]
    filters: tuple[str, ...]
    revision: int
    records: list[Change]
    serial: int = 0
    touch: tuple[Touch, ...] = ()
    unclean: bool = False  # the lead was taken from a leader that had not let go


class RecordedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step: when, what happened, and a checksum of the changes it decided on (0: none)."""

    now_ms: int
    events: Sequence[Event]
    changes: int


class Part(NamedTuple):
    path: Path
    header: RecordingHeader
    offset: int


def checksum(changes: Sequence[Change]) -> int:
    """Equal for equal changes in equal order, byte by byte; 0 if there are none."""
    return crc32(_ENCODER.encode(changes)) if changes else 0


class Journal:
    """Writes the history of one server into a folder. A failure is logged once, and then nothing is written."""

    def __init__(self, folder: Path, file_bytes_max: int = FILE_BYTES_MAX, total_bytes_max: int = TOTAL_BYTES_MAX):
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._total_bytes_max = total_bytes_max
        self._file: IO[bytes] | None = None
        self._failed = False
        self._life = ""
        self._part = 0
        self._entries = 0
        self._size = 0
        self._header_size = 0

    def begin(self, snapshot: Snapshot, now_ms: int, settings: Settings, *, unclean: bool = False) -> None:
        if self._failed:
            return
        self._life, self._part, self._entries = "", 0, 0
        try:
            self._open(snapshot, now_ms, settings, unclean=unclean)
        except FAILURES as error:
            self._give_up(error)

    def record(self, state: State, events: Sequence[Event], changes: Sequence[Change]) -> None:
        """A step is durable. Steps without changes stay in the buffer until the next one with changes."""
        if self._file is None:
            return
        try:
            self._write(_ENCODER.encode(RecordedStep(state.now_ms, events, checksum(changes))))
            self._entries += 1
            if changes:
                self._file.flush()
            # A file holds at least as much history as its header is large, however large the state has become.
            if self._size >= max(self._file_bytes_max, 2 * self._header_size):
                self._part += 1
                connected = [(name, contact) for name, contact in state.liveness.items() if contact.connected]
                touch = tuple(Touch(name, contact.lease_until_ms, contact.usage) for name, contact in connected)
                snapshot = Snapshot(state.revision, records_of(state))
                self._open(snapshot, state.now_ms, state.settings, state.serial, touch)
        except FAILURES as error:
            self._give_up(error)

    def close(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self._give_up(error)

    def _open(
        self, snapshot: Snapshot, now_ms: int, settings: Settings, serial: int = 0, touch: tuple[Touch, ...] = (),
        unclean: bool = False,
    ) -> None:  # fmt: skip
        self.close()
        if self._failed:
            return
        path, file = self._new_file(now_ms)
        self._file = file
        self._life = self._life or path.stem
        self._make_room(path)
        file.write(FIRST_LINE)
        self._size = len(FIRST_LINE)
        header = RecordingHeader(
            __version__, self._life, self._part, self._entries + 1, now_ms, settings, tuple(sorted(STRATEGIES)),
            filter_names(), snapshot.revision, snapshot.records, serial, touch, unclean,
        )  # fmt: skip
        self._write(_ENCODER.encode(header))
        self._header_size = self._size
        file.flush()

    def _new_file(self, now_ms: int) -> tuple[Path, IO[bytes]]:
        """A file named after the time. Documents may hold secrets: only its owner can read it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            seconds, ms = divmod(now_ms, 1_000)
            path = self._folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{ms:03}Z{SUFFIX}"
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                now_ms += 1
                continue
            return path, open(descriptor, "wb", buffering=BUFFER_BYTES)

    def _make_room(self, path: Path) -> None:
        """Delete the oldest files, so that the new one may grow to its limit."""
        others = [other_path for other_path in journals_in(path.parent) if other_path != path]
        sizes = {other: other.stat().st_size for other in others}
        total = sum(sizes.values())
        for other in others:
            if total + self._file_bytes_max <= self._total_bytes_max:
                return
            other.unlink(missing_ok=True)
            total -= sizes[other]

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        if len(content) > FRAME_BYTES_MAX:
            raise ValueError(f"{len(content):,} bytes are more than an entry of the journal can have")
        write_frame(self._file, content)
        self._size += HEAD.size + len(content)

    def _give_up(self, error: Exception) -> None:
        file, self._file = self._file, None
        self._failed = True
        if file is not None:
            with suppress(OSError):
                file.close()
        reason = str(error) or type(error).__name__
        log.error("the journal cannot be written; nothing is recorded from now on", error=reason)


def write_frame(file: IO[bytes], content: bytes) -> None:
    checked = CHECKED.pack(len(content), crc32(content))
    file.write(checked + (crc32(checked) & 0xFFFF).to_bytes(2, "little"))
    file.write(content)


def records_of(state: State) -> list[Change]:
    """Everything that is stored of a state, as a store would load it. The state may be changing in another thread:
    dicts are copied and records encoded in one step each."""
    encode = msgspec.msgpack.Encoder().encode  # its own: an encoder is of one thread
    records = [Change("meta", "meta", encode(state.meta))] if state.meta.first_serial else []
    for kind in ("project", "pool", "reservation", "node", "workload", "version", "instance", "need"):
        things = getattr(state, f"{kind}s").copy()
        records += [Change(kind, key, encode(thing)) for key, thing in things.items()]
    for day, projects in state.usage.copy().items():
        records += [Change("usage", f"{project}/{day}", encode(used)) for project, used in projects.copy().items()]
    for kind, opaque_record in state.opaque_records.copy().items():
        records += [Change(kind, name, value) for name, value in opaque_record.copy().items()]
    return records


def filter_names() -> tuple[str, ...]:
    kinds: tuple[Iterable[StaticFilter | DynamicFilter | AffinityFilter], ...] = (STATIC, DYNAMIC, AFFINITY)
    return tuple(node_filter.name for kind in kinds for node_filter in kind)


def journals_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)


def read_part(path: Path) -> Part | None:
    """The header of a file; None if the server was killed before it was written. Raises Unreadable, Invalid."""
    with path.open("rb") as file:
        line = file.read(len(FIRST_LINE))
        if line != FIRST_LINE:
            if FIRST_LINE.startswith(line):
                return None
            line += file.readline(FIRST_LINE_BYTES_MAX) if not line.endswith(b"\n") else b""
            found = re.fullmatch(rb"roost journal (\d+)\n", line)
            if not found:
                raise Unreadable("this is no journal of Roost", path=path.name)
            message = f"a journal of format {int(found[1])}; Roost {__version__} reads format {FORMAT}"
            raise Invalid(path.name, message, code="journal_format")
        content = read_frame(path, file)
        if content is None:
            return None
        return Part(path, _decoded(path, _HEADERS, content, len(FIRST_LINE)), file.tell())


def read_entries(part: Part) -> Iterator[RecordedStep]:
    """The entries of a file, up to where the server was killed. A damaged one raises Unreadable with its offset."""
    with part.path.open("rb") as file:
        file.seek(part.offset)
        while True:
            offset = file.tell()
            content = read_frame(part.path, file)
            if content is None:
                return
            yield _decoded(part.path, _ENTRIES, content, offset)


def read_frame(path: Path, file: IO[bytes], bytes_max: int = FRAME_BYTES_MAX) -> bytes | None:
    """The next content; None at the end, also where the last frame is incomplete."""
    offset = file.tell()
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, wanted, check = HEAD.unpack(head)
    if crc32(head[: CHECKED.size]) & 0xFFFF != check or not 0 < length <= bytes_max:
        if not any(head) and _only_zeros(file):
            return None  # a machine that lost power may leave a file longer than what was written
        raise Unreadable(f"damaged at byte {offset:,}: there is no entry", path=path.name)
    content = file.read(length)
    if len(content) < length:
        return None
    if crc32(content) != wanted:
        raise Unreadable(f"damaged at byte {offset:,}: the checksum of the entry is wrong", path=path.name)
    return content


def _only_zeros(file: IO[bytes]) -> bool:
    return not any(any(block) for block in iter(lambda: file.read(BUFFER_BYTES), b""))


def _decoded(path: Path, decoder: "msgspec.msgpack.Decoder[Read]", content: bytes, offset: int) -> Read:
    try:
        return decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"cannot be read at byte {offset:,}: {error}", path=path.name) from None


_ENCODER = msgspec.msgpack.Encoder()
_HEADERS = msgspec.msgpack.Decoder(RecordingHeader)
_ENTRIES = msgspec.msgpack.Decoder(RecordedStep)
