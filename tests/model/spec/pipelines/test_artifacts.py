"""Artifacts: which outputs and inputs the jobs of a run get because of them, and each refusal with its path."""

from typing import Any

import pytest

from roost.model.records.files import Input
from roost.model.spec.document import check_document, outputs_in, read_document
from roost.model.spec.files import OutputBlock, OutputsWhen
from roost.model.spec.pipelines.expansion import RunOptions, jobs_of
from tests.model.spec.pipelines.test_definition import RUN, action, documents_of, pipeline, refusal


def policies(*actions: dict[str, Any], **fields: Any) -> list[tuple[Input, ...]]:
    """The inputs of each job."""
    return [job.spec.policy.inputs for job in jobs_of(pipeline(*actions, **fields), RUN, RunOptions())[1]]


def given(name: str, path: str = "", to: str = "") -> Input:
    return Input(to, workload=f"default/web-{RUN}-{name}", path=path, optional=True)


def test_dependents_get_the_artifacts_of_what_they_need() -> None:
    raw = pipeline(
        action(artifacts=["dist/", "*.whl"]),
        action("lint"),
        action("test", needs=["build", "lint"]),
        action("deploy", needs=["test"]),
    )
    build, lint, test, deploy = documents_of(raw, RUN)
    assert [block.path for block in outputs_in(jobs_of(raw, RUN, RunOptions())[1][0].spec.document)] == [
        "dist/", "*.whl"
    ]  # fmt: skip
    assert test["inputs"] == [{"workload": f"web-{RUN}-build", "optional": True}]
    assert [document.get("inputs") for document in (build, lint, deploy)] == [None, None, None]
    assert "artifacts" not in build
    assert check_document(read_document(test)).inputs == (given("build"),)


def test_outputs_of_an_action_that_are_no_artifacts_stay_with_it() -> None:
    build = action(artifacts=["dist/*", {"path": "a", "required": True}], outputs=["report.xml"])
    assert policies(build, action("test", needs="build"))[1] == (given("build", "dist/*"), given("build", "a"))


def test_artifacts_come_after_the_files_of_all_actions_and_before_the_inputs_of_their_own() -> None:
    tree, own = {"from": "blob:tree"}, {"from": "blob:own"}
    _, test = documents_of(
        pipeline(action(artifacts=["x"]), action("test", needs="build", inputs=[own]), inputs=[tree]), RUN
    )
    assert test["inputs"] == [tree, {"workload": f"web-{RUN}-build", "optional": True}, own]


def test_an_input_from_an_action_takes_the_place_of_its_artifacts() -> None:
    chosen = {"workload": "build", "path": "x/*", "to": "y"}
    _, test = documents_of(pipeline(action(artifacts=["x"]), action("test", needs="build", inputs=[chosen])), RUN)
    assert test["inputs"] == [{**chosen, "workload": f"web-{RUN}-build"}]


def test_artifacts_of_an_array_have_a_folder_of_their_action() -> None:
    found = policies(
        action("Build all", artifacts=["x"], each=["a", "b"]),
        action("docs", artifacts=["y"], count=2),
        action("test", needs=["Build all", "docs"]),
    )
    assert found[2] == (given("Build-all", to="Build-all"), given("docs", to="docs"))


@pytest.mark.parametrize(
    ("artifacts", "names"),
    [
        ("none", []),
        ({"from": []}, []),
        ({"from": ["Build it"]}, ["Build-it"]),
        ({"paths": ["z"]}, ["Build-it", "docs"]),
    ],
)
def test_an_action_chooses_whose_artifacts_it_gets(artifacts: Any, names: list[str]) -> None:
    found = policies(
        action("Build it", artifacts=["x"]),
        action("docs", artifacts=["y"]),
        action("test", needs=["Build it", "docs"], artifacts=artifacts),
    )
    assert found[2] == tuple(map(given, names))


def test_what_has_only_started_has_no_artifacts_and_what_has_failed_may_have() -> None:
    found = policies(
        action(artifacts=["x"]), action("a", needs={"build": "started"}), action("b", needs={"build": "finished"})
    )
    assert found[1:] == [(), (given("build"),)]


def test_when_and_required_are_those_of_every_path_unless_it_has_its_own() -> None:
    artifacts = {"paths": ["a", {"path": "b"}], "when": "success", "required": True}
    (job,) = jobs_of(pipeline(action(artifacts=artifacts)), RUN, RunOptions())[1]
    assert outputs_in(job.spec.document) == [OutputBlock("a", OutputsWhen.SUCCESS, True), OutputBlock("b")]


@pytest.mark.parametrize(
    ("artifacts", "path", "message"),
    [
        ("all", "artifacts", "this is a list of paths, a mapping with paths and from, or none"),
        (["../x"], "artifacts[0]", "this has to be a path below the work directory"),
        ({"paths": ["/x"]}, "artifacts.paths[0]", "this has to be a path below the work directory"),
        ({"path": ["x"]}, "artifacts.path", "there is no such field; did you mean `paths`?"),
        ({"from": ["tests"]}, "artifacts.from[0]", "the action needs build, server; add 'tests' to `needs`"),
        ({"from": ["server"]}, "artifacts.from[0]", "artifacts are there when an action has ended"),
        ({"from": ["build"] * 65}, "artifacts.from", "this must be 0 to 64 actions, not 65"),
        (["x"] * 101, "artifacts", "this must be 0 to 100 outputs, not 101"),
    ],
)
def test_wrong_artifacts_are_named(artifacts: Any, path: str, message: str) -> None:
    needs = {"build": "succeeded", "server": "started"}
    raw = pipeline(action(), action("server"), action("test", needs=needs, artifacts=artifacts))
    found = refusal(raw)
    assert found[0] == f"actions[2].{path}"
    assert found[1].startswith(message)
