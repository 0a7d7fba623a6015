"""Advice: the long answer to `why`. For what waits: whether it can ever run, what would help, its place, and when."""

import msgspec

from roost.core.contradict import Need, contradiction
from roost.core.estimate import Estimate, estimate
from roost.core.explain import Why, why
from roost.core.filters.pool import open_to
from roost.core.position import position
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.core.suggest import Suggestion, suggestions
from roost.core.trial import Subject, subject_of

HELPLESS = ("backoff", "placeable", "maintenance")  # nothing has to be changed: it starts by itself


class Advice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be said of an instance that waits beyond its blockers."""

    verdict: str = ""  # wait | never
    suggestions: tuple[Suggestion, ...] = ()
    contradiction: tuple[Need, ...] = ()
    position: int = 0  # 1 is the next one
    ahead: tuple[str, ...] = ()  # the first of those before it
    estimate: Estimate | None = None


def advise(state: State, workload_key: str, index: int | None = None) -> tuple[Why, Advice]:
    """Why an instance is where it is; and if it waits, everything that can be said of that."""
    told = why(state, workload_key, index)
    if told.state != "queued":
        return told, Advice()
    if told.code in ("after", "schedule"):  # its place in the queue is still to be found
        return told, Advice("wait")
    workload = state.workloads[workload_key]
    own = Subject(workload, int(told.instance.rpartition(".")[2]))
    first = subject_of(state, workload, own.number)
    place = position(state, own)
    if _never(state, first) or (workload.policy.gang and told.code == "unsatisfiable"):
        return told, Advice(
            "never", suggestions(state, first), contradiction(state.fleet, workload), place.number, place.ahead,
            Estimate("never as things are: this fleet could not take it"),
        )  # fmt: skip
    helpful = suggestions(state, first) if told.code not in HELPLESS else ()
    return told, Advice("wait", helpful, (), place.number, place.ahead, estimate(state, own))


def _never(state: State, subject: Subject) -> bool:
    """Whether no node that is known could take it, even if it were empty and in service."""
    fits = could_fit(state.fleet, subject.workload.policy.ask)
    own = open_to(state.fleet, subject.workload.project)
    return bool(len(state.fleet)) and not bool((fits if own is None else fits & own).any())
