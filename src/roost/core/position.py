"""Where somebody stands in the queue: how many are before it, and who they are."""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from roost.core.charge import share_of, totals_of
from roost.core.order import rank_of
from roost.core.state import State
from roost.core.trial import Subject
from roost.model.workload import Workload

AHEAD_MAX = 10  # named; how many there are is told of all

Order = tuple[int, int, int, int, int]  # priority, share of the project, latest start, age, index


class Position(NamedTuple):
    """1 is the next one. `ahead` are the first of those before it."""

    number: int
    ahead: tuple[str, ...]


def position(state: State, subject: Subject) -> Position:
    """The place of an instance among all that wait, as things stand: shares change with every start."""
    totals = totals_of(state.fleet)
    shares: dict[str, int] = {}
    own = _order(state, subject.workload, subject.number, shares, totals)
    before: list[tuple[Order, str]] = []
    count = 0
    for workload, first, number in _waiting(state):
        order = _order(state, workload, first, shares, totals)
        if order >= own:
            continue
        if workload is subject.workload:
            number = min(number, subject.number - first)
        count += number
        shown = range(first, first + min(number, AHEAD_MAX))
        before += [((*order[:4], index), f"{workload.key}.{index}") for index in shown]
    return Position(count + 1, tuple(key for _, key in nsmallest(AHEAD_MAX, before)))


def _waiting(state: State) -> Iterator[tuple[Workload, int, int]]:
    """Who waits in lines: a workload, an index, and how many from there on. Who comes back may stand there twice."""
    seen: set[tuple[str, int]] = set()
    for line in state.queue.lines.values():
        for workload in line.fresh:
            first = state.first_fresh(workload)
            if first >= 0:
                yield workload, first, workload.count - first
        for entry in line.again:
            index, key = entry[2:4]
            if (key, index) not in seen and state.waits_again(entry):
                seen.add((key, index))
                yield state.spec_of(state.instances[f"{key}.{index}"]), index, 1


def _order(state: State, workload: Workload, index: int, shares: dict[str, int], totals: dict[str, int]) -> Order:
    project = workload.project
    if project not in shares:
        shares[project] = share_of(state, project, totals)
    return (-workload.policy.priority, shares[project], *rank_of(workload), index)
