"""Sets of files that records name: what they take of a project, and its quota for them."""

from typing import Any

import msgspec
import pytest

from roost.core.invariants import check
from roost.core.state.state import overlay
from roost.core.step import make_plan
from roost.model.errors import Conflict
from roost.model.events import SetProject, Submit, WorkloadSpec
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.model.records.project import Project
from tests.core.scene import Scene, job, outcome, wanted


def files(letter: str, count: int = 1, size: int = 100) -> FileSet:
    return FileSet("sha256:" + letter * 64, count, size)


A, B, C = files("a"), files("b"), files("c", 3, 300)


def spec(name: str, *sets: FileSet, **fields: Any) -> WorkloadSpec:
    """A job with inputs, as the server hands it in: with the sizes."""
    made = wanted(job(name, inputs=[{"from": item.digest, "to": item.digest[-3:]} for item in sets], **fields))
    inputs = [msgspec.structs.replace(item, files=found) for item, found in zip(made.policy.inputs, sets, strict=True)]
    return msgspec.structs.replace(made, policy=msgspec.structs.replace(made.policy, inputs=tuple(inputs)))


def scene_with(**quota: int) -> Scene:
    scene = Scene("n1", cpu=8)
    scene.step(SetProject(1, Project("default", quota=quota)))
    return scene


def submit(scene: Scene, *specs: WorkloadSpec) -> str:
    return outcome(scene.step(Submit(1, specs)))["replies"][0]


def test_a_set_counts_once_however_many_records_name_it() -> None:
    scene = Scene("n1")
    submit(scene, spec("a", A, C), spec("b", A))
    assert scene.state.file_usage == {"default": (4, 400)} and scene.state.file_sets["default"] == {A: 2, C: 1}
    scene.restart()
    assert scene.state.file_usage == {"default": (4, 400)}


def test_inputs_beyond_the_quota_are_refused_with_the_amounts() -> None:
    scene = scene_with(file_bytes=400)
    assert submit(scene, spec("a", A)) == "a"
    reply = submit(scene, spec("b", B), spec("c", C))
    assert reply.startswith("409 quota_exceeded: [1].inputs: project default keeps 100 file_bytes")
    assert "would get 400 file_bytes more; its quota is 400 file_bytes" in reply
    assert list(scene.state.workloads) == ["default/a"], "nothing of a refused request stays"
    (error,) = [value for _, value in scene.step(Submit(1, (spec("c", C, B),))).replies]
    assert isinstance(error, Conflict)
    assert error.params == {"project": "default", "resource": "file_bytes", "wanted": 400, "used": 100, "quota": 400}


def test_a_set_that_the_project_has_takes_no_more_room() -> None:
    scene = scene_with(file_bytes=100, files=1)
    assert submit(scene, spec("a", A)) == "a"
    assert submit(scene, spec("b", A)) == "b"
    assert "its quota is 1 files" in submit(scene, spec("c", FileSet(B.digest, 1, 0)))


def test_what_is_forgotten_makes_room() -> None:
    scene = scene_with(files=1)
    submit(scene, spec("a", A, retention="1m"))
    scene.running("a.0")
    scene.ended("a.0")
    assert "quota_exceeded" in submit(scene, spec("b", B))
    scene.wait("2m")
    assert submit(scene, spec("b", B)) == "b"


def test_other_projects_and_a_quota_that_is_only_counted_are_not_bounded() -> None:
    scene = Scene("n1")
    scene.step(SetProject(1, Project("default", quota={"files": 0}, counted=True)))
    assert submit(scene, spec("a", A)) == "a"
    scene.step(SetProject(1, Project("default", quota={"files": 0}, borrow=True)))
    assert "quota_exceeded" in submit(scene, spec("b", B)), "no other project can lend files"
    assert submit(scene, spec("c", C, project="other")) == "other/c"


def test_a_plan_is_refused_like_the_submission() -> None:
    scene = scene_with(files=2)
    with pytest.raises(Conflict, match="quota is 2 files"):
        make_plan(scene.state, Submit(1, (spec("c", C),)), scene.now)
    assert scene.state.file_usage == {}


@pytest.mark.parametrize(("required", "state"), [(False, "succeeded"), (True, "failed")])
def test_outputs_beyond_the_quota_are_not_kept(required: bool, state: str) -> None:
    scene = scene_with(file_bytes=100)
    scene.submit(job("a", retries=0, outputs=[{"path": "dist/**", "required": required}]))
    scene.running("a.0")
    missing = OutputGap(OutputProblem.MISSING, "*.xml")
    scene.ended("a.0", outputs=Outputs(C, (missing,)))
    full = OutputGap(OutputProblem.PROJECT_FULL, required=required)
    assert scene.instance("a.0").outputs == Outputs(None, (full, missing)) and scene.states("a.0") == [state]
    assert scene.state.file_usage == {}


def test_outputs_within_the_quota_are_kept_also_if_the_project_has_them_already() -> None:
    scene = scene_with(file_bytes=100)
    scene.submit(job("a", outputs=["*"]), job("b", outputs=["*"]))
    scene.running("a.0", "b.0")
    scene.ended("a.0", "b.0", outputs=Outputs(A))
    assert scene.instance("b.0").outputs == Outputs(A) and scene.state.file_sets == {"default": {A: 2}}


def test_a_copy_counts_for_itself() -> None:
    scene = Scene("n1")
    submit(scene, spec("a", A, retention=0))
    copy = Scene("n1")
    copy.state = overlay(scene.state)
    copy.state.file_sets["default"][B] = 1
    assert scene.state.file_sets == {"default": {A: 1}} and check(scene.state) == []
