"""Every command that asks a server, typed at one that has no nodes: what is printed, --json, and exit codes."""

import json
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from roost.cli import root
from roost.cli.common.exit_codes import FAILED, NO_SERVER, NOT_PLACED, TIMED_OUT, USAGE
from tests.cli.conftest import Type

NUMBERS = count()


@pytest.fixture
def name(typed: Type) -> str:
    """A workload that waits."""
    made = f"job-{next(NUMBERS)}"
    assert typed("run", "-d", "--name", made, "--count", "2", "--", "echo", "hi").exit_code == NOT_PLACED
    return made


def test_run_detached_prints_the_name_and_says_that_it_waits(typed: Type) -> None:
    result = typed("run", "-d", "--name", "detached", "--", "true")
    assert result.exit_code == NOT_PLACED
    assert result.stdout == "detached\n"
    assert "no node is online; start one with `roost agent`" in result.stderr


def test_run_makes_a_name_from_the_command(typed: Type) -> None:
    result = typed("run", "-d", "--", "/usr/bin/env", "-n")
    assert result.stdout.startswith("env-")


def test_run_that_the_server_refuses_is_wrong_usage(typed: Type) -> None:
    for arguments in (("--name", "a.b"), ("--cpu", "-1"), ("--require", "zone ==", "-d"), ("--strategy", "psychic")):
        result = typed("run", *arguments, "--", "true")
        assert result.exit_code == USAGE, result.output
    assert "placement.strategy" in result.stderr
    assert typed("ps", "--json").stdout.count("psychic") == 0


def test_run_without_a_command_is_wrong_usage(typed: Type) -> None:
    assert typed("run").exit_code == USAGE
    assert typed("run", "--env", "NOT_SET_ANYWHERE", "--", "true").exit_code == USAGE


def test_ps_lists_pending_work_and_all_with_a(typed: Type, name: str) -> None:
    assert f"{name} " in typed("ps").stdout
    typed("cancel", name)
    assert f"{name} " not in typed("ps").stdout
    row = next(line for line in typed("ps", "-a").stdout.splitlines() if line.startswith(f"{name} "))
    assert row.split()[1:5] == ["job", "cancelled", "2", "cancelled"]
    assert [load["name"] for load in json.loads(typed("ps", "--state", "cancelled", "--json").stdout)].count(name) == 1


def test_ps_of_a_project_without_work_says_what_to_do(typed: Type) -> None:
    result = typed("ps", "-p", "empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "roost run -- echo hello" in result.stderr
    assert json.loads(typed("ps", "-p", "empty", "--json").stdout) == []


def test_show_a_workload_and_an_instance(typed: Type, name: str) -> None:
    text = typed("show", name).stdout
    assert "Command:    echo hi" in text
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [[f"{name}.0", "queued"], [f"{name}.1", "queued"]]
    assert f"Instance:   {name}.1 is queued" in typed("show", f"{name}.1").stdout
    assert json.loads(typed("show", name, "--json").stdout)["count"] == 2
    assert json.loads(typed("show", f"default/{name}.1", "--json").stdout)["index"] == 1


def test_why_in_a_message_and_as_data(typed: Type, name: str) -> None:
    assert f"default/{name}.0 waits because no node is online" in typed("why", name).stdout
    assert json.loads(typed("why", f"{name}.1", "--json").stdout)["code"] == "no_nodes"


def test_logs_of_what_has_not_run_say_so(typed: Type, name: str) -> None:
    result = typed("logs", name)
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{name}.0 is queued and has written nothing; `roost why {name}`" in result.stderr
    typed("cancel", name)
    followed = typed("logs", "-f", name)
    assert (followed.exit_code, followed.stdout) == (0, "")
    assert f"{name}.1 is cancelled: cancelled by root" in followed.stderr
    lines = [json.loads(line) for line in typed("logs", "-f", name, "--json").stdout.splitlines()]
    assert {(line["event"], line["index"], line["state"]) for line in lines} == {
        ("end", 0, "cancelled"),
        ("end", 1, "cancelled"),
    }


def test_cancel_retry_and_wait(typed: Type, name: str) -> None:
    assert "is cancelled" in typed("cancel", name).stderr
    done = typed("wait", name)
    assert done.exit_code == FAILED
    assert f"{name} is cancelled: cancelled by root" in done.stderr
    assert json.loads(typed("wait", name, "--json").stdout)[0]["state"] == "cancelled"
    assert "is pending for its next attempt" in typed("retry", name).stderr
    assert json.loads(typed("cancel", f"{name}.1", "--json").stdout)[0]["counts"] == {"queued": 1, "cancelled": 1}
    assert json.loads(typed("retry", f"{name}.1", "--json").stdout)[0]["counts"] == {"queued": 2}
    nothing = typed("retry", name)
    assert nothing.exit_code == FAILED
    assert f"name an instance ({name}.0)" in nothing.stderr


def test_wait_has_a_timeout(typed: Type, name: str) -> None:
    for until in ("finished", "running"):
        result = typed("wait", name, "--timeout", "100ms", "--for", until)
        assert result.exit_code == TIMED_OUT
        assert name in result.stderr
    assert typed("wait", name, "--timeout", "soon").exit_code == USAGE
    assert typed("wait", f"{name}.1").exit_code == USAGE


def test_unknown_names_are_failures_and_senseless_ones_wrong_usage(typed: Type) -> None:
    for arguments in (("show",), ("why",), ("logs",), ("logs", "-f"), ("cancel",), ("retry",), ("wait",)):
        result = typed(*arguments, "nobody")
        assert result.exit_code == FAILED, arguments
        assert "there is no workload default/nobody" in result.stderr
        assert typed(*arguments, "a.b.c").exit_code == USAGE
        assert typed(*arguments, "x.").exit_code == USAGE


def test_nodes_and_status_of_an_empty_fleet(typed: Type) -> None:
    assert "there are no nodes" in typed("nodes").stderr
    assert json.loads(typed("nodes", "--json").stdout) == []
    text = typed("status").stdout
    assert "Nodes:        none" in text
    assert len({line.index(line.split(":", 1)[1].strip()) for line in text.splitlines()}) == 1, "one column"
    assert json.loads(typed("status", "--json").stdout)["ready"] is True
    for arguments in (("nodes", "show", "x"), ("nodes", "remove", "x"), ("drain", "x"), ("uncordon", "x")):
        result = typed(*arguments)
        assert result.exit_code == FAILED
        assert "there is no node x" in result.stderr


def test_apply_is_created_once_and_unchanged_after(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("name: applied-a\ncommand: 'true'\n---\nname: applied-b\ncommand: 'true'\n---\n")
    first, second = typed("apply", "-f", str(file)), typed("apply", "-f", str(file), "--json")
    assert first.exit_code == 4
    assert [line.split() for line in first.stdout.splitlines()[1:]] == [
        ["applied-a", "created", "queued"],
        ["applied-b", "created", "queued"],
    ]
    assert [(load["workload"]["name"], load["created"]) for load in json.loads(second.stdout)] == [
        ("applied-a", False),
        ("applied-b", False),
    ]


def test_apply_reads_json_and_lists_and_standard_input(typed: Type) -> None:
    text = b'[{"name": "piped-a", "command": ["true"]}, {"name": "piped-b", "command": "true"}]'
    assert typed("apply", "-f", "-", stdin=text).stdout.count("created") == 2
    assert typed("apply", "-f", "-", stdin=b'{"name": "piped-a", "command": ["true"]}').stdout.count("unchanged") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\ncommand: 'true'\ncolour: red\n", "colour: there is no such field"),
        ("name: x\n", "steps: a workload needs steps or a command to run"),
        ("name: x\nsteps: []\n", "steps: this must be 1 to 100 steps"),
        ("command: 'true'\n", "name: this is needed: a text"),
        ("name: x\ncommand: 'true'\nresources: {memory: lots}\n", "resources.memory: a size is a number of bytes"),
        ("name: [x\n", "this is not YAML or JSON"),
        ("", "there is no workload in it"),
        ("just words\n", "a workload is a mapping of fields"),
    ],
)
def test_apply_names_the_file_the_field_and_the_reason(typed: Type, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    result = typed("apply", "-f", str(file))
    assert result.exit_code == USAGE
    assert f"{file}: {message}" in result.stderr


def test_apply_prints_every_error_of_a_file_on_its_own_line(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nstep: [make]\ncount: two\n---\nname: y\nsteps: [make]\nresources: {gpus: 1}\n")
    result = typed("apply", "-f", str(file))
    assert result.exit_code == USAGE
    assert [line.strip() for line in result.stderr.splitlines()] == [
        f"roost: {file}: workload 1: step: there is no such field; did you mean `steps`?",
        f"{file}: workload 1: count: this is a whole number, not 'two'",
        f"{file}: workload 2: resources.gpus: did you mean `gpu`? "
        "A resource of your own needs a name that is less like it",
    ]


def test_apply_refuses_a_step_that_is_part_of_the_one_above(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nsteps:\n  - npm install\n    - npm run build\n")
    result = typed("apply", "-f", str(file))
    assert result.exit_code == USAGE
    assert f"{file}: line 4 looks like an item of a list, but is read as the end of line 3" in result.stderr


def test_apply_names_the_workload_of_many(typed: Type, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("name: never-there\ncommand: 'true'\n")
    bad.write_text("name: fine\ncommand: 'true'\n---\nname: x\ncommand: 'true'\ncount: 0\n")
    result = typed("apply", "-f", str(good), "-f", str(bad))
    assert result.exit_code == USAGE
    assert f"{bad}: workload 2: count: this must be 1 to" in result.stderr
    assert typed("show", "never-there").exit_code == FAILED  # nothing half-done stays


def test_apply_of_a_file_that_is_not_there(typed: Type, tmp_path: Path) -> None:
    result = typed("apply", "-f", str(tmp_path / "no.yaml"))
    assert result.exit_code == USAGE
    assert "no.yaml: No such file" in result.stderr


def test_a_name_that_is_taken_is_a_failure_with_a_hint(typed: Type, name: str) -> None:
    result = typed("run", "-d", "--name", name, "--", "other")
    assert result.exit_code == FAILED
    assert "cancel what has that name first" in result.stderr


@pytest.mark.parametrize("message", [("ps",), ("run", "--", "true"), ("nodes",), ("status",), ("apply", "-f", "-")])
def test_without_a_server_the_exit_code_is_255(message: tuple[str, ...], tmp_path: Path) -> None:
    runner = CliRunner(env={"ROOST_CONFIG": None, "ROOST_URL": None, "HOME": str(tmp_path)})
    result = runner.invoke(root, message, input="name: x\ncommand: y\n")
    assert result.exit_code == NO_SERVER
    assert "no server configured: start one with `roost up`" in result.stderr
    away = runner.invoke(root, message, input="name: x\ncommand: y\n", env={"ROOST_URL": "http://127.0.0.1:9"})
    assert away.exit_code == NO_SERVER
    assert "no server at http://127.0.0.1:9" in away.stderr
