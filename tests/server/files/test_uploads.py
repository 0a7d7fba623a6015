"""Uploads by links: offered for large contents that begin, verified when they have arrived, and never needed."""

from pathlib import Path

import pytest

from roost.blobs.factory import open_place
from roost.files import web
from roost.ports.blobs import Stored, Upload, WrongBytes, digest_of
from roost.server.files.store import Files, ProjectFiles
from roost.server.files.uploads import LINK_BYTES_MAX, LINK_BYTES_MIN, UploadLink, take_piece
from tests.components.seaweedfs import setting_of

DATA = bytes(range(256)) * (6 << 10)
SIZE = len(DATA)
UPLOAD = Upload(digest_of(DATA), SIZE, "someone")


def project(folder: Path, setting: str) -> ProjectFiles:
    return Files(open_place(setting, folder).blobs, lambda: 0, lambda: 1).project("default")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProjectFiles:
    return project(tmp_path, setting_of(monkeypatch))


def send(link: object, data: bytes) -> None:
    assert isinstance(link, UploadLink)
    web.put(link.url, len(data), lambda at, limit: data[at : at + limit], lambda: None)


async def test_what_was_sent_to_a_link_is_a_blob_when_its_end_is_reported(files: ProjectFiles) -> None:
    send(await take_piece(files, UPLOAD, 0, b""), DATA)
    assert await files.blobs.size(UPLOAD.digest) is None
    for _ in range(2):  # the answer may have been lost
        assert await take_piece(files, UPLOAD, SIZE, b"") == Stored(UPLOAD.digest, SIZE)
    assert await files.blobs.read(UPLOAD.digest, 0, SIZE) == DATA


async def test_wrong_bytes_at_a_link_are_refused(files: ProjectFiles) -> None:
    send(await take_piece(files, UPLOAD, 0, b""), DATA[1:] + b"x")
    assert isinstance(await take_piece(files, UPLOAD, SIZE, b""), WrongBytes)
    assert await files.blobs.size(UPLOAD.digest) is None


async def test_a_link_that_was_not_used_is_no_obstacle(files: ProjectFiles) -> None:
    assert isinstance(await take_piece(files, UPLOAD, 0, b""), UploadLink)
    assert await take_piece(files, UPLOAD, SIZE, b"") == 0
    assert await take_piece(files, UPLOAD, 0, DATA[:100]) == 100
    assert await take_piece(files, UPLOAD, 0, b"") == 100, "an upload that has begun goes on as it began"
    assert await take_piece(files, UPLOAD, 100, DATA[100:]) == Stored(UPLOAD.digest, SIZE)


@pytest.mark.parametrize("size", [0, LINK_BYTES_MIN - 1, LINK_BYTES_MAX + 1])
async def test_small_and_very_large_contents_have_no_link(files: ProjectFiles, size: int) -> None:
    assert not isinstance(await take_piece(files, Upload(UPLOAD.digest, size), 0, b""), UploadLink)


async def test_an_operator_can_keep_all_bytes_on_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = project(tmp_path, setting_of(monkeypatch, "&links=no"))
    assert files.links is None
    assert await take_piece(files, UPLOAD, 0, b"") == 0
