"""Fewer and more jobs than there is room for, and every way to end: none is lost, none runs twice."""

from collections import Counter

import pytest

from tests.core.scene import Scene, job, short

NODES, CORES = ("a", "b"), 25
SLOTS = len(NODES) * CORES


def on_nodes(scene: Scene) -> list[str]:
    """Everything that takes room now."""
    return [short(instance.key) for node in NODES for instance in scene.state.allocated[node].values()]


def end(scene: Scene, names: list[str], how: str) -> None:
    if how == "exits with 0":
        scene.ended(*names)
    elif how == "exits with 1 or 2":
        scene.ended(*names[::2], code=1)
        scene.ended(*names[1::2], code=2)
    elif how == "runs past its timeout":
        scene.ended(*names, cause="timed_out", code=None, signal=9)
    else:
        for name in names:
            scene.cancel(name)
        assert set(scene.states(*names)) == {"stopping"}
        assert sum(scene.used(node) for node in NODES) == len(names) * 1_000, "room is given back when it is free"
        scene.stopped(*names)


@pytest.mark.parametrize("count", [40, 80])
@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("exits with 0", "succeeded"),
        ("exits with 1 or 2", "failed"),
        ("runs past its timeout", "timed_out"),
        ("is cancelled while it runs", "cancelled"),
    ],
)
def test_all_end_as_they_should_none_is_lost_and_none_runs_twice(count: int, how: str, state: str) -> None:
    scene = Scene(*NODES, cpu=CORES)
    names = [f"j{number:02}" for number in range(count)]
    scene.submit(*(job(name, timeout=f"{1 + int(name[1:]) % 3}s") for name in names))
    rounds = 0
    while holding := on_nodes(scene):
        assert len(holding) == min(SLOTS, count - rounds * SLOTS)
        scene.running(*holding)
        end(scene, holding, how)
        rounds += 1
        assert rounds <= count, "it never ends"
    assert Counter(scene.states(*(f"{name}.0" for name in names))) == {state: count}
    assert sorted(short(run.workload) for run in scene.runs.values()) == names
    assert [scene.used(node) for node in NODES] == [0, 0]
