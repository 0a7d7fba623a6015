"""Services that end: restarted after a pause, shown in a crash loop, or over for good."""

import pytest

from roost.model.reasons.attempts import ExitCode
from roost.model.reasons.reason import ServiceRestarted
from tests.core.scene import Scene, service


def test_a_service_that_keeps_ending_is_shown_in_a_crash_loop() -> None:
    scene = Scene("a")
    scene.submit(service("web", restart={"pause": "1s", "pause_max": "4s"}))
    for _ in range(6):
        scene.running("web.0")
        scene.ended("web.0", code=1)
        scene.wait("4s")
    scene.running("web.0")
    scene.ended("web.0", code=1)
    assert scene.instance("web.0").reason == ServiceRestarted(ExitCode(1), 7, 4_000, is_crash_loop=True)


@pytest.mark.parametrize(("when", "code", "state"), [("on_failure", 0, "succeeded"), ("never", 3, "failed")])
def test_a_service_may_end_for_good(when: str, code: int, state: str) -> None:
    scene = Scene("a")
    scene.submit(service("web", restart={"when": when}))
    scene.running("web.0")
    scene.ended("web.0", code=code)
    assert scene.states("web.0") == [state]
    assert scene.state.workloads["default/web"].finished_ms
