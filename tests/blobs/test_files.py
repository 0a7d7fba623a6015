"""The blobs in files keep the contract, and are whole or absent wherever a crash or a full disk stops them."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from roost_lab.components.etcd import memory_folder

from roost.blobs import disk, files, staging
from roost.blobs.files import FileBlobs
from roost.ports.blobs import BlobStore, BlobsUnavailable, Stored, Upload, digest_of
from tests.blobs.contract import CHUNK, DIGEST, UPLOAD, WHOLE, BlobsContract, digests, send

FAR_FUTURE_MS = 1 << 50


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "root")


@pytest.fixture
def quick() -> Iterator[Path]:
    """In memory: where every step is tried, a disk would be flushed some hundred times."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)


class TestFiles(BlobsContract):
    @pytest.fixture
    def blobs(self, blobs: FileBlobs) -> BlobStore:
        return blobs


class Crash(BaseException):
    """The process ends here: nothing cleans up."""


async def store_all(blobs: BlobStore) -> None:
    """Everything that writes: an upload, a batch, a deletion."""
    assert await send(blobs, UPLOAD, WHOLE, 2_000) == Stored(DIGEST, len(WHOLE))
    assert await blobs.put([(digest_of(b"one"), b"one"), (digest_of(b"two"), b"two")]) is None
    await blobs.delete(digest_of(b"one"))


async def check_whole(blobs: BlobStore) -> None:
    """What can be read is what its name says."""
    for digest in await digests(blobs):
        data = await blobs.read(digest, 0, 100_000)
        assert isinstance(data, bytes) and digest_of(data) == digest


def failing(monkeypatch: pytest.MonkeyPatch, number: int, failure: Callable[[], BaseException]) -> list[str]:
    """The call with this number, of those that change the disk, fails. Returns the calls so far."""
    calls: list[str] = []

    def patch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                if name == "write":  # half of it comes to the disk
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise failure()
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("write", "fsync", "utime", "rename", "chmod"):
        patch(os, name)
    for name in ("mkdir", "unlink"):
        patch(Path, name)
    return calls


async def test_a_crash_at_every_step_leaves_whole_blobs_and_an_upload_that_goes_on(quick: Path) -> None:
    number, crashed = 0, True
    while crashed:
        number += 1
        root = quick / str(number)
        with pytest.MonkeyPatch.context() as patches:
            failing(patches, number, Crash)
            try:
                await store_all(FileBlobs(root))
                crashed = False
            except Crash:
                pass
        again = FileBlobs(root)
        await check_whole(again)
        await store_all(again)
        await check_whole(again)
        assert await digests(again) == sorted([DIGEST, digest_of(b"two")])
        await again.expire(FAR_FUTURE_MS)
        assert not [*(root / "uploads").iterdir(), *(root / "small").iterdir()]
    assert number > 20


async def test_an_error_at_every_step_is_an_answer_and_nothing_is_half_visible(quick: Path) -> None:
    number, failed = 0, True
    while failed:
        number += 1
        blobs = FileBlobs(quick / str(number))
        with pytest.MonkeyPatch.context() as patches:
            failing(patches, number, lambda: OSError(errno.ENOSPC, "No space left on device"))
            outcomes = [await send(blobs, UPLOAD, WHOLE, 2_000), await blobs.put([(digest_of(b"two"), b"two")])]
        failed = any(isinstance(outcome, BlobsUnavailable) for outcome in outcomes)
        assert all("free some space" in outcome.reason for outcome in outcomes if isinstance(outcome, BlobsUnavailable))
        await check_whole(blobs)
        assert not list((quick / str(number)).glob("small/*"))
        assert await send(blobs, UPLOAD, WHOLE, 2_000) == Stored(DIGEST, len(WHOLE))
        assert await blobs.put([(digest_of(b"two"), b"two")]) is None
        await check_whole(blobs)
    assert number > 15


async def test_bytes_are_on_the_disk_before_their_name_is(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(blobs, Upload(digest_of(b"first"), 5), b"first")
    calls = failing(monkeypatch, 0, Crash)
    await send(blobs, UPLOAD, WHOLE)
    assert "".join(name[0] for name in calls if name in ("fsync", "rename")).endswith("frf")
    order: list[str] = []
    real = disk.sync_all
    monkeypatch.setattr(files, "sync_all", lambda *given: (order.append("sync"), real(*given)))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *given: (order.append("rename"), rename(*given)))
    await blobs.put([(digest_of(b"two"), b"two")])
    assert order[0] == order[-1] == "sync" and set(order[1:-1]) == {"rename"}


WRITER = """
import asyncio, random, sys
from pathlib import Path
from roost.blobs.files import FileBlobs
from roost.ports.blobs import Stored, Upload, digest_of

async def main():
    blobs, chance = FileBlobs(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
    while True:
        data = chance.randbytes(chance.choice([0, 10, 5_000, 3_000_000]))
        upload = Upload(digest_of(data), len(data))
        for offset in range(0, len(data), 1 << 20):
            await blobs.write(upload, offset, data[offset : offset + (1 << 20)])
        assert isinstance(await blobs.finish(upload), Stored)
        print(upload.digest, flush=True)
        small = [chance.randbytes(100) for _ in range(20)]
        assert await blobs.put([(digest_of(one), one) for one in small]) is None
        print(*(digest_of(one) for one in small), flush=True)

asyncio.run(main())
"""


async def test_a_killed_writer_leaves_whole_blobs_and_all_that_it_reported(tmp_path: Path) -> None:
    reported: set[str] = set()
    for seed in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, str(seed)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(1 + seed):
            reported.update(writer.stdout.readline().split())
        writer.send_signal(signal.SIGKILL)
        reported.update(digest for line in writer.stdout for digest in line.split() if line.endswith("\n"))
        writer.wait()
        writer.stdout.close()
    blobs = FileBlobs(tmp_path)
    assert reported and await blobs.missing(sorted(reported)) == []
    page = await blobs.page()
    assert not isinstance(page, BlobsUnavailable)
    for blob in page.blobs:
        data = await blobs.read(blob.digest, 0, 8 << 20)
        assert isinstance(data, bytes) and digest_of(data) == blob.digest
    await blobs.expire(FAR_FUTURE_MS)
    assert not list((tmp_path / "uploads").iterdir()) and not list((tmp_path / "small").iterdir())


async def test_an_upload_goes_on_in_another_process_and_is_still_verified(tmp_path: Path) -> None:
    await FileBlobs(tmp_path).write(UPLOAD, 0, WHOLE[:CHUNK])
    again = FileBlobs(tmp_path)
    assert await again.begin(UPLOAD) == CHUNK
    assert await send(again, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))
    other = Upload(digest_of(b"abcdef"), 6)
    await again.write(other, 0, b"abX")
    assert not isinstance(await send(FileBlobs(tmp_path), other, b"abcdef"), Stored)


async def test_a_cancelled_write_goes_to_its_end_before_the_next(
    blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr(staging, "write_all", lambda *given: (begun.set(), go.wait(30), disk.write_all(*given)))
    first = asyncio.ensure_future(blobs.write(UPLOAD, 0, WHOLE[:CHUNK]))
    await asyncio.to_thread(begun.wait, 30)
    begun.clear()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.ensure_future(blobs.write(UPLOAD, CHUNK, WHOLE[CHUNK:]))
    assert await blobs.begin(UPLOAD) == 0  # a thread later, the second has not begun
    assert not begun.is_set()
    go.set()
    assert await second == len(WHOLE)
    assert await blobs.finish(UPLOAD) == Stored(DIGEST, len(WHOLE))


async def test_a_disk_that_takes_a_part_is_asked_again(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
    assert await blobs.write(UPLOAD, 0, WHOLE) == len(WHOLE)
    assert await blobs.finish(UPLOAD) == Stored(DIGEST, len(WHOLE))


async def test_files_and_folders_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        blobs = FileBlobs(tmp_path / "deep" / "root")
        await store_all(blobs)
        await blobs.write(Upload(digest_of(b"ab"), 2), 0, b"a")
    finally:
        os.umask(before)
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (tmp_path / "deep").rglob("*")}
    assert modes == {(True, 0o700), (False, 0o400), (False, 0o600)}
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


async def test_the_number_of_uploads_is_bounded(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "UPLOADS_MAX", 2)
    uploads = [Upload(digest_of(data), 2) for data in (b"ab", b"cd", b"ef")]
    assert [await blobs.write(upload, 0, b"a") for upload in uploads[:2]] == [1, 1]
    outcome = await blobs.write(uploads[2], 0, b"e")
    assert isinstance(outcome, BlobsUnavailable) and "2 uploads" in outcome.reason
    assert await blobs.write(uploads[0], 1, b"b") == 2
    assert await blobs.finish(uploads[0]) == Stored(uploads[0].digest, 2)
    assert await blobs.write(uploads[2], 0, b"e") == 1


async def test_a_link_in_the_place_of_a_blob_is_not_followed(tmp_path: Path, blobs: FileBlobs) -> None:
    (tmp_path / "secret").write_text("secret")
    await send(blobs, UPLOAD, WHOLE)
    name = DIGEST.removeprefix("sha256:")
    path = tmp_path / "root" / "sha256" / name[:2] / name
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    assert isinstance(await blobs.read(DIGEST, 0, 10), BlobsUnavailable)


async def test_a_foreign_file_is_no_blob(tmp_path: Path, blobs: FileBlobs) -> None:
    await send(blobs, UPLOAD, WHOLE)
    (tmp_path / "root" / "sha256" / DIGEST.removeprefix("sha256:")[:2] / "notes.txt").write_text("mine")
    assert await digests(blobs) == [DIGEST]


async def test_the_loop_is_free_while_a_disk_hangs(
    blobs: FileBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty pipe stands for the disk."""
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (loop.call_soon_threadsafe(go.set), os.read(reading, 1), real(descriptor))
    )
    sending = asyncio.ensure_future(send(blobs, UPLOAD, WHOLE))
    await go.wait()
    assert not sending.done()
    os.write(writing, b"....................")
    assert await sending == Stored(DIGEST, len(WHOLE))
    os.close(reading)
    os.close(writing)
