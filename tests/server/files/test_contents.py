"""The contents of a manifest, read in pieces: none is missed where pieces meet, and the cache is bounded."""

import pytest

from roost.blobs.factory import memory_blobs
from roost.blobs.garbage import GarbageCollector
from roost.files.manifest import FileEntry, Manifest, encode
from roost.ports.blobs import digest_of
from roost.server.files import contents
from roost.server.files.contents import ContentsCache, contents_of
from roost.server.files.store import ProjectFiles
from tests.server.files.test_store import nothing_sent


async def stored(*counts: int) -> tuple[ProjectFiles, list[tuple[str, set[str]]]]:
    files = ProjectFiles(memory_blobs(), "default", GarbageCollector(0), nothing_sent(), lambda: 0)
    found = []
    for count in counts:
        digests = [digest_of(f"{count}-{number}".encode()) for number in range(count)]
        entries = [FileEntry(f"f{number:04}", 0o644, 1, digest) for number, digest in enumerate(digests)]
        data = encode(Manifest(tuple(entries)))
        await files.blobs.put([(digest_of(data), data)])
        found.append((digest_of(data), set(digests)))
    return files, found


@pytest.mark.parametrize("piece_bytes", [81, 97, 1_000, 4_096, 1 << 20])
async def test_every_digest_is_found_wherever_a_piece_ends(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "PIECE_BYTES", piece_bytes)
    files, [(manifest, digests)] = await stored(100)
    assert await contents_of(files, manifest) == digests


async def test_a_manifest_that_is_not_there_has_no_contents() -> None:
    files, [(empty, _)] = await stored(0)
    assert await contents_of(files, empty) == frozenset()
    assert await contents_of(files, digest_of(b"?")) is None
    assert await ContentsCache().get(files, digest_of(b"?")) is None


async def test_the_cache_is_bounded_and_answers_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CACHED_MAX", 25)
    files, sets = await stored(10, 11, 12)
    cache = ContentsCache()
    for manifest, digests in sets:
        assert await cache.get(files, manifest) == digests
    for manifest, _ in sets:
        await files.blobs.delete(manifest)
    assert [await cache.get(files, manifest) is not None for manifest, _ in sets] == [False, True, True]
