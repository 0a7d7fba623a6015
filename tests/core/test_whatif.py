"""Copies of a state: they decide as it does, and whatever happens to one happens to the other not at all."""

import time
from typing import Any

import pytest
from hypothesis import given, settings

from roost.core.check import check
from roost.core.state import Settings
from roost.core.step import step
from roost.core.whatif import copy_state, glance
from roost.model.events import Joined, Submit
from roost.model.frames import Hello
from tests.core.lives import LIVES, born, live, told
from tests.core.scene import Scene, facts_of, job, wanted

COPIES = [copy_state, glance]


@pytest.mark.parametrize("copied", COPIES)
@settings(max_examples=60, deadline=None)
@given(before=LIVES, after=LIVES)
def test_what_happens_to_a_copy_does_not_happen_to_the_state(copied: Any, before: Any, after: Any) -> None:
    state = born()
    live(state, before)
    known = told(state)
    copy = copied(state)
    assert told(state) == known
    live(copy, after)
    assert told(state) == known
    assert not [each for each in check(copy) if not each.startswith("room_is_enough")]


@settings(max_examples=60, deadline=None)
@given(before=LIVES, after=LIVES)
def test_what_happens_to_the_state_does_not_happen_to_a_copy(before: Any, after: Any) -> None:
    state = born()
    live(state, before)
    copy = copy_state(state)
    known = told(copy)
    live(state, after)
    assert told(copy) == known


@settings(max_examples=100, deadline=None)
@given(before=LIVES, after=LIVES)
def test_a_copy_decides_as_the_state_does(before: Any, after: Any) -> None:
    state = born()
    live(state, before)
    copy = glance(state)
    happened = live(copy, after)
    assert happened == live(state, after)
    assert told(copy) == told(state)


def test_what_is_finished_stays_behind_in_a_copy_for_good() -> None:
    scene = Scene("a")
    scene.submit(job("done"), job("runs"))
    scene.ended("done.0")
    copy = copy_state(scene.state)
    assert (list(copy.workloads), list(copy.instances)) == (["default/runs"], ["default/runs.0"])
    assert check(copy) == []


def test_copies_of_a_large_state_are_quick() -> None:
    """100,000 live instances on 1,000 nodes. The bounds are ten times what a quiet machine takes."""
    scene = Scene(placements_max=200_000)
    state = scene.state
    step(
        state,
        [Joined(1, Hello(f"n{each:04}", f"m{each}", facts_of(cpu=100), 0, ())) for each in range(1_000)],
        scene.now,
    )
    step(state, [Submit(1, (wanted(job("array", count=100_000)),))], scene.now)
    assert len(state.instances) == 100_000
    for copied, most_s in ((copy_state, 1.5), (glance, 0.1)):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            copied(state)
            times.append(time.perf_counter() - began)
        assert min(times) < most_s


def test_settings_are_shared() -> None:
    scene = Scene("a")
    assert copy_state(scene.state).settings == Settings()
