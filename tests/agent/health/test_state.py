"""What health checks come to: ready or not, reported at each turn, and the end of what stays unwell."""

from itertools import pairwise
from typing import Any

import pytest

from roost.agent.actor import RUNNING_DUE_MS, STARTING_DUE_MS, Actor, Halt
from roost.agent.health.state import FIRST_MS, WORDS_EVERY_MS, HealthState
from roost.model.protocol import Answer, Drop, Report, Run, Stop, Welcome
from roost.model.records.node import Facts
from roost.model.spec.service import Check
from roost.ports.driver import Ended, StopReason

SESSION = 9
BEGAN_MS = 1_000
ILL = "http /: 503"


def watching(*tokens: int, **check: Any) -> Actor:
    """An agent with attempts that run and are looked at, as the server knows."""
    check = {"path": "/", "port": 80, "start_ms": 0, "failures": 2, **check}
    actor = Actor("n1", "machine", Facts({}))
    actor.hello(0)
    runs = tuple(Run(token, "default/web", 0, 1, b"", grace_ms=700) for token in tokens or (1,))
    actor.welcomed(Welcome(SESSION, 0, 4_000, 1, runs), 0)
    for run in runs:
        actor.watched(run.token, Check(**check))
        actor.started(run.token, BEGAN_MS, BEGAN_MS)
    beat = actor.beat(BEGAN_MS + RUNNING_DUE_MS)
    assert [report.ready for report in beat.reports] == [False] * len(runs)
    actor.answered(Answer(SESSION, acknowledged=beat.sequence), 2)
    return actor


def play(actor: Actor, looks: str, every_ms: int = 100, message: str = ILL) -> list[tuple[int, bool, str]]:
    """Carry out checks, one each so often: + is well, - is not. Each report: after how many, ready, message."""
    answer = []
    for number, check in enumerate(looks, 1):
        now = BEGAN_MS + number * every_ms
        actions = actor.probed(1, check == "+", "" if check == "+" else message, now)
        due = actor.next_due()
        for report in actor.beat(now).reports if due is not None and due <= now else ():
            answer.append((number, report.ready, report.error))
        if actions:
            assert actions == [Halt(1, 700, StopReason.UNHEALTHY, message)]
            answer.append((number, False, "halt"))
    return answer


TURNS = {
    "well at once": ("+++", {}, [(1, True, "")]),
    "two in a row are needed": ("+-++-", {"successes": 2, "failures": 3}, [(2, False, ILL), (4, True, "")]),
    "unwell once does not matter": ("+-+-+-", {}, [(1, True, "")]),
    "unwell twice in a row ends it": ("+--", {}, [(1, True, ""), (3, False, ILL), (3, False, "halt")]),
    "without restart it is only not ready": (
        "+--+--",
        {"restart": False},
        [(1, True, ""), (3, False, ILL), (4, True, ""), (6, False, ILL)],
    ),
    "never ready and its time to start is over": ("---", {"failures": 3}, [(1, False, ILL), (3, False, "halt")]),
    "within its time to start nothing counts": (
        "------",
        {"start_ms": 450},
        [(1, False, ILL), (6, False, "halt")],
    ),
    "once ready its time to start is over": (
        "+--",
        {"start_ms": 60_000},
        [(1, True, ""), (3, False, ILL), (3, False, "halt")],
    ),
    "well after a bad start": ("---+-", {"start_ms": 60_000}, [(1, False, ILL), (4, True, "")]),
}


@pytest.mark.parametrize("looks, check, report", TURNS.values(), ids=TURNS.keys())
def test_turns_are_reported_and_nothing_else(
    looks: str, check: dict[str, Any], report: list[tuple[int, bool, str]]
) -> None:
    assert play(watching(**check), looks) == report


def test_one_without_a_check_is_ready() -> None:
    actor = Actor("n1", "machine", Facts({}))
    actor.hello(0)
    actor.welcomed(Welcome(SESSION, 0, 4_000, 1, (Run(1, "default/job", 0, 1, b""),)), 0)
    actor.started(1, 5, 5)
    assert actor.beat(5 + RUNNING_DUE_MS).reports == (Report(1, "running", RUNNING_DUE_MS, ready=True),)
    assert actor.probed(1, False, ILL, 99) == [] and actor.next_look_ms(1, 99) is None and actor.next_due() is None


def test_the_end_of_one_that_was_unwell_says_so_in_a_message() -> None:
    actor = watching(failures=1)
    play(actor, "-")
    actor.ended(Ended("1", "stopped", 2_000, None, 15, log_size=12, why=StopReason.UNHEALTHY, detail=ILL), 2_000)
    (report,) = actor.beat(2_000).reports
    assert report == Report(1, "ended", 1_000, 0, "unhealthy", None, 15, error=ILL, ready=False, log_size=12)


@pytest.mark.parametrize(
    "cause, why, answer",
    [
        ("stopped", StopReason.ORDERED, ("stopped", "")),
        ("stopped", None, ("stopped", "")),
        ("exited", StopReason.UNHEALTHY, ("exited", "")),
        ("lease", StopReason.UNHEALTHY, ("lease", "")),
        ("timed_out", StopReason.UNHEALTHY, ("timed_out", "")),
    ],
)
def test_other_ends_are_reported_as_they_were(cause: str, why: StopReason | None, answer: tuple[str, str]) -> None:
    actor = watching()
    play(actor, "+")
    actor.ended(Ended("1", cause, 2_000, None, 15, why=why, detail=ILL), 2_000)
    (report,) = actor.beat(2_000).reports
    assert (report.cause, report.error) == answer and not report.ready


def test_other_words_alone_are_reported_from_time_to_time() -> None:
    actor = watching(restart=False, failures=1)
    answer = []
    for number in range(1, 1_000):
        now = BEGAN_MS + number * 50
        actor.probed(1, False, f"try {number}", now)
        answer += [(now, report.error) for report in actor.beat(now).reports]
    times = [now for now, _ in answer]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [250, 500, 1_000, 2_000, 4_000, 8_000, WORDS_EVERY_MS, WORDS_EVERY_MS, WORDS_EVERY_MS]
    assert answer == [(now, f"try {(now - BEGAN_MS) // 50}") for now in times], "always the latest"


def test_what_a_check_finds_once_the_process_listens_is_reported_before_a_short_deadline() -> None:
    actor = watching(restart=False, failures=1)
    reports = []
    for now, message in ((1_100, "connection refused"), (1_150, "http /: 404"), (1_600, "http /: 404")):
        actor.probed(1, False, message, now)
        reports += [report.error for report in actor.beat(now).reports]
    assert reports == ["connection refused", "http /: 404"]


def stopped(actor: Actor) -> list[Any]:
    return actor.answered(Answer(SESSION, base=1, generation=2, orders=(Stop(1, 50, "asked for"),)), 1_500)


def test_one_that_is_ordered_to_stop_is_no_longer_ready_and_that_is_reported_before_its_end() -> None:
    actor = watching()
    play(actor, "+")
    assert stopped(actor) == [Halt(1, 50, StopReason.ORDERED, "asked for")]
    assert actor.next_due() == 1_500
    assert [(report.state, report.ready) for report in actor.beat(1_500).reports] == [("running", False)]
    actor.ended(Ended("1", "stopped", 1_600, None, 15, why=StopReason.ORDERED), 1_600)
    assert [(report.cause, report.ready) for report in actor.beat(1_600).reports] == [("stopped", False)]


def test_dropping_is_a_stop_too() -> None:
    actor = watching()
    play(actor, "+")
    actor.answered(Answer(SESSION, base=1, generation=2, orders=(Drop(1),)), 1_500)
    assert [report.ready for report in actor.beat(1_500).reports] == [False]


def test_one_that_is_ordered_to_stop_is_no_longer_looked_at() -> None:
    actor = watching(failures=1)
    stopped(actor)
    assert actor.next_look_ms(1, 1_600) is None
    assert actor.probed(1, False, ILL, 1_600) == [] and actor.probed(1, True, "", 1_600) == []
    assert actor.beat(1_600).reports == (), "it was not ready before: there is nothing to tell"


def test_pending_ended_and_unknown_runs_are_not_looked_at() -> None:
    actor = watching(1, 2, failures=1)
    actor.ended(Ended("1", "exited", 2_000, 0), 2_000)
    actor.beat(2_000)
    actor.restored(Run(3, "default/web", 0, 1, b""), 2_000)
    actor.watched(3, Check(failures=1))
    actor.beat(2_000 + STARTING_DUE_MS)
    for token in (1, 3, 77):
        assert actor.next_look_ms(token, 2_100) is None
        assert actor.probed(token, False, ILL, 2_100) == []
    actor.watched(77, Check())
    assert actor.next_due() is None and actor.next_look_ms(2, 2_100) is not None


def test_an_agent_that_takes_over_says_not_ready_at_once_and_begins_to_count_anew() -> None:
    actor = Actor("n1", "machine", Facts({}))
    actor.restored(Run(1, "default/web", 0, 1, b"", grace_ms=700), 500_000)
    actor.watched(1, Check(failures=2, start_ms=30_000))
    actor.started(1, BEGAN_MS, 500_000)
    ((_, report),) = actor.hello(500_000).runs
    assert (report.state, report.ready, report.error) == ("running", False, "")
    assert actor.probed(1, False, ILL, 500_100) == [], "one is not two"
    assert actor.probed(1, True, "", 500_200) == []
    ((_, report),) = actor.hello(500_300).runs
    assert (report.ready, report.error) == (True, "")


def test_one_that_was_stopping_when_its_agent_died_is_not_looked_at_again_and_its_end_keeps_its_cause() -> None:
    actor = Actor("n1", "machine", Facts({}))
    actor.restored(Run(1, "default/web", 0, 1, b""), 5_000, stopping=True)
    actor.watched(1, Check())
    actor.started(1, BEGAN_MS, 5_000)
    assert actor.next_look_ms(1, 5_000) is None
    actor.ended(Ended("1", "stopped", 5_100, None, 9, why=StopReason.UNHEALTHY, detail=ILL), 5_100)
    ((_, report),) = actor.hello(5_200).runs
    assert (report.cause, report.error, report.ready) == ("unhealthy", ILL, False)


# --- when to look -----------------------------------------------------------------------------------------------------


def test_looks_are_frequent_while_it_starts_and_then_as_far_apart_as_was_asked_for() -> None:
    health = HealthState(Check(interval_ms=5_000, start_ms=30_000, successes=1))
    pauses = []
    age_ms = 0
    for well in (False,) * 7 + (True, True):
        pauses.append(pause_ms := health.pause_ms(1, age_ms))
        age_ms += pause_ms
        health.probed(well, age_ms)
    assert 0 <= pauses[0] < FIRST_MS
    for pause_ms, about_ms in zip(pauses[1:], (500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000), strict=True):
        assert about_ms * 0.9 <= pause_ms <= about_ms * 1.1


def test_where_failures_count_the_interval_is_kept() -> None:
    health = HealthState(Check(interval_ms=5_000, start_ms=0))
    health.probed(False, 10)
    assert 4_500 <= health.pause_ms(1, 10) <= 5_500


def test_runs_that_began_together_do_not_tick_together_and_the_same_always_alike() -> None:
    def times(token: int) -> list[int]:
        health, now, found = HealthState(Check(interval_ms=10_000)), 0, []
        for _ in range(20):
            now += health.pause_ms(token, now)
            health.probed(True, now)
            found.append(now)
        return found

    assert times(5) == times(5)
    seconds = [times(token)[-1] // 1_000 for token in range(1_000)]
    assert max(seconds.count(second) for second in set(seconds)) < 400
    assert all(150_000 < times(token)[-1] < 230_000 for token in range(50))
    firsts = sorted(times(token)[0] for token in range(1_000))
    assert firsts[0] < 10 and firsts[-1] > FIRST_MS - 10
