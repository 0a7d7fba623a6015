"""One piece of an upload, from a client or an agent: where it goes on, and whether the blob is stored.

Where the blob store gives links, an upload that begins is sent there as a whole. An empty piece at its end asks whether
it has arrived. A sender that cannot reach the link is then sent back to 0, and sends pieces.
"""

from typing import NamedTuple

from roost.ports.blobs import BlobsUnavailable, Incomplete, Links, Stored, Upload, WrongBytes
from roost.server.files.store import ProjectFiles

LINK_S = 900  # in which a transfer has to begin; also how long a revoked token still reads
LINK_BYTES_MIN = 1 << 20  # small contents are faster together, through the server
LINK_BYTES_MAX = 1 << 30  # read once to verify it, within the minute that a sender waits, at 20 MB/s


class UploadLink(NamedTuple):
    """Where all bytes can be sent with PUT."""

    url: str


Taken = int | UploadLink | Stored | WrongBytes | BlobsUnavailable


async def take_piece(files: ProjectFiles, upload: Upload, offset: int, data: bytes) -> Taken:
    """Keep a piece. The last one makes it a blob. An empty one only asks where to go on."""
    at = await files.blobs.begin(upload)
    if isinstance(at, Stored) and at.size != upload.size:
        return WrongBytes(f"{upload.size} bytes were announced, the blob has {at.size}")
    if at == 0 and not data and files.links is not None and LINK_BYTES_MIN <= upload.size <= LINK_BYTES_MAX:
        return await _by_link(files.links, upload, offset)
    if isinstance(at, int) and data:
        written = await files.blobs.write(upload, offset, data)
        if not isinstance(written, int):
            return written
        at = written
    if not isinstance(at, int) or at < upload.size:
        return at
    finished = await files.blobs.finish(upload)
    return finished.offset if isinstance(finished, Incomplete) else finished


async def _by_link(links: Links, upload: Upload, offset: int) -> Taken:
    if offset == upload.size:
        adopted = await links.adopt(upload)
        return 0 if isinstance(adopted, Incomplete) else adopted
    link = await links.upload_link(upload, LINK_S)
    return UploadLink(link) if isinstance(link, str) else link or 0
