"""Messages of refusals: which role is missing, and where the caller has it."""

import pytest

from roost.model.errors import Forbidden
from roost.model.records.access import SUBMITTER
from roost.server.auth.principal import Access, Principal
from roost.server.operations.permit import PROJECTS_NAMED_MAX, permit_in


def refusal(roles: dict[str, str]) -> Forbidden:
    with pytest.raises(Forbidden) as caught:
        permit_in(Principal("token:bob", "127.0.0.1", Access(roles)), ["default"], SUBMITTER)
    return caught.value


def test_a_refusal_names_the_projects_in_which_the_caller_has_the_role() -> None:
    error = refusal({"beta": "submitter", "gamma": "viewer", "alpha": "admin"})
    assert error.message == "this needs the role submitter in project default; you have it in alpha, beta"
    assert error.params == {"role": "submitter", "project": "default"}


def test_a_caller_that_has_the_role_nowhere_gets_no_list() -> None:
    assert refusal({"gamma": "viewer"}).message == "this needs the role submitter in project default"


def test_a_caller_with_many_projects_gets_the_first_of_them() -> None:
    message = refusal({f"p{number}": "submitter" for number in range(9)}).message
    assert "p4" in message and f"p{PROJECTS_NAMED_MAX}" not in message
