"""The first version of a service: when it is available, when it has failed."""

from roost.model.reasons.attempts import ExitCode
from roost.model.reasons.reason import RolloutFailures, RolloutStalled
from tests.core.scene import Scene
from tests.core.services.test_rollout import Service, web


def test_a_first_version_is_done_once_it_was_up_for_healthy_after() -> None:
    it = Service(count=1, healthy_after="5s")
    assert it.now.rollout.state == "rolling"
    it.scene.wait("4s")
    assert it.now.rollout.state == "done"


def test_a_first_version_that_ends_at_once_has_failed_with_how_it_ended() -> None:
    scene = Scene("a")
    scene.submit(web(1, healthy_after="5s"))
    for _ in range(3):
        scene.running("web.0")
        scene.ended("web.0", code=3)
        scene.wait("1m")
    rollout = scene.state.workloads["default/web"].rollout
    assert (rollout.state, rollout.reason) == ("failed", RolloutFailures(1, 3, ExitCode(3)))


def test_a_first_version_that_is_pending_for_long_has_not_failed() -> None:
    scene = Scene()
    scene.submit(web(1, deadline="30s"))
    scene.wait("1h")
    scene.hello("a")
    scene.running("web.0", ready=False)
    assert scene.state.workloads["default/web"].rollout.state == "rolling"
    scene.wait("31s")
    assert scene.state.workloads["default/web"].rollout.reason == RolloutStalled(1, 30_000)


def test_a_first_version_that_is_cancelled_and_retried_is_rolled_out() -> None:
    scene = Scene()
    scene.submit(web(1, healthy_after="5s"))
    scene.cancel("web")
    scene.hello("a")
    scene.retry("web")
    scene.running("web.0")
    scene.wait("6s")
    assert scene.state.workloads["default/web"].rollout.state == "done"


def test_the_time_that_a_service_was_cancelled_does_not_count_as_time_without_progress() -> None:
    scene = Scene("a")
    scene.submit(web(1, healthy_after="5s", deadline="30s"))
    scene.running("web.0")
    scene.cancel("web")
    scene.stopped("web.0")
    scene.wait("1h")
    scene.retry("web")
    scene.wait("1s")
    assert scene.state.workloads["default/web"].rollout.state == "rolling"
