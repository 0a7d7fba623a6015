"""Arrays whose elements wait for an element each, and arrays whose elements have values of their own."""

import pytest

from roost.core.explain.why import why
from roost.model.reasons.attempts import CancelRequested, ExitCode
from roost.model.reasons.reason import DependencyEnded
from roost.model.reasons.subjects import WorkloadRef
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome

EACH = {"workload": "build", "each": True}


def pair(**fields: object) -> Scene:
    """Three elements that build, and three that test what each of them built."""
    scene = Scene("n", cpu=8, prefill_max=0)
    scene.submit(job("build", count=3, retries=0), job("test", count=3, after=[EACH], **fields))
    return scene


def test_each_element_starts_after_its_own() -> None:
    scene = pair()
    assert scene.counts("test") == {"queued": 3}
    scene.running("build.0", "build.1", "build.2")
    assert outcome(scene.ended("build.1")) == {
        "changes": ["instance build.1 succeeded", "instance test.1 placed"],
        "orders": ["n: drop, run test.1 attempt 1"],
    }
    assert scene.counts("test") == {"queued": 2, "placed": 1}
    reported = why(scene.state, "default/test", 2)
    assert render_text(reported.text) == "default/test.2 waits for default/build.2 to succeed (it is running)"
    scene.ended("build.0", "build.2")
    assert scene.counts("test") == {"placed": 3}
    assert not scene.state.workloads["default/test"].pending_conditions


def test_an_element_is_cancelled_with_its_own_and_the_others_go_on() -> None:
    scene = pair()
    scene.ended("build.1", code=5)
    assert scene.states("test.0", "test.1", "test.2") == ["queued", "cancelled", "queued"]
    assert scene.instance("test.1").reason == DependencyEnded(
        WorkloadRef("default", "build"), 1, "failed", cause=ExitCode(5)
    )
    scene.ended("build.0", "build.2")
    scene.ended("test.0", "test.2")
    assert scene.state.workloads["default/test"].finished_ms


def test_what_never_began_counts_as_what_its_workload_made_of_it() -> None:
    scene = Scene("n", cpu=1, prefill_max=0)
    scene.submit(job("build", count=3), job("test", count=3, after=[EACH]))
    scene.submit(job("clean", count=3, after=[{"workload": "build", "each": True, "when": "finished"}]))
    scene.cancel("build")
    assert scene.counts("test") == {"queued": 3}
    scene.stopped("build.0")
    assert scene.counts("test") == {"cancelled": 3}
    assert scene.instance("test.2").reason == DependencyEnded(
        WorkloadRef("default", "build"), 2, "cancelled", cause=CancelRequested()
    )
    assert scene.counts("clean") == {"placed": 1, "queued": 2}


def test_started_is_reported_of_each_element() -> None:
    scene = Scene("n", cpu=8)
    scene.submit(
        job("feed", count=2), job("watch", count=2, after=[{"workload": "feed", "each": True, "when": "started"}])
    )
    scene.running("feed.1")
    assert scene.states("watch.0", "watch.1") == ["queued", "placed"]


@pytest.mark.parametrize("last", ["ready", "build"])
def test_elements_also_wait_for_what_all_of_them_wait_for(last: str) -> None:
    scene = Scene("n", cpu=8)
    scene.submit(job("ready"), job("build", count=2), job("test", count=2, after=["ready", EACH]))
    first = {"ready": ["build.0", "build.1"], "build": ["ready.0"]}[last]
    scene.ended(*first)
    assert scene.counts("test") == {"queued": 2}
    if last == "ready":
        scene.ended("ready.0")
        assert scene.counts("test") == {"placed": 2}
    else:
        scene.ended("build.1")
        assert scene.states("test.0", "test.1") == ["queued", "placed"]


def test_what_all_wait_for_fails_and_all_are_cancelled() -> None:
    scene = Scene("n", cpu=8)
    scene.submit(job("ready"), job("build", count=2), job("test", count=2, after=["ready", EACH]))
    scene.ended("build.0")
    scene.ended("ready.0", code=1)
    assert scene.counts("test") == {"cancelled": 2}
    assert scene.state.workloads["default/test"].reason == DependencyEnded(
        WorkloadRef("default", "ready"), state="failed", cause=ExitCode(1)
    )


def test_two_arrays_have_to_come_for_each() -> None:
    scene = Scene("n", cpu=8)
    scene.submit(job("build", count=2), job("data", count=2))
    scene.submit(job("test", count=2, after=[EACH, {"workload": "data", "each": True}]))
    scene.ended("build.0", "build.1")
    scene.ended("data.1")
    assert scene.states("test.0", "test.1") == ["queued", "placed"]
    scene.ended("data.0", code=1)
    assert scene.states("test.0") == ["cancelled"]


def test_a_condition_on_finished_work_is_decided_at_once() -> None:
    scene = Scene("n", cpu=8)
    scene.submit(job("build", count=3))
    scene.ended("build.0")
    scene.ended("build.1", code=1)
    scene.submit(job("test", count=3, after=[EACH]))
    assert scene.states("test.0", "test.1", "test.2") == ["placed", "cancelled", "queued"]


def test_a_retry_waits_for_an_element_that_lives_again() -> None:
    scene = pair()
    scene.ended("build.0", "build.2")
    scene.ended("build.1", code=1)
    scene.ended("test.0")
    scene.ended("test.2", code=1)
    assert outcome(scene.retry("test.1"))["replies"] == [
        "409 after_failed: default/test cannot start: retry its dependency first: "
        "dependency default/build.1 failed (exit code 1)"
    ]
    scene.retry("test")  # what could not start is left as it is
    assert scene.states("test.1", "test.2") == ["cancelled", "placed"]
    scene.retry("build.1")
    scene.retry("test.1")
    assert scene.states("test.1") == ["queued"]
    scene.ended("build.1")
    assert scene.states("test.1") == ["placed"]


def test_the_limit_on_waiting_counts_from_the_release_of_each() -> None:
    scene = Scene("n", cpu=3, prefill_max=0)
    scene.submit(job("build", count=3), job("test", count=3, after=[EACH], queue_timeout="10s"))
    scene.submit(job("hold", count=3, priority=60))
    scene.wait("1m")
    scene.ended("build.0")
    scene.wait("5s")
    scene.ended("build.1")
    scene.wait("5s")
    assert scene.states("test.0", "test.1", "test.2") == ["expired", "queued", "queued"]
    scene.restart()
    scene.wait("5s")
    assert scene.states("test.1", "test.2") == ["expired", "queued"]


def test_an_element_that_does_not_want_to_wait_for_room_is_rejected_when_released() -> None:
    scene = Scene("n", cpu=2, prefill_max=0)
    scene.submit(job("build", count=2), job("test", count=2, after=[EACH], when_full="reject"))
    scene.submit(job("hold", priority=60))
    scene.ended("build.0")
    assert scene.states("test.0", "test.1") == ["rejected", "queued"]
    scene.ended("build.1")
    assert scene.states("test.0", "test.1") == ["rejected", "placed"]
    scene.retry("test.0")
    assert scene.states("test.0") == ["queued"]


def test_elements_that_wait_survive_a_restart() -> None:
    scene = pair()
    scene.running("build.0", "build.1", "build.2")
    scene.ended("build.0")
    scene.restart()
    scene.hello("n", "build.1", "build.2", "test.0", cpu=8)
    scene.ended("build.1")
    assert scene.states("test.1", "test.2") == ["placed", "queued"]


def test_what_elements_wait_for_cannot_change_while_they_live() -> None:
    scene = pair()
    message = "the elements of default/test wait for one each; cancel it first to change their dependencies"
    done = scene.submit(job("test", count=3), same_ok=True)
    assert outcome(done) == {"replies": [f"409 cannot_change: after: {message}"]}


def test_too_many_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.core.dependencies.validate.ELEMENTS_AT_ONCE_MAX", 5)
    scene = Scene("n")
    done = scene.submit(job("build", count=3), job("one", count=3, after=[EACH]), job("two", count=3, after=[EACH]))
    assert outcome(done)["replies"][0].startswith("413 too_large: [0].after: 6 elements that wait for an element each")
    assert not scene.state.workloads


def test_each_element_gets_its_own_values() -> None:
    scene = Scene("n", cpu=8)
    scene.submit(job("many", each=["red", "green"]), job("pairs", each=[{"A": "1", "B": "2"}, {"A": "3"}]))
    reported = {f"{run.workload}.{run.index}": run.env for run in scene.runs.values()}
    assert reported == {
        "default/many.0": (("ROOST_VALUE", "red"),),
        "default/many.1": (("ROOST_VALUE", "green"),),
        "default/pairs.0": (("A", "1"), ("B", "2")),
        "default/pairs.1": (("A", "3"),),
    }
    assert scene.state.workloads["default/many"].count == 2
