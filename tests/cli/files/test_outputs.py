"""Files to a node and back with commands: `roost run` sends, `roost outputs` lists, `roost get` fetches."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.serving import DEADLINE_S, ROOST, Served, up

Typed = Callable[..., "subprocess.CompletedProcess[str]"]
SCRIPT = """import os, pathlib, sys
words = pathlib.Path("data/words").read_text().split()
out = pathlib.Path("out")
(out / "deep").mkdir(parents=True)
(out / "deep" / "count.txt").write_text(str(len(words)))
(out / "link").symlink_to("deep/count.txt")
print(*sys.argv[1:])
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served:
        yield served


@pytest.fixture
def roost(one: Served, tmp_path: Path) -> Typed:
    """Type a command in a directory with a script and its data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words").write_text("one two three")
    (tmp_path / "count.py").write_text(SCRIPT)

    def roost(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [*ROOST, *arguments]
        return subprocess.run(argv, env=one.env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)

    return roost


def test_script_with_data_and_outputs(roost: Typed, tmp_path: Path) -> None:
    done = roost("run", "--name", "count", "--send", "data", "-o", "out", "--cpu", "0.1", "count.py", "--lr", "0.1")
    assert (done.returncode, done.stdout) == (0, "--lr 0.1\n"), done.stderr
    done = roost("outputs", "count")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["PATH", "SIZE", "MODE"],
        ["out/deep/count.txt", "1B", "0644"],
        ["out/link", "->", "deep/count.txt", "-", "link"],
    ]
    found = json.loads(roost("outputs", "count", "--json").stdout)
    assert (found["files"], found["size"], len(found["entries"])) == (1, 1, 4)
    done = roost("get", "count")
    assert (done.returncode, done.stderr) == (0, "roost: 1 file (1B) in count\n")
    assert (tmp_path / "count" / "out" / "link").read_text() == "3"


def test_gaps_that_a_report_has_no_room_for_are_counted(roost: Typed) -> None:
    script = "import os; [os.mkfifo(f'{number:0>60}.pipe') for number in range(60)]"
    roost("run", "--name", "pipes", "-o", "*.pipe", "--cpu", "0.1", "--", "python3", "-c", script)
    done = roost("outputs", "pipes")
    first, *_, last = done.stderr.splitlines()[-11:]
    assert first.startswith(f"roost: not kept: {0:0>60}.pipe: ") and last == "roost: not kept: and 50 more"
    found = json.loads(roost("outputs", "pipes", "--json").stdout)
    assert (len(found["gaps"]), found["gaps_count"]) == (10, 60)
    assert "and 50 more" in roost("show", "pipes.0").stdout


def test_get_chooses_files_and_replaces_none_by_accident(roost: Typed, tmp_path: Path) -> None:
    roost("run", "--name", "choose", "-o", "*.txt", "--cpu", "0.1", "--", "sh", "-c", "echo 1 > a.txt; echo 2 > b.txt")
    assert roost("get", "choose", "b*", "--to", "got").returncode == 0
    assert os.listdir(tmp_path / "got") == ["b.txt"]
    (tmp_path / "got" / "b.txt").write_text("mine")
    done = roost("get", "choose", "--to", "got")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "roost: got/b.txt: is there already, with another content"
    assert (os.listdir(tmp_path / "got"), (tmp_path / "got" / "b.txt").read_text()) == (["b.txt"], "mine")
    assert roost("get", "choose", "--to", "got", "--force").returncode == 0
    assert (tmp_path / "got" / "b.txt").read_text() == "2\n"
    done = roost("get", "choose", "nothing*", "--to", "none")
    assert (done.returncode, (tmp_path / "none").exists()) == (5, False)


def test_array_has_a_folder_for_each_index(roost: Typed, tmp_path: Path) -> None:
    line = 'test $ROOST_INDEX = 1 || echo $ROOST_INDEX > "number"'
    done = roost("run", "--name", "array", "--count", "3", "-o", "number", "--cpu", "0.1", "--", "sh", "-c", line)
    assert done.returncode == 0, done.stderr
    lines = roost("outputs", "array").stdout.splitlines()
    assert lines[0].split() == ["INSTANCE", "STATE", "FILES", "SIZE", "NOT", "KEPT"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["0", "succeeded", "1"], ["1", "succeeded", "0"], ["2", "succeeded", "1"],
    ]  # fmt: skip
    assert "number" in lines[2] and max(map(len, lines)) <= 80
    done = roost("get", "array", "--to", "all", "--json")
    assert json.loads(done.stdout) == {"to": "all", "instances": 2, "files": 2, "size": 4}
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "all").rglob("*")} == {
        "all/0", "all/0/number", "all/2", "all/2/number",
    }  # fmt: skip
    assert roost("get", "array.2").returncode == 0
    assert (tmp_path / "array.2" / "number").read_text() == "2\n"


def test_missing_output_is_reported(roost: Typed) -> None:
    done = roost("run", "--name", "missing", "-o", "nothing", "--cpu", "0.1", "--", "true")
    assert (done.returncode, done.stderr) == (0, "roost: not kept: nothing: no file matches\n")
    assert roost("outputs", "missing").stderr.splitlines()[-1] == "roost: not kept: nothing: no file matches"


def test_work_without_outputs(roost: Typed) -> None:
    roost("run", "--name", "bare", "--cpu", "0.1", "--", "true")
    assert roost("outputs", "bare").returncode == 5
    done = roost("get", "bare")
    assert (done.returncode, done.stderr.splitlines()[0]) == (5, "roost: bare has no outputs")
    assert roost("get", "nobody").returncode == 1


def test_workdir_is_where_the_command_runs(roost: Typed, tmp_path: Path) -> None:
    (tmp_path / ".roostignore").write_text("data/\n")
    done = roost("run", "--workdir", ".", "--cpu", "0.1", "--", "ls", "-A")
    assert done.stdout.split() == [".roostignore", "count.py"], done.stderr
