"""Preemption: whoever matters more by a margin may stop the smallest set of what runs on one node.

What is stopped waits again, with its own priority, and never stops whom it was stopped for. The room is kept for
whoever it was made for (see hold). A project within its quota may also take back what others borrowed.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from roost.core.ahead import chain_of
from roost.core.charge import beyond, borrowed, is_entitled
from roost.core.claim import claim_of
from roost.core.effects import Step
from roost.core.fleet import Mask
from roost.core.gang import members
from roost.core.move import stop
from roost.core.order import Line, Waiting
from roost.core.state import State
from roost.model.instance import Instance
from roost.model.states import HOLDING
from roost.model.workload import Ask, Workload

EXACT_UNITS = 16  # up to so many candidates on a node, all sets of up to EXACT_SIZE are tried: 700 at most
EXACT_SIZE = 3
STOPPED_MAX = 100  # instances of a workload that are asked by whom they were stopped
NODES_MAX = 256  # looked at for one head; some 100 us each


class Unit(NamedTuple):
    """What is stopped together: one instance, or a whole gang; and what of it is on the node in question."""

    priority: int
    everywhere: tuple[Instance, ...]
    here: tuple[Instance, ...]


class Reach(NamedTuple):
    """Whom one may stop: attempts that hold what was borrowed, and workloads it was stopped for and does not stop."""

    lent: set[int]
    shy: set[str]


def preempt(state: State, out: Step, line: Line, head: Waiting, fits: Mask, now: int) -> bool:
    """Stop what has to go for the head of a line, if anything may."""
    key = f"{head.workload.key}.{head.number}"
    if key in state.making_room:
        return False
    reach = reach_of(state, head.workload)
    best: tuple[tuple[int, ...], str, tuple[Unit, ...]] | None = None
    rows = np.flatnonzero(fits & state.fleet.open)[:NODES_MAX]
    for name in [state.fleet.names[row] for row in rows.tolist()]:
        units = units_on(state, head.workload, name, reach)
        chosen = smallest(state, name, line.ask, units) if units else None
        if chosen and (best is None or (cost_of(chosen), name) < best[:2]):
            best = (cost_of(chosen), name, chosen)
    if best is None:
        return False
    _, node, victims = best
    for unit in victims:
        for victim in unit.everywhere:
            stop_for(state, out, victim, head.workload, key, now)
    state.making_room[key] = node
    return True


def could_preempt(state: State, winner: Workload) -> bool:
    """Whether there may be anything to stop for somebody: a quick look before a long one."""
    margin = state.settings.preempt_margin
    if margin and state.lowest_priority() + margin <= winner.policy.priority:
        return True
    return any(beyond(state, name) for name, each in state.projects.items() if each.borrow)


def stop_for(state: State, out: Step, victim: Instance, winner: Workload, key: str, now: int) -> None:
    """Stop an instance, and who stands behind it, for somebody."""
    loser = state.spec_of(victim)
    state.cycles += loser.key in stopped_for(state, winner)
    state.preempted += 1
    why = f"priority {winner.policy.priority} over {loser.policy.priority}"
    if loser.policy.priority >= winner.policy.priority:
        why = f"project {loser.project} is beyond its quota"
    for each in [*reversed(chain_of(state, victim)), victim]:  # the room is not for who stands behind
        if each.state != "stopping":
            each.preempted_by = key
            stop(state, out, each, f"preempted by {key} ({why})", now, moving=True)


def reach_of(state: State, winner: Workload) -> Reach:
    """What has to be known of a workload before it stops others."""
    return Reach(borrowed(state), stopped_for(state, winner))


def stopped_for(state: State, workload: Workload) -> set[str]:
    """The workloads for which something of a workload was stopped last."""
    found = set()
    for index in range(min(state.begun(workload), STOPPED_MAX)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.preempted_by:
            found.add(instance.preempted_by.rpartition(".")[0])
    return found


def units_on(state: State, winner: Workload, node: str, reach: Reach) -> list[Unit]:
    """What may be stopped on a node for somebody, the least important and the youngest first."""
    units: dict[str, Unit] = {}
    for token in sorted(state.held[node], reverse=True):
        instance = state.held[node][token]
        workload = state.spec_of(instance)
        if instance.behind or instance.state == "stopping" or not may_preempt(state, winner, workload, instance, reach):
            continue
        if not workload.policy.gang:
            units[instance.key] = Unit(workload.policy.priority, (instance,), (instance,))
        elif workload.policy.gang not in units:
            unit = _gang(state, winner, workload, node, reach)
            if unit is not None:
                units[workload.policy.gang] = unit
    return sorted(units.values(), key=lambda each: (each.priority, -max(one.token for one in each.here)))


def may_preempt(state: State, winner: Workload, loser: Workload, instance: Instance, reach: Reach) -> bool:
    """Whether one may stop what runs of the other: it matters more by the margin, or wants back what was borrowed.

    Whoever would only borrow the room itself cannot take it from somebody who is entitled to it, and whoever was
    stopped for somebody does not stop that one: otherwise the two would stop each other in turn, one by its priority
    and the other by its quota.
    """
    margin = state.settings.preempt_margin
    if loser.key == winner.key or not loser.policy.preemptible or loser.key in reach.shy:
        return False
    entitled = is_entitled(state, winner.project, winner.policy.ask)
    if instance.token in reach.lent:
        wants_back = loser.project != winner.project and winner.project in state.projects and entitled
        return wants_back or bool(margin and winner.policy.priority >= loser.policy.priority + margin)
    return bool(margin and entitled and winner.policy.priority >= loser.policy.priority + margin)


def _gang(state: State, winner: Workload, workload: Workload, node: str, reach: Reach) -> Unit | None:
    """A gang goes whole: every member must be one that may be stopped."""
    all_of_it = []
    for member in members(state, workload.policy.gang):
        for instance in _holding(state, member):
            if instance.state == "stopping" or not may_preempt(state, winner, member, instance, reach):
                return None  # what stops is about to start again as it is
            all_of_it.append(instance)
    priority = max(state.spec_of(each).policy.priority for each in all_of_it)
    return Unit(priority, tuple(all_of_it), tuple(each for each in all_of_it if each.node == node))


def _holding(state: State, workload: Workload) -> list[Instance]:
    found = (state.instances.get(f"{workload.key}.{index}") for index in range(state.begun(workload)))
    return [each for each in found if each is not None and each.state in HOLDING]


def smallest(state: State, node: str, ask: Ask, units: list[Unit]) -> tuple[Unit, ...] | None:
    """The fewest units that make enough room: exactly for few, else the least important first without the needless."""
    if not _fits_without(state, node, ask, units):
        return None
    few = units[:EXACT_UNITS]
    for size in range(1, min(EXACT_SIZE, len(few)) + 1):
        found = [each for each in combinations(few, size) if _fits_without(state, node, ask, each)]
        if found:
            return min(found, key=cost_of)
    chosen: list[Unit] = []
    for unit in units:
        chosen.append(unit)
        if _fits_without(state, node, ask, chosen):
            break
    for unit in list(reversed(chosen)):
        rest = [each for each in chosen if each is not unit]
        if _fits_without(state, node, ask, rest):
            chosen = rest
    return tuple(chosen)


def cost_of(units: tuple[Unit, ...]) -> tuple[int, ...]:
    """Fewest first, then the least important, then the youngest."""
    count = sum(len(unit.everywhere) for unit in units)
    age = min(one.token for unit in units for one in unit.everywhere)
    return count, max(unit.priority for unit in units), sum(unit.priority for unit in units), -age


def _fits_without(state: State, node: str, ask: Ask, units: "tuple[Unit, ...] | list[Unit]") -> bool:
    """Whether an ask fits on a node once some of what runs there has gone, and what is going already has."""
    fleet, row = state.fleet, state.fleet.row(node)
    going = [each for each in state.held[node].values() if each.state == "stopping" and not each.behind]
    gone = [one for unit in units for one in unit.here] + going
    claims = [claim_of(state.spec_of(each), each) for each in gone]
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
