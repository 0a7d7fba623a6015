"""When a server may take the lead: no server's clock is compared with another's."""

import pytest

from roost.model.errors import Invalid
from roost.ports.store import ANYBODY, Lead
from roost.server.cluster.election import (
    AFTER_OUTAGE_MS,
    Election,
    LeaderTiming,
    ServerIdentity,
    check_timing,
    read_identity,
)

TIMING = LeaderTiming()
ONE = ServerIdentity("one", "life-1", "http://one:8420", "one:8421")
TWO = ServerIdentity("two", "life-2", "http://two:8420", "two:8421")


def seen_by_two(lead: Lead, now: int = 100) -> Election:
    election = Election(TWO, TIMING, 0)
    election.saw(lead, now)
    return election


def test_before_anything_is_seen_no_server_takes_the_lead() -> None:
    election = Election(TWO, TIMING, 0)
    assert election.due_ms() is None and election.leader is None


def test_where_no_server_ever_led_the_lead_is_taken_at_once() -> None:
    election = seen_by_two(Lead())
    assert election.due_ms() == 100 and not election.is_unclean()


def test_a_lead_that_stays_the_same_for_the_ttl_is_taken() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7))
    assert election.due_ms() == 100 + TIMING.ttl_ms
    assert election.is_unclean() and election.leader == ONE


def test_every_sign_of_life_counts_from_when_it_was_seen() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7))
    election.saw(Lead(3, ONE.signed(), 7), 900)  # a commit: the record is the same
    assert election.due_ms() == 900 + TIMING.ttl_ms


def test_a_server_that_is_found_dead_is_not_waited_for_but_its_agents_are() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7))
    election.found_dead()
    assert election.due_ms() == 100 and election.is_unclean()
    election.saw(Lead(3, ONE.signed(), 8), 200)  # it is not dead after all
    assert election.due_ms() == 200 + TIMING.ttl_ms


@pytest.mark.parametrize("successor", [ANYBODY, "two"])
def test_a_lead_that_was_let_go_is_taken_at_once(successor: str) -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7, successor))
    assert election.due_ms() == 100 and not election.is_unclean() and election.leader is None


def test_the_heir_goes_first() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7, "three"))
    assert election.due_ms() == 100 + TIMING.ttl_ms
    assert not election.is_unclean()


def test_a_server_that_has_let_go_lets_others_go_first() -> None:
    election = Election(ONE, TIMING, 0)
    election.saw(Lead(3, ONE.signed(), 7, ANYBODY), 100)
    assert election.due_ms() == 100 + TIMING.ttl_ms


def test_a_server_that_has_the_port_of_the_leader_knows_that_it_is_dead() -> None:
    again = ServerIdentity("one", "life-9", "http://one:8420", "one:8421")
    election = Election(again, TIMING, 0)
    for lead in (Lead(3, ONE.signed(), 7), Lead(3, ONE.signed(), 7, ANYBODY)):
        election.saw(lead, 100)
        assert election.due_ms() == 100 and not election.is_unclean()


def test_a_record_that_no_server_signed_is_waited_for_like_any_other() -> None:
    election = seen_by_two(Lead(3, "something else", 7))
    assert election.due_ms() == 100 + TIMING.ttl_ms and election.leader is None and election.is_unclean()
    assert read_identity(ONE.signed()) == ONE


@pytest.mark.parametrize(
    ("timing", "path"),
    [
        (LeaderTiming(ttl_ms=100), "leader_ttl_ms"),
        (LeaderTiming(ttl_ms=2_500), "leader_ttl_ms"),  # more than half of a lease
        (LeaderTiming(renew_ms=1_100), "leader_renew_ms"),
        (LeaderTiming(retry_ms=500), "leader_renew_ms"),
        (LeaderTiming(retry_ms=0), "leader_renew_ms"),
        (LeaderTiming(store_outage_grace_ms=-1), "store_outage_grace_ms"),
    ],
)
def test_times_that_do_not_fit_together_are_refused(timing: LeaderTiming, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_timing(timing, 4_000)
    assert caught.value.path == path


def test_the_default_times_fit_together() -> None:
    check_timing(TIMING, 4_000)


def test_a_leader_that_was_not_seen_for_two_ttls_is_no_current_one() -> None:
    election = Election(TWO, TIMING, 0)
    assert not election.is_current(0), "nothing is known yet"
    election.saw(Lead(3, ONE.signed(), 7), 100)
    assert election.is_current(100 + 2 * TIMING.ttl_ms - 1)
    assert not election.is_current(100 + 2 * TIMING.ttl_ms)


def test_after_an_outage_of_the_store_its_leader_goes_first() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7), 1_000)
    election.lost_sight()
    election.saw(Lead(3, ONE.signed(), 8), 31_000)  # renewed before the outage, unseen
    assert election.due_ms() == 31_000 + TIMING.ttl_ms + AFTER_OUTAGE_MS
    election.saw(Lead(3, ONE.signed(), 9), 31_400)
    assert election.due_ms() == 31_400 + TIMING.ttl_ms, "it has renewed: all is as before"


def test_after_an_outage_a_free_lead_is_taken_at_once() -> None:
    election = seen_by_two(Lead(3, ONE.signed(), 7), 1_000)
    election.lost_sight()
    election.saw(Lead(3, ONE.signed(), 7), 31_000)
    election.found_dead()
    assert election.due_ms() == 31_000
    election.lost_sight()
    election.saw(Lead(3, ONE.signed(), 8, ANYBODY), 32_000)
    assert election.due_ms() == 32_000
