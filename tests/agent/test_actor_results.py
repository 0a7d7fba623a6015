"""Reports with results: only so many bytes are on their way, and none is forgotten."""

from roost.agent.actor import RESULTS_UNACKNOWLEDGED_MAX, Actor
from roost.model.protocol import Answer, Beat, Drop, Run, Welcome
from roost.model.records.node import Facts
from roost.model.records.result import Result
from roost.ports.driver import Ended

LARGE = RESULTS_UNACKNOWLEDGED_MAX // 4
RESULTS = {token: Result(b"%d" % token * LARGE) for token in range(1, 7)}


def connected(count: int = 6) -> Actor:
    actor = Actor("n", "machine", Facts(resources={"cpu": 1}))
    actor.hello(0)
    orders = tuple(Run(token, "default/a", token, 1, b"") for token in range(1, count + 1))
    actor.welcomed(Welcome(1, 0, 4_000, 1, orders), 0)
    return actor


def end_all(actor: Actor, now: int) -> None:
    for token in list(actor.attempts):
        actor.ended(Ended(str(token), "exited", now, 0, result=RESULTS[token]), now)


def tokens(beat: Beat) -> list[int]:
    assert all(report.result == RESULTS[report.token] for report in beat.reports)
    return [report.token for report in beat.reports]


def test_an_end_is_reported_with_its_result() -> None:
    actor = connected(1)
    end_all(actor, 10)
    assert tokens(actor.beat(10)) == [1]


def test_the_rest_waits_until_what_was_sent_has_arrived() -> None:
    actor = connected()
    end_all(actor, 10)
    assert tokens(actor.beat(10)) == [1, 2, 3, 4]
    assert actor.next_due() is None, "nothing is due, and nothing is sent again and again"
    assert tokens(actor.beat(11)) == []
    actor.answered(Answer(1, acknowledged=1), 12)
    assert actor.next_due() == 12
    assert tokens(actor.beat(12)) == [5, 6]
    actor.answered(Answer(1, acknowledged=3), 13)
    assert actor.next_due() is None and tokens(actor.beat(14, again=True)) == []


def test_what_was_not_acknowledged_is_sent_again_without_more() -> None:
    actor = connected()
    end_all(actor, 10)
    actor.beat(10)
    assert tokens(actor.beat(500, again=True)) == [1, 2, 3, 4]


def test_a_held_back_end_is_not_dropped() -> None:
    actor = connected()
    end_all(actor, 10)
    actor.beat(10)
    actor.answered(Answer(1, base=1, generation=2, orders=(Drop(5),)), 11)
    assert 5 in actor.attempts
    actor.answered(Answer(1, acknowledged=1), 12)
    assert tokens(actor.beat(12)) == [5, 6]


def test_a_reader_of_what_is_gone_makes_room() -> None:
    """An attempt that the server no longer wants may go before its report is acknowledged."""
    actor = connected()
    end_all(actor, 10)
    actor.beat(10)
    actor.answered(Answer(1, base=1, generation=2, orders=tuple(map(Drop, (1, 2, 3, 4)))), 11)
    assert sorted(actor.attempts) == [5, 6]
    actor.answered(Answer(1, acknowledged=1), 12)
    assert tokens(actor.beat(12)) == [5, 6]


def test_the_last_beat_and_a_hello_have_everything() -> None:
    actor = connected()
    end_all(actor, 10)
    assert tokens(actor.beat(10)) == [1, 2, 3, 4]
    assert tokens(actor.beat(11, again=True, leaving=True, last=True)) == [1, 2, 3, 4, 5, 6]
    hello = actor.hello(12)
    assert [report.result for _, report in hello.runs] == list(RESULTS.values())
    actor.welcomed(Welcome(2, 12, 4_000, 1, tuple(run for run, _ in hello.runs)), 13)
    assert actor.next_due() is None and tokens(actor.beat(14)) == []
