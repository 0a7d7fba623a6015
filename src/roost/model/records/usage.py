"""Usage: what an attempt used, as its node measured it."""

import msgspec


class RunUsage(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """None: its node could not measure that, which is another thing than 0."""

    cpu_ms: int | None = None
    memory_max: int | None = None  # bytes at the same time, at most
    memory_is_bound: bool = False  # it used so much or less: the kernel counts a process from the size of its parent on
    io_read: int | None = None  # bytes from disks; what was in memory already is not counted
    io_written: int | None = None
    wall_ms: int = 0  # from the start of its process to its end, by the clock of its node


class UsageTotals(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """What attempts have had and what they used, added up. Times of cores and GPUs in ms, memory in KiB times seconds.

    Use is only known of the attempts that were measured; `*_measured` is what those had.
    """

    attempts: int = 0  # that have ended
    unreported: int = 0  # of them: no node reported their end, so what they used is unknown
    wall_ms: int = 0
    cpu_ms: int = 0
    memory_kib_s: int = 0
    gpu_ms: int = 0
    cpu_used_ms: int = 0
    cpu_measured_ms: int = 0
    memory_used_kib_s: int = 0  # at the peak of each attempt, for as long as it ran
    memory_measured_kib_s: int = 0
    io_read: int = 0
    io_written: int = 0

    def __add__(self, other: "UsageTotals") -> "UsageTotals":
        return UsageTotals(*map(int.__add__, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class DayUsage(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A day of a project, by workload: what has several names each time is one. "": all others together."""

    project: str
    day: int  # since 1970, in UTC
    workloads: dict[str, UsageTotals] = {}


class TypicalNeed(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the last runs of the same work used: milli-cores on average, and bytes at the peak. -1: not measured."""

    project: str
    name: str
    last_ms: int
    runs: tuple[tuple[int, int], ...] = ()  # the newest last
