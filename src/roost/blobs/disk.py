"""What blobs need from a disk: durable renames, private files, and errors as answers."""

import contextlib
import ctypes
import errno
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from roost.ports.blobs import BlobsUnavailable

P = ParamSpec("P")
T = TypeVar("T")

ADVICE = {
    errno.ENOSPC: "free some space, or delete workloads that keep files",
    errno.EDQUOT: "raise the quota of the user that the server runs as",
    errno.EROFS: "mount the file system writable",
    errno.EACCES: "give the folder to the user that the server runs as",
    errno.EPERM: "give the folder to the user that the server runs as",
    errno.EIO: "the disk may be failing: see the kernel's log",
}

_LIBC = ctypes.CDLL(None, use_errno=True)


def answering(call: Callable[P, T]) -> Callable[P, T | BlobsUnavailable]:
    """What the disk refuses is an answer."""

    @functools.wraps(call)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | BlobsUnavailable:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            advice = ADVICE.get(error.errno or 0)
            return BlobsUnavailable(f"{error}; {advice}" if advice else str(error))

    return answer


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """A disk that is nearly full takes a part and refuses the next."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(path: Path) -> None:
    """The file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path, paths: Iterable[Path]) -> None:
    """One flush for many files: 0.5 s against 0.7 s for 1,000 on an SSD. It also waits for the data of others."""
    if not hasattr(_LIBC, "syncfs"):
        for path in paths:
            sync(path)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """The folder and those above it, durable, for no other user."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_private(folder.parent)
        return make_private(folder)
    sync(folder.parent)


def remove_older(folder: Path, before_ms: int) -> int:
    """Remove files that were last written before; how many."""
    removed = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                if entry.stat(follow_symlinks=False).st_mtime_ns < before_ms * 1_000_000:
                    os.unlink(entry.path)
                    removed += 1
    return removed
