"""The cheapest eviction that makes room for an ask: exact for few candidates on a node, for all nodes at once.

A search over 256 nodes with 16 attempts each takes some 25 ms: Python looks at each attempt once, and all sets of up to
EXACT_SIZE of them are compared as columns of integers. It can pause after each node and each part of the columns.
"""

from collections.abc import Collection
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from roost.core.state.allocation import allocation_of
from roost.core.state.fleet import Ints, Mask
from roost.core.state.outcome import Paced
from roost.core.state.queue import FOREVER
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask
from roost.model.states import InstanceState

EXACT_UNITS = 16  # up to so many candidates on a node, all sets of up to EXACT_SIZE are tried: 700 at most
EXACT_SIZE = 3
ROOMS_AT_ONCE = 64  # nodes whose sets are compared together: 5 ms for the largest sets
ATTEMPTS_PER_UNIT = 8  # of work (see `Step.limit`)
ROOM_UNITS = 2
SETS_PER_UNIT = 70
FEWEST_PER_UNIT = 4
#: Three times the default grace. An urgent head does not wait longer, and an attempt that outlasts its grace by as much
#: may never end.
STOPS_SOON_MS = 30_000


class PreemptionUnit(NamedTuple):
    """What is stopped together: one instance, or a whole gang; and what of it is on the node in question."""

    priority: int
    all_instances: tuple[Instance, ...]
    on_node: tuple[Instance, ...]


class Eviction(NamedTuple):
    """The units to preempt on a node. The cheapest one is the smallest of these tuples."""

    cost: tuple[int, ...]
    node: str
    units: tuple[PreemptionUnit, ...]


def cheapest_eviction(state: State, ask: Ask, candidates: dict[str, list[PreemptionUnit]]) -> Paced[Eviction | None]:
    """On the node where it costs least: the fewest units that free enough. Candidates are ordered, by node and unit.

    If no set of up to EXACT_SIZE is enough on a node: the least important units, without the unnecessary.
    """
    shares = _Shares(state, ask)
    rooms: list[_Room] = []
    for node, units in candidates.items():
        room = _Room(state, node, ask, units, shares)
        if room.fits(range(len(room.units))):
            rooms.append(room)
        yield len(units) // ATTEMPTS_PER_UNIT
    best: Eviction | None = None
    for size in range(1, EXACT_SIZE + 1):
        if not rooms or (best is not None and best.cost[0] < size):
            break
        for first in range(0, len(rooms), ROOMS_AT_ONCE):
            some = rooms[first : first + ROOMS_AT_ONCE]
            for place, chosen in _cheapest_sets(some, size).items():
                best = _cheaper(best, some[place], chosen)
            yield len(some) * (ROOM_UNITS + len(_sets_of(size)) // SETS_PER_UNIT)
        rooms = [room for room in rooms if not room.is_solved]
    for room in rooms:
        # Sets of more units stop more instances, except where a unit beyond the first ones does it alone.
        if best is None or best.cost[0] > EXACT_SIZE or len(room.units) > EXACT_UNITS:
            best = _cheaper(best, room, room.fewest())
            yield len(room.units) // FEWEST_PER_UNIT
    return best


def emptied_soon(state: State, ask: Ask, nodes: list[str]) -> str | None:
    """The first node where an ask fits once what is being stopped has ended: nothing has to be preempted there."""
    shares = _Shares(state, ask)
    for node in nodes:
        if stopping_soon(state, node) and _Room(state, node, ask, [], shares).fits(()):
            return node
    return None


def stopping_soon(state: State, node: str) -> list[Instance]:
    """Attempts whose allocation is released soon, by their grace. Prefilled ones have none."""
    return [
        instance
        for instance in state.allocated[node].values()
        if instance.state == InstanceState.STOPPING
        and not instance.prefilled_behind
        and stopped_ms(state, instance) <= state.now_ms + STOPS_SOON_MS
    ]


def stopped_ms(state: State, instance: Instance) -> int:
    """When the grace of a stopping attempt ends; FOREVER if it ended so long ago that the attempt may never end."""
    until = instance.since_ms + state.spec_of(instance).policy.grace_ms
    return until if state.now_ms <= until + STOPS_SOON_MS else FOREVER


def cost_of(units: tuple[PreemptionUnit, ...]) -> tuple[int, ...]:
    """Fewest first, then the least important, then the youngest."""
    count = sum(len(unit.all_instances) for unit in units)
    age = min(one.token for unit in units for one in unit.all_instances)
    return count, max(unit.priority for unit in units), sum(unit.priority for unit in units), -age


class _Room:
    """What an ask lacks on a node once what is being stopped has ended, and what each unit would give back."""

    def __init__(self, state: State, node: str, ask: Ask, units: list[PreemptionUnit], shares: "_Shares") -> None:
        self.node, self.units = node, units
        self.is_solved = False  # sets of the size that was tried are enough
        self._state, self._ask = state, ask
        row = state.fleet.row(node)
        self._going = stopping_soon(state, node)
        self.lack = [amount - state.fleet.free_one(resource, row) for resource, amount in ask.resources]
        if self._going:
            self.lack = [lack - back for lack, back in zip(self.lack, shares.sum(self._going), strict=True)]
        self.gains = [shares.sum(unit.on_node) for unit in units]
        self.is_special = bool(ask.gpu_count or ask.ports)
        if self.is_special:
            self._add_devices_and_ports(row)

    def fits(self, chosen: Collection[int]) -> bool:
        for place, lack in enumerate(self.lack):
            if lack > sum([self.gains[index][place] for index in chosen]):
                return False
        return not self.is_special or self.has_devices_and_ports(chosen)

    def fewest(self) -> list[int]:
        """The first units that are enough, without the unnecessary. Sums are kept: a node may have many units."""
        lack, chosen = list(self.lack), dict[int, None]()
        for index, gain in enumerate(self.gains):
            lack = [left - back for left, back in zip(lack, gain, strict=True)]
            chosen[index] = None
            if self._is_enough(lack, chosen):
                break
        for index in reversed(list(chosen)):
            without = [left + back for left, back in zip(lack, self.gains[index], strict=True)]
            del chosen[index]
            if self._is_enough(without, chosen):
                lack = without
            else:
                chosen[index] = None
        return sorted(chosen)

    def _is_enough(self, lack: list[int], chosen: Collection[int]) -> bool:
        return all(left <= 0 for left in lack) and (not self.is_special or self.has_devices_and_ports(chosen))

    def _add_devices_and_ports(self, row: int) -> None:
        """How many devices and ports are lacking, and how many each unit has: no fewer can be enough."""
        fleet, ask = self._state.fleet, self._ask
        going = {device for instance in self._going for device in instance.devices}
        free = sum(left >= ask.gpu_milli for left in fleet.devices[row].tolist())
        taken = set(ask.ports) & fleet.ports.get(self.node, {}).keys()
        taken -= {port for instance in self._going for port in instance.ports}
        self.lack += [ask.gpu_count - free - len(going), len(taken)]
        for index, unit in enumerate(self.units):
            devices = sum([len(one.devices) for one in unit.on_node])
            ports = sum([len(taken.intersection(one.ports)) for one in unit.on_node])
            self.gains[index] += (devices, ports)

    def has_devices_and_ports(self, chosen: Collection[int]) -> bool:
        fleet, ask = self._state.fleet, self._ask
        devices = fleet.devices[fleet.row(self.node)].tolist()
        ports = dict(fleet.ports.get(self.node, {}))
        for instance in [*(one for index in chosen for one in self.units[index].on_node), *self._going]:
            claim = allocation_of(self._state.spec_of(instance), instance)
            for device in claim.devices:
                devices[device] += claim.device_milli
            for port in claim.ports:
                ports.pop(port, None)
        if sum(left >= ask.gpu_milli for left in devices) < ask.gpu_count:
            return False
        return not any(port in ports for port in ask.ports)


class _Shares:
    """What attempts have of each resource that is asked for, worked out once per version of a workload."""

    def __init__(self, state: State, ask: Ask) -> None:
        self._state, self._ask = state, ask
        self._known: dict[tuple[str, int], tuple[int, ...]] = {}

    def sum(self, instances: Collection[Instance]) -> tuple[int, ...]:
        parts = [self._of(instance) for instance in instances]
        return parts[0] if len(parts) == 1 else tuple(map(sum, zip(*parts, strict=True)))

    def _of(self, instance: Instance) -> tuple[int, ...]:
        key = instance.workload, instance.version
        known = self._known.get(key)
        if known is None:
            held = dict(self._state.spec_of(instance).policy.ask.resources)
            known = self._known[key] = tuple([held.get(resource, 0) for resource, _ in self._ask.resources])
        return known


def _cheapest_sets(rooms: list[_Room], size: int) -> dict[int, tuple[int, ...]]:
    """The cheapest set of this size that is enough: of all rooms, or of each one. Marks the solved ones."""
    sets = _sets_of(size)
    gains = np.zeros((len(rooms), EXACT_UNITS, len(rooms[0].lack)), np.int64)
    units = np.zeros((3, len(rooms), EXACT_UNITS), np.int64)  # number of instances, priority and oldest token
    for place, room in enumerate(rooms):
        few = room.units[:EXACT_UNITS]
        gains[place, : len(few)] = room.gains[: len(few)]
        units[0, place, : len(few)] = [len(unit.all_instances) for unit in few]
        units[1, place, : len(few)] = [unit.priority for unit in few]
        units[2, place, : len(few)] = [min([one.token for one in unit.all_instances]) for unit in few]
    lack = np.array([room.lack for room in rooms], np.int64)
    enough: Mask = (gains[:, sets].sum(axis=2) >= lack[:, None]).all(axis=2)
    enough &= units[0][:, sets].all(axis=2)
    count, priority, token = (column[:, sets] for column in units)
    costs = (count.sum(axis=2), priority.max(axis=2), priority.sum(axis=2), -token.min(axis=2))  # as `cost_of`
    if rooms[0].is_special:
        return _special_sets(rooms, sets, enough, costs)
    for place in np.flatnonzero(enough.any(axis=1)).tolist():
        rooms[place].is_solved = True
    left = np.flatnonzero(enough)
    for cost in costs if len(left) else ():
        values = cost.ravel()[left]
        left = left[values == values.min()]
    places = [divmod(int(at), len(sets)) for at in left[:1]]
    return {place: tuple(sets[index].tolist()) for place, index in places}


def _special_sets(rooms: list[_Room], sets: Ints, enough: Mask, costs: tuple[Ints, ...]) -> dict[int, tuple[int, ...]]:
    """As above, where devices or ports are asked for: each set is checked, the cheapest first."""
    found: dict[int, tuple[int, ...]] = {}
    for place, room in enumerate(rooms):
        indexes = np.flatnonzero(enough[place])
        order = np.lexsort([cost[place, indexes] for cost in reversed(costs)])
        ordered = (tuple(sets[index].tolist()) for index in indexes[order])
        chosen = next((chosen for chosen in ordered if room.has_devices_and_ports(chosen)), None)
        if chosen is not None:
            found[place], room.is_solved = chosen, True
    return found


def _cheaper(best: Eviction | None, room: _Room, chosen: Collection[int]) -> Eviction:
    units = tuple([room.units[index] for index in chosen])
    cost = cost_of(units)
    return Eviction(cost, room.node, units) if best is None or (cost, room.node) < best[:2] else best


@cache
def _sets_of(size: int) -> Ints:
    return np.array(list(combinations(range(EXACT_UNITS), size)), np.int64)
