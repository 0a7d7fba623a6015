"""A manifest becomes a directory, which is new. Names are opened one by one, and no link exists before all files do."""

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from roost.files.below import FILE, NEW_FILE, Below
from roost.files.manifest import FileEntry, FolderEntry, LinkEntry, Manifest, check
from roost.model.errors import Invalid
from roost.ports.blobs import BLOB_BYTES_MAX, SHA256

CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # other file systems, old kernels
WRONG_BYTES = "wrong_bytes"  # the code of an error: bytes are not those of their entry
COPY_BYTES = 8 << 20  # of one call to the kernel


class NewFile(NamedTuple):
    """Where a file is to be made, while its folder is open."""

    folder: int
    name: str
    mode: int


class Unpack:
    """`with Unpack(folder, manifest) as tree:` fills a new folder; an error leaves none. Several threads may add files.

    Raises Invalid with the path for a manifest or content that is wrong, OSError for what the disk refuses.
    `owner`: the user that gets the files, if we are root.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, *, bytes_max: int = BLOB_BYTES_MAX, owner: int | None = None
    ) -> None:
        check(manifest, bytes_max)
        self._path = folder
        self._manifest = manifest
        self._owner = owner
        self._lock = threading.Lock()  # of `_below`, which has one folder open at a time
        self._pending: dict[str, list[FileEntry]] = {}
        for file in manifest.files():
            self._pending.setdefault(file.digest, []).append(file)

    def __enter__(self) -> Self:
        os.mkdir(self._path, 0o700)
        self._below = Below(self._path)
        try:
            for entry in self._manifest.entries:
                if isinstance(entry, FolderEntry):
                    above, _, name = entry.path.rpartition("/")
                    os.mkdir(name, 0o700, dir_fd=self._below.folder(above))
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return self._discard()
        try:
            self._finish()
        except BaseException:
            self._discard()
            raise
        self._below.close()

    def _discard(self) -> None:
        self._below.close()
        shutil.rmtree(self._path)

    def missing(self) -> dict[str, int]:
        """Digests and sizes of the files that are still to come."""
        return {digest: files[0].size for digest, files in self._pending.items()}

    def add(self, digest: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Make all files with this digest, from bytes that are verified. Small files are one chunk."""
        first, *others = self._take(digest)
        with self._lock:
            descriptor = self._below.open(first.path, NEW_FILE)
        try:
            write_verified(descriptor, first, chunks)
            _hand_over(descriptor, first.mode, self._owner)
        finally:
            os.close(descriptor)
        if others:
            with self._lock:
                source = self._below.open(first.path, FILE)
                try:
                    for file in others:
                        copy(source, self._target(file), self._owner)
                finally:
                    os.close(source)

    def place(self, digest: str, make: Callable[[NewFile], None]) -> None:
        """Let `make` make all files with this digest, from bytes that were verified before."""
        with self._lock:
            for file in self._take(digest):
                make(self._target(file))

    def _take(self, digest: str) -> list[FileEntry]:
        files = self._pending.pop(digest, None)
        if files is None:
            raise Invalid(digest, "is not a file of the manifest, or came twice")
        return files

    def _target(self, file: FileEntry) -> NewFile:
        folder, _, name = file.path.rpartition("/")
        return NewFile(self._below.folder(folder), name, file.mode)

    def _finish(self) -> None:
        for files in self._pending.values():
            raise Invalid(files[0].path, "did not come")
        for entry in self._manifest.entries:
            if isinstance(entry, LinkEntry):
                folder, _, name = entry.path.rpartition("/")
                os.symlink(entry.target, name, dir_fd=self._below.folder(folder))
        for entry in reversed(self._manifest.entries):  # a folder that cannot be written is closed last
            if isinstance(entry, FolderEntry):
                _hand_over(self._below.folder(entry.path), entry.mode, self._owner)
        if self._owner is not None:
            os.fchown(self._below.root, self._owner, -1)


def write_verified(descriptor: int, file: FileEntry, chunks: Iterable[bytes | memoryview]) -> None:
    """The bytes of an entry, and no others: raises Invalid with its path."""
    hasher, written = hashlib.sha256(), 0
    for chunk in chunks:
        written += len(chunk)
        if written > file.size:
            raise Invalid(file.path, f"has more than the {file.size} bytes of the manifest", code=WRONG_BYTES)
        hasher.update(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    if written < file.size:
        raise Invalid(file.path, f"has {written} bytes instead of the {file.size} of the manifest", code=WRONG_BYTES)
    if SHA256 + hasher.hexdigest() != file.digest:
        raise Invalid(file.path, "the bytes have another digest than in the manifest", code=WRONG_BYTES)


def copy(source: int, target: NewFile, owner: int | None = None) -> None:
    """The bytes of an open file, as a new file of its own."""
    size = os.fstat(source).st_size
    descriptor = os.open(target.name, NEW_FILE, 0o600, dir_fd=target.folder)
    try:
        at = 0
        while at < size:
            done = _copy_some(source, descriptor, at, size - at)
            if done == 0:
                raise OSError(f"{target.name}: the file became shorter while it was copied")
            at += done
        _hand_over(descriptor, target.mode, owner)
    finally:
        os.close(descriptor)


def _hand_over(descriptor: int, mode: int, owner: int | None) -> None:
    if owner is not None:
        os.fchown(descriptor, owner, -1)
    os.fchmod(descriptor, mode)


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, min(count, COPY_BYTES), at, at)
        except OSError as error:
            if error.errno not in CANNOT_COPY:
                raise
    data = os.pread(source, min(count, COPY_BYTES), at)
    return os.pwrite(target, data, at)
