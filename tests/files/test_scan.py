"""A scan finds what travels, in one order, and refuses the rest with its path."""

import errno
import os
import random
import socket
from pathlib import Path

import pytest

from roost.files.manifest import FileEntry, FolderEntry, LinkEntry, encode
from roost.files.scan import scan, scan_file
from roost.model.errors import Invalid, TooMuch
from roost.ports.blobs import digest_of


def paths(folder: Path, **options: bool) -> list[str]:
    return [entry.path for entry in scan(folder, **options).entries]


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_entries_have_all_that_is_needed(tmp_path: Path) -> None:
    write(tmp_path, d__x="one", e="")
    (tmp_path / "d").chmod(0o750)
    (tmp_path / "d" / "x").chmod(0o4711)
    (tmp_path / "l").symlink_to("d/x")
    (tmp_path / "e").chmod(0o600)
    assert scan(tmp_path).entries == (
        FolderEntry("d", 0o750),
        FileEntry("d/x", 0o711, 3, digest_of(b"one")),
        FileEntry("e", 0o600, 0, digest_of(b"")),
        LinkEntry("l", "d/x"),
    )


def test_the_order_is_that_of_the_names_not_of_the_disk(tmp_path: Path) -> None:
    names = [f"{first}{second}" for first in "ab-." for second in "xyz"]
    manifests = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        random.Random(seed).shuffle(names)
        for name in names:
            write(folder, **{f"{name}__f": "x", f"{name}-f": "y"})
        manifests.add(encode(scan(folder)))
    assert len(manifests) == 1


def test_ignored_files_stay_behind_as_in_git(tmp_path: Path) -> None:
    write(
        tmp_path,
        dot_gitignore="*.o\nbuild/\n/top\n",
        x__dot_gitignore="!keep.o\nlocal\n",
        dot_roostignore="data\n!a.o\n",
    )
    files = {"a.o", "b.o", "c", "build__c", "x__build", "x__keep.o", "x__other.o", "x__local", "local", "top", "x__top"}
    write(tmp_path, **dict.fromkeys(files | {"data", "dot_git__HEAD", "x__dot_git"}, ""))
    found = {".gitignore", ".roostignore", "a.o", "c", "local", "x", "x/.gitignore", "x/build", "x/keep.o", "x/top"}
    assert set(paths(tmp_path)) == found
    assert ".git/HEAD" in paths(tmp_path, ignore=False) and "build/c" in paths(tmp_path, ignore=False)


def test_a_line_takes_git_in(tmp_path: Path) -> None:
    write(tmp_path, dot_roostignore="!.git/\n", dot_git__HEAD="")
    assert paths(tmp_path) == [".git", ".git/HEAD", ".roostignore"]


def test_pipes_sockets_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "pipe")
    with pytest.raises(Invalid, match="^d/pipe: is a pipe"):
        scan(tmp_path)
    (tmp_path / "d" / "pipe").unlink()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(Invalid, match="^socket: is a socket"):
            scan(tmp_path)
    (tmp_path / "socket").unlink()
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", 0o600 | 0o020000, os.makedev(1, 3))
        with pytest.raises(Invalid, match="^null: is a device"):
            scan(tmp_path)


@pytest.mark.parametrize(
    ("target", "message"), [("/etc/passwd", "leaves"), ("../x", "leaves"), ("l/..", "links"), ("d/up/../..", "leaves")]
)
def test_links_that_leave_are_refused(tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "up").symlink_to("..")
    (tmp_path / "l").symlink_to(target)
    with pytest.raises(Invalid, match=f"^l: .*{message}"):
        scan(tmp_path)


def test_names_that_cannot_travel_are_refused(tmp_path: Path) -> None:
    for name, shown in ((b"a\nb", r"'a\\nb'"), (b"a\xff", r"'a\\udcff'")):
        path = os.fsencode(tmp_path) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        with pytest.raises(Invalid, match=shown):
            scan(tmp_path)
        os.unlink(path)


def test_bounds_name_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="1234")
    with pytest.raises(TooMuch, match="^a: the files have more than 3 bytes"):
        scan(tmp_path, bytes_max=3)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(TooMuch, match="^sparse: the files have more than"):
        scan(tmp_path)
    (tmp_path / "sparse").unlink()
    monkeypatch.setattr("roost.files.scan.ENTRIES_MAX", 2)
    write(tmp_path, b="", c="")
    with pytest.raises(TooMuch, match="more than 2 files"):
        scan(tmp_path)
    monkeypatch.undo()
    deep = tmp_path
    for _ in range(101):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with pytest.raises(Invalid, match="100 folders deep"):
        scan(tmp_path)


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a task may do while its outputs are collected."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    root = tmp_path / "root"
    write(root, d__x="one")
    real = os.open

    def swap(path: object, *given: object, **named: object) -> int:
        if path == "d":
            (root / "d" / "x").unlink()
            (root / "d").rmdir()
            (root / "d").symlink_to(tmp_path / "secret")
        return real(path, *given, **named)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(OSError):
        scan(root)


def test_one_file_is_an_entry_with_its_name_and_a_link_to_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    assert scan_file(tmp_path / "file") == FileEntry("file", 0o640, 3, digest_of(b"one"))
    assert scan_file(tmp_path / "link") == FileEntry("link", 0o640, 3, digest_of(b"one"))
    with pytest.raises(FileNotFoundError):
        scan_file(tmp_path / "nothing")
    with pytest.raises(Invalid, match="not a regular file"):
        scan_file(tmp_path)


def test_bytes_are_counted_while_they_are_read(tmp_path: Path) -> None:
    write(tmp_path, a="x" * 10, d__b="y" * 5)
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    read: list[int] = []
    scan(tmp_path, read=read.append)
    assert sum(read) == (3 << 20) + 15 and max(read) <= 1 << 20


def test_unreadable_file_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, d__x="one")
    real = os.open

    def opened(path: str, *given: object, **options: object) -> int:
        if path == "x":  # root reads everything, so the refusal is made here
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *given, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(PermissionError) as caught:
        scan(tmp_path)
    assert caught.value.filename == "d/x"


def test_file_that_vanishes_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, d__x="one")
    real = os.open

    def opened(path: str, *given: object, **options: object) -> int:
        if path == "x":
            (tmp_path / "d" / "x").unlink()
        return real(path, *given, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(FileNotFoundError) as caught:
        scan(tmp_path)
    assert caught.value.filename == "d/x"
