"""Blocked classes and searches for a preemption take a bounded part of a step, and every class gets its turn."""

from collections import Counter
from typing import Any

import pytest

from roost.core.queue import place, preemption
from roost.core.queue.eviction import Eviction
from roost.core.state.outcome import Step
from tests.core.scene import Scene, job
from tests.core.test_step_budget import until_quiet

CLASSES = 40


def blocked_scene(**settings: Any) -> Scene:
    """Forty classes, each with another ask, that fit nowhere as long as something large runs."""
    scene = Scene("a", cpu=64, **settings)
    scene.submit(job("first", resources={"cpu": 64}))
    scene.running("first.0")
    documents = [job(f"large{number}", resources={"cpu": 2 + number}) for number in range(CLASSES)]
    until_quiet(scene, scene.submit(*documents))
    return scene


def urgent_scene(nodes: int, urgent: int, **settings: Any) -> tuple[Scene, list[Step]]:
    """Full nodes, and classes that preempt; the steps after their submission."""
    names = [f"n{number}" for number in range(nodes)]
    scene = Scene(*names, cpu=8, **{"step_units": 10_000, **settings})
    until_quiet(scene, scene.submit(job("low", count=8 * nodes, priority=10)))
    scene.running(*(f"low.{index}" for index in range(8 * nodes)))
    documents = [job(f"urgent{number}", priority=90 - number) for number in range(urgent)]
    return scene, until_quiet(scene, scene.submit(*documents))


def preempted(steps: list[Step]) -> list[int]:
    """How many attempts each step stops."""
    return [sum(len(orders.orders) for orders in step.assignments) for step in steps]


def test_classes_that_fit_nowhere_are_checked_over_several_steps() -> None:
    scene = blocked_scene(step_units=20)
    steps = until_quiet(scene, scene.hello("b", cpu=1))
    spent = [step.work for step in steps]
    assert sum(spent) >= CLASSES * place.CLASS_UNITS, "every class was checked"
    assert max(spent) < 20 + 2 * place.CLASS_UNITS
    assert not any(step.placed for step in steps)
    until_quiet(scene, scene.hello("c", cpu=2))
    assert scene.states("large0.0") == ["placed"]


def test_a_search_for_a_preemption_counts_what_it_looks_at() -> None:
    scene, steps = urgent_scene(nodes=8, urgent=6, step_units=40)
    stops = preempted(steps)
    assert sum(stops) == 6, "each gets its room in the end"
    assert max(stops) == 1, "one search looks at more attempts than a step has units"


def test_one_pass_searches_for_few_heads_and_the_others_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "PREEMPTING_MAX", 2)
    scene, steps = urgent_scene(nodes=8, urgent=6)
    stops = preempted(steps)
    assert (max(stops), sum(stops)) == (2, 6)


def test_a_search_looks_at_so_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: Counter[int] = Counter()
    search = preemption.cheapest_eviction

    def counted(state: Any, ask: Any, candidates: dict[str, Any]) -> Eviction | None:
        searched[len(candidates)] += 1
        return search(state, ask, candidates)

    monkeypatch.setattr(preemption, "cheapest_eviction", counted)
    monkeypatch.setattr(preemption, "NODES_MAX", 3)
    urgent_scene(nodes=6, urgent=1)
    assert searched == {3: 1}


def test_heads_for_which_nothing_can_be_stopped_do_not_keep_others_from_preempting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "PREEMPTING_MAX", 2)
    scene = Scene("a", "b", cpu=8)
    scene.submit(job("low", count=1, priority=10), job("held", count=15, preemptible=False))
    scene.running("low.0", *(f"held.{index}" for index in range(15)))
    wide = [job(f"wide{number}", priority=99 - number, resources={"cpu": 8}) for number in range(2)]
    steps = until_quiet(scene, scene.submit(*wide, job("small", priority=60)))
    assert list(scene.state.pending_preemptions) == ["default/small.0"]
    assert sum(preempted(steps)) == 1


def test_a_head_whose_room_is_being_made_uses_up_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, _ = urgent_scene(nodes=8, urgent=6)
    assert len(scene.state.pending_preemptions) == 6
    searches: list[object] = []
    monkeypatch.setattr(place, "preempt", lambda *given: searches.append(given))
    scene.ended(next(key for key in ("low.0", "low.1", "low.2") if scene.states(key) == ["running"]))
    assert searches == []
