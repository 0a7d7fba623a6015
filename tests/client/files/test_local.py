"""What of this machine is sent: which paths it gets, and what is refused."""

import os
from pathlib import Path

import pytest

from roost.client.errors import CannotSend
from roost.client.files.local import Local, find_local
from roost.files.manifest import FileEntry, FolderEntry, LinkEntry
from roost.ports.blobs import digest_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a").write_text("one")
    (tmp_path / "data" / "link").symlink_to("deep/a")
    (tmp_path / "tool").write_text("two")
    return tmp_path


def paths(found: object) -> list[str]:
    return [entry.path for entry in found.manifest.entries]  # type: ignore[attr-defined]


def test_a_directory_is_its_content(tree: Path) -> None:
    found = find_local(tree / "data")
    assert paths(found) == ["deep", "deep/a", "link"]
    assert found.places == {digest_of(b"one"): Local(tree / "data", found.manifest.entries[1])}  # type: ignore[arg-type]


def test_a_link_to_a_directory_is_followed_and_links_inside_are_not(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to("data")
    found = find_local(tmp_path / "here")
    assert paths(found) == ["deep", "deep/a", "link"]
    assert {place.root for place in found.places.values()} == {tmp_path / "data"}


def test_a_file_has_its_name(tree: Path) -> None:
    (tree / "latest").symlink_to("tool")
    found = find_local(str(tree / "latest"))
    assert paths(found) == ["latest"]
    assert [(local.root, local.file.path) for local in found.places.values()] == [(tree, "tool")]


def test_several_paths_have_their_names(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "data")
    assert paths(find_local(["../tool", "."])) == ["data", "data/deep", "data/deep/a", "data/link", "tool"]
    with pytest.raises(CannotSend, match="two paths that are sent are called tool"):
        find_local(["../tool", tree / "tool"])


def test_paths_get_the_places_that_are_given(tree: Path) -> None:
    found = find_local({"": tree / "data", "in/x/run": tree / "tool", "in/copy": tree / "data"})
    assert paths(found) == [
        "deep", "deep/a", "in", "in/copy", "in/copy/deep", "in/copy/deep/a", "in/copy/link", "in/x", "in/x/run", "link",
    ]  # fmt: skip
    kinds = {entry.path: type(entry) for entry in found.manifest.entries}
    assert kinds["in/x"] is FolderEntry and kinds["in/x/run"] is FileEntry and kinds["in/copy/link"] is LinkEntry
    assert len(found.places) == 2


def test_two_files_for_one_place_are_refused(tree: Path) -> None:
    with pytest.raises(CannotSend, match="^deep/a: is in two inputs"):
        find_local({"": tree / "data", "deep/a": tree / "tool"})
    with pytest.raises(CannotSend, match="^deep/a: is a folder in one input and a file in another"):
        find_local({"": tree / "data", "deep/a/b": tree / "tool"})


def test_what_cannot_be_sent_is_named(tree: Path) -> None:
    for path, message in (
        (tree / "nothing", "nothing: No such file"),
        (tree / "tool" / "x", "tool/x: Not a directory"),
    ):
        with pytest.raises(CannotSend, match=message) as caught:
            find_local(path)
        assert caught.value.path == str(path)
    os.mkfifo(tree / "data" / "pipe")
    with pytest.raises(CannotSend, match="data/pipe: is a pipe"):
        find_local(tree / "data")
    (tree / "data" / "pipe").unlink()
    (tree / "data" / "out").symlink_to("/etc/passwd")
    with pytest.raises(CannotSend, match="data/out: the link to '/etc/passwd' leaves the directory"):
        find_local([tree / "data"])
