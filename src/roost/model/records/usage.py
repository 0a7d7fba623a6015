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
