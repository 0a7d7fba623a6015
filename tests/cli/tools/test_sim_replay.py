"""roost sim replay: what is printed, what is written, and what is refused."""

import json
import random
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from roost_lab.traces.swf import QUEUES

from roost.cli import root
from roost.cli.common.exit_codes import FAILED, USAGE

METRICS = {"bounded_slowdown_mean", "utilisation", "wait_mean_s", "wait_p95_s", "wait_max_s", "jobs"}


def typed(*typed_words: object) -> Result:
    return CliRunner().invoke(root, ["sim", "replay", *map(str, typed_words)], catch_exceptions=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for windows, small enough to be quick."""
    chance = random.Random(1)
    lines = ["; MaxProcs: 32"]
    submitted = 0
    for number in range(1, 2_201):
        submitted += chance.randint(0, 60)
        run, procs = chance.choice((3, 30, 300, 1_000)), chance.choice((1, 2, 8, 32))
        lines.append(f"{number} {submitted} -1 {run} {procs} -1 -1 {procs} {run * 2} -1 1 1 1 -1 -1 -1 -1 -1")
    path = tmp_path_factory.mktemp("log") / "some.swf"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("protocol", ["windows", "log"])
def test_one_queue_is_one_flat_object(log: Path, protocol: str) -> None:
    result = typed("--trace", "swf", log, "--queue", "ours", "--backfill", "--protocol", protocol, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["trace"], answer["queue"], answer["protocol"], answer["backfill"]) == ("swf", "ours", protocol, True)
    assert answer.keys() >= METRICS
    assert answer["jobs"] == (10_240 if protocol == "windows" else 2_200)
    assert 0 < answer["utilisation"] <= 1 <= answer["bounded_slowdown_mean"]


def test_several_queues_are_a_list_in_the_order_given(log: Path) -> None:
    result = typed("--trace", "swf", log, "--queue", "sjf", "--queue", "fcfs", "--queue", "sjf", "--json")
    answer = json.loads(result.stdout)
    assert [replay["queue"] for replay in answer["replays"]] == ["sjf", "fcfs"]
    assert answer["replays"][0]["wait_mean_s"] < answer["replays"][1]["wait_mean_s"]


def test_all_queues_side_by_side_for_people(log: Path) -> None:
    result = typed("--trace", "swf", log, "--queue", "all", "--backfill")
    header, *rows = result.stdout.splitlines()
    assert header.split()[:2] == ["QUEUE", "BOUNDED_SLOWDOWN_MEAN"]
    assert [row.split()[0] for row in rows] == list(QUEUES)


def test_other_windows_have_other_figures(log: Path) -> None:
    arguments = ("--trace", "swf", log, "--queue", "area", "--protocol", "windows", "--json")
    assert json.loads(typed(*arguments).stdout) == json.loads(typed(*arguments, "--seed", 1).stdout)
    assert json.loads(typed(*arguments).stdout) != json.loads(typed(*arguments, "--seed", 2).stdout)


def test_the_same_replay_is_the_same_twice(log: Path) -> None:
    arguments = ("--trace", "swf", log, "--queue", "all", "--backfill", "--json")
    assert typed(*arguments).stdout == typed(*arguments).stdout


def test_a_report_is_one_page_with_its_plots_in_it(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    out = tmp_path / "made" / "here"
    result = typed("--trace", "swf", log, "--queue", "fcfs", "--queue", "ours", "--backfill", "--report", out)
    assert result.exit_code == 0
    names = {"report.html", "report.json", "figures.png", "utilisation.png", "waiting.png", "wait.png"}
    assert {path.name for path in out.iterdir()} == names
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names if name.endswith("png"))
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page
    replays = json.loads((out / "report.json").read_text())["replays"]
    assert [replay["strategy"] for replay in replays] == ["fcfs", "ours"]
    assert all(replay["metrics"].keys() >= METRICS and replay["series"] for replay in replays)


def test_without_the_extra_a_report_says_what_to_install(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    result = typed("--trace", "swf", log, "--queue", "fcfs", "--report", tmp_path / "out")
    assert result.exit_code == FAILED
    assert "pip install 'roost[plots]'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("message", "report"),
    [
        (["--trace", "swf", "LOG"], "--queue: is missing"),
        (["--trace", "swf", "LOG", "--queue", "best"], "no queue is called 'best'; there are fcfs, sjf"),
        (["--trace", "swf", "--queue", "fcfs"], "FILE: is missing"),
        (["--trace", "swf", "nowhere.swf", "--queue", "fcfs"], "'nowhere.swf' does not exist"),
        (["--trace", "swf", "LOG", "--queue", "fcfs", "--seeds", "3"], "--seeds: does not belong to the trace swf"),
        (["--trace", "swf", "LOG", "--queue", "fcfs", "--strategy", "fgd"], "--strategy: does not belong"),
        (["--trace", "swf", "LOG", "--queue", "fcfs", "--true-wait"], "--true-wait: belongs to --protocol windows"),
        (["--trace", "swf", "LOG", "--queue", "fcfs", "--procs", "16"], "asks for 32 processors, there are 16"),
        (["--trace", "azure-vm", "LOG", "--queue", "fcfs"], "--queue: does not belong to the trace azure-vm"),
        (["--trace", "openb", "LOG"], "FILE: does not belong to the trace openb, but to swf and azure-vm"),
        (["--trace", "tape", "LOG"], "'tape' is not one of"),
        (["LOG", "--queue", "fcfs"], "Missing option '--trace'"),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(log: Path, message: list[str], report: str) -> None:
    result = typed(*(log if word == "LOG" else word for word in message))
    assert result.exit_code == USAGE
    assert report in result.stderr
    assert result.stdout == ""


def test_a_wrong_line_is_reported_with_its_number_in_json_also(tmp_path: Path) -> None:
    path = tmp_path / "bad.swf"
    path.write_text("; MaxProcs: 4\n\n1 2 3\n")
    result = typed("--trace", "swf", path, "--queue", "fcfs", "--json")
    assert result.exit_code == USAGE
    error = json.loads(result.stdout)["error"]
    message = "bad.swf:3: 3 columns; a line of a log has 18"
    assert error == {"code": "invalid", "message": message, "path": "bad.swf:3"}


def test_windows_of_a_short_log_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.swf"
    path.write_text("; MaxProcs: 4\n1 0 -1 5 1 -1 -1 1 5 -1 1 1 1 -1 -1 -1 -1 -1\n")
    result = typed("--trace", "swf", path, "--queue", "fcfs", "--protocol", "windows")
    assert result.exit_code == USAGE
    assert "at least 2,050 jobs" in result.stderr
