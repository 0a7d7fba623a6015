"""What a run used: as the kernel counts it for processes that were waited for, or for a cgroup.

Standard library only and no `typing`: the keeper loads this file and has to start in a few milliseconds.
"""

import resource

from roost.keeper.socket import encode

IO_BLOCK = 512  # bytes: the unit of ru_inblock and ru_oublock, whatever the disk


class KeeperUsage:
    """Sums and maxima over the steps of a run."""

    is_measured = False
    cpu_s = 0.0
    memory_max = 0  # bytes; 0: no more than `memory_floor`
    memory_floor = 0  # of the process that spawned it: its own count began with that; 0: it was not counted
    io_read = 0  # bytes
    io_written = 0
    counted: "list[object] | None" = None  # by cgroups of another program, as `RunUsage` reads it: nothing else holds

    def add(self, cpu_s: float, memory_max: int, memory_floor: int, io_read: int, io_written: int) -> None:
        self.is_measured = True
        self.cpu_s += cpu_s
        self.memory_max = max(self.memory_max, memory_max)
        self.memory_floor = max(self.memory_floor, memory_floor)
        self.io_read += io_read
        self.io_written += io_written

    def at_least(self, cpu_s: float, memory_max: int) -> None:
        """As a cgroup counts: also processes that were not waited for. 0: it did not."""
        self.cpu_s = max(self.cpu_s, cpu_s)
        self.memory_max = memory_max or self.memory_max

    def encoded(self) -> str:
        """As `RunUsage` reads it."""
        if self.counted is not None:
            return encode(self.counted)
        if not self.is_measured:
            return "null"
        is_bound = "true" if self.memory_floor and not self.memory_max else "false"
        memory = self.memory_max or self.memory_floor or "null"
        return f"[{round(self.cpu_s * 1000)},{memory},{is_bound},{self.io_read},{self.io_written}]"


def cpu_s_of(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def io_of(usage: resource.struct_rusage) -> tuple[int, int]:
    """Bytes that were read from disks, and written to them."""
    return usage.ru_inblock * IO_BLOCK, usage.ru_oublock * IO_BLOCK
