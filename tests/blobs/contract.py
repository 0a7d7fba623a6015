"""What every blob store promises. Its test file inherits from BlobsContract and gives the fixture `blobs`."""

import asyncio
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roost.ports.blobs import (
    BLOB_BYTES_MAX,
    CHUNK_BYTES_MAX,
    DIGESTS_MAX,
    PAGE_MAX,
    BlobFailure,
    BlobStore,
    Incomplete,
    Stored,
    Upload,
    WrongBytes,
    digest_of,
    space_used,
)

WHOLE = bytes(range(256)) * 20
DIGEST = digest_of(WHOLE)
UPLOAD = Upload(DIGEST, len(WHOLE), "ann")
CHUNK = 1_000
HOUR_MS = 3_600_000

WRONG_NAMES = [
    "",
    "sha256:",
    "a" * 64,
    f"sha256:{'g' * 64}",
    f"sha256:{'A' * 64}",
    f"sha256:{'a' * 63}",
    f"md5:{'a' * 32}",
]
WRONG_NAMES += [f"{DIGEST}\n", f" {DIGEST}", f"{DIGEST}/../x", "sha256:../../etc/passwd"]


async def send(blobs: BlobStore, upload: Upload, data: bytes, chunk: int = CHUNK) -> object:
    """As a client does: from where the store wants it, in chunks."""
    offset = await blobs.begin(upload)
    while isinstance(offset, int) and offset < len(data):
        offset = await blobs.write(upload, offset, data[offset : offset + chunk])
    return offset if isinstance(offset, BlobFailure) else await blobs.finish(upload)


async def digests(blobs: BlobStore) -> list[str]:
    page = await blobs.page()
    assert not isinstance(page, BlobFailure) and page.after is None
    return [blob.digest for blob in page.blobs]


class BlobsContract:
    @pytest.fixture
    def blobs(self) -> BlobStore:
        raise NotImplementedError

    async def test_an_upload_is_readable_when_it_is_finished_and_not_before(self, blobs: BlobStore) -> None:
        assert await blobs.begin(UPLOAD) == 0
        assert await blobs.write(UPLOAD, 0, WHOLE[:CHUNK]) == CHUNK
        assert await blobs.write(UPLOAD, CHUNK, WHOLE[CHUNK:]) == len(WHOLE)
        assert await blobs.read(DIGEST, 0, 10) is None
        assert await blobs.size(DIGEST) is None
        assert await blobs.missing([DIGEST]) == [DIGEST]
        assert await digests(blobs) == []
        assert await blobs.finish(UPLOAD) == Stored(DIGEST, len(WHOLE))
        assert await blobs.read(DIGEST, 0, 10_000) == WHOLE
        assert await blobs.size(DIGEST) == len(WHOLE)
        assert await blobs.sizes([digest_of(b"other"), DIGEST]) == [None, len(WHOLE)]
        assert await blobs.missing([DIGEST]) == []
        assert await digests(blobs) == [DIGEST]

    async def test_ranges(self, blobs: BlobStore) -> None:
        await blobs.put([(DIGEST, WHOLE)])
        for offset, limit in ((0, 1), (5, 7), (len(WHOLE) - 1, 1), (len(WHOLE) - 1, 100), (0, 0)):
            assert await blobs.read(DIGEST, offset, limit) == WHOLE[offset : offset + limit]
        assert await blobs.read(DIGEST, len(WHOLE), 1) == b""
        assert await blobs.read(DIGEST, len(WHOLE) + 100, 1) == b""
        assert await blobs.read(digest_of(b"other"), 0, 0) is None

    async def test_an_interrupted_upload_goes_on_at_its_offset(self, blobs: BlobStore) -> None:
        await blobs.write(UPLOAD, 0, WHOLE[:CHUNK])
        assert await blobs.begin(UPLOAD) == CHUNK
        assert await blobs.finish(UPLOAD) == Incomplete(
            f"{len(WHOLE)} bytes were announced, {CHUNK} are here; send the rest", CHUNK
        )
        assert await blobs.begin(UPLOAD) == CHUNK
        assert await send(blobs, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))

    async def test_bytes_that_are_there_are_skipped_and_a_gap_is_not_kept(self, blobs: BlobStore) -> None:
        await blobs.write(UPLOAD, 0, WHOLE[:100])
        assert await blobs.write(UPLOAD, 0, WHOLE[:100]) == 100
        assert await blobs.write(UPLOAD, 50, WHOLE[50:150]) == 150
        assert await blobs.write(UPLOAD, 151, WHOLE[151:200]) == 150
        assert await blobs.write(UPLOAD, 0, b"") == 150
        assert await send(blobs, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))
        assert await blobs.read(DIGEST, 0, 10_000) == WHOLE

    async def test_wrong_bytes_leave_nothing(self, blobs: BlobStore) -> None:
        wrong = b"x" + WHOLE[1:]
        outcome = await send(blobs, UPLOAD, wrong)
        assert isinstance(outcome, WrongBytes)
        assert digest_of(wrong) in outcome.reason
        assert await digests(blobs) == []
        assert await blobs.begin(UPLOAD) == 0
        assert await blobs.missing([DIGEST, digest_of(wrong)]) == [DIGEST, digest_of(wrong)]
        assert await send(blobs, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))

    async def test_more_bytes_than_announced_leave_nothing(self, blobs: BlobStore) -> None:
        await blobs.write(UPLOAD, 0, WHOLE)
        assert isinstance(await blobs.write(UPLOAD, len(WHOLE), b"x"), WrongBytes)
        assert await blobs.begin(UPLOAD) == 0
        assert isinstance(await blobs.finish(UPLOAD), Incomplete)
        assert await digests(blobs) == []

    async def test_fewer_bytes_than_the_digest_has_are_refused(self, blobs: BlobStore) -> None:
        short = Upload(DIGEST, 100)
        assert isinstance(await send(blobs, short, WHOLE[:100]), WrongBytes)
        assert await digests(blobs) == []

    async def test_finish_can_be_repeated(self, blobs: BlobStore) -> None:
        await send(blobs, UPLOAD, WHOLE)
        assert await blobs.finish(UPLOAD) == Stored(DIGEST, len(WHOLE))
        assert await blobs.begin(UPLOAD) == Stored(DIGEST, len(WHOLE))

    async def test_the_empty_blob(self, blobs: BlobStore) -> None:
        empty = Upload(digest_of(b""), 0)
        assert await blobs.begin(empty) == 0
        assert await blobs.finish(empty) == Stored(empty.digest, 0)
        assert await blobs.read(empty.digest, 0, 10) == b""
        assert await blobs.size(empty.digest) == 0

    async def test_uploads_of_two_owners_share_no_bytes(self, blobs: BlobStore) -> None:
        other = Upload(DIGEST, len(WHOLE), "bob")
        await blobs.write(other, 0, b"spoiled")
        assert await blobs.begin(UPLOAD) == 0
        assert await send(blobs, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))
        assert await blobs.begin(other) == Stored(DIGEST, len(WHOLE))

    async def test_two_uploads_of_a_digest_at_once(self, blobs: BlobStore) -> None:
        uploads = [UPLOAD, UPLOAD, Upload(DIGEST, len(WHOLE), "bob")]
        outcomes = await asyncio.gather(*(send(blobs, upload, WHOLE, 100) for upload in uploads))
        assert outcomes == [Stored(DIGEST, len(WHOLE))] * 3
        assert await blobs.read(DIGEST, 0, 10_000) == WHOLE
        assert await digests(blobs) == [DIGEST]

    async def test_an_abandoned_upload_begins_again(self, blobs: BlobStore) -> None:
        await blobs.write(UPLOAD, 0, WHOLE[:CHUNK])
        assert await blobs.abandon(UPLOAD) is None
        assert await blobs.abandon(UPLOAD) is None
        assert await blobs.begin(UPLOAD) == 0

    async def test_uploads_without_a_write_expire(self, blobs: BlobStore) -> None:
        now_ms = time.time_ns() // 1_000_000
        await blobs.write(UPLOAD, 0, WHOLE[:CHUNK])
        assert await blobs.expire(now_ms - HOUR_MS) == 0
        assert await blobs.begin(UPLOAD) == CHUNK
        assert await blobs.expire(now_ms + HOUR_MS) == 1
        assert await blobs.begin(UPLOAD) == 0
        # What was hashed before it expired does not count for what is sent now.
        assert isinstance(await send(blobs, UPLOAD, b"x" * len(WHOLE)), WrongBytes)

    async def test_a_batch_of_small_blobs(self, blobs: BlobStore) -> None:
        contents = [(digest_of(data), data) for data in (b"", b"one", b"two", WHOLE)]
        assert await blobs.put(contents) is None
        assert await blobs.put(contents + contents) is None
        assert await blobs.missing([digest for digest, _ in contents]) == []
        assert [await blobs.read(digest, 0, 10_000) for digest, _ in contents] == [data for _, data in contents]
        assert await digests(blobs) == sorted(digest for digest, _ in contents)

    async def test_a_batch_is_read_in_order_and_bounded(self, blobs: BlobStore) -> None:
        large = bytes(CHUNK_BYTES_MAX - 10)
        contents = [(digest_of(data), data) for data in (b"one", b"", b"two", large, b"last one")]
        await blobs.put(contents[:3] + contents[4:])
        await blobs.put(contents[3:4])
        absent = digest_of(b"absent")
        assert await blobs.get([contents[0][0], absent, contents[1][0], contents[0][0]]) == [b"one", None, b"", b"one"]
        found = await blobs.get([digest for digest, _ in contents])
        assert isinstance(found, list) and found[3] == large and len(found) == 4  # the last one does not fit
        assert await blobs.get([]) == []

    async def test_a_batch_begins_with_nothing_if_its_first_blob_is_too_large(self, blobs: BlobStore) -> None:
        data = bytes(CHUNK_BYTES_MAX + 1)
        upload = Upload(digest_of(data), len(data))
        assert await send(blobs, upload, data, CHUNK_BYTES_MAX) == Stored(upload.digest, upload.size)
        assert await blobs.get([upload.digest]) == []

    async def test_one_wrong_content_and_none_of_the_batch_is_kept(self, blobs: BlobStore) -> None:
        outcome = await blobs.put([(digest_of(b"one"), b"one"), (digest_of(b"two"), b"three")])
        assert isinstance(outcome, WrongBytes)
        assert await blobs.missing([digest_of(b"one"), digest_of(b"two")]) == [digest_of(b"one"), digest_of(b"two")]

    async def test_deleted_is_gone_and_may_come_again(self, blobs: BlobStore) -> None:
        await blobs.put([(DIGEST, WHOLE), (digest_of(b"stays"), b"stays")])
        assert await blobs.delete(DIGEST) is None
        assert await blobs.delete(DIGEST) is None
        assert await blobs.read(DIGEST, 0, 10) is None
        assert await digests(blobs) == [digest_of(b"stays")]
        assert await send(blobs, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))

    async def test_pages_have_every_blob_once_with_size_and_age(self, blobs: BlobStore) -> None:
        contents = {digest_of(data): data for data in (b"x" * size for size in range(25))}
        before_ms = time.time_ns() // 1_000_000
        await blobs.put(list(contents.items()))
        found, after = [], ""
        while True:
            page = await blobs.page(after, 10)
            assert len(page.blobs) <= 10
            found += page.blobs
            if page.after is None:
                break
            after = page.after
        assert [(blob.digest, blob.size) for blob in found] == sorted(
            (digest, len(data)) for digest, data in contents.items()
        )
        assert all(abs(blob.stored_ms - before_ms) < HOUR_MS for blob in found)
        assert await space_used(blobs) == sum(range(25))

    async def test_missing_keeps_the_order_of_the_question(self, blobs: BlobStore) -> None:
        await blobs.put([(digest_of(b"2"), b"2")])
        asked = [digest_of(b"3"), digest_of(b"2"), digest_of(b"1"), digest_of(b"3")]
        assert await blobs.missing(asked) == [asked[0], asked[2], asked[3]]
        assert await blobs.missing([]) == []

    @pytest.mark.parametrize("name", WRONG_NAMES)
    async def test_a_name_that_is_no_digest_is_refused(self, blobs: BlobStore, name: str) -> None:
        for ask in (
            lambda: blobs.missing([name]),
            lambda: blobs.size(name),
            lambda: blobs.read(name, 0, 1),
            lambda: blobs.put([(name, b"")]),
            lambda: blobs.get([name]),
            lambda: blobs.delete(name),
            lambda: blobs.begin(Upload(name, 1)),
            lambda: blobs.write(Upload(name, 1), 0, b"x"),
            lambda: blobs.finish(Upload(name, 1)),
            lambda: blobs.abandon(Upload(name, 1)),
            *([lambda: blobs.page(name)] if name else []),
        ):
            with pytest.raises(ValueError, match="digest"):
                await ask()

    async def test_numbers_out_of_bounds_are_refused(self, blobs: BlobStore) -> None:
        for ask in (
            lambda: blobs.read(DIGEST, -1, 1),
            lambda: blobs.read(DIGEST, 0, -1),
            lambda: blobs.read(DIGEST, 0, CHUNK_BYTES_MAX + 1),
            lambda: blobs.write(UPLOAD, -1, b"x"),
            lambda: blobs.write(UPLOAD, 0, bytes(CHUNK_BYTES_MAX + 1)),
            lambda: blobs.put([(DIGEST, bytes(CHUNK_BYTES_MAX + 1))]),
            lambda: blobs.begin(Upload(DIGEST, -1)),
            lambda: blobs.begin(Upload(DIGEST, BLOB_BYTES_MAX + 1)),
            lambda: blobs.page("", 0),
            lambda: blobs.page("", PAGE_MAX + 1),
            lambda: blobs.missing([DIGEST] * (DIGESTS_MAX + 1)),
        ):
            with pytest.raises(ValueError):
                await ask()

    # Every example has bytes of its own, and every store inherits the test: both are meant.
    @settings(
        max_examples=30,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        whole=st.binary(min_size=1, max_size=50),
        sends=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20),
    )
    async def test_however_parts_are_sent_the_offset_is_what_is_kept(
        self, blobs: BlobStore, whole: bytes, sends: list[tuple[int, int]]
    ) -> None:
        upload = Upload(digest_of(whole), len(whole))
        await blobs.abandon(upload)
        await blobs.delete(upload.digest)
        kept = 0
        for offset, length in sends:
            data = whole[offset : offset + length]
            if offset <= min(kept, len(whole)):
                kept = max(kept, offset + len(data))
            if offset + len(data) <= len(whole):
                assert await blobs.write(upload, offset, data) == kept
        assert await send(blobs, upload, whole) == Stored(upload.digest, len(whole))
        assert await blobs.read(upload.digest, 0, 100) == whole
