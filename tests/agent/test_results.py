"""Results of runs as the agent finds them: plain files only, and nothing makes it wait."""

import os
import socket
from pathlib import Path

import pytest

from roost.agent import results
from roost.agent.prepare import RESULT_NAME
from roost.agent.results import UNREPORTED_BYTES_MAX, ResultFiles, read_result
from roost.model.limits import RESULT_BYTES_MAX
from roost.model.records.result import Result, ResultProblem
from roost.ports.driver import Ended, KnownRun, KnownRuns, Started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / RESULT_NAME


def problem(file: Path) -> ResultProblem | None:
    found = read_result(str(file))
    assert found is not None and not found.data
    return found.problem


def test_what_was_written_is_read(file: Path) -> None:
    file.write_text('{"accuracy": 0.9}\n')
    assert read_result(str(file)) == Result(b'{"accuracy":0.9}', size=18)


def test_without_a_file_or_its_directory_there_is_no_result(file: Path) -> None:
    assert read_result(str(file)) is None
    assert read_result(f"{file}/{RESULT_NAME}") is None
    file.touch()
    assert read_result(f"{file}/{RESULT_NAME}") is None, "its directory was replaced by a file"


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('"of another"')
    file.symlink_to(tmp_path / "secret")
    assert problem(file) == ResultProblem.NOT_A_FILE
    file.unlink()
    file.symlink_to(tmp_path / "nothing")
    assert problem(file) == ResultProblem.NOT_A_FILE


def test_a_pipe_a_socket_and_a_directory_are_not_opened(file: Path) -> None:
    os.mkfifo(file)
    assert problem(file) == ResultProblem.NOT_A_FILE
    writer = os.open(file, os.O_RDWR | os.O_NONBLOCK)  # one that is written to, and would be read without end
    os.write(writer, b"1")
    assert problem(file) == ResultProblem.NOT_A_FILE
    os.close(writer)
    file.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        home = os.open(file.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{home}/{file.name}")
        os.close(home)
        assert problem(file) == ResultProblem.NOT_A_FILE
    file.unlink()
    file.mkdir()
    assert problem(file) == ResultProblem.NOT_A_FILE


def test_a_large_file_is_not_read(file: Path) -> None:
    with file.open("wb") as made:
        made.truncate(1 << 40)  # a terabyte without content
    assert read_result(str(file)) == Result(problem=ResultProblem.TOO_LARGE, size=1 << 40)
    file.write_bytes(b" " * (RESULT_BYTES_MAX - 1) + b"1")
    assert read_result(str(file)) == Result(b"1", size=RESULT_BYTES_MAX)


def test_a_file_that_grows_while_it_is_read_is_too_large(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"1" * (RESULT_BYTES_MAX + 5))
    whole = os.fstat

    def smaller(fd: int) -> os.stat_result:
        found = list(whole(fd))
        found[6] = 1  # st_size, as it was a moment before
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", smaller)
    assert problem(file) == ResultProblem.TOO_LARGE


def test_a_file_that_cannot_be_read_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("1")

    def refuse(_: int) -> bytes:
        raise PermissionError(13, "no")

    monkeypatch.setattr(results, "_read", refuse)
    assert problem(file) == ResultProblem.UNREADABLE


def write(directory: Path, token: str, text: str) -> None:
    (directory / "work" / token).mkdir(parents=True)
    (directory / "work" / token / RESULT_NAME).write_text(text)


def test_an_end_has_the_result_also_one_that_an_earlier_agent_missed(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path))
    write(tmp_path, "7", "[1]")
    ended, other = Ended("7", "exited", 5), Ended("8", "exited", 5)
    found = files.added(ended)
    assert isinstance(found, Ended) and found.result == Result(b"[1]", size=3)
    assert files.added(other) is other and files.added(start := Started("7", 1, 1)) is start
    runs = [KnownRun("7", "", "ended", 1, ended=ended), KnownRun("9", "", "running", 1)]
    known = files.added(KnownRuns(1, 1, runs))
    assert isinstance(known, KnownRuns) and known.runs[1] is runs[1]
    assert known.runs[0].ended is not None and known.runs[0].ended.result == Result(b"[1]", size=3)


def test_a_run_of_a_strange_name_leads_nowhere_else(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path / "agent"))
    write(tmp_path / "agent", "7", "[1]")
    strange = Ended("../work/7", "exited", 5)
    assert files.added(strange) is strange


def test_results_that_the_server_has_not_got_are_bounded(tmp_path: Path) -> None:
    files = ResultFiles(str(tmp_path))
    text = '"' + "x" * (RESULT_BYTES_MAX - 2) + '"'
    most = UNREPORTED_BYTES_MAX // RESULT_BYTES_MAX
    for token in range(1, most + 3):
        write(tmp_path, str(token), text)
    found = [files.added(Ended(str(token), "exited", 5)) for token in range(1, most + 2)]
    kept = [event.result for event in found if isinstance(event, Ended) and event.result is not None]
    assert [result.problem for result in kept] == [*[None] * most, ResultProblem.NODE_FULL]
    files.forget(1)
    again = files.added(Ended(str(most + 2), "exited", 5))
    assert isinstance(again, Ended) and again.result is not None and again.result.problem is None
