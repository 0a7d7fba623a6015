"""Blobs in files: one read-only file each, named by its digest, below 256 folders. Written beside, then renamed."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from roost.blobs.disk import answering, make_private, remove_older, sync, sync_all, write_all
from roost.blobs.staging import Staging, stored_or
from roost.ports.blobs import (
    CHUNK_BYTES_MAX,
    DIGEST,
    PAGE_MAX,
    SHA256,
    BlobInfo,
    BlobPage,
    BlobsUnavailable,
    Finished,
    Stored,
    Upload,
    WrongBytes,
    check_contents,
    check_digest,
    check_digests,
    check_page,
    check_range,
)

THREADS = 4  # a disk is not faster with more; a disk that hangs holds these and no others

T = TypeVar("T")


class FileBlobs:
    """The BlobStore port on a folder that no other process writes to."""

    def __init__(self, root: Path, threads: ThreadPoolExecutor | None = None) -> None:
        self._root = root
        self._blobs = root / "sha256"
        self._small = root / "small"  # contents of one `put`, until they are durable
        self._threads = threads or ThreadPoolExecutor(THREADS, "blobs")
        self._staging = Staging(root / "uploads", self._threads)
        self._batches = 0

    def below(self, name: str) -> "FileBlobs":
        """Other blobs, in a folder of this one, with the same threads."""
        return FileBlobs(self._root / name, self._threads)

    async def folders(self) -> list[str] | BlobsUnavailable:
        """The names below which there are blobs."""
        return await self._in_thread(self._folders)

    @answering
    def _folders(self) -> list[str]:
        try:
            with os.scandir(self._root) as found:
                return sorted(entry.name for entry in found if os.path.isdir(f"{entry.path}/{self._blobs.name}"))
        except FileNotFoundError:
            return []

    async def missing(self, digests: Sequence[str]) -> list[str] | BlobsUnavailable:
        check_digests(digests)
        return await self._in_thread(self._missing, digests)

    async def sizes(self, digests: Sequence[str]) -> list[int | None] | BlobsUnavailable:
        check_digests(digests)
        return await self._in_thread(self._sizes, digests)

    async def size(self, digest: str) -> int | BlobsUnavailable | None:
        check_digest(digest)
        return await self._in_thread(self._size, digest)

    async def read(self, digest: str, offset: int, limit: int) -> bytes | BlobsUnavailable | None:
        check_digest(digest)
        check_range(offset, limit)
        return await self._in_thread(self._read, digest, offset, limit)

    async def put(self, contents: Sequence[tuple[str, bytes]]) -> WrongBytes | BlobsUnavailable | None:
        self._batches += 1
        return await self._in_thread(self._put, contents, self._batches)

    async def get(self, digests: Sequence[str]) -> list[bytes | None] | BlobsUnavailable:
        check_digests(digests)
        return await self._in_thread(self._get, digests)

    async def delete(self, digest: str) -> BlobsUnavailable | None:
        check_digest(digest)
        return await self._in_thread(self._delete, digest)

    async def page(self, after: str = "", limit: int = PAGE_MAX) -> BlobPage | BlobsUnavailable:
        check_page(after, limit)
        return await self._in_thread(self._page, after, limit)

    async def begin(self, upload: Upload) -> int | Stored | BlobsUnavailable:
        size = await self.size(upload.digest)
        if isinstance(size, int):
            return Stored(upload.digest, size)
        return size or await self._staging.offset(upload)

    async def write(self, upload: Upload, offset: int, data: bytes) -> int | WrongBytes | BlobsUnavailable:
        return await self._staging.write(upload, offset, data)

    async def finish(self, upload: Upload) -> Finished:
        async def keep(path: Path) -> BlobsUnavailable | None:
            return await self._in_thread(self._keep, path, upload.digest)

        outcome = await self._staging.finish(upload, keep)
        return stored_or(outcome, await self.size(upload.digest), upload.digest)

    async def abandon(self, upload: Upload) -> BlobsUnavailable | None:
        return await self._staging.abandon(upload)

    async def expire(self, before_ms: int) -> int | BlobsUnavailable:
        left = await self._in_thread(answering(remove_older), self._small, before_ms)  # a crash in `put` left them
        return left if isinstance(left, BlobsUnavailable) else await self._staging.expire(before_ms)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def _path(self, digest: str) -> str:
        """As text: paths of pathlib take half of the time of a batch."""
        name = digest.removeprefix(SHA256)
        return f"{self._blobs}/{name[:2]}/{name}"

    @answering
    def _missing(self, digests: Sequence[str]) -> list[str]:
        return [digest for digest in digests if not self._is_there(digest)]

    @answering
    def _sizes(self, digests: Sequence[str]) -> list[int | None]:
        return [None if (found := self._stat(digest)) is None else found.st_size for digest in digests]

    @answering
    def _size(self, digest: str) -> int | None:
        found = self._stat(digest)
        return None if found is None else found.st_size

    def _is_there(self, digest: str) -> bool:
        """Half the CPU of `_stat`, which raises and catches an error for each that is not."""
        return os.access(self._path(digest), os.F_OK)

    def _stat(self, digest: str) -> os.stat_result | None:
        try:
            return os.lstat(self._path(digest))
        except FileNotFoundError:
            return None

    @answering
    def _read(self, digest: str, offset: int, limit: int) -> bytes | None:
        return self._pread(digest, offset, limit)

    def _pread(self, digest: str, offset: int, limit: int) -> bytes | None:
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # Never ask for more than there is: the buffer is made before the file is looked at.
            return os.pread(descriptor, min(limit, max(os.fstat(descriptor).st_size - offset, 0)), offset)
        finally:
            os.close(descriptor)

    @answering
    def _keep(self, path: Path, digest: str) -> None:
        """A verified file becomes the blob. Another one with this name has the same bytes and is replaced."""
        os.chmod(path, 0o400)
        os.utime(path)
        sync(path)
        self._rename(str(path), digest)
        sync(Path(self._path(digest)).parent)

    def _rename(self, path: str, digest: str) -> None:
        target = self._path(digest)
        try:
            os.rename(path, target)
        except FileNotFoundError:
            make_private(Path(target).parent)
            os.rename(path, target)

    @answering
    def _put(self, contents: Sequence[tuple[str, bytes]], batch: int) -> WrongBytes | None:
        if wrong := check_contents(contents):
            return wrong
        make_private(self._small)
        fresh = {digest: data for digest, data in contents if not self._is_there(digest)}
        paths = {digest: f"{self._small}/{batch}-{digest.removeprefix(SHA256)}" for digest in fresh}
        try:
            for digest, path in paths.items():
                _write_new(path, fresh[digest])
            sync_all(self._small, map(Path, paths.values()))
            for digest, path in paths.items():
                self._rename(path, digest)
            if fresh:
                prefixes = {digest.removeprefix(SHA256)[:2] for digest in fresh}
                sync_all(self._blobs, [self._blobs / prefix for prefix in prefixes])
        except OSError:
            for path in paths.values():
                Path(path).unlink(missing_ok=True)
            raise
        return None

    @answering
    def _get(self, digests: Sequence[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        left = CHUNK_BYTES_MAX
        for digest in digests:
            data = self._pread(digest, 0, left + 1)
            left -= len(data or b"")
            if left < 0:
                break
            found.append(data)
        return found

    @answering
    def _delete(self, digest: str) -> None:
        Path(self._path(digest)).unlink(missing_ok=True)

    @answering
    def _page(self, after: str, limit: int) -> BlobPage:
        last = after.removeprefix(SHA256)
        found: list[BlobInfo] = []
        for folder in _names(self._blobs, last[:2]):
            for name in _names(self._blobs / folder, last):
                digest = SHA256 + name
                blob = self._stat(digest) if name > last and DIGEST.fullmatch(digest) else None
                if blob is None:
                    continue
                if len(found) == limit:
                    return BlobPage(found, found[-1].digest)
                found.append(BlobInfo(digest, blob.st_size, blob.st_mtime_ns // 1_000_000))
        return BlobPage(found, None)


def _write_new(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o400)
    except FileExistsError:  # left by a crash
        os.unlink(path)
        descriptor = os.open(path, flags, 0o400)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _names(folder: Path, first: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name >= first)
    except FileNotFoundError:
        return []
