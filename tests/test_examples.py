"""Everything in examples/ runs, against one `roost up`, in the way each file says on top."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.serving import DEADLINE_S, ROOST, Served, up

pytestmark = pytest.mark.serial

EXAMPLES = Path(__file__).parent.parent / "examples"
RUN_HERE = {"hello", "steps", "array", "service", "pinned", "placement"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served:
        yield served


def applied(one: Served, file: str) -> None:
    done = one.roost("apply", "-f", str(EXAMPLES / file))
    assert done.returncode == 0, done.stderr.decode()
    assert b"created" in done.stdout


def finished(one: Served, name: str) -> str:
    """Wait for a workload that succeeds; what it wrote."""
    done = one.roost("wait", name, "--timeout", "60s")
    assert done.returncode == 0, done.stderr.decode()
    return one.roost("logs", name).stdout.decode()


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == RUN_HERE
    listed = (EXAMPLES / "README.md").read_text()
    assert [
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".py") and path.name not in listed
    ] == []


def test_hello(one: Served) -> None:
    applied(one, "hello.yaml")
    assert finished(one, "hello") == "hello from node-1\n"


def test_steps(one: Served) -> None:
    applied(one, "steps.yaml")
    assert finished(one, "build") == "main.c\n"


def test_array(one: Served) -> None:
    applied(one, "array.yaml")
    text = finished(one, "squares")
    assert text.count("squared is") == 100
    assert "99 squared is 9801" in text


def test_service(one: Served) -> None:
    applied(one, "service.yaml")
    assert one.roost("wait", "ticker", "--for", "running", "--timeout", "30s").returncode == 0
    assert json.loads(one.roost("show", "ticker", "--json").stdout)["counts"] == {"running": 2}
    assert one.roost("cancel", "ticker").returncode == 0
    assert one.roost("wait", "ticker", "--timeout", "30s").returncode == 1
    assert one.roost("logs", "ticker.0").stdout.endswith(b"bye\n")


def test_pinned(one: Served) -> None:
    applied(one, "pinned.yaml")
    assert finished(one, "pinned").startswith("Linux ")
    why = json.loads(one.roost("why", "nowhere", "--json").stdout)
    assert why["code"] == "unsatisfiable"
    assert "the-moon" in why["words"]


def test_placement() -> None:
    argv = [*ROOST, "sim", "place", str(EXAMPLES / "placement.yaml"), "--json"]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr.decode()
    nodes = {each["instance"]: each["node"] for each in json.loads(done.stdout)["placements"]}
    assert nodes == {
        "web.0": "busy",
        "web.1": "busy",
        "database.0": "large",
        "batch.0": "busy",
    }


def test_the_client(one: Served) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "run_and_read.py"], env=one.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "instance 0 on node-1: 2 3 5 7 11" in done.stdout
    assert done.stdout.count("instance ") == 4
