"""Uploads in progress: one private file each, which is resumed after an interruption and verified at the end."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from roost.blobs.disk import answering, make_private, remove_older, write_all
from roost.ports.blobs import (
    SHA256,
    UPLOADS_MAX,
    BlobsUnavailable,
    Finished,
    Incomplete,
    Stored,
    Upload,
    WrongBytes,
    check_range,
    check_upload,
)

HASH_BYTES = 1 << 20  # read at once to hash; more is not faster

T = TypeVar("T")

# Makes a verified file a blob; the file may be moved or stays to be removed.
Keep = Callable[[Path], Awaitable[BlobsUnavailable | None]]


class _Progress:
    """What this process knows about an upload: its hash so far, which saves reading the file again at the end."""

    __slots__ = ("hash", "hashed", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.restart()

    def restart(self) -> None:
        self.hash = hashlib.sha256()
        self.hashed = 0


class Staging:
    """Files of uploads in one folder that no other process writes to. All file I/O is in threads."""

    def __init__(self, folder: Path, threads: Executor) -> None:
        self._folder = folder
        self._threads = threads
        self._progress: OrderedDict[str, _Progress] = OrderedDict()  # the one used last is at the end
        self._tasks: set[asyncio.Task[Any]] = set()

    async def offset(self, upload: Upload) -> int | BlobsUnavailable:
        check_upload(upload)
        return await self.in_thread(self._offset, upload)

    async def write(self, upload: Upload, offset: int, data: bytes) -> int | WrongBytes | BlobsUnavailable:
        check_upload(upload)
        check_range(offset, len(data))
        return await self._alone(upload, lambda progress: self.in_thread(self._write, upload, progress, offset, data))

    async def finish(self, upload: Upload, keep: Keep) -> Finished:
        """Verify the file and pass it to `keep`. A wrong one is removed."""
        check_upload(upload)

        async def verify_and_keep(progress: _Progress) -> Finished:
            outcome = await self.in_thread(self._verify, upload, progress) or await keep(self._path(upload))
            if isinstance(outcome, Incomplete | BlobsUnavailable):
                return outcome  # the file stays: the next attempt goes on with it
            left = await self.in_thread(self._remove, upload)
            return outcome or left or Stored(upload.digest, upload.size)

        return await self._alone(upload, verify_and_keep)

    async def abandon(self, upload: Upload) -> BlobsUnavailable | None:
        check_upload(upload)
        return await self._alone(upload, lambda _: self.in_thread(self._remove, upload))

    async def expire(self, before_ms: int) -> int | BlobsUnavailable:
        return await self.in_thread(self._expire, before_ms)

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    async def _alone(self, upload: Upload, action: Callable[[_Progress], Coroutine[Any, Any, T]]) -> T:
        """One action at a time for an upload. It runs to its end when its caller is cancelled, as its thread does."""

        async def locked() -> T:
            progress = self._find(upload)
            async with progress.lock:
                return await action(progress)

        task = asyncio.create_task(locked())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _find(self, upload: Upload) -> _Progress:
        name = staging_name(upload)
        progress = self._progress.setdefault(name, _Progress())
        self._progress.move_to_end(name)
        if len(self._progress) > UPLOADS_MAX:
            idle = next((name for name, other in self._progress.items() if not other.lock.locked()), name)
            del self._progress[idle]  # its file is read again at the end
        return progress

    def _path(self, upload: Upload) -> Path:
        return self._folder / staging_name(upload)

    @answering
    def _offset(self, upload: Upload) -> int:
        return _size(self._path(upload))

    @answering
    def _write(
        self, upload: Upload, progress: _Progress, offset: int, data: bytes
    ) -> int | WrongBytes | BlobsUnavailable:
        path = self._path(upload)
        size = _size(path)
        if offset + len(data) > upload.size:
            path.unlink(missing_ok=True)
            return WrongBytes(f"{upload.size} bytes were announced, {offset + len(data)} came; send the file again")
        if offset > size or (rest := memoryview(data)[size - offset :]).nbytes == 0:
            return size
        if size == 0:
            progress.restart()
            make_private(self._folder)
            if len(os.listdir(self._folder)) >= UPLOADS_MAX:
                return BlobsUnavailable(f"{UPLOADS_MAX} uploads are in progress; try again later")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, rest)
        finally:
            os.close(descriptor)
        if progress.hashed == size:
            progress.hash.update(rest)
            progress.hashed += len(rest)
        return size + len(rest)

    @answering
    def _verify(self, upload: Upload, progress: _Progress) -> WrongBytes | Incomplete | None:
        path = self._path(upload)
        size = _size(path)
        if size < upload.size:
            return Incomplete(f"{upload.size} bytes were announced, {size} are here; send the rest", size)
        if upload.size == 0:
            make_private(self._folder)
            path.touch(mode=0o600)
        hasher = progress.hash if progress.hashed == size else _hash(path)
        if size > upload.size or hasher.hexdigest() != upload.digest.removeprefix(SHA256):
            return WrongBytes(f"{upload.digest} was announced, the bytes have sha256:{hasher.hexdigest()}")
        return None

    @answering
    def _remove(self, upload: Upload) -> None:
        self._path(upload).unlink(missing_ok=True)

    @answering
    def _expire(self, before_ms: int) -> int:
        return remove_older(self._folder, before_ms)


def stored_or(outcome: Finished, stored: int | BlobsUnavailable | None, digest: str) -> Finished:
    """A finish that is repeated finds no upload, but the blob."""
    if isinstance(outcome, Incomplete) and isinstance(stored, int):
        return Stored(digest, stored)
    return outcome


def staging_name(upload: Upload) -> str:
    """The same for the same upload, and never for that of another owner."""
    owner = hashlib.sha256(upload.owner.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{upload.digest.removeprefix(SHA256)}-{upload.size}-{owner}"


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def _hash(path: Path) -> "hashlib._Hash":
    hasher = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(HASH_BYTES):
            hasher.update(piece)
    return hasher
