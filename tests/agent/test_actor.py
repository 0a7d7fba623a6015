"""The agent's mind: orders, reports, sessions and leases; what is late, repeated or in the wrong order does no harm."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roost.agent.actor import RUNNING_DUE_MS, STARTING_DUE_MS, Action, Actor, Forget, Halt, Lease, Start
from roost.model.protocol import Answer, Beat, Drop, Order, Report, Run, Stop, Usage, Welcome
from roost.model.records.node import Facts
from roost.ports.driver import Ended, StopReason

LEASE_MS = 4_000
SESSION = 9


def run(token: int, **fields: Any) -> Run:
    return Run(token, f"default/w{token}", 0, 1, b"document", grace_ms=700, **fields)


def actor_of(*orders: Order, generation: int = 1) -> Actor:
    """An agent that was just welcomed with these orders."""
    actor = Actor("n1", "machine", Facts({"cpu": 4_000}))
    actor.hello(0)
    actor.welcomed(Welcome(SESSION, 0, LEASE_MS, generation, orders), 0)
    return actor


def running(*tokens: int) -> Actor:
    """An agent with attempts that run, as the server knows."""
    actor = actor_of(*(run(token) for token in tokens))
    for token in tokens:
        actor.started(token, 1, 1)
    actor.answered(Answer(SESSION, acknowledged=actor.beat(STARTING_DUE_MS).sequence), 3)
    return actor


def ends(actor: Actor, token: int, code: int = 0, at_ms: int = 10, **fields: Any) -> None:
    actor.ended(Ended(str(token), "exited", at_ms, code, **fields), at_ms)


def tokens(beat: Beat) -> list[int]:
    return [report.token for report in beat.reports]


def states(actor: Actor) -> dict[int, str]:
    return {token: attempt.state for token, attempt in actor.attempts.items()}


# --- hello and welcome ------------------------------------------------------------------------------------------------


def test_hello_tells_everything_that_is_here_and_how_it_stands() -> None:
    actor = running(2, 1)
    ends(actor, 1, code=3, at_ms=50, log_size=12)
    hello = actor.hello(60)
    assert (hello.node, hello.identity, hello.facts, hello.sent_ms) == ("n1", "machine", actor.facts, 60)
    assert hello.runs == (
        (run(1), Report(1, "ended", 59, 10, "exited", 3, log_size=12)),
        (run(2), Report(2, "running", 59)),
    )


def test_a_welcome_brings_a_lease_from_our_own_send_time_and_starts_what_is_new() -> None:
    actor = Actor("n1", "machine", Facts({}))
    actor.hello(100)
    actions = actor.welcomed(Welcome(SESSION, 100, LEASE_MS, 5, (run(1), run(2))), 180)
    assert actions == [Lease(100 + LEASE_MS), Start(run(1)), Start(run(2))]
    assert (actor.session, actor.generation) == (SESSION, 5)


def test_a_welcome_starts_nothing_that_is_here_and_stops_what_is_no_longer_wanted() -> None:
    actor = running(1, 2)
    actor.hello(20)
    actions = actor.welcomed(Welcome(SESSION + 1, 20, LEASE_MS, 1, (run(2), run(3))), 21)
    assert actions == [Lease(20 + LEASE_MS), Halt(1, 700, StopReason.DROPPED), Start(run(3))]


def test_a_welcome_forgets_what_ended_and_is_not_wanted() -> None:
    actor = running(1)
    ends(actor, 1)
    actor.hello(20)
    assert actor.welcomed(Welcome(SESSION + 1, 20, LEASE_MS, 1), 21) == [Lease(20 + LEASE_MS), Forget(1)]
    assert not actor.attempts


def test_a_welcome_can_tell_to_stop() -> None:
    actor = actor_of(run(1), Stop(1, 300, "asked for"))
    assert actor.attempts[1].stopping


def test_what_happens_between_hello_and_welcome_is_reported_after_it() -> None:
    actor = running(1)
    actor.hello(20)
    ends(actor, 1, at_ms=25)
    assert actor.next_due() is None, "no server to tell it to yet"
    actor.welcomed(Welcome(SESSION + 1, 20, LEASE_MS, 1, (run(1),)), 30)
    assert actor.next_due() == 25
    assert actor.beat(31).reports == (Report(1, "ended", 30, 6, "exited", 0),)


def test_a_new_agent_takes_over_what_an_earlier_one_had_started() -> None:
    actor = Actor("n1", "machine", Facts({}))
    actor.restored(run(1), 5)
    actor.started(1, 3, 5)
    assert actor.hello(10).runs == ((run(1), Report(1, "running", 7)),)
    assert actor.welcomed(Welcome(SESSION, 10, LEASE_MS, 1, (run(1),)), 11) == [Lease(10 + LEASE_MS)]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_echo_renews_the_lease_and_nothing_else() -> None:
    actor = running(1)
    assert actor.answered(Answer(SESSION, echo_ms=1_000), 1_050) == [Lease(1_000 + LEASE_MS)]
    assert actor.answered(Answer(SESSION), 1_060) == []


def test_a_delta_that_follows_is_obeyed_in_order() -> None:
    actor = actor_of(run(1))
    delta = Answer(SESSION, base=1, generation=2, orders=(run(2), Stop(1, 50, "asked for"), Stop(2, 60, "asked for")))
    assert actor.answered(delta, 5) == [
        Start(run(2)),
        Halt(1, 50, StopReason.ORDERED, "asked for"),
        Halt(2, 60, StopReason.ORDERED, "asked for"),
    ]
    assert actor.generation == 2


def test_a_delta_that_comes_again_is_not_obeyed_again() -> None:
    actor = actor_of(run(1))
    delta = Answer(SESSION, base=1, generation=2, orders=(run(2),))
    actor.answered(delta, 5)
    assert actor.answered(delta, 6) == []


def test_a_delta_that_does_not_follow_is_not_obeyed_and_the_whole_set_asked_for_once() -> None:
    actor = actor_of(run(1))
    assert actor.answered(Answer(SESSION, base=2, generation=3, orders=(run(3),)), 5) == []
    assert actor.generation == 1 and 3 not in actor.attempts
    assert actor.beat(6).lacking
    assert not actor.beat(7).lacking
    whole = Answer(SESSION, base=3, generation=4, whole=True, orders=(run(2), run(3)))
    assert actor.answered(whole, 8) == [Halt(1, 700, StopReason.DROPPED), Start(run(2)), Start(run(3))]
    assert not actor.beat(9).lacking


def test_a_whole_set_that_is_older_than_what_we_have_is_not_obeyed() -> None:
    actor = actor_of(run(1), generation=5)
    assert actor.answered(Answer(SESSION, base=3, generation=4, whole=True), 5) == []


def test_words_for_another_session_are_not_for_us() -> None:
    actor = actor_of(run(1))
    for session in (SESSION - 1, SESSION + 1, 0):
        stale = Answer(session, 99, 99, 1, 2, True, (run(7),))
        assert actor.answered(stale, 5) == []
    actor.parted()
    assert actor.answered(Answer(SESSION, 99, 99, 1, 2, True, (run(7),)), 5) == []
    assert actor.answered(Answer(0, 99, 99, 1, 2, True, (run(7),)), 5) == []
    assert (actor.generation, sorted(actor.attempts)) == (1, [1])


def test_a_stop_is_carried_out_once() -> None:
    actor = running(1)
    assert actor.answered(Answer(SESSION, base=1, generation=2, orders=(Stop(1, 50, "a"),)), 5) == [
        Halt(1, 50, StopReason.ORDERED, "a")
    ]
    assert actor.answered(Answer(SESSION, base=2, generation=3, orders=(Stop(1, 50, "b"), Stop(8, 1, "c"))), 6) == []


def test_a_stop_of_what_has_ended_does_nothing() -> None:
    actor = running(1)
    ends(actor, 1)
    assert actor.answered(Answer(SESSION, base=1, generation=2, orders=(Stop(1, 50, "a"),)), 15) == []


def test_dropping_what_runs_stops_it_and_it_is_forgotten_once_its_end_is_known() -> None:
    actor = running(1)
    dropped = Answer(SESSION, base=1, generation=2, orders=(Drop(1),))
    assert actor.answered(dropped, 5) == [Halt(1, 700, StopReason.DROPPED)]
    actor.beat(9)
    ends(actor, 1)
    beat = actor.beat(11)
    assert tokens(beat) == [1]
    assert actor.answered(Answer(SESSION, acknowledged=beat.sequence - 1), 12) == []
    assert actor.answered(Answer(SESSION, acknowledged=beat.sequence), 13) == [Forget(1)]
    assert not actor.attempts


def test_dropping_what_has_ended_forgets_it_at_once() -> None:
    actor = running(1, 2)
    ends(actor, 1)
    actor.beat(11)
    assert actor.answered(Answer(SESSION, base=1, generation=2, orders=(Drop(1), Drop(1), Drop(77))), 12) == [Forget(1)]
    assert states(actor) == {2: "running"}


def test_an_end_that_is_acknowledged_but_not_dropped_is_kept() -> None:
    actor = running(1)
    ends(actor, 1)
    assert actor.answered(Answer(SESSION, acknowledged=actor.beat(11).sequence), 12) == []
    assert states(actor) == {1: "ended"}


def test_a_run_order_for_an_attempt_that_ended_here_does_not_start_it_again() -> None:
    actor = running(1)
    ends(actor, 1)
    assert actor.answered(Answer(SESSION, base=1, generation=2, orders=(run(1),)), 12) == []


# --- beats ------------------------------------------------------------------------------------------------------------


def test_a_beat_tells_what_is_new_once() -> None:
    actor = running(1, 2)
    ends(actor, 2, at_ms=30)
    first = actor.beat(31, Usage(1, 2, 3))
    assert first == Beat(SESSION, 2, 31, 1, (Report(2, "ended", 30, 1, "exited", 0),), Usage(1, 2, 3))
    assert actor.beat(32) == Beat(SESSION, 3, 32, 1)


def test_what_was_not_acknowledged_is_repeated_when_asked() -> None:
    actor = running(1, 2)
    ends(actor, 2)
    lost = actor.beat(11)
    again = actor.beat(12, again=True)
    assert tokens(again) == [2]
    actor.answered(Answer(SESSION, acknowledged=lost.sequence), 13)
    assert tokens(actor.beat(14, again=True)) == [2], "it was reported again after that, and who knows"
    actor.answered(Answer(SESSION, acknowledged=actor.sequence), 15)
    assert tokens(actor.beat(16, again=True)) == []


def test_acknowledgements_that_come_late_change_nothing() -> None:
    actor = running(1)
    ends(actor, 1)
    actor.answered(Answer(SESSION, acknowledged=actor.beat(11).sequence), 12)
    actor.answered(Answer(SESSION, acknowledged=1), 13)
    assert tokens(actor.beat(14, again=True)) == []


def test_a_start_can_wait_a_little_and_an_end_cannot() -> None:
    actor = actor_of(run(1), run(2))
    assert actor.next_due() == STARTING_DUE_MS
    actor.started(1, 20, 20)
    assert actor.next_due() == 20 + RUNNING_DUE_MS
    ends(actor, 2, at_ms=30)
    assert actor.next_due() == 30


def test_a_beat_for_an_end_leaves_out_what_can_wait() -> None:
    actor = actor_of(run(1), run(2), run(3))
    actor.started(1, 20, 20)
    ends(actor, 2, at_ms=30)
    assert [(report.token, report.state) for report in actor.beat(30).reports] == [(2, "ended")]
    assert actor.next_due() == 20 + RUNNING_DUE_MS
    assert [(report.token, report.state) for report in actor.beat(70, again=True).reports] == [
        (1, "running"),
        (2, "ended"),
    ]
    assert actor.next_due() == STARTING_DUE_MS
    assert tokens(actor.beat(STARTING_DUE_MS)) == [3]
    assert actor.next_due() is None


def test_a_run_that_ends_at_once_is_reported_in_one_report() -> None:
    actor = actor_of(run(1))
    actor.started(1, 5, 5)
    ends(actor, 1, at_ms=6)
    assert actor.beat(7).reports == (Report(1, "ended", 2, 1, "exited", 0),)
    assert actor.beat(8, again=False).reports == ()


def test_steps_are_reported() -> None:
    actor = running(1)
    actor.stepped(1, 2, 100)
    assert actor.next_due() == 100 + RUNNING_DUE_MS
    assert actor.beat(101).reports == ()
    assert actor.beat(150).reports == (Report(1, "running", 149, step=2),)


def test_the_first_end_counts() -> None:
    actor = running(1)
    actor.ended(Ended("1", "lease", 10, None, 9), 10)
    ends(actor, 1, code=0, at_ms=11)
    assert actor.beat(12).reports == (Report(1, "ended", 11, 2, "lease", None, 9),)


def test_news_of_what_is_not_known_or_has_ended_change_nothing() -> None:
    actor = running(1)
    ends(actor, 1)
    actor.beat(11)
    actor.started(1, 12, 12)
    actor.stepped(1, 3, 12)
    for update in (lambda: actor.started(7, 1, 1), lambda: actor.stepped(7, 1, 1), lambda: ends(actor, 7)):
        update()
    assert (states(actor), actor.next_due()) == ({1: "ended"}, None)


def test_losing_the_stream_stops_nothing() -> None:
    actor = running(1)
    actor.parted()
    assert (states(actor), actor.next_due()) == ({1: "running"}, None)


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 6), st.booleans(), st.integers(1, 4), st.sampled_from("rsd")),
        max_size=25,
    )
)
def test_however_answers_are_repeated_lost_and_mixed_an_attempt_is_started_once(
    answers: list[tuple[int, int, bool, int, str]],
) -> None:
    actor = actor_of()
    started: list[int] = []
    for now, (generation, base, whole, token, kind) in enumerate(answers):
        order: Order = run(token) if kind == "r" else Stop(token, 1, "x") if kind == "s" else Drop(token)
        before = set(actor.attempts)
        actions: list[Action] = actor.answered(Answer(SESSION, 0, 0, base, generation, whole, (order,)), now)
        began = [action.run.token for action in actions if isinstance(action, Start)]
        assert not set(began) & before
        started += began
        assert {action.token for action in actions if isinstance(action, Halt)} <= before | set(began)
    assert len(started) == len(set(started)), "nothing ended here, so nothing was forgotten and nothing runs twice"


def test_a_goodbye_says_so_and_tells_the_rest() -> None:
    actor = running(1, 2)
    ends(actor, 1)
    beat = actor.beat(11, leaving=True)
    assert beat.leaving and tokens(beat) == [1]
