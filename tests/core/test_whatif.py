"""Copies of a state: they decide as it does, and whatever happens to one happens to the other not at all."""

from typing import Any

import pytest
from hypothesis import given, settings

from roost.core.check import check
from roost.core.state import Settings
from roost.core.whatif import copy_state, glance
from tests.core.lives import LIVES, born, live, told
from tests.core.scene import Scene, job

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


def test_a_glance_copies_only_what_is_looked_at() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("array", count=1_000))
    copy = glance(scene.state)
    origin = scene.state.instances
    assert all(dict.__getitem__(copy.instances, key) is origin[key] for key in origin), "nothing was looked at yet"
    assert copy.instances["default/array.0"] is not origin["default/array.0"]
    copied = [key for key in origin if dict.__getitem__(copy.instances, key) is not origin[key]]
    assert copied == ["default/array.0"]


def test_settings_are_shared() -> None:
    scene = Scene("a")
    assert copy_state(scene.state).settings == Settings()
