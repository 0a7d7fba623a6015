"""`roost cp` as it is typed: into and out of runs, which instance is meant, errors, and completion."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from roost.cli.common.targets import COPY_PLACE, InstancePath, Target
from tests.cli.serving import DEADLINE_S, ROOST, Served, up

Typed = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served, served.client() as client:
        for name, count in (("single", 1), ("array", 2)):
            document = {"name": name, "count": count, "command": "sleep 600", "resources": {"cpu": 0.1}}
            client.workloads.submit(document)
            client.workloads.wait([("default", name)], until="started", timeout_s=DEADLINE_S)
        yield served


@pytest.fixture
def roost(one: Served, tmp_path: Path) -> Typed:
    def roost(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [*ROOST, *arguments]
        return subprocess.run(argv, env=one.env, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)

    return roost


def test_there_and_back(roost: Typed, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a:b").write_text("x")
    (tmp_path / "tree" / ".gitignore").write_text("*")
    done = roost("cp", "tree", "single:new/")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.startswith("roost: 2 files (2B) in single:new/tree on node ")
    done = roost("cp", "single:new/tree/a:b", "back")
    assert (done.returncode, done.stderr) == (0, "roost: 1 file (1B) of single:new/tree/a:b in back\n")
    assert (tmp_path / "back").read_text() == "x"
    found = json.loads(roost("cp", "single:new", "all/", "--json").stdout)
    assert (found["files"], found["path"], found["gaps"]) == (2, "new", [])
    assert (tmp_path / "all" / "new" / "tree" / "a:b").read_text() == "x"
    assert roost("cp", "./tree/a:b", "default/single.0:").returncode == 0


def test_an_element_of_an_array_is_named(roost: Typed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = roost("cp", "file", "array:")
    assert (done.returncode, done.stderr) == (
        2, "roost: several instances run: array.0, array.1; name one of them\n",
    )  # fmt: skip
    assert roost("cp", "file", "array.1:").returncode == 0
    done = roost("cp", "array.0:file", "back")
    assert done.returncode == 1 and "file: there is no such file in the work directory" in done.stderr
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("source", "target", "code", "message"),
    [
        ("a", "b", 2, "one of SOURCE and TARGET is on this machine"),
        ("single:a", "single:b", 2, "one of SOURCE and TARGET is on this machine"),
        ("nothing", "single:", 2, "nothing: No such file or directory"),
        ("single:../x", ".", 2, "path: this has to be a path below the work directory, without .."),
        ("nowhere:x", ".", 1, "there is no workload default/nowhere"),
        ("single.7:x", ".", 1, "default/single has instances 0 to 0, not 7"),
    ],
)
def test_a_mistake_is_one_clear_line(roost: Typed, source: str, target: str, code: int, message: str) -> None:
    done = roost("cp", source, target)
    assert done.returncode == code and message in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train:", InstancePath(Target("", "train"), "")),
        ("web/train.3:a/b:c", InstancePath(Target("web", "train", 3), "a/b:c")),
        ("./train:x", "./train:x"),
        ("/train:x", "/train:x"),
        ("dir/", "dir/"),
    ],
)
def test_a_place_is_here_or_in_an_instance(text: str, place: object) -> None:
    assert COPY_PLACE.convert(text, None, None) == place


def test_names_are_completed_with_a_colon(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_CONFIG", str(one.config))
    command = click.Command("cp")
    offered = COPY_PLACE.shell_complete(click.Context(command), click.Argument(["source"]), "sin")
    assert [(item.value, item.type) for item in offered] == [("single:", "plain"), ("sin", "file")]
