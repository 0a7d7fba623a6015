"""The one place where states change: every legal move is made, every other is refused with the story."""

import msgspec
import pytest

from roost.core.effects import Step
from roost.core.move import move, settle_node
from roost.model.limits import STORY_MAX
from roost.model.states import FINISHED, HOLDING, MOVES, NODE_MOVES
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
    for each in way_to(state):
        move(scene.state, Step(), instance, each, "on the way", scene.now)
    return scene


@pytest.mark.parametrize("target", MOVES)
@pytest.mark.parametrize("state", MOVES)
def test_every_pair_of_states_is_a_move_or_refused(state: str, target: str) -> None:
    scene = scene_in(state)
    instance, out = scene.instance("web.0"), Step()
    if target in MOVES[state]:
        move(scene.state, out, instance, target, "because", scene.now)
    else:
        words = rf"web\.0 cannot go from {state} to {target} \(because\): .*as a beginning"
        with pytest.raises(AssertionError, match=words):
            move(scene.state, out, instance, target, "because", scene.now)
        target = state
    assert instance.state == target
    assert {name: number for name, number in scene.counts("web").items() if number} == {target: 1}
    assert scene.used("a") == (1_000 if target in HOLDING else 0)
    assert list(scene.state.held["a"].values()) == ([instance] if target in HOLDING else [])
    assert bool(scene.state.workloads["default/web"].finished_ms) == (target in FINISHED or state in FINISHED)


@pytest.mark.parametrize("status", [status for status in NODE_MOVES if status != "gone"])
def test_a_node_may_become_whatever_its_contact_says(status: str) -> None:
    """The status is derived; the table must allow what can be derived from any status that is stored."""
    for connected in (True, False):
        for draining in (True, False):
            if not connected and status == "lost":
                continue
            scene = Scene("a")
            node, contact = scene.state.nodes["a"], scene.state.contacts["a"]
            node.status, node.draining, contact.connected = status, draining, connected
            settle_node(scene.state, Step(), node, "because", scene.now)
            assert node.status == ("suspect" if not connected else "drained" if draining else "ready")


def test_a_story_keeps_the_last_lines() -> None:
    scene = scene_in("queued")
    instance = scene.instance("web.0")
    for number in range(STORY_MAX):
        for state in ("placed", "queued"):
            move(scene.state, Step(), instance, state, f"round {number}", scene.now)
    assert len(instance.story) == STORY_MAX
    assert instance.story[-1].cause == f"round {STORY_MAX - 1}"
    assert instance.story[0].cause == f"round {STORY_MAX // 2}"


def test_every_line_of_a_story_says_when_why_and_in_which_commit() -> None:
    scene = Scene("a")
    revision = scene.state.revision
    scene.submit(job("web"))
    scene.wait("1s")
    scene.running("web.0", started_ago_ms=300)
    assert [msgspec.structs.astuple(line) for line in scene.instance("web.0").story] == [
        (scene.now - 1_000, "queued", "submitted", revision + 1),
        (scene.now - 1_000, "placed", "on a by least_loaded", revision + 1),
        (scene.now - 300, "running", "started", revision + 2),
    ]
    assert scene.memory.snapshot().revision == revision + 2
