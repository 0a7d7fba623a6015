"""Room that is free but of little use: what typical work cannot run on, and what shares of a device leave over.

A scorer asks how much of a node's free GPU would be lost to typical work before and after placing. All in integers:
a loss is told times the summed weight of the shapes, so nothing is rounded before two losses are compared.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.model.workload import Ask

Ints = NDArray[np.int64]

GPU = 1_000  # thousandths in a whole device
COVER_PERCENT = 95  # shapes rarer than the last twentieth say nothing about what is typical
SHAPES_MAX = 256  # each costs a comparison per node; the most varied trace we know has 127 for its 95 %
WEIGHT_MAX = 1_000_000  # a summed weight times 64 devices of 1,000 stays far below 63 bits
UNFIT_MAX = 65_536  # answers kept per kind of device, some MB; then they are forgotten and worked out again
SHARP = 1_000  # leftovers are worked out in thousandths of a thousandth, told in thousandths


class Shape(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False, cache_hash=True):
    """An ask as far as it says how much: two workloads of one shape use up a node in the same way."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    gpu_milli: int = 0  # of each device
    gpu_count: int = 0
    gpu_models: tuple[str, ...] = ()

    @property
    def gpu(self) -> int:
        """Thousandths of all its devices."""
        return self.gpu_milli * self.gpu_count


Shapes = tuple[tuple[Shape, int], ...]  # with their weights


class Room(NamedTuple):
    """What is free on one node."""

    cpu: int
    memory: int
    devices: tuple[int, ...]


class Rooms(NamedTuple):
    """What is free on many nodes."""

    cpu: Ints
    memory: Ints
    devices: Ints  # a row of devices per node


@lru_cache(maxsize=1_024)
def shape_of(ask: Ask) -> Shape:
    """The shape of an ask."""
    wants = dict(ask.resources)
    return Shape(
        wants.get("cpu", 0), wants.get("memory", 0), wants.get("disk", 0), ask.gpu_milli, ask.gpu_count, ask.gpu_models
    )  # fmt: skip


class Kind:
    """What typical work is to the devices of one model: the shapes that may run there, and the weight of the others."""

    def __init__(self, shapes: Shapes, never: int, idle: int) -> None:
        self.shapes = [
            (each.cpu, each.memory, each.gpu_milli, each.gpu_count, weight) for each, weight in shapes
        ]  # fmt: skip
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

    def runs(self, rooms: Rooms) -> NDArray[np.bool_]:
        """Which shape could run on which node."""
        whole = np.count_nonzero(rooms.devices >= GPU, axis=1)[:, None]
        most = rooms.devices.max(axis=1, initial=0)[:, None]
        fits = np.where(self.milli >= GPU, whole >= self.count, most >= self.milli)
        result: NDArray[np.bool_] = fits & (rooms.cpu[:, None] >= self.cpu) & (rooms.memory[:, None] >= self.memory)
        return result

    def lost_now(self, room: Room) -> int:
        """Free GPU that the next typical ask cannot use, times the weight of all shapes: FGD's measure.

        Whoever cannot run here loses all that is free, whoever can loses the devices that have too little left.
        """
        free = sum(room.devices)
        lost = (self.never + self.idle) * free
        whole, most = sum(each >= GPU for each in room.devices), max(room.devices, default=0)
        for cpu, memory, milli, count, weight in self.shapes:
            fits = whole >= count if milli >= GPU else most >= milli
            if fits and room.cpu >= cpu and room.memory >= memory:
                lost += weight * sum([each for each in room.devices if each < milli])
            else:
                lost += weight * free
        return lost

    def lost_now_all(self, rooms: Rooms) -> Ints:
        """The same for many nodes."""
        free = rooms.devices.sum(axis=1)
        if not self.shapes:
            return np.asarray((self.wanting + self.idle) * free)
        small = np.stack([np.where(rooms.devices < size, rooms.devices, 0).sum(axis=1) for size in self.sizes], axis=1)
        gained = np.where(self.runs(rooms), (free[:, None] - small[:, self.size]) * self.weight, 0).sum(axis=1)
        lost: Ints = (self.wanting + self.idle) * free - gained
        return lost

    def lost_late(self, room: Room) -> int:
        """Free GPU that stays unused in the end, times the weight of shapes wanting a GPU.

        Who cannot run here loses all that is free; for the others a shared device loses what is left over at last.
        """
        whole, most = sum(each >= GPU for each in room.devices), max(room.devices, default=0)
        unfit = self.unfit(room.cpu, room.memory, whole, most)
        left = sum([self.leftover[min(max(each, 0), GPU)] for each in room.devices])
        return unfit * sum(room.devices) + (self.wanting - unfit) * left

    def lost_late_all(self, rooms: Rooms) -> Ints:
        """The same for many nodes."""
        unfit = self.wanting - np.where(self.runs(rooms), self.weight, 0).sum(axis=1)
        left = self.leftovers[np.clip(rooms.devices, 0, GPU)].sum(axis=1)
        lost: Ints = unfit * rooms.devices.sum(axis=1) + (self.wanting - unfit) * left
        return lost


class Typical(msgspec.Struct, frozen=True, eq=False):
    """What work usually asks for: shapes with weights, and the kinds of devices they make.

    It never changes, so copies of a fleet share one; the kinds are worked out when they are asked for first.
    """

    shapes: Shapes = ()
    asked: Shapes = ()  # all shapes, also the rare ones: few large asks may be what uses a resource up
    _kinds: dict[str, Kind] = {}
    _alike: dict[tuple[bool, ...], Kind] = {}

    def kind(self, model: str) -> Kind:
        """The kind of devices of a model; models wanted by the same shapes are of one kind."""
        found = self._kinds.get(model)
        if found is None:
            mine = tuple([each.gpu_count > 0 and _suits(each, model) for each, _ in self.shapes])
            found = self._alike.get(mine)
            if found is None:
                shapes = tuple([pair for pair, suits in zip(self.shapes, mine, strict=True) if suits])
                wanting = sum(weight for each, weight in self.shapes if each.gpu_count)
                idle = sum(weight for each, weight in self.shapes if not each.gpu_count)
                found = self._alike[mine] = Kind(shapes, wanting - sum(weight for _, weight in shapes), idle)
            self._kinds[model] = found
        return found


NOTHING_TYPICAL = Typical()


def typical_of(asks: Iterable[tuple[Ask, int]]) -> Typical:
    """The shapes that together make up 95 % of what is asked for, commonest first; equal input, equal output."""
    counted: dict[Shape, int] = {}
    for ask, count in asks:
        shape = shape_of(ask)
        counted[shape] = counted.get(shape, 0) + count
    return typical_shapes(counted)


def typical_shapes(counted: Mapping[Shape, int]) -> Typical:
    """The same from shapes that were counted."""
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
    return Typical(tuple(shapes), tuple(asked))


@lru_cache(maxsize=1_024)
def alone(ask: Ask) -> Typical:
    """Where nothing is known about work, the ask itself is what is typical."""
    shapes = ((shape_of(ask), 1),)
    return Typical(shapes, shapes)


def _suits(shape: Shape, model: str) -> bool:
    return not shape.gpu_models or model in shape.gpu_models


def _leftovers(shapes: Shapes) -> list[int]:
    """What is left of a device in the end, by what is free of it now, if typical shares keep coming until none fits.

    The mean over which share comes next: left(free) = sum of weight * left(free - share) / sum of weight, over shares
    that fit; all of it where none does. A device that is wholly free is not lost to anybody.
    """
    weights: dict[int, int] = {}
    for each, weight in shapes:
        if each.gpu_milli < GPU:
            weights[each.gpu_milli] = weights.get(each.gpu_milli, 0) + weight
    sharp: list[int] = []
    for free in range(GPU):
        fitting = [(size, weight) for size, weight in weights.items() if size <= free]
        if fitting:
            total = sum([weight * sharp[free - size] for size, weight in fitting])
            sharp.append(total // sum([weight for _, weight in fitting]))
        else:
            sharp.append(free * SHARP)
    return [*[each // SHARP for each in sharp], 0]
