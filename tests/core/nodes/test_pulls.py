"""Images on their way to a node: the time of a pull is in the story, its progress only in what a reader sees."""

import pytest

from roost.model.events import HeartbeatsReceived
from roost.model.protocol import Report, Usage
from roost.model.states import AttemptState
from roost.server.views.work import instance_detail, live_view, workload_detail
from tests.core.scene import Scene, job

RUNNING = AttemptState.RUNNING


def pulling(scene: Scene, percent: int) -> None:
    token = scene.instance("work.0").token
    step = scene.step(HeartbeatsReceived((), (("a", Usage(pulling={token: percent})),)))
    assert step.changes == [], "no percent is a commit"


def placed() -> Scene:
    scene = Scene("a")
    scene.submit(job("work"))
    return scene


def test_the_progress_of_a_pull_is_what_a_placed_instance_says() -> None:
    scene = placed()
    workload = scene.state.workloads["default/work"]
    for percent in (0, 43, 100):
        pulling(scene, percent)
        detail = instance_detail(scene.state, workload, 0)
        assert (detail.message, detail.pulling) == (f"pulling {percent} %", percent)
        assert detail.story[-1].message == f"pulling {percent} %"
        assert workload_detail(scene.state, workload).instances[0].pulling == percent
    scene.step(HeartbeatsReceived((), (("a", Usage()),)))
    assert instance_detail(scene.state, workload, 0).pulling is None
    pulling(scene, 43)
    scene.report("a", Report(scene.instance("work.0").token, RUNNING))
    assert instance_detail(scene.state, workload, 0).pulling is None
    assert live_view(scene.state, workload).message == ""


@pytest.mark.parametrize("state", [AttemptState.STARTING, RUNNING, AttemptState.ENDED])
def test_the_time_of_a_pull_is_in_the_story(state: AttemptState) -> None:
    scene = placed()
    ended = {"cause": "exited", "code": 0} if state == AttemptState.ENDED else {}
    scene.report("a", Report(scene.instance("work.0").token, state, pulled_ms=41_000, **ended))
    if state == AttemptState.STARTING:
        scene.report("a", Report(scene.instance("work.0").token, RUNNING, pulled_ms=41_000))
    detail = instance_detail(scene.state, scene.state.workloads["default/work"], 0)
    texts = [line.message for line in detail.story]
    assert texts[1:4] == [
        "on a by least_loaded", "accepted by the agent, which fetched its image in 41s", "started",
    ]  # fmt: skip
