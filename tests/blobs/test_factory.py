"""Blobs by their setting: each form is read, each mistake is refused, and projects share nothing."""

import gc
from pathlib import Path

import pytest

from roost.blobs import factory
from roost.blobs.factory import FilesPlace, S3Place, memory_blobs, open_place, read_place
from roost.blobs.s3 import S3Blobs
from roost.model.errors import Invalid
from roost.ports.blobs import Stored, Upload, digest_of
from tests.blobs.contract import DIGEST, UPLOAD, WHOLE, send
from tests.components.seaweedfs import ACCESS_KEY, SECRET_KEY, shared_server

PLACES = [
    ("/srv/blobs", FilesPlace(Path("/srv/blobs"))),
    ("s3://bucket", S3Place("bucket")),
    ("s3://bucket/", S3Place("bucket")),
    ("s3://bucket/a/b/", S3Place("bucket", "a/b")),
    ("s3://bucket/a?region=eu-1", S3Place("bucket", "a", region="eu-1")),
    ("s3://b/a?endpoint=http%3A//127.0.0.1:9000&region=x", S3Place("b", "a", "http://127.0.0.1:9000", "x")),
    ("s3://b/a?links=yes", S3Place("b", "a")),
    ("s3://b/a?links=no&region=x", S3Place("b", "a", region="x", links=False)),
    ("s3://b/a?endpoint=https://s3.example.org", S3Place("b", "a", "https://s3.example.org")),
]
MISTAKES = [
    "",
    "\0",
    "gs://bucket/a",
    "s3://",
    "s3:///a",
    "s3://key:secret@bucket/a",
    "s3://bucket/a#b",
    "s3://[bucket/a",
    "s3://bucket/a?endpoint=localhost:9000",
    "s3://bucket/a?regoin=eu-1",
    "s3://bucket/a?region=a&region=b",
    "s3://bucket/a?links=maybe",
]


@pytest.mark.parametrize("setting, place", PLACES)
def test_a_setting_names_a_place(setting: str, place: object) -> None:
    assert read_place(setting) == place


@pytest.mark.parametrize("setting", MISTAKES)
def test_a_mistake_is_refused_and_no_key_is_repeated(setting: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_place(setting)
    assert refused.value.path == "blobs"
    assert "secret" not in str(refused.value)


async def test_projects_share_nothing_and_keep_their_files_apart(tmp_path: Path) -> None:
    root = open_place("", tmp_path).blobs
    assert (root.describe(), root.is_shared) == (str(tmp_path / "blobs"), False)
    assert await root.project("a").put([(DIGEST, WHOLE)]) is None
    assert await root.project("a").missing([DIGEST]) == []
    assert await root.project("b").missing([DIGEST]) == [DIGEST]
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["a"]


async def test_a_directory_that_was_chosen_counts_as_shared(tmp_path: Path) -> None:
    assert open_place(str(tmp_path / "nfs"), tmp_path).blobs.is_shared


@pytest.mark.parametrize("project", ["", "..", "a/b", ".hidden", "a" * 1_000])
def test_only_names_of_projects_are_folders(project: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        open_place("", tmp_path).blobs.project(project)


async def test_a_store_that_is_used_is_never_opened_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "PROJECTS_MAX", 2)
    root = open_place("", tmp_path).blobs
    used = root.project("a")
    for name in "bcd":
        root.project(name)
    gc.collect()
    assert root.project("a") is used
    del used
    for name in "bcd":
        root.project(name)
    gc.collect()
    assert len(root._used) == 2, "the others are closed"


async def test_blobs_in_memory_stay() -> None:
    root = memory_blobs()
    await root.project("a").put([(DIGEST, WHOLE)])
    assert await root.project("a").missing([DIGEST]) == []
    assert await root.project("b").missing([DIGEST]) == [DIGEST]


async def test_projects_in_s3_have_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    endpoint = shared_server().endpoint
    root = open_place(f"s3://roost-tests/{tmp_path.name}?endpoint={endpoint}", tmp_path).blobs
    assert root.is_shared and root.describe() == f"s3://roost-tests/{tmp_path.name} at {endpoint}"
    one, other = root.project("one"), root.project("other")
    assert isinstance(one, S3Blobs)
    assert await send(one, UPLOAD, WHOLE) == Stored(DIGEST, len(WHOLE))
    assert await one.missing([DIGEST]) == []
    assert await other.missing([DIGEST]) == [DIGEST]
    small = Upload(digest_of(b"x"), 2)
    assert await other.write(small, 0, b"x") == 1
    assert await one.begin(small) == 0, "uploads are also apart"


async def test_the_projects_with_blobs_are_found_whatever_else_is_there(tmp_path: Path) -> None:
    root = open_place("", tmp_path).blobs
    assert await root.projects() == []
    for name in ("web", "api"):
        assert await root.project(name).put([(digest_of(b"x"), b"x")]) is None
    (tmp_path / "blobs" / "logs.d" / "sha256").mkdir(parents=True)
    (tmp_path / "blobs" / "owner+object").write_bytes(b"")
    assert await root.projects() == ["api", "web"]
