"""The `template` of a document: what it becomes, and errors in terms of parameters."""

from typing import Any

import msgspec
import pytest

from roost.model.errors import Invalid
from roost.model.records.template import Template, TemplateUse
from roost.model.spec.submission import spec_of_document
from roost.model.spec.templates.use import Found, spec_of_use

TRAIN = {
    "parameters": {"lr": {"type": "number", "default": 0.1}, "cpu": {}, "out": {"required": False}},
    "workload": {
        "command": ["train", "--lr", "{{lr}}"],
        "resources": {"cpu": "{{cpu}}", "memory": "1GiB"},
        "env": {"A": "1"},
        "priority": 10,
    },
}


def spec(raw: dict[str, Any], path: str = "", template: dict[str, Any] = TRAIN) -> dict[str, Any]:
    def find(project: str, use: TemplateUse, where: str) -> Found:
        assert (project, use.name) == ("default", "train")
        return Found(msgspec.convert(template, Template), 3, False)

    return msgspec.msgpack.decode(spec_of_use(raw, path, find)[0].document)


def use(beside: dict[str, Any] | None = None, **parameters: Any) -> dict[str, Any]:
    return {"name": "run", "template": {"name": "train", "parameters": parameters}, **(beside or {})}


def refusal(raw: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        spec(raw, path)
    return [(error.path, error.message) for error in caught.value.every]


def test_workload_remembers_its_template() -> None:
    assert spec(use(lr=0.5, cpu="2")) == {
        "name": "run",
        "command": ["train", "--lr", "0.5"],
        "resources": {"cpu": "2", "memory": "1GiB"},
        "env": {"A": "1"},
        "labels": {"template": "train"},
        "priority": 10,
        "template": {"name": "train", "version": 3, "parameters": {"cpu": "2", "lr": 0.5}},
    }


def test_fields_beside_it_win_and_mappings_are_merged() -> None:
    beside = {"priority": 90, "resources": {"memory": "2GiB"}, "env": {"B": "2"}, "labels": {"team": "ml"}}
    found = spec(use(beside, cpu="2"))
    assert found["priority"] == 90
    assert found["resources"] == {"cpu": "2", "memory": "2GiB"}
    assert (found["env"], found["labels"]) == ({"A": "1", "B": "2"}, {"team": "ml", "template": "train"})


def test_shown_document_can_be_submitted_again() -> None:
    shown = spec(use(cpu="2"))
    assert spec(shown) == shown


def test_order_of_parameters_makes_no_other_document() -> None:
    assert list(spec(use(lr=0.5, cpu="2"))["template"]["parameters"]) == ["cpu", "lr"]


def test_error_of_a_value_is_at_its_parameter() -> None:
    ((path, message),) = refusal(use(cpu="lots"))
    assert path == "template.parameters.cpu"
    assert message.endswith("(`resources.cpu` of template train@3)")
    assert refusal(use(cpu="lots"), "[4]")[0][0] == "[4].template.parameters.cpu"


def test_error_of_a_field_beside_it_is_there() -> None:
    assert refusal(use({"priority": 101}, cpu="1"))[0][0] == "priority"
    assert refusal(use({"resources": {"memory": "x"}}, cpu="1"))[0][0] == "resources.memory"
    assert refusal(use({"color": "red"}, cpu="1"))[0][0] == "color"
    assert refusal(use({"labels": {"template": "mine"}}, cpu="1"))[0][0] == "labels.template"
    assert refusal(use({"labels": "x"}, cpu="1"))[0][0] == "labels"
    assert refusal(use({"project": 3}, cpu="1"))[0][0] == "project"
    nameless = use(cpu="1")
    del nameless["name"]
    assert refusal(nameless)[0][0] == "name"


def test_error_of_both_together_is_at_the_template() -> None:
    ((path, message),) = refusal(use({"steps": ["true"]}, cpu="1"))
    assert path == "template"
    assert "(`command` of template train@3)" in message


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ("train", "template"),
        ({}, "template.name"),
        ({"name": "train", "version": "x"}, "template.version"),
        ({"name": "train", "params": {}}, "template.params"),
        ({"name": "train", "parameters": {"cpu": {"a": 1}}}, "template.parameters.cpu"),
        ({"name": "train", "parameters": {"cpu": None}}, "template.parameters.cpu"),
        ({"name": "train", "parameters": {"cpi": "1"}}, "template.parameters.cpi"),
    ],
)
def test_block_that_cannot_be_read_is_refused(block: Any, path: str) -> None:
    assert refusal({"name": "run", "template": block})[0][0] == path


def test_document_with_a_template_needs_a_server() -> None:
    with pytest.raises(Invalid, match="only a server has templates"):
        spec_of_document({**use(cpu="1"), "command": "true"})
