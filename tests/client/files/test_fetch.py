"""Fetched files appear whole, replace nothing by accident, and leave nothing after a failure."""

import os
from pathlib import Path

import pytest

from roost.client import ApiError, Client
from roost.client.errors import CannotWrite
from tests.client.files.conftest import shape


@pytest.fixture
def digest(client: Client, tree: Path) -> str:
    return client.files.send(tree).digest


def test_patterns_choose_files(client: Client, digest: str, tmp_path: Path) -> None:
    got = client.files.get(digest, tmp_path / "deep" / "got", ["**/same", "tool"])
    assert [entry.path for entry in got.entries] == ["a b", "a b/ü", "a b/ü/same", "same", "tool"]
    assert sorted(shape(tmp_path / "deep" / "got")) == ["a b", "a b/ü", "a b/ü/same", "same", "tool"]


def test_without_a_match_nothing_is_made(client: Client, digest: str, tmp_path: Path) -> None:
    assert client.files.get(digest, tmp_path / "got", ["nothing-like-this"]).entries == ()
    assert not (tmp_path / "got").exists()


def test_several_sets_have_a_folder_each(client: Client, digest: str, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "tool").write_bytes((tree / "tool").read_bytes())
    sets = {str(number): digest for number in range(11)} | {"two": client.files.send(tmp_path / "two").digest}
    got = client.files.get(sets, tmp_path / "got", ["tool", "link"])
    assert len(list(got.files())) == 12
    found = {path.name: shape(path) for path in (tmp_path / "got").iterdir()}
    assert set(found) == set(sets)
    assert found["10"] == {"tool": shape(tree)["tool"], "link": "a b/ü/same"}


def test_into_a_directory_that_exists(client: Client, tree: Path, digest: str, tmp_path: Path) -> None:
    to = tmp_path / "got"
    (to / "empty").mkdir(parents=True)
    (to / "mine").write_text("stays")
    (to / "same").write_text("one")
    before = (to / "same").stat()
    client.files.get(digest, to)
    assert (to / "same").stat().st_ino == before.st_ino
    found = shape(to)
    assert found.pop("mine") == (0o644, b"stays")
    expected = shape(tree)
    assert {name for name in expected if found[name] != expected[name]} <= {"empty", "same"}  # their modes stay
    written = [path.lstat() for path in to.rglob("*")]
    client.files.get(digest, to)
    assert [path.lstat() for path in to.rglob("*")] == written


def test_other_content_is_refused_or_replaced(client: Client, tree: Path, digest: str, tmp_path: Path) -> None:
    to = tmp_path / "got"
    to.mkdir()
    (to / "tool").write_text("mine")
    with pytest.raises(CannotWrite, match="got/tool: is there already, with another content") as caught:
        client.files.get(digest, to)
    assert caught.value.path == str(to / "tool") and "--force" in caught.value.hint
    assert shape(to) == {"tool": (0o644, b"mine")}
    client.files.get(digest, to, force=True)
    assert shape(to) == shape(tree)


def test_folder_and_file_are_not_exchanged(client: Client, digest: str, tmp_path: Path) -> None:
    to = tmp_path / "got"
    (to / "tool").mkdir(parents=True)
    with pytest.raises(CannotWrite, match="tool: a file belongs here, and there is a folder"):
        client.files.get(digest, to, force=True)
    (to / "tool").rmdir()
    (to / "a b").symlink_to(tmp_path)
    with pytest.raises(CannotWrite, match="a b: a folder belongs here"):
        client.files.get(digest, to, force=True)
    with pytest.raises(CannotWrite, match="is a file, not a directory"):
        (tmp_path / "file").touch()
        client.files.get(digest, tmp_path / "file")


def test_failure_leaves_nothing(client: Client, tree: Path, digest: str, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        client.files.get(digest, tmp_path / "got", fetched=interrupt)
    (tmp_path / "there").mkdir()
    with pytest.raises(Interrupted):
        client.files.get(digest, tmp_path / "there", fetched=interrupt)
    assert sorted(os.listdir(tmp_path)) == ["there", "tree"] and os.listdir(tmp_path / "there") == []


def test_unknown_set(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ApiError) as caught:
        client.files.get("sha256:" + "0" * 64, tmp_path / "got")
    assert caught.value.status == 404 and os.listdir(tmp_path) == []


def test_progress_counts_every_byte(client: Client, tree: Path, digest: str, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    client.files.get(digest, tmp_path / "got", fetched=lambda done, total: progress.append((done, total)))
    total = (9 << 20) + 10_000 + 100 + 3
    assert progress[-1] == (total, total) and progress == sorted(progress)


def test_folder_that_cannot_be_written_to_travels(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "source" / "locked"
    source.mkdir(parents=True)
    (source / "x").write_text("x")
    source.chmod(0o555)
    digest = client.files.send(tmp_path / "source").digest
    (tmp_path / "got").mkdir()
    for to in (tmp_path / "new", tmp_path / "got"):
        client.files.get(digest, to)
        assert shape(to) == {"locked": (0o555, None), "locked/x": (0o644, b"x")}
