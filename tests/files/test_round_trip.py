"""What is packed and unpacked is the same directory; no manifest and no pack, however hostile, writes elsewhere."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest, check, decode, encode
from roost.files.pack import PackReader, pack, small_files
from roost.files.scan import scan
from roost.files.unpack import Unpack
from roost.model.errors import Invalid, RoostError, TooMuch
from roost.ports.blobs import digest_of
from tests.files.trees import TREES, make, read


def copy_of(source: Path, target: Path, piece: int = 10_000) -> Manifest:
    """The whole way: scan, ask, pack, read the pack, unpack."""
    manifest = decode(encode(scan(source)))
    with Unpack(target, manifest) as tree:
        reader = PackReader(tree.missing())
        stream = b"".join(pack(source, small_files(manifest, tree.missing())))
        for start in range(0, len(stream), piece):
            for digest, data in reader.feed(stream[start : start + piece]):
                tree.add(digest, [data])
        reader.finish()
    return manifest


@given(tree=TREES, piece=st.sampled_from([1, 7, 10_000]))
def test_a_directory_arrives_as_it_was_sent(tree: dict[str, Any], piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        make(source, tree)
        try:
            manifest = copy_of(source, target, piece)
        except Invalid as error:  # a circle of links
            assert "links" in error.message
            assert not target.exists()
            return
        assert read(target) == tree
        assert scan(target) == manifest


NAMES = st.sampled_from(
    ["a", "b", "c", "..", ".", "", "/", "a/b", "../x", "/tmp/x", "a/../../x", "b/c", "x\ny", "x\0y"]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
MODES = st.sampled_from([0o644, 0o755, 0o4755, -1, 0, 0o700])
CONTENTS = [b"", b"one", b"two"]
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        lambda path, mode, data, wrong: FileEntry(path, mode, len(data) + wrong, digest_of(data)),
        PATHS,
        MODES,
        st.sampled_from(CONTENTS),
        st.sampled_from([0, 0, 0, 1, -1]),
    ),
    st.builds(LinkEntry, PATHS, st.one_of(PATHS, st.sampled_from(["..", "../..", "/", "/etc", "a", "b", "a/.."]))),
    st.builds(FolderEntry, PATHS, MODES),
)
SIMPLE = st.builds(
    lambda path, mode, data: FileEntry(path, mode, len(data), digest_of(data)),
    st.sampled_from(["a", "b", "a/b", "b/c", "a/b/c"]),
    st.just(0o644),
    st.sampled_from(CONTENTS),
)
SIMPLE_LINKS = st.builds(
    LinkEntry,
    st.sampled_from(["a", "b", "c", "b/c"]),
    st.sampled_from(["..", "a", "b", "../..", "c/..", "a/../..", "../x", "b/.."]),
)
SIMPLE_FOLDERS = st.builds(FolderEntry, st.sampled_from(["a", "b", "a/b"]), st.just(0o755))
MANIFESTS = st.one_of(
    st.lists(ENTRIES, max_size=6),
    st.lists(st.one_of(SIMPLE, SIMPLE_LINKS, SIMPLE_FOLDERS), max_size=8).map(
        lambda entries: sorted(
            {entry.path: entry for entry in entries}.values(), key=lambda entry: entry.path.split("/")
        )
    ),
)


def everything(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@settings(max_examples=300)
@given(entries=MANIFESTS)
def test_no_manifest_writes_outside_of_its_directory(entries: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "outside")
        (outside / "x").mkdir(parents=True)
        target = outside / "target"
        before = everything(outside)
        try:
            with Unpack(target, Manifest(tuple(entries))) as tree:
                for data in CONTENTS:
                    if digest_of(data) in tree.missing():
                        tree.add(digest_of(data), [data])
        except RoostError:
            assert everything(outside) == before  # an error leaves nothing
            return
        inside = [path for path in everything(outside) if not path.startswith(str(target))]
        assert inside == before
        for path in target.rglob("*"):  # and nothing that was made leads out
            assert os.path.realpath(path).startswith(os.path.realpath(target))
            assert not path.lstat().st_mode & 0o7000


def file(path: str, data: bytes = b"one", mode: int = 0o644) -> FileEntry:
    return FileEntry(path, mode, len(data), digest_of(data))


FOLDER = FolderEntry("d", 0o755)
REFUSED: list[tuple[list[Entry], str]] = [
    ([file("../x")], "../x: is not a relative path"),
    ([file("/etc/x")], "/etc/x: is not a relative path"),
    ([file("a//x")], "a//x: is not a relative path"),
    ([file("x/y")], "x/y: is not in a folder"),
    ([file("x"), file("x/y")], "x/y: is not in a folder"),
    ([LinkEntry("x", "d"), file("x/y")], "x/y: is not in a folder"),
    ([file("x"), file("x")], "x: the entries of a manifest are ordered"),
    ([file("y"), file("x")], "x: the entries of a manifest are ordered"),
    ([file("x\ny")], "'x\\ny': the name has a control character"),
    ([file("x\0y")], "'x\\x00y': the name has a control character"),
    ([file("x\ud800")], "'x\\ud800': the name is not UTF-8"),
    ([file("x" * 256)], "a name 255"),
    ([file("x", mode=0o4755)], "x: mode 4755"),
    ([FileEntry("x", 0o644, 3, "md5:00")], "x: the digest is not"),
    ([FileEntry("x", 0o644, -1, digest_of(b""))], "x: a file has between"),
    ([file("x"), FileEntry("y", 0o644, 4, digest_of(b"one"))], "y: another file with this digest"),
    ([LinkEntry("x", "/etc/passwd")], "x: the link to '/etc/passwd' leaves"),
    ([LinkEntry("x", "..")], "x: the link to '..' leaves"),
    ([FOLDER, LinkEntry("d/x", "../../y")], "d/x: the link to '../../y' leaves"),
    ([LinkEntry("a", "."), LinkEntry("b", "a/a/..")], "b: the link to 'a/a/..' leaves"),
    ([FOLDER, LinkEntry("d/up", ".."), LinkEntry("x", "d/up/..")], "x: the link to 'd/up/..' leaves"),
    ([LinkEntry("a", "b"), LinkEntry("b", "a")], "a: leads through more than 40 links"),
    ([LinkEntry("a", "")], "a: the target of a link has"),
    ([LinkEntry("a", "x\ny")], "a: the target of a link has"),
]


@pytest.mark.parametrize(("entries", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_manifest_is_refused_with_its_path(tmp_path: Path, entries: list[Entry], message: str) -> None:
    with pytest.raises(Invalid) as refused, Unpack(tmp_path / "target", Manifest(tuple(entries))):
        pass
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    entries = (
        FOLDER,
        LinkEntry("d/up", ".."),
        LinkEntry("e", "d/up/d"),
        LinkEntry("f", "nothing"),
        LinkEntry("g", "e/../d"),
    )
    with Unpack(tmp_path / "target", Manifest(entries)):
        pass
    assert sorted(os.listdir(tmp_path / "target")) == ["d", "e", "f", "g"]


def test_a_manifest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Manifest(tuple(file(f"{number:06}") for number in range(11)))
    with pytest.raises(TooMuch, match="more than 20 bytes"):
        check(many, bytes_max=20)
    monkeypatch.setattr("roost.files.manifest.ENTRIES_MAX", 10)
    with pytest.raises(TooMuch, match="11 files and folders"):
        check(many)
    monkeypatch.setattr("roost.files.manifest.MANIFEST_BYTES_MAX", 100)
    with pytest.raises(TooMuch, match="at most 100"):
        decode(encode(many))
    with pytest.raises(Invalid, match="manifest"):
        decode(b"{")


def test_links_cost_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.files.manifest.LINK_STEPS_MAX", 100)
    with pytest.raises(TooMuch, match="100 steps"):
        check(Manifest((LinkEntry("a", "x/../" * 60 + "x"),)))


class TestContents:
    """Content that is not what the manifest says."""

    MANIFEST = Manifest((file("a"), file("b"), file("c", b"two")))

    @pytest.mark.parametrize(
        ("chunks", "message"),
        [
            ([b"on"], "a: has 2 bytes instead of the 3"),
            ([b"one", b"x"], "a: has more than the 3 bytes"),
            ([b"ONE"], "a: the bytes have another digest"),
        ],
    )
    def test_wrong_bytes_leave_nothing(self, tmp_path: Path, chunks: list[bytes], message: str) -> None:
        with pytest.raises(Invalid, match=message), Unpack(tmp_path / "target", self.MANIFEST) as tree:
            tree.add(digest_of(b"one"), chunks)
        assert list(tmp_path.iterdir()) == []

    def test_an_endless_stream_ends_at_the_declared_size(self, tmp_path: Path) -> None:
        def endless() -> Iterator[bytes]:
            while True:
                yield b"o"

        with pytest.raises(Invalid, match="has more than"), Unpack(tmp_path / "target", self.MANIFEST) as tree:
            tree.add(digest_of(b"one"), endless())

    def test_a_missing_file_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(Invalid, match="c: did not come"), Unpack(tmp_path / "target", self.MANIFEST) as tree:
            tree.add(digest_of(b"one"), [b"one"])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("digest", [digest_of(b"one"), digest_of(b"other")])
    def test_a_file_that_is_not_wanted_is_refused(self, tmp_path: Path, digest: str) -> None:
        with pytest.raises(Invalid, match="came twice"), Unpack(tmp_path / "target", self.MANIFEST) as tree:
            tree.add(digest_of(b"one"), [b"one"])
            tree.add(digest, [b"one"])

    def test_a_directory_that_exists_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(FileExistsError), Unpack(tmp_path, self.MANIFEST):
            pass
        assert (tmp_path / "mine").read_text() == "mine"

    def test_a_link_that_appears_meanwhile_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        manifest = Manifest((FOLDER, file("d/x")))
        with suppress(OSError), Unpack(tmp_path / "target", manifest) as tree:
            (tmp_path / "target" / "d").rmdir()
            (tmp_path / "target" / "d").symlink_to(tmp_path / "outside")
            tree.add(digest_of(b"one"), [b"one"])
        assert list((tmp_path / "outside").iterdir()) == []
