"""Taking over from another server: nodes that the one before may still be answering have some grace.

That a mirror which followed every step takes over as one that loads is checked after every step of every scene.
"""

import pytest

from roost.core.replica import load
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.model.events import NodeConnected
from roost.model.protocol import Hello
from roost.model.records.node import Facts
from roost.ports.store import Change, Snapshot

SETTINGS = Settings(lease_ms=1_000, lease_margin_ms=100, grace_ms=60_000)


def with_node() -> tuple[State, list[Change]]:
    state = load(Snapshot(0, []), 1_000, SETTINGS)
    done = step(state, [NodeConnected(1, Hello("a", "machine", Facts({"cpu": 1_000}), 1))], 1_000)
    return state, done.changes


def lease_of(state: State, now: int) -> int:
    return state.liveness["a"].lease_until_ms - now


@pytest.mark.parametrize(("unclean", "lease_ms"), [(False, 1_100), (True, 61_100)])
def test_a_node_has_grace_if_the_leader_before_has_not_let_go(unclean: bool, lease_ms: int) -> None:
    _, changes = with_node()
    assert lease_of(load(Snapshot(1, changes), 5_000, SETTINGS, unclean=unclean), 5_000) == lease_ms


def test_a_server_that_gets_the_lead_minds_an_unclean_takeover_shortly_before() -> None:
    _, changes = with_node()
    records = {change.record: change for change in changes}
    taken = load(Snapshot(1, changes), 5_000, SETTINGS, unclean=True)
    records |= {change.record: change for change in step(taken, [], 5_001).changes}
    snapshot = Snapshot(2, list(records.values()))
    assert lease_of(load(snapshot, 9_000, SETTINGS), 9_000) == 61_100
    assert lease_of(load(snapshot, 4_000, SETTINGS), 4_000) == 61_100, "its clock may be behind"
    assert lease_of(load(snapshot, 5_000 + 120_000, SETTINGS), 125_000) == 1_100


def test_after_the_grace_leases_are_short_again() -> None:
    _, changes = with_node()
    state = load(Snapshot(1, changes), 5_000, SETTINGS, unclean=True)
    step(state, [NodeConnected(1, Hello("a", "machine", Facts({"cpu": 1_000}), 2))], 6_000)
    step(state, [], 6_000)
    for now in (6_500, 7_099):
        step(state, [], now)
        assert state.nodes["a"].status == "ready"
    while state.timers and state.timers[0][0] <= 7_200:
        step(state, [], state.timers[0][0])
    assert state.nodes["a"].status == "lost", "not only when the grace is over"
