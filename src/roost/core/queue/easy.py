"""Backfill: when the head of a queue can start, and which jobs may start before it without delaying it.

EASY (Lifka, 1995): only the head has a reserved start. It follows from what runs now, when each run ends at the latest
(its requested end), and how much that gives back. A job that ends by the reserved start, or needs no more than the head
leaves over then, may start now. One resource, as an amount; what it counts is up to the caller.
"""

from collections.abc import Iterable
from typing import NamedTuple


class EasyReservation(NamedTuple):
    """The start that is kept for the head, and the amount that is left over at that moment once it has started."""

    shadow: int
    extra: int


def reserve(needed: int, free: int, ends: Iterable[tuple[int, int]], now: int) -> EasyReservation | None:
    """The earliest start for `needed`, from (end, amount) of what runs, by end. None: all of it is not enough.

    A run that is past its end is taken to end now. Of pairs that end together only as many as are needed count, as in
    the textbook: that leaves over too little, never too much. Hand them over as one pair to count them all.
    """
    if free >= needed:
        return EasyReservation(now, free - needed)
    for end, amount in ends:
        free += amount
        if free >= needed:
            return EasyReservation(max(end, now), free - needed)
    return None


def after_backfill(reserved: EasyReservation, now: int, request: int, amount: int) -> EasyReservation | None:
    """What is reserved once a job that fits now has gone before the head. None: it would make the head late.

    A job that is gone by the reserved start changes nothing; one that outlasts it uses up what is left over.
    """
    if now + request <= reserved.shadow:
        return reserved
    if amount <= reserved.extra:
        return EasyReservation(reserved.shadow, reserved.extra - amount)
    return None
