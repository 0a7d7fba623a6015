"""Preemption: a higher priority, by a margin, may stop the smallest set of attempts on one node.

Where stopping attempts release enough, the head waits for them and preempts none. A preempted instance is requeued with
its own priority, and never preempts its preemptor. What it releases is reserved for the preemptor (see backfill). A
project within its quota may also reclaim what others borrowed.
"""

from collections.abc import Container
from typing import NamedTuple

import numpy as np

from roost.core.placement.filters.gpu import devices_of, gpu_allows
from roost.core.placement.filters.ports import ports_of
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask, choose, without_affinity
from roost.core.placement.strategies import STRATEGIES
from roost.core.queue.backfill import order_of, reserved_earlier, unreserved_mask
from roost.core.queue.eviction import ATTEMPTS_PER_UNIT, Eviction, PreemptionUnit, cheapest_eviction, emptied_soon
from roost.core.queue.fair_share import borrowed, exceeds_quota, is_entitled, quota_excess
from roost.core.queue.gang import members
from roost.core.queue.prefill import prefill_chain
from roost.core.state.allocation import Allocation, allocation_of, make_allocation, selectors_of
from roost.core.state.fleet import Mask
from roost.core.state.outcome import Paced, Step
from roost.core.state.queue import EquivalenceClass, GangReservation, PendingHead
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.core.transitions import stop
from roost.model.reasons.attempts import Preempted
from roost.model.reasons.subjects import InstanceRef, ProjectRef
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, InstanceState

STOPPED_MAX = 100  # instances of a workload whose preemptors are looked up
NODES_MAX = 256  # looked at for one head; some 100 us each
MEMBERS_MAX = 64  # of a gang that preempts; each may look at hundreds of nodes
GANG_NODES_MAX = 64
STOP_UNITS = 2  # of work


class PreemptionScope(NamedTuple):
    """What a workload may preempt: attempts with borrowed quota; never a workload that preempted it."""

    borrowed_attempts: set[int]
    protected: set[str]
    is_entitled: bool  # to one more within its quota
    verdicts: dict[tuple[str, int, bool], tuple[bool, int, str]]  # of `may_preempt`, by workload, version and borrowed


def preempt(state: State, out: Step, line: EquivalenceClass, head: PendingHead, fits: Mask, now: int) -> Paced[bool]:
    """Stop the smallest set of attempts for the head of a class, if there is one and it is needed.

    Returns True if a search ran.
    """
    rows = np.flatnonzero(fits & state.fleet.open)[:NODES_MAX]
    # A node that cannot be reserved for the head would go back to the stopped instances, which would be stopped again.
    reserved = reserved_earlier(state, line, head.workload)
    names = [name for row in rows.tolist() if (name := state.fleet.names[row]) not in reserved]
    existing = state.backfill_reservations.get(line)  # its node is first: a head does not go from node to node
    names.sort(key=lambda name: existing is None or name != existing.node)
    awaited = emptied_soon(state, line.ask, names)
    if awaited is not None:
        state.pending_preemptions[head.key] = awaited
        return False
    out.work += sum(len(state.allocated[name]) for name in names)  # 8 us for each attempt that is looked at
    best = yield from _cheapest(state, head.workload, names, scope_of(state, head.workload))
    if best is not None:
        for unit in best.units:
            for victim in unit.all_instances:
                stop_for(state, out, victim, head.workload, head.key, now)
        state.pending_preemptions[head.key] = best.node
    return True


def _cheapest(
    state: State, winner: Workload, nodes: list[str], scope: PreemptionScope, evicted: Container[int] = ()
) -> Paced[Eviction | None]:
    """The node on which a preemption costs least, without units of which something is evicted already."""
    candidates: dict[str, list[PreemptionUnit]] = {}
    for name in nodes:
        units = [
            unit
            for unit in preemptible_on(state, winner, name, scope)
            if not any(instance.token in evicted for instance in unit.all_instances)
        ]
        if units:
            candidates[name] = units
        yield len(state.allocated[name]) // ATTEMPTS_PER_UNIT
    return (yield from cheapest_eviction(state, winner.policy.ask, candidates))


def could_preempt(state: State, winner: Workload) -> bool:
    """Whether there may be anything to preempt: a cheap check before a search."""
    margin = state.settings.preempt_margin
    if margin and state.priorities and min(state.priorities) + margin <= winner.policy.priority:
        return True
    return any(exceeds_quota(state, name) for name, project in state.projects.items() if project.borrow)


def stop_for(state: State, out: Step, victim: Instance, winner: Workload, key: str, now: int) -> None:
    loser = state.spec_of(victim)
    state.preemption_cycles += loser.key in preempted_for(state, winner)
    state.preemptions += 1
    priority, own_priority = winner.policy.priority, loser.policy.priority
    over_quota = ProjectRef(loser.project) if own_priority >= priority else None
    reason = Preempted(InstanceRef.of(key), priority, own_priority, over_quota)
    for instance in [*reversed(prefill_chain(state, victim)), victim]:  # the allocation is not for its successor
        if instance.state != InstanceState.STOPPING:
            instance.preempted_by = key
            stop(state, out, instance, reason, now, requeue=True)


def scope_of(state: State, winner: Workload) -> PreemptionScope:
    entitled = is_entitled(state, winner.project, winner.policy.ask)
    return PreemptionScope(borrowed(state), preempted_for(state, winner), entitled, {})


def preempted_for(state: State, workload: Workload) -> set[str]:
    found = set()
    for index in range(min(state.placed_count(workload), STOPPED_MAX)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.preempted_by:
            found.add(instance.preempted_by.rpartition(".")[0])
    return found


def preemptible_on(state: State, winner: Workload, node: str, reach: PreemptionScope) -> list[PreemptionUnit]:
    """What a workload may preempt on a node, the least important and the youngest first."""
    found: list[tuple[int, int, PreemptionUnit]] = []
    gangs: set[str] = set()
    for token, instance in state.allocated[node].items():
        if instance.prefilled_behind or instance.state == InstanceState.STOPPING:
            continue
        key = instance.workload, instance.version, token in reach.borrowed_attempts
        verdict = reach.verdicts.get(key)
        if verdict is None:
            workload = state.spec_of(instance)
            is_allowed = may_preempt(state, winner, workload, instance, reach)
            verdict = reach.verdicts[key] = (is_allowed, workload.policy.priority, workload.policy.gang)
        is_allowed, priority, gang = verdict
        if is_allowed and not gang:
            found.append((priority, -token, PreemptionUnit(priority, (instance,), (instance,))))
        elif is_allowed and gang not in gangs:
            gangs.add(gang)
            unit = _gang(state, winner, state.spec_of(instance), node, reach)
            if unit is not None:
                found.append((unit.priority, -max(one.token for one in unit.on_node), unit))
    return [unit for _, _, unit in sorted(found)]


def may_preempt(state: State, winner: Workload, loser: Workload, instance: Instance, reach: PreemptionScope) -> bool:
    """Whether a workload may preempt an instance: by a higher priority, or to reclaim what was borrowed.

    A workload that would itself borrow cannot preempt one within its quota, and no workload preempts its preemptor:
    otherwise the two would preempt each other in turn, one by its priority and the other by its quota.
    """
    margin = state.settings.preempt_margin
    if loser.key == winner.key or not loser.policy.preemptible or loser.key in reach.protected:
        return False
    entitled = reach.is_entitled
    if instance.token in reach.borrowed_attempts:
        wants_back = loser.project != winner.project and winner.project in state.projects and entitled
        return wants_back or bool(margin and winner.policy.priority >= loser.policy.priority + margin)
    return bool(margin and entitled and winner.policy.priority >= loser.policy.priority + margin)


def _gang(
    state: State, winner: Workload, workload: Workload, node: str, reach: PreemptionScope
) -> PreemptionUnit | None:
    """A gang is preempted as a whole: every member must be preemptible."""
    all_of_it = []
    for member in members(state, workload.policy.gang):
        for instance in [one for one in instances_of(state, member) if one.state in ALLOCATED]:
            if instance.state == InstanceState.STOPPING or not may_preempt(state, winner, member, instance, reach):
                return None  # a gang that is stopping starts again anyway
            all_of_it.append(instance)
    priority = max(state.spec_of(instance).policy.priority for instance in all_of_it)
    on_node = tuple(instance for instance in all_of_it if instance.node == node)
    return PreemptionUnit(priority, tuple(all_of_it), on_node)


class _Trial:
    """Allocations made and released on trial; `undo` reverts all of them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._done: list[tuple[str, Allocation, int]] = []
        self.evicted: set[int] = set()  # never iterated
        self.victims: list[tuple[PendingHead, Eviction]] = []
        self.nodes: set[str] = set()

    def take(self, node: str, allocated: Allocation, sign: int = 1) -> None:
        self._state.fleet.take(node, allocated, sign, is_trial=True)
        self._done.append((node, allocated, sign))

    def evict(self, head: PendingHead, eviction: Eviction) -> None:
        for victim in [instance for unit in eviction.units for instance in unit.all_instances]:
            self.take(victim.node, allocation_of(self._state.spec_of(victim), victim), -1)
            self.evicted.add(victim.token)
        self.victims.append((head, eviction))

    def undo(self) -> None:
        for node, allocation, sign in reversed(self._done):
            self._state.fleet.take(node, allocation, -sign, is_trial=True)


def preempt_gang(state: State, out: Step, line: EquivalenceClass, waiting: list[PendingHead], now: int) -> Paced[None]:
    """Stop the attempts that keep a gang from starting, if all of it fits then."""
    keys = [head.key for head in waiting]
    if not waiting or len(waiting) > MEMBERS_MAX or any(key in state.pending_preemptions for key in keys):
        return
    if not any(could_preempt(state, head.workload) for head in waiting):
        return
    if any(quota_excess(state, line.project, head.workload.policy.ask, len(waiting)) for head in waiting):
        return
    trial = _Trial(state)
    reaches: dict[str, PreemptionScope] = {head.workload.key: scope_of(state, head.workload) for head in waiting}
    is_enough = True
    for head in waiting:
        is_enough = yield from _place_member(state, line, head, trial, reaches, now)
        if not is_enough:
            break
    trial.undo()
    if not is_enough:
        return
    for head, eviction in trial.victims:
        state.pending_preemptions[head.key] = eviction.node
        for victim in [instance for unit in eviction.units for instance in unit.all_instances]:
            if victim.state != InstanceState.STOPPING:
                stop_for(state, out, victim, head.workload, head.key, now)
                yield STOP_UNITS
    order = min(order_of(head.workload) for head in waiting)
    state.gang_reservations[line] = GangReservation(tuple(sorted(trial.nodes)), line.isolated, now, order)


def _place_member(
    state: State,
    line: EquivalenceClass,
    head: PendingHead,
    trial: _Trial,
    reaches: dict[str, PreemptionScope],
    now: int,
) -> Paced[bool]:
    fleet, workload, ask = state.fleet, head.workload, head.workload.policy.ask
    subjects = selectors_of(workload.project, workload.key, workload.policy.labels)
    allowed = unreserved_mask(state, line, workload, now)
    row = choose(fleet, state.score_caches, ask, STRATEGIES["first_fit"], subjects, allowed=allowed).row
    if row < 0:
        fits = fits_when_empty(fleet, without_affinity(ask)) & fleet.open
        for mask in (allowed, affinity_mask(fleet, ask, subjects, fits)):
            fits = fits if mask is None else fits & mask
        names = [fleet.names[row] for row in np.flatnonzero(fits)[:GANG_NODES_MAX].tolist()]
        emptied = emptied_soon(state, ask, names)
        if emptied is None:
            eviction = yield from _cheapest(state, workload, names, reaches[workload.key], trial.evicted)
            if eviction is None:
                return False
            trial.evict(head, eviction)
            emptied = eviction.node
        row = fleet.row(emptied)
    name = fleet.names[row]
    devices = devices_of(fleet, ask, row) if gpu_allows(fleet, ask, row) else ()
    ports = ports_of(fleet, ask, row)
    trial.take(name, make_allocation(workload.project, workload.key, workload.policy, devices, ports))
    trial.nodes.add(name)
    return True
