"""The blocks `if`, `approve` and `concurrency` of a document, and what they are refused for."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.spec.document import check_document, decode_document, encode_document, read_document
from roost.model.spec.gates import decide

GATES: tuple[dict[str, Any], ...] = ({"if": "true"}, {"approve": {}}, {"concurrency": {"group": "g", "cancel": True}})


def refusal(**fields: Any) -> tuple[str, str]:
    with pytest.raises(Invalid) as caught:
        check_document(read_document({"name": "a", "command": "x", **fields}))
    return caught.value.path, caught.value.message


def test_a_document_keeps_its_condition() -> None:
    document = read_document({"name": "a", "command": "x", "if": "env.A == 'b'", "approve": {}})
    again = decode_document(encode_document(document))
    assert (again.condition, again.approve) == ("env.A == 'b'", document.approve)
    assert check_document(again).approval_role == "operator"


@pytest.mark.parametrize("gate", GATES)
def test_only_a_job_that_starts_once_has_one(gate: dict[str, Any]) -> None:
    (field,) = gate
    assert refusal(kind="service", **gate)[0] == field
    assert refusal(schedule="@daily", **gate)[0] == field
    assert refusal(gang={"name": "x", "size": 2}, **gate)[0] == field


@pytest.mark.parametrize("gate", GATES[:2])
def test_elements_that_wait_for_one_each_have_none(gate: dict[str, Any]) -> None:
    (field,) = gate
    assert refusal(after=[{"workload": "b", "each": True}], count=2, **gate)[0] == field


def test_other_errors_are_reported_beside_a_condition() -> None:
    with pytest.raises(Invalid) as caught:
        read_document({"name": "a", "command": "x", "if": "1", "priority": "high"})
    assert [error["path"] for error in caught.value.params["errors"]] == ["priority", "if"]


def test_approved_is_no_milestone_of_another_workload() -> None:
    path, message = refusal(after=[{"workload": "b", "when": "approved"}])
    assert (path, message.partition(",")[0]) == ("after[0].when", "this is succeeded")


@pytest.mark.parametrize(
    ("rule", "yes", "error"),
    [
        ("needs.a.state == 'failed'", False, ""),
        ("needs.a.result.n > 2", True, ""),
        ("needs.a.result.big > 2", False, "big"),
        ("needs['b'].state == 'failed'", False, "b"),
        ("needs.all(name, needs[name].state == 'succeeded')", True, ""),
    ],
)
def test_answers(rule: str, yes: bool, error: str) -> None:
    answer = decide(rule, {"a": {"state": "succeeded", "result": {"n": 3}}}, {})
    assert answer.yes is yes
    assert bool(answer.error) is bool(error)


def test_a_number_that_cel_does_not_have_is_an_error_and_no_exception() -> None:
    answer = decide("needs.a.result > 1", {"a": {"state": "x", "result": 1 << 70}}, {})
    assert not answer.yes and answer.error
