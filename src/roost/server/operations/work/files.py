"""Files of a project: contents are sent and read by digest, and a manifest makes them a set.

A client asks which contents are missing, sends small ones in packs and large ones in pieces, and then the manifest.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.blobs.garbage import HOLD_MS
from roost.files.pack import pack_contents, unpack_contents
from roost.model.errors import Invalid, NoService, NotFound, OutOfRange
from roost.ports.blobs import (
    BLOB_BYTES_MAX,
    CHUNK_BYTES_MAX,
    DIGESTS_MAX,
    BlobFailure,
    Stored,
    Upload,
    WrongBytes,
    check_digest,
    digest_of,
)
from roost.schema.files import Digests, FileLinks, FileSetView, MissingFiles, UploadView
from roost.server.files.contents import note_made
from roost.server.files.sets import complete_set
from roost.server.files.store import ProjectFiles, available, no_blob
from roost.server.files.uploads import LINK_S, UploadLink, take_piece
from roost.server.operations.context import Call

PIECE_BYTES = 1 << 20  # of an answer; a reader that is slow holds one of them
LINKS_MAX = 1_000  # in an answer: 500 KB, signed in 50 ms

BlobSize = Annotated[int, Meta(ge=0, le=BLOB_BYTES_MAX, description="Bytes of the whole.")]
Offset = Annotated[int, Meta(ge=0, le=BLOB_BYTES_MAX, description="Where the piece begins.")]
ReadFrom = Annotated[int, Meta(ge=-BLOB_BYTES_MAX, le=BLOB_BYTES_MAX, description="Below 0: from the end.")]
ReadLength = Annotated[int, Meta(ge=1, le=BLOB_BYTES_MAX, description="How many bytes; without it, all.")]
ManifestDigest = Annotated[str, Meta(max_length=80, description="A manifest that is a blob already; no body then.")]


class RawBody(msgspec.Struct, frozen=True):
    """The bytes of a body, as they were sent."""

    data: bytes


class BlobPiece(msgspec.Struct, frozen=True):
    """Bytes of a blob that has `size`. `end`: where the whole answer ends."""

    size: int
    offset: int
    end: int
    data: bytes


async def find_missing_files(call: Call, project: str, fields: Digests) -> MissingFiles:
    """Find which contents have to be sent. None of them is deleted within an hour, so that a set can be made."""
    files, digests = _files(call, project), _checked_all(fields)
    await files.hold(_owner(call), digests)
    return MissingFiles(available(await files.blobs.missing(digests)))


async def put_blob(
    call: Call, project: str, digest: str, piece: RawBody, size: BlobSize, offset: Offset = 0
) -> UploadView:
    """Send a piece of one blob, at most 8 MiB. The last piece makes it a blob, if it has this digest and size.

    `offset` of the answer is where to go on. An empty piece asks for it, after an interruption. Pieces that are there
    already are skipped. With blobs in S3, the answer to an empty piece may have a `url`: the upload may be sent there.
    """
    upload = Upload(checked_digest(digest), size, _owner(call))
    files = _files(call, project)
    await files.send(upload.owner, [(digest, size)])
    taken = await take_piece(files, upload, offset, piece.data)
    if isinstance(taken, UploadLink):
        return UploadView(0, stored=False, url=taken.url)
    at = _right(taken)
    return UploadView(size if at is None else at, at is None)


async def put_pack(call: Call, project: str, pack: RawBody) -> None:
    """Send many small contents at once: a pack of at most 8 MiB, with at most 8 MiB of contents. All or none are kept.

    A pack is a stream of zstd: of each content the 32 bytes of its SHA-256, 4 bytes with its length, and its bytes.
    """
    contents = await asyncio.to_thread(unpack_contents, pack.data, CHUNK_BYTES_MAX, DIGESTS_MAX)
    files = _files(call, project)
    await files.send(_owner(call), [(digest, len(data)) for digest, data in contents])
    _right(await files.blobs.put(contents))


async def create_files(call: Call, project: str, manifest: RawBody, digest: ManifestDigest = "") -> FileSetView:
    """Make a set of files from a manifest whose contents were sent. 409 `files_missing`: some of them were not.

    The digest of the manifest names the set, in `inputs` of a workload. Without use, it is deleted after an hour or
    more. A manifest of more than 8 MiB is sent as a blob before, and named by `digest`.
    """
    files = _files(call, project)
    if digest and manifest.data:
        raise Invalid("digest", "give a digest, or send the manifest; not both")
    if not digest:
        digest = await asyncio.to_thread(digest_of, manifest.data)
        await files.send(_owner(call), [(digest, len(manifest.data))])
        _right(await files.blobs.put([(digest, manifest.data)]))
    async with complete_set(files, checked_digest(digest), call.context.reading, call.principal.name, HOLD_MS) as found:
        await note_made(files, _owner(call), found)
        return FileSetView(found.digest, found.files, found.size)


async def get_files(call: Call, project: str, digest: str) -> AsyncGenerator[BlobPiece, None]:
    """Read the manifest of a set of files."""
    return await _pieces(call, project, digest)


async def read_blob(
    call: Call, project: str, digest: str, offset: ReadFrom = 0, length: ReadLength | None = None
) -> AsyncGenerator[BlobPiece, None]:
    """Read a blob, or a part of it: `offset` and `length`, or the header Range (206). 416: there are no such bytes."""
    return await _pieces(call, project, digest, offset, length)


async def read_contents(call: Call, project: str, fields: Digests) -> bytes:
    """Read many small contents as a pack. It ends early at 8 MiB of contents: ask again for the rest."""
    digests = _checked_all(fields)
    found = available(await _files(call, project).blobs.get(digests))
    if digests and not found:
        message = f"has more than {CHUNK_BYTES_MAX:,} bytes: read it as a blob"
        raise Invalid("digests[0]", message, params={"digest": digests[0]})
    contents: list[tuple[str, bytes]] = []
    for digest, data in zip(digests, found, strict=False):
        if data is None:
            raise no_blob(project, digest)
        contents.append((digest, data))
    return await asyncio.to_thread(pack_contents, contents)


async def link_files(call: Call, project: str, fields: Digests) -> FileLinks:
    """Get URLs of contents, which S3 serves. Without S3 there are none, and contents are read as blobs."""
    links, digests = _files(call, project).links, _checked_all(fields)
    if links is None:
        return FileLinks([])
    if len(digests) > LINKS_MAX:
        raise Invalid("digests", f"a request for links has at most {LINKS_MAX:,} digests, not {len(digests):,}")
    return FileLinks([available(await links.download_link(digest, LINK_S)) for digest in digests])


async def _pieces(
    call: Call, project: str, digest: str, offset: int = 0, length: int | None = None
) -> AsyncGenerator[BlobPiece, None]:
    files = _files(call, project)
    size = available(await files.blobs.size(checked_digest(digest)))
    if size is None:
        raise no_blob(project, digest)
    start = max(0, size + offset) if offset < 0 else offset
    if start > size or (start == size and length is not None):
        raise OutOfRange(f"the blob has {size:,} bytes", params={"size": size})
    end = size if length is None else min(size, start + length)
    return _read(files, digest, size, start, end)


async def _read(files: ProjectFiles, digest: str, size: int, start: int, end: int) -> AsyncGenerator[BlobPiece, None]:
    """At least one piece, which may be empty."""
    at = start
    while at < end or at == start:
        data = available(await files.blobs.read(digest, at, min(PIECE_BYTES, end - at)))
        if data is None or (not data and at < end):
            raise NotFound(f"the blob {digest} was deleted while it was read")
        yield BlobPiece(size, at, end, data)
        at += len(data)
        if not data:
            return


def _files(call: Call, project: str) -> ProjectFiles:
    if not call.engine.ready:
        raise NoService("this server does not lead")
    return call.context.files.project(project)


def _owner(call: Call) -> str:
    """Whose uploads share bytes and holds."""
    return f"principal:{call.principal.name}"


def checked_digest(digest: str, path: str = "digest") -> str:
    try:
        check_digest(digest)
    except ValueError as error:
        raise Invalid(path, str(error)) from None
    return digest


def _checked_all(fields: Digests) -> list[str]:
    if len(fields.digests) > DIGESTS_MAX:
        raise Invalid("digests", f"a request has at most {DIGESTS_MAX:,} digests, not {len(fields.digests):,}")
    return [checked_digest(digest, f"digests[{position}]") for position, digest in enumerate(fields.digests)]


def _right(outcome: object) -> int | None:
    """Where an upload goes on; None: all is stored. Raises Invalid `wrong_bytes` and NoService."""
    match outcome:
        case int():
            return outcome
        case None | Stored():
            return None
        case WrongBytes():
            raise Invalid("body", outcome.reason, code="wrong_bytes")
        case BlobFailure():
            raise NoService(f"the blob store fails: {outcome.reason}", code="blobs_unavailable")
    raise AssertionError(f"no outcome of a blob store: {outcome!r}")
