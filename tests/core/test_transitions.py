"""The one place where states change: every legal move is made, every other is refused with the story."""

import gc

import pytest

from roost.core.state.outcome import Step
from roost.core.transitions import move, refresh_status
from roost.model.limits import STORY_MAX
from roost.model.reasons.attempts import PROCESS_STARTED, SUBMITTED, PlacedOnNode, UpdatedToVersion
from roost.model.reasons.nodes import DrainCompleted
from roost.model.records.transition import InstanceTransition
from roost.model.states import ABSENT, ALLOCATED, FINISHED, MOVES, NODE_MOVES, InstanceState
from tests.core.scene import Scene, job


def way_to(state: str) -> list[str]:
    """The shortest way from queued."""
    ways = [["queued"]]
    for way in ways:
        if way[-1] == state:
            return way[1:]
        ways.extend([*way, target] for target in sorted(MOVES[way[-1]]) if target not in way)
    raise AssertionError(f"no way leads to {state}")


def scene_in(state: str) -> Scene:
    """A scene with one instance that has come to a state, on a node or waiting for the next."""
    scene = Scene("a")
    scene.submit(job("web", retries=0))
    instance = scene.instance("web.0")
    move(scene.state, Step(), instance, "queued", "as a beginning", scene.now)
    for name in way_to(state):
        move(scene.state, Step(), instance, name, "on the way", scene.now)
    return scene


@pytest.mark.parametrize("target", MOVES)
@pytest.mark.parametrize("state", MOVES)
def test_every_pair_of_states_is_a_move_or_refused(state: str, target: str) -> None:
    scene = scene_in(state)
    instance, out = scene.instance("web.0"), Step()
    if target in MOVES[state]:
        move(scene.state, out, instance, target, "because", scene.now)
    else:
        message = rf"web\.0 cannot go from {state} to {target} \(because\): .*as a beginning"
        with pytest.raises(AssertionError, match=message):
            move(scene.state, out, instance, target, "because", scene.now)
        target = state
    assert instance.state == target
    assert {name: number for name, number in scene.counts("web").items() if number} == {target: 1}
    assert scene.used("a") == (1_000 if target in ALLOCATED else 0)
    assert list(scene.state.allocated["a"].values()) == ([instance] if target in ALLOCATED else [])
    assert bool(scene.state.workloads["default/web"].finished_ms) == (target in FINISHED or state in FINISHED)


@pytest.mark.parametrize("status", [status for status in NODE_MOVES if status != "gone"])
def test_a_node_may_become_whatever_its_contact_says(status: str) -> None:
    """The status is derived; the table must allow what can be derived from any status that is stored."""
    for connected in (True, False):
        for draining in (True, False):
            if not connected and status in ABSENT:
                continue
            scene = Scene("a")
            node, contact = scene.state.nodes["a"], scene.state.liveness["a"]
            node.status, node.draining, contact.connected = status, draining, connected
            refresh_status(scene.state, Step(), node, DrainCompleted(), scene.now)
            assert node.status == ("suspect" if not connected else "drained" if draining else "ready")


def test_a_story_keeps_the_last_lines() -> None:
    scene = scene_in("queued")
    instance = scene.instance("web.0")
    for number in range(STORY_MAX):
        for state in ("placed", "queued"):
            move(scene.state, Step(), instance, state, UpdatedToVersion(number), scene.now)
    assert len(instance.story) == STORY_MAX
    assert instance.story[-1].reason == UpdatedToVersion(STORY_MAX - 1)
    assert instance.story[0].reason == UpdatedToVersion(STORY_MAX // 2)


def test_every_line_of_a_story_says_when_why_and_in_which_commit() -> None:
    scene = Scene("a")
    revision = scene.state.revision
    scene.submit(job("web"))
    scene.wait("1s")
    scene.running("web.0", started_ago_ms=300)
    submitted_ms, placed = scene.now - 1_000, PlacedOnNode("a", "least_loaded")
    assert scene.instance("web.0").story == (
        InstanceTransition(submitted_ms, None, InstanceState.QUEUED, SUBMITTED, revision + 1),
        InstanceTransition(
            submitted_ms, InstanceState.QUEUED, InstanceState.PLACED, placed, revision + 1, 1, "a", version=1
        ),
        InstanceTransition(
            scene.now - 300,
            InstanceState.PLACED,
            InstanceState.RUNNING,
            PROCESS_STARTED,
            revision + 2,
            1,
            "a",
            version=1,
        ),
    )
    assert scene.memory.snapshot().revision == revision + 2


def test_the_garbage_collector_does_not_look_at_what_a_step_has_changed() -> None:
    """It cannot pause, and a step may have 100,000 changes and as many transitions."""
    scene = Scene("a")
    done = scene.submit(job("array", count=3))
    assert len(done.transitions) >= 3 and len(done.changes) >= 3
    assert not [item for item in [*done.changes, *done.transitions] if gc.is_tracked(item)]
