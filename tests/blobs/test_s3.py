"""The blobs in S3 keep the contract on a real server; a server that fails is retried, then reported."""

import asyncio
import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from roost.blobs import bucket, s3
from roost.blobs.bucket import Bucket, S3Config
from roost.blobs.s3 import S3Blobs
from roost.ports.blobs import BlobStore, BlobsUnavailable, Incomplete, Stored, Upload, WrongBytes, digest_of
from tests.blobs.contract import CHUNK, DIGEST, HOUR_MS, UPLOAD, WHOLE, BlobsContract, digests, send
from tests.components.seaweedfs import bucket_of, config_of, shared_server


@pytest.fixture
async def blobs(tmp_path: Path) -> S3Blobs:
    blobs = S3Blobs(bucket_of(shared_server()), tmp_path)
    await blobs.put([(DIGEST, WHOLE)])  # makes the bucket
    await blobs.delete(DIGEST)
    return blobs


class TestS3(BlobsContract):
    @pytest.fixture
    def blobs(self, blobs: S3Blobs) -> BlobStore:
        return blobs


async def request(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """What a client does with a link."""

    def ask() -> tuple[int, bytes]:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=30)
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    return await asyncio.to_thread(ask)


async def test_a_large_blob_is_sent_in_parts(blobs: S3Blobs) -> None:
    data = bytes(range(256)) * (20 << 12)
    upload = Upload(digest_of(data), len(data))
    assert await send(blobs, upload, data, 1 << 20) == Stored(upload.digest, len(data))
    assert await blobs.read(upload.digest, len(data) - 100, 200) == data[-100:]
    assert await blobs.read(upload.digest, 8 << 20, 8 << 20) == data[8 << 20 : 16 << 20]


async def test_a_link_reads_a_blob_and_a_range(blobs: S3Blobs) -> None:
    await blobs.put([(DIGEST, WHOLE)])
    link = await blobs.download_link(DIGEST, 60)
    assert isinstance(link, str)
    assert await request("GET", link) == (200, WHOLE)
    assert await request("GET", link, Range="bytes=5-9") == (206, WHOLE[5:10])
    assert (await request("PUT", link, b"other"))[0] == 403
    assert await blobs.read(DIGEST, 0, 10_000) == WHOLE


async def test_what_a_link_brought_is_a_blob_when_it_is_verified(blobs: S3Blobs) -> None:
    link = await blobs.upload_link(UPLOAD, 60)
    assert isinstance(link, str)
    assert isinstance(await blobs.adopt(UPLOAD), Incomplete)
    assert (await request("PUT", link, WHOLE))[0] == 200
    assert await digests(blobs) == []
    assert await blobs.adopt(UPLOAD) == Stored(DIGEST, len(WHOLE))
    assert await blobs.adopt(UPLOAD) == Stored(DIGEST, len(WHOLE))
    assert await blobs.read(DIGEST, 0, 10_000) == WHOLE
    assert await blobs.expire(time.time_ns() // 1_000_000 + HOUR_MS) == 0  # nothing else is left


@pytest.mark.parametrize("wrong", [b"x" + WHOLE[1:], WHOLE[:-1], WHOLE + b"x", b""])
async def test_wrong_bytes_of_a_link_leave_nothing(blobs: S3Blobs, wrong: bytes) -> None:
    link = await blobs.upload_link(UPLOAD, 60)
    assert isinstance(link, str)
    await request("PUT", link, wrong)
    assert isinstance(await blobs.adopt(UPLOAD), WrongBytes)
    assert await digests(blobs) == []
    assert isinstance(await blobs.adopt(UPLOAD), Incomplete)


@pytest.mark.parametrize(("sent", "outcome"), [(WHOLE, Stored), (WHOLE[:-1], WrongBytes)])
async def test_calls_for_one_upload_at_once_have_one_outcome(blobs: S3Blobs, sent: bytes, outcome: type) -> None:
    link = await blobs.upload_link(UPLOAD, 60)
    assert isinstance(link, str)
    await request("PUT", link, sent)
    outcomes = await asyncio.gather(*(blobs.adopt(UPLOAD) for _ in range(8)))
    assert len(set(outcomes)) == 1 and isinstance(outcomes[0], outcome)
    assert await blobs.expire(time.time_ns() // 1_000_000 + HOUR_MS) == 0  # nothing else is left


async def test_bytes_that_change_after_they_were_verified_are_not_adopted(
    blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await blobs.upload_link(UPLOAD, 60)
    assert isinstance(link, str)
    await request("PUT", link, WHOLE)
    verify = blobs._verify

    async def verify_and_change(key: str, upload: Upload) -> WrongBytes | None:
        outcome = await verify(key, upload)
        await request("PUT", link, b"changed")
        return outcome

    monkeypatch.setattr(blobs, "_verify", verify_and_change)
    assert await blobs.adopt(UPLOAD) == Stored(DIGEST, len(WHOLE))
    assert await blobs.read(DIGEST, 0, 10_000) == WHOLE


async def test_an_unused_link_expires_with_its_upload(blobs: S3Blobs) -> None:
    link = await blobs.upload_link(UPLOAD, 60)
    assert isinstance(link, str)
    await request("PUT", link, WHOLE)
    assert await blobs.expire(time.time_ns() // 1_000_000 - HOUR_MS) == 0
    assert await blobs.expire(time.time_ns() // 1_000_000 + HOUR_MS) == 1
    assert isinstance(await blobs.adopt(UPLOAD), Incomplete)


async def test_a_blob_too_large_for_one_put_has_no_link(blobs: S3Blobs) -> None:
    assert await blobs.upload_link(Upload(DIGEST, s3.LINK_BYTES_MAX + 1), 60) is None


async def test_refused_credentials_say_what_to_do(blobs: S3Blobs, tmp_path: Path) -> None:
    refused = S3Blobs(bucket_of(shared_server(), secret_key="wrong"), tmp_path / "other")
    await refused.write(UPLOAD, 0, WHOLE)
    for outcome in (
        await refused.size(DIGEST),
        await refused.read(DIGEST, 0, 1),
        await refused.missing([DIGEST]),
        await refused.put([(DIGEST, WHOLE)]),
        await refused.page(),
        await refused.finish(UPLOAD),
    ):
        assert isinstance(outcome, BlobsUnavailable) and outcome.denied, outcome
        assert "check keys" in outcome.reason and "wrong" not in outcome.reason


async def test_an_upload_survives_an_outage_of_s3(blobs: S3Blobs, tmp_path: Path) -> None:
    config = config_of(shared_server())
    down = S3Blobs(
        Bucket(S3Config("roost-tests", endpoint="http://127.0.0.1:9", access_key="key", secret_key="secret")), tmp_path
    )
    up = S3Blobs(Bucket(config), tmp_path)
    for offset in range(0, len(WHOLE), CHUNK):
        await down.write(UPLOAD, offset, WHOLE[offset : offset + CHUNK])
    outcome = await down.finish(UPLOAD)
    assert isinstance(outcome, BlobsUnavailable) and not outcome.denied
    assert await up.begin(UPLOAD) == len(WHOLE)
    assert await up.finish(UPLOAD) == Stored(DIGEST, len(WHOLE))


class Answers(BaseHTTPRequestHandler):
    """A server of S3 that fails some times, and then has no object. A status of 0: no answer at all."""

    protocol_version = "HTTP/1.1"
    failures: list[int]
    closing: threading.Event

    def do_HEAD(self) -> None:
        status = self.failures.pop(0) if self.failures else 404
        if status == 0:
            self.closing.wait(30)
            status = 404
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(failures: list[int]) -> Iterator[S3Config]:
    closing = threading.Event()
    handler = type("Handler", (Answers,), {"failures": failures, "closing": closing})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield S3Config("bucket", endpoint=endpoint, access_key="key", secret_key="secret", request_s=0.5, retry_s=10)
    finally:
        closing.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("failures", [[500], [503, 503], [503, 500, 0]])
async def test_a_failure_that_passes_is_retried(tmp_path: Path, failures: list[int]) -> None:
    with answering(failures) as config:
        assert await S3Blobs(Bucket(config), tmp_path).size(DIGEST) is None
    assert failures == []


@pytest.mark.parametrize("status", [500, 503, 0])
async def test_a_failure_that_stays_is_an_answer_after_few_retries(tmp_path: Path, status: int) -> None:
    failures = [status] * 100
    with answering(failures) as config:
        outcome = await S3Blobs(Bucket(config), tmp_path).size(DIGEST)
    assert isinstance(outcome, BlobsUnavailable)
    assert "check its address" in outcome.reason
    assert len(failures) == 100 - 1 - bucket.RETRIES_MAX


async def test_the_names_below_which_there_are_blobs_are_listed(blobs: S3Blobs) -> None:
    for name in ("web", "api"):
        assert await blobs.below(name).put([(DIGEST, WHOLE)]) is None
    found = await blobs.folders()
    assert not isinstance(found, BlobsUnavailable) and {"web", "api"} <= set(found)
    assert await blobs.below("web").folders() == ["sha256"]


async def test_a_failure_ends_all_requests_of_a_question(tmp_path: Path) -> None:
    with answering([500] * 10_000) as config:
        blobs, before = S3Blobs(Bucket(config), tmp_path), asyncio.all_tasks()
        outcome = await blobs.missing([digest_of(b"%d" % number) for number in range(200)])
        assert isinstance(outcome, BlobsUnavailable)
        assert asyncio.all_tasks() == before, "the rest would be asked for a minute"
