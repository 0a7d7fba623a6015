"""Which copies an agent begins, leaves and reports, in any order of what may happen."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from roost.agent.files.copy_progress import (
    COPIES_MAX,
    OUTCOMES_MAX,
    TIME_MS_MAX,
    WAITING_MAX,
    BeginCopy,
    CopyEffect,
    CopyProgress,
    LeaveCopy,
    SendReport,
)
from roost.model.protocol import CopyOrder, CopyProblem, CopyReport


def order(number: int, token: int = 1) -> CopyOrder:
    return CopyOrder(f"c{number}", token, "path")


def done(number: int, token: int = 1) -> CopyReport:
    return CopyReport(f"c{number}", token, place="path")


def problems(effects: list[CopyEffect]) -> list[CopyProblem | None]:
    return [effect.report.problem for effect in effects if isinstance(effect, SendReport)]


def test_some_are_carried_out_at_a_time_and_each_once() -> None:
    progress = CopyProgress(lambda token: True)
    orders = [order(number) for number in range(COPIES_MAX + 1)]
    assert progress.wanted(orders, 0) == [BeginCopy(item) for item in orders[:-1]]
    assert progress.wanted(orders, 0) == []
    assert progress.finished(done(0), 1) == [SendReport(done(0)), BeginCopy(orders[-1])]
    assert progress.finished(done(0), 1) == []
    assert progress.wanted(orders, 2) == [SendReport(done(0))], "a server that has forgotten it gets it again"


def test_what_is_no_longer_wanted_is_left_without_a_report() -> None:
    progress = CopyProgress(lambda token: True)
    progress.wanted([order(1), order(2)], 0)
    assert progress.wanted([order(2)], 1) == [LeaveCopy("c1")]
    assert progress.finished(done(1), 2) == []


def test_the_end_of_a_run_is_the_end_of_its_copies() -> None:
    running = {1, 2}
    progress = CopyProgress(lambda token: token in running)
    progress.wanted([order(1, 1), order(2, 2)], 0)
    running.remove(1)
    effects = progress.tick(1)
    assert (effects[0], problems(effects)) == (LeaveCopy("c1"), [CopyProblem.NOT_RUNNING])
    running.remove(2)
    assert problems(progress.finished(done(2, 2), 2)) == [CopyProblem.NOT_RUNNING], "it may be in no outputs"
    assert problems(progress.wanted([order(3, 9)], 3)) == [CopyProblem.NOT_RUNNING]
    assert progress.is_idle


def test_a_copy_has_a_time_limit_and_the_agent_a_limit_of_copies() -> None:
    progress = CopyProgress(lambda token: True)
    progress.wanted([order(1)], 0)
    assert progress.tick(TIME_MS_MAX - 1) == []
    assert problems(progress.tick(TIME_MS_MAX)) == [CopyProblem.FAILED]
    many = [order(number) for number in range(2, WAITING_MAX + 4)]
    assert problems(progress.wanted(many, TIME_MS_MAX)) == [CopyProblem.FAILED] * 2


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("wanted"), st.sets(st.integers(0, 8))),
        st.tuples(st.just("finished"), st.integers(0, 8)),
        st.tuples(st.just("ended"), st.integers(0, 2)),
        st.tuples(st.just("time"), st.integers(1, TIME_MS_MAX)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_every_copy_is_begun_and_ended_at_most_once_and_few_at_a_time(events: list[tuple[str, object]]) -> None:
    running, now = {0, 1, 2}, 0
    progress = CopyProgress(lambda token: token in running)
    begun: Counter[str] = Counter()
    for kind, value in events:
        effects: list[CopyEffect] = []
        if kind == "wanted" and isinstance(value, set):
            effects = progress.wanted([order(number, number % 3) for number in sorted(value)], now)
        elif kind == "finished" and isinstance(value, int):
            effects = progress.finished(done(value, value % 3), now)
        elif kind == "ended" and isinstance(value, int):
            running.discard(value)
        elif isinstance(value, int):
            now += value
        effects += progress.tick(now)
        for effect in effects:
            if isinstance(effect, BeginCopy):
                begun[effect.order.id] += 1
                assert effect.order.id not in progress._done and effect.order.token in running
        assert len(progress.under_way) <= COPIES_MAX and set(progress.under_way) == set(progress._until)
        assert not set(progress.under_way) & set(progress.waiting) and len(progress._done) <= OUTCOMES_MAX
        assert all(item.token in running for item in progress.under_way.values())
