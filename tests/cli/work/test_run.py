"""From the options of `roost run` to a workload, and from how it ended to an exit code."""

import time
from typing import Any

import click
import pytest

from roost.cli.common.interrupts import Interrupts, Watcher
from roost.cli.work.run import exit_code_of, make_document, run
from roost.cli.work.why import BLOCKED_CODES, UNKNOWN, explain, pending_reasons
from roost.client import ApiError, Client
from roost.model.spec.document import check_document, read_document
from roost.schema.feed import EndingView


def document(*message: str) -> dict[str, Any]:
    """The workload that these words ask for; whatever it is, the server would take it."""
    given = run.make_context("run", list(message)).params
    made = make_document(given.pop("argv"), given)
    check_document(read_document(made))
    return made


def test_omitted_options_are_left_to_the_server() -> None:
    made = document("--name", "x", "--", "sh", "-c", "echo $HOME")
    assert made == {
        "name": "x",
        "project": "default",
        "command": ["sh", "-c", "echo $HOME"],
        "resources": {},
        "count": 1,
    }


def test_options_after_the_command_belong_to_the_command() -> None:
    assert document("ls", "--name", "-d")["command"] == ["ls", "--name", "-d"]
    assert document("--", "--odd")["command"] == ["--odd"]


def test_every_field_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "yes")
    message = (
        "--cpu 500m --memory 1GiB --disk 2G --gpu 1 --resource licence=2 -e A=b=c -e FROM_HERE --timeout 10m "
        "--grace 3s --queue-timeout 1h --priority 70 --count 3 --pool ci --require zone=='a' --strategy best_fit "
        "--retries 5 --no-fenced --stderr separate -p web"
    )
    made = document(*message.split(), "--", "true")
    assert made.pop("name").startswith("true-")
    assert made == {
        "project": "web",
        "command": ["true"],
        "resources": {"cpu": "500m", "memory": "1GiB", "disk": "2G", "gpu": 1, "licence": "2"},
        "count": 3,
        "env": {"A": "b=c", "FROM_HERE": "yes"},
        "placement": {"pool": "ci", "strategy": "best_fit", "require": ["zone=='a'"]},
        "timeout": "10m",
        "grace": "3s",
        "queue_timeout": "1h",
        "priority": 70,
        "retries": 5,
        "fenced": False,
        "stderr": "separate",
    }


def test_no_retries_is_not_the_same_as_the_default() -> None:
    assert document("--retries", "0", "--priority", "0", "--", "true").items() >= {"retries": 0, "priority": 0}.items()


@pytest.mark.parametrize("program", ["/usr/bin/python3.11", "./build.sh", "...", "naïve", "x" * 200, "a--b-"])
def test_names_that_are_made_are_good_names(program: str) -> None:
    assert document("--", program)["name"] != document("--", program)["name"]


def test_a_variable_that_is_not_there_is_wrong_usage() -> None:
    with pytest.raises(click.UsageError, match="NOT_SET_ANYWHERE"):
        document("-e", "NOT_SET_ANYWHERE", "--", "true")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (EndingView("succeeded", exit_code=0), 0),
        (EndingView("failed", exit_code=7), 7),
        (EndingView("failed", signal=9), 137),
        (EndingView("failed", message="not found in PATH"), 1),
        (EndingView("timed_out", signal=15), 124),
        (EndingView("cancelled", signal=15), 143),
        (EndingView("cancelled"), 1),
        (EndingView("expired"), 1),
        (EndingView("rejected"), 4),
        (EndingView("gone"), 1),
    ],
)
def test_how_it_ended_is_the_exit_code(ending: EndingView, code: int) -> None:
    assert exit_code_of(ending) == code


class Unexplained(Client):
    """A server whose answers to `why` fail."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.workloads.why = self._why  # type: ignore[method-assign]

    def _why(self, *_: object, **__: object) -> Any:
        raise ApiError(503, "answer_failed", "the process died 2 times")


def test_an_explanation_that_fails_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with Interrupts() as interrupts, Unexplained("http://127.0.0.1:1") as client:
        watcher = Watcher("job", interrupts, lambda: None, lambda: pending_reasons(client, "default", "job"))
        for _ in range(2):  # the second time it has been reported
            watcher._ask_at = time.monotonic()
            assert watcher.tick(False) is not None
    assert capsys.readouterr().err.count("job is pending is not known now: the process died 2 times") == 1


def test_an_explanation_that_fails_does_not_fail_a_detached_run(capsys: pytest.CaptureFixture[str]) -> None:
    with Unexplained("http://127.0.0.1:1") as client:
        why = explain(client, "default", "job")
    assert (why.code, why.state) == (UNKNOWN, "queued")
    assert why.code not in BLOCKED_CODES
