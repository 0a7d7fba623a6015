"""Preemption: a higher priority, by a margin, may stop the smallest set of attempts on one node.

What is stopped waits again, with its own priority, and never stops whom it was stopped for. The room is kept for
whoever it was made for (see hold). A project within its quota may also take back what others borrowed.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from roost.core.placement.filters.gpu import devices_of, gpu_allows
from roost.core.placement.filters.ports import ports_of
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask, choose, without_affinity
from roost.core.placement.strategies import STRATEGIES
from roost.core.queue.backfill import order_of, reserved_earlier, unreserved_mask
from roost.core.queue.fair_share import borrowed, exceeds_quota, is_entitled, quota_excess
from roost.core.queue.gang import members
from roost.core.queue.prefill import prefill_chain
from roost.core.state.allocation import Allocation, allocation_of, make_allocation, selectors_of
from roost.core.state.fleet import Mask
from roost.core.state.outcome import Step
from roost.core.state.queue import EquivalenceClass, GangReservation, PendingHead
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.core.transitions import stop
from roost.model.reasons.attempts import Preempted
from roost.model.reasons.subjects import InstanceRef, ProjectRef
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Workload
from roost.model.states import ALLOCATED, InstanceState

EXACT_UNITS = 16  # up to so many candidates on a node, all sets of up to EXACT_SIZE are tried: 700 at most
EXACT_SIZE = 3
STOPPED_MAX = 100  # instances of a workload that are asked by whom they were stopped
NODES_MAX = 256  # looked at for one head; some 100 us each
MEMBERS_MAX = 64  # of a gang for which others are stopped; each may look at hundreds of nodes
GANG_NODES_MAX = 64
FIRST_FIT = "first_fit"  # where those go that fit anyway does not matter here


class PreemptionUnit(NamedTuple):
    """What is stopped together: one instance, or a whole gang; and what of it is on the node in question."""

    priority: int
    all_instances: tuple[Instance, ...]
    on_node: tuple[Instance, ...]


class PreemptionScope(NamedTuple):
    """What a workload may preempt: attempts with borrowed quota; never a workload that preempted it."""

    borrowed_attempts: set[int]
    protected: set[str]


def preempt(state: State, out: Step, line: EquivalenceClass, head: PendingHead, fits: Mask, now: int) -> bool:
    """Stop what has to go for the head of a line, if anything may."""
    key = head.key
    if key in state.pending_preemptions:
        return False
    reach = scope_of(state, head.workload)
    best: tuple[tuple[int, ...], str, tuple[PreemptionUnit, ...]] | None = None
    rows = np.flatnonzero(fits & state.fleet.open)[:NODES_MAX]
    # Room that cannot be reserved for the head goes back to the instances that were stopped, which are stopped again.
    reserved = reserved_earlier(state, line, head.workload)
    for name in [name for row in rows.tolist() if (name := state.fleet.names[row]) not in reserved]:
        units = preemptible_on(state, head.workload, name, reach)
        chosen = smallest(state, name, line.ask, units) if units else None
        if chosen and (best is None or (cost_of(chosen), name) < best[:2]):
            best = (cost_of(chosen), name, chosen)
    if best is None:
        return False
    _, node, victims = best
    for unit in victims:
        for victim in unit.all_instances:
            stop_for(state, out, victim, head.workload, key, now)
    state.pending_preemptions[key] = node
    return True


def could_preempt(state: State, winner: Workload) -> bool:
    """Whether there may be anything to stop for somebody: a quick look before a long one."""
    margin = state.settings.preempt_margin
    if margin and state.lowest_priority() + margin <= winner.policy.priority:
        return True
    return any(exceeds_quota(state, name) for name, project in state.projects.items() if project.borrow)


def stop_for(state: State, out: Step, victim: Instance, winner: Workload, key: str, now: int) -> None:
    """Stop an instance, and who stands behind it, for somebody."""
    loser = state.spec_of(victim)
    state.preemption_cycles += loser.key in preempted_for(state, winner)
    state.preemptions += 1
    priority, own_priority = winner.policy.priority, loser.policy.priority
    over_quota = ProjectRef(loser.project) if own_priority >= priority else None
    reason = Preempted(InstanceRef.of(key), priority, own_priority, over_quota)
    for instance in [*reversed(prefill_chain(state, victim)), victim]:  # the room is not for who stands behind
        if instance.state != InstanceState.STOPPING:
            instance.preempted_by = key
            stop(state, out, instance, reason, now, requeue=True)


def scope_of(state: State, winner: Workload) -> PreemptionScope:
    """What has to be known of a workload before it stops others."""
    return PreemptionScope(borrowed(state), preempted_for(state, winner))


def preempted_for(state: State, workload: Workload) -> set[str]:
    """The workloads for which something of a workload was stopped last."""
    found = set()
    for index in range(min(state.placed_count(workload), STOPPED_MAX)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.preempted_by:
            found.add(instance.preempted_by.rpartition(".")[0])
    return found


def preemptible_on(state: State, winner: Workload, node: str, reach: PreemptionScope) -> list[PreemptionUnit]:
    """What may be stopped on a node for somebody, the least important and the youngest first."""
    units: dict[str, PreemptionUnit] = {}
    for token in sorted(state.allocated[node], reverse=True):
        instance = state.allocated[node][token]
        workload = state.spec_of(instance)
        if (
            instance.prefilled_behind
            or instance.state == InstanceState.STOPPING
            or not may_preempt(state, winner, workload, instance, reach)
        ):
            continue
        if not workload.policy.gang:
            units[instance.key] = PreemptionUnit(workload.policy.priority, (instance,), (instance,))
        elif workload.policy.gang not in units:
            unit = _gang(state, winner, workload, node, reach)
            if unit is not None:
                units[workload.policy.gang] = unit
    return sorted(units.values(), key=lambda unit: (unit.priority, -max(one.token for one in unit.on_node)))


def may_preempt(state: State, winner: Workload, loser: Workload, instance: Instance, reach: PreemptionScope) -> bool:
    """Whether one may stop what runs of the other: it matters more by the margin, or wants back what was borrowed.

    Whoever would only borrow the room itself cannot take it from somebody who is entitled to it, and whoever was
    stopped for somebody does not stop that one: otherwise the two would stop each other in turn, one by its priority
    and the other by its quota.
    """
    margin = state.settings.preempt_margin
    if loser.key == winner.key or not loser.policy.preemptible or loser.key in reach.protected:
        return False
    entitled = is_entitled(state, winner.project, winner.policy.ask)
    if instance.token in reach.borrowed_attempts:
        wants_back = loser.project != winner.project and winner.project in state.projects and entitled
        return wants_back or bool(margin and winner.policy.priority >= loser.policy.priority + margin)
    return bool(margin and entitled and winner.policy.priority >= loser.policy.priority + margin)


def _gang(
    state: State, winner: Workload, workload: Workload, node: str, reach: PreemptionScope
) -> PreemptionUnit | None:
    """A gang goes whole: every member must be one that may be stopped."""
    all_of_it = []
    for member in members(state, workload.policy.gang):
        for instance in [one for one in instances_of(state, member) if one.state in ALLOCATED]:
            if instance.state == InstanceState.STOPPING or not may_preempt(state, winner, member, instance, reach):
                return None  # what stops is about to start again as it is
            all_of_it.append(instance)
    priority = max(state.spec_of(instance).policy.priority for instance in all_of_it)
    on_node = tuple(instance for instance in all_of_it if instance.node == node)
    return PreemptionUnit(priority, tuple(all_of_it), on_node)


def smallest(state: State, node: str, ask: Ask, units: list[PreemptionUnit]) -> tuple[PreemptionUnit, ...] | None:
    """The fewest units that make enough room: exactly for few, else the least important first without the needless."""
    if not _fits_without(state, node, ask, units):
        return None
    few = units[:EXACT_UNITS]
    for size in range(1, min(EXACT_SIZE, len(few)) + 1):
        found = [combination for combination in combinations(few, size) if _fits_without(state, node, ask, combination)]
        if found:
            return min(found, key=cost_of)
    chosen: list[PreemptionUnit] = []
    for unit in units:
        chosen.append(unit)
        if _fits_without(state, node, ask, chosen):
            break
    for unit in list(reversed(chosen)):
        rest = [other_unit for other_unit in chosen if other_unit is not unit]
        if _fits_without(state, node, ask, rest):
            chosen = rest
    return tuple(chosen)


def cost_of(units: tuple[PreemptionUnit, ...]) -> tuple[int, ...]:
    """Fewest first, then the least important, then the youngest."""
    count = sum(len(unit.all_instances) for unit in units)
    age = min(one.token for unit in units for one in unit.all_instances)
    return count, max(unit.priority for unit in units), sum(unit.priority for unit in units), -age


def _fits_without(
    state: State, node: str, ask: Ask, units: "tuple[PreemptionUnit, ...] | list[PreemptionUnit]"
) -> bool:
    """Whether an ask fits on a node once some of what runs there has gone, and what is going already has."""
    fleet, row = state.fleet, state.fleet.row(node)
    going = [
        instance
        for instance in state.allocated[node].values()
        if instance.state == InstanceState.STOPPING and not instance.prefilled_behind
    ]
    gone = [one for unit in units for one in unit.on_node] + going
    claims = [allocation_of(state.spec_of(instance), instance) for instance in gone]
    back: dict[str, int] = {}
    for claim in claims:
        for resource, amount in claim.resources:
            back[resource] = back.get(resource, 0) + amount
    if any(fleet.free(resource).item(row) + back.get(resource, 0) < amount for resource, amount in ask.resources):
        return False
    devices = fleet.devices[row].tolist()
    ports = dict(fleet.ports.get(node, {}))
    for claim in claims:
        for device in claim.devices:
            devices[device] += claim.device_milli
        for port in claim.ports:
            ports.pop(port, None)
    if sum(left >= ask.gpu_milli for left in devices) < ask.gpu_count:
        return False
    return not any(port in ports for port in ask.ports)


class _Trial:
    """What was put and taken away on trial; `undo` leaves nothing of it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._done: list[tuple[str, Allocation, int]] = []
        self.evicted: set[int] = set()
        self.victims: list[tuple[PendingHead, str, tuple[PreemptionUnit, ...]]] = []
        self.nodes: set[str] = set()

    def take(self, node: str, allocated: Allocation, sign: int = 1) -> None:
        self._state.fleet.take(node, allocated, sign, is_trial=True)
        self._done.append((node, allocated, sign))

    def undo(self) -> None:
        for node, allocation, sign in reversed(self._done):
            self._state.fleet.take(node, allocation, -sign, is_trial=True)


def preempt_gang(state: State, out: Step, line: EquivalenceClass, waiting: list[PendingHead], now: int) -> None:
    """Stop what has to go for all of a gang, if that is possible."""
    keys = [head.key for head in waiting]
    if not waiting or len(waiting) > MEMBERS_MAX or any(key in state.pending_preemptions for key in keys):
        return
    if not any(could_preempt(state, head.workload) for head in waiting):
        return
    if any(quota_excess(state, line.project, head.workload.policy.ask, len(waiting)) for head in waiting):
        return
    trial = _Trial(state)
    reaches: dict[str, PreemptionScope] = {head.workload.key: scope_of(state, head.workload) for head in waiting}
    enough = all(_place_member(state, line, head, trial, reaches, now) for head in waiting)
    trial.undo()
    if not enough:
        return
    for head, node, units in trial.victims:
        key = head.key
        state.pending_preemptions[key] = node
        for victim in [instance for unit in units for instance in unit.all_instances]:
            if victim.state != InstanceState.STOPPING:
                stop_for(state, out, victim, head.workload, key, now)
    order = min(order_of(head.workload) for head in waiting)
    state.gang_reservations[line] = GangReservation(tuple(sorted(trial.nodes)), line.isolated, now, order)


def _place_member(
    state: State,
    line: EquivalenceClass,
    head: PendingHead,
    trial: _Trial,
    reaches: dict[str, PreemptionScope],
    now: int,
) -> bool:
    """Put one of the gang where it fits, or where it would if somebody went."""
    fleet, workload, ask = state.fleet, head.workload, head.workload.policy.ask
    subjects = selectors_of(workload.project, workload.key, workload.policy.labels)
    allowed = unreserved_mask(state, line, workload, now)
    row = choose(fleet, state.score_caches, ask, STRATEGIES[FIRST_FIT], subjects, allowed=allowed).row
    if row < 0:
        fits = fits_when_empty(fleet, without_affinity(ask)) & fleet.open
        for mask in (allowed, affinity_mask(fleet, ask, subjects, fits)):
            fits = fits if mask is None else fits & mask
        row = _evict_smallest(
            state, head, [int(item) for item in np.flatnonzero(fits)[:GANG_NODES_MAX]], trial, reaches
        )
        if row < 0:
            return False
    name = fleet.names[row]
    devices = devices_of(fleet, ask, row) if ask.gpu_count and gpu_allows(fleet, ask, row) else ()
    ports = ports_of(fleet, ask, row) if ask.ports else ()
    trial.take(name, make_allocation(workload.project, workload.key, workload.policy, devices, ports))
    trial.nodes.add(name)
    return True


def _evict_smallest(
    state: State, head: PendingHead, rows: list[int], trial: _Trial, reaches: dict[str, PreemptionScope]
) -> int:
    """Take the smallest set away from the node on which it is smallest; the row of that node, or -1."""
    best: tuple[tuple[int, ...], int, tuple[PreemptionUnit, ...]] | None = None
    for row in rows:
        name = state.fleet.names[row]
        units = [
            unit
            for unit in preemptible_on(state, head.workload, name, reaches[head.workload.key])
            if not any(instance.token in trial.evicted for instance in unit.all_instances)
        ]
        chosen = smallest(state, name, head.workload.policy.ask, units) if units else None
        if chosen and (best is None or (cost_of(chosen), row) < best[:2]):
            best = (cost_of(chosen), row, chosen)
    if best is None:
        return -1
    _, row, units_gone = best
    for victim in [instance for unit in units_gone for instance in unit.all_instances]:
        trial.take(victim.node, allocation_of(state.spec_of(victim), victim), -1)
        trial.evicted.add(victim.token)
    trial.victims.append((head, state.fleet.names[row], units_gone))
    return row
