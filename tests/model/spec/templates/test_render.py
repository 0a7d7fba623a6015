"""Rendering: typed values, texts, lines and rules; no value changes the structure of a document."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.limits import DOCUMENT_BYTES_MAX, PARAMETER_LENGTH_MAX, TEMPLATE_DEPTH_MAX
from roost.model.records.template import Template
from roost.model.spec.rule_parser import TEXT, tokens
from roost.model.spec.templates.parameters import check_values
from roost.model.spec.templates.render import Rendered, render

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.text("{}v '\"\\$`;|&\n/[],:#")
TYPES: dict[str, Any] = {
    "v": {},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "on": {"type": "boolean"},
    "many": {"type": "array"},
    "key": {"secret": True},
    "maybe": {"required": False},
}
VALUES: dict[str, Any] = {"v": "a b", "n": 3, "x": 0.5, "on": True, "many": ["a", "b c"], "key": "api-key"}


def rendered(workload: dict[str, Any], values: dict[str, Any] | None = None) -> Rendered:
    template = msgspec.convert({"workload": workload, "parameters": TYPES}, Template)
    return render(template, check_values(template.parameters, VALUES | (values or {}), "parameters"), "workload")


def document(workload: dict[str, Any], values: dict[str, Any] | None = None) -> Any:
    return rendered(workload, values).document


def refusal(workload: dict[str, Any], values: dict[str, Any] | None = None) -> tuple[str, str]:
    with pytest.raises(Invalid) as caught:
        rendered(workload, values)
    return caught.value.path, caught.value.message


def test_whole_text_becomes_the_typed_value() -> None:
    found = document(
        {"count": "{{n}}", "timeout": "{{ x }}", "preemptible": "{{on}}", "placement": {"pool": "{{many}}"}}
    )
    assert found == {"count": 3, "timeout": 0.5, "preemptible": True, "placement": {"pool": ["a", "b c"]}}


def test_inside_text_a_value_is_text() -> None:
    found = document({"resources": {"memory": "{{n}}GiB"}, "labels": {"a": "{{v}}-{{x}}-{{on}}"}})
    assert found == {"resources": {"memory": "3GiB"}, "labels": {"a": "a b-0.5-true"}}


def test_arguments_and_variables_are_texts() -> None:
    found = document(
        {"command": ["p", "{{n}}", "--x={{x}}", "{{on}}"], "env": {"N": "{{n}}"}, "labels": {"l": "{{x}}"}}
    )
    assert found == {"command": ["p", "3", "--x=0.5", "true"], "env": {"N": "3"}, "labels": {"l": "0.5"}}


def test_array_becomes_several_items() -> None:
    assert document({"command": ["p", "{{many}}", "end"]}) == {"command": ["p", "a", "b c", "end"]}
    assert document({"command": ["p", "{{many}}"]}, {"many": []}) == {"command": ["p"]}
    assert document({"each": "{{many}}"}) == {"each": ["a", "b c"]}


def test_optional_parameter_without_a_value_is_left_out() -> None:
    assert document({"command": ["p", "{{maybe}}"], "timeout": "{{maybe}}"}) == {"command": ["p"]}
    assert document({"labels": {"a": "x{{maybe}}"}}) == {"labels": {"a": "x"}}
    found = document({"steps": ["p {{maybe}}"]})
    assert found == {"steps": ['p "${PARAM_maybe}"'], "env": {"PARAM_maybe": ""}}


def test_line_gets_a_variable() -> None:
    found = document({"steps": ["p {{n}}", {"run": 'q "{{v}}"'}], "env": {"A": "1"}})
    env = {"A": "1", "PARAM_n": "3", "PARAM_v": "a b"}
    assert found == {"steps": ['p "${PARAM_n}"', {"run": 'q "${PARAM_v}"'}], "env": env}
    for where in ({"command": "p {{v}}"}, {"health": {"command": "p {{v}}"}}):
        assert document(where)["env"] == {"PARAM_v": "a b"}
    found = document({"command": ["bash", "-c", "p {{v}}", "x", "{{v}}"]})
    assert found == {"command": ["bash", "-c", 'p "${PARAM_v}"', "x", "a b"], "env": {"PARAM_v": "a b"}}


def test_secret_is_a_reference() -> None:
    assert document({"env": {"TOKEN": "{{key}}"}}) == {"env": {"TOKEN": {"secret": "api-key"}}}
    assert document({"steps": ["p {{key}}"]})["env"] == {"PARAM_key": {"secret": "api-key"}}


def test_rule_gets_a_literal() -> None:
    rules = document({"placement": {"require": ["zone == {{v}} && capacity.cpu > {{n}}", "rack in {{many}}"]}})
    assert rules["placement"]["require"] == ['zone == "a b" && capacity.cpu > 3', 'rack in ["a","b c"]']
    that = {"placement": {"prefer": [{"that": "zone == {{v}}", "weight": "{{n}}"}]}}
    assert document(that)["placement"]["prefer"] == [{"that": 'zone == "a b"', "weight": 3}]


def test_two_braces_can_be_written() -> None:
    assert document({"command": ["docker", "--format", "{{{{.Names}}"]}) == {
        "command": ["docker", "--format", "{{.Names}}"]
    }
    assert document({"labels": {"a": "{{{{v}} {{v}}"}}) == {"labels": {"a": "{{v}} a b"}}


def test_value_is_not_rendered_again() -> None:
    assert document({"labels": {"a": "{{v}}"}}, {"v": "{{n}}"}) == {"labels": {"a": "{{n}}"}}


@pytest.mark.parametrize(
    ("workload", "path", "message"),
    [
        ({"command": ["{{w}}"]}, "workload.command[0]", "there is no parameter {{w}}"),
        ({"count": "{{ n"}, "workload.count", "write {{{{"),
        ({"command": ["p", "{{.Names}}"]}, "workload.command[1]", "is no placeholder"),
        ({"env": {"{{v}}": "x"}}, "workload.env", "the name of a field"),
        ({"labels": {"a": "x{{many}}"}}, "workload.labels.a", "an array cannot be part of a text"),
        ({"env": {"T": "x{{key}}"}}, "workload.env.T", "a secret cannot be part of a text"),
        ({"command": ["p", "{{key}}"]}, "workload.command[1]", "only a variable of `env`"),
        ({"labels": {"a": "{{key}}"}}, "workload.labels.a", "only a variable of `env`"),
        ({"health": {"command": "p {{key}}"}}, "workload.health.command", "health checks get none"),
        ({"steps": ["p {{many}}"]}, "workload.steps[0]", "is an array"),
        ({"steps": ["p '{{v}}'"]}, "workload.steps[0]", "single quotes"),
        ({"steps": [{"run": "eval {{v}}"}]}, "workload.steps[0].run", "which read code"),
        ({"placement": {"require": ["zone == '{{v}}'"]}}, "workload.placement.require[0]", "stands in quotes"),
        ({"placement": {"require": ["zone == {{v}} // it's"]}}, "workload.placement.require[0]", "cannot have"),
        ({"placement": {"require": ["zone == {{maybe}}"]}}, "workload.placement.require[0]", "give it a default"),
        ({"placement": {"require": ["zone == {{key}}"]}}, "workload.placement.require[0]", "is a secret"),
        ({"steps": ["p {{v}}"], "env": {"PARAM_v": "x"}}, "workload.env.PARAM_v", "needs this variable"),
    ],
)
def test_misplaced_placeholder_is_refused_with_its_path(workload: dict[str, Any], path: str, message: str) -> None:
    where, found = refusal(workload)
    assert where == path
    assert message in found


def test_size_and_depth_are_bounded() -> None:
    long = {"v": "x" * PARAMETER_LENGTH_MAX}
    enough = DOCUMENT_BYTES_MAX // PARAMETER_LENGTH_MAX + 1
    assert "more than 524,288 characters" in refusal({"command": ["p", *["{{v}}"] * enough]}, long)[1]
    deep: Any = "x"
    for _ in range(TEMPLATE_DEPTH_MAX + 1):
        deep = [deep]
    assert "deeper" in refusal({"a": deep})[1]
    for _ in range(TEMPLATE_DEPTH_MAX + 1):
        deep = {"a": deep}
    assert "deeper" in refusal(deep)[1]


def test_uses_name_the_paths_of_the_rendered_document() -> None:
    found = rendered({"command": ["p", "{{maybe}}", "{{many}}", "{{n}}"], "resources": {"cpu": "{{x}}"}})
    assert found.document["command"] == ["p", "a", "b c", "3"]
    assert {path: names for path, names in found.uses.items() if names != ("maybe",)} == {
        "command[1]": ("many",),
        "command[2]": ("many",),
        "command[3]": ("n",),
        "resources.cpu": ("x",),
    }


def shape(value: Any) -> Any:
    """The structure of a document without its texts."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


EVERYWHERE = {
    "command": ["p", "{{v}}", "--v={{v}}", "{{{{{{v}}"],
    "steps": ["p {{v}}", {"run": 'q "{{v}}"', "name": "{{v}}"}],
    "env": {"A": "{{v}}", "B": "x{{v}}"},
    "image": "{{v}}",
    "placement": {"pool": "{{v}}", "near": [{"workload": "{{v}}"}], "require": ["zone == {{v}}"]},
    "after": ["{{v}}", {"workload": "{{v}}"}],
}


@example("{{n}}")
@example("'; DROP TABLE jobs; --")
@example('" || true || "')
@given(TEXTS)
def test_no_value_changes_the_structure_of_a_document(value: str) -> None:
    found = document(EVERYWHERE, {"v": value})
    assert shape(found) == shape(document(EVERYWHERE, {"v": "plain"}))
    assert found["command"] == ["p", value, f"--v={value}", f"{{{{{value}"]
    assert (found["env"]["A"], found["env"]["PARAM_v"]) == (value, value)
    assert found["steps"] == ['p "${PARAM_v}"', {"run": 'q "${PARAM_v}"', "name": value}]


@example("' || true || '")
@given(TEXTS)
def test_no_value_changes_the_structure_of_a_rule(value: str) -> None:
    (rule,) = document({"placement": {"require": ["zone == {{v}} && rack != {{v}}"]}}, {"v": value})["placement"][
        "require"
    ]
    pieces = tokens(rule)
    plain = ["zone", "=", "=", None, "&", "&", "rack", "!", "=", None]
    assert len(pieces) == len(plain)
    assert all(wanted in (None, piece.value) for wanted, piece in zip(plain, pieces, strict=True))
    assert all(piece.kind == TEXT or piece.value[:1] == '"' for piece in (pieces[3], pieces[9]))
