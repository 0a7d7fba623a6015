"""Sets of files: a manifest is a set when it is valid and all its contents are there, with the sizes that it says.

A manifest of 100,000 files takes a second to check, and its parser holds the interpreter's lock: large ones are checked
by a process of the fork server.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from roost.core.state.state import State
from roost.files.manifest import MANIFEST_BYTES_MAX, Manifest, decode, encode
from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.records.files import FileSet
from roost.ports.blobs import digest_of
from roost.server.engine.questions import Questions
from roost.server.files.store import ProjectFiles, no_blob
from roost.server.waiting import Slices

QUICK_BYTES_MAX = 16 << 10  # checked at once: a hundred files, a millisecond
CHECK_S_MAX = 10.0  # of CPU; the largest takes a second
PIECE = 1_000  # contents that are unpacked at once: less than a millisecond
MISSING_SHOWN_MAX = 100  # of files that are not there: a client asks for the whole list with `missing`

_CONTENTS = msgspec.msgpack.Decoder(list[tuple[str, int]])


class Checked(msgspec.Struct, frozen=True):
    """A manifest that is valid. `contents`: digests with sizes, each once, in pieces."""

    files: FileSet
    contents: list[bytes]


@asynccontextmanager
async def complete_set(
    files: ProjectFiles, digest: str, reading: Questions, who: str = "", keep_ms: int = 0
) -> AsyncIterator[FileSet]:
    """The set that a digest names, whole for as long as the block, and `keep_ms` longer.

    `who`: only one of its manifests is checked at a time. Raises NotFound, Invalid, TooMuch; Conflict `files_missing`.
    """
    async with files.held_set(digest, keep_ms) as held:
        if held.files is None:
            held.files = await _complete(files, digest, reading, who)
        yield held.files


async def _complete(files: ProjectFiles, digest: str, reading: Questions, who: str) -> FileSet:
    (size,) = await files.sizes([digest])
    if size is None:
        raise no_blob(files.project, digest)
    if size > MANIFEST_BYTES_MAX:
        raise TooMuch(f"a manifest has at most {MANIFEST_BYTES_MAX:,} bytes", params={"bytes_max": MANIFEST_BYTES_MAX})
    checked = await check_manifest(await files.read(digest, size), reading, who)
    await _require_contents(files, checked)
    return checked.files


async def check_manifest(data: bytes, reading: Questions, who: str = "") -> Checked:
    """Raises Invalid or TooMuch with the path that is wrong."""
    if len(data) <= QUICK_BYTES_MAX:
        return _checked(data)
    return await reading.ask(partial(_checked, data), who, budget_s=CHECK_S_MAX)


async def _require_contents(files: ProjectFiles, checked: Checked) -> None:
    missing: list[str] = []
    slices = Slices()
    for piece in checked.contents:
        contents = _CONTENTS.decode(piece)
        digests = [digest for digest, _ in contents]
        for (digest, announced), size in zip(contents, await files.sizes(digests), strict=True):
            if size is None:
                missing.append(digest)
            elif size != announced:
                raise Invalid("manifest", f"says that {digest} has {announced:,} bytes, and it has {size:,}")
        await slices.pause()
    if missing:
        raise files_missing(missing)


def files_missing(missing: Sequence[str]) -> Conflict:
    shown = list(missing[:MISSING_SHOWN_MAX])
    message = f"contents of {len(missing):,} files are not there; send them first, such as {shown[0]}"
    return Conflict(message, code="files_missing", params={"count": len(missing), "missing": shown})


def _checked(data: bytes, _: State | None = None) -> Checked:
    manifest = decode(data)
    if encode(manifest) != data:  # the same content has one name; and garbage collection reads it as it is encoded
        raise Invalid("manifest", "is not as Roost encodes it: fields in order, without spaces and escapes")
    contents = list(_contents(manifest).items())
    pieces = [msgspec.msgpack.encode(contents[start : start + PIECE]) for start in range(0, len(contents), PIECE)]
    count = sum(1 for _ in manifest.files())
    return Checked(FileSet(digest_of(data), count, manifest.bytes_total()), pieces)


def _contents(manifest: Manifest) -> dict[str, int]:
    return {file.digest: file.size for file in manifest.files()}
