"""Suggestions: the smallest changes that would place an instance now. Each was tried with the real core on a copy."""

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from roost.core.explain.blockers import eligible_rows
from roost.core.explain.eviction_sets import smallest_eviction_sets
from roost.core.explain.relaxations import devices_amount, relaxations, smaller_amounts, with_amount
from roost.core.explain.trial import Subject, TrialChange, placed_by
from roost.core.placement.filters import DYNAMIC, STATIC
from roost.core.placement.filters.resources import format_amount
from roost.core.placement.score_cache import fits_when_empty
from roost.core.queue.fair_share import quota_excess
from roost.core.state.allocation import selectors_of
from roost.core.state.fleet import GPU, Fleet, Ints, Mask
from roost.core.state.state import State
from roost.model.events import NodeConnected, ReportsReceived, SetProject, Uncordon
from roost.model.limits import DEFAULT_POOL
from roost.model.protocol import Hello, Report
from roost.model.reasons.reason import Text, joined
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.node import Facts
from roost.model.records.project import INSTANCES
from roost.model.records.workload import Ask
from roost.model.states import AttemptState, EndCause

TRIALS_MAX = 32  # per question: some milliseconds each in a fleet of a thousand nodes
PER_KIND_MAX = 3  # ways of one kind that are tried before it is given up
AMOUNTS_MAX = 16  # smaller amounts looked at per resource; without affinity rules the first one is enough
PLAIN_RULE = re.compile(
    r"(?P<name>labels\.\w+|arch|zone|rack|region|pool) *== *(?P<quote>['\"])(?P<value>[^'\"\\]*)(?P=quote)"
)
NAME = "one-more-node"  # no agent of this name may be connected
PLAIN_FACTS = Facts({})
ALL_RESOURCES = "resources"  # the path of a change of several resources


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str  # less | rule | end | node | uncordon | quota
    message: str | Text
    node: str = ""
    path: str = ""  # where it stands in the document
    amounts: dict[str, int] = {}  # less: what to ask for; node: what it has to have; quota: what it has to be
    instances: tuple[str, ...] = ()  # end: who has to
    facts: dict[str, str] = {}  # node: what it has to be besides, as far as that matters: pool, zone, labels.NAME ...


Candidate = tuple[TrialChange, Suggestion]  # a change that may help, and what it would be called


def suggestions(state: State, subject: Subject) -> tuple[Suggestion, ...]:
    """What would help at once, the least invasive first. Every one was tried; what did not help is left out."""
    ways = [_less, _quota, _without_rules, _uncordoned, _ended, _another_node]
    found: list[Suggestion] = []
    left = TRIALS_MAX
    for way in ways:
        for change, suggestion in way(state, subject):
            if not left:
                return tuple(found)
            left -= 1
            node = placed_by(state, subject, change)
            if node:
                found.append(msgspec.structs.replace(suggestion, node=node))
                if suggestion.kind in ("end", "node") or suggestion.path == ALL_RESOURCES:  # one of these is enough
                    break
    return tuple(found)


def _less(state: State, subject: Subject) -> Iterator[Candidate]:
    """Less of one resource; of several together only where no single one is enough."""
    ask = subject.workload.policy.ask
    over = quota_excess(state, subject.workload.project, ask)
    single = False
    for resource, asked in ask.resources:
        amounts = _enough(state, subject, resource)
        if over and not set(over) - {resource}:
            amounts = [item for item in [min([asked - over[resource], *amounts[:1]])] if item > 0]
        for amount in amounts:
            single = True
            message = f"ask for {format_amount(resource, amount)} instead of {format_amount(resource, asked)}"
            change = TrialChange(with_amount(ask, resource, amount))
            yield change, Suggestion("less", message, path=f"resources.{resource}", amounts={resource: amount})
    if not single and not over:
        yield from _less_of_several(state, subject)


def _enough(state: State, subject: Subject, resource: str) -> list[int]:
    """The largest amount of a resource with which every filter says yes somewhere; nothing if it is not about it."""
    fleet, ask = state.fleet, subject.workload.policy.ask
    names = _subjects(subject)
    rest = with_amount(ask, resource, 0)
    rows = np.flatnonzero(_alone(fleet, rest))
    if bool(eligible_rows(fleet, ask, names).any()):
        return []
    for amount in smaller_amounts(fleet, ask, resource, rows)[:AMOUNTS_MAX]:
        if bool(eligible_rows(fleet, with_amount(ask, resource, amount), names).any()):
            return [amount]
    return []


def _alone(fleet: Fleet, ask: Ask) -> Mask:
    result = fits_when_empty(fleet, ask)
    for node_filter in DYNAMIC:
        result = result & node_filter.mask(fleet, ask)
    return result


def _less_of_several(state: State, subject: Subject) -> Iterator[Candidate]:
    """On the node that lacks least in all: as much of everything as it has left."""
    fleet, ask = state.fleet, subject.workload.policy.ask
    bare = ask
    for resource, _ in ask.resources:
        bare = with_amount(bare, resource, 0)
    rows = np.flatnonzero(_alone(fleet, bare))
    if not len(rows) or bool(eligible_rows(fleet, ask, _subjects(subject)).any()):
        return
    free = {resource: _has(fleet, ask, resource, rows) for resource, _ in ask.resources}
    some = np.logical_and.reduce([amounts > 0 for amounts in free.values()]) if free else np.zeros(len(rows), np.bool_)
    lacking = sum(
        (np.maximum(asked - free[resource], 0) * 1_000 // asked for resource, asked in ask.resources), start=0
    )
    order = [item for item in np.argsort(lacking, kind="stable").tolist() if some[item]]
    for position in order[:PER_KIND_MAX]:
        changed = ask
        amounts = [
            (resource, int(free[resource][position]))
            for resource, asked in ask.resources
            if free[resource][position] < asked
        ]
        if not amounts:
            continue  # it is not about room there
        for resource, amount in amounts:
            changed = with_amount(changed, resource, amount)
        message = "ask for " + ", ".join(format_amount(*amount) for amount in amounts)
        yield TrialChange(changed), Suggestion("less", message, path=ALL_RESOURCES, amounts=dict(amounts))


def _has(fleet: Fleet, ask: Ask, resource: str, rows: Ints) -> Ints:
    if resource != "gpu":
        return np.maximum(fleet.free(resource)[rows], 0)
    most = dict(ask.resources)["gpu"]
    return np.array([devices_amount(item, most) for item in fleet.devices[rows].tolist()], np.int64)


def _without_rules(state: State, subject: Subject) -> Iterator[Candidate]:
    fleet, names = state.fleet, _subjects(subject)
    for path, message, ask in relaxations(fleet, subject.workload):
        if bool(eligible_rows(fleet, ask, names).any()):
            yield TrialChange(ask), Suggestion("rule", message, path=path)


def _uncordoned(state: State, subject: Subject) -> Iterator[Candidate]:
    fleet = state.fleet
    fits = fits_when_empty(fleet, subject.workload.policy.ask)
    for row in np.flatnonzero(fits & fleet.online & ~fleet.open).tolist()[:PER_KIND_MAX]:
        name = fleet.names[row]
        yield TrialChange(events=(Uncordon(0, name),)), Suggestion("uncordon", f"put {name} back into service")


def _ended(state: State, subject: Subject) -> Iterator[Candidate]:
    if bool(eligible_rows(state.fleet, subject.workload.policy.ask, _subjects(subject)).any()):
        return
    for node, instances in smallest_eviction_sets(state, subject.workload)[:PER_KIND_MAX]:
        reports = tuple(
            Report(instance.token, AttemptState.ENDED, cause=EndCause.EXITED, code=0) for instance in instances
        )
        event = ReportsReceived(node, state.nodes[node].session, 0, reports)
        keys = tuple(sorted(instance.key for instance in instances))
        ends: list[Text] = [(InstanceRef.of(key),) for key in keys]
        message: Text = ("the end of ", *joined(", ", ends), f" on {node}")
        yield TrialChange(events=(event,)), Suggestion("end", message, instances=keys)


def _another_node(state: State, subject: Subject) -> Iterator[Candidate]:
    ask = subject.workload.policy.ask
    if NAME in state.nodes:
        return
    size = dict(ask.resources)
    if ask.gpu_count:
        size["gpu"] = ask.gpu_count * GPU
    for facts in _kinds(state.fleet, ask):
        hello = Hello(NAME, NAME, msgspec.structs.replace(facts, resources=size, taints=()), 0, ())
        needs = ", ".join(format_amount(*item) for item in sorted(size.items())) or "any size"
        text = _distinguishing(facts)
        besides = f" and {', '.join(f'{name} {value}' for name, value in text)}" if text else ""
        message = f"one more node with {needs}{besides}"
        suggestion = Suggestion("node", message, amounts=dict(sorted(size.items())), facts=dict(text))
        yield TrialChange(events=(NodeConnected(0, hello),)), suggestion


def _distinguishing(facts: Facts) -> tuple[tuple[str, str], ...]:
    names = ("pool", "region", "zone", "rack", "arch", "gpu_model")
    report = [(name, getattr(facts, name)) for name in names if getattr(facts, name) != getattr(PLAIN_FACTS, name)]
    report += [(f"labels.{name}", value) for name, value in sorted(facts.labels.items())]
    return (*report, *(("driver", driver) for driver in facts.drivers if driver not in PLAIN_FACTS.drivers))


def _kinds(fleet: Fleet, ask: Ask) -> list[Facts]:
    """What such a node could be: one with just what is asked for, else one like a node that fits but for its size."""
    pool = ask.pools[0] if ask.pools else DEFAULT_POOL
    region = ask.regions[0] if ask.regions else ""
    model = ask.gpu_models[0] if ask.gpu_models else ""
    report = _plain_facts(ask)
    labels = {name.removeprefix("labels."): value for name, value in report.items() if name.startswith("labels.")}
    places = {name: value for name, value in report.items() if not name.startswith("labels.")}
    plain = Facts({}, labels, pool=pool, region=region, gpu_model=model, drivers=(ask.driver,))
    kinds = [msgspec.structs.replace(plain, **places)]
    fits = np.ones(len(fleet), np.bool_)
    for node_filter in STATIC:
        mask = node_filter.mask(fleet, ask) if node_filter.name not in ("capacity", "taints") else None
        fits = fits if mask is None else fits & mask
    alike = {(facts.zone, facts.rack, facts.region, facts.pool): facts
             for facts in (fleet.facts[row] for row in reversed(np.flatnonzero(fits).tolist()))}  # fmt: skip
    return [*kinds, *list(reversed(alike.values()))[:PER_KIND_MAX]]


def _plain_facts(ask: Ask) -> dict[str, str]:
    """What rules of the plainest kind say a node has to be: labels.disk == 'nvme', arch == 'arm64'."""
    found = (PLAIN_RULE.fullmatch(rule.strip()) for rule in ask.require)
    return {match["name"]: match["value"] for match in found if match is not None}


def _quota(state: State, subject: Subject) -> Iterator[Candidate]:
    over = quota_excess(state, subject.workload.project, subject.workload.policy.ask)
    project = state.projects.get(subject.workload.project)
    if not over or project is None:
        return
    quota = {name: project.quota[name] + amount for name, amount in over.items()}
    event = SetProject(0, msgspec.structs.replace(project, quota=project.quota | quota))
    report = ", ".join(
        f"{amount:,} instances" if name == INSTANCES else format_amount(name, amount) for name, amount in quota.items()
    )
    message = f"a quota of {report} for project {project.name}"
    yield TrialChange(events=(event,)), Suggestion("quota", message, amounts=dict(sorted(quota.items())))


def _subjects(subject: Subject) -> tuple[str, ...]:
    workload = subject.workload
    return selectors_of(workload.project, workload.key, workload.policy.labels)
