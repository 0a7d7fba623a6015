"""Fragmentation: free GPUs that typical work cannot use, and what shares of a device leave over.

A scorer compares how much of a node's free GPU is lost to typical work before and after placing. All in integers: a
loss is multiplied by the summed weight of the shapes, so nothing is rounded before two losses are compared.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roost.core.state.fleet import GPU, Ints
from roost.core.state.state import State
from roost.core.state.workload_mix import Shape, Shapes, WorkloadMix
from roost.model.records.workload import Ask

COVER_PERCENT = 95  # shapes rarer than the last twentieth are not typical
SHAPES_MAX = 256  # each costs a comparison per node; the most varied trace we know has 127 for its 95 %
WEIGHT_MAX = 1_000_000  # a summed weight times 64 devices of 1,000 stays far below 63 bits
UNFIT_MAX = 65_536  # answers cached per class of devices, some MB
SHARP = 1_000  # leftovers are computed in thousandths of a thousandth, returned in thousandths
OFTEN_MS = 60_000  # while there are few workloads
SELDOM_MS = 3_600_000  # all score caches are made again after each time
MANY = 1_000  # instances: enough to know what is typical
STORED_SHAPES_MAX = 1_024  # stored: some 50 KB


class FreeResources(NamedTuple):
    cpu: int
    memory: int
    devices: tuple[int, ...]


class FreeColumns(NamedTuple):
    cpu: Ints
    memory: Ints
    devices: Ints  # a row of devices per node


@lru_cache(maxsize=1_024)
def shape_of(ask: Ask) -> Shape:
    wants = dict(ask.resources)
    return Shape(
        wants.get("cpu", 0), wants.get("memory", 0), wants.get("disk", 0), ask.gpu_milli, ask.gpu_count, ask.gpu_models
    )  # fmt: skip


class DeviceClass:
    """Typical work for the devices of one model: the shapes that may run there, and the weight of the others."""

    def __init__(self, shapes: Shapes, never: int, idle: int) -> None:
        self.shapes = [(shape.cpu, shape.memory, shape.gpu_milli, shape.gpu_count, weight) for shape, weight in shapes]
        self.never = never  # weight of shapes that want other models
        self.idle = idle  # weight of shapes that want no GPU at all
        self.wanting = never + sum(weight for _, weight in shapes)  # weight of all shapes that want a GPU
        columns = np.array(self.shapes, np.int64).reshape(len(self.shapes), 5)
        self.cpu, self.memory, self.milli, self.count, self.weight = columns.T
        self.sizes, self.size = np.unique(self.milli, return_inverse=True)
        self.leftover = _leftovers(shapes)
        self.leftovers = np.array(self.leftover, np.int64)
        self._unfit: dict[tuple[int, int, int, int], int] = {}

    def unfit(self, cpu: int, memory: int, whole: int, most: int) -> int:
        """The weight of shapes wanting a GPU that cannot run, given the devices wholly free and the most one has."""
        key = (cpu, memory, whole, most)
        found = self._unfit.get(key)
        if found is None:
            found = self.never
            for wants_cpu, wants_memory, milli, count, weight in self.shapes:
                fits = whole >= count if milli >= GPU else most >= milli
                if not fits or cpu < wants_cpu or memory < wants_memory:
                    found += weight
            if len(self._unfit) >= UNFIT_MAX:
                self._unfit.clear()
            self._unfit[key] = found
        return found

    def runs(self, rooms: FreeColumns) -> NDArray[np.bool_]:
        whole = np.count_nonzero(rooms.devices >= GPU, axis=1)[:, None]
        most = rooms.devices.max(axis=1, initial=0)[:, None]
        fits = np.where(self.milli >= GPU, whole >= self.count, most >= self.milli)
        result: NDArray[np.bool_] = fits & (rooms.cpu[:, None] >= self.cpu) & (rooms.memory[:, None] >= self.memory)
        return result

    def lost_now(self, room: FreeResources) -> int:
        """Free GPU that the next typical ask cannot use, times the weight of all shapes: FGD's measure.

        A shape that cannot run here loses all that is free, others lose the devices that have too little left.
        """
        free = sum(room.devices)
        lost = (self.never + self.idle) * free
        whole, most = sum(device >= GPU for device in room.devices), max(room.devices, default=0)
        for cpu, memory, milli, count, weight in self.shapes:
            fits = whole >= count if milli >= GPU else most >= milli
            if fits and room.cpu >= cpu and room.memory >= memory:
                lost += weight * sum([device for device in room.devices if device < milli])
            else:
                lost += weight * free
        return lost

    def lost_now_all(self, rooms: FreeColumns) -> Ints:
        free = rooms.devices.sum(axis=1)
        if not self.shapes:
            return np.asarray((self.wanting + self.idle) * free)
        small = np.stack([np.where(rooms.devices < size, rooms.devices, 0).sum(axis=1) for size in self.sizes], axis=1)
        gained = np.where(self.runs(rooms), (free[:, None] - small[:, self.size]) * self.weight, 0).sum(axis=1)
        lost: Ints = (self.wanting + self.idle) * free - gained
        return lost

    def lost_late(self, room: FreeResources) -> int:
        """Free GPU that stays unused in the end, times the weight of shapes wanting a GPU.

        A shape that cannot run here loses all that is free; for others a shared device loses its leftover.
        """
        whole, most = sum(device >= GPU for device in room.devices), max(room.devices, default=0)
        unfit = self.unfit(room.cpu, room.memory, whole, most)
        left = sum([self.leftover[min(max(device, 0), GPU)] for device in room.devices])
        return unfit * sum(room.devices) + (self.wanting - unfit) * left

    def lost_late_all(self, rooms: FreeColumns) -> Ints:
        unfit = self.wanting - np.where(self.runs(rooms), self.weight, 0).sum(axis=1)
        left = self.leftovers[np.clip(rooms.devices, 0, GPU)].sum(axis=1)
        lost: Ints = unfit * rooms.devices.sum(axis=1) + (self.wanting - unfit) * left
        return lost


def device_class(mix: WorkloadMix, model: str) -> DeviceClass:
    """The class of a model; models wanted by the same shapes are of one class."""
    found: DeviceClass | None = mix.kinds.get(model)
    if found is None:
        mine = tuple(
            [shape.gpu_count > 0 and (not shape.gpu_models or model in shape.gpu_models) for shape, _ in mix.shapes]
        )
        found = mix.alike.get(mine)
        if found is None:
            shapes = tuple([pair for pair, suits in zip(mix.shapes, mine, strict=True) if suits])
            wanting = sum(weight for shape, weight in mix.shapes if shape.gpu_count)
            idle = sum(weight for shape, weight in mix.shapes if not shape.gpu_count)
            found = mix.alike[mine] = DeviceClass(shapes, wanting - sum(weight for _, weight in shapes), idle)
        mix.kinds[model] = found
    return found


def typical_of(asks: Iterable[tuple[Ask, int]]) -> WorkloadMix:
    """The shapes that together make up 95 % of the asks, the most frequent first; equal input, equal output."""
    counted: Counter[Shape] = Counter()
    for ask, count in asks:
        counted[shape_of(ask)] += count
    return typical_shapes(counted)


def typical_shapes(counted: Mapping[Shape, int]) -> WorkloadMix:
    total = sum(counted.values())
    divisor = max(1, -(-total // WEIGHT_MAX))
    asked = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    shapes: list[tuple[Shape, int]] = []
    covered = 0
    for shape, count in asked:
        if covered * 100 >= total * COVER_PERCENT or len(shapes) >= SHAPES_MAX:
            break
        shapes.append((shape, max(1, count // divisor)))
        covered += count
    return WorkloadMix(tuple(shapes), tuple(asked))


@lru_cache(maxsize=1_024)
def only_ask(ask: Ask) -> WorkloadMix:
    """Where there is no typical mix, the ask itself is typical."""
    shapes = ((shape_of(ask), 1),)
    return WorkloadMix(shapes, shapes)


def _leftovers(shapes: Shapes) -> list[int]:
    """What is left of a device in the end, by what is free of it now, if typical shares are placed until none fits.

    The mean over the next share: left(free) = sum of weight * left(free - share) / sum of weight, over shares that
    fit; all of it if none does. A device that is wholly free is not lost.
    """
    weights: Counter[int] = Counter()
    for shape, weight in shapes:
        if shape.gpu_milli < GPU:
            weights[shape.gpu_milli] += weight
    sharp: list[int] = []
    for free in range(GPU):
        fitting = [(size, weight) for size, weight in weights.items() if size <= free]
        if fitting:
            total = sum([weight * sharp[free - size] for size, weight in fitting])
            sharp.append(total // sum([weight for _, weight in fitting]))
        else:
            sharp.append(free * SHARP)
    return [*[size // SHARP for size in sharp], 0]


def learn_typical(state: State) -> None:
    """Learn the typical mix from unfinished workloads. It is stored, so that a restart changes no decision."""
    counts: Counter[Ask] = Counter()
    for workload in state.workloads.values():
        if not workload.finished_ms:
            counts[workload.policy.ask] += workload.count
    typical = typical_of(counts.items()).asked[:STORED_SHAPES_MAX]
    state.meta.typical_due_ms = state.now_ms + (SELDOM_MS if counts.total() >= MANY else OFTEN_MS)
    if typical != state.meta.typical:
        state.meta.typical = typical
        expect(state)
    state.touch_meta()


def expect(state: State) -> None:
    state.fleet.expect(typical_shapes(dict(state.meta.typical)))
