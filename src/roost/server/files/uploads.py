"""One piece of an upload, from a client or an agent: where it goes on, and whether the blob is stored."""

from roost.ports.blobs import BlobStore, BlobsUnavailable, Incomplete, Stored, Upload, WrongBytes


async def take_piece(
    blobs: BlobStore, upload: Upload, offset: int, data: bytes
) -> int | Stored | WrongBytes | BlobsUnavailable:
    """Keep a piece. The last one makes it a blob. An empty one only asks where to go on."""
    at = await blobs.begin(upload)
    if isinstance(at, Stored) and at.size != upload.size:
        return WrongBytes(f"{upload.size} bytes were announced, the blob has {at.size}")
    if isinstance(at, int) and data:
        written = await blobs.write(upload, offset, data)
        if not isinstance(written, int):
            return written
        at = written
    if not isinstance(at, int) or at < upload.size:
        return at
    finished = await blobs.finish(upload)
    return finished.offset if isinstance(finished, Incomplete) else finished
