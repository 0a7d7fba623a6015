"""Everything in examples/ runs, against one `roost up`, in the way each file says on top."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components import postgres
from roost_lab.components.ports import free_port

from tests.cli.serving import DEADLINE_S, ROOST, Served, up
from tests.components.docker import shared_engine
from tests.components.guest import shared_guest

EXAMPLES = Path(__file__).parent.parent / "examples"
RUN_HERE = {
    "array", "container", "hello", "integration", "pinned", "pipeline", "placement", "release", "reports", "results",
    "rolling", "service", "steps", "sweep", "template", "vm",
}  # fmt: skip


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = shared_engine()
    engine.import_image("docker.io/library/busybox:stable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_DOCKER", f"unix://{engine.socket}")
        guest = shared_guest()
        patch.setenv("ROOST_AGENT_QEMU", "auto")
        patch.setenv("ROOST_AGENT_VM_IMAGES", f"tiny-kernel={guest.kernel},tiny-initrd={guest.initrd}")
        with up(tmp_path_factory.mktemp("up")) as served:
            yield served


def applied(one: Served, file: str, code: int = 0) -> None:
    done = one.roost("apply", "-f", str(EXAMPLES / file))
    assert done.returncode == code, done.stderr.decode()
    assert b"created" in done.stdout


def finished(one: Served, name: str) -> str:
    """Wait for a workload that succeeds; what it wrote."""
    done = one.roost("wait", name, "--timeout", "60s")
    assert done.returncode == 0, done.stderr.decode()
    return one.roost("logs", name).stdout.decode()


def run_of(stderr: bytes) -> str:
    """The name of a run that was followed."""
    (line,) = [line for line in stderr.decode().splitlines() if line.startswith("roost: run ")]
    return line.split()[2].rstrip(":")


def test_no_example_is_forgotten() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == RUN_HERE
    listed = (EXAMPLES / "README.md").read_text()
    assert [
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".py") and path.name not in listed
    ] == []


def test_release(one: Served) -> None:
    started = one.roost("ci", "run", "--no-follow", str(EXAMPLES / "release.yaml"))
    assert started.returncode == 0, started.stderr.decode()
    run = started.stdout.decode().strip()
    assert one.roost("wait", f"release-{run}-build", "--timeout", "60s").returncode == 0
    assert one.roost("ci", "approve", run, "Go live").returncode == 0
    followed = one.roost("ci", "follow", run)
    assert followed.returncode == 0, followed.stderr.decode()
    assert b'released {"version":"1.4.2","changed":true}' in followed.stdout
    assert b"report a failure is skipped: its condition is false" in followed.stderr
    assert b"approved by" in one.roost("show", f"release-{run}-Go-live.0").stdout


def test_container(one: Served) -> None:
    applied(one, "container.yaml")
    assert finished(one, "boxed") == "goodbye from 13 letters\n"


def test_vm(one: Served) -> None:
    applied(one, "vm.yaml")
    finished(one, "tiny")  # its guest has nothing to do, and powers off


def test_integration(one: Served) -> None:
    done = one.roost("ci", "run", str(EXAMPLES / "integration.yaml"))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"test | 200\n"
    run = run_of(done.stderr)
    assert one.roost("wait", f"{run}-test-web", "--timeout", "60s").returncode == 1
    assert b"is finished" in one.roost("show", f"{run}-test-web").stdout


def test_reports(one: Served) -> None:
    done = one.roost("ci", "run", str(EXAMPLES / "reports.yaml"))
    assert done.returncode == 0, done.stderr.decode()
    assert b"publish    | unit.xml" in done.stdout
    run = run_of(done.stderr)
    shown = one.roost("ci", "show", run).stdout.decode()
    assert "Tests of unit tests: 1 passed, 1 skipped\n  slow: 500ms cart::adds\n" in shown


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


def test_sweep(one: Served) -> None:
    applied(one, "sweep.yaml")
    answer = [line for line in finished(one, "sweep").splitlines() if line.startswith("rate")]
    assert answer == [
        "rate 0.1 with seed 1 is slow",
        "rate 0.1 with seed 2 is slow, again",
        "rate 0.5 with seed 1 is quick",
    ]


def test_pipeline(one: Served) -> None:
    done = one.roost("ci", "run", str(EXAMPLES / "pipeline.yaml"), "--var", "GREETING=hi")
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.decode().splitlines()) == [
        "build  | hi",
        "lint   | nothing to complain about",
        "report | all actions are finished",
        "test.0 | testing with red",
        "test.1 | testing with green",
        "test.2 | testing with blue",
    ]


def test_array_over_csv_with_files(one: Served, tmp_path: Path) -> None:
    licence = Path("/tmp/roost-example-licence")
    licence.unlink(missing_ok=True)
    applied(one, "csv-array/array.yaml")
    assert one.roost("wait", "squares-of-rows", "--timeout", "120s").returncode == 1
    found = json.loads(one.roost("outputs", "squares-of-rows", "--json").stdout)
    assert [item["index"] for item in found if item["state"] == "failed"] == [249, 499, 749, 999]
    try:
        licence.touch()
        assert one.roost("retry", "squares-of-rows", "--failed").returncode == 0
        assert one.roost("wait", "squares-of-rows", "--timeout", "60s").returncode == 0
    finally:
        licence.unlink()
    done = one.roost("get", "squares-of-rows", "--to", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr.decode()
    assert len(list((tmp_path / "results").glob("*/square.txt"))) == 1_000
    assert (tmp_path / "results" / "999" / "square.txt").read_text() == "999 squared is 998001\n"


def test_python_project(one: Served, tmp_path: Path) -> None:
    done = one.roost("ci", "run", str(EXAMPLES / "python-project" / "pipeline.yaml"))
    assert done.returncode == 0, done.stderr.decode()
    assert "package | it-works" in done.stdout.decode()
    (run,) = json.loads(one.roost("ci", "list", "slugs", "--json").stdout)
    assert one.roost("get", f"slugs-{run['run']}-build", "--to", str(tmp_path / "got")).returncode == 0
    assert (tmp_path / "got" / "dist" / "slugs.zip").is_file()
    (entry,) = json.loads(one.roost("ci", "cache", "list", "--json").stdout)
    assert entry["key"].startswith("pyc-") and entry["files"] == 2
    again = one.roost("ci", "run", str(EXAMPLES / "python-project" / "pipeline.yaml"), "--only", "lint")
    assert again.returncode == 0, again.stderr.decode()
    lint = f"{run_of(again.stderr)}-lint.0"
    assert f"cache hit {entry['key']}" in one.roost("show", lint).stdout.decode()


def test_template(one: Served) -> None:
    done = one.roost("templates", "apply", str(EXAMPLES / "template.yaml"))
    assert done.returncode == 0, done.stderr.decode()
    evil = '\'; exit 3; "$(id)" `id`'
    done = one.roost("run", "--template", "train", "-P", "epochs=3", "-P", "lr=0.1", "-P", f"note={evil}")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert lines == ["training with rate 0.1 for 3 epochs", "weight 2.000", f"note {evil}"]
    assert one.roost("run", "--template", "train", "-P", "epochs=0").returncode == 2


def test_service(one: Served) -> None:
    applied(one, "service.yaml")
    assert one.roost("wait", "ticker", "--for", "running", "--timeout", "30s").returncode == 0
    assert json.loads(one.roost("show", "ticker", "--json").stdout)["counts"] == {"running": 2}
    assert one.roost("cancel", "ticker").returncode == 0
    assert one.roost("wait", "ticker", "--timeout", "30s").returncode == 1
    assert one.roost("logs", "ticker.0").stdout.endswith(b"bye\n")


def test_rolling(one: Served) -> None:  # tests/e2e/test_rolling.py goes on from here
    done = one.roost("apply", "-f", str(EXAMPLES / "rolling.yaml"), "--wait", "--timeout", "60s")
    assert done.returncode == 0, done.stderr.decode()
    assert len(one.roost("services", "web", "--plain").stdout.split()) == 3
    assert one.roost("cancel", "web").returncode == 0


def test_results(one: Served) -> None:
    applied(one, "results.yaml")
    assert finished(one, "publish") == 'publishing {"name":"c","score":0.92}\n'
    lines = one.roost("result", "candidates").stdout.decode().splitlines()
    assert lines[1] == '{"index":1,"result":{"name":"b","score":0.91}}' and len(lines) == 3


def test_pinned(one: Served) -> None:
    applied(one, "pinned.yaml", code=4)
    assert finished(one, "pinned").startswith("Linux ")
    why = json.loads(one.roost("why", "nowhere", "--json").stdout)
    assert why["code"] == "unsatisfiable"
    assert "the-moon" in why["message"]


def test_placement() -> None:
    argv = [*ROOST, "sim", "place", str(EXAMPLES / "placement.yaml"), "--json"]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr.decode()
    placed = {placement["instance"]: placement for placement in json.loads(done.stdout)["placements"]}
    assert {name: item["node"] for name, item in placed.items()} == {
        "web.0": "busy",
        "web.1": "small",
        "database.0": "large",
        "cache.0": "large",
        "batch.0": "busy",
        "queue.0": "busy",
        "queue.1": "small",
        "train.0": "gpus",
    }
    assert placed["train.0"]["devices"] == [1, 2]
    assert placed["web.1"]["ports"] == {"http": 80, "metrics": 20_000}


def test_the_plug_in(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    made = subprocess.run(build, cwd=EXAMPLES / "plugin", capture_output=True, timeout=DEADLINE_S)
    assert made.returncode == 0, made.stderr.decode()
    (wheel,) = tmp_path.glob("*.whl")  # a wheel can be imported as it is, and its entry points are seen
    argv = [*ROOST, "sim", "place", str(EXAMPLES / "plugin" / "fleet.yaml"), "--json"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(wheel)}, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 4, done.stderr.decode()
    outcome = json.loads(done.stdout)
    assert {
        placement["instance"]: (placement["node"], placement["strategy"]) for placement in outcome["placements"]
    } == {
        "tests.0": ("spot", "cheapest_first"),
        "tests.1": ("spot", "cheapest_first"),
        "tests.2": ("small", "cheapest_first"),
        "build.0": ("large", "cheapest_first"),
    }
    (huge,) = outcome["pending"]
    assert {"reason": "quarantine: disk errors", "nodes": 1} in huge["blockers"]


def test_the_client(one: Served) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "run_and_read.py"], env=one.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "instance 0 on node-1: 2 3 5 7 11" in done.stdout
    assert done.stdout.count("instance ") == 4


def test_three_servers() -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = EXAMPLES / "high-availability" / "three-servers.sh"
    with postgres.running() as database:
        env = {**os.environ, "PATH": programs, "PORT": str(free_port())}  # and the two behind it
        done = subprocess.run([script, database.dsn], env=env, capture_output=True, text=True, timeout=2 * DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " is the leader now; " in done.stdout
    assert "steady.0 is succeeded on n1" in done.stdout
    assert "Attempt:    1\n" in done.stdout
