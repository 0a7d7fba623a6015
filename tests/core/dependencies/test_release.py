"""Workloads that wait for others: released or cancelled, and what is reported of them meanwhile."""

from typing import Any

import pytest

from roost.core.explain.why import why
from roost.core.step import make_plan
from roost.model.events import Submit
from roost.model.reasons.attempts import CancelRequested, ExitCode, QueueTimeout, TimeoutExceeded
from roost.model.reasons.reason import DependencyEnded, Reason
from roost.model.reasons.subjects import WorkloadRef
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome, service, wanted


def after(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"workload": name} | fields]


def workload(scene: Scene, name: str) -> Any:
    return scene.state.workloads[f"default/{name}"]


def test_a_job_starts_when_the_one_before_it_has_succeeded() -> None:
    scene = Scene("a")
    assert outcome(scene.submit(job("build"), job("test", after=["build"]))) == {
        "changes": ["workload build", "workload test", "instance build.0 placed"],
        "orders": ["a: run build.0 attempt 1"],
        "replies": ["build test"],
    }
    scene.running("build.0")
    assert scene.counts("test") == {"queued": 1}
    scene.wait("1m")
    assert outcome(scene.ended("build.0")) == {
        "changes": ["instance build.0 succeeded", "workload build", "workload test", "instance test.0 placed"],
        "orders": ["a: drop, run test.0 attempt 1"],
    }
    assert workload(scene, "test").released_ms == scene.now


def test_the_one_before_may_come_later_in_the_same_request() -> None:
    scene = Scene("a")
    scene.submit(job("test", after=["build"]), job("build"))
    assert scene.states("build.0") == ["placed"]
    assert scene.counts("test") == {"queued": 1}


def test_an_instance_that_waits_for_what_failed_is_cancelled_and_so_is_one_that_waits_for_that() -> None:
    scene = Scene("a")
    scene.submit(job("build"), job("test", after=["build"]), job("ship", after=["test"]))
    scene.running("build.0")
    assert outcome(scene.ended("build.0", code=1)) == {
        "changes": ["instance build.0 failed", "workload build", "workload test cancelled", "workload ship cancelled"],
        "orders": ["a: drop"],
    }
    failed = DependencyEnded(WorkloadRef("default", "build"), state="failed", cause=ExitCode(1))
    assert workload(scene, "test").reason == failed
    assert workload(scene, "ship").reason == DependencyEnded(
        WorkloadRef("default", "test"), state="cancelled", cause=failed
    )
    assert not scene.state.dependents


def ended(state: str, cause: Reason, instance: int | None = None, name: str = "build") -> Reason:
    return DependencyEnded(WorkloadRef("default", name), state=state, instance=instance, cause=cause)


@pytest.mark.parametrize(
    ("fields", "end", "reason"),
    [
        ({"timeout": "1m"}, "timed_out", ended("timed_out", TimeoutExceeded(60_000))),
        ({}, "cancel", ended("cancelled", CancelRequested())),
        ({"count": 3}, "failed", ended("failed", ExitCode(7), 1)),
        ({"queue_timeout": "1s", "resources": {"cpu": 9}}, "wait", ended("expired", QueueTimeout(1_000))),
    ],
)
def test_every_other_end_cancels_an_instance_that_waits_for_success(
    fields: dict[str, Any], end: str, reason: Reason
) -> None:
    scene = Scene("a")
    scene.submit(job("build", retries=0, **fields), job("test", after=["build"]))
    if end == "timed_out":
        scene.running("build.0")
        scene.ended("build.0", code=None, cause="timed_out")
    elif end == "cancel":
        scene.cancel("build")
        scene.stopped("build.0")
    elif end == "failed":
        scene.ended("build.0")
        scene.ended("build.1", code=7)
        assert workload(scene, "test").pending_conditions  # one has failed, and may be tried again until all is over
        scene.ended("build.2")
    else:
        scene.wait("2s")
    assert scene.counts("test") == {"cancelled": 1}
    assert workload(scene, "test").reason == reason


def test_finished_takes_any_end() -> None:
    scene = Scene("a")
    scene.submit(job("build"), job("clean", after=after("build", when="finished")))
    scene.ended("build.0", code=1)
    assert scene.states("clean.0") == ["placed"]
    scene.submit(job("slow"), job("report", after=after("slow", when="finished")))
    scene.cancel("slow")
    assert scene.counts("report") == {"queued": 1}  # it is stopping: not over yet
    scene.stopped("slow.0")
    assert scene.states("report.0") == ["placed"]


def test_finished_takes_a_rejection_in_the_next_step() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("big", when_full="reject", resources={"cpu": 2}), job("next", after=after("big", when="finished")))
    assert scene.counts("big") == {"rejected": 1}
    assert scene.steps[-1].wake_at_ms == scene.now
    scene.step()
    assert scene.states("next.0") == ["placed"]


def test_started_needs_a_run_that_began() -> None:
    scene = Scene("a")
    scene.submit(job("feed"), job("watch", after=after("feed", when="started")))
    assert scene.counts("watch") == {"queued": 1}
    scene.running("feed.0")
    assert scene.states("watch.0") == ["placed"]


def test_what_ran_and_failed_has_started_and_what_never_ran_has_not() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("ran"), job("never"))
    scene.ended("ran.0", code=3)
    scene.running("never.0")
    scene.submit(job("late"))
    scene.cancel("late")
    scene.submit(
        job("one", after=after("ran", when="started")),
        job("two", after=after("late", when="started")),
    )
    assert scene.counts("two") == {"cancelled": 1}
    assert workload(scene, "two").reason == ended("cancelled", CancelRequested(), name="late")
    assert not workload(scene, "one").pending_conditions


def test_a_service_has_started_when_one_of_it_is_ready() -> None:
    scene = Scene("a")
    scene.submit(service("db", count=2), job("load", after=["db"]))
    assert workload(scene, "load").pending_conditions[0].when == "started"
    scene.running("db.1", ready=False)
    assert scene.counts("load") == {"queued": 1}
    assert (
        render_text(why(scene.state, "default/load").text)
        == "default/load.0 waits for default/db to be ready (it is running)"
    )
    scene.running("db.1")
    assert scene.states("load.0") == ["placed"]


def test_a_service_that_ends_before_it_was_ready_cancels_pending_instances() -> None:
    scene = Scene("a")
    scene.submit(service("db"), job("load", after=["db"]))
    scene.cancel("db")
    scene.stopped("db.0")
    assert workload(scene, "load").reason == ended("cancelled", CancelRequested(), name="db")


def test_all_of_several_have_to_come_in_any_order() -> None:
    scene = Scene("a")
    scene.submit(job("one"), job("two"), service("db"), job("last", after=["one", "two", "db"]))
    scene.running("db.0")
    scene.ended("two.0")
    assert [wait.workload for wait in workload(scene, "last").pending_conditions] == ["default/one"]
    scene.ended("one.0")
    assert scene.states("last.0") == ["placed"]


def test_a_condition_on_finished_work_is_decided_at_once() -> None:
    scene = Scene("a")
    scene.submit(job("good"), job("bad"))
    scene.ended("good.0")
    scene.ended("bad.0", code=1)
    scene.submit(job("one", after=["good"]), job("two", after=["bad"]))
    assert scene.states("one.0") == ["placed"]
    assert scene.counts("two") == {"cancelled": 1}


def test_an_instance_that_is_forgotten_has_been_decided() -> None:
    scene = Scene("a")
    scene.submit(job("build", retention=0), job("test", after=["build"]))
    scene.ended("build.0")
    scene.wait("1s")
    assert "default/build" not in scene.state.workloads
    assert scene.states("test.0") == ["placed"]


def test_a_long_chain_is_no_circle_and_falls_as_one() -> None:
    scene = Scene("n")
    scene.submit(job("j0"), *[job(f"j{index}", after=[f"j{index - 1}"]) for index in range(1, 500)])
    scene.ended("j0.0", code=1)
    assert scene.counts("j499") == {"cancelled": 1}
    assert not scene.state.dependency_changes


def test_more_than_one_step_may_decide_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.core.dependencies.release.DECISIONS_MAX", 3)
    scene = Scene("n", cpu=10)
    scene.submit(job("build"), *[job(f"j{index}", after=["build"]) for index in range(7)])
    done = scene.ended("build.0")
    assert len(scene.state.dependents["default/build"]) == 4
    assert done.wake_at_ms == scene.now
    scene.restart()  # the news are gone with the old server
    scene.hello("n", cpu=10)
    scene.step()
    scene.step()
    assert not scene.state.dependents


def test_the_limit_on_waiting_counts_from_the_release_and_the_deadline_from_submission() -> None:
    scene = Scene("n", cpu=1, prefill_max=0)
    scene.submit(
        job("build"),
        job("test", after=["build"], queue_timeout="10s"),
        job("soon", after=["build"], deadline="30s"),
    )
    scene.submit(job("hold", priority=60))
    scene.wait("20s")
    assert scene.counts("test") == {"queued": 1}
    scene.wait("10s")
    assert scene.counts("soon") == {"expired": 1}
    scene.ended("build.0")
    assert scene.where("hold.0") == ["n"]
    scene.wait("9s")
    assert scene.counts("test") == {"queued": 1}
    scene.restart()
    scene.wait("1s")
    assert scene.counts("test") == {"expired": 1}


def test_an_instance_that_does_not_want_to_wait_for_room_waits_for_others() -> None:
    scene = Scene("n", cpu=1, prefill_max=0)
    scene.submit(job("build"), job("test", after=["build"], when_full="reject"))
    assert scene.counts("test") == {"queued": 1}
    scene.submit(job("first", priority=60))
    scene.ended("build.0")
    assert scene.states("first.0") == ["placed"]
    assert scene.counts("test") == {"rejected": 1}


def test_a_gang_waits_whole() -> None:
    scene = Scene("n", cpu=4)
    scene.submit(job("build"), job("left", gang={"name": "g", "size": 3}, count=2))
    scene.submit(job("right", gang={"name": "g", "size": 3}, after=["build"]))
    assert scene.counts("left") == {"queued": 2}
    scene.ended("build.0")
    assert scene.states("left.0", "left.1", "right.0") == ["placed", "placed", "placed"]


def test_an_instance_that_waits_can_be_cancelled_whole_or_in_part() -> None:
    scene = Scene("n", cpu=4)
    scene.submit(job("build"), job("test", count=3, after=["build"]), job("other", after=["build"]))
    scene.cancel("other")
    assert scene.counts("other") == {"cancelled": 1}
    scene.cancel("test.1")
    assert scene.counts("test") == {"queued": 2, "cancelled": 1}
    scene.ended("build.0")
    assert scene.counts("test") == {"placed": 2, "cancelled": 1}
    scene.retry("test.1")
    assert scene.counts("test") == {"placed": 3}


def test_a_retry_waits_again_if_the_other_lives_again() -> None:
    scene = Scene("n")
    scene.submit(job("build"), job("test", after=["build"]))
    scene.ended("build.0", code=1)
    assert outcome(scene.retry("test")) == {
        "replies": [
            "409 after_failed: default/test cannot start: retry its dependency first: "
            "dependency default/build failed (exit code 1)"
        ]
    }
    scene.retry("build")
    assert scene.counts("test") == {"cancelled": 1}  # without a request
    scene.retry("test")
    assert scene.counts("test") == {"queued": 1}
    scene.ended("build.0")
    assert scene.states("test.0") == ["placed"]


def test_what_ran_before_does_not_wait_again() -> None:
    scene = Scene("n")
    scene.submit(job("build", retention=0), job("test", after=["build"]))
    scene.ended("build.0")
    scene.wait("1s")
    scene.ended("test.0", code=1)
    scene.retry("test")
    assert scene.states("test.0") == ["placed"]


def test_what_a_forgetful_server_learns_of_does_not_wait_again() -> None:
    scene = Scene("n", cpu=4)
    scene.submit(job("build"), job("test", count=2, after=["build"]))
    scene.ended("build.0")
    scene.running("test.0", "test.1")
    reported = [scene.as_ordered("test.0"), scene.as_ordered("test.1")]
    scene.wait("1s")
    scene.restart(forgetful=True)
    scene.hello("n", reported[0], cpu=4)
    scene.cancel("test")
    scene.stopped("test.0")
    scene.retry("test")
    assert not workload(scene, "test").pending_conditions
    scene.hello("m", reported[1], cpu=4)
    assert scene.states("test.1") == ["running"]


def test_only_what_failed_is_tried_again_if_that_is_wanted() -> None:
    scene = Scene("n", cpu=3)
    scene.submit(job("many", count=5, retries=0, timeout="1m"))
    scene.ended("many.0", code=1)
    scene.ended("many.1", code=None, cause="timed_out")
    scene.cancel("many")
    scene.stopped("many.2", "many.3", "many.4")
    scene.retry("many", failed=True)
    assert scene.counts("many") == {"placed": 2, "cancelled": 3}
    scene.ended("many.0", "many.1")
    assert outcome(scene.retry("many", failed=True))["replies"][0].startswith("409 nothing_to_retry")


def test_why_says_what_is_waited_for() -> None:
    scene = Scene("n")
    scene.submit(job("a"), job("b", after=["a"]), job("c", after=["a", {"workload": "b", "when": "finished"}]))
    scene.running("a.0")
    reported = why(scene.state, "default/c")
    assert render_text(reported.text) == (
        "default/c.0 waits for default/a to succeed (it is running), default/b to finish (it waits itself)"
    )
    assert (reported.code, [blocker.code for blocker in reported.blockers]) == ("after", ["waits_for_others"])


def test_a_plan_knows_work_that_waits_for_others() -> None:
    scene = Scene("n")
    scene.submit(job("a"))
    submit = Submit(1, (wanted(job("b", after=["a"])), wanted(job("c"))))
    plan = make_plan(scene.state, submit, scene.now)
    assert [placing.instance for placing in plan.placed] == ["default/c.0"]
    assert [(pending_workload.workload, pending_workload.code) for pending_workload in plan.pending] == [
        ("default/b", "after")
    ]
    done = scene.step(Submit(1, submit.specs, True, plan))
    assert outcome(done)["replies"] == ["b c"]


def test_a_change_of_pending_work_changes_what_it_waits_for() -> None:
    scene = Scene("n")
    scene.submit(job("a"), job("b"), job("c", after=["a"]))
    scene.submit(job("c", after=["b"]), same_ok=True)
    assert [wait.workload for wait in workload(scene, "c").pending_conditions] == ["default/b"]
    scene.ended("a.0")
    assert scene.counts("c") == {"queued": 1}
    scene.submit(job("c"), same_ok=True)
    assert scene.states("c.0") == ["placed"]
    scene.submit(job("c", after=["b"]), same_ok=True)
    assert not workload(scene, "c").pending_conditions  # it has begun
