"""The blocks `after`, `each` and `schedule` of a document: what they become, and how wrong ones are reported."""

from typing import Any

import pytest

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.workload import After, Schedule
from roost.model.spec.submission import spec_of_document


def document(**fields: Any) -> dict[str, Any]:
    return {"name": "test", "command": "true"} | fields


def test_after_is_a_name_or_a_block() -> None:
    wanted = spec_of_document(
        document(count=3, after=["build", {"workload": "data", "when": "finished", "each": True}])
    )
    assert wanted.policy.after == (After("default/build", None), After("default/data", "finished", True))


def test_a_schedule_is_a_line_or_a_block() -> None:
    assert spec_of_document(document(schedule="@daily")).policy.schedule == Schedule("@daily")
    block = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "overlap": "wait", "catch_up": 3, "history_limit": 0}
    assert spec_of_document(document(schedule=block)).policy.schedule == Schedule(
        "0 2 * * *", "Europe/Berlin", "wait", 3, 0
    )


def test_values_are_set_apart_and_count_the_elements() -> None:
    wanted = spec_of_document(document(each=["a", {"X": "1", "A": "2"}]))
    assert wanted.values == ((("ROOST_VALUE", "a"),), (("A", "2"), ("X", "1")))
    assert wanted.count == 2
    assert b"each" not in wanted.document


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"after": ["test"]}, "after[0]: a workload cannot wait for itself"),
    ({"after": [{"workload": "test"}]}, "after[0].workload: a workload cannot wait for itself"),
    ({"after": ["a", "a"]}, "after[1]: a is named twice"),
    ({"after": ["a/b"]}, "after[0]: a name is made of letters, digits, '-' and '_', beginning and ending with a letter "
     "or digit, not 'a/b'"),
    ({"after": [f"a{index}" for index in range(65)]}, "after: this must be 0 to 64 workloads, not 65"),
    ({"after": [{"workload": "a", "when": "soon"}]},
     "after[0].when: this is succeeded, finished or started, not 'soon'"),
    ({"after": [{"workload": "a", "who": 1}]}, "after[0].who: there is no such field"),
    ({"count": 10_001, "after": [{"workload": "a", "each": True}]},
     "count: this must be 1 to 10,000 elements that wait for one each, not 10,001"),
    ({"each": []}, "each: this must be 1 to 10,000 elements, not 0"),
    ({"each": {"file": "params.csv"}},
     "each: this is a list of texts or mappings; files are read by the `roost` command, which sends what is in them"),
    ({"each": [{}]}, "each[0]: this must be 1 to 64 variables, not 0"),
    ({"each": [{f"A{index}": "" for index in range(65)}]}, "each[0]: this must be 1 to 64 variables, not 65"),
    ({"each": ["x" * limits.COMMAND_BYTES_MAX]},
     "each[0]: a variable may have 131,072 bytes; 'ROOST_VALUE' has more"),
    ({"each": ["x" * 100_000] * 3}, "each: all values together may have 262,144 bytes; these have 300,033"),
    ({"each": [{"A=B": "1"}]}, "each[0]: 'A=B' is not a variable, or its value holds a NUL"),
    ({"each": ["a\0b"]}, "each[0]: 'ROOST_VALUE' is not a variable, or its value holds a NUL"),
    ({"each": ["a", "b"], "count": 3}, "count: `each` has 2 elements; leave the count out"),
    ({"each": ["a"], "kind": "service"}, "each: only the elements of a job have values, not a service"),
    ({"schedule": "@daily", "kind": "service"},
     "schedule: only a job runs by a schedule; a service runs all the time"),
    ({"schedule": "@daily", "name": "n" * 49},
     "name: the name of a scheduled job may have 48 characters: its runs add their time"),
    ({"schedule": {"cron": "@daily", "zone": "Mars"}},
     "schedule.zone: there is no time zone 'Mars'; they are named like Europe/Berlin"),
    ({"schedule": {"cron": "@daily", "catch_up": 101}}, "schedule.catch_up: this must be 0 to 100, not 101"),
    ({"schedule": {"cron": "@daily", "history_limit": -1}}, "schedule.history_limit: this must be 0 to 1,000, not -1"),
    ({"schedule": {"cron": "61 * * * *"}},
     "schedule.cron: '61 * * * *' cannot be read: the minute is a number from 0 to 59, a list, a range, or a star"),
    ({"schedule": "1 2"}, "schedule: a line has five fields (minute hour day month weekday) or is one of @hourly, "
     "@daily, @weekly, @monthly, @yearly: '1 2'"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_what_is_wrong_is_reported_with_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as refused:
        spec_of_document(document(**fields))
    assert str(refused.value) == message


def test_the_field_of_one_of_many_is_reported_with_its_place() -> None:
    with pytest.raises(Invalid) as refused:
        spec_of_document(document(schedule="@daily", name="n" * 49), "[3]")
    assert refused.value.path == "[3].name"
    with pytest.raises(Invalid) as refused:
        spec_of_document(document(count=10_001, after=[{"workload": "a", "each": True}]), "[3]")
    assert refused.value.path == "[3].count"
