"""Templates when they are applied: what is wrong with all values is refused then."""

from typing import Any

import msgspec
import pytest

from roost.model.errors import Invalid
from roost.model.limits import TEMPLATE_BYTES_MAX
from roost.model.records.template import Template
from roost.model.spec.templates.definition import check_template


def check(workload: dict[str, Any], description: str = "", **parameters: Any) -> bytes:
    raw = {"workload": workload, "parameters": parameters, "description": description}
    return check_template(msgspec.convert(raw, Template))


def refusal(workload: dict[str, Any], **parameters: Any) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        check(workload, **parameters)
    return [(error.path, error.message) for error in caught.value.every]


def test_template_is_packed() -> None:
    assert check({"steps": ["train --lr {{lr}}"]}, lr={"type": "number"})


@pytest.mark.parametrize("field", ["name", "project", "template"])
def test_what_each_workload_has_of_its_own_is_refused(field: str) -> None:
    assert refusal({"command": "p", field: "x"})[0][0] == f"workload.{field}"


def test_field_without_parameters_is_checked() -> None:
    found = refusal({"command": ["p", "{{v}}"], "resources": {"cpu": "many"}, "contt": 3}, v={})
    assert [path for path, _ in found] == ["workload.contt", "workload.resources.cpu"]


def test_default_that_does_not_fit_its_place_is_refused() -> None:
    ((path, message),) = refusal({"command": "p", "timeout": "{{limit}}"}, limit={"default": "soon"})
    assert path == "parameters.limit.default"
    assert "(as `timeout` of the workload)" in message


def test_sample_that_does_not_fit_its_place_is_no_error() -> None:
    check({"command": "p", "timeout": "{{limit}}", "count": "{{n}}", "gang": {"name": "g", "size": 4}},
          limit={}, n={"type": "integer", "minimum": 5})  # fmt: skip


def test_workload_that_runs_nothing_is_refused() -> None:
    assert refusal({"env": {"A": "{{v}}"}}, v={}) == [("workload.steps", "a workload needs steps or a command to run")]


def test_size_is_bounded() -> None:
    assert "may have 32,768 bytes" in refusal({"command": ["x" * TEMPLATE_BYTES_MAX]})[0][1]
