"""What work usually asks for: the shapes of asks with their weights, as far as placement has learnt them."""

from typing import Any

import msgspec


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


class WorkloadMix(msgspec.Struct, frozen=True, eq=False):
    """What work usually asks for: shapes with weights, and the kinds of devices they make.

    It never changes, so copies of a fleet share one; the kinds are worked out when they are asked for first.
    """

    shapes: Shapes = ()
    asked: Shapes = ()  # all shapes, also the rare ones: few large asks may be what uses a resource up
    kinds: dict[str, Any] = {}  # model -> its device class, as `placement.gpu` works it out
    alike: dict[tuple[bool, ...], Any] = {}


NOTHING_TYPICAL = WorkloadMix()
