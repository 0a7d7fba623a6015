"""The past on the command line: finished workloads, what happened, stories, and everything as it was."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from roost.cli.common.exit_codes import USAGE
from roost.cli.work.history import tell_behind
from roost.schema.page import HistoryBehind
from tests.cli.serving import DEADLINE_S, ROOST, Served, up, wait_until

SECRET = "not-for-tables"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("past")) as served:
        assert (
            served.roost("run", "--name", "good", "--cpu", "0.1", "--env", f"A={SECRET}", "--", "true").returncode == 0
        )
        assert served.roost("run", "--name", "bad", "--cpu", "0.1", "--", "sh", "-c", "exit 7").returncode == 7
        assert served.roost("run", "--name", "many", "--count", "3", "--cpu", "0.1", "--", "true").returncode == 0
        wait_until(lambda: len(reported(served, "history")) == 3)
        yield served


def reported(served: Served, *message: str) -> Any:
    done = served.roost(*message, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def printed(served: Served, *message: str) -> str:
    done = served.roost(*message)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_finished_workloads_newest_first(one: Served) -> None:
    lines = printed(one, "history").splitlines()
    assert lines[0].split() == ["FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "WAITED", "RAN", "CAUSE"]
    assert [item["name"] for item in reported(one, "history")] == ["many", "bad", "good"]
    assert "3 succeeded" in lines[1] and "node-1" in lines[2] and " 7 " in lines[2]
    assert [item["name"] for item in reported(one, "history", "--state", "failed")] == ["bad"]
    assert [item["name"] for item in reported(one, "history", "default/goo", "--since", "1h")] == ["good"]
    assert reported(one, "history", "--until", "1h") == []
    first = reported(one, "history")[0]
    assert first["submitted_ms"] < first["finished_ms"] and first["count"] == 3


def test_values_of_variables_are_not_shown(one: Served) -> None:
    for arguments in (("history",), ("history", "--json"), ("events",), ("show", "good", "--story")):
        assert SECRET not in printed(one, *arguments)


def test_nothing_found_says_what_to_do(one: Served) -> None:
    done = one.roost("history", "nothing-like-it")
    assert (done.returncode, done.stdout) == (0, b"") and b"`roost ps` lists" in done.stderr
    done = one.roost("events", "--node", "nowhere")
    assert (done.returncode, done.stdout) == (0, b"") and b"`roost history` shows" in done.stderr


@pytest.mark.parametrize(
    "message", [("history", "--since", "yesterday"), ("ps", "--at", "25:99"), ("ps", "--at", "now")]
)
def test_a_time_that_is_none_is_refused_with_examples(one: Served, message: tuple[str, ...]) -> None:
    done = one.roost(*message)
    assert done.returncode == USAGE and b"a duration ago (2h)" in done.stderr


def test_events_of_one_workload_oldest_first(one: Served) -> None:
    happened = reported(one, "events", "bad")
    whats = [item["what"] for item in happened if item["kind"] != "audit"]
    assert whats[:3] == ["submitted", "queued", "placed"] and whats[-2:] == ["failed", "failed"]
    assert all(item["at_ms"] > 1_700_000_000_000 for item in happened)
    assert "exit code 7" in printed(one, "events", "bad.0", "--what", "failed")
    assert {item["index"] for item in reported(one, "events", "many", "--kind", "instance")} == {0, 1, 2}


def test_events_are_followed_as_they_happen(one: Served) -> None:
    arguments = [*ROOST, "events", "-f", "--kind", "instance", "--since", "1h", "--json"]
    with subprocess.Popen(arguments, env=one.env, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        for line in following.stdout:  # what was; then it goes on
            if json.loads(line)["workload"] == "many" and json.loads(line)["what"] == "succeeded":
                break
        assert one.roost("run", "--name", "later", "--cpu", "0.1", "--", "true").returncode == 0
        seen = []
        for line in following.stdout:
            event = json.loads(line)
            if event["workload"] == "later":
                seen.append(event["what"])
            if seen[-1:] == ["succeeded"]:
                break
        following.terminate()
    assert seen[:2] == ["queued", "placed"]


def test_a_story_has_times_causes_and_the_decision(one: Served) -> None:
    text = printed(one, "show", "many", "--story")
    assert text.count("Instance:") == 3 and text.count("Decision:   least_loaded") == 3
    assert "placed" in text and "on node-1 by least_loaded" in text
    (only,) = reported(one, "show", "many.1", "--story")
    assert only["index"] == 1 and [line["state"] for line in only["story"]][-1] == "succeeded"


def test_everything_as_it_was(one: Served) -> None:
    assert one.roost("run", "-d", "--name", "brief", "--cpu", "0.1", "--", "sleep", "300").returncode == 0
    assert one.roost("wait", "brief", "--for", "running", "--timeout", "20s").returncode == 0
    (placed,) = reported(one, "events", "brief", "--what", "placed")
    assert one.roost("cancel", "brief").returncode == 0
    one.roost("wait", "brief", "--timeout", "20s")
    for at in (f"@{placed['revision']}", str(placed["at_ms"])):
        done = one.roost("ps", "--at", at, "--json")
        assert [load["name"] for load in json.loads(done.stdout)] == ["brief"]
        assert f"(revision {placed['revision']})" in done.stderr.decode() and "as of 20" in done.stderr.decode()
        assert "is placed on node-1" in printed(one, "show", "brief", "--at", at)
        assert reported(one, "nodes", "--at", at)[0]["running"] == 1
        assert reported(one, "nodes", "show", "node-1", "--at", at)["instances"][0]["name"] == "brief"
    assert "cancelled" in printed(one, "show", "brief")
    done = one.roost("ps", "--at", "10000h")
    assert done.returncode == 1 and b"does not go back that far; it begins at 20" in done.stderr


def test_a_story_outlives_what_it_tells_of(tmp_path: Path) -> None:
    document = {"name": "gone", "command": "true", "retention": 0, "resources": {"cpu": 0.1}}
    (tmp_path / "gone.yaml").write_text(json.dumps(document))
    with up(tmp_path) as served:
        assert served.roost("apply", "-f", str(tmp_path / "gone.yaml")).returncode == 0
        wait_until(lambda: [item["name"] for item in reported(served, "history")] == ["gone"])
        assert served.roost("show", "gone").returncode == 1
        done = served.roost("show", "gone", "--story")
        assert done.returncode == 0 and b"from the history" in done.stderr and b"exit code 0" in done.stdout
        assert served.roost("show", "never-was", "--story").returncode == 1
        assert served.roost("run", "--name", "before", "--cpu", "0.1", "--", "true").returncode == 0
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait(DEADLINE_S)
    with up(tmp_path) as served:
        wait_until(lambda: {item["name"] for item in reported(served, "history")} == {"gone", "before"})
        assert served.roost("run", "--name", "after", "--cpu", "0.1", "--", "true").returncode == 0
        wait_until(lambda: {item["name"] for item in reported(served, "history")} == {"gone", "before", "after"})
        assert len(reported(served, "events", "before", "--what", "succeeded")) == 2, (
            "of the instance and the workload, once"
        )
    for path in tmp_path.glob("history.db*"):
        path.unlink()
    with up(tmp_path, "--history", "off") as served:
        done = served.roost("history")
        assert done.returncode == 1 and b"--history on" in done.stderr
        assert not (tmp_path / "history.db").exists()
    with up(tmp_path) as served:
        wait_until(lambda: {item["name"] for item in reported(served, "history")} == {"before", "after"})


def test_local_times_are_understood(one: Served) -> None:
    minute = datetime.fromtimestamp(time.time() - 60).strftime("%Y-%m-%dT%H:%M:%S")
    assert reported(one, "history", "--since", "00:00") != [] or datetime.now().hour == 0
    assert isinstance(reported(one, "history", "--until", minute), list)


def test_an_array_that_failed_has_no_exit_code_of_its_own(one: Served) -> None:
    typed_words = ("--name", "mixed", "--count", "2", "--cpu", "0.1", "--", "sh", "-c", "exit $ROOST_INDEX")
    assert one.roost("run", *typed_words).returncode == 1
    wait_until(lambda: bool(reported(one, "history", "mixed")))
    (over,) = reported(one, "history", "mixed")
    assert (over["state"], over["exit_code"], over["node"]) == ("failed", None, "")


def test_an_answer_that_lacks_commits_says_up_to_when_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    tell_behind(HistoryBehind(7, 86_400_000, "S3 is away"))
    tell_behind(HistoryBehind(0, 0))
    tell_behind(None)
    behind, empty = capsys.readouterr().err.splitlines()
    assert "as of 1970-01-02" in behind and behind.endswith("(revision 7): S3 is away")
    assert empty.endswith("the answer is incomplete")
