"""Blobs: files of users, each named by the digest of its bytes. A blob never changes: the same name is the same bytes.

Every expected outcome is a value, and callers match them all. ValueError is for arguments that make no sense.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

# What one call holds in memory. 1 MiB is usual; requests to S3 are worth it from 8 MiB on.
CHUNK_BYTES_MAX = 8 << 20
BLOB_BYTES_MAX = 64 << 30  # S3 takes 10,000 parts; 8 MiB each bounds the memory of an upload
DIGESTS_MAX = 10_000  # in one question or batch: 720 KB of names
PAGE_MAX = 1_000  # as S3 lists them
UPLOADS_MAX = 1_000  # in progress at once, each with a file of its own

SHA256 = "sha256:"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Upload(msgspec.Struct, frozen=True):
    """An upload in progress. The same three values name it again after an interruption.

    `owner`: uploads of different owners share no bytes, so none can spoil the upload of another.
    """

    digest: str
    size: int
    owner: str = ""


class Stored(msgspec.Struct, frozen=True):
    """The blob is durable and can be read."""

    digest: str
    size: int


class BlobFailure(msgspec.Struct, frozen=True):
    """An outcome other than the wanted one; `reason` says what can be done.

    BlobFailure
    ├── WrongBytes        digest or length are not as announced; nothing was kept
    ├── Incomplete        bytes are missing from `offset` on; what was sent is kept
    └── BlobsUnavailable  cannot be kept or read now: disk full, S3 does not answer, credentials revoked
    """

    reason: str

    def __str__(self) -> str:
        return self.reason


class WrongBytes(BlobFailure, frozen=True):
    """The sender has to begin again, with the right bytes."""


class Incomplete(BlobFailure, frozen=True):
    """The sender has to go on."""

    offset: int = 0


class BlobsUnavailable(BlobFailure, frozen=True):
    """Not now; `reason` says what an operator can do. `denied`: no attempt helps before that."""

    denied: bool = False


class BlobInfo(NamedTuple):
    digest: str
    size: int
    stored_ms: int  # by the clock of the store


class BlobPage(NamedTuple):
    blobs: Sequence[BlobInfo]  # in the order of their digests
    after: str | None  # where the next page begins; None: this is the last


Finished = Stored | WrongBytes | Incomplete | BlobsUnavailable


class Blobs(Protocol):
    """Blobs that are there; tests/blobs/contract.py holds every implementation to its promises."""

    async def missing(self, digests: Sequence[str]) -> list[str] | BlobsUnavailable:
        """Those that are not there, in their order."""

    async def sizes(self, digests: Sequence[str]) -> list[int | None] | BlobsUnavailable:
        """The size of each, in their order. None: there is no such blob."""

    async def size(self, digest: str) -> int | BlobsUnavailable | None:
        """None: there is no such blob."""

    async def read(self, digest: str, offset: int, limit: int) -> bytes | BlobsUnavailable | None:
        """At most limit bytes from offset on: fewer only at the end, none after it. None: there is no such blob."""

    async def delete(self, digest: str) -> BlobsUnavailable | None:
        """That there is none is fine."""

    async def page(self, after: str = "", limit: int = PAGE_MAX) -> BlobPage | BlobsUnavailable:
        """The blobs after a digest. One that is stored or deleted meanwhile may be missing from its page."""


class Batches(Protocol):
    """Small blobs, many in one call: a call for each of 10,000 would cost more than their bytes."""

    async def put(self, contents: Sequence[tuple[str, bytes]]) -> WrongBytes | BlobsUnavailable | None:
        """Keep blobs, together at most CHUNK_BYTES_MAX. None: all are durable. WrongBytes: none was kept."""

    async def get(self, digests: Sequence[str]) -> list[bytes | None] | BlobsUnavailable:
        """Whole blobs in order, None for one that is not there. Ends early before more than CHUNK_BYTES_MAX.

        An empty list: the first blob alone is larger; read it in chunks.
        """


class Uploads(Protocol):
    """Blobs of any size, in chunks. A blob can be read after `finish`, never before."""

    async def begin(self, upload: Upload) -> int | Stored | BlobsUnavailable:
        """Where to go on: 0 for a new upload. Stored: there is nothing to send."""

    async def write(self, upload: Upload, offset: int, data: bytes) -> int | WrongBytes | BlobsUnavailable:
        """Keep data, which begins at offset, and return where to go on.

        Bytes that are there already are skipped, so sending twice is harmless. Where data begins beyond the end
        nothing is kept. More bytes than announced end the upload.
        """

    async def finish(self, upload: Upload) -> Finished:
        """Verify digest and length, and make the blob durable. Can be repeated: the answer may have been lost."""

    async def abandon(self, upload: Upload) -> BlobsUnavailable | None:
        """Forget what was sent. That there is nothing is fine."""

    async def expire(self, before_ms: int) -> int | BlobsUnavailable:
        """Forget uploads without a write since then; how many."""


class BlobStore(Blobs, Batches, Uploads, Protocol):
    """Everything that an implementation offers."""


@runtime_checkable
class Links(Protocol):
    """Optional: clients and agents talk to S3 themselves, with signed URLs. The server only carries names."""

    async def download_link(self, digest: str, seconds: int) -> str | BlobsUnavailable:
        """For one GET, also of a range."""

    async def upload_link(self, upload: Upload, seconds: int) -> str | BlobsUnavailable | None:
        """For one PUT, to a name that no reader sees. None: too large for one PUT, use `Uploads`."""

    async def adopt(self, upload: Upload) -> Finished:
        """Verify what was sent to an upload link, as `finish` does, and make it a blob."""


def digest_of(data: bytes) -> str:
    """The name of these bytes."""
    return SHA256 + hashlib.sha256(data).hexdigest()


def check_digest(*digests: str) -> None:
    """Raises ValueError for a text that is no name of a blob."""
    for digest in digests:
        if not DIGEST.fullmatch(digest):
            raise ValueError(f"not a digest (sha256: and 64 hexadecimal digits): {digest[:100]!r}")


def check_digests(digests: Sequence[str]) -> None:
    """The same for a list, which is bounded."""
    if len(digests) > DIGESTS_MAX:
        raise ValueError(f"at most {DIGESTS_MAX} digests at once, not {len(digests)}")
    check_digest(*digests)


def check_upload(upload: Upload) -> None:
    check_digest(upload.digest)
    if not 0 <= upload.size <= BLOB_BYTES_MAX:
        raise ValueError(f"the size of a blob is between 0 and {BLOB_BYTES_MAX}: {upload.size}")


def check_range(offset: int, length: int) -> None:
    if offset < 0 or not 0 <= length <= CHUNK_BYTES_MAX:
        raise ValueError(f"an offset is not negative, a chunk has at most {CHUNK_BYTES_MAX} bytes: {offset}, {length}")


def check_page(after: str, limit: int) -> None:
    if after:
        check_digest(after)
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"a page has between 1 and {PAGE_MAX} blobs: {limit}")


def check_contents(contents: Sequence[tuple[str, bytes]]) -> WrongBytes | None:
    """What `put` verifies before it keeps anything."""
    check_digests([digest for digest, _ in contents])
    if (total := sum(len(data) for _, data in contents)) > CHUNK_BYTES_MAX:
        raise ValueError(f"a batch has at most {CHUNK_BYTES_MAX} bytes: {total}")
    for digest, data in contents:
        if (found := digest_of(data)) != digest:
            return WrongBytes(f"{digest} was announced, the bytes have {found}")
    return None


async def space_used(blobs: Blobs) -> int | BlobsUnavailable:
    """Bytes of all blobs, page by page."""
    total, after = 0, ""
    while True:
        page = await blobs.page(after)
        if isinstance(page, BlobsUnavailable):
            return page
        total += sum(blob.size for blob in page.blobs)
        if page.after is None:
            return total
        after = page.after
