"""Copies of a state: they decide as it does, and whatever happens to one happens to the other not at all."""

from typing import Any

from hypothesis import given, settings

from roost.core.invariants import check
from roost.core.state.records import Settings
from roost.core.state.state import overlay
from tests.core.random_clusters import ACTION_LISTS, apply_actions, reported, small_cluster
from tests.core.scene import Scene, job


@settings(max_examples=60, deadline=None)
@given(before=ACTION_LISTS, after=ACTION_LISTS)
def test_what_happens_to_a_copy_does_not_happen_to_the_state(before: Any, after: Any) -> None:
    state = small_cluster()
    apply_actions(state, before)
    existing = reported(state)
    copy = overlay(state)
    assert reported(state) == existing
    apply_actions(copy, after)
    assert reported(state) == existing
    assert not [name for name in check(copy) if not name.startswith("room_is_enough")]


@settings(max_examples=100, deadline=None)
@given(before=ACTION_LISTS, after=ACTION_LISTS)
def test_a_copy_decides_as_the_state_does(before: Any, after: Any) -> None:
    state = small_cluster()
    apply_actions(state, before)
    copy = overlay(state)
    happened = apply_actions(copy, after)
    assert happened == apply_actions(state, after)
    assert reported(copy) == reported(state)


def test_an_overlay_copies_only_records_that_are_read() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("array", count=1_000))
    copy = overlay(scene.state)
    origin = scene.state.instances
    assert all(dict.__getitem__(copy.instances, key) is origin[key] for key in origin), "nothing was looked at yet"
    assert copy.instances["default/array.0"] is not origin["default/array.0"]
    copied = [key for key in origin if dict.__getitem__(copy.instances, key) is not origin[key]]
    assert copied == ["default/array.0"]


def test_settings_are_shared() -> None:
    scene = Scene("a")
    assert overlay(scene.state).settings == Settings()
