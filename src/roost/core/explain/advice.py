"""Advice: the long answer to `why`. For a pending instance: verdict, suggestions, queue position, start estimate."""

from collections.abc import Iterator
from heapq import nsmallest

import msgspec

from roost.core.explain.notes import notes_on
from roost.core.explain.relaxations import Requirement, unsat_core
from roost.core.explain.start_estimate import Estimate, estimate
from roost.core.explain.suggestions import Suggestion, suggestions
from roost.core.explain.trial import Subject, subject_of
from roost.core.explain.why import Why, why
from roost.core.placement.filters.location import open_to
from roost.core.placement.score_cache import fits_when_empty
from roost.core.queue.fair_share import share_of, totals_of
from roost.core.state.queue import rank_of
from roost.core.state.state import State
from roost.core.watch import coming_ticks
from roost.model.keys import instance_key, split_instance_key
from roost.model.reasons.reason import Reason
from roost.model.records.workload import Workload
from roost.model.states import WorkloadState

LISTED_MAX = 10  # listed; the rest is counted
HELPLESS = ("backoff", "placeable", "maintenance", "awaiting_agents")  # nothing has to be changed: it starts by itself
Order = tuple[int, int, int, int, int]  # priority, share of the project, latest start, age, index


def position(state: State, subject: Subject) -> tuple[int, tuple[str, ...]]:
    """The place of an instance in the queue (1 is the next one), and the first of those before it."""
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
        shown = range(first, first + min(number, LISTED_MAX))
        before += [((*order[:4], index), instance_key(workload.key, index)) for index in shown]
    return count + 1, tuple(key for _, key in nsmallest(LISTED_MAX, before))


def _waiting(state: State) -> Iterator[tuple[Workload, int, int]]:
    seen: set[tuple[str, int]] = set()
    for line in state.queue.classes.values():
        for workload in line.unstarted:
            first = state.first_unstarted(workload)
            if first >= 0:
                yield workload, first, workload.count - first
        for entry in line.requeued:
            index, key = entry[2:4]
            if (key, index) not in seen and state.is_requeued(entry):
                seen.add((key, index))
                yield state.spec_of(state.instances[instance_key(key, index)]), index, 1


def _order(state: State, workload: Workload, index: int, shares: dict[str, int], totals: dict[str, int]) -> Order:
    project = workload.project
    if project not in shares:
        shares[project] = share_of(state, project, totals)
    return (-workload.policy.priority, shares[project], *rank_of(workload), index)


class Advice(msgspec.Struct, frozen=True, omit_defaults=True):
    verdict: str = ""  # wait | never
    suggestions: tuple[Suggestion, ...] = ()
    contradiction: tuple[Requirement, ...] = ()
    position: int = 0  # 1 is the next one
    queued_before: tuple[str, ...] = ()  # the first of those before it
    estimate: Estimate | None = None
    notes: tuple[Reason, ...] = ()


def advise(state: State, workload_key: str, index: int | None = None) -> tuple[Why, Advice]:
    answer, advice = _advise(state, workload_key, index)
    return answer, msgspec.structs.replace(advice, notes=notes_on(state, state.workloads[workload_key]))


def _advise(state: State, workload_key: str, index: int | None) -> tuple[Why, Advice]:
    answer = why(state, workload_key, index)
    if answer.state == WorkloadState.SCHEDULED:
        ticks = coming_ticks(state, state.workloads[workload_key], 1, state.now_ms)
        when = Estimate("its next tick", ticks[0]) if ticks else Estimate("never again: its schedule has no next tick")
        return answer, Advice("wait" if ticks else "never", estimate=when)
    if answer.state != "queued":
        return answer, Advice()
    if answer.code in ("after", "home"):  # its place in the queue is still to be found, or is on one node
        return answer, Advice("wait")
    workload = state.workloads[workload_key]
    own = Subject(workload, split_instance_key(answer.instance)[1])
    first = subject_of(state, workload, own.number)
    place = position(state, own)
    if _never(state, first) or (workload.policy.gang and answer.code == "unsatisfiable"):
        never = Estimate("never as things are: this fleet could not take it")
        return answer, Advice("never", suggestions(state, first), unsat_core(state.fleet, workload), *place, never)
    helpful = suggestions(state, first) if answer.code not in HELPLESS else ()
    return answer, Advice("wait", helpful, (), *place, estimate(state, own))


def _never(state: State, subject: Subject) -> bool:
    """Whether no known node could take it, even if it were empty and in service."""
    fits = fits_when_empty(state.fleet, subject.workload.policy.ask)
    own = open_to(state.fleet, subject.workload.project, subject.workload.policy.ask)
    return bool(len(state.fleet)) and not bool((fits if own is None else fits & own).any())
