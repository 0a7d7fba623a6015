"""roost ci against a real server without nodes: files that are wrong, runs that wait, and how they are found again."""

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.cli.ci.follow import RunFollower
from roost.cli.ci.output import LINE_BYTES_MAX, Lines
from roost.cli.ci.runs import find_run, runs_of
from roost.cli.ci.stages import Stage, exit_code, result_of
from roost.cli.common.interrupts import Interrupts
from roost.client import Client
from roost.client.stream import ServerEvent
from roost.schema.work import InstanceView, WorkloadView
from tests.cli.conftest import Type
from tests.cli.serving import Served

NUMBERS = count()
PIPELINE = """
name: {name}
actions:
  - {{name: deploy, needs: {{test: finished, lint: succeeded}}, steps: [make deploy]}}
  - {{name: build, steps: [make, make docs]}}
  - {{name: test, needs: [build], each: [a, b], steps: [make test]}}
  - {{name: lint, steps: [{{run: make lint}}]}}
"""

Write = Callable[[str], str]


@pytest.fixture
def pipeline(tmp_path: Path) -> Write:
    """Write a pipeline; its file."""

    def write(text: str) -> str:
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def name() -> str:
    return f"web-{next(NUMBERS)}"


@pytest.fixture
def client(server: Served) -> Any:
    with server.client() as client:
        yield client


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_would_run_is_shown_in_order(typed: Type, pipeline: Write) -> None:
    done = typed("ci", "check", pipeline(PIPELINE.format(name="web")))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "web",
        "├── build           process, 2 steps",
        "│   └── test        process, 1 step, 2 elements, after build",
        "│       └── deploy  process, 1 step, after test (finished) and lint",
        "└── lint            process, 1 step",
    ]


def test_what_would_run_as_json_and_only_some_of_it(typed: Type, pipeline: Write) -> None:
    done = typed("ci", "check", pipeline(PIPELINE.format(name="web")), "--only", "test", "--json")
    assert json.loads(done.stdout) == {
        "name": "web",
        "project": "default",
        "actions": [{"name": "build", "needs": {}}, {"name": "test", "needs": {"build": "succeeded"}}],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("actions: [{name: a, steps: [x]}]", "name: a pipeline needs a name"),
        ("name: w\nactions: [{steps: [x]}]", "actions[0].name: an action needs a name"),
        ("name: w\nactions: [{name: a}]", "actions[0].steps: an action needs steps"),
        ("name: w\nactions: [{name: a, steps: []}]", "actions[0].steps: this must be 1 to 100 steps, not 0"),
        ("name: w\nactions: [{name: a, steps: [x], run: y}]", "actions[0].run: there is no such field"),
        ('name: w\nactions: [{name: "a\\tb", steps: [x]}]', "actions[0].name: this must be one line"),
        ("name: w\nactions: [{name: a, steps: [x], needs: [b]}]", "actions[0].needs[0]: there is no action 'b'"),
        ("name: w\n---\nname: v\n", "a file holds one pipeline; this one has 2 documents"),
        ("", "there is nothing in it"),
        ("name: [", "this is not YAML or JSON"),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_wrong_file_is_reported_with_its_place_and_nothing_is_submitted(
    typed: Type, client: Client, pipeline: Write, command: str, text: str, message: str
) -> None:
    before = client.status().revision
    file = pipeline(text)
    done = typed("ci", command, file)
    assert done.exit_code == 2
    assert f"roost: {file}: {message}" in done.stderr
    assert done.stdout == ""
    assert client.status().revision == before


def test_other_ways_to_be_wrong(typed: Type, pipeline: Write) -> None:
    file = pipeline(PIPELINE.format(name="web"))
    assert typed("ci", "run", "no-such-file.yaml").exit_code == 2
    assert "there is no action 'tset'" in typed("ci", "run", file, "--only", "tset").stderr
    assert "K=V" in typed("ci", "run", "--help").stdout
    assert typed("ci", "run", file, "--var", "nothing").exit_code == 2
    assert "retention" in typed("ci", "run", file, "--retention", "soon").stderr


def test_what_the_server_refuses_is_reported_with_its_place_in_the_file(
    typed: Type, client: Client, pipeline: Write, name: str
) -> None:
    text = f"""
name: {name}
actions:
  - {{name: second, needs: [first], steps: [x], env: {{TOKEN: {{secret: none-has-it}}}}}}
  - {{name: first, steps: [x]}}
  - {{name: other, steps: [x]}}
"""
    done = typed("ci", "run", pipeline(text))
    assert done.exit_code == 2
    assert "pipeline.yaml: actions[0].env.TOKEN" in done.stderr
    assert client.workloads.list(label=f"pipeline={name}") == []


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_found_again(typed: Type, client: Client, pipeline: Write, name: str) -> None:
    done = typed("ci", "run", pipeline(PIPELINE.format(name=name)), "--no-follow", "--var", "A=b", "--retention", "1h")
    assert done.exit_code == 4
    assert "no node is online" in done.stderr
    run = done.stdout.strip()
    listed = json.loads(typed("ci", "list", name, "--json").stdout)
    assert [(item["run"], item["state"], len(item["actions"])) for item in listed] == [(run, "queued", 4)]
    assert typed("ci", "list", name).stdout.splitlines()[1].split()[:6] == [run, name, "queued", "0", "of", "4"]
    for word in (run, f"{name}-{run}"):
        shown = json.loads(typed("ci", "show", word, "--json").stdout)
        assert [(action["action"], action["state"]) for action in shown["actions"]] == [
            ("build", "queued"),
            ("lint", "queued"),
            ("test", "queued"),
            ("deploy", "queued"),
        ]
    document = client.workloads.get("default", f"{name}-{run}-deploy").document
    assert document["labels"] == {"pipeline": name, "run": run, "action": "deploy"}
    assert (document["env"], document["retention"]) == ({"A": "b"}, "1h")
    assert document["after"] == [{"workload": f"{name}-{run}-test", "when": "finished"}, f"{name}-{run}-lint"]
    assert "ACTION" in typed("ci", "show", run).stdout
    assert typed("wait", f"ci:{run}", "--timeout", "50ms").exit_code == 124


def test_two_runs_do_not_meet_and_the_newest_comes_first(typed: Type, pipeline: Write, name: str) -> None:
    file = pipeline(PIPELINE.format(name=name))
    first, second = (typed("ci", "run", file, "--no-follow").stdout.strip() for _ in range(2))
    assert first != second
    assert [load["run"] for load in json.loads(typed("ci", "list", name, "--json").stdout)] == [second, first]
    assert [load["run"] for load in json.loads(typed("ci", "list", name, "--limit", "1", "--json").stdout)] == [second]


def test_the_project_is_that_of_the_file_or_the_one_given(
    typed: Type, client: Client, pipeline: Write, name: str
) -> None:
    text = f"name: {name}\nproject: shop\nactions: [{{name: a, steps: [x]}}]\n"
    run = typed("ci", "run", pipeline(text), "--no-follow", "-p", "other").stdout.strip()
    assert client.workloads.get("shop", f"{name}-{run}-a").project == "shop"
    assert typed("ci", "show", run).exit_code == 1
    assert typed("ci", "show", f"shop/{run}").exit_code == 0
    run = typed("ci", "run", pipeline(text.replace("project: shop\n", "")), "--no-follow", "-p", "other").stdout.strip()
    assert find_run(client, "other", run).name == f"{name}-{run}"


def test_an_unknown_run_says_where_to_look(typed: Type) -> None:
    for arguments in (("ci", "show", "abc"), ("ci", "retry", "web-abc"), ("wait", "ci:abc")):
        done = typed(*arguments)
        assert done.exit_code == 1
        assert "there is no run" in done.stderr
        assert "roost ci list" in done.stderr


def test_a_client_that_uses_the_labels_otherwise_is_left_out(client: Client, name: str) -> None:
    labels = {"pipeline": name, "run": "7", "action": "a"}
    client.workloads.submit({"name": f"{name}-other", "command": "true", "labels": labels})
    client.workloads.submit({"name": f"{name}-7-a", "command": "true", "labels": labels})
    (run,) = runs_of(client.workloads.list(label=f"pipeline={name}"))
    assert [workload.name for workload in run.workloads] == [f"{name}-7-a"]


def test_labels_are_shown_and_searched_for(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true", "labels": {"team=x": name}})
    assert client.workloads.get("default", name).labels == {"team=x": name}
    assert [workload.name for workload in client.workloads.list(label=f"team=x={name}")] == [name]
    assert [workload.labels for workload in client.workloads.list(project="default", name=name, label="team")] == []


# --- following without a node -----------------------------------------------------------------------------------------


def started(typed: Type, client: Client, pipeline: Write, name: str) -> tuple[Any, list[Stage]]:
    run = find_run(
        client, "default", typed("ci", "run", pipeline(PIPELINE.format(name=name)), "--no-follow").stdout.strip()
    )
    return run, [Stage(workload, {}) for workload in run.workloads]


def test_after_a_reset_everything_is_looked_at_again(
    typed: Type, client: Client, pipeline: Write, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run, stages = started(typed, client, pipeline, name)
    with Interrupts() as interrupts:
        following = RunFollower(client, run, stages, Lines(run, stages), interrupts)
        following.cancel_all()
        assert not any(stage.reported for stage in stages)
        following._changed(ServerEvent("9-9", "reset", '{"revision": 9}'))
    assert all(stage.reported for stage in stages)
    assert [stage.result().state for stage in stages] == ["cancelled"] * 4
    assert "build is cancelled" in capfd.readouterr().err


def test_cancelling_begins_with_pending_actions(typed: Type, client: Client, pipeline: Write, name: str) -> None:
    run, stages = started(typed, client, pipeline, name)
    with Interrupts() as interrupts:
        RunFollower(client, run, stages, Lines(run, stages), interrupts).cancel_all()
    ends = {workload.labels["action"]: workload.message for workload in find_run(client, "default", run.id).workloads}
    assert ends == dict.fromkeys(("build", "lint", "test", "deploy"), ends["build"])  # each of them was asked to
    assert "after" not in ends["deploy"]


def test_a_run_that_was_cancelled_can_be_retried(typed: Type, client: Client, pipeline: Write, name: str) -> None:
    run, stages = started(typed, client, pipeline, name)
    for workload in reversed(run.workloads):
        client.workloads.cancel(workload.project, workload.name)
    assert typed("ci", "retry", run.id, "--no-follow").exit_code == 4
    assert [workload.state for workload in find_run(client, "default", run.id).workloads] == ["queued"] * 4
    nothing = typed("ci", "retry", run.id)
    assert nothing.exit_code == 0
    assert "nothing to retry" in nothing.stderr


# --- waiting for any of them ------------------------------------------------------------------------------------------


def test_any_or_all(typed: Type, client: Client, name: str) -> None:
    client.workloads.submit_batch([{"name": f"{name}-{index}", "command": "true"} for index in range(3)])
    names = [f"{name}-{index}" for index in range(3)]
    assert typed("wait", *names, "--any", "--timeout", "50ms").exit_code == 124
    client.workloads.cancel("default", names[2])
    any_of = typed("wait", *names, "--any")
    assert (any_of.exit_code, any_of.stdout) == (1, f"{names[2]}\n")
    assert "is cancelled" in any_of.stderr
    for arguments in ((), ("--all",)):
        done = typed("wait", *names, "--timeout", "50ms", *arguments)
        assert done.exit_code == 124
        assert f"not finished in time: {names[0]}, {names[1]}\n" in done.stderr
    wait_a_moment(client)
    client.workloads.cancel("default", names[0])
    answer = json.loads(typed("wait", *names, "--any", "--json").stdout)
    assert [item["name"] for item in answer] == [names[2], names[0]]  # the one that ended first is in front


def wait_a_moment(client: Client) -> None:
    """Until the server's clock has gone on by a millisecond."""
    began = client.status().now_ms
    end = time.monotonic() + 10
    while client.status().now_ms <= began:
        assert time.monotonic() < end


def test_waiting_for_any_ends_with_a_push(server: Served, client: Client, name: str) -> None:
    import threading

    client.workloads.submit_batch([{"name": f"{name}-{index}", "command": "true"} for index in range(2)])

    def cancel_one() -> None:
        with server.client() as other:
            other.workloads.cancel("default", f"{name}-1")

    canceller = threading.Thread(target=cancel_one)
    canceller.start()
    done = client.workloads.wait([("default", f"{name}-0"), ("default", f"{name}-1")], timeout_s=20, any_of=True)
    canceller.join()
    assert [workload.name for workload in done] == [f"{name}-1"]


# --- what came of it --------------------------------------------------------------------------------------------------


def workload(action: str = "a", state: str = "failed", **fields: Any) -> WorkloadView:
    base = {"project": "default", "kind": "job", "count": 1, "counts": {}, "priority": 50, "submitted_ms": 1}
    labels = {"pipeline": "web", "run": "1", "action": action}
    return msgspec.convert(
        {**base, "name": f"web-1-{action}", "labels": labels, "state": state, **fields}, WorkloadView
    )


def instance(index: int = 0, state: str = "failed", **fields: Any) -> InstanceView:
    return InstanceView(project="default", name="x", index=index, state=state, attempt=1, **fields)


@pytest.mark.parametrize(
    ("state", "ending", "code"),
    [
        ("succeeded", {"exit_code": 0}, 0),
        ("failed", {"exit_code": 7}, 7),
        ("failed", {"signal": 9}, 137),
        ("failed", {}, 1),
        ("timed_out", {"signal": 15}, 124),
        ("cancelled", {"signal": 15}, 1),
        ("expired", {}, 1),
    ],
)
def test_the_exit_code_of_one_action(state: str, ending: dict[str, int], code: int) -> None:
    result = result_of(workload(state=state, finished_ms=9), [instance(state=state, **ending)])
    assert exit_code([result]) == code


def test_the_action_that_failed_first_gives_the_exit_code() -> None:
    late = result_of(workload("late", finished_ms=30), [instance(exit_code=4)])
    early = result_of(workload("early", finished_ms=20), [instance(exit_code=3)])
    cancelled = result_of(workload("never", "cancelled", finished_ms=10), [])
    fine = result_of(workload("fine", "succeeded", finished_ms=1), [instance(state="succeeded", exit_code=0)])
    assert exit_code([fine, late, early, cancelled]) == 3
    assert exit_code([fine, cancelled]) == 1
    assert exit_code([fine]) == 0


def test_of_an_array_the_first_element_that_failed_counts() -> None:
    elements = [instance(2, exit_code=6), instance(1, exit_code=5), instance(0, "succeeded", exit_code=0)]
    result = result_of(workload(finished_ms=9, count=3), elements)
    assert (result.exit_code, result.code) == (5, 5)


def test_an_action_that_was_not_kept_is_known_by_its_elements() -> None:
    result = result_of(workload(state="running"), [instance(state="succeeded", exit_code=0)])
    assert (result.state, result.code) == ("succeeded", 0)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"state": "placed", "attempt": 2, "losses": 1}, "a is to run again: node n1 lost"),
        ({}, {"state": "running", "attempt": 2, "failures": 1}, "a is to run again: the attempt before failed"),
        ({"state": "stopping"}, {"state": "placed", "attempt": 2}, "a is to run again: it had to leave n1"),
        ({}, {"state": "queued", "message": "node n1 lost: x"}, "a is to run again: node n1 lost: x"),
        ({"state": "queued"}, {"state": "running", "attempt": 2, "losses": 1}, "a runs on n2, attempt 2"),
        ({"state": "failed"}, {"state": "running", "attempt": 2}, "a runs on n2, attempt 2"),
        ({"state": "placed"}, {"state": "running"}, "a runs on n2"),
        ({"state": "placed"}, {"state": "succeeded"}, ""),
    ],
)
def test_an_attempt_that_was_not_the_last_is_reported_with_its_reason(
    before: dict[str, Any], after: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage(workload("a", "running"), {})
    tell = Lines(runs_of([stage.workload])[0], [stage])
    base = {"project": "default", "name": "x", "index": 0, "attempt": 1}
    first = msgspec.convert({**base, "state": "running", "node": "n1", **before}, InstanceView)
    tell.moved(stage, first, msgspec.convert({**base, "node": "n2", **after}, InstanceView))
    answer = capsys.readouterr().err.splitlines()
    assert (answer[0] if answer else "") == (f"roost: {message}" if message else "")


def test_an_action_that_was_forgotten_ends_the_run_all_the_same(
    typed: Type, client: Client, pipeline: Write, name: str
) -> None:
    run, stages = started(typed, client, pipeline, name)
    with Interrupts() as interrupts:
        following = RunFollower(client, run, stages, Lines(run, stages), interrupts)
        for stage in stages:
            gone = {"revision": 9, "kind": "workload", "key": stage.workload.key, "what": "gone", "object": None}
            following._changed(ServerEvent("9-9", "change", json.dumps(gone)))
    assert all(stage.reported for stage in stages)
    assert [(stage.result().state, stage.result().code) for stage in stages] == [("gone", 1)] * 4


def test_a_line_that_never_ends_is_reported_in_pieces(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    stage = Stage(workload("a"), {})
    run = runs_of([stage.workload])[0]
    tell = Lines(run, [stage, Stage(workload("longer"), {})])
    tell.write(stage, 0, b"x" * (LINE_BYTES_MAX + 1))
    tell.write(stage, 0, b"rest")
    assert len(capfdbinary.readouterr().out) == LINE_BYTES_MAX + 1 + len("a      | \n")
    tell.cut(stage, 0)
    tell.cut(stage, 0)
    assert capfdbinary.readouterr().out == b"a      | rest\n"
