"""A directory becomes a manifest: every file is read once and hashed. What cannot travel is refused with its path."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from roost.files.below import FILE, FOLDER
from roost.files.ignore import Ignored
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
)
from roost.model.errors import Invalid, TooMuch
from roost.ports.blobs import BLOB_BYTES_MAX, SHA256

READ_BYTES = 1 << 20

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}


Read = Callable[[int], object]  # called with the bytes that were read since the last call


def scan(
    root: Path, *, bytes_max: int = BLOB_BYTES_MAX, ignore: bool = True, read: Read = lambda length: None
) -> Manifest:
    """Everything below root that is not ignored. Raises Invalid or TooMuch with the path, OSError if unreadable.

    `ignore`: respect .gitignore and .roostignore. Links inside the tree are entries and are never followed, also when
    something changes the directory meanwhile. The name in an OSError is the path below root.
    """
    descriptor = os.open(root, FOLDER)
    try:
        found = _Scan(bytes_max, read)
        entries = list(found.walk("", descriptor, Ignored() if ignore else None, 0))
    finally:
        os.close(descriptor)
    entries.sort(key=lambda entry: entry.path.split("/"))
    manifest = Manifest(tuple(entries))
    check(manifest, bytes_max)
    return manifest


def scan_file(path: Path, *, bytes_max: int = BLOB_BYTES_MAX, read: Read = lambda length: None) -> FileEntry:
    """One file, as an entry with its name. A link is followed. Raises as `scan` does."""
    found = path.resolve()
    descriptor = os.open(found.parent, FOLDER)
    try:
        entry = _Scan(bytes_max, read).file(path.name, found.name, descriptor)
    finally:
        os.close(descriptor)
    check(Manifest((entry,)), bytes_max)
    return entry


class _Scan:
    def __init__(self, bytes_max: int, read: Read) -> None:
        self._read = read
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries = 0
        self._buffer = memoryview(bytearray(READ_BYTES))

    def walk(self, path: str, folder: int, ignored: Ignored | None, depth: int) -> Iterator[Entry]:
        if depth > DEPTH_MAX:
            raise Invalid(path, f"is more than {DEPTH_MAX} folders deep")
        rules = ignored.below(path, folder) if ignored else None
        with os.scandir(folder) as entries:
            for found in entries:
                place = f"{path}/{found.name}" if path else found.name
                is_folder = found.is_dir(follow_symlinks=False)
                if rules and rules.matches(place, is_folder):
                    continue
                self._entries += 1
                if self._entries > ENTRIES_MAX:
                    raise TooMuch(f"more than {ENTRIES_MAX} files and folders", path=place)
                if is_folder:
                    yield from self._folder(place, found.name, folder, rules, depth)
                elif found.is_symlink():
                    yield LinkEntry(place, os.readlink(found.name, dir_fd=folder))
                elif found.is_file(follow_symlinks=False):
                    yield self.file(place, found.name, folder)
                else:  # not opened: with a device, that may do something
                    kind = stat.S_IFMT(found.stat(follow_symlinks=False).st_mode)
                    raise Invalid(place, f"is {KINDS.get(kind, 'neither a file nor a folder')}, and cannot be sent")

    def _folder(self, place: str, name: str, above: int, rules: Ignored | None, depth: int) -> Iterator[Entry]:
        descriptor = _open(place, name, FOLDER, above)
        try:
            yield FolderEntry(place, os.fstat(descriptor).st_mode & MODE_MAX)
            yield from self.walk(place, descriptor, rules, depth + 1)
        finally:
            os.close(descriptor)

    def file(self, place: str, name: str, folder: int) -> FileEntry:
        descriptor = _open(place, name, FILE, folder)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Invalid(place, "is not a regular file, or changed while it was read")
            if self._bytes + found.st_size > self._bytes_max:
                raise TooMuch(f"the files have more than {self._bytes_max} bytes", path=place)
            size, digest = self._hash(descriptor, found.st_size)
        finally:
            os.close(descriptor)
        if size != found.st_size:
            raise Invalid(place, "changed while it was read")
        self._bytes += size
        return FileEntry(place, found.st_mode & MODE_MAX, size, digest)

    def _hash(self, descriptor: int, expected: int) -> tuple[int, str]:
        hasher, size = hashlib.sha256(), 0
        while length := os.readv(descriptor, [self._buffer]):
            hasher.update(self._buffer[:length])
            size += length
            self._read(length)
            is_whole = size == expected and length < READ_BYTES  # otherwise one more read, which finds that it grew
            if is_whole or size > self._bytes_max:
                break
        return size, SHA256 + hasher.hexdigest()


def _open(place: str, name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        error.filename = place  # the system has only the name, without its folder
        raise
