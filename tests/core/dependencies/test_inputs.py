"""Inputs of runs: files that were sent, and outputs of other workloads, which a dependent keeps once it is released."""

from typing import Any

import msgspec
import pytest

from roost.core.explain.why import why
from roost.core.orders import run_order
from roost.model.events import Delete, Submit
from roost.model.limits import INPUT_FOLDERS_MAX
from roost.model.reasons.attempts import DependencyWithoutOutputs
from roost.model.reasons.subjects import WorkloadRef
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.workload import After
from roost.schema.reason_text import render, render_text
from roost.server.views.work import live_view
from tests.core.scene import Scene, job, outcome, service, wanted


def digest(letter: str) -> str:
    return "sha256:" + letter * 64


A, B = FileSet(digest("a"), 2, 20), FileSet(digest("b"), 1, 10)
LOST = Outputs(None, (OutputGap(OutputProblem.NOT_STORED),))
NOTHING = Outputs(None, (OutputGap(OutputProblem.MISSING, "dist/**"),))
BUILD: dict[str, Any] = {"outputs": ["dist/**"]}
FROM_BUILD: dict[str, Any] = {"inputs": [{"workload": "build", "path": "dist/*", "to": "in"}]}


def built(*documents: dict[str, Any], outputs: Outputs | None = None, **fields: Any) -> Scene:
    """A build that has ended with outputs, and others that were submitted with it."""
    scene = Scene("n1", cpu=200)
    scene.submit(job("build", **BUILD, **fields), *documents)
    names = [f"build.{index}" for index in range(scene.state.workloads["default/build"].count)]
    scene.running(*names)
    scene.ended(*names, outputs=outputs or Outputs(A))
    return scene


def inputs(scene: Scene, name: str) -> tuple[RunInput, ...]:
    return run_order(scene.state, scene.instance(name)).inputs


def test_an_order_has_the_files_and_urls_of_the_document() -> None:
    scene = Scene("n1")
    url = "https://example.org/tool.tgz"
    scene.submit(job("a", inputs=[{"from": digest("a"), "to": "src"}, {"url": url, "sha256": "0" * 64}]))
    assert inputs(scene, "a.0") == (RunInput("src", digest("a")), RunInput("tool.tgz", url=url, sha256="0" * 64))
    assert scene.state.file_sets == {"default": {FileSet(digest("a")): 1}}


def test_an_input_from_a_workload_waits_for_it_and_gets_its_outputs() -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), job("test", **FROM_BUILD))
    assert scene.state.workloads["default/test"].pending_conditions == (After("default/build"),)
    scene.running("build.0")
    scene.ended("build.0", outputs=Outputs(A))
    assert inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"),)
    assert scene.state.file_sets == {"default": {A: 2}}
    scene.restart()
    assert inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"),)


def test_why_says_whose_outputs_are_waited_for() -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), job("test", **FROM_BUILD))
    scene.running("build.0")
    found = why(scene.state, "default/test")
    assert render_text(found.text) == (
        "default/test.0 waits for default/build to succeed, for its outputs (it is running)"
    )  # fmt: skip
    view = live_view(scene.state, scene.state.workloads["default/test"])
    assert view.message == "waits for default/build to succeed, for its outputs"


def test_two_inputs_of_one_workload_share_its_outputs() -> None:
    pair = [{"workload": "build", "path": "bin/*", "to": "b"}, {"workload": "build", "path": "*.xml", "to": "r"}]
    scene = built(job("test", inputs=pair))
    assert inputs(scene, "test.0") == (RunInput("b", A.digest, "bin/*"), RunInput("r", A.digest, "*.xml"))


OPTIONAL: dict[str, Any] = {"inputs": [{"workload": "build", "to": "in", "optional": True}]}
ANY_END: dict[str, Any] = {"after": [{"workload": "build", "when": "finished"}]}


@pytest.mark.parametrize(
    ("code", "outputs", "found"),
    [(0, Outputs(A), (RunInput("in", A.digest, optional=True),)), (0, NOTHING, ()), (1, NOTHING, ())],
)
def test_a_dependent_does_without_optional_outputs_that_are_not_there(
    code: int, outputs: Outputs, found: tuple[RunInput, ...]
) -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), job("report", **OPTIONAL, **ANY_END))
    scene.running("build.0")
    scene.ended("build.0", code=code, outputs=outputs)
    assert scene.counts("report") == {"placed": 1}
    assert inputs(scene, "report.0") == found


def test_optional_outputs_that_were_lost_are_missed() -> None:
    assert built(job("report", **OPTIONAL, **ANY_END), outputs=LOST).counts("report") == {"cancelled": 1}


def test_optional_outputs_are_kept_when_their_workload_is_forgotten() -> None:
    scene = built(job("report", **OPTIONAL, **ANY_END))
    scene.running("report.0")
    scene.ended("report.0", code=1)
    scene.step(Delete(1, "default/build"))
    scene.retry("report")
    assert inputs(scene, "report.0") == (RunInput("in", A.digest, optional=True),)


def test_a_needed_input_beside_an_optional_one_is_missed() -> None:
    both = {"inputs": [*OPTIONAL["inputs"], {"workload": "build", "to": "other"}]}
    assert built(job("test", **both), outputs=NOTHING).counts("test") == {"cancelled": 1}


def test_an_array_gives_a_folder_for_each_instance() -> None:
    scene = Scene("n1", cpu=200)
    root = {"inputs": [{"workload": "build"}]}
    scene.submit(job("build", count=3, **BUILD), job("test", **FROM_BUILD), job("other", **root))
    scene.running("build.0", "build.1", "build.2")
    scene.ended("build.0", outputs=Outputs(A))
    scene.ended("build.1", outputs=NOTHING)
    scene.ended("build.2", outputs=Outputs(B))
    wanted = (RunInput("in/0", A.digest, "dist/*"), RunInput("in/2", B.digest, "dist/*"))
    assert inputs(scene, "test.0") == wanted, "an instance with nothing to keep has no folder"
    assert inputs(scene, "other.0") == (RunInput("0", A.digest), RunInput("2", B.digest))


def test_an_element_gets_the_outputs_of_its_element() -> None:
    scene = Scene("n1", cpu=200)
    after = {"after": [{"workload": "build", "each": True}]}
    scene.submit(job("build", count=2, **BUILD), job("test", count=2, **FROM_BUILD, **after))
    scene.running("build.0", "build.1")
    scene.ended("build.1", outputs=Outputs(B))
    assert inputs(scene, "test.1") == (RunInput("in", B.digest, "dist/*"),)
    scene.ended("build.0", outputs=LOST)
    assert scene.instance("test.0").reason == DependencyWithoutOutputs(WorkloadRef("default", "build"), 0)
    assert scene.states("test.0", "test.1") == ["cancelled", "placed"]


def test_an_element_keeps_outputs_that_came_before_it_was_released() -> None:
    scene = Scene("n1", cpu=200)
    each = [{"workload": "build", "each": True}, {"workload": "slow", "each": True}]
    scene.submit(
        job("build", count=2, retention=0, **BUILD), job("slow", count=2), job("c", count=2, after=each, **FROM_BUILD)
    )
    scene.running("build.0", "build.1", "slow.0", "slow.1")
    scene.ended("build.0", "build.1", outputs=Outputs(A))
    scene.wait("1s")
    assert "default/build" not in scene.state.workloads
    scene.ended("slow.0", "slow.1")
    assert inputs(scene, "c.1") == (RunInput("in", A.digest, "dist/*"),)


@pytest.mark.parametrize("outputs", [None, NOTHING, LOST])
def test_without_the_outputs_a_dependent_does_not_run(outputs: Outputs | None) -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), job("test", **FROM_BUILD))
    scene.running("build.0")
    scene.ended("build.0", outputs=outputs)
    test = scene.state.workloads["default/test"]
    assert (test.unstarted_end_state, scene.state.instances.get("default/test.0")) == ("cancelled", None)
    assert test.reason is not None and test.reason.code == "dependency_without_outputs"
    assert render(test.reason).startswith("dependency default/build") and "has no outputs" in render(test.reason)
    assert "after_failed" in outcome(scene.retry("test"))["replies"][0]
    scene.retry("build.0")
    scene.running("build.0")
    scene.ended("build.0", outputs=Outputs(A))
    scene.retry("test")
    assert inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"),)


def test_outputs_of_a_failed_workload_are_inputs_where_its_end_is_the_condition() -> None:
    scene = Scene("n1")
    after = {"after": [{"workload": "build", "when": "finished"}]}
    scene.submit(job("build", retries=0, **BUILD), job("test", **FROM_BUILD, **after))
    scene.running("build.0")
    scene.ended("build.0", code=1, outputs=Outputs(A))
    assert inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"),)


def test_a_service_keeps_its_inputs_when_the_build_is_forgotten() -> None:
    scene = built(service("web", **FROM_BUILD, restart={"pause": 1}), retention="1m")
    scene.running("web.0")
    scene.wait("2m")
    assert "default/build" not in scene.state.workloads and scene.state.file_sets == {"default": {A: 1}}
    scene.ended("web.0", code=1)
    scene.wait("1s")
    assert scene.instance("web.0").attempt == 2 and inputs(scene, "web.0") == (RunInput("in", A.digest, "dist/*"),)


def test_the_next_attempt_has_the_same_inputs_while_the_build_runs_again() -> None:
    scene = built(job("test", retries={"max": 1, "on": ["failed"]}, **FROM_BUILD))
    scene.running("test.0")
    scene.retry("build.0")
    scene.ended("test.0", code=1)
    assert scene.instance("test.0").attempt == 2 and inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"),)


def test_a_retry_by_a_user_takes_the_present_outputs() -> None:
    scene = built(job("test", retries=0, **FROM_BUILD))
    scene.running("test.0")
    scene.ended("test.0", code=1)
    scene.retry("build.0")
    scene.running("build.0")
    scene.ended("build.0", outputs=Outputs(B))
    scene.retry("test")
    assert inputs(scene, "test.0") == (RunInput("in", B.digest, "dist/*"),)
    assert scene.state.file_sets == {"default": {B: 2}}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (None, "there is no workload build"),
        (service("build", **BUILD), "build is a service, which does not end"),
        (job("build", schedule="0 3 * * *", **BUILD), "build runs by a schedule"),
        (job("build"), "build has no outputs"),
        (job("build", count=INPUT_FOLDERS_MAX + 1, **BUILD), "outputs of at most 1,000 can be inputs"),
    ],
)
def test_what_cannot_be_an_input_is_refused(other: dict[str, Any] | None, message: str) -> None:
    scene = Scene("n1")
    if other is not None:
        scene.submit(other)
    reply = outcome(scene.submit(job("test", **FROM_BUILD)))["replies"][0]
    assert "inputs[0].workload: " in reply and message in reply
    assert "default/test" not in scene.state.workloads


def test_workloads_that_are_inputs_of_each_other_are_refused() -> None:
    scene = Scene("n1")
    back = {"inputs": [{"workload": "test"}]}
    reply = outcome(scene.submit(job("build", **BUILD, **back), job("test", **BUILD, **FROM_BUILD)))["replies"][0]
    assert "after_cycle" in reply


def test_a_change_of_inputs_or_outputs_restarts_a_service() -> None:
    scene = Scene("n1")
    plain = {"update": {"healthy_after": 0}}
    scene.submit(service("web", inputs=[{"from": digest("a")}], **plain))
    scene.running("web.0")
    scene.wait("10s")
    scene.apply(service("web", inputs=[{"from": digest("b")}], **plain))
    assert scene.states("web.0") == ["stopping"]
    assert scene.state.file_sets == {"default": {FileSet(digest("a")): 1, FileSet(digest("b")): 1}}, "a version has it"
    scene.stopped("web.0")
    scene.running("web.0")
    scene.wait("10s")
    scene.apply(service("web", inputs=[{"from": digest("b")}], outputs=["*.log"], **plain))
    assert scene.states("web.0") == ["stopping"]


def test_a_name_that_stands_for_other_files_restarts_a_service_with_the_same_document() -> None:
    scene = Scene("n1")
    spec = wanted(service("web", inputs=[{"from": "blob:site"}]))

    def resolved(files: FileSet) -> Submit:
        policy = msgspec.structs.replace(
            spec.policy, inputs=(msgspec.structs.replace(spec.policy.inputs[0], files=files),)
        )
        return Submit(1, (msgspec.structs.replace(spec, policy=policy),), same_ok=True)

    scene.step(resolved(A))
    scene.running("web.0")
    scene.wait("10s")
    scene.step(resolved(FileSet(A.digest)))
    assert scene.states("web.0") == ["running"], "the sizes are not what they are"
    scene.step(resolved(B))
    assert scene.states("web.0") == ["stopping"]


def test_a_new_version_takes_the_present_outputs_and_a_rollback_those_it_had() -> None:
    from roost.model.events import Rollback

    scene = built(service("web", **FROM_BUILD))
    scene.running("web.0")
    scene.wait("10s")
    scene.retry("build.0")
    scene.running("build.0")
    scene.apply(service("web", labels={"n": "1"}, **FROM_BUILD))
    assert scene.states("web.0") == ["running"], "it keeps its files while there are no others"
    scene.ended("build.0", outputs=Outputs(B))
    scene.apply(service("web", labels={"n": "2"}, **FROM_BUILD))
    assert scene.states("web.0") == ["stopping"]
    scene.stopped("web.0")
    assert inputs(scene, "web.0") == (RunInput("in", B.digest, "dist/*"),)
    scene.running("web.0")
    scene.wait("10s")
    scene.step(Rollback(1, "default/web", 1))
    scene.stopped("web.0")
    assert inputs(scene, "web.0") == (RunInput("in", A.digest, "dist/*"),)


def test_a_service_can_be_updated_when_the_build_is_forgotten() -> None:
    scene = built(service("web", **FROM_BUILD, update={"healthy_after": 0}), retention="1m")
    scene.running("web.0")
    scene.wait("2m")
    assert "default/build" not in scene.state.workloads
    scene.apply(service("web", labels={"n": "1"}, **FROM_BUILD, update={"healthy_after": 0}))
    assert (scene.state.workloads["default/web"].version, scene.states("web.0")) == (2, ["running"])
    more = [*FROM_BUILD["inputs"], {"workload": "build", "path": "etc/*", "to": "etc"}]
    scene.apply(service("web", inputs=more, update={"healthy_after": 0}))
    scene.stopped("web.0")
    assert inputs(scene, "web.0") == (RunInput("in", A.digest, "dist/*"), RunInput("etc", A.digest, "etc/*"))
    reply = outcome(scene.apply(service("web", inputs=[{"workload": "other"}])))["replies"][0]
    assert "cannot_change: inputs: " in reply and "dependency default/other has no outputs" in reply


def test_a_service_that_runs_cannot_wait_for_more_outputs() -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), service("web"))
    scene.running("web.0", "build.0")
    reply = outcome(scene.apply(service("web", **FROM_BUILD)))["replies"][0]
    assert "409 cannot_change: inputs: " in reply and "dependency default/build has no outputs" in reply
    scene.ended("build.0", outputs=Outputs(A))
    scene.apply(service("web", **FROM_BUILD))
    scene.stopped("web.0")
    assert inputs(scene, "web.0") == (RunInput("in", A.digest, "dist/*"),)


def test_a_pending_workload_may_get_other_inputs() -> None:
    scene = Scene("n1")
    scene.submit(job("build", **BUILD), job("more", **BUILD), job("test", **FROM_BUILD))
    scene.apply(job("test", inputs=[*FROM_BUILD["inputs"], {"workload": "more", "to": "more"}]))
    scene.running("build.0", "more.0")
    scene.ended("build.0", outputs=Outputs(A))
    assert "default/test.0" not in scene.state.instances
    scene.ended("more.0", outputs=Outputs(B))
    assert inputs(scene, "test.0") == (RunInput("in", A.digest, "dist/*"), RunInput("more", B.digest))


def test_elements_with_inputs_of_their_own_cannot_get_others() -> None:
    after = {"after": [{"workload": "build", "each": True}]}
    scene = Scene("n1")
    scene.submit(job("build", count=2, **BUILD), job("test", count=2, **after, **FROM_BUILD))
    reply = outcome(scene.apply(job("test", count=2, **after, inputs=[{"workload": "build", "to": "x"}])))["replies"][0]
    assert "cannot_change: inputs" in reply


def test_runs_of_a_schedule_have_the_inputs_that_were_found_at_submission() -> None:
    scene = Scene("n1")
    spec = wanted(job("nightly", schedule="* * * * *", inputs=[{"from": "blob:data"}]))
    policy = msgspec.structs.replace(spec.policy, inputs=(msgspec.structs.replace(spec.policy.inputs[0], files=A),))
    scene.step(Submit(1, (msgspec.structs.replace(spec, policy=policy),)))
    scene.wait("1m")
    (run,) = [name for name in scene.state.instances if "nightly-" in name]
    assert inputs(scene, run) == (RunInput("", A.digest),) and scene.state.file_sets == {"default": {A: 2}}


@pytest.mark.parametrize("each", [False, True])
def test_an_adopted_run_keeps_its_inputs(each: bool) -> None:
    scene = Scene("n1", cpu=200, adopts=True)
    scene.wait("10s")
    files = {"inputs": [*FROM_BUILD["inputs"], {"from": digest("c"), "to": "src"}], "restart": {"pause": 1}}
    after = [{"workload": "build", "each": True}] if each else ["build"]
    if each:
        files = {"inputs": files["inputs"], "retries": {"max": 3, "on": ["failed"]}}
    scene.submit(
        job("build", count=2, **BUILD),
        job("web", count=2, after=after, **files) if each else service("web", after=after, **files),
    )
    scene.running("build.0", "build.1")
    scene.ended("build.0", outputs=Outputs(A))
    scene.ended("build.1", outputs=Outputs(B))
    scene.running("web.0")
    before = inputs(scene, "web.0")
    assert len(before) == (2 if each else 3)
    run, report = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("n1", (run, report), cpu=200)
    assert inputs(scene, "web.0") == before
    scene.ended("web.0", code=1)
    scene.wait("20s")
    assert scene.instance("web.0").attempt == 2 and inputs(scene, "web.0") == before
