"""What is due: queue timeouts, deadlines, retention; and what does not count."""

import pytest

from roost.core import timers as sweeping
from roost.core.explain.why import why
from roost.core.state import records as states
from roost.model.reasons.attempts import DeadlinePassed
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome, service


def test_what_waited_for_its_queue_timeout_expires() -> None:
    scene = Scene()
    scene.submit(job("web", queue_timeout="10s"))
    assert outcome(scene.wait("9s")) == {}
    assert outcome(scene.wait("1s")) == {"changes": ["workload web expired"]}
    assert scene.counts("web") == {"expired": 1}
    assert (
        render_text(why(scene.state, "default/web").text) == "default/web.0 is expired: queue timeout of 10s exceeded"
    )
    scene.hello("a")
    assert scene.counts("web") == {"expired": 1}


def test_the_step_says_when_something_will_be_due() -> None:
    scene = Scene()
    assert scene.submit(job("web", queue_timeout="10s")).wake_at_ms == scene.now + 10_000


def test_a_queue_timeout_does_not_touch_what_was_placed_in_time() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("array", count=3, queue_timeout="10s", retries={"max": 2, "on": ["failed", "lost"]}))
    scene.wait("10s")
    assert scene.counts("array") == {"placed": 1, "expired": 2}
    scene.ended("array.0", code=1)
    assert scene.counts("array") == {"placed": 1, "expired": 2}, "it is still tried again"
    scene.hello("b", cpu=1)
    scene.wait("5s", silent="a")
    assert (scene.counts("array"), scene.where("array.0")) == ({"placed": 1, "expired": 2}, ["b"])


def test_the_hour_in_the_queue_does_not_count_for_the_timeout() -> None:
    scene = Scene()
    scene.submit(job("web", timeout="10s"))
    scene.wait("1h")
    scene.hello("a")
    (run,) = scene.steps[-1].assignments[0].orders
    assert run.timeout_ms == 10_000
    scene.running("web.0")
    assert scene.instance("web.0").started_ms == scene.now


def test_a_deadline_ends_the_waiting_of_all_but_not_what_runs() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("array", count=3, deadline="1m", retries={"max": 1, "on": ["failed"]}))
    scene.running("array.0", "array.1")
    scene.drain("a", "1h")
    scene.ended("array.1", code=1)
    assert scene.counts("array") == {"running": 1, "queued": 2}
    scene.wait("1m")
    assert scene.counts("array") == {"running": 1, "expired": 2}
    scene.ended("array.0")
    assert scene.counts("array") == {"succeeded": 1, "expired": 2}
    assert scene.state.workloads["default/array"].finished_ms


def test_a_deadline_holds_also_after_a_queue_timeout_has_passed() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("array", count=2, queue_timeout="10s", deadline="1m", retries={"max": 1, "on": ["failed"]}))
    scene.wait("10s")
    scene.drain("a", "1h")
    scene.ended("array.0", code=1)
    assert scene.counts("array") == {"queued": 1, "expired": 1}
    scene.wait("1m")
    assert scene.counts("array") == {"expired": 2}


def test_what_loses_its_node_after_its_deadline_expires() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", deadline="1m"))
    scene.running("web.0")
    scene.wait("1m")
    scene.wait("5s", silent="a")
    assert scene.states("web.0") == ["expired"]
    assert scene.instance("web.0").reason == DeadlinePassed()


def test_what_leaves_a_draining_node_after_its_deadline_expires() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", deadline="1m"))
    scene.running("web.0")
    scene.wait("1m")
    scene.drain("a")
    assert outcome(scene.stopped("web.0"))["orders"] == ["a: drop"]
    assert scene.states("web.0") == ["expired"]


def test_a_service_with_a_queue_timeout_goes_on_with_the_replicas_it_has() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(service("web", count=2, queue_timeout="10s"))
    scene.running("web.0")
    scene.wait("10s")
    scene.ended("web.0", code=1)
    scene.wait("5s")
    assert scene.counts("web") == {"placed": 1, "expired": 1}


# retention


def test_finished_work_is_kept_for_its_time_and_then_goes_with_its_logs() -> None:
    scene = Scene("a")
    scene.submit(job("web", retention="1h"))
    serial = scene.state.workloads["default/web"].serial
    scene.ended("web.0")
    assert outcome(scene.wait("59m")) == {}
    assert outcome(scene.wait("1m")) == {
        "changes": ["instance web.0 gone", "workload web gone"],
        "swept": [f"default/web/{serial}"],
    }
    assert (scene.state.instances, scene.state.progress, scene.state.finished) == ({}, {}, {})


def test_retention_counts_from_the_last_end() -> None:
    scene = Scene("a")
    scene.submit(job("web", retention="1h"))
    scene.ended("web.0", code=1)
    scene.wait("50m")
    scene.retry("web")
    scene.ended("web.0")
    scene.wait("50m")
    assert scene.states("web.0") == ["succeeded"]
    scene.wait("10m")
    assert not scene.state.workloads


def test_more_than_may_be_kept_goes_oldest_first() -> None:
    scene = Scene("a", finished_max=2)
    scene.submit(job("one"), job("two"), job("three"))
    for name in ("two.0", "three.0", "one.0"):
        scene.ended(name)
    assert list(scene.state.workloads) == ["default/one", "default/three"]


def test_what_finished_first_goes_first_also_after_a_restart() -> None:
    scene = Scene("a", finished_max=2)
    scene.submit(job("one"), job("two"), job("three"))
    scene.ended("two.0")
    scene.wait("1s")
    scene.ended("one.0")
    scene.restart()
    scene.hello("a", "three.0")
    scene.ended("three.0")
    assert list(scene.state.workloads) == ["default/one", "default/three"]


def test_finished_work_that_never_ran_is_bounded_too() -> None:
    scene = Scene(finished_max=2)
    for name in ("one", "two", "three"):
        scene.submit(job(name))
        scene.cancel(name)
    assert list(scene.state.workloads) == ["default/two", "default/three"]


def test_timers_of_what_has_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "TIMERS_SPARE", 20)
    scene = Scene("a", "b", finished_max=3)
    scene.part("b")
    scene.remove("b")
    for number in range(200):
        scene.submit(job(f"job-{number}", deadline="30d", queue_timeout="1d"))
        scene.ended(f"job-{number}.0")
    timers = scene.state.timers
    assert len(timers) < 60
    assert all(timers[(place - 1) // 2] <= timer for place, timer in enumerate(timers) if place), "still a heap"
    scene.hello("b")
    scene.wait("5s", silent="b")
    assert scene.state.nodes["b"].status == "lost", "the lease of a node that was forgotten and came back is looked at"
    scene.wait("7d")
    assert not scene.state.workloads


def test_policies_are_shared_but_not_hoarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "POLICIES_MAX", 3)
    scene = Scene()
    for number in range(20):
        scene.submit(job(f"one-{number}", priority=number), job(f"two-{number}", priority=number))
        assert len(scene.state.policies) <= 3
        workloads = scene.state.workloads
        assert workloads[f"default/one-{number}"].policy is workloads[f"default/two-{number}"].policy
