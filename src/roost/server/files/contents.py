"""The contents that a manifest names, as they are read out of its bytes: in pieces, so that none holds up the loop."""

import re
from collections import OrderedDict

from roost.files.manifest import MANIFEST_BYTES_MAX
from roost.model.records.files import FileSet
from roost.ports.blobs import DIGEST
from roost.server.files.store import ProjectFiles, available

PIECE_BYTES = 256 << 10  # a thousand files, less than a millisecond
OVERLAP_BYTES = 80  # a digest has 71
CACHED_MAX = 500_000  # digests in memory: 70 MB

_DIGEST = re.compile(DIGEST.pattern.encode())


async def contents_of(files: ProjectFiles, manifest: str) -> frozenset[str] | None:
    """All digests in the bytes of a manifest. None: it is not there. Raises NoService."""
    found: set[str] = set()
    offset, rest = 0, b""
    while offset < MANIFEST_BYTES_MAX:
        piece = available(await files.blobs.read(manifest, offset, PIECE_BYTES))
        if piece is None:
            return None
        found.update([digest.decode() for digest in _DIGEST.findall(rest + piece)])
        if len(piece) < PIECE_BYTES:
            break
        rest = piece[-OVERLAP_BYTES:]
        offset += len(piece)
    return frozenset(found)


async def note_made(files: ProjectFiles, owner: str, made: FileSet) -> None:
    """What an owner has sent of a set counts with the set from now on. Raises NoService."""
    if files.sent.is_sending(files.project, owner):
        contents = await contents_of(files, made.digest)
        files.sent.made(files.project, owner, made, contents or (), files.now_ms())


class ContentsCache:
    """The contents of the manifests that were used last. A blob never changes, so nothing in it is ever wrong."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()
        self._count = 0

    async def get(self, files: ProjectFiles, manifest: str) -> frozenset[str] | None:
        key = files.project, manifest
        found = self._known.get(key)
        if found is None:
            found = await contents_of(files, manifest)
            if found is None or key in self._known:
                return found
            self._known[key] = found
            self._count += len(found) + 1
            while self._count > CACHED_MAX and len(self._known) > 1:
                self._count -= len(self._known.popitem(last=False)[1]) + 1
        self._known.move_to_end(key)
        return found
