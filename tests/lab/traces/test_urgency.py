"""Queue orders: who goes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roost_lab.traces.urgency import AGEING, KEYS, SHORT_S, STRETCH

OLD_AND_LARGE = (100, 1_000, 8)  # submitted, request, processors
YOUNG_AND_SMALL = (200, 10, 1)

times = st.integers(0, 10**9)
requests = st.integers(1, 10**7)
widths = st.integers(1, 10**6)


def first(name: str, *jobs: tuple[int, int, int], now: int = 1_000) -> tuple[int, int, int]:
    return min(jobs, key=lambda job: KEYS[name](*job, now))


@pytest.mark.parametrize(
    ("name", "wins"),
    [
        ("fcfs", OLD_AND_LARGE),
        ("sjf", YOUNG_AND_SMALL),
        ("area", YOUNG_AND_SMALL),
        ("f1", OLD_AND_LARGE),
        ("wfp3", YOUNG_AND_SMALL),
        ("uni", YOUNG_AND_SMALL),
        ("ours", YOUNG_AND_SMALL),
    ],
)
def test_each_order_has_its_own_idea_of_urgency(name: str, wins: tuple[int, int, int]) -> None:
    assert first(name, OLD_AND_LARGE, YOUNG_AND_SMALL) == wins


def test_of_equal_size_the_older_goes_first() -> None:
    for name in ("fcfs", "sjf", "area", "f1", "wfp3", "ours"):
        assert first(name, (50, 600, 4), (40, 600, 4)) == (40, 600, 4), name


@given(times, requests, widths, times)
def test_every_order_ranks_every_job(submitted: int, request: int, procs: int, waited: int) -> None:
    for key in KEYS.values():
        rank = key(submitted, request, procs, submitted + waited)
        assert rank == rank and isinstance(rank, tuple)  # not NaN: it has a place


@given(times, requests, widths, times, times)
def test_only_those_that_say_so_change_with_time(submitted: int, request: int, procs: int, a: int, b: int) -> None:
    for name in KEYS.keys() - AGEING:
        key = KEYS[name]
        assert key(submitted, request, procs, submitted + a) == key(submitted, request, procs, submitted + b), name


@given(times, requests, widths, requests, widths)
def test_no_job_that_comes_after_a_job_is_due_goes_before_it(
    submitted: int, request: int, procs: int, other_request: int, other_procs: int
) -> None:
    due = submitted + STRETCH * procs * max(request, SHORT_S)
    mine = KEYS["ours"](submitted, request, procs, due)
    assert mine < KEYS["ours"](due, other_request, other_procs, due)
