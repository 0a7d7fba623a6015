"""Ends of logs in files: one file per key below a root. Not synced: a power cut may take the ends of files."""

import contextlib
import functools
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote, unquote

from roost.ports.logs import LocalLog, LogsUnavailable, parts_of

# Open files are a budget of the process (often 1,024), and the agents' connections need most of it.
OPEN_FILES_MAX = 128

# File systems take 255 bytes per name; the ending of a log's file is counted.
NAME_BYTES_MAX = 255

# A "+" never appears in an escaped name, so the file of "a/b" is never in the way of the folder of "a/b/c".
ENDING = "+log"

# Removing a hundred thousand files takes seconds: they are put aside under the lock, and removed without it.
GONE = "+gone-"

P = ParamSpec("P")
T = TypeVar("T")


def _answering(call: Callable[P, T]) -> Callable[P, T | LogsUnavailable]:
    """What the disk refuses is an answer."""

    @functools.wraps(call)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | LogsUnavailable:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            return LogsUnavailable(str(error))

    return answer


class _File:
    """An open file and its size, which only we change."""

    __slots__ = ("descriptor", "size")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.size = os.fstat(descriptor).st_size


class FileLogs:
    """The Logs port on a folder that no other process writes to. Safe to use from several threads."""

    def __init__(self, root: Path, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._root = root
        self._open_files_max = open_files_max
        self._files: OrderedDict[str, _File] = OrderedDict()  # the one used last is at the end
        # A descriptor that is closed under a write may be another file by then.
        self._lock = threading.Lock()

    @_answering
    def append(self, key: str, offset: int, data: bytes) -> int:
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        with self._lock:
            file = self._find(key)
            size = file.size if file else 0
            if offset > size:
                return size
            file = file or self._make(key)
            rest = memoryview(data)[size - offset :]
            while rest:  # a disk that is nearly full takes a part and refuses the next
                written = os.pwrite(file.descriptor, rest, file.size)
                file.size += written
                rest = rest[written:]
            return file.size

    @_answering
    def read(self, key: str, offset: int, limit: int) -> bytes:
        if offset < 0 or limit < 0:
            raise ValueError(f"offset and limit are not negative: {offset}, {limit}")
        with self._lock:
            file = self._find(key)
            # Never ask for more than there is: the buffer is made before the file is looked at.
            return os.pread(file.descriptor, min(limit, max(file.size - offset, 0)), offset) if file else b""

    @_answering
    def size(self, key: str) -> int | None:
        with self._lock:
            file = self._find(key)
            return file.size if file else None

    @_answering
    def drop(self, key: str) -> None:
        """Folders stay when their last file goes, because the next one soon comes; they go with what is above."""
        file = self._path(key)
        folder = file.removesuffix(ENDING)
        gone = f"{self._root}/{GONE}{time.monotonic_ns()}"
        with self._lock:
            for found in [found for found in self._files if found == key or found.startswith(f"{key}/")]:
                os.close(self._files.pop(found).descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
            try:
                os.rename(folder, gone)
            except FileNotFoundError:
                return
            self._drop_empty(Path(folder))
        shutil.rmtree(gone, ignore_errors=True)

    @_answering
    def found(self) -> list[LocalLog]:
        for gone in self._root.glob(f"{GONE}*"):  # left by one that was killed in the middle
            shutil.rmtree(gone, ignore_errors=True)
        return sorted(self._found(self._root, ""))

    def close(self) -> None:
        with self._lock:
            while self._files:
                _, file = self._files.popitem()
                os.close(file.descriptor)

    def _found(self, path: Path, prefix: str) -> Iterator[LocalLog]:
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                name = prefix + unquote(entry.name.removesuffix(ENDING))
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(ENDING):
                    yield LocalLog(name, status.st_size, status.st_mtime_ns // 1_000_000)
                elif "+" not in entry.name and entry.is_dir(follow_symlinks=False):
                    yield from self._found(path / entry.name, f"{name}/")
                    with contextlib.suppress(OSError):  # it is not empty
                        os.rmdir(entry.path)

    def _drop_empty(self, path: Path) -> None:
        """Folders go with their last file; one that is not empty or not there ends the walk."""
        with contextlib.suppress(OSError):
            for folder in path.relative_to(self._root).parents[:-1]:
                (self._root / folder).rmdir()

    def _find(self, key: str) -> _File | None:
        file = self._files.get(key)
        if file:
            self._files.move_to_end(key)
            return file
        try:
            return self._keep(key, os.open(self._path(key), os.O_RDWR | os.O_NOFOLLOW))
        except FileNotFoundError:
            return None

    def _make(self, key: str) -> _File:
        path, flags = self._path(key), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            return self._keep(key, os.open(path, flags, 0o600))
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return self._keep(key, os.open(path, flags, 0o600))

    def _keep(self, key: str, descriptor: int) -> _File:
        while len(self._files) >= self._open_files_max:
            _, oldest = self._files.popitem(last=False)
            os.close(oldest.descriptor)
        file = self._files[key] = _File(descriptor)
        return file

    def _path(self, key: str) -> str:
        names = [quote(part, safe="") for part in parts_of(key)]
        names[-1] += ENDING
        if any(len(name) > NAME_BYTES_MAX for name in names):
            raise ValueError(f"a part of the log's key is too long for a file name: {key!r}")
        return "/".join((str(self._root), *names))
