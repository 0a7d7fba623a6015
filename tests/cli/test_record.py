"""A real server records, is killed, records on; what it decided is decided again from what it wrote."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from roost.cli import root
from roost.cli.common.exit_codes import USAGE
from roost.server.engine.recording import journals_in
from tests.cli.serving import DEADLINE_S, ROOST, up
from tests.core.scene import job
from tests.sim.recording import Recorded

METRICS = {"steps", "placements", "wait_mean_s", "utilisation", "peak_nodes"}


def typed(*typed_words: object) -> Result:
    return CliRunner().invoke(
        root, ["sim", "replay", "--trace", "roost", *map(str, typed_words)], catch_exceptions=False
    )


def reported(*message: object) -> Any:
    result = typed(*message, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Four jobs that were spread over two nodes."""
    folder = tmp_path / "history"
    scene = Recorded(folder, "a", "b")
    for number in range(4):
        scene.submit(job(f"job-{number}"))
        scene.running(f"job-{number}.0")
    scene.wait("1s")
    scene.ended(*(f"job-{number}.0" for number in range(4)))
    scene.history(folder)
    return folder


def test_what_a_real_server_did_is_decided_again(tmp_path: Path) -> None:
    history = tmp_path / "history"
    arguments = ("--record-decisions", str(history), "--strategy", "round_robin", "--lease", "2000")
    with up(tmp_path, *arguments, agents=2) as served:
        assert served.roost("run", "--count", "6", "--cpu", "0.1", "--", "true").returncode == 0
        assert served.roost("run", "-d", "--name", "long", "--cpu", "0.1", "--", "sleep", "300").returncode == 0
        assert served.roost("wait", "long", "--for", "running", "--timeout", "20s").returncode == 0
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait(DEADLINE_S)
    with up(tmp_path, *arguments, agents=2) as served:
        assert served.roost("run", "--cpu", "0.1", "--", "false").returncode == 1
        assert served.roost("cancel", "long").returncode == 0
        assert served.roost("wait", "long", "--timeout", "20s").returncode != 0
    assert len(journals_in(history)) == 2
    exact = reported(history)
    assert (exact["same_decisions"], exact["first_difference"], exact["lives"]) == (True, None, 2)
    assert exact["recorded_strategy"] == "round_robin"
    assert exact["placements"] >= 8 and exact["peak_nodes"] == 2 and 0 < exact["utilisation"] < 1
    other = reported(history, "--strategy", "first_fit")
    assert other["replayed_exactly"] is True and other["moved"] > 0
    assert {move["would_be"] for move in other["moves"]} >= {"node-1"}


def test_what_happened_is_one_flat_object(recorded: Path) -> None:
    exact = reported(recorded)
    assert exact.keys() >= METRICS
    assert (exact["trace"], exact["strategy"], exact["placements"]) == ("roost", "recorded", 4)
    assert (exact["same_decisions"], exact["first_difference"]) == (True, None)
    assert reported(*recorded.iterdir()) == exact | {"file": next(recorded.iterdir()).name}


def test_strategies_side_by_side(recorded: Path) -> None:
    replays = reported(recorded, "--strategy", "recorded", "--strategy", "best_fit")["replays"]
    assert [replay["strategy"] for replay in replays] == ["recorded", "best_fit"]
    assert (replays[1]["moved"], len(replays[1]["moves"])) == (2, 2)
    assert replays[1].keys() >= METRICS | {"same_decisions", "first_difference", "replayed_exactly"}


def test_the_table_shows_instances_that_would_have_gone_elsewhere(recorded: Path) -> None:
    lines = typed(recorded, "--strategy", "best_fit").stdout.splitlines()
    assert lines[0].split()[:3] == ["STRATEGY", "STEPS", "PLACEMENTS"]
    assert "best_fit: moved: 2" in lines
    assert ["default/job-1.0", "1", "b", "a"] in [line.split() for line in lines]


def test_a_report_tells_it_too(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    assert typed(recorded, "--strategy", "best_fit", "--report", tmp_path / "out").exit_code == 0
    assert "<td>default/job-1.0</td><td>1</td><td>b</td><td>a</td>" in (tmp_path / "out" / "report.html").read_text()
    [replay] = json.loads((tmp_path / "out" / "report.json").read_text())["replays"]
    assert replay["details"]["moved"] == 2


def test_what_cannot_be_read_is_a_sentence_and_exit_code_2(recorded: Path) -> None:
    [path] = recorded.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + b"!" + whole[-99:])
    for arguments, sentence in (
        ((recorded,), "damaged at byte"),
        ((recorded, "--strategy", "psychic"), "no strategy is called 'psychic'"),
        ((recorded, "--queue", "fcfs"), "--queue: does not belong to the trace roost"),
        ((), "FILE: is missing"),
    ):
        result = typed(*arguments)
        assert (result.exit_code, result.stdout) == (USAGE, "")
        assert sentence in result.stderr


def test_other_traces_are_no_folders(tmp_path: Path) -> None:
    arguments = ["sim", "replay", "--trace", "swf", str(tmp_path), "--queue", "fcfs"]
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == USAGE and "is a directory" in result.stderr


def test_a_folder_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = [
        "server",
        "--data",
        str(tmp_path),
        "--listen",
        "127.0.0.1:0",
        "--record-decisions",
        str(tmp_path / "file" / "there"),
    ]
    done = subprocess.run([*ROOST, *arguments], capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert b"cannot record into" in done.stderr
