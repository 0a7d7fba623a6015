"""Results of attempts: stored with their end, replaced by the next attempt, counted and bounded."""

import msgspec
import pytest

from roost.core.invariants import check
from roost.core.state.outcome import Step
from roost.model.events import ResultPosted
from roost.model.protocol import Report
from roost.model.records.instance import Instance
from roost.model.records.result import Result, ResultProblem
from tests.core.scene import Scene, job, outcome, service

ONE, TWO = Result(b'{"n":1}', size=7), Result(b"[2,2,2]", size=7)
BAD = Result(problem=ResultProblem.NOT_JSON, size=3)


def post(scene: Scene, name: str, result: Result | None, code: int | None = None) -> Step:
    instance = scene.instance(name)
    return scene.step(ResultPosted(9, instance.workload, instance.index, instance.token, code, "", result))


def started(*documents: dict[str, object], **settings: int) -> Scene:
    scene = Scene("n1", cpu=8, **settings)
    scene.submit(*documents)
    scene.running(*scene.state.instances)
    return scene


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ({}, "succeeded"),
        ({"code": 3}, "failed"),
        ({"cause": "timed_out", "code": None, "signal": 15}, "timed_out"),
    ],
)
def test_a_result_is_part_of_the_same_commit_as_the_end_whatever_that_is(report: dict[str, object], state: str) -> None:
    scene = started(job("a", retries=0))
    done = scene.ended("a.0", result=ONE, **report)  # type: ignore[arg-type]
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == (state, ONE)
    written = {change.key: change.value for change in done.changes if change.kind == "instance"}
    stored = msgspec.msgpack.decode(written["default/a.0"] or b"", type=Instance)
    assert (stored.state, stored.result) == (state, ONE)
    scene.restart()
    assert scene.instance("a.0").result == ONE and scene.state.result_bytes == {"default": 7}


def test_a_run_that_is_cancelled_may_leave_a_result() -> None:
    scene = started(job("a"))
    scene.cancel("a")
    scene.ended("a.0", cause="stopped", code=None, signal=15, result=ONE)
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == ("cancelled", ONE)


def test_a_problem_changes_nothing_of_the_outcome() -> None:
    scene = started(job("a"))
    scene.ended("a.0", result=BAD)
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == ("succeeded", BAD)
    assert scene.state.result_bytes == {}


def test_each_attempt_has_its_own_and_the_last_one_counts() -> None:
    scene = started(job("a", retries={"max": 2, "on": ["failed"]}))
    scene.ended("a.0", code=1, result=ONE)
    assert (scene.instance("a.0").attempt, scene.instance("a.0").result) == (2, None), "the next attempt has begun"
    scene.running("a.0")
    scene.ended("a.0", code=1)
    scene.running("a.0")
    scene.ended("a.0", code=1, result=TWO)
    assert (scene.instance("a.0").attempt, scene.instance("a.0").result) == (3, TWO)
    scene.retry("a")
    assert scene.instance("a.0").result is None and scene.state.result_bytes == {}


def test_a_result_stays_while_the_next_attempt_waits() -> None:
    scene = started(service("a", restart={"pause": "10s"}))
    scene.ended("a.0", code=1, result=ONE)
    assert (scene.instance("a.0").state, scene.instance("a.0").attempt) == ("queued", 1)
    assert scene.instance("a.0").result == ONE


def test_a_report_of_an_earlier_attempt_changes_no_result() -> None:
    scene = started(job("a", retries={"max": 1, "on": ["failed"]}))
    old = scene.instance("a.0").token
    scene.ended("a.0", code=1, result=ONE)
    scene.running("a.0")
    scene.ended("a.0", result=TWO)
    scene.report("n1", Report(old, "ended", cause="exited", code=0, result=ONE))
    assert scene.instance("a.0").result == TWO


def test_elements_of_an_array_have_a_result_each() -> None:
    scene = started(job("a", count=3, resources={"cpu": 1}))
    scene.ended("a.0", result=ONE)
    scene.ended("a.2", result=TWO)
    scene.ended("a.1")
    assert [scene.instance(f"a.{index}").result for index in range(3)] == [ONE, None, TWO]


def test_an_adopted_end_has_its_result() -> None:
    scene = Scene("n1", adopts=True)
    scene.wait("10s")
    scene.submit(job("a"))
    scene.running("a.0")
    run, report = scene.as_ordered("a.0")
    scene.restart(forgetful=True)
    ended = msgspec.structs.replace(report, state="ended", cause="exited", code=0, result=ONE)
    scene.hello("n1", (run, ended))
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == ("succeeded", ONE)


def test_what_was_posted_stands_until_another_is_posted_or_the_file_is_read() -> None:
    scene = started(job("a"), job("b"))
    for name in ("a.0", "b.0"):
        post(scene, name, ONE)
        assert (scene.instance(name).state, scene.instance(name).result) == ("running", ONE)
        post(scene, name, TWO)
    scene.restart()
    scene.hello("n1", "a.0", "b.0")
    scene.ended("a.0")
    assert scene.instance("a.0").result == TWO, "there was no file"
    scene.ended("b.0", result=ONE)
    assert scene.instance("b.0").result == ONE, "the file is read last"


def test_a_posted_end_has_the_posted_result_and_a_late_file_changes_nothing() -> None:
    scene = started(job("a"))
    token = scene.instance("a.0").token
    post(scene, "a.0", ONE, 0)
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == ("succeeded", ONE)
    scene.report("n1", Report(token, "ended", cause="stopped", signal=15, result=TWO))
    assert scene.instance("a.0").result == ONE


def test_a_posted_result_is_gone_with_its_attempt() -> None:
    scene = started(job("a", retries={"max": 1, "on": ["failed"]}))
    post(scene, "a.0", ONE)
    scene.ended("a.0", code=1)
    scene.running("a.0")
    assert scene.instance("a.0").result is None


def test_results_of_a_project_are_bounded_and_the_end_stands() -> None:
    scene = started(job("a", count=3, resources={"cpu": 1}), project_results_max=14)
    for index, result in enumerate((ONE, TWO, ONE)):
        scene.ended(f"a.{index}", result=result)
    last = scene.instance("a.2")
    assert (last.state, last.result) == ("succeeded", Result(problem=ResultProblem.PROJECT_FULL, size=7))
    scene.submit(job("b", project="other"))
    scene.running("other/b.0")
    scene.ended("other/b.0", result=ONE)
    assert scene.instance("other/b.0").result == ONE and scene.state.result_bytes == {"default": 14, "other": 7}


def test_results_of_all_projects_are_bounded() -> None:
    scene = started(job("a"), job("b", project="other"), results_max=10)
    scene.ended("a.0", result=ONE)
    scene.ended("other/b.0", result=TWO)
    assert scene.instance("other/b.0").result == Result(problem=ResultProblem.SERVER_FULL, size=7)


def test_a_post_that_finds_no_room_is_refused_and_changes_nothing() -> None:
    scene = started(job("a"), project_results_max=10)
    post(scene, "a.0", ONE)
    larger = Result(b'"' + b"x" * 20 + b'"')
    answer = outcome(post(scene, "a.0", larger, 0))
    assert "no_room_for_result" in answer["replies"][0]
    assert (scene.instance("a.0").state, scene.instance("a.0").result) == ("running", ONE)
    post(scene, "a.0", TWO)
    assert scene.instance("a.0").result == TWO, "one takes the place of the other"


def test_what_is_forgotten_makes_room() -> None:
    scene = started(job("a", retention="1m"), job("b"), project_results_max=7)
    scene.ended("a.0", result=ONE)
    scene.wait("2m")
    assert scene.state.result_bytes == {} and "default/a" not in scene.state.workloads
    scene.ended("b.0", result=TWO)
    assert scene.instance("b.0").result == TWO and scene.state.result_bytes_all == 7
    assert check(scene.state) == []
