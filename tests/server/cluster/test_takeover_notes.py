"""An unclean takeover is known to the next leader, also if the leader in between never committed."""

import pytest

from roost.core.state.records import Settings
from roost.ports.store import Lead, Snapshot
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.machine import LeadershipMachine, Take
from roost.server.engine.machine import CommitChanges, EngineMachine, Release

TIMING = LeaderTiming()
ONE = ServerIdentity("one", "life-1", "http://one:8420", "one:8421")
TWO = ServerIdentity("two", "life-2", "http://two:8420", "two:8421")


def take(machine: LeadershipMachine, lead: Lead, now: int) -> bool:
    """Take the lead that the store has; whether that was unclean."""
    machine.loaded()
    machine.saw(lead, now)
    assert isinstance(machine.due(now + TIMING.ttl_ms), Take)
    machine.taken(lead.epoch + 1)
    elected = machine.saw(Lead(lead.epoch + 1, TWO.signed(), 0), now + TIMING.ttl_ms)
    assert elected is not None
    return elected.unclean


@pytest.mark.parametrize("is_stored", [False, True])
def test_lead_that_is_taken_again_is_unclean_until_a_commit_has_stored_that(is_stored: bool) -> None:
    machine = LeadershipMachine(TWO, TIMING, 0)
    assert take(machine, Lead(3, ONE.signed(), 7), 100)
    if is_stored:
        machine.committed(9_000)
    machine.away()
    assert take(machine, Lead(4, TWO.signed(), 0), 10_000) != is_stored


def test_lead_of_another_server_that_has_let_go_is_clean_whatever_was_before() -> None:
    machine = LeadershipMachine(TWO, TIMING, 0)
    assert take(machine, Lead(3, ONE.signed(), 7), 100)
    machine.away()
    assert not take(machine, Lead(5, ONE.signed(), 9, "two"), 10_000)


def test_lead_is_released_after_the_first_commit_of_an_unclean_takeover() -> None:
    leadership = LeadershipMachine(TWO, TIMING, 0)
    engine = EngineMachine(Settings(), leadership)
    engine.mirrored(Snapshot(0, []))
    assert take(leadership, Lead(3, ONE.signed(), 7), 100)
    engine.elected(4, 1_000, unclean=True)
    engine.let_go("one")
    (commit,) = engine.turn(1_001)
    assert isinstance(commit, CommitChanges) and [change.kind for change in commit.changes] == ["meta"]
    engine.committed(1_002)
    assert engine.turn(1_003) == [Release(4, "one")]
