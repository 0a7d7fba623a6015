"""Concurrency groups: newer work cancels older work of its group in the same commit."""

from typing import Any

from roost.model.reasons.attempts import Superseded
from roost.model.reasons.subjects import WorkloadRef
from tests.core.scene import Scene, job, outcome

MAIN = {"group": "web main", "cancel": True}


def member(name: str, group: Any = MAIN, **fields: Any) -> dict[str, Any]:
    return job(name, concurrency=group, **fields)


def test_a_newer_run_cancels_the_unfinished_older_one() -> None:
    scene = Scene("a")
    scene.submit(member("build-1"), member("test-1", after=["build-1"]))
    scene.running("build-1.0")
    done = scene.submit(member("build-2"), member("test-2", after=["build-2"]))
    assert outcome(done) == {
        "changes": [
            "workload build-2", "workload test-2", "workload test-1 cancelled", "workload build-1 cancelled",
            "instance build-1.0 stopping", "instance build-2.0 placed",
        ],
        "orders": ["a: stop (superseded), run build-2.0 attempt 1"],
        "replies": ["build-2 test-2"],
    }  # fmt: skip
    reason = Superseded(WorkloadRef("default", "build-2"))
    assert scene.state.workloads["default/test-1"].reason == scene.instance("build-1.0").reason == reason
    assert scene.counts("test-2") == {"queued": 1}


def test_others_and_finished_work_stay_as_they_are() -> None:
    scene = Scene("a")
    scene.submit(member("done"), member("other", {"group": "web dev", "cancel": True}), job("free"))
    scene.running("done.0")
    scene.ended("done.0")
    scene.submit(member("new"))
    assert scene.counts("done") == {"succeeded": 1}
    assert scene.counts("other") == scene.counts("free") == {"placed": 1}
    assert scene.state.concurrency_groups == {
        "default/web main": {"default/new": None},
        "default/web dev": {"default/other": None},
    }


def test_the_group_is_known_after_a_restart_and_a_retry() -> None:
    scene = Scene("a")
    scene.submit(member("one"))
    scene.restart()
    scene.submit(member("two"))
    assert scene.state.workloads["default/one"].unstarted_end_state == "cancelled"
    scene.stopped("one.0")
    scene.retry("one")
    scene.submit(member("three"))
    assert [scene.state.workloads[f"default/{name}"].unstarted_end_state for name in ("one", "two", "three")] == [
        "cancelled",
        "cancelled",
        None,
    ]


def test_a_refused_request_supersedes_nothing() -> None:
    scene = Scene("a")
    scene.submit(member("one"))
    scene.submit(member("two", after=["none"]))
    assert scene.counts("one") == {"placed": 1}
