"""Which calls are made again: all that may come to nothing, and of the rest those that do no harm twice."""

from types import SimpleNamespace
from typing import Any

import pytest

from roost.client.controller import breaks_off, comes_back, is_unsent


def error(name: str, message: str = "", **report: str) -> Any:
    metadata = [(key.replace("_", "-"), value) for key, value in report.items()]
    return SimpleNamespace(
        code=lambda: SimpleNamespace(name=name), details=lambda: message, trailing_metadata=lambda: metadata
    )


@pytest.mark.parametrize(
    ("given", "again", "unsure"),
    [
        (error("UNAVAILABLE", "failed to connect to all addresses"), True, True),
        (error("UNAVAILABLE", "no server leads", roost_code="no_leader"), True, False),
        (error("UNKNOWN", "the leader went away", roost_code="outcome_unknown"), True, True),
        (error("UNKNOWN", "Stream removed"), True, True),
        (error("RESOURCE_EXHAUSTED", "read faster", roost_code="slow_reader"), True, False),
        (error("NOT_FOUND", "there is no workload", roost_code="not_found"), False, False),
        (error("INTERNAL", "a defect"), False, False),
    ],
)
def test_what_is_worth_another_try(given: Any, again: bool, unsure: bool) -> None:
    assert (comes_back(given), breaks_off(given)) == (again, unsure)


def test_only_our_own_connection_shows_that_no_server_heard() -> None:
    assert is_unsent(error("UNAVAILABLE", "failed to connect to all addresses"))
    assert not is_unsent(error("UNKNOWN", "the leader went away: failed to connect", roost_code="outcome_unknown"))
