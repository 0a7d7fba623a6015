"""Finished workloads deleted on request: record, instances and logs go in one step, and the audit log has it."""

import pytest

from roost.core.state.outcome import Step
from roost.model.errors import Conflict, NotFound
from roost.model.events import AttributedRequest, Delete
from roost.model.records.opaque import By
from tests.core.scene import Scene, job, outcome


def delete(scene: Scene, name: str = "web", by: str = "ann") -> Step:
    return scene.step(AttributedRequest(By(by), Delete(1, f"default/{name}")))


def refusal(done: Step) -> Exception:
    (reply,) = done.replies
    assert isinstance(reply.value, Exception)
    return reply.value


def test_a_finished_workload_goes_with_its_instances_and_logs() -> None:
    scene = Scene("a")
    scene.submit(job("web", count=2))
    scene.running("web.0", "web.1")
    scene.ended("web.0", code=0)
    scene.ended("web.1", code=1)
    serial = scene.state.workloads["default/web"].serial
    done = delete(scene)
    assert done.swept == [f"default/web/{serial}"]
    assert outcome(done)["replies"] == ["web"]
    assert not scene.state.workloads and not scene.state.instances and not scene.state.finished
    assert scene.used("a") == 0


@pytest.mark.parametrize("state", ["queued", "running", "stopping"])
def test_a_workload_that_is_not_finished_is_refused_and_stays(state: str) -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("web"))
    if state != "queued":
        scene.running("web.0")
    if state == "stopping":
        scene.cancel("web")
    done = delete(scene)
    error = refusal(done)
    assert isinstance(error, Conflict) and error.code == "not_finished" and "cancel it" in str(error)
    assert not done.swept and "default/web" in scene.state.workloads
    assert not scene.state.audited


def test_an_unknown_workload_is_not_found() -> None:
    assert isinstance(refusal(delete(Scene("a"))), NotFound)


def test_a_deleted_name_is_free_and_the_audit_log_has_the_deletion() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.ended("web.0", code=0)
    assert "audit 1" in outcome(delete(scene))["changes"]
    scene.submit(job("web"))
    assert scene.states("web.0") == ["placed"]
