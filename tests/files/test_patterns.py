"""Which paths a pattern takes."""

import pytest

from roost.files.manifest import FileEntry, FolderEntry, LinkEntry, Manifest
from roost.files.patterns import chosen, matcher
from roost.ports.blobs import digest_of

PATHS = ["a", "a.txt", "b/a.txt", "b/c/a.txt", "b/c/x", "dist/app", "a\nb"]


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("a.txt", ["a.txt"]),
        ("./a.txt", ["a.txt"]),
        ("*.txt", ["a.txt"]),
        ("?", ["a", "b/a.txt", "b/c/a.txt", "b/c/x"]),  # b is a folder
        ("**", PATHS),
        ("**/*.txt", ["a.txt", "b/a.txt", "b/c/a.txt"]),
        ("b/**/a.txt", ["b/a.txt", "b/c/a.txt"]),
        ("b/**", ["b/a.txt", "b/c/a.txt", "b/c/x"]),
        ("b/*", ["b/a.txt", "b/c/a.txt", "b/c/x"]),  # b/c is a folder
        ("dist", ["dist/app"]),
        ("dist/", ["dist/app"]),
        ("**/c", ["b/c/a.txt", "b/c/x"]),
        ("[a]", []),
        ("a.t", []),
        ("axtxt", []),
        ("a?b", ["a\nb"]),
        ("*.*x*", ["a.txt"]),
        ("**/b/**/c/**/x", ["b/c/x"]),
        ("**/**/x", ["b/c/x"]),
        ("b/**/c", ["b/c/a.txt", "b/c/x"]),
    ],
)
def test_pattern(pattern: str, taken: list[str]) -> None:
    assert list(filter(matcher([pattern]), PATHS)) == taken


def test_several_patterns_take_what_one_of_them_takes() -> None:
    assert list(filter(matcher(["dist", "a"]), PATHS)) == ["a", "dist/app"]
    assert list(filter(matcher([]), PATHS)) == []


def test_no_pattern_takes_exponential_time() -> None:
    assert not matcher(["a*" * 100 + "b"])("a" * 255)
    assert not matcher(["**/a/" * 50 + "b"])("/".join("a" * 100))
    assert matcher(["**/a/" * 50 + "b"])("/".join("a" * 99 + "b"))


def test_chosen_entries_keep_their_folders() -> None:
    file, link = FileEntry("b/c/x", 0o600, 1, digest_of(b"x")), LinkEntry("b/l", "c/x")
    folders = FolderEntry("b", 0o700), FolderEntry("b/c", 0o700), FolderEntry("empty", 0o700)
    manifest = Manifest((folders[0], folders[1], file, link, folders[2]))
    assert chosen(manifest, ["**/x"]).entries == (folders[0], folders[1], file)
    assert chosen(manifest, ["b/l"]).entries == (folders[0], link)
    assert chosen(manifest, ["empty"]).entries == (folders[2],)
    assert chosen(manifest, ["nothing"]).entries == ()
