"""Leases: how long they are in a large fleet, and who is lost after a takeover."""

import pytest

from roost.core.state import state as state_module
from tests.core.scene import Scene, outcome


def test_after_a_takeover_no_node_is_lost_while_others_still_return() -> None:
    scene = Scene("a", "b", "c", lease_ms=4_000, lease_margin_ms=400)
    scene.restart()
    scene.now += 4_300
    scene.hello("a")
    scene.now += 900
    scene.hello("b")
    assert scene.state.nodes["c"].status == "ready", "its turn may still come, and its lease would be over"
    scene.now += 900
    scene.step()
    assert scene.state.nodes["c"].status == "ready"
    scene.now += 200
    assert outcome(scene.step())["nodes"] == ["c lost: heartbeats_missing"], "no other node has returned for a beat"


def test_a_node_that_returned_and_fell_silent_is_lost_after_its_own_lease() -> None:
    scene = Scene("a", "b", lease_ms=4_000, lease_margin_ms=400)
    scene.restart()
    scene.hello("a")
    scene.now += 4_300
    scene.hello("b")
    assert outcome(scene.wait("200ms", silent="a"))["nodes"] == ["a lost: heartbeats_missing"]


def test_leases_grow_with_the_fleet_and_are_counted_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "LEASE_NODES", 2)
    monkeypatch.setattr(state_module, "LEASE_NODES_STEP", 1)
    scene = Scene("a", "b", lease_ms=4_000, lease_margin_ms=400, adopts=False)
    assert (scene.state.lease_ms, scene.state.sent_lease_ms) == (4_000, 4_000)
    scene.hello("c")
    assert (scene.state.lease_ms, scene.state.sent_lease_ms, scene.state.meta.lease_ms) == (4_002, 4_000, 4_002)
    scene.step()
    assert scene.state.sent_lease_ms == 4_002
    scene.restart()
    assert (scene.state.lease_ms, scene.state.sent_lease_ms) == (4_002, 4_002), "the fleet is as large as it was"


def test_leases_stay_as_they_are_set_where_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "LEASE_NODES", 0)
    scene = Scene("a", "b", lease_ms=4_000, adopts=True)
    assert scene.state.lease_ms == 4_000
