"""Files of a directory that match patterns become a manifest. What cannot be in it is a gap, not an error.

A directory of a run that has ended may hold anything, and a process that outlived the run may still change it.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from roost.files.below import FILE, FOLDER, Below, open_folder
from roost.files.manifest import (
    DEPTH_MAX,
    ENTRIES_MAX,
    MODE_MAX,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Manifest,
    check,
    check_path,
)
from roost.files.patterns import Pattern, Places
from roost.model.errors import Invalid, RoostError
from roost.model.limits import FILE_PATH_BYTES_MAX, OUTPUT_GAPS_MAX
from roost.model.records.files import OutputGap, OutputProblem
from roost.ports.blobs import BLOB_BYTES_MAX, SHA256

READ_BYTES = 1 << 20


class WantedFiles(NamedTuple):
    path: str  # a pattern
    required: bool = False
    bytes_max: int | None = None  # of all files that match
    is_literal: bool = False  # `*` and `?` are themselves


class Selection(NamedTuple):
    manifest: Manifest
    gaps: tuple[OutputGap, ...]
    more_gaps: int = 0  # beside these
    grown: tuple[str, ...] = ()  # with `is_live`: files that grew meanwhile, up to the size that they had first


class TransferStopped(Exception):
    """The caller no longer wants the answer."""


class _Found(NamedTuple):
    path: str
    kind: int  # S_IFREG, S_IFLNK, S_IFDIR or another
    size: int
    mode: int
    wanted: tuple[int, ...]  # the patterns that it matches; of a folder that is only on the way: none


def select(
    root: Path | int,
    wanted: Sequence[WantedFiles],
    *,
    without: Collection[str] = (),
    bytes_max: int = BLOB_BYTES_MAX,
    is_stopped: Callable[[], bool] = lambda: False,
    is_live: bool = False,
) -> Selection:
    """What matches, hashed. `without`: paths that never do. Raises TransferStopped; OSError without a directory.

    `is_live`: a process goes on to write here. Of a file that grows, the bytes that it had first are taken, and folders
    with nothing in them stay: something may be about to come.
    """
    return _Selecting(root, wanted, without, bytes_max, is_stopped, is_live).run()


class _Selecting:
    def __init__(
        self,
        root: Path | int,
        wanted: Sequence[WantedFiles],
        without: Collection[str],
        bytes_max: int,
        is_stopped: Callable[[], bool],
        is_live: bool,
    ) -> None:
        self._root = root
        self._wanted = wanted
        self._patterns = [Pattern(item.path, is_literal=item.is_literal) for item in wanted]
        self._without = set(without)
        self._bytes_max = bytes_max
        self._is_stopped = is_stopped
        self._is_live = is_live
        self._grown: list[str] = []
        self._gaps: dict[tuple[str, OutputProblem], OutputGap] = {}
        self._found: list[_Found] = []
        self._buffer = memoryview(bytearray(READ_BYTES))

    def run(self) -> Selection:
        descriptor = open_folder(self._root)
        try:
            self._walk("", descriptor, [pattern.start for pattern in self._patterns], 0)
        finally:
            os.close(descriptor)
        refused = self._refused_patterns()
        chosen = [item for item in self._found if item.kind == stat.S_IFDIR or not refused.issuperset(item.wanted)]
        with Below(self._root) as below:
            entries = [entry for item in chosen if (entry := self._entry(item, below)) is not None]
        manifest = self._checked(_ordered(entries) if self._is_live else _with_needed_folders(entries))
        gaps = self._worst_gaps()
        return Selection(manifest, gaps, len(self._gaps) - len(gaps), tuple(self._grown))

    def _walk(self, path: str, folder: int, places: list[Places], depth: int) -> None:
        if self._is_stopped():
            raise TransferStopped
        with os.scandir(folder) as entries:
            for found in entries:
                place = f"{path}/{found.name}" if path else found.name
                inner = [
                    pattern.below(above, found.name) for pattern, above in zip(self._patterns, places, strict=True)
                ]
                if not any(inner) or place in self._without:
                    continue
                matched = tuple(
                    number for number, pattern in enumerate(self._patterns) if pattern.is_match(inner[number])
                )
                is_folder = found.is_dir(follow_symlinks=False)
                if (matched or is_folder) and self._take(place, found, matched) and is_folder:
                    self._enter(place, found.name, folder, inner, matched, depth)

    def _take(self, place: str, found: "os.DirEntry[str]", matched: tuple[int, ...]) -> bool:
        if len(self._found) >= ENTRIES_MAX:
            self._lack(OutputProblem.TOO_MANY, place, matched)
            return False
        try:
            check_path(place)
            status = found.stat(follow_symlinks=False)
        except (Invalid, OSError) as error:
            self._lack(OutputProblem.UNREADABLE, ascii(place) if isinstance(error, Invalid) else place, matched)
            return False
        kind = stat.S_IFMT(status.st_mode)
        self._found.append(_Found(place, kind, status.st_size, status.st_mode & MODE_MAX, matched))
        return True

    def _enter(
        self, place: str, name: str, above: int, places: list[Places], matched: tuple[int, ...], depth: int
    ) -> None:  # fmt: skip
        if depth >= DEPTH_MAX:
            return self._lack(OutputProblem.TOO_MANY, place, matched)
        try:
            descriptor = os.open(name, FOLDER, dir_fd=above)
        except OSError:
            return self._lack(OutputProblem.UNREADABLE, place, matched)
        try:
            self._walk(place, descriptor, places, depth + 1)
        finally:
            os.close(descriptor)

    def _refused_patterns(self) -> set[int]:
        """Patterns without a match, and those whose files are too large: nothing is kept because of them."""
        sizes = [0] * len(self._wanted)
        counts = [0] * len(self._wanted)
        for item in self._found:
            for number in item.wanted if item.kind != stat.S_IFDIR else ():
                sizes[number] += item.size if item.kind == stat.S_IFREG else 0
                counts[number] += 1
        refused = set()
        total = 0
        for number, wanted in enumerate(self._wanted):
            if not counts[number]:
                self._lack(OutputProblem.MISSING, wanted.path, (number,))
            bytes_max = self._bytes_max if wanted.bytes_max is None else wanted.bytes_max
            if sizes[number] > min(bytes_max, self._bytes_max - total):
                refused.add(number)
                self._lack(OutputProblem.TOO_LARGE, wanted.path, (number,))
            else:
                total += sizes[number]
        return refused

    def _entry(self, item: _Found, below: Below) -> Entry | None:
        if self._is_stopped():
            raise TransferStopped
        try:
            match item.kind:
                case stat.S_IFDIR:
                    return FolderEntry(item.path, item.mode)
                case stat.S_IFLNK:
                    folder, _, name = item.path.rpartition("/")
                    return LinkEntry(item.path, os.readlink(name, dir_fd=below.folder(folder)))
                case stat.S_IFREG:
                    return self._file(item, below)
        except OSError:
            self._lack(OutputProblem.UNREADABLE, item.path, item.wanted)
            return None
        self._lack(OutputProblem.NOT_A_FILE, item.path, item.wanted)  # not opened: with a device, that acts
        return None

    def _file(self, item: _Found, below: Below) -> FileEntry | None:
        descriptor = below.open(item.path, FILE)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            size, digest = self._hash(descriptor, item.size) if is_file else (-1, "")
        finally:
            os.close(descriptor)
        if size > item.size and self._is_live:
            self._grown.append(item.path)
        elif size != item.size:
            self._lack(OutputProblem.CHANGED, item.path, item.wanted)
            return None
        return FileEntry(item.path, item.mode, item.size, digest)

    def _hash(self, descriptor: int, bytes_max: int) -> tuple[int, str]:
        """Size and digest of at most so many bytes; of a file that grew beyond them, the size is larger."""
        hasher, size = hashlib.sha256(), 0
        while size <= bytes_max and (length := os.readv(descriptor, [self._buffer])):
            if self._is_stopped():
                raise TransferStopped
            hasher.update(self._buffer[: min(length, bytes_max - size)])
            size += length
        return size, SHA256 + hasher.hexdigest()

    def _checked(self, entries: list[Entry]) -> Manifest:
        """Without links that leave the directory."""
        wanted = {item.path: item.wanted for item in self._found}
        for _ in range(OUTPUT_GAPS_MAX):
            manifest = Manifest(tuple(entries))
            try:
                check(manifest, self._bytes_max)
            except RoostError as error:
                self._lack(OutputProblem.NOT_A_FILE, error.path, wanted.get(error.path, ()))
                entries = [entry for entry in entries if entry.path != error.path]
            else:
                return manifest
        without_links: list[Entry] = [entry for entry in entries if not isinstance(entry, LinkEntry)]
        return Manifest(tuple(without_links))

    def _lack(self, problem: OutputProblem, path: str, wanted: Iterable[int]) -> None:
        required = any(self._wanted[number].required for number in wanted)
        if len(self._gaps) < ENTRIES_MAX:
            self._gaps[path, problem] = gap(problem, path, required)

    def _worst_gaps(self) -> tuple[OutputGap, ...]:
        """Required ones first, and patterns before files: there is room for some."""
        patterns = {item.path for item in self._wanted}
        gaps = sorted(self._gaps.values(), key=lambda item: (not item.required, item.path not in patterns, item.path))
        return tuple(gaps[:OUTPUT_GAPS_MAX])


def gap(problem: OutputProblem, path: str, required: bool) -> OutputGap:
    return OutputGap(problem, path.encode()[:FILE_PATH_BYTES_MAX].decode(errors="ignore"), required)


def _ordered(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.path.split("/"))


def _with_needed_folders(entries: list[Entry]) -> list[Entry]:
    """In order, without folders that have nothing in them."""
    needed: set[str] = set()
    kept: list[Entry] = []
    for entry in reversed(_ordered(entries)):
        if isinstance(entry, FolderEntry) and entry.path not in needed:
            continue
        kept.append(entry)
        needed.add(entry.path.rpartition("/")[0])
    return kept[::-1]
