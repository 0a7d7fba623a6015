"""Parameters of templates: types, limits and patterns, each refusal with its path."""

import time
from typing import Any

import msgspec
import pytest

from roost.model.errors import Invalid
from roost.model.limits import PARAMETER_ITEMS_MAX, PARAMETER_LENGTH_MAX, PARAMETERS_MAX, PATTERN_LENGTH_MAX
from roost.model.records.template import Parameter
from roost.model.spec.templates.parameters import check_parameters, check_values


def definition(**fields: Any) -> Parameter:
    return msgspec.convert(fields, Parameter)


def refusal(fields: dict[str, Any], value: Any) -> str:
    with pytest.raises(Invalid) as caught:
        check_values({"it": definition(**fields)}, {"it": value}, "parameters")
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({}, "text"),
        ({"type": "integer"}, 3),
        ({"type": "number"}, 3),
        ({"type": "number"}, 0.5),
        ({"type": "boolean"}, False),
        ({"type": "array"}, ["a", "b"]),
        ({"type": "array"}, []),
        ({"enum": ["a", "b"]}, "b"),
        ({"type": "integer", "enum": [1, 2]}, 2),
        ({"type": "integer", "minimum": 1, "maximum": 3}, 3),
        ({"min_length": 2, "max_length": 3}, "abc"),
        ({"pattern": "[a-z]+"}, "abc"),
        ({"type": "array", "pattern": "[a-z]+"}, ["abc", "d"]),
        ({"secret": True}, "api-key"),
    ],
)
def test_value_of_its_type_is_taken_as_it_is(fields: dict[str, Any], value: Any) -> None:
    parameters = {"it": definition(**fields)}
    check_parameters(parameters, "parameters")
    (found,) = check_values(parameters, {"it": value}, "parameters").values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("fields", "value", "message"),
    [
        ({}, 3, "this is a text, not 3"),
        ({"type": "integer"}, "3", "this is a whole number, not '3'"),
        ({"type": "integer"}, 3.0, "this is a whole number, not 3.0"),
        ({"type": "integer"}, True, "this is a whole number, not true"),
        ({"type": "integer"}, 1 << 60, "this is a number up to"),
        ({"type": "number"}, float("nan"), "this is a number, not nan"),
        ({"type": "number"}, float("inf"), "this is a number, not inf"),
        ({"type": "boolean"}, 0, "this is true or false, not 0"),
        ({"type": "array"}, "a", "this is a list of texts"),
        ({"type": "array"}, [1], "this is a list of texts"),
        ({"type": "array"}, ["a"] * (PARAMETER_ITEMS_MAX + 1), "texts"),
        ({"enum": ["adam", "sgd"]}, "adan", "this is one of adam, sgd; did you mean `adam`?"),
        ({"type": "integer", "minimum": 1, "maximum": 3}, 0, "a whole number from 1 to 3, not 0"),
        ({"type": "number", "minimum": 0}, -0.5, "a number of at least 0, not -0.5"),
        ({"min_length": 2}, "a", "2 to 16,384 characters, not 1"),
        ({"max_length": 2}, "abc", "0 to 2 characters, not 3"),
        ({}, "x" * (PARAMETER_LENGTH_MAX + 1), "characters, not 16,385"),
        ({}, "a\0b", "a NUL"),
        ({}, "\ud800", "lone surrogate"),
        ({"pattern": "[a-z]+"}, "abc1", "this has to match '[a-z]+', not 'abc1'"),
        ({"pattern": "a|b"}, "bc", "has to match"),
        ({"pattern": "[a-z]+"}, "abc\n", "has to match"),
        ({"type": "array", "pattern": "[a-z]+"}, ["a", "1"], "parameters.it[1]: this has to match"),
    ],
)
def test_other_value_is_refused_with_its_path(fields: dict[str, Any], value: Any, message: str) -> None:
    check_parameters({"it": definition(**fields)}, "parameters")
    found = refusal(fields, value)
    assert message in found
    assert found.startswith("parameters.it")


def test_value_in_place_of_the_name_of_a_secret_is_never_repeated() -> None:
    assert "hunter2" not in refusal({"secret": True}, "hunter2 hunter2")
    assert "name of a secret" in refusal({"secret": True}, "hunter2 hunter2")


def test_unknown_and_missing_parameters_are_all_named() -> None:
    parameters = {
        "epochs": definition(type="integer", description="Passes over the data"),
        "seed": definition(default="1"),
    }
    with pytest.raises(Invalid) as caught:
        check_values(parameters, {"epoch": 3, "x": 1}, "template.parameters")
    assert [(error.path, error.message) for error in caught.value.every] == [
        ("template.parameters.epoch", "there is no such parameter; did you mean `epochs`?"),
        ("template.parameters.x", "there is no such parameter; there are epochs, seed"),
        ("template.parameters.epochs", "this is needed: a whole number (Passes over the data)"),
    ]


def test_default_and_optional_parameters_need_no_value() -> None:
    parameters = {"seed": definition(default="1"), "note": definition(required=False)}
    assert check_values(parameters, {}, "parameters") == {"seed": "1"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"type": "integer", "default": "x"}, "default"),
        ({"type": "integer", "minimum": 3, "default": 1}, "default"),
        ({"enum": ["a"], "default": "b"}, "default"),
        ({"default": "x", "required": True}, "required"),
        ({"minimum": 1}, "minimum"),
        ({"type": "boolean", "enum": [1]}, "enum"),
        ({"type": "integer", "pattern": "1"}, "pattern"),
        ({"type": "integer", "min_length": 1}, "min_length"),
        ({"type": "integer", "secret": True}, "secret"),
        ({"secret": True, "default": "x"}, "default"),
        ({"secret": True, "pattern": "x"}, "pattern"),
        ({"enum": ["a", 1]}, "enum[1]"),
        ({"type": "integer", "enum": ["1"]}, "enum[0]"),
        ({"enum": ["a"] * 101}, "enum"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "minimum"),
        ({"min_length": 2, "max_length": 1}, "min_length"),
        ({"min_length": -1}, "min_length"),
        ({"max_length": PARAMETER_LENGTH_MAX + 1}, "max_length"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "a)|(b"}, "pattern"),
        ({"pattern": "a{3}"}, "pattern"),
        ({"pattern": "\\x41"}, "pattern"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"pattern": "a" * (PATTERN_LENGTH_MAX + 1)}, "pattern"),
        ({"description": "two\nlines"}, "description"),
    ],
)
def test_definition_that_cannot_be_kept_is_refused(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_parameters({"it": definition(**fields)}, "parameters")
    assert caught.value.path == f"parameters.it.{path}"


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "x" * 41, "é", "a.b"])
def test_name_of_a_parameter_is_one_of_a_variable(name: str) -> None:
    with pytest.raises(Invalid, match="the name of a parameter"):
        check_parameters({name: definition()}, "parameters")


def test_number_of_parameters_is_bounded() -> None:
    with pytest.raises(Invalid, match="parameters"):
        check_parameters({f"p{number}": definition() for number in range(PARAMETERS_MAX + 1)}, "parameters")


def test_pattern_that_makes_other_engines_backtrack_takes_no_time() -> None:
    fields = {"pattern": "(" * 20 + "a+" + ")+" * 20 + "b"}
    check_parameters({"it": definition(**fields)}, "parameters")
    start = time.process_time()
    refusal(fields, "a" * PARAMETER_LENGTH_MAX)
    assert time.process_time() - start < 1.0  # 0.1 ms; with backtracking, longer than the sun shines
