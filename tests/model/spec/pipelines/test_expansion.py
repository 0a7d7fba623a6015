"""Conditions, approval, groups and services: what they become in the jobs of a run, and each refusal with its path."""

from typing import Any

import pytest

from roost.model.spec.document import check_document, read_document
from tests.model.spec.pipelines.test_definition import RUN, action, documents_of, pipeline, refusal

# --- conditions, approval, concurrency --------------------------------------------------------------------------------


def test_conditions_and_approval_are_those_of_the_job() -> None:
    raw = pipeline(action(), action("deploy", needs="build", approve={"role": "admin"}, **{"if": "env.B == 'main'"}))
    deploy = documents_of(raw, RUN, {"B": "main"})[1]
    assert (deploy["if"], deploy["approve"]) == ("env.B == 'main'", {"role": "admin"})
    policy = check_document(read_document(deploy))
    assert (policy.condition, policy.approval_role) == ("env.B == 'main'", "admin")


def test_a_run_has_one_group_for_each_value() -> None:
    raw = pipeline(action(), action("test"), concurrency={"by": ["BRANCH"], "cancel": True}, env={"BRANCH": "main"})
    groups = [document["concurrency"] for document in documents_of(raw, RUN)]
    assert groups == [{"group": "web BRANCH=main", "cancel": True}] * 2
    assert documents_of(raw, RUN, {"BRANCH": "dev"})[0]["concurrency"]["group"] == "web BRANCH=dev"
    raw["concurrency"] = {"group": "all", "cancel": True}
    assert documents_of(raw, RUN)[0]["concurrency"] == {"group": "all", "cancel": True}
    assert check_document(read_document(documents_of(raw, RUN)[0])).concurrency_group == "default/all"


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        (pipeline(action(**{"if": "1 + 1"})), "actions[0].if", "a rule must say yes or no"),
        (pipeline(action(**{"if": "branch == 'x'"})), "actions[0].if", "not a condition: nothing is called `branch`"),
        (pipeline(action(**{"if": 3})), "actions[0].if", "this is a text, not 3"),
        (pipeline(action(**{"if": "x" * 2_000})), "actions[0].if", "a rule may have 1000 characters"),
        (pipeline(action(), action("b", **{"if": "needs.build.state == 'failed'"})), "actions[1].if",
         "it speaks of 'build', and the action needs nothing"),
        (pipeline(action(approve={"role": "king"})), "actions[0].approve.role", "this is submitter, operator or admin"),
        (pipeline(action(approve=True)), "actions[0].approve", "this is a mapping"),
        (pipeline(action(), concurrency={}), "concurrency.cancel", "write `cancel: true`"),
        (pipeline(action(), concurrency={"cancel": True, "by": ["X"]}), "concurrency.by", "there is no variable 'X'"),
        (pipeline(action(), concurrency={"groups": "x"}), "concurrency.groups", "there is no such field"),
        (pipeline(action(), concurrency={"cancel": True, "group": "a\nb"}), "concurrency", "this must be one line"),
    ],
)  # fmt: skip
def test_wrong_conditions_approvals_and_groups(raw: Any, path: str, message: str) -> None:
    found = refusal(raw)
    assert found[0] == path
    assert found[1].startswith(message)


# --- services ---------------------------------------------------------------------------------------------------------


def test_a_service_starts_after_the_needs_of_its_action_and_ends_with_it() -> None:
    db = {"name": "The db", "command": "postgres", "ports": {"sql": 0}, "health": {"tcp": "sql"}, "env": {"A": "1"}}
    raw = pipeline(action(), action("test", needs={"build": "finished"}, services=[db]), env={"B": "2"})
    _, test, service = documents_of(raw, RUN, {"C": "3"}, retention="1h")
    assert test["after"] == [
        {"workload": "web-3f9a1c-build", "when": "finished"},
        {"workload": "web-3f9a1c-test-The-db", "when": "started"},
    ]
    assert "services" not in test
    assert service == {
        **db, "kind": "service", "name": "web-3f9a1c-test-The-db", "project": "default", "retention": "1h",
        "env": {"A": "1", "B": "2", "C": "3"}, "until": "web-3f9a1c-test",
        "labels": {"pipeline": "web", "run": RUN, "action": "test", "service": "The db"},
        "after": [{"workload": "web-3f9a1c-build", "when": "finished"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("services", "path"),
    [
        ("db", "actions[0].services"),
        (["db"], "actions[0].services[0]"),
        ([{"command": "x"}], "actions[0].services[0].name"),
        ([{"name": "db"}], "actions[0].services[0].steps"),
        ([{"name": "db", "command": "x", "count": 2}], "actions[0].services[0].count"),
        ([{"name": "db", "command": "x", "health": {"tcp": "sql"}}], "actions[0].services[0].health.tcp"),
        ([{"name": "a b", "command": "x"}, {"name": "a-b", "command": "x"}], "actions[0].services[1].name"),
        ([{"name": "d" * 60, "command": "x"}], "actions[0].services[0].name"),
        ([{"name": f"s{n}", "command": "x"} for n in range(17)], "actions[0].services"),
    ],
)
def test_services_that_are_wrong_are_named(services: object, path: str) -> None:
    assert refusal(pipeline(action(services=services)))[0] == path


# --- inputs of all actions --------------------------------------------------------------------------------------------


def test_inputs_of_a_pipeline_come_before_those_of_an_action() -> None:
    tree, own = {"from": "blob:tree"}, {"workload": "build", "to": "dist"}
    raw = pipeline(action(outputs=["*"]), action("test", inputs=[own]), inputs=[tree])
    build, test = documents_of(raw, RUN)
    assert build["inputs"] == [tree]
    assert test["inputs"] == [tree, {"workload": f"web-{RUN}-build", "to": "dist"}]


@pytest.mark.parametrize(
    ("inputs", "path"),
    [([{"workload": "build"}], "inputs[0].workload"), ("x", "inputs"), ([{"from": "x", "url": "y"}], "inputs[0]")],
)
def test_wrong_inputs_of_a_pipeline_are_named(inputs: object, path: str) -> None:
    assert refusal(pipeline(action(), inputs=inputs))[0] == path
