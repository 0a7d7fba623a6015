"""What the devices of each node would look like after placing, for scorers that compare before and after."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from roost.core.fleet import GPU, Fleet, Ints
from roost.core.fragments import Kind, Room, Rooms, Typical, alone, shape_of
from roost.model.workload import Ask

#: What is lost of the free GPU: of one node, or of many.
LostOne = Callable[[Kind, Room], int]
LostAll = Callable[[Kind, Rooms], Ints]

DERIVED_MAX = 1_024  # one entry per ask where nothing is typical; as many as asks are remembered by `alone`


class Gains(NamedTuple):
    """By how much placing lessens what is lost, on the rows of one kind where the ask fits."""

    kind: Kind
    rows: Ints
    gains: Ints


def typical_for(fleet: Fleet, ask: Ask) -> Typical:
    """What is typical for a fleet; where nobody has said, the ask itself."""
    return fleet.typical if fleet.typical.shapes else alone(ask)


def gains_of(fleet: Fleet, ask: Ask, lost: LostAll) -> list[Gains]:
    """The best gain of each row that has devices and room for the ask, kind by kind."""
    shape = shape_of(ask)
    typical = typical_for(fleet, ask)
    cpu, memory = fleet.free("cpu"), fleet.free("memory")
    fits = (cpu >= shape.cpu) & (memory >= shape.memory)
    result = []
    for kind, rows in _rows_by_kind(fleet, typical):
        rows = rows[fits[rows]]
        devices = np.sort(fleet.devices[rows], axis=1)
        owner, after = _after(devices, shape.gpu_milli, shape.gpu_count)
        if not len(owner):
            continue
        first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
        took = rows[owner]
        later = lost(kind, Rooms(cpu[took] - shape.cpu, memory[took] - shape.memory, after))
        held = owner[first]
        before = lost(kind, Rooms(cpu[rows[held]], memory[rows[held]], devices[held]))
        result.append(Gains(kind, rows[held], before - np.minimum.reduceat(later, first)))
    return result


def gain_of(fleet: Fleet, ask: Ask, row: int, lost: LostOne) -> tuple[Kind, list[tuple[int, int]]]:
    """The gain on one row by the device that is taken, of devices alike the first; nothing where the ask does not fit.

    Whole devices are taken as the first that are free: their entry bears the number of the first.
    """
    shape = shape_of(ask)
    kind = typical_for(fleet, ask).kind(fleet.facts[row].gpu_model)
    cpu, memory = _free_one(fleet, "cpu", row) - shape.cpu, _free_one(fleet, "memory", row) - shape.memory
    devices = fleet.devices[row].tolist() if fleet.devices.shape[1] else []
    if cpu < 0 or memory < 0 or not fleet.device_total[row].any():
        return kind, []
    before = lost(kind, Room(cpu + shape.cpu, memory + shape.memory, tuple(devices)))
    gains: list[tuple[int, int]] = []
    seen: set[int] = set()
    if not shape.gpu_count:
        return kind, [(0, before - lost(kind, Room(cpu, memory, tuple(devices))))]
    if shape.gpu_milli >= GPU:
        whole = [number for number, left in enumerate(devices) if left >= GPU][: shape.gpu_count]
        if len(whole) < shape.gpu_count:
            return kind, []
        left = [each - GPU if number in whole else each for number, each in enumerate(devices)]
        return kind, [(whole[0], before - lost(kind, Room(cpu, memory, tuple(left))))]
    for number, free in enumerate(devices):
        if free >= shape.gpu_milli and free not in seen:
            seen.add(free)
            devices[number] = free - shape.gpu_milli
            gains.append((number, before - lost(kind, Room(cpu, memory, tuple(devices)))))
            devices[number] = free
    return kind, gains


def _after(devices: Ints, milli: int, count: int) -> tuple[Ints, Ints]:
    """For each way to place an ask on rows of sorted devices: the row, and its devices afterwards."""
    if not count:
        return np.arange(len(devices)), devices
    if milli >= GPU:
        owner = np.flatnonzero(np.count_nonzero(devices >= GPU, axis=1) >= count)
        after = devices[owner]
        after[:, after.shape[1] - count :] -= GPU
        return owner, after
    usable = devices >= milli
    usable[:, 1:] &= devices[:, 1:] != devices[:, :-1]
    owner, device = np.nonzero(usable)
    after = devices[owner]
    after[np.arange(len(owner)), device] -= milli
    return owner, after


def _rows_by_kind(fleet: Fleet, typical: Typical) -> list[tuple[Kind, Ints]]:
    """The rows that have devices, kind by kind."""
    key = ("kinds", typical)
    found: list[tuple[Kind, Ints]] | None = fleet.derived.get(key)
    if found is None:
        rows: dict[int, list[int]] = {}
        kinds: dict[int, Kind] = {}
        for row in np.flatnonzero(fleet.device_total.any(axis=1)).tolist():
            kind = typical.kind(fleet.facts[row].gpu_model)
            kinds[id(kind)] = kind
            rows.setdefault(id(kind), []).append(row)
        found = [(kinds[each], np.array(mine, np.int64)) for each, mine in rows.items()]
        if len(fleet.derived) >= DERIVED_MAX:
            fleet.derived.clear()
        fleet.derived[key] = found
    return found


def _free_one(fleet: Fleet, resource: str, row: int) -> int:
    total = fleet.total.get(resource)
    return total.item(row) - fleet.used[resource].item(row) if total is not None else 0
