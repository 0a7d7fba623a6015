"""Results of dependencies in the environment of a run: which, under which name, and which are left out."""

from typing import Any

import pytest

from roost.core.orders import passed_to, run_order
from roost.core.passed_results import NotPassed, NotPassedBecause
from roost.model.events import ResultPosted
from roost.model.keys import WorkloadKey
from roost.model.limits import RESULT_ELEMENTS_MAX, RESULT_VARIABLE_BYTES_MAX, RESULT_VARIABLES_BYTES_MAX
from roost.model.records.result import Result, ResultProblem
from tests.core.scene import Scene, job, service


def sized(size: int) -> Result:
    return Result(b'"' + b"x" * (size - 2) + b'"')


def scene_with(*documents: dict[str, Any], **results: Result | None) -> Scene:
    """Jobs, one after the other; those that are named here have ended with a result."""
    scene = Scene("n1", cpu=200)
    scene.submit(*documents)
    for name, result in results.items():
        key = name.replace("__", "-")
        indexes = range(scene.state.workloads[f"default/{key}"].count)
        names = [f"{key}.{index}" for index in indexes]
        scene.running(*names)
        scene.ended(*names, result=result)
    return scene


def variables(scene: Scene, name: str) -> dict[str, str]:
    return dict(run_order(scene.state, scene.instance(name)).env)


def left_out(scene: Scene, name: str, index: int = 0) -> list[tuple[str, str]]:
    spec = scene.state.workloads[f"default/{name}"]
    return [(item.variable, item.because) for item in passed_to(scene.state, spec, index).left_out]


def test_a_dependent_gets_the_result_also_on_a_retry_and_after_a_restart() -> None:
    scene = scene_with(
        job("a-b"), job("c", after=["a-b"], retries={"max": 1, "on": ["failed"]}), a__b=Result(b'{"n":1}')
    )
    wanted = {"ROOST_RESULT_A_B": '{"n":1}'}
    assert variables(scene, "c.0") == wanted
    scene.running("c.0")
    scene.ended("c.0", code=1)
    assert scene.instance("c.0").attempt == 2 and variables(scene, "c.0") == wanted
    scene.restart()
    assert variables(scene, "c.0") == wanted


def test_the_job_of_a_pipeline_has_the_variable_of_its_action() -> None:
    labels = {"pipeline": "greeter", "run": "3f9a", "action": "build-it"}
    name = "greeter-3f9a-build-it"
    scene = Scene("n1")
    scene.submit(
        job(name, labels=labels), job("c", after=[name]), job("other", labels=labels), job("d", after=["other"])
    )
    for done in (f"{name}.0", "other.0"):
        scene.running(done)
        scene.ended(done, result=Result(b"1"))
    assert variables(scene, "c.0") == {"ROOST_RESULT_BUILD_IT": "1"}
    assert variables(scene, "d.0") == {"ROOST_RESULT_OTHER": "1"}, "its labels are another's"


def test_a_failed_dependency_passes_its_result_when_its_end_is_the_condition() -> None:
    scene = Scene("n1")
    scene.submit(job("a", retries=0), job("c", after=[{"workload": "a", "when": "finished"}]))
    scene.running("a.0")
    scene.ended("a.0", code=1, result=Result(b"1"))
    assert variables(scene, "c.0") == {"ROOST_RESULT_A": "1"}


@pytest.mark.parametrize("result", [None, Result(problem=ResultProblem.NOT_JSON)])
def test_without_a_result_there_is_no_variable(result: Result | None) -> None:
    scene = scene_with(job("a"), job("z"), job("c", after=["a"]), z=Result(b"1"), a=result)
    assert variables(scene, "c.0") == {} and left_out(scene, "c") == []


def test_a_condition_on_a_start_passes_no_result() -> None:
    scene = scene_with(job("a"), job("c", after=[{"workload": "a", "when": "started"}]), a=Result(b"1"))
    assert variables(scene, "c.0") == {}


def test_a_dependency_that_runs_again_has_no_result_meanwhile() -> None:
    scene = scene_with(job("a"), job("c", after=["a"]), a=Result(b"1"))
    scene.running("c.0")
    scene.retry("a.0")
    assert scene.instance("a.0").state == "placed" and variables(scene, "c.0") == {}
    scene.running("a.0")
    again = scene.instance("a.0")
    scene.step(ResultPosted(9, again.workload, 0, again.token, None, "", Result(b"2")))
    assert again.result == Result(b"2") and variables(scene, "c.0") == {}, "it is not final"


def test_an_element_gets_the_result_of_its_element() -> None:
    documents = [job("a", count=2), job("c", count=2, after=[{"workload": "a", "each": True}])]
    scene = Scene("n1", cpu=200)
    scene.submit(*documents)
    scene.running("a.0", "a.1")
    scene.ended("a.0", result=Result(b"10"))
    scene.ended("a.1", result=Result(b"11"))
    assert [variables(scene, f"c.{index}")["ROOST_RESULT_A"] for index in range(2)] == ["10", "11"]


def test_an_array_is_passed_as_a_list_with_null_for_what_is_missing() -> None:
    scene = Scene("n1", cpu=200)
    scene.submit(job("a", count=3), job("c", after=["a"]))
    scene.running("a.0", "a.1", "a.2")
    scene.ended("a.0", result=Result(b'"x"'))
    scene.ended("a.2", result=Result(b"2"))
    scene.ended("a.1")
    assert variables(scene, "c.0") == {"ROOST_RESULT_A": '["x",null,2]'}


def test_a_long_array_is_left_out() -> None:
    scene = scene_with(job("a", count=RESULT_ELEMENTS_MAX + 1), job("c", after=["a"]), a=Result(b"1"))
    assert variables(scene, "c.0") == {} and left_out(scene, "c") == [("ROOST_RESULT_A", "too_many")]


def test_a_large_result_is_left_out() -> None:
    scene = scene_with(job("a"), job("c", after=["a"]), a=sized(RESULT_VARIABLE_BYTES_MAX + 1))
    assert variables(scene, "c.0") == {} and left_out(scene, "c") == [("ROOST_RESULT_A", "too_large")]
    scene = scene_with(job("a"), job("c", after=["a"]), a=sized(RESULT_VARIABLE_BYTES_MAX))
    assert len(variables(scene, "c.0")["ROOST_RESULT_A"]) == RESULT_VARIABLE_BYTES_MAX


def test_all_together_are_bounded() -> None:
    fits = RESULT_VARIABLES_BYTES_MAX // RESULT_VARIABLE_BYTES_MAX
    names = [f"j{number}" for number in range(fits + 1)]
    results = {name: sized(RESULT_VARIABLE_BYTES_MAX) for name in names}
    scene = scene_with(*map(job, names), job("c", after=names), **results)
    assert len(variables(scene, "c.0")) == fits
    assert left_out(scene, "c") == [(f"ROOST_RESULT_J{fits}", "no_room")]


def test_two_dependencies_with_one_variable_are_both_left_out() -> None:
    scene = scene_with(job("a-b"), job("a_b"), job("c", after=["a-b", "a_b"]), a__b=Result(b"1"), a_b=Result(b"2"))
    assert variables(scene, "c.0") == {}
    spec = scene.state.workloads["default/c"]
    because = NotPassedBecause.SAME_VARIABLE
    assert passed_to(scene.state, spec, 0).left_out == (
        NotPassed("ROOST_RESULT_A_B", WorkloadKey("default/a-b"), because),
        NotPassed("ROOST_RESULT_A_B", WorkloadKey("default/a_b"), because),
    )


def test_an_address_of_a_service_keeps_its_variable() -> None:
    scene = Scene("n1", cpu=200)
    scene.submit(service("result", ports={"a": 0}), job("a"), job("c", after=["result", "a"]))
    scene.running("result.0", "a.0")
    scene.ended("a.0", result=Result(b"1"))
    assert variables(scene, "c.0")["ROOST_RESULT_A"].startswith("n1:")
    assert left_out(scene, "c") == [("ROOST_RESULT_A", "same_variable")]
