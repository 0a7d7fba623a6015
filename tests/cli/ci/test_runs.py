"""Runs of pipelines by their own words: ci, ci logs, ci cancel, ci follow, and ci:RUN in place of a name."""

from pathlib import Path

import pytest

from tests.cli.conftest import Type
from tests.cli.serving import Served

PIPELINE = """
name: words
actions:
  - {name: build, steps: [make]}
  - {name: test, needs: [build], each: [a, b], steps: [make test]}
"""


def test_runs_are_listed_shown_and_cancelled_by_their_own_words(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    run = typed("ci", "run", "--no-follow", str(file)).stdout.strip()
    assert run in typed("ci").stdout, "without a subcommand runs are listed"
    assert typed("show", f"ci:{run}").stdout.splitlines()[0] == f"Run:       words-{run}"
    logs = typed("logs", f"ci:{run}")
    assert (logs.stdout, "is queued and has written nothing" in logs.stderr) == ("", True)
    assert "has no action nope; it has build, test" in typed("ci", "logs", run, "nope").stderr
    stopped = typed("ci", "cancel", run)
    assert [line.split()[1] for line in stopped.stderr.splitlines()] == [f"words-{run}-test", f"words-{run}-build"]
    assert "all actions of" in typed("cancel", f"ci:{run}").stderr
    followed = typed("ci", "follow", run)
    assert followed.exit_code == 1
    assert "build is cancelled" in followed.stderr


def test_titles_are_shown_and_found_by_their_names(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: Web shop\nactions: [{name: Unit tests, steps: [make test]}]\n")
    assert "└── Unit tests" in typed("ci", "check", str(file)).stdout
    run = typed("ci", "run", "--no-follow", str(file)).stdout.strip()
    assert typed("ci", "show", f"Web-shop-{run}").stdout.splitlines()[-1].startswith("Unit tests  queued")
    for pipeline in ("Web shop", "Web-shop"):
        assert typed("ci", "list", pipeline).stdout.splitlines()[1].startswith(f"{run}  Web shop  queued")
    for action in ("Unit tests", "Unit-tests"):
        logs = typed("ci", "logs", run, action)
        assert f"Web-shop-{run}-Unit-tests.0 is queued" in logs.stderr
    assert typed("ci", "cancel", run).exit_code == 0


def test_a_skipped_action_fails_nothing_and_approval_is_given_by_name(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        """
name: gates
actions:
  - {name: skipped one, if: env.BRANCH == 'main', steps: [make]}
  - {name: after it, needs: [skipped one], steps: [make]}
"""
    )
    done = typed("ci", "run", str(file), "--var", "BRANCH=dev")
    assert done.exit_code == 0
    assert "skipped one is skipped: its condition is false: env.BRANCH == 'main'" in done.stderr
    run = typed("ci", "list", "gates").stdout.splitlines()[1].split()[0]
    assert typed("ci", "list", "gates").stdout.splitlines()[1].split()[2:6] == ["skipped", "2", "of", "2"]
    assert typed("wait", f"ci:{run}").exit_code == 0
    assert "nothing to retry" in typed("ci", "retry", run).stderr


def test_an_action_is_approved_once_it_waits_for_nothing_else(typed: Type, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: approved\nactions: [{name: Go live, approve: {role: operator}, steps: [make]}]\n")
    started = typed("ci", "run", str(file), "--no-follow")
    run = started.stdout.strip()
    assert "waits for approval by a user with the role operator" in started.stderr
    shown = typed("ci", "show", run).stdout.splitlines()[-1]
    assert shown.startswith("Go live  queued") and "needs approval" in shown
    assert "has no action nope; it has Go live" in typed("ci", "approve", run, "nope").stderr
    assert f"approved-{run}-Go-live is approved" in typed("ci", "approve", run, "Go live").stderr
    assert "needs approval" not in typed("ci", "show", run).stdout
    assert typed("ci", "cancel", run).exit_code == 0


def test_the_working_tree_is_sent_to_all_actions(typed: Type, server: Served, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "main.c").write_text("int main;")
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: tree\nactions: [{name: a, steps: [make]}, {name: b, steps: [make]}]\n")
    run = typed("ci", "run", str(file), "--workdir", str(tree), "--no-follow").stdout.strip()
    with server.client() as client:
        inputs = [client.workloads.get("default", f"tree-{run}-{name}").document["inputs"] for name in "ab"]
        assert inputs[0] == inputs[1]
        entries = client.files.manifest(inputs[0][0]["from"]).entries
    assert [entry.path for entry in entries] == ["main.c"]
    assert typed("ci", "run", str(file), "--workdir", str(tmp_path / "none")).exit_code == 2
    assert typed("ci", "cancel", run).exit_code == 0


@pytest.mark.parametrize(
    ("place", "options", "more", "sent"),
    [
        ("tree/pipeline.yaml", (), "", "tree"),
        ("tree/.ci/pipeline.yaml", (), "", "tree"),
        ("tree/pipeline.yaml", ("--no-send",), "", ""),
        ("tree/pipeline.yaml", (), "inputs: []\n", ""),
        ("pipeline.yaml", (), "", ""),
    ],
)
def test_the_directory_of_the_file_is_sent_unless_another_is_named(
    typed: Type, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    place: str, options: tuple[str, ...], more: str, sent: str,
) -> None:  # fmt: skip
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    for name, text in (("main.c", "int main;"), (".gitignore", "*.o\n"), ("main.o", "")):
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    file.write_text(f"name: found\n{more}actions: [{{name: a, steps: [make]}}]\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    done = typed("ci", "run", str(file), *options, "--no-follow")
    line = f"roost: {tmp_path}/{sent} of this machine is sent; --no-send switches that off\n"
    assert (line in done.stderr) == bool(sent)
    with server.client() as client:
        inputs = client.workloads.get("default", f"found-{done.stdout.strip()}-a").document.get("inputs", [])
        assert len(inputs) == bool(sent)
        paths = [entry.path for entry in client.files.manifest(inputs[0]["from"]).entries] if inputs else []
    assert ("main.c" in paths, "main.o" in paths) == (bool(sent), False)
    assert typed("ci", "cancel", done.stdout.strip()).exit_code == 0


def test_a_file_that_names_what_it_sends_sends_nothing_else(typed: Type, server: Served, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: own\nactions: [{name: a, inputs: [{from: ., to: x}], steps: [make]}]\n")
    done = typed("ci", "run", str(file), "--no-follow")
    assert "is sent" not in done.stderr
    with server.client() as client:
        document = client.workloads.get("default", f"own-{done.stdout.strip()}-a").document
        assert [item.get("to") for item in document["inputs"]] == ["x"]
    assert typed("ci", "cancel", done.stdout.strip()).exit_code == 0
