"""Files to a blob store and back, against `cp`: many small ones and a large one. In memory, without a network.

Then the same through a real server (transfers.py).
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from roost.blobs.files import FileBlobs
from roost.files.cache import InputCache
from roost.files.manifest import SMALL_BYTES, Manifest
from roost.files.pack import PackReader, pack, small_files
from roost.files.scan import scan
from roost.files.unpack import Unpack
from roost.ports.blobs import CHUNK_BYTES_MAX, BlobFailure, Stored, Upload
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.transfers import GIB, PIECE, make_large, make_small, through_server
from roost_lab.components.etcd import memory_folder

ROUNDS = 3
BATCH_FILES, BATCH_BYTES = 1_000, CHUNK_BYTES_MAX // 2
TINY = {"files": 20, "large_bytes": 3 << 20, "sent_bytes": 3 << 20}


def measure(files: int = 10_000, large_bytes: int = GIB, sent_bytes: int = 2 * GIB) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="roost-files-", dir=memory_folder()) as folder:
        within = [*_small(Path(folder), files), *_large(Path(folder), large_bytes)]
    return [*within, *through_server(files, sent_bytes)]


def _small(folder: Path, count: int) -> Iterator[Figure]:
    """Rounds alternate with `cp`, because the machine is shared."""
    source = folder / "small"
    make_small(source, count)
    spent: dict[str, list[float]] = {"cp": [], "send": [], "again": [], "get": [], "place": []}
    for number in range(ROUNDS):
        room = folder / f"small-{number}"
        room.mkdir()
        spent["cp"].append(_cpu_s(lambda room=room: subprocess.run(["cp", "-r", source, room / "cp"], check=True)))
        blobs = FileBlobs(room / "blobs")
        spent["send"].append(_cpu_s(lambda blobs=blobs: asyncio.run(_send_small(source, blobs))))
        spent["again"].append(_cpu_s(lambda blobs=blobs: asyncio.run(_send_small(source, blobs))))
        manifest = scan(source)
        spent["get"].append(_cpu_s(lambda *given: asyncio.run(_get(*given)), blobs, manifest, room / "got"))
        cache = _filled(source, manifest, room / "cache")
        spent["place"].append(_cpu_s(_place, cache, manifest, room / "placed"))
        shutil.rmtree(room)
    cp = statistics.median(spent.pop("cp"))
    # Two processes would share the CPU of a send; their time is then below 3 times that of `cp`.
    bounds = {"send": 4.0, "again": 1.3, "get": 1.7, "place": 2.0}
    for name, seconds in spent.items():
        ratio, bound = statistics.median(seconds) / max(cp, 0.01), bounds[name]
        yield figure(f"small_files_{name}_over_cp", ratio, "", bound=bound, files=count, cp_cpu_s=round(cp, 3))
    shutil.rmtree(source)


def _large(folder: Path, size: int) -> Iterator[Figure]:
    source = folder / "large"
    make_large(source, size)
    cp = _cpu_s(lambda: subprocess.run(["cp", source / "file", folder / "copy"], check=True)) * GIB / size
    (folder / "copy").unlink()
    blobs = FileBlobs(folder / "blobs")
    send = _cpu_s(lambda: asyncio.run(_send_large(source, blobs))) * GIB / size
    manifest = scan(source)
    shutil.rmtree(source)
    get = _cpu_s(lambda: asyncio.run(_get(blobs, manifest, folder / "got"))) * GIB / size
    cp = round(cp, 2)
    yield figure("large_file_send_cpu_s_per_gib", send, "s", bound=3.4, bytes=size, cp=cp)
    yield figure("large_file_get_cpu_s_per_gib", get, "s", bound=2.2, bytes=size, cp=cp)


async def _send_small(source: Path, blobs: FileBlobs) -> None:
    """Client and server: scan, ask, pack; verify and store in batches."""
    manifest = scan(source)
    missing = await blobs.missing([file.digest for file in manifest.files()])
    assert not isinstance(missing, BlobFailure), missing
    files = small_files(manifest, missing)
    reader = PackReader({file.digest: file.size for file in files})
    batch: list[tuple[str, bytes]] = []
    size = 0
    for chunk in pack(source, files):
        for digest, data in reader.feed(chunk):
            batch.append((digest, data))
            size += len(data)
            if len(batch) == BATCH_FILES or size > BATCH_BYTES:
                assert await blobs.put(batch) is None
                batch, size = [], 0
    reader.finish()
    assert await blobs.put(batch) is None


async def _send_large(source: Path, blobs: FileBlobs) -> None:
    for file in scan(source).files():
        upload = Upload(file.digest, file.size)
        with (source / file.path).open("rb", buffering=0) as content:
            for offset in range(0, file.size, PIECE):
                await blobs.write(upload, offset, content.read(PIECE))
        assert isinstance(await blobs.finish(upload), Stored)


async def _get(blobs: FileBlobs, manifest: Manifest, target: Path) -> None:
    with Unpack(target, manifest) as tree:
        missing = tree.missing()
        small = [digest for digest, size in missing.items() if size < SMALL_BYTES]
        for start in range(0, len(small), BATCH_FILES):
            batch = small[start : start + BATCH_FILES]
            found = await blobs.get(batch)
            assert not isinstance(found, BlobFailure) and len(found) == len(batch)
            for digest, data in zip(batch, found, strict=True):
                assert data is not None
                tree.add(digest, [data])
        for digest in missing.keys() - set(small):
            # A thread writes while the loop reads, as behind a connection; here one after the other.
            offsets = range(0, missing[digest], PIECE)
            loop = asyncio.get_running_loop()
            chunks = (asyncio.run_coroutine_threadsafe(_read(blobs, digest, at), loop).result() for at in offsets)
            await asyncio.to_thread(tree.add, digest, chunks)


async def _read(blobs: FileBlobs, digest: str, offset: int) -> bytes:
    data = await blobs.read(digest, offset, PIECE)
    assert isinstance(data, bytes), data
    return data


def _filled(source: Path, manifest: Manifest, folder: Path) -> InputCache:
    cache = InputCache(folder, 2 * manifest.bytes_total() + 1)
    for file in manifest.files():
        cache.add(file.digest, file.size, [(source / file.path).read_bytes()])
    return cache


def _place(cache: InputCache, manifest: Manifest, target: Path) -> None:
    user = os.geteuid()
    with Unpack(target, manifest) as tree, cache.hold(tree.missing()) as missing:
        assert not missing
        for digest in tree.missing():
            tree.place(digest, partial(cache.place, digest, user=user))


def _cpu_s(call: Callable[..., object], *arguments: object) -> float:
    with Spent(os.getpid()) as spent:
        call(*arguments)
    return spent.cpu_s
