"""Blobs in memory: they live as long as the process. For tests and the simulator."""

import time
from collections.abc import Callable, Sequence

from roost.blobs.staging import stored_or
from roost.ports.blobs import (
    CHUNK_BYTES_MAX,
    PAGE_MAX,
    BlobInfo,
    BlobPage,
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
    digest_of,
)


class MemoryBlobs:
    """The BlobStore port on dictionaries."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._uploads: dict[Upload, tuple[bytearray, int]] = {}

    async def missing(self, digests: Sequence[str]) -> list[str]:
        check_digests(digests)
        return [digest for digest in digests if digest not in self._blobs]

    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        check_digests(digests)
        return [len(self._blobs[digest][0]) if digest in self._blobs else None for digest in digests]

    async def size(self, digest: str) -> int | None:
        check_digest(digest)
        return len(self._blobs[digest][0]) if digest in self._blobs else None

    async def read(self, digest: str, offset: int, limit: int) -> bytes | None:
        check_digest(digest)
        check_range(offset, limit)
        return self._blobs[digest][0][offset : offset + limit] if digest in self._blobs else None

    async def put(self, contents: Sequence[tuple[str, bytes]]) -> WrongBytes | None:
        if wrong := check_contents(contents):
            return wrong
        self._blobs.update({digest: (bytes(data), self._now_ms()) for digest, data in contents})
        return None

    async def get(self, digests: Sequence[str]) -> list[bytes | None]:
        check_digests(digests)
        found: list[bytes | None] = []
        left = CHUNK_BYTES_MAX
        for digest in digests:
            data = self._blobs[digest][0] if digest in self._blobs else None
            left -= len(data or b"")
            if left < 0:
                break
            found.append(data)
        return found

    async def delete(self, digest: str) -> None:
        check_digest(digest)
        self._blobs.pop(digest, None)

    async def page(self, after: str = "", limit: int = PAGE_MAX) -> BlobPage:
        check_page(after, limit)
        digests = sorted(digest for digest in self._blobs if digest > after)
        found = [BlobInfo(digest, len(self._blobs[digest][0]), self._blobs[digest][1]) for digest in digests[:limit]]
        return BlobPage(found, found[-1].digest if len(digests) > limit else None)

    async def begin(self, upload: Upload) -> int | Stored:
        check_upload(upload)
        if (size := await self.size(upload.digest)) is not None:
            return Stored(upload.digest, size)
        return len(self._uploads[upload][0]) if upload in self._uploads else 0

    async def write(self, upload: Upload, offset: int, data: bytes) -> int | WrongBytes:
        check_upload(upload)
        check_range(offset, len(data))
        if offset + len(data) > upload.size:
            self._uploads.pop(upload, None)
            return WrongBytes(f"{upload.size} bytes were announced, {offset + len(data)} came; send the file again")
        kept = self._uploads.get(upload, (bytearray(), 0))[0]
        if offset <= len(kept) and data[len(kept) - offset :]:
            kept += data[len(kept) - offset :]
            self._uploads[upload] = (kept, self._now_ms())
        return len(kept)

    async def finish(self, upload: Upload) -> Finished:
        check_upload(upload)
        kept = bytes(self._uploads.get(upload, (b"", 0))[0])
        if len(kept) < upload.size:
            missing = Incomplete(f"{upload.size} bytes were announced, {len(kept)} are here; send the rest", len(kept))
            return stored_or(missing, await self.size(upload.digest), upload.digest)
        self._uploads.pop(upload, None)
        if (found := digest_of(kept)) != upload.digest:
            return WrongBytes(f"{upload.digest} was announced, the bytes have {found}")
        self._blobs[upload.digest] = (kept, self._now_ms())
        return Stored(upload.digest, upload.size)

    async def abandon(self, upload: Upload) -> None:
        check_upload(upload)
        self._uploads.pop(upload, None)

    async def expire(self, before_ms: int) -> int:
        expired = [upload for upload, (_, written_ms) in self._uploads.items() if written_ms < before_ms]
        for upload in expired:
            del self._uploads[upload]
        return len(expired)
