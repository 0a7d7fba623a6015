"""Classes that are still blocked are skipped together, and what is placed is the same as if each were checked."""

import random

import pytest

from roost.core.queue import blocked, place
from tests.core.scene import Scene, job


def placements(seed: int, classes_min: int, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """What is placed where, step by step, while jobs of many classes come and go."""
    monkeypatch.setattr(blocked, "CLASSES_MIN", classes_min)
    chance = random.Random(seed)
    scene = Scene(*(f"n{number}" for number in range(4)), cpu=4, preempt_margin=chance.choice((0, 2)), adopts=False)
    scene.checked = False
    for number in range(60):
        resources = {"cpu": chance.choice((0.5, 1, 2, 3)), "memory": chance.choice(("1GiB", "3GiB"))}
        priority = chance.randint(0, 3)
        scene.submit(job(f"j{number}", resources=resources, priority=priority, timeout=f"{100 + number}s"))
        running = [
            key.removeprefix("default/")
            for key, one in scene.state.instances.items()
            if one.state in ("placed", "running")
        ]
        if running and chance.random() < 0.5:
            scene.ended(chance.choice(running))
        if chance.random() < 0.2:
            scene.wait("9s")
    return [[(placed.instance, placed.node) for placed in step.placed] for step in scene.steps]


@pytest.mark.parametrize("seed", range(12))
def test_skipping_blocked_classes_changes_no_placement(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = placements(seed, 1, monkeypatch)
    assert found == placements(seed, 1_000, monkeypatch)
    assert sum(map(len, found)) > 20


def test_a_blocked_class_costs_no_check_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "CLASSES_MIN", 1)
    scene = Scene("a", cpu=2)
    scene.submit(job("first"), job("second"))
    for number in range(5):
        scene.submit(job(f"j{number}", resources={"cpu": 2}, timeout=f"{100 + number}s"))
    checked: list[str] = []
    place_head = place._place_head
    monkeypatch.setattr(place, "_place_head", lambda *given: checked.append(given[3].key) or place_head(*given))
    scene.ended("first.0")
    assert checked == [], "one core is free, and each of them needs two"
    scene.ended("second.0")
    assert checked[0] == "default/j0.0"


def test_a_pass_looks_at_a_bounded_number_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "CLASSES_MAX", 3)
    scene = Scene()
    for number in range(8):
        scene.submit(job(f"j{number}", priority=number, timeout=f"{100 + number}s"))
    scene.hello("a", cpu=8)
    sizes = [len(scene.steps[-1].placed)]
    while scene.steps[-1].wake_at_ms == scene.now:
        sizes.append(len(scene.step().placed))
    assert [size for size in sizes if size] == [3, 3, 2]
    first = [placed.instance for step in scene.steps for placed in step.placed][:3]
    assert first == ["default/j7.0", "default/j6.0", "default/j5.0"], "the most urgent ones come first"


def test_many_blocked_classes_with_affinity_rules_come_to_rest_and_starve_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "CLASSES_MAX", 3)
    scene = Scene("small", cpu=1)
    scene.submit(job("first"))
    for number in range(8):
        apart = {"apart": [{"workload": f"j{(number + 1) % 8}"}]}
        scene.submit(job(f"j{number}", resources={"cpu": 2}, priority=90, placement=apart))
    scene.submit(job("last", placement={"apart": [{"workload": "j0"}]}, priority=1))
    for _ in range(20):
        if scene.steps[-1].wake_at_ms != scene.now:
            break
        scene.step()
    assert scene.steps[-1].wake_at_ms != scene.now, "nothing changes, so there is nothing to check again"
    scene.ended("first.0")
    for _ in range(20):
        scene.step()
    assert scene.instance("last.0").node == "small"
