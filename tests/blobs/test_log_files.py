"""The file blobs keep the contract, stay below their root and within their budget of open files."""

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.blobs.log_files import FileLogs
from roost.ports.logs import Logs, LogsUnavailable
from tests.blobs.log_contract import FOLDER, KEY, LogsContract


@pytest.fixture
def blobs(tmp_path: Path) -> Iterator[FileLogs]:
    blobs = FileLogs(tmp_path / "logs", open_files_max=3)
    yield blobs
    blobs.close()


class TestFiles(LogsContract):
    @pytest.fixture
    def blobs(self, blobs: FileLogs) -> Logs:
        return blobs


def open_files_below(root: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            found.append(target)
    return found


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path: Path, blobs: FileLogs) -> None:
    blobs.size(KEY)
    blobs.read(KEY, 0, 10)
    blobs.append(KEY, 5, b"gap")
    blobs.drop(FOLDER)
    assert list(tmp_path.iterdir()) == []


def test_folders_go_with_their_last_blob(tmp_path: Path, blobs: FileLogs) -> None:
    blobs.append("a/b/c/1", 0, b"x")
    blobs.append("a/d", 0, b"x")
    blobs.drop("a/b/c")
    assert sorted(path.name for path in (tmp_path / "logs").rglob("*")) == ["a", "d+log"]
    blobs.drop("a")
    assert list((tmp_path / "logs").iterdir()) == []


def test_folders_without_blobs_go_with_what_is_above_or_with_a_restart(tmp_path: Path, blobs: FileLogs) -> None:
    """They stay for the next part of a log, which comes at once."""
    for key in ("a/b/1", "c/d/1"):
        blobs.append(key, 0, b"x")
        blobs.drop(key)
    assert (tmp_path / "logs" / "a" / "b").is_dir()
    blobs.drop("a")
    assert [path.name for path in (tmp_path / "logs").rglob("*")] == ["c", "d"]
    assert FileLogs(tmp_path / "logs").found() == []
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_few_files_are_open_however_many_blobs_there_are(tmp_path: Path, blobs: FileLogs) -> None:
    keys = [f"web/{number}/0/1" for number in range(20)]
    for chunk in range(3):
        for key in keys:
            blobs.append(key, chunk * 4, b"abcd")
            assert blobs.read(key, chunk * 4, 4) == b"abcd"
            assert len(open_files_below(tmp_path)) <= 3
    assert [blobs.size(key) for key in keys] == [12] * len(keys)
    blobs.drop("web/19/0")
    assert len(open_files_below(tmp_path)) == 2
    blobs.close()
    assert open_files_below(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_file_that_waited_longest_is_closed_first(tmp_path: Path, blobs: FileLogs) -> None:
    for key in ("a", "b", "c", "a", "d"):
        blobs.append(key, 0, b"x")
    assert sorted(Path(path).name for path in open_files_below(tmp_path)) == ["a+log", "c+log", "d+log"]


def test_blobs_are_there_after_opening_again(tmp_path: Path, blobs: FileLogs) -> None:
    blobs.append(KEY, 0, b"abc")
    blobs.close()
    again = FileLogs(tmp_path / "logs")
    assert again.append(KEY, 1, b"bcde") == 5
    assert again.read(KEY, 0, 10) == b"abcde"
    again.close()


def test_a_part_too_long_for_a_file_name_is_refused(tmp_path: Path, blobs: FileLogs) -> None:
    with pytest.raises(ValueError, match="too long"):
        blobs.append("a/" + "ä" * 50, 0, b"x")
    assert blobs.append("a/" + "b" * 251, 0, b"x") == 1
    with pytest.raises(ValueError, match="too long"):
        blobs.append("a/" + "b" * 252, 0, b"x")


def test_a_link_in_the_place_of_a_blob_is_not_followed(tmp_path: Path, blobs: FileLogs) -> None:
    (tmp_path / "secret").write_text("secret")
    blobs.append("a/b", 0, b"x")
    (tmp_path / "logs" / "a" / "c+log").symlink_to(tmp_path / "secret")
    for answer in (blobs.read("a/c", 0, 10), blobs.append("a/c", 6, b"x"), blobs.size("a/c")):
        assert isinstance(answer, LogsUnavailable)
    assert (tmp_path / "secret").read_text() == "secret"


def test_what_cannot_be_removed_is_an_answer(tmp_path: Path, blobs: FileLogs) -> None:
    (tmp_path / "logs").write_text("a file in the place of the root")
    assert isinstance(blobs.drop("a"), LogsUnavailable)
    assert isinstance(blobs.append("a/b", 0, b"x"), LogsUnavailable)


def test_a_full_disk_keeps_what_it_took_and_the_rest_can_be_sent_again(tmp_path: Path, blobs: FileLogs) -> None:
    blobs.append(KEY, 0, b"a" * 50)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        answer = blobs.append(KEY, 50, b"b" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(answer, LogsUnavailable)
    assert "too large" in answer.reason
    assert blobs.size(KEY) == 100
    assert blobs.append(KEY, 50, b"b" * 100) == 150
    assert blobs.read(KEY, 0, 1000) == b"a" * 50 + b"b" * 100


def test_threads_do_not_write_into_each_others_files(blobs: FileLogs) -> None:
    def write(name: str) -> None:
        for number in range(100):
            blobs.append(f"{name}/{number % 5}", number // 5, name.encode())

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcd":
        assert [blobs.read(f"{name}/{number}", 0, 100) for number in range(5)] == [name.encode() * 20] * 5
