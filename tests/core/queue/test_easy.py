"""Backfill: the start reserved for the head, and who may pass it."""

from hypothesis import given
from hypothesis import strategies as st

from roost.core.queue.easy import EasyReservation, after_backfill, reserve

NOW = 100
amounts = st.integers(1, 16)
pairs = st.tuples(st.integers(NOW + 1, NOW + 60), amounts)


def test_the_head_starts_when_enough_has_ended() -> None:
    assert reserve(8, 2, [(110, 3), (120, 4), (130, 9)], NOW) == EasyReservation(120, 1)


def test_what_fits_now_is_reserved_now() -> None:
    assert reserve(2, 5, [(110, 3)], NOW) == EasyReservation(NOW, 3)


def test_a_run_past_its_end_is_taken_to_end_now() -> None:
    assert reserve(4, 0, [(70, 2), (90, 2)], NOW) == EasyReservation(NOW, 0)


def test_pairs_that_end_together_count_as_far_as_they_are_needed_and_as_one_pair_in_whole() -> None:
    assert reserve(4, 0, [(110, 4), (110, 4)], NOW) == EasyReservation(110, 0)
    assert reserve(4, 0, [(110, 8)], NOW) == EasyReservation(110, 4)


def test_what_never_fits_has_no_start() -> None:
    assert reserve(9, 2, [(110, 3), (120, 3)], NOW) is None


def test_an_instance_that_ends_by_the_reserved_start_passes_for_nothing() -> None:
    easy_reservation = EasyReservation(120, 1)
    assert after_backfill(easy_reservation, NOW, 20, 50) == easy_reservation


def test_an_instance_that_outlasts_it_uses_up_what_is_left_over() -> None:
    assert after_backfill(EasyReservation(120, 3), NOW, 21, 2) == EasyReservation(120, 1)
    assert after_backfill(EasyReservation(120, 1), NOW, 21, 2) is None


@given(st.lists(pairs, max_size=8), st.integers(0, 16), amounts, st.lists(st.tuples(st.integers(1, 90), amounts)))
def test_no_instance_that_passes_makes_the_head_late(
    ends: list[tuple[int, int]], free: int, needed: int, others: list[tuple[int, int]]
) -> None:
    ends.sort()
    reserved = reserve(needed, free, ends, NOW)
    if reserved is None or reserved.shadow == NOW:
        return
    promised = reserved.shadow
    for request, amount in others:
        if amount > free:
            continue
        after = after_backfill(reserved, NOW, request, amount)
        if after is not None:
            reserved = after
            free -= amount
            ends = sorted([*ends, (NOW + request, amount)])
    again = reserve(needed, free, ends, NOW)
    assert again is not None and again.shadow <= promised
