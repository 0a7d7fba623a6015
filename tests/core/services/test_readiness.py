"""What agents say of health: since when an instance is ready, and what becomes of one that was unwell."""

from roost.model.reasons.attempts import HealthCheckFailed
from roost.model.reasons.reason import ServiceRestarted
from roost.model.reasons.subjects import HealthEvidence
from tests.core.scene import Scene, service

ILL = HealthEvidence("http", "/healthz", "503")
CHECK = {"http": "/healthz", "port": 80}


def test_one_is_ready_since_its_check_went_well_and_not_since_it_began() -> None:
    scene = Scene("a")
    scene.submit(service("web", health=CHECK))
    scene.running("web.0", ready=False, error=ILL.answer)
    began = scene.instance("web.0").started_ms
    assert (scene.instance("web.0").ready_since_ms, scene.instance("web.0").health_failure) == (0, ILL)
    scene.wait("3s")
    scene.running("web.0", started_ago_ms=3_000)
    assert (scene.instance("web.0").ready_since_ms, scene.instance("web.0").health_failure) == (scene.now, None)
    assert scene.instance("web.0").started_ms == began < scene.now
    since = scene.now
    scene.wait("1s")
    scene.running("web.0", started_ago_ms=4_000)
    assert scene.instance("web.0").ready_since_ms == since, "reported again, it is ready as long as before"


def test_without_a_check_one_is_ready_since_it_began() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.wait("1s")
    scene.running("web.0", started_ago_ms=40)
    assert scene.instance("web.0").ready_since_ms == scene.now - 40


def test_an_end_for_bad_health_is_reported_in_its_words_and_it_is_started_again() -> None:
    scene = Scene("a")
    scene.submit(service("web", health=CHECK))
    scene.running("web.0", ready=False)
    scene.ended("web.0", cause="unhealthy", code=None, signal=15, error=ILL.answer, ready=False)
    again = next(line.reason for line in scene.instance("web.0").story if line.state == "queued" and line.before)
    assert isinstance(again, ServiceRestarted) and again.cause == HealthCheckFailed(ILL)
    assert scene.instance("web.0").state in ("queued", "placed")


def test_one_that_was_unwell_while_it_was_moved_is_moved_and_has_not_failed() -> None:
    scene = Scene("a", "b")
    scene.submit(service("web", health=CHECK, restart={"when": "never"}))
    scene.running("web.0", ready=False)
    scene.drain(scene.instance("web.0").node)
    assert scene.instance("web.0").state == "stopping"
    scene.ended("web.0", cause="unhealthy", code=None, signal=15, error=ILL.answer, ready=False)
    assert scene.instance("web.0").state == "placed" and scene.instance("web.0").failures == 0


def test_one_that_was_unwell_while_it_was_cancelled_is_cancelled() -> None:
    scene = Scene("a")
    scene.submit(service("web", health=CHECK))
    scene.running("web.0", ready=False)
    scene.cancel("web")
    scene.ended("web.0", cause="unhealthy", code=None, signal=15, error=ILL.answer, ready=False)
    assert scene.states("web.0") == ["cancelled"]
