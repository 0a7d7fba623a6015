"""How much a placement lessens fragmentation, and what the GPUs of a model are worth."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from roost.core.placement.filters.gpu import devices_of
from roost.core.placement.gpu.fragmentation import (
    DeviceClass,
    FreeColumns,
    FreeResources,
    device_class,
    only_ask,
    shape_of,
)
from roost.core.state.fleet import GPU, Fleet, Ints
from roost.core.state.workload_mix import WorkloadMix
from roost.model.records.workload import Ask

#: The free GPU that is lost: of one node, or of many.
LostOne = Callable[[DeviceClass, FreeResources], int]
LostAll = Callable[[DeviceClass, FreeColumns], Ints]

DERIVED_MAX = 1_024  # one entry per ask where nothing is typical; as many as `only_ask` caches
PRICE = 1_000  # thousandths: the price of a model that typical work bound to it would fill
PRICE_MAX = 10_000  # ten times what there is: more makes no difference, and products stay small
RESOURCES = ("cpu", "memory", "disk")


class Gains(NamedTuple):
    kind: DeviceClass
    rows: Ints
    gains: Ints


def typical_for(fleet: Fleet, ask: Ask) -> WorkloadMix:
    return fleet.typical if fleet.typical.shapes else only_ask(ask)


def gains_of(fleet: Fleet, ask: Ask, lost: LostAll) -> list[Gains]:
    """The best gain of each row that has devices and fits the ask, kind by kind."""
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
        later = lost(kind, FreeColumns(cpu[took] - shape.cpu, memory[took] - shape.memory, after))
        allocated = owner[first]
        before = lost(kind, FreeColumns(cpu[rows[allocated]], memory[rows[allocated]], devices[allocated]))
        result.append(Gains(kind, rows[allocated], before - np.minimum.reduceat(later, first)))
    return result


def gain_of(fleet: Fleet, ask: Ask, row: int, lost: LostOne) -> tuple[DeviceClass, list[tuple[int, int]]]:
    """The gain on one row by the device that is taken, of equal devices the first; empty if the ask does not fit.

    Whole devices are the first free ones: their entry has the number of the first.
    """
    shape = shape_of(ask)
    kind = device_class(typical_for(fleet, ask), fleet.facts[row].gpu_model)
    cpu, memory = fleet.free_one("cpu", row) - shape.cpu, fleet.free_one("memory", row) - shape.memory
    devices = fleet.devices[row].tolist() if fleet.devices.shape[1] else []
    if cpu < 0 or memory < 0 or not fleet.device_total[row].any():
        return kind, []
    before = lost(kind, FreeResources(cpu + shape.cpu, memory + shape.memory, tuple(devices)))
    gains: list[tuple[int, int]] = []
    seen: set[int] = set()
    if not shape.gpu_count:
        return kind, [(0, before - lost(kind, FreeResources(cpu, memory, tuple(devices))))]
    if shape.gpu_milli >= GPU:
        whole = [number for number, left in enumerate(devices) if left >= GPU][: shape.gpu_count]
        if len(whole) < shape.gpu_count:
            return kind, []
        left = [device - GPU if number in whole else device for number, device in enumerate(devices)]
        return kind, [(whole[0], before - lost(kind, FreeResources(cpu, memory, tuple(left))))]
    for number, free in enumerate(devices):
        if free >= shape.gpu_milli and free not in seen:
            seen.add(free)
            devices[number] = free - shape.gpu_milli
            gains.append((number, before - lost(kind, FreeResources(cpu, memory, tuple(devices)))))
            devices[number] = free
    return kind, gains


def best_device(
    fleet: Fleet, ask: Ask, row: int, lost: LostOne, worth: Callable[[DeviceClass, int], int]
) -> tuple[int, ...]:
    """For a share the device whose gain is worth most, of equal ones the first; whole devices as they come."""
    if not ask.gpu_count or ask.gpu_milli >= GPU:
        return devices_of(fleet, ask, row)
    kind, gains = gain_of(fleet, ask, row, lost)
    return (max(gains, key=lambda gain: (worth(kind, gain[1]), -gain[0]))[0],)


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


def _rows_by_kind(fleet: Fleet, typical: WorkloadMix) -> list[tuple[DeviceClass, Ints]]:
    key = ("kinds", typical)
    found: list[tuple[DeviceClass, Ints]] | None = fleet.derived.get(key)
    if found is None:
        rows: dict[int, list[int]] = {}
        kinds: dict[int, DeviceClass] = {}
        for row in np.flatnonzero(fleet.device_total.any(axis=1)).tolist():
            kind = device_class(typical, fleet.facts[row].gpu_model)
            kinds[id(kind)] = kind
            rows.setdefault(id(kind), []).append(row)
        found = [(kinds[row], np.array(mine, np.int64)) for row, mine in rows.items()]
        if len(fleet.derived) >= DERIVED_MAX:
            fleet.derived.clear()
        fleet.derived[key] = found
    return found


def scarcest(fleet: Fleet, ask: Ask) -> str:
    """Of cpu, memory and disk the one of which typical work takes the largest part; "" for none."""
    key = "scarcest" if fleet.typical.shapes else ("scarcest", ask)
    found: str | None = fleet.derived.get(key)
    if found is None:
        asked = dict.fromkeys(RESOURCES, 0)
        for shape, weight in typical_for(fleet, ask).asked:
            for resource, amount in zip(RESOURCES, (shape.cpu, shape.memory, shape.disk), strict=True):
                asked[resource] += weight * amount
        there = {resource: int(fleet.total[resource].sum()) for resource in RESOURCES if resource in fleet.total}
        existing = [resource for resource in RESOURCES if there.get(resource)]
        found = max(existing, key=lambda item: asked[item] * PRICE * PRICE // there[item], default="")
        fleet.derived[key] = found
    return found


def prices(fleet: Fleet) -> tuple[dict[str, int], Ints]:
    """By model and by row: the part of a model's GPUs that typical work bound to it takes.

    Typical work is assumed to ask for as many GPUs as there are; shapes for several models are spread over them.
    """
    found: tuple[dict[str, int], Ints] | None = fleet.derived.get("prices")
    if found is None:
        there: dict[str, int] = {}
        for facts, gpus in zip(fleet.facts, fleet.device_total.sum(axis=1).tolist(), strict=True):
            there[facts.gpu_model] = there.get(facts.gpu_model, 0) + gpus
        by_model = dict.fromkeys(there, 0)
        asked = sum(weight * shape.gpu for shape, weight in fleet.typical.asked)
        for shape, weight in fleet.typical.asked:
            suiting = [name for name in there if name in shape.gpu_models]
            room = sum(there[name] for name in suiting)
            for model in suiting if room else ():
                by_model[model] += weight * shape.gpu * PRICE * sum(there.values()) // (asked * room)
        by_model = {model: min(cost, PRICE_MAX) for model, cost in by_model.items()}
        rows = np.array([by_model[fact.gpu_model] for fact in fleet.facts], np.int64)
        found = fleet.derived["prices"] = (by_model, rows)
    return found
