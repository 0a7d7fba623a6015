"""A slot as the keeper knows it: its link, its process, its cgroups, and the run that it serves."""

import os
import signal
import socket
from contextlib import suppress

from roost.keeper.cgroup import Cgroups, Group, quota_us, read, write
from roost.keeper.clock import NEVER
from roost.keeper.containment import limit_pids
from roost.keeper.usage import KeeperUsage

NO_LIMIT = (0, 0)


class SlotGroup:
    """The cgroups that a slot lives in. Its limits are those of its current run, and are written when they change."""

    def __init__(self, at: Cgroups, name: str) -> None:
        """Raises OSError."""
        self.group = Group(at, name, 1, 1)  # of every kind there is
        self.pids_dir = "" if at.pens_threaded or not at.pens else f"{at.pens}/{name}"
        if self.pids_dir in self.group.dirs:
            self.pids_dir = ""
        if self.pids_dir:
            os.mkdir(self.pids_dir)
        self.dirs = [*self.group.dirs, *([self.pids_dir] if self.pids_dir else [])]
        self.limits_pids = any(os.path.exists(f"{directory}/pids.max") for directory in self.dirs)
        for directory in self.dirs:
            limit_pids(directory, at.pids_max + 1)  # the slot itself counts
        self.limits = NO_LIMIT
        self.own_memory = 0  # of the slot itself: its runs may have what was asked for beside it
        self.oom_kills = 0

    def limit(self, cpu_m: int, memory: int) -> None:
        """Raises OSError."""
        group = self.group
        if (cpu_m, memory) == self.limits:
            return
        before, self.limits = self.limits, (-1, -1)  # unknown, until all is written
        if cpu_m != before[0] and group.cpu_dir:
            group.limit_cpu(quota_us(cpu_m))
        if memory != before[1] and group.memory_dir:
            if not self.own_memory:
                self.own_memory = self._memory_used()
            group.limit_memory(0)
            if memory:
                group.limit_memory(memory + self.own_memory)
        self.limits = (cpu_m, memory)

    def begin(self) -> None:
        """A run begins: what it uses is counted from here."""
        self.oom_kills = self._oom_kills()
        if self.limits[1] and self.group.kind == "v1":
            with suppress(OSError):
                write(f"{self.group.memory_dir}/memory.max_usage_in_bytes", "0")

    def out_of_memory(self) -> bool:
        return self._oom_kills() > self.oom_kills

    def memory_max(self) -> int:
        """Of a run with a limit. v2 counts over all runs of a slot, so it says nothing about one."""
        if not self.limits[1] or self.group.kind != "v1":
            return 0
        return max(0, self.group.memory_max() - self.own_memory)

    def remove(self) -> bool:
        """False: there is still something inside."""
        removed = self.group.remove()
        if self.pids_dir:
            with suppress(OSError):
                os.rmdir(self.pids_dir)
        return removed

    def kill(self) -> bool:
        return self.group.kill() if self.group.dirs else True

    def _memory_used(self) -> int:
        name = "memory.current" if self.group.kind == "v2" else "memory.usage_in_bytes"
        return int(read(f"{self.group.memory_dir}/{name}") or 0)

    def _oom_kills(self) -> int:
        if not self.group.memory_dir or not self.limits[1]:
            return 0
        name = "memory.events" if self.group.kind == "v2" else "memory.oom_control"
        lines = read(f"{self.group.memory_dir}/{name}").split("\n")
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


class SlotHandle:
    """`pid` is 0 until it is born. It was not waited for while it is in the pool, so the number is its own."""

    def __init__(self, key: tuple[str, int, int, str], link: socket.socket, group: SlotGroup | None) -> None:
        self.key = key
        self.link = link
        self.fd = link.fileno()
        self.group = group
        self.pid = 0
        self.is_ready = False
        self.is_clean = True  # nothing of a run is in it
        self.is_killed = False  # by us
        self.is_busy = False  # clears what a run has left
        self.run_id = ""  # whose step is in it, or is to be
        self.due = NEVER  # when it must have answered
        self.reported = KeeperUsage()  # of runs that have ended here

    def kill(self) -> None:
        """The kernel ends everything in its namespaces with it."""
        self.is_killed = True
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
