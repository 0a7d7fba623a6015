"""Blobs in S3 or what speaks its protocol. Uploads are collected and verified on the local disk, then sent as a whole.

An object appears whole or not at all, so nothing is visible before it is verified. A part that a crash left in the
middle of a multipart upload is invisible: a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes it.
"""

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from roost.blobs.bucket import Bucket, denied, failing, line_of
from roost.blobs.staging import Staging, staging_name, stored_or
from roost.ports.blobs import (
    CHUNK_BYTES_MAX,
    PAGE_MAX,
    SHA256,
    BlobInfo,
    BlobPage,
    BlobsUnavailable,
    Finished,
    Incomplete,
    Stored,
    Upload,
    WrongBytes,
    check_contents,
    check_digest,
    check_digests,
    check_page,
    check_range,
    check_upload,
)

if TYPE_CHECKING:  # obstore has these names in its stubs only
    from obstore import ObjectMeta

REQUESTS_MAX = 32  # at once for one question or batch: hides the round trip, and stays below limits of S3
PARTS_MAX = 4  # of 8 MiB, sent at once: 32 MiB of memory for each upload
THREADS = 4
LINK_BYTES_MAX = 5 << 30  # what S3 takes in one PUT and copies in one request

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


def _answering(call: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T | BlobsUnavailable]]:
    """What S3 refuses after all retries is an answer."""

    @functools.wraps(call)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T | BlobsUnavailable:
        try:
            return await call(*args, **kwargs)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            return BlobsUnavailable(denied(error), True)
        except FileNotFoundError as error:
            return BlobsUnavailable(f"S3 has no such bucket; create it, or correct its name: {line_of(error)}", True)
        except (BaseError, OSError) as error:
            return BlobsUnavailable(failing(error))

    return answer


class S3Blobs:
    """The ports BlobStore and Links on a bucket. `spool`: a folder for uploads that no other process writes to."""

    def __init__(
        self, bucket: Bucket, spool: Path, prefix: str = "", threads: ThreadPoolExecutor | None = None
    ) -> None:
        self._bucket = bucket
        self._spool = spool
        self._threads = threads or ThreadPoolExecutor(THREADS, "s3")
        prefix = prefix or bucket.config.prefix.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._staging = Staging(spool, self._threads)
        self._adopting: dict[Upload, asyncio.Future[Finished]] = {}

    def below(self, name: str) -> "S3Blobs":
        """Other blobs, with a longer prefix, the same connections and the same threads."""
        return S3Blobs(self._bucket, self._spool / name, f"{self._prefix}{name}", self._threads)

    @property
    def _store(self) -> S3Store:
        return self._bucket.store

    @_answering
    async def folders(self) -> list[str]:
        """The names below which there are objects."""
        listed = await obstore.list_with_delimiter_async(self._store, self._prefix or None)
        return sorted(prefix.strip("/").rpartition("/")[2] for prefix in listed["common_prefixes"])

    @_answering
    async def missing(self, digests: Sequence[str]) -> list[str]:
        check_digests(digests)
        sizes = await _each(self._size, digests)
        return [digest for digest, size in zip(digests, sizes, strict=True) if size is None]

    @_answering
    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        check_digests(digests)
        return await _each(self._size, digests)

    @_answering
    async def size(self, digest: str) -> int | None:
        check_digest(digest)
        return await self._size(digest)

    @_answering
    async def read(self, digest: str, offset: int, limit: int) -> bytes | None:
        check_digest(digest)
        check_range(offset, limit)
        return await self._read(digest, offset, limit)

    async def _read(self, digest: str, offset: int, limit: int) -> bytes | None:
        if limit == 0:
            return None if await self._size(digest) is None else b""
        try:
            return bytes(await obstore.get_range_async(self._store, self._key(digest), start=offset, length=limit))
        except FileNotFoundError:
            return None
        except BaseError:
            size = await self._size(digest)
            if size is not None and offset >= size:  # S3 refuses a range after the end
                return b""
            raise

    @_answering
    async def put(self, contents: Sequence[tuple[str, bytes]]) -> WrongBytes | None:
        if wrong := await self._staging.in_thread(check_contents, contents):
            return wrong

        async def put_one(content: tuple[str, bytes]) -> None:
            await obstore.put_async(self._store, self._key(content[0]), content[1], use_multipart=False)

        await _each(put_one, contents)
        return None

    @_answering
    async def get(self, digests: Sequence[str]) -> list[bytes | None]:
        check_digests(digests)
        left, fitting = CHUNK_BYTES_MAX, 0
        for size in await _each(self._size, digests):
            left -= size or 0
            if left < 0:
                break
            fitting += 1
        return await _each(lambda digest: self._read(digest, 0, CHUNK_BYTES_MAX), digests[:fitting])

    @_answering
    async def delete(self, digest: str) -> None:
        check_digest(digest)
        await self._remove(self._key(digest))

    @_answering
    async def page(self, after: str = "", limit: int = PAGE_MAX) -> BlobPage:
        check_page(after, limit)
        offset = self._key(after) if after else None
        listed = obstore.list(self._store, f"{self._prefix}sha256", offset=offset, chunk_size=limit)
        try:
            chunk: Sequence[ObjectMeta] = await anext(aiter(listed), [])
        except BaseError:
            await self._size(SHA256 + 64 * "0")  # refused credentials have a type here, but not in a list
            raise
        found = [BlobInfo(_digest(blob), blob["size"], _milliseconds(blob)) for blob in chunk]
        return BlobPage(found, found[-1].digest if len(found) == limit else None)

    async def begin(self, upload: Upload) -> int | Stored | BlobsUnavailable:
        check_upload(upload)
        size = await self.size(upload.digest)
        if isinstance(size, int):
            return Stored(upload.digest, size)
        return size or await self._staging.offset(upload)

    async def write(self, upload: Upload, offset: int, data: bytes) -> int | WrongBytes | BlobsUnavailable:
        return await self._staging.write(upload, offset, data)

    async def finish(self, upload: Upload) -> Finished:
        @_answering
        async def keep(path: Path) -> None:
            if await self._size(upload.digest) is None:  # the same name has the same bytes
                await obstore.put_async(
                    self._store,
                    self._key(upload.digest),
                    path,
                    chunk_size=CHUNK_BYTES_MAX,
                    max_concurrency=PARTS_MAX,
                )

        outcome = await self._staging.finish(upload, keep)
        if isinstance(outcome, Incomplete):
            return stored_or(outcome, await self.size(upload.digest), upload.digest)
        return outcome

    async def abandon(self, upload: Upload) -> BlobsUnavailable | None:
        return await self._staging.abandon(upload) or await self._forget(self._link_key(upload))

    async def expire(self, before_ms: int) -> int | BlobsUnavailable:
        expired = await self._staging.expire(before_ms)
        links = await self._expire_links(before_ms)
        if isinstance(links, BlobsUnavailable) or isinstance(expired, BlobsUnavailable):
            return links if isinstance(links, BlobsUnavailable) else expired
        return expired + links

    @_answering
    async def download_link(self, digest: str, seconds: int) -> str:
        check_digest(digest)
        return await obstore.sign_async(self._store, "GET", self._key(digest), timedelta(seconds=seconds))

    @_answering
    async def upload_link(self, upload: Upload, seconds: int) -> str | None:
        check_upload(upload)
        if upload.size > LINK_BYTES_MAX:
            return None
        return await obstore.sign_async(self._store, "PUT", self._link_key(upload), timedelta(seconds=seconds))

    async def adopt(self, upload: Upload) -> Finished:
        """Calls at the same time share one outcome: the first one takes the bytes away from the link."""
        adopting = self._adopting.get(upload)
        if adopting is None:
            adopting = self._adopting[upload] = asyncio.ensure_future(self._adopt(upload))
            adopting.add_done_callback(lambda _: self._adopting.pop(upload))
        return await asyncio.shield(adopting)

    @_answering
    async def _adopt(self, upload: Upload) -> Stored | WrongBytes | Incomplete:
        """Its owner can still write to the link: a copy that no link leads to is verified, and copied again."""
        check_upload(upload)
        link, private = self._link_key(upload), f"{self._prefix}adopt/{staging_name(upload)}"
        try:
            await obstore.copy_async(self._store, link, private)
        except FileNotFoundError:
            size = await self._size(upload.digest)
            nothing = Incomplete(f"{upload.size} bytes were announced, none was sent to the link", 0)
            return nothing if size is None else Stored(upload.digest, size)
        try:
            if wrong := await self._verify(private, upload):
                return wrong
            await obstore.copy_async(self._store, private, self._key(upload.digest))
            return Stored(upload.digest, upload.size)
        finally:
            await self._remove(private)
            await self._remove(link)

    async def _verify(self, key: str, upload: Upload) -> WrongBytes | None:
        size = (await obstore.head_async(self._store, key))["size"]
        if size != upload.size:
            return WrongBytes(f"{upload.size} bytes were announced, {size} came; send the file again")
        hasher = hashlib.sha256()
        async for chunk in (await obstore.get_async(self._store, key)).stream(min_chunk_size=1 << 20):
            await self._staging.in_thread(hasher.update, chunk)
        if (found := SHA256 + hasher.hexdigest()) != upload.digest:
            return WrongBytes(f"{upload.digest} was announced, the bytes have {found}")
        return None

    async def _size(self, digest: str) -> int | None:
        try:
            return (await obstore.head_async(self._store, self._key(digest)))["size"]
        except FileNotFoundError:
            return None

    async def _remove(self, key: str) -> None:
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            pass

    @_answering
    async def _forget(self, key: str) -> None:
        await self._remove(key)

    @_answering
    async def _expire_links(self, before_ms: int) -> int:
        expired = 0
        for folder in ("links", "adopt"):
            async for chunk in obstore.list(self._store, self._prefix + folder):
                old = [blob["path"] for blob in chunk if _milliseconds(blob) < before_ms]
                await _each(self._remove, old)
                expired += len(old)
        return expired

    def _key(self, digest: str) -> str:
        return f"{self._prefix}sha256/{digest.removeprefix(SHA256)}"

    def _link_key(self, upload: Upload) -> str:
        return f"{self._prefix}links/{staging_name(upload)}"


async def _each(call: Callable[[V], Awaitable[T]], values: Sequence[V]) -> list[T]:
    """The answers in order, a bounded number of requests at once."""
    slots = asyncio.Semaphore(REQUESTS_MAX)

    async def one(value: V) -> T:
        async with slots:
            return await call(value)

    tasks = [asyncio.ensure_future(one(value)) for value in values]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:  # one failure is the answer: the others would each be retried, for minutes
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _digest(blob: "ObjectMeta") -> str:
    return SHA256 + blob["path"].rpartition("/")[2]


def _milliseconds(blob: "ObjectMeta") -> int:
    return int(blob["last_modified"].timestamp() * 1_000)
