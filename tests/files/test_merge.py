"""Sets of files that become one directory."""

import pytest

from roost.files.manifest import FileEntry, FolderEntry, LinkEntry, Manifest
from roost.files.merge import InputPart, merge
from roost.model.errors import Invalid

DIGEST = "sha256:" + "0" * 64


def file(path: str) -> FileEntry:
    return FileEntry(path, 0o644, 1, DIGEST)


def test_sets_share_folders() -> None:
    first = Manifest((FolderEntry("d", 0o700), file("d/a"), LinkEntry("l", "d/a")))
    second = Manifest((FolderEntry("d", 0o755), file("d/b")))
    assert merge([InputPart("", first), InputPart("", second), InputPart("x/y", first)]).entries == (
        FolderEntry("d", 0o700),
        file("d/a"),
        file("d/b"),
        LinkEntry("l", "d/a"),
        FolderEntry("x", 0o755),
        FolderEntry("x/y", 0o755),
        FolderEntry("x/y/d", 0o700),
        file("x/y/d/a"),
        LinkEntry("x/y/l", "d/a"),
    )


def test_only_the_files_that_match_come_with_their_folders() -> None:
    whole = Manifest((FolderEntry("d", 0o755), file("d/a.txt"), file("d/b.bin"), file("e")))
    assert merge([InputPart("in", whole, "d/*.txt")]).entries == (
        FolderEntry("in", 0o755),
        FolderEntry("in/d", 0o755),
        file("in/d/a.txt"),
    )
    with pytest.raises(Invalid, match="matches none/\\*"):
        merge([InputPart("in", whole, "none/*")])


def test_an_optional_input_may_have_no_file_that_matches() -> None:
    empty = InputPart("in", Manifest((file("a"),)), "none/*", is_optional=True)
    assert merge([empty, InputPart("", Manifest((file("b"),)))]).entries == (file("b"),)


def test_of_two_files_with_one_path_the_later_one_stays_if_it_may() -> None:
    old = Manifest((FolderEntry("d", 0o700), file("d/a"), LinkEntry("d/b", "a"), file("e")))
    new = Manifest((FolderEntry("d", 0o755), FileEntry("d/a", 0o755, 1, DIGEST), file("d/b")))
    assert merge([InputPart("", old), InputPart("", new)], replace=True).entries == (
        FolderEntry("d", 0o700), FileEntry("d/a", 0o755, 1, DIGEST), file("d/b"), file("e"),
    )  # fmt: skip
    for parts in ((Manifest((file("d"),)), new), (new, Manifest((file("d"),)))):
        with pytest.raises(Invalid, match="^d: is"):
            merge([InputPart("", part) for part in parts], replace=True)


@pytest.mark.parametrize(
    ("one", "two", "path"), [("a", "a", "a"), ("d/a", "d/a", "d/a"), ("d", "d/a", "d"), ("d/a", "d", "d")]
)
def test_a_path_in_two_inputs_is_an_error_that_names_it(one: str, two: str, path: str) -> None:
    def part(path: str) -> InputPart:
        folder, _, name = path.rpartition("/")
        return InputPart(folder, Manifest((file(name),)))

    with pytest.raises(Invalid) as error:
        merge([part(one), part(two)])
    assert error.value.path == path
