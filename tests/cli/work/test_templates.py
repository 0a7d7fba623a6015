"""roost templates, and templates of `run`, `apply` and `plan`, typed at a server that has no nodes."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from roost.cli.common.exit_codes import FAILED, NOT_PLACED, USAGE
from roost.cli.common.template_values import values_of
from roost.model.records.template import Parameter
from tests.cli.conftest import Type
from tests.cli.serving import serving

NUMBERS = count()
TRAIN = """
name: {name}
description: Train a model
parameters:
  lr: {{type: number, default: 0.001, minimum: 0, maximum: 1, description: Learning rate}}
  epochs: {{type: integer, enum: [1, 3, 10]}}
  tags: {{type: array, default: [], pattern: "[a-z]+"}}
  token: {{secret: true, required: false}}
workload:
  command: [train, "--lr", "{{{{lr}}}}", "--epochs={{{{epochs}}}}", "{{{{tags}}}}"]
  env: {{TOKEN: "{{{{token}}}}"}}
"""


@pytest.fixture
def name() -> str:
    return f"train-{next(NUMBERS)}"


@pytest.fixture
def file(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(TRAIN.format(name=name))
    return path


def document(typed: Type, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(typed("show", name, "--json").stdout)["document"]
    return found


def test_apply_list_show_and_delete(typed: Type, name: str, file: Path) -> None:
    result = typed("templates", "apply", str(file))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"roost: template {name} has version 1\n")
    assert "is unchanged: version 1" in typed("templates", "apply", str(file)).stderr
    file.write_text(file.read_text().replace("Train a model", "Train it"))
    done = json.loads(typed("templates", "apply", str(file), "--json").stdout)
    assert (done["result"], done["version"], done["versions"], done["dropped"]) == ("changed", 2, [1, 2], None)
    row = next(line for line in typed("templates").stdout.splitlines() if line.split()[0] == name)
    assert row.split()[:2] == [name, "2"]
    assert row.endswith("root  Train it")
    shown = typed("templates", "show", name).stdout
    assert f"Use:        roost run --template {name} -P epochs=N\n" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["lr", "number", "0.001", "0", "to", "1", "Learning", "rate"] in lines
    assert ["epochs", "integer", "required", "1,", "3,", "10", "-"] in lines
    assert ["token", "secret", "-", "-", "-"] in lines
    old = json.loads(typed("templates", "show", f"default/{name}@1", "--json").stdout)
    assert (old["version"], old["description"]) == (1, "Train a model")
    assert f"template default/{name} is deleted" in typed("templates", "delete", name).stderr
    assert typed("templates", "delete", name).exit_code == FAILED
    assert name not in typed("templates", "list").stdout


def test_version_that_falls_off_is_named(typed: Type, name: str, file: Path) -> None:
    for number in range(11):
        file.write_text(TRAIN.format(name=name).replace("Train a model", f"Number {number}"))
        result = typed("templates", "apply", str(file))
    assert f"template {name} has version 11; version 1 is not kept any longer" in result.stderr
    assert "versions 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, not 1" in typed("templates", "show", f"{name}@1").stderr


def test_run_gives_typed_values(typed: Type, name: str, file: Path) -> None:
    typed("templates", "apply", str(file))
    values = ("-P", "lr=1e-2", "-P", "epochs=3", "-P", "tags=a", "-P", "tags=b")
    result = typed("run", "-d", "--template", name, *values, "--name", f"{name}-run", "--priority", "70")
    assert (result.exit_code, result.stdout) == (NOT_PLACED, f"{name}-run\n")
    found = document(typed, f"{name}-run")
    assert found["command"] == ["train", "--lr", "0.01", "--epochs=3", "a", "b"]
    assert (found["priority"], found["labels"]) == (70, {"template": name})
    parameters = {"epochs": 3, "lr": 0.01, "tags": ["a", "b"]}
    assert found["template"] == {"name": name, "version": 1, "parameters": parameters}
    assert "resources" not in found and "count" not in found
    assert f"Template:   {name}@1 (epochs=3, lr=0.01, tags=['a', 'b'])" in typed("show", f"{name}-run").stdout
    made = typed("run", "-d", "--template", f"{name}@1", "-P", "epochs=1").stdout.strip()
    assert made.startswith(f"{name}-")
    listed = json.loads(typed("ps", "--template", name, "--json").stdout)
    assert {item["name"] for item in listed} == {f"{name}-run", made}


def test_secret_is_named_and_must_exist(typed: Type, name: str, file: Path) -> None:
    typed("templates", "apply", str(file))
    run = ("run", "-d", "--template", name, "-P", "epochs=1", "-P", f"token={name}-key", "--name", f"{name}-run")
    result = typed(*run)
    assert result.exit_code == USAGE
    assert "template.parameters.token: project default has no secret of this name" in result.stderr
    typed("secrets", "set", f"default/{name}-key", stdin=b"hunter2")
    typed(*run)
    assert document(typed, f"{name}-run")["env"] == {"TOKEN": {"secret": f"{name}-key"}}


def test_apply_and_plan_of_a_document_with_a_template(typed: Type, name: str, file: Path, tmp_path: Path) -> None:
    typed("templates", "apply", str(file))
    use = tmp_path / "use.yaml"
    use.write_text(f"name: {name}-run\nresources: {{cpu: 2}}\ntemplate: {{name: {name}, parameters: {{epochs: 3}}}}\n")
    plan = typed("plan", "-f", str(use))
    assert plan.stdout.splitlines()[1].split() == [f"default/{name}-run", "create"]
    assert "created" in typed("apply", "-f", str(use)).stdout
    assert document(typed, f"{name}-run")["resources"] == {"cpu": 2}
    assert "unchanged" in typed("apply", "-f", str(use)).stdout
    use.write_text(f"name: x\ntemplate: {{name: {name}, parameters: {{epochs: 4, lrr: 1}}}}\n")
    refused = typed("apply", "-f", str(use))
    assert refused.exit_code == USAGE
    assert f"{use}: template.parameters.lrr: there is no such parameter" in refused.stderr
    assert f"{use}: template.parameters.epochs: this is one of 1, 3, 10" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--template", "{name}", "-P", "epochs=x"), "template.parameters.epochs: this is a whole number, not 'x'"),
        (("--template", "{name}"), "template.parameters.epochs: this is needed"),
        (("--template", "{name}", "-P", "epochs=3", "-P", "lr=2"), "a number from 0 to 1, not 2"),
        (("--template", "{name}", "-P", "epochs=3", "-P", "epochs=1"), "only an array can have several values"),
        (("--template", "{name}", "-P", "epochs=3", "-P", "tags=A"), "template.parameters.tags[0]"),
        (("--template", "{name}", "-P", "epochs"), "is not like NAME=VALUE"),
        (("--template", "{name}", "-P", "lr=@/no/file"), "No such file"),
        (("--template", "{name}", "-P", "token=@key"), "the name of a secret"),
        (("--template", "{name}", "true"), "leave out 'true'"),
        (("--template", "ml/{name}",), "the project is that of the workload"),
        (("--template", "{name}@x",), "is not like NAME"),
        (("--template", "{name}@0",), "is not like NAME"),
        (("-P", "lr=1", "true"), "-P is for a template"),
        ((), "there is no command"),
    ],
)  # fmt: skip
def test_wrong_run_is_wrong_usage_and_runs_nothing(
    typed: Type, name: str, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    typed("templates", "apply", str(file))
    result = typed("run", "-d", *(argument.replace("{name}", name) for argument in arguments))
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert message in result.stderr
    assert json.loads(typed("ps", "-a", "--template", name, "--json").stdout) == []


def test_unknown_template_has_a_suggestion(typed: Type, name: str, file: Path) -> None:
    typed("templates", "apply", str(file))
    result = typed("run", "-d", "--template", f"{name}s")
    assert result.exit_code == FAILED
    assert f"did you mean `{name}`?" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nworkload: {command: ['{{y}}']}", "workload.command[0]: there is no parameter {{y}}"),
        ("name: x\nparameters: {y: {}}\nworkload: {command: [{{y}}]}", 'write placeholders in quotes: "{{NAME}}"'),
        ("workload: {command: y}", "name: this is needed"),
        ("name: x\nworkloads: {command: y}", "workloads: there is no such field; did you mean `workload`?"),
        ("name: x\nshared: yes please\nworkload: {command: y}", "shared: this is true or false"),
        ("name: x\nshared: true\nproject: y\nworkload: {command: y}", "project: a shared template has none"),
        ("- name: x\n- name: y", "this is one template"),
        ("", "this is one template"),
        ("name: x\nproject: a b\nworkload: {command: y}", "project: a name is made of"),
        ("name: a b\nworkload: {command: y}", "name: a name is made of"),
        ("name: x\nparameters: {y: {}}\nworkload: {steps: [\"echo '{{y}}'\"]}", "write it without quotes"),
    ],
)
def test_wrong_file_is_wrong_usage(typed: Type, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    result = typed("templates", "apply", str(file))
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert f"{file}: " in result.stderr
    assert message in result.stderr


def test_shared_template_is_for_all_projects(typed: Type, name: str, file: Path) -> None:
    file.write_text(file.read_text() + "shared: true\n")
    assert f"template */{name} has version 1" in typed("templates", "apply", str(file)).stderr
    shown = typed("templates", "show", name, "-p", "ml").stdout
    assert f"Template:   */{name}@1 (shared)" in shown
    assert f"roost run -p ml --template {name} -P epochs=N" in shown
    assert typed("run", "-d", "-p", "ml", "--template", f"*/{name}", "-P", "epochs=1").exit_code == NOT_PLACED
    refused = typed("templates", "delete", name)
    assert refused.exit_code == FAILED
    assert f"there is a shared one, */{name}" in refused.stderr
    assert typed("templates", "delete", name, "--shared").exit_code == 0


def test_restart_keeps_templates(tmp_path: Path, name: str, file: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "server") as served:
        assert served.roost("templates", "apply", str(file)).returncode == 0
        file.write_text(file.read_text().replace("Train a model", "Train it"))
        assert served.roost("templates", "apply", str(file)).returncode == 0
        before = served.roost("templates", "show", f"{name}@1", "--json").stdout
        done = served.roost("run", "-d", "--template", name, "-P", "epochs=3", "--name", "run")
        assert done.returncode == NOT_PLACED, done.stderr.decode()
    with serving(home, "server") as again:
        assert again.roost("templates", "show", f"{name}@1", "--json").stdout == before
        assert b"is unchanged: version 2" in again.roost("templates", "apply", str(file)).stderr
        assert json.loads(again.roost("show", "run", "--json").stdout)["template"] == f"{name}@2"


def test_texts_become_values_of_their_types(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("two\nlines\n")
    parameters = {
        "n": Parameter(type="integer"), "x": Parameter(type="number"), "on": Parameter(type="boolean"),
        "many": Parameter(type="array"), "text": Parameter(),
    }  # fmt: skip
    given = ("n=3", "x=.5", "on=false", "many=a,b", "many=", f"text=@{tmp_path}/text", "other=1")
    assert values_of(parameters, given) == {
        "n": 3, "x": 0.5, "on": False, "many": ["a,b", ""], "text": "two\nlines", "other": "1",
    }  # fmt: skip
    assert values_of(parameters, ("n=1.5", "x=nan", "on=yes", "text=@@home")) == {
        "n": "1.5", "x": "nan", "on": "yes", "text": "@home",
    }  # fmt: skip
