"""The typical mix of work: the shapes of asks with their weights."""

from typing import Any

import msgspec


class Shape(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, order=True, array_like=True, gc=False, cache_hash=True
):
    """The amounts of an ask: two workloads of one shape use up a node in the same way."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    gpu_milli: int = 0  # of each device
    gpu_count: int = 0
    gpu_models: tuple[str, ...] = ()

    @property
    def gpu(self) -> int:
        return self.gpu_milli * self.gpu_count


Shapes = tuple[tuple[Shape, int], ...]  # with their weights


class WorkloadMix(msgspec.Struct, frozen=True, eq=False):
    """Shapes with weights. It never changes, so copies of a fleet share one; `kinds` and `alike` are caches."""

    shapes: Shapes = ()
    asked: Shapes = ()  # all shapes, also the rare ones: few large asks may be what uses a resource up
    kinds: dict[str, Any] = {}  # model -> its device class, as `placement.gpu` works it out
    alike: dict[tuple[bool, ...], Any] = {}


NOTHING_TYPICAL = WorkloadMix()
