"""What a container used: read from the cgroups of its first process, which its engine removes soon after that ends.

A shim follows that process by a descriptor, and reads in the moment between the two. The kernel adds what is counted
while processes end before it says that they have.
"""

import _thread
import os
import select

from roost.keeper.cgroup import groups_of, mounts_of, place_of, read

END_S_MAX = 1.0  # from the end of the output to that of the process
SAMPLE_MS = 5_000  # should the groups be gone at the end: 0.2 ms for each container


class ContainerUsage:
    """Cgroups of v1 or v2, as far as they are there: what is not is not measured."""

    def __init__(self, pid: int) -> None:
        mounts, groups = mounts_of(read("/proc/self/mountinfo")), groups_of(read(f"/proc/{pid}/cgroup"))
        own = groups_of(read("/proc/self/cgroup"))
        self._places: dict[str, str] = {}  # controller -> directory
        for names, path in groups.items():
            for name in names.split(",") if names else ("cgroup2",):
                # That of all says nothing of it: it has ended already, or its engine makes no groups. Nor does our own.
                if name in mounts and path not in ("/", own.get(names)):
                    self._places[name] = place_of(mounts[name], path)
        self._last: list[object] | None = None
        self._over = _thread.allocate_lock()

    def follow(self, pid: int) -> None:
        """Read it at the end of this process, in a thread."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        self._over.acquire()
        _thread.start_new_thread(self._read_at_end, (fd,))

    def now(self) -> "list[object]":
        """As RunUsage reads it. After the end of a process that is followed: as it was then."""
        if self._over.acquire(timeout=END_S_MAX):
            self._over.release()
        return self._last or self._read()

    def _read_at_end(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            is_over = poll.poll(SAMPLE_MS)
            found = self._read()
            if self._last is None or found[0] is not None or found[1] is not None:
                self._last = found
            if is_over:
                break
        os.close(fd)
        self._over.release()

    def _read(self) -> "list[object]":
        io_read, io_written = self._io()
        return [self._cpu_ms(), self._memory_max(), False, io_read, io_written]

    def _cpu_ms(self) -> int | None:
        if found := self._number("cpuacct", "cpuacct.usage"):
            return found // 1_000_000
        microseconds = self._field("cgroup2", "cpu.stat", "usage_usec")
        return None if microseconds is None else microseconds // 1_000

    def _memory_max(self) -> int | None:
        return self._number("memory", "memory.max_usage_in_bytes") or self._number("cgroup2", "memory.peak")

    def _io(self) -> tuple[int | None, int | None]:
        lines = self._lines("blkio", "blkio.throttle.io_service_bytes")
        if lines:
            sums = {
                pair: sum(int(line.split()[2]) for line in lines if f" {pair} " in line) for pair in ("Read", "Write")
            }
            return sums["Read"], sums["Write"]
        if "cgroup2" not in self._places or not os.path.exists(f"{self._places['cgroup2']}/io.stat"):
            return None, None
        pairs = [pair for line in self._lines("cgroup2", "io.stat") for pair in line.split()]
        found = [sum(int(pair[7:]) for pair in pairs if pair.startswith(name)) for name in ("rbytes=", "wbytes=")]
        return found[0], found[1]

    def _number(self, controller: str, name: str) -> int | None:
        lines = self._lines(controller, name)
        return int(lines[0]) if lines and lines[0].isdigit() else None

    def _field(self, controller: str, name: str, field: str) -> int | None:
        found = [line.split()[1] for line in self._lines(controller, name) if line.startswith(f"{field} ")]
        return int(found[0]) if found else None

    def _lines(self, controller: str, name: str) -> "list[str]":
        place = self._places.get(controller)
        return read(f"{place}/{name}").splitlines() if place else []
