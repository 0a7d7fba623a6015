"""Queue orders for batch work: which job goes first, from what is known when it is submitted.

A key takes the moment of submission, the requested run time, the requested processors and now, times in whole
seconds, and gives a rank; the smallest goes first, equal ranks by submission. Keys in AGEING change with now: their
queue has to be ranked again for every pick. All others are ranked once, when a job is submitted.
"""

from collections.abc import Callable
from math import log2, log10

Rank = tuple[float, ...]
Key = Callable[[int, int, int, int], Rank]

STRETCH = 3  # `ours`; from 3 to 30 the means hardly differ, and 3 has the shortest longest waits: docs/guides/replay.md
SHORT_S = 10  # below this a run is too short for its slowdown to matter: the bound of "bounded slowdown"
_TINY = 1e-15  # as published for `uni`, so that one processor does not divide by zero
_F1_AGE = 870  # as published for `f1`


def fcfs(submitted: int, request: int, procs: int, now: int) -> Rank:
    """First come, first served. Fair and slow: one wide job makes all others wait."""
    return (submitted,)


def sjf(submitted: int, request: int, procs: int, now: int) -> Rank:
    """Shortest request first. Good mean waits; a long job may starve."""
    return (request, submitted)


def area(submitted: int, request: int, procs: int, now: int) -> Rank:
    """Smallest area (processors x time) first: most jobs done per processor-second. A large job may starve."""
    return (request * procs, submitted)


def f1(submitted: int, request: int, procs: int, now: int) -> Rank:
    """F1 of Carastan-Santos and de Camargo (SC'17), fitted by regression: size against age."""
    return (log10(max(request, 1)) * procs + _F1_AGE * log10(max(submitted, 1)),)


def wfp3(submitted: int, request: int, procs: int, now: int) -> Rank:
    """WFP3 of Tang et al. (2009): wait as a multiple of the request, cubed, wide jobs favoured."""
    return (-(((now - submitted) / max(request, 1)) ** 3) * procs,)


def uni(submitted: int, request: int, procs: int, now: int) -> Rank:
    """UNICEF of Tang et al. (2009): wait as a multiple of the request, narrow jobs favoured."""
    return (-(now - submitted + _TINY) / (log2(procs + _TINY) * max(request, 1)),)


def ours(submitted: int, request: int, procs: int, now: int) -> Rank:
    """Earliest due first: a job is due when three times its area, in seconds, has passed since it was submitted.

    Among jobs of about the same age the smallest area goes first, which is the best simple order we know of. Unlike
    that, no job starves: a job submitted after the due time of another is due later still and never goes before it, so
    only finitely many ever do. The rank is an integer that never changes: a queue keeps it in a heap."""
    return (submitted + STRETCH * procs * max(request, SHORT_S),)


KEYS: dict[str, Key] = {"fcfs": fcfs, "sjf": sjf, "f1": f1, "wfp3": wfp3, "uni": uni, "area": area, "ours": ours}
AGEING = frozenset({"wfp3", "uni"})
