"""The blocks `update` and `restart`: what they mean, and what is refused with which words."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.records.workload import DEFAULT_RESTART, DEFAULT_UPDATE, Policy, Restart, Update
from roost.model.spec.document import check_document, read_document


def policy(**fields: Any) -> Policy:
    return check_document(read_document({"name": "web", "kind": "service", "command": "serve"} | fields))


def test_omitted_fields_have_their_defaults() -> None:
    made = policy()
    assert (made.update, made.restart) == (None, None)
    assert (policy(update={}).update, policy(restart={}).restart) == (DEFAULT_UPDATE, DEFAULT_RESTART)


def test_all_of_it() -> None:
    block = {
        "max_unavailable": 0, "max_surge": "10%", "canary": 2, "healthy_after": "10s", "deadline": "1m",
        "failures": 5, "rollback": False,
    }  # fmt: skip
    assert policy(update=block).update == Update(0, 0, 0, 10, 2, 10_000, 60_000, 5, False)
    restart = {"when": "on_failure", "pause": "2s", "pause_max": 30}
    assert policy(restart=restart).restart == Restart("on_failure", 2_000, 30_000)


@pytest.mark.parametrize(
    ("count", "unavailable", "surge"),
    [(0, 0, 0), (1, 1, 1), (4, 1, 2), (5, 2, 3), (100, 25, 50)],
)
def test_shares_are_rounded_up(count: int, unavailable: int, surge: int) -> None:
    update = Update(surge_percent=50)
    assert (update.unavailable_of(count), update.surge_of(count)) == (unavailable, surge)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing may move": (
        {"update": {"max_unavailable": 0}},
        "update.max_surge: with none away and none more than there are, nothing can be replaced",
    ),
    "not a share": ({"update": {"max_surge": "many"}}, "update.max_surge: a number or a share such as 25%, not 'many'"),
    "a negative share": ({"update": {"max_surge": "-5%"}}, "update.max_surge: a number or a share"),
    "more than all": ({"update": {"max_unavailable": "101%"}}, "update.max_unavailable: this must be 0 to 100 percent"),
    "a negative number": ({"update": {"max_unavailable": -1}}, "update.max_unavailable: this must be 0 to 10,000"),
    "many canaries": ({"update": {"canary": 10_001}}, "update.canary: this must be 0 to 10,000"),
    "no failure at all": ({"update": {"failures": 0}}, "update.failures: this must be 1 to 1,000"),
    "a deadline in vain": (
        {"update": {"deadline": "10s", "healthy_after": "10s"}},
        "update.deadline: this must be longer than healthy_after",
    ),
    "no duration": ({"update": {"healthy_after": "soon"}}, "update.healthy_after: "),
    "an unknown field": ({"update": {"parallel": 1}}, "update.parallel: there is no such field"),
    "an update of a job": ({"kind": "job", "update": {}}, "update: only a service is updated step by step, not a job"),
    "a restart of a job": ({"kind": "job", "restart": {}}, "restart: only a service is restarted"),
    "no pause": ({"restart": {"pause": 0}}, "restart.pause: the first pause is longer than nothing"),
    "a pause longer than the longest": ({"restart": {"pause": "2m"}}, "restart.pause: the first pause is longer"),
    "an unknown policy": ({"restart": {"when": "sometimes"}}, "restart.when: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_with_its_path(case: str) -> None:
    fields, answer = WRONG[case]
    with pytest.raises(Invalid) as error:
        policy(**fields)
    assert f"{error.value.path}: {error.value.message}".startswith(answer)
