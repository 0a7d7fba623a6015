"""Companions: services that live as long as another workload."""

from typing import Any

import pytest

from roost.model.errors import RoostError
from roost.model.reasons.attempts import OwnerEnded
from roost.model.reasons.subjects import WorkloadRef
from tests.core.scene import Scene, job, service


def started(*more: dict[str, Any]) -> Scene:
    """A job with a database that is ready."""
    scene = Scene("a")
    db = service("db", until="test", ports={"sql": 0})
    scene.submit(job("test", after=[{"workload": "db", "when": "started"}]), db, *more)
    assert scene.counts("test") == {"queued": 1}
    scene.running("db.0", ready=True)
    return scene


@pytest.mark.parametrize("code", [0, 1])
def test_a_companion_ends_with_its_job_however_that_ended(code: int) -> None:
    scene = started()
    scene.running("test.0")
    assert scene.states("db.0") == ["running"]
    scene.ended("test.0", code=code)
    assert scene.states("db.0") == ["stopping"]
    assert scene.instance("db.0").reason == OwnerEnded(WorkloadRef("default", "test"))
    scene.stopped("db.0")
    assert scene.counts("db") == {"cancelled": 1}
    assert scene.state.ended_owners == {}


def test_a_companion_ends_with_a_job_that_never_ran() -> None:
    scene = Scene("a")
    scene.submit(job("build"))
    needs = [{"workload": "build"}]
    db = service("db", until="test", after=needs)
    scene.submit(job("test", after=[*needs, {"workload": "db", "when": "started"}]), db)
    assert scene.counts("db") == {"queued": 1}
    scene.running("build.0")
    scene.ended("build.0", code=1)
    assert (scene.counts("test"), scene.counts("db")) == ({"cancelled": 1}, {"cancelled": 1})


def test_a_companion_ends_after_a_restart_of_the_server() -> None:
    scene = started()
    scene.running("test.0")
    scene.restart()
    scene.hello("a", "db.0", "test.0")
    assert scene.states("db.0") == ["running"]
    scene.ended("test.0")
    assert scene.states("db.0") == ["stopping"]


def test_a_retry_starts_the_companions_before_the_job() -> None:
    scene = started()
    scene.running("test.0")
    scene.ended("test.0", code=1)
    scene.stopped("db.0")
    scene.retry("test")
    assert scene.states("db.0", "test.0") == ["placed", "queued"]
    scene.running("db.0", ready=True)
    assert scene.states("test.0") == ["placed"]
    scene.running("test.0")
    scene.ended("test.0")
    assert scene.states("db.0", "test.0") == ["stopping", "succeeded"]


def test_a_retry_of_a_job_that_never_ran_starts_its_companions() -> None:
    scene = Scene("a")
    scene.submit(job("test", after=[{"workload": "db", "when": "started"}]), service("db", until="test"))
    scene.cancel("test")
    scene.stopped("db.0")
    scene.retry("test")
    assert (scene.counts("db"), scene.counts("test")) == ({"placed": 1}, {"queued": 1})


def test_a_retry_waits_until_the_companions_have_stopped() -> None:
    scene = started()
    scene.running("test.0")
    scene.ended("test.0", code=1)
    (reply,) = scene.retry("test").replies
    assert isinstance(reply.value, RoostError) and reply.value.code == "being_cancelled"
    assert scene.states("test.0", "db.0") == ["failed", "stopping"]


def test_an_owner_has_to_be_there() -> None:
    scene = Scene("a")
    (reply,) = scene.submit(service("db", until="none")).replies
    assert isinstance(reply.value, RoostError)
    assert (reply.value.path, reply.value.code) == ("until", "invalid")
    assert not scene.state.workloads


def test_forgotten_companions_leave_nothing() -> None:
    scene = started()
    scene.running("test.0")
    scene.ended("test.0")
    scene.stopped("db.0")
    scene.wait("8d")
    assert (scene.state.workloads, scene.state.companions, scene.state.ended_owners) == ({}, {}, {})


def test_a_companion_is_not_retried_without_its_owner() -> None:
    scene = started()
    scene.running("test.0")
    scene.ended("test.0")
    scene.stopped("db.0")
    (reply,) = scene.retry("db").replies
    assert isinstance(reply.value, RoostError) and reply.value.code == "owner_ended"
    assert scene.counts("db") == {"cancelled": 1}
