"""Files that match patterns: what is in the manifest, and which gap stands for what is not."""

import os
from pathlib import Path

import pytest

from roost.files.manifest import FileEntry, FolderEntry, LinkEntry
from roost.files.select import TransferStopped, WantedFiles, select
from roost.model.limits import OUTPUT_GAPS_MAX
from roost.model.records.files import OutputGap, OutputProblem
from roost.ports.blobs import digest_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dist" / "deep").mkdir(parents=True)
    (tmp_path / "dist" / "a.whl").write_bytes(b"wheel")
    (tmp_path / "dist" / "deep" / "b.whl").write_bytes(b"deep wheel")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "c.log").write_bytes(b"log")
    (tmp_path / "secret").write_bytes(b"not wanted")
    return tmp_path


def paths(root: Path, *wanted: WantedFiles) -> list[str]:
    return [entry.path for entry in select(root, wanted).manifest.entries]


def gaps(root: Path, *wanted: WantedFiles) -> list[tuple[str, str]]:
    return [(gap.problem, gap.path) for gap in select(root, wanted).gaps]


def test_only_matches_and_their_folders_are_selected(root: Path) -> None:
    chosen = select(root, [WantedFiles("dist/*.whl"), WantedFiles("**/*.log")])
    mode = (root / "dist" / "a.whl").stat().st_mode & 0o777
    folder = (root / "dist").stat().st_mode & 0o777
    assert chosen.manifest.entries == (
        FolderEntry("dist", folder),
        FileEntry("dist/a.whl", mode, 5, digest_of(b"wheel")),
        FolderEntry("other", folder),
        FileEntry("other/c.log", mode, 3, digest_of(b"log")),
    )
    assert chosen.gaps == ()


def test_a_folder_is_taken_whole(root: Path) -> None:
    assert paths(root, WantedFiles("dist")) == ["dist", "dist/a.whl", "dist/deep", "dist/deep/b.whl"]


def test_a_pattern_without_a_file_is_a_gap(root: Path) -> None:
    (root / "empty").mkdir()
    assert select(root, [WantedFiles("empty", required=True), WantedFiles("none/*"), WantedFiles("secret")]).gaps == (
        OutputGap(OutputProblem.MISSING, "empty", required=True),
        OutputGap(OutputProblem.MISSING, "none/*"),
    )


def test_too_many_bytes_are_a_gap_for_their_pattern_alone(root: Path) -> None:
    wanted = [WantedFiles("dist", bytes_max=14), WantedFiles("dist/*.whl", bytes_max=5), WantedFiles("secret")]
    assert paths(root, *wanted) == ["dist", "dist/a.whl", "secret"]
    assert gaps(root, *wanted) == [("too_large", "dist")]
    assert select(root, [WantedFiles("dist"), WantedFiles("secret")], bytes_max=14).gaps[0].path == "dist"


def test_links_that_stay_inside_are_kept_others_are_gaps(root: Path) -> None:
    (root / "dist" / "in").symlink_to("a.whl")
    (root / "dist" / "out").symlink_to("/etc/passwd")
    (root / "dist" / "up").symlink_to("../../..")
    chosen = select(root, [WantedFiles("dist/*")])
    assert LinkEntry("dist/in", "a.whl") in chosen.manifest.entries
    assert [(gap.problem, gap.path) for gap in chosen.gaps] == [("not_a_file", "dist/out"), ("not_a_file", "dist/up")]


def test_a_link_in_the_place_of_a_folder_is_not_followed(root: Path) -> None:
    (root / "way").symlink_to("/etc")
    assert gaps(root, WantedFiles("way/passwd")) == [("missing", "way/passwd")]


def test_special_files_are_gaps_and_are_not_opened(root: Path) -> None:
    os.mkfifo(root / "dist" / "pipe")
    assert gaps(root, WantedFiles("dist/p*", required=True)) == [("not_a_file", "dist/pipe")]


def test_gaps_beyond_the_limit_are_counted(root: Path) -> None:
    for number in range(OUTPUT_GAPS_MAX + 5):
        os.mkfifo(root / f"pipe{number}")
    chosen = select(root, [WantedFiles("pipe*")])
    assert (len(chosen.gaps), chosen.more_gaps) == (OUTPUT_GAPS_MAX, 5)


def test_names_that_cannot_travel_are_gaps(root: Path) -> None:
    (root / "dist" / "a\nb").write_bytes(b"")
    assert gaps(root, WantedFiles("dist/*")) == [("unreadable", "'dist/a\\nb'")]


def test_some_paths_never_match(root: Path) -> None:
    chosen = select(root, [WantedFiles("**")], without={"secret", "dist"})
    assert [entry.path for entry in chosen.manifest.entries] == ["other", "other/c.log"]


def test_it_can_be_stopped(root: Path) -> None:
    with pytest.raises(TransferStopped):
        select(root, [WantedFiles("**")], is_stopped=lambda: True)
