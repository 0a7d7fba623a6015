"""Pipelines: what a file becomes, and the sentence for each way in which it can be wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.spec.document import check_document, read_document
from roost.model.spec.pipelines.definition import ACTION_FIELDS, ACTIONS_MAX, ELSEWHERE, read_pipeline
from roost.model.spec.pipelines.expansion import RunOptions, jobs_of
from roost.model.spec.submission import spec_of_document

RUN = "3f9a1c"


def pipeline(*actions: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "web", "actions": list(actions), **fields}


def action(name: str = "build", **fields: Any) -> dict[str, Any]:
    return {"name": name, "steps": ["make"], **fields}


def documents_of(
    raw: object, run: str, variables: Mapping[str, str] | None = None, only: Sequence[str] = (), retention: str = ""
) -> list[dict[str, Any]]:
    """The jobs of a run, each after those it needs."""
    return [job.document for job in jobs_of(raw, run, RunOptions(variables or {}, only, retention))[1]]


def refusal(raw: object, run: str = RUN, **given: Any) -> tuple[str, str]:
    """Where a file is wrong, and why."""
    with pytest.raises(Invalid) as caught:
        documents_of(raw, run, **given)
    return caught.value.path, caught.value.message


# --- what it becomes --------------------------------------------------------------------------------------------------


def test_a_title_is_kept_and_a_name_is_derived_from_it() -> None:
    raw = pipeline(action("Build it"), action("Unit tests", needs=["Build it"]), name="Web shop: CI")
    build, tests = documents_of(raw, RUN, only=["Unit-tests"])
    assert (build["name"], tests["name"]) == (f"Web-shop-CI-{RUN}-Build-it", f"Web-shop-CI-{RUN}-Unit-tests")
    assert tests["labels"] == {"pipeline": "Web shop: CI", "run": RUN, "action": "Unit tests"}
    assert tests["after"] == [f"Web-shop-CI-{RUN}-Build-it"]
    path, message = refusal(pipeline(action("Unit tests"), action("Unit: tests")))
    assert (path, message.partition(";")[0]) == ("actions[1].name", "two actions have the name Unit-tests")


def test_an_action_is_a_job_with_steps() -> None:
    made = documents_of(pipeline(action()), RUN)
    assert made == [
        {
            "name": "web-3f9a1c-build",
            "project": "default",
            "steps": ["make"],
            "env": {},
            "labels": {"pipeline": "web", "run": RUN, "action": "build"},
        }
    ]


def test_messages_arrive_as_they_were_sent() -> None:
    fields = {
        "image": "python:3.12",
        "steps": [{"run": "make", "name": "all", "ignore_failure": True}, "make test"],
        "resources": {"cpu": 2},
        "timeout": "10m",
        "retries": {"max": 1, "on": ["lost"]},
        "placement": {"pool": "ci"},
        "each": ["3.11", {"PYTHON": "3.12"}],
        "labels": {"team": "a"},
        "retention": "1d",
    }
    (made,) = documents_of(pipeline({"name": "test", **fields}, project="shop"), RUN, retention="9d")
    assert made["project"] == "shop"
    assert made["steps"] == [{"run": "make", "name": "all", "ignore_failure": True}, "make test"]
    assert made["labels"] == {"team": "a", "pipeline": "web", "run": RUN, "action": "test"}
    for name in ("image", "resources", "timeout", "retries", "placement", "each", "retention"):
        assert made[name] == fields[name]
    assert spec_of_document(made).count == 2


def test_variables_of_the_action_win_over_the_files_and_those_given_win_over_both() -> None:
    raw = pipeline(action(env={"B": "action", "C": "action"}), env={"A": "file", "B": "file", "C": "file"})
    (made,) = documents_of(raw, RUN, variables={"C": "given"})
    assert made["env"] == {"A": "file", "B": "action", "C": "given"}


def test_secrets_may_be_named() -> None:
    (made,) = documents_of(pipeline(action(), env={"TOKEN": {"secret": "token"}}), RUN)
    assert made["env"] == {"TOKEN": {"secret": "token"}}


def test_how_long_it_is_kept_is_for_those_that_do_not_say() -> None:
    made = documents_of(pipeline(action(), action("test", retention="1h")), RUN, retention="2d")
    assert [item["retention"] for item in made] == ["2d", "1h"]


@pytest.mark.parametrize(
    ("needs", "after"),
    [
        (["build", "lint"], ["web-3f9a1c-build", "web-3f9a1c-lint"]),
        ("build", ["web-3f9a1c-build"]),
        ({"build": "finished"}, [{"workload": "web-3f9a1c-build", "when": "finished"}]),
        (["lint", {"build": "started"}], ["web-3f9a1c-lint", {"workload": "web-3f9a1c-build", "when": "started"}]),
        ({"build": "succeeded", "lint": "succeeded"}, ["web-3f9a1c-build", "web-3f9a1c-lint"]),
    ],
)
def test_needs_become_after(needs: Any, after: Any) -> None:
    made = documents_of(pipeline(action(), action("lint"), action("test", needs=needs)), RUN)
    assert made[-1]["after"] == after
    assert [item.get("after") for item in made[:-1]] == [None, None]


def test_needed_actions_come_first_wherever_they_are_written() -> None:
    raw = pipeline(action("deploy", needs=["test"]), action("test", needs=["build"]), action("build"), action("lint"))
    assert [item["labels"]["action"] for item in documents_of(raw, RUN)] == ["build", "lint", "test", "deploy"]


def test_only_some_actions_and_what_they_need() -> None:
    raw = pipeline(
        action("build"), action("lint"), action("test", needs=["build"]), action("deploy", needs=["test", "lint"])
    )
    made = documents_of(raw, RUN, only=["test"])
    assert [item["labels"]["action"] for item in made] == ["build", "test"]
    assert refusal(raw, only=["tset"]) == ("actions", "there is no action 'tset'; there are build, lint, test, deploy")


def test_the_longest_names_and_the_most_actions() -> None:
    (made,) = documents_of(pipeline(action("a" * 52)), RUN)
    assert len(made["name"]) == 63
    many = [action(f"a-{number}", needs=[f"a-{number - 1}"] if number else []) for number in range(ACTIONS_MAX)]
    assert len(documents_of(pipeline(*many), RUN)) == ACTIONS_MAX


def test_fields_of_an_action_are_those_of_a_document() -> None:
    """A field that documents get is decided about here as well: it belongs to actions, or the message says where."""
    for field in ACTION_FIELDS:
        if field not in ("needs", "services", "artifacts"):
            assert field in type(read_document({"name": "x"})).__struct_encode_fields__, field
    assert not set(ELSEWHERE) & set(ACTION_FIELDS)


def test_every_job_passes_the_servers_check() -> None:
    for made in documents_of(pipeline(action(), action("test", needs={"build": "finished"})), RUN):
        check_document(read_document(made))


# --- malformed files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [None, [], "web", 3, [action()]])
def test_not_a_pipeline(raw: object) -> None:
    assert refusal(raw) == ("$", "a pipeline is a mapping with a name and actions")


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"actions": [action()]}, "name", "a pipeline needs a name"),
        (pipeline({"steps": ["make"]}), "actions[0].name", "an action needs a name"),
        (pipeline({"name": "build"}), "actions[0].steps", "an action needs steps: lines for the shell, in order"),
        (pipeline(action(steps=[])), "actions[0].steps", "this must be 1 to 100 steps, not 0"),
        (pipeline(action(steps=[""])), "actions[0].steps[0]", "there is nothing to run here"),
        (pipeline(action(), stages=[]), "stages", "there is no such field; a pipeline has name, project, env"),
        (pipeline(action("a\nb")), "actions[0].name", "this must be one line of printable text"),
        (pipeline(action("")), "actions[0].name", "an action needs a name"),
        (pipeline(action(), name="x" * 257), "name", "this may have 256 characters"),
        (pipeline(action(), project="a/b"), "project", "a name is made of letters"),
        (pipeline(), "actions", "a pipeline needs a list of actions, each with a name and steps"),
        ({"name": "web"}, "actions", "a pipeline needs a list of actions, each with a name and steps"),
        (pipeline(action(), action("test"), action()), "actions[2].name",
         "two actions have the name build; the other one is actions[0]"),
    ],
)  # fmt: skip
def test_names_steps_and_actions_that_are_missing_or_wrong(raw: Any, path: str, message: str) -> None:
    found = refusal(raw)
    assert found[0] == path
    assert found[1].startswith(message)


@pytest.mark.parametrize("field", ["runs-on", "uses", "cmd"])
def test_an_unknown_field_is_named_with_those_that_there_are(field: str) -> None:
    path, message = refusal(pipeline(action(), action("test", **{field: 1})))
    assert path == f"actions[1].{field}"
    assert message.startswith("there is no such field; an action has name, needs, image, container,")


def test_a_misspelt_field_is_named_with_the_one_that_is_meant() -> None:
    found = refusal(pipeline(action(), action("test", need=["build"])))
    assert found == ("actions[1].need", "there is no such field; did you mean `needs`?")


def test_all_that_is_wrong_with_a_pipeline_is_reported_at_once() -> None:
    raw = pipeline(action("a\nb"), {"name": "test", "need": ["x"]}, action(steps=["make", ""]), env={"A": 1}, stages=[])
    with pytest.raises(Invalid) as caught:
        read_pipeline(raw)
    assert [error["path"] for error in caught.value.params["errors"]] == [
        "stages", "env.A", "actions[0].name", "actions[1].need", "actions[1].steps",
    ]  # fmt: skip


@pytest.mark.parametrize("field", sorted(ELSEWHERE))
def test_a_field_that_belongs_elsewhere_says_where(field: str) -> None:
    assert refusal(pipeline(action(**{field: "x"}))) == (f"actions[0].{field}", ELSEWHERE[field])


@pytest.mark.parametrize(
    ("needs", "path", "message"),
    [
        (["biuld"], "actions[1].needs[0]", "there is no action 'biuld'; there are build, test"),
        (["build", "missing"], "actions[1].needs[1]", "there is no action 'missing'; there are build, test"),
        ({"missing": "finished"}, "actions[1].needs.missing", "there is no action 'missing'; there are build, test"),
        (["test"], "actions[1].needs[0]", "test cannot need itself"),
        (["build", "build"], "actions[1].needs[1]", "build is named twice"),
        (["build", {"build": "finished"}], "actions[1].needs[1].build", "build is named twice"),
        ({"build": "failed"}, "actions[1].needs.build", "this is succeeded, finished or started, not 'failed'"),
        ({"build": None}, "actions[1].needs.build", "this is succeeded, finished or started, not None"),
        ({1: "finished"}, "actions[1].needs", "the name of an action is a text, not 1"),
        (3, "actions[1].needs", "this is a list of actions, such as [build], or a mapping such as {build: finished}"),
        ([3], "actions[1].needs[0]", "this is the name of an action, or a mapping such as {build: finished}"),
    ],
)
def test_needs_that_cannot_be_met(needs: Any, path: str, message: str) -> None:
    assert refusal(pipeline(action(), action("test", needs=needs))) == (path, message)


def test_more_needs_than_a_job_may_wait_for() -> None:
    many = [action(f"a-{number}") for number in range(65)]
    path, message = refusal(pipeline(*many, action("last", needs=[item["name"] for item in many])))
    assert (path, message) == ("actions[65].needs", "this must be 0 to 64 actions, not 65")


def test_a_circle_is_shown_as_a_chain() -> None:
    raw = pipeline(
        action("first", needs=["a"]),
        action("a", needs=["base", "b"]),
        action("b", needs=["c"]),
        action("c", needs={"a": "started"}),
        action("base"),
    )
    assert refusal(raw) == ("actions[1].needs[1]", "dependency cycle: a needs b needs c needs a")


def test_a_long_circle_is_not_a_long_sentence() -> None:
    count = 200
    many = [action(f"a-{number}", needs=[f"a-{(number + 1) % count}"]) for number in range(count)]
    assert len(refusal(pipeline(*many))[1]) < 400


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (pipeline(action(), name=3), "name"),
        (pipeline(action(), project=["a"]), "project"),
        (pipeline(action(), env=["A=b"]), "env"),
        (pipeline(action(), env={"A": 1}), "env.A"),
        (pipeline(action(), env={"A=": "b"}), "env"),
        ({"name": "web", "actions": {"build": action()}}, "actions"),
        (pipeline("build"), "actions[0]"),
        (pipeline(action(), None), "actions[1]"),
        (pipeline(action(), {"name": None, "steps": ["x"]}), "actions[1].name"),
        (pipeline({**action(), 3: 4}), "actions[0]"),
        (pipeline(action(steps="make")), "actions[0].steps"),
        (pipeline(action(steps=[3])), "actions[0].steps[0]"),
        (pipeline(action(steps=[{"run": 3}])), "actions[0].steps[0].run"),
        (pipeline(action(steps=[{"run": "x", "shell": "zsh"}])), "actions[0].steps[0].shell"),
        (pipeline(action(env=3)), "actions[0].env"),
        (pipeline(action(env={"A": None})), "actions[0].env.A"),
        (pipeline(action(labels=["a"])), "actions[0].labels"),
        (pipeline(action(labels={"run": "mine"})), "actions[0].labels.run"),
        (pipeline(action(), action("t", resources={"cpu": -1})), "actions[1].resources.cpu"),
        (pipeline(action(timeout="soon")), "actions[0].timeout"),
        (pipeline(action(retries="many")), "actions[0].retries"),
        (pipeline(action(count=0)), "actions[0].count"),
        (pipeline(action(each=[])), "actions[0].each"),
        (pipeline(action(each=["a", "b"], count=3)), "actions[0].count"),
        (pipeline(action(placement={"require": ["1 +"]})), "actions[0].placement.require[0]"),
        (pipeline(action(image="a\nb")), "actions[0].image"),
        (pipeline(action(retention="59s")), "actions[0].retention"),
    ],
)  # fmt: skip
def test_wrong_types_and_values_name_their_place_in_the_file(raw: Any, path: str) -> None:
    assert refusal(raw)[0] == path


def test_too_many_actions_say_what_to_do_instead() -> None:
    path, message = refusal(pipeline(*[action(f"a-{number}") for number in range(ACTIONS_MAX + 1)]))
    assert path == "actions"
    assert message.startswith("a pipeline may have 1,000 actions; this one has 1,001.")
    assert "`each`" in message


def test_names_that_are_too_long_together_name_the_action() -> None:
    path, message = refusal(pipeline(action(), action("t" * 53)))
    assert path == "actions[1].name"
    assert message.startswith(f"its job would be called web-{RUN}-{'t' * 53} and have 64 characters, at most 63")


@pytest.mark.parametrize("run", ["", "a-b", "a.b", "x" * 17, "é"])
def test_a_run_that_would_not_part_the_names(run: str) -> None:
    assert refusal(pipeline(action()), run)[0] == "run"


def test_reading_leaves_what_was_read_as_it_was() -> None:
    raw = pipeline(action(needs=[]), action("test", needs="build", env={"A": "b"}))
    before = repr(raw)
    read_pipeline(raw)
    documents_of(raw, RUN, variables={"A": "c"})
    assert repr(raw) == before


# --- files ------------------------------------------------------------------------------------------------------------


def test_outputs_of_an_action_as_inputs_are_those_of_its_job_in_the_same_run() -> None:
    use = [{"workload": "Build it", "path": "dist/*"}, {"from": "blob:data", "to": "data"}]
    build, test = documents_of(pipeline(action("Build it", outputs=["dist/**"]), action("test", inputs=use)), RUN)
    assert build["outputs"] == ["dist/**"]
    assert test["inputs"] == [{"workload": "web-3f9a1c-Build-it", "path": "dist/*"}, use[1]]
    assert test["after"] == ["web-3f9a1c-Build-it"]
    assert [need.workload for need in spec_of_document(test).policy.after] == ["default/web-3f9a1c-Build-it"]


def test_a_need_says_when_an_action_with_inputs_starts() -> None:
    use = {"inputs": [{"workload": "build"}], "needs": {"build": "finished"}}
    _, test = documents_of(pipeline(action("build", outputs=["*"]), action("test", **use)), RUN)
    assert test["after"] == [{"workload": "web-3f9a1c-build", "when": "finished"}]


def test_an_action_that_is_chosen_brings_those_whose_outputs_it_has() -> None:
    raw = pipeline(action("build", outputs=["*"]), action("test", inputs=[{"workload": "build"}]), action("lint"))
    assert [document["name"] for document in documents_of(raw, RUN, only=["test"])] == [
        "web-3f9a1c-build", "web-3f9a1c-test",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ([{"workload": "biuld"}], "actions[0].inputs[0].workload"),
        ([{"workload": "build"}], "actions[0].inputs[0].workload"),
        ([{"workload": 5}], "actions[0].inputs[0].workload"),
        ("build", "actions[0].inputs"),
        ([5], "actions[0].inputs[0]"),
    ],
)
def test_inputs_that_are_wrong_are_named(inputs: object, path: str) -> None:
    assert refusal(pipeline(action("build", inputs=inputs)))[0] == path
