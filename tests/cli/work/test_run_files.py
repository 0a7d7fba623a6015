"""`roost run`, `apply` and `ci` send files of this machine before they submit work that has them as inputs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from roost.client import Client
from tests.cli.conftest import Type
from tests.cli.serving import Served


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.csv").write_bytes(os.urandom(20))
    (folder / "train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "x.log").write_text("x")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def submitted(typed: Type, server: Served) -> Any:
    """Submit with `roost run -d`: the document, the paths of its inputs, and the messages."""

    def submitted(*arguments: str) -> tuple[dict[str, Any], list[str], str]:
        done = typed("run", "-d", "--json", *arguments)
        assert done.exit_code in (0, 4), done.output
        found = json.loads(done.stdout)
        with server.client() as client:
            document = client.workloads.get(found["project"], found["name"]).document
            return document, _paths(client, document), done.stderr

    return submitted


def _paths(client: Client, document: dict[str, Any]) -> list[str]:
    return [
        f"{block.get('to', '')}:{entry.path}"
        for block in document.get("inputs", ())
        for entry in client.files.manifest(block["from"], document.get("project", "default")).entries
    ]


def test_script_is_sent(submitted: Any, work: Path) -> None:
    document, paths, message = submitted("train.py", "--lr", "0.1")
    assert document["command"] == ["python3", "./train.py", "--lr", "0.1"]
    assert document["name"].startswith("train-py-")
    assert paths == [":train.py"]
    assert "train.py of this machine is sent; --no-send switches that off" in message


def test_script_stays_here_if_asked(submitted: Any, work: Path) -> None:
    document, paths, message = submitted("--no-send", "./train.py")
    assert (document["command"], paths) == (["./train.py"], [])
    assert "sent" not in message


def test_paths_get_their_places(submitted: Any, work: Path) -> None:
    document, paths, _ = submitted(
        "--send", "data", "--send", "train.py:bin/run.py", "--send", "train.py:lib/", "-o", "out/**", "true"
    )
    assert paths == [":bin", ":bin/run.py", ":data", ":data/a.csv", ":lib", ":lib/train.py"]
    assert document["outputs"] == ["out/**"]


def test_workdir_is_sent_without_ignored_files(submitted: Any, work: Path) -> None:
    document, paths, message = submitted("--workdir", ".", "train.py")
    assert paths == [":.gitignore", ":data", ":data/a.csv", ":train.py"]
    assert (document["command"], message.count("is sent")) == (["train.py"], 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--send", "nothing", "true"), "nothing: No such file or directory"),
        (("--send", "data", "--send", "./data", "true"), "would both be data in the work directory"),
        (("--workdir", "nothing", "true"), "nothing: No such file or directory"),
    ],
)
def test_wrong_paths_are_refused_before_anything_is_submitted(
    typed: Type, server: Served, work: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = typed("run", "--name", "never", *arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert typed("show", "never").exit_code == 1


def test_documents_have_paths_relative_to_their_file(
    typed: Type, server: Served, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "job.yaml").write_text(
        "{name: from-file, command: 'true', inputs: [{from: ./data, to: in}, {from: train.py, to: run.py}]}"
    )
    monkeypatch.chdir(work.parent)
    done = typed("plan", "-f", "work/job.yaml")
    assert done.exit_code == 3, done.output
    done = typed("apply", "-f", "work/job.yaml")
    assert done.exit_code in (0, 4), done.output
    with server.client() as client:
        document = client.workloads.get("default", "from-file").document
        assert _paths(client, document) == ["in:a.csv", ":run.py"]
        monkeypatch.chdir(work)
        client.workloads.submit({"name": "from-python", "command": "true", "inputs": [{"from": "data"}]})
        assert _paths(client, client.workloads.get("default", "from-python").document) == [":a.csv"]


def test_wrong_path_in_a_document_is_named(typed: Type, work: Path) -> None:
    (work / "job.yaml").write_text("{name: never, command: 'true', inputs: [{from: blob:x}, {from: ./nothing}]}")
    for command in ("apply", "plan"):
        done = typed(command, "-f", "job.yaml")
        assert done.exit_code == 2
        assert f"job.yaml: inputs[1].from: {work}/nothing: No such file or directory" in done.stderr


def test_actions_of_a_pipeline_have_inputs(typed: Type, server: Served, work: Path) -> None:
    (work / "ci.yaml").write_text("{name: inputs, actions: [{name: build, steps: ['true'], inputs: [{from: data}]}]}")
    assert typed("ci", "check", "ci.yaml").exit_code == 0
    done = typed("ci", "run", "ci.yaml", "--no-follow")
    assert done.exit_code in (0, 4), done.output
    with server.client() as client:
        name = f"inputs-{done.stdout.strip()}-build"
        assert _paths(client, client.workloads.get("default", name).document) == [":a.csv"]
    (work / "data" / "a.csv").unlink()
    (work / "data").rmdir()
    done = typed("ci", "check", "ci.yaml")
    assert (done.exit_code, "ci.yaml: actions[0].inputs[0].from: " in done.stderr) == (2, True), done.stderr
