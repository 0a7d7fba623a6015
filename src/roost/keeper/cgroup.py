"""Limits on a run through cgroups: what this machine allows (v2, v1 or nothing), and one group per limited run.

Standard library only and no `typing`: the keeper loads this file and has to start in a few milliseconds.
"""

import os
import signal
from contextlib import suppress

from roost.keeper import processes

PERIOD_US = 100_000  # the kernel's own default
PIDS_MAX = 32_768  # of one run, threads included: more than a large program has, less than a machine
QUOTA_US_MIN = 1_000  # the kernel refuses less: 10 milli-cores
SHARED = "roost"  # at the top of a v2 tree, for keepers that have no group of their own
KEEPER_LEAF = "roost-keeper"  # v2 allows no processes beside run groups, so the keeper moves down one level


class Cgroups:
    """What limits are possible here. `cpu` and `memory`: the directories to make groups in, empty when impossible."""

    def __init__(
        self, kind: str, reason: str = "", cpu: str = "", memory: str = "", home: str = "", pens: str = "",
        pens_threaded: bool = False,
    ) -> None:  # fmt: skip
        self.kind = kind  # "v2", "v1" or "none"
        self.reason = reason  # why not (all of it), as a message
        self.cpu = cpu
        self.memory = memory
        self.home = home  # v2: where the keeper itself lives; v1: it lives in `cpu` and `memory`
        self.pens = pens  # where to make the groups that hold all processes of a run each (containment.py)
        self.pens_threaded = pens_threaded  # it is a tree of v2
        self.pids_max = PIDS_MAX
        self.pen_homes = (home or pens,) if pens else ()  # where the keeper itself came from

    def missing(self, cpu_m: int, memory: int) -> str:
        asked = (("cpu", cpu_m, self.cpu), ("memory", memory, self.memory))
        wanted = [name for name, amount, base in asked if amount and not base]
        return f"{' and '.join(wanted)} cannot be limited: {self.reason}" if wanted else ""


class Group:
    """The group of one run. The keeper enters it for the moment of a birth, so that no child is ever outside."""

    def __init__(self, at: Cgroups, name: str, cpu_m: int, memory: int) -> None:
        self.kind = at.kind
        self.cpu_m = cpu_m if at.cpu else 0
        self.memory = memory if at.memory else 0
        self.cpu_dir = f"{at.cpu}/{name}" if self.cpu_m else ""
        self.memory_dir = f"{at.memory}/{name}" if self.memory else ""
        self.dirs = tuple(dict.fromkeys(d for d in (self.cpu_dir, self.memory_dir) if d))
        self.at = at
        try:
            for directory in self.dirs:
                os.mkdir(directory)
        except OSError:
            self.remove()
            raise

    def enter(self) -> None:
        """Lift the limits and move in: a keeper that was throttled or killed here would take all its runs with it."""
        if self.cpu_m:
            self.limit_cpu(0)
        if self.memory:
            self.limit_memory(0)
        for directory in self.dirs:
            write(f"{directory}/cgroup.procs", "0")

    def leave(self) -> None:
        """Move back home. A home that is gone is a broken machine: better to stop loudly than to stay in here."""
        homes = (self.at.home,) if self.at.home else (self.cpu_m and self.at.cpu, self.memory and self.at.memory)
        for home in homes:
            if home:
                write(f"{home}/cgroup.procs", "0")

    def apply(self) -> bool:
        """Set the limits on what was just born. False: it has outgrown its memory already."""
        if self.cpu_m:
            self.limit_cpu(quota_us(self.cpu_m))
        try:
            if self.memory:
                self.limit_memory(self.memory)
        except OSError:  # v1 says EBUSY when it cannot squeeze what is used below the limit
            return False
        return True

    def limit_cpu(self, quota_us: int) -> None:
        if self.kind == "v2":
            write(f"{self.cpu_dir}/cpu.max", f"{quota_us or 'max'} {PERIOD_US}")
        else:
            write(f"{self.cpu_dir}/cpu.cfs_quota_us", str(quota_us or -1))

    def limit_memory(self, limit: int) -> None:
        """No swap beyond the limit: a run that swaps slows its neighbours."""
        here = self.memory_dir
        if self.kind == "v2":
            write(f"{here}/memory.max", str(limit or "max"))
            write_if_there(f"{here}/memory.swap.max", "0" if limit else "max")
        elif limit:
            write(f"{here}/memory.limit_in_bytes", str(limit))
            write_if_there(f"{here}/memory.memsw.limit_in_bytes", str(limit))
        else:
            write_if_there(f"{here}/memory.memsw.limit_in_bytes", "-1")  # first: it may not be below the other
            write(f"{here}/memory.limit_in_bytes", "-1")

    def kill(self) -> bool:
        """KILL whatever is inside, also what left its process group. True when nothing is left."""
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    def pids(self) -> list[int]:
        """Who is inside: a birth enters every directory, so any one of them tells."""
        return pids_in(self.dirs[0])

    def out_of_memory(self) -> bool:
        if not self.memory:
            return False
        name = "memory.events" if self.kind == "v2" else "memory.oom_control"
        return any(
            line.startswith("oom_kill ") and line != "oom_kill 0"
            for line in read(f"{self.memory_dir}/{name}").split("\n")
        )

    def memory_max(self) -> int:
        if not self.memory:
            return 0
        name = "memory.peak" if self.kind == "v2" else "memory.max_usage_in_bytes"
        return int(read(f"{self.memory_dir}/{name}") or 0)

    def cpu_s(self) -> float:
        """Of all that was ever in it; 0: that is not counted here."""
        if not self.cpu_dir:
            return 0.0
        if self.kind == "v2":
            found = [line.split()[1] for line in read(f"{self.cpu_dir}/cpu.stat").split("\n") if "usage_usec" in line]
            return int(found[0]) / 1_000_000 if found else 0.0
        return int(read(f"{self.cpu_dir}/cpuacct.usage") or 0) / 1_000_000_000

    def remove(self) -> bool:
        return all([remove(directory) for directory in self.dirs])


def quota_us(cpu_m: int) -> int:
    return max(QUOTA_US_MIN, cpu_m * PERIOD_US // 1000) if cpu_m else 0


def detect(proc: str = "/proc/self") -> Cgroups:
    """What could be done here, found by looking only: nothing is moved or made."""
    mounts = mounts_of(read(f"{proc}/mountinfo"))
    own = groups_of(read(f"{proc}/cgroup"))
    if "" in own and "cgroup2" in mounts and {"cpu", "memory"} <= _controllers(mounts["cgroup2"][0]):
        return _detect_v2(place_of(mounts["cgroup2"], own[""]), mounts["cgroup2"][0])
    return _detect_v1(mounts, own)


def _detect_v2(here: str, top: str) -> Cgroups:
    """Our own group where controllers were handed to it (a service that may delegate), or one at the top."""
    base = here[: -len(KEEPER_LEAF) - 1] if here.endswith("/" + KEEPER_LEAF) else here
    if {"cpu", "memory"} <= _controllers(base) and os.access(base, os.W_OK):
        return Cgroups("v2", cpu=base, memory=base, home=here, pens=base, pens_threaded=True)
    shared = f"{top}/{SHARED}"
    if os.access(shared if os.path.isdir(shared) else top, os.W_OK):
        return Cgroups("v2", cpu=shared, memory=shared, home=here, pens=shared, pens_threaded=True)
    return Cgroups(
        "none", f"cgroup v2 at {base} is not ours to write; run the keeper as root, or delegate the group to it"
    )


def _controllers(group: str) -> set[str]:
    return set(read(f"{group}/cgroup.controllers").split())


def _detect_v1(mounts: dict[str, tuple[str, str]], own: dict[str, str]) -> Cgroups:
    places: dict[str, str] = {}
    reasons: list[str] = []
    for controller in ("cpu", "memory"):
        path = next((path for names, path in own.items() if controller in names.split(",")), None)
        if path is None or controller not in mounts:
            reasons.append(f"no cgroup controller for {controller} is mounted")
            continue
        place = place_of(mounts[controller], path)
        if os.access(place, os.W_OK):
            places[controller] = place
        else:
            reasons.append(f"{place} is not writable")
    pens, is_v2 = _pens_v1(mounts, own)
    kind = "v1" if places or pens else "none"
    limits = places.get("cpu", ""), places.get("memory", "")
    return Cgroups(kind, "; ".join(reasons), *limits, pens=pens, pens_threaded=is_v2)


def _pens_v1(mounts: dict[str, tuple[str, str]], own: dict[str, str]) -> tuple[str, bool]:
    """The tree of `pids`, which can limit a run; without it a v2 tree beside those of v1. And whether it is of v2."""
    for controller, mount in (("pids", "pids"), ("", "cgroup2")):
        if controller in own and mount in mounts:
            place = place_of(mounts[mount], own[controller])
            if os.access(place, os.W_OK):
                return place, mount == "cgroup2"
    return "", False


def prepare(found: Cgroups) -> Cgroups:
    """Make ready what `detect` found; to be called before the keeper has children. v1 needs nothing.

    v2: a group with processes cannot hand controllers to groups below it. So the keeper steps down into a leaf; where
    others share its group (a login session), the groups go below a shared one at the top of the tree instead.
    """
    if found.kind != "v2":
        return found
    here, base = found.home, found.cpu
    top = mounts_of(read("/proc/self/mountinfo"))["cgroup2"][0]
    if base == f"{top}/{SHARED}":
        return _prepare_shared(top, here)
    leaf = f"{base}/{KEEPER_LEAF}"
    try:
        os.makedirs(leaf, exist_ok=True)
        write(f"{leaf}/cgroup.procs", "0")
        _hand_down(base)
        return Cgroups("v2", cpu=base, memory=base, home=leaf, pens=base, pens_threaded=True)
    except OSError:
        write(f"{here}/cgroup.procs", "0")
        remove(leaf)
        return _prepare_shared(top, here)


def _prepare_shared(top: str, here: str) -> Cgroups:
    shared = f"{top}/{SHARED}"
    try:
        os.makedirs(shared, exist_ok=True)
        _hand_down(top)
        _hand_down(shared)
    except OSError as error:
        return Cgroups("none", f"cgroup v2 controllers cannot be handed down: {error}")
    return Cgroups("v2", cpu=shared, memory=shared, home=here, pens=shared, pens_threaded=True)


def _hand_down(group: str) -> None:
    write(f"{group}/cgroup.subtree_control", "+cpu +memory")
    with suppress(OSError):  # not every tree has it
        write(f"{group}/cgroup.subtree_control", "+pids")


def clear(at: Cgroups, prefix: str) -> None:
    for base in dict.fromkeys(d for d in (at.cpu, at.memory, at.pens) if d):
        for name in os.listdir(base):
            if name.startswith(prefix):
                remove(f"{base}/{name}")


def mounts_of(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Controller name (or "cgroup2") to (mount point, the part of the tree that is mounted there)."""
    found: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if kind[0] == "cgroup2":
            found.setdefault("cgroup2", (fields[4], fields[3]))
        elif kind[0] == "cgroup":
            for option in kind[-1].split(","):
                found.setdefault(option, (fields[4], fields[3]))
    return found


def groups_of(text: str) -> dict[str, str]:
    """Controllers (as they are mounted together; "" for v2) to the path of a process's group."""
    return dict(line.split(":", 2)[1:] for line in text.splitlines() if line.count(":") >= 2)


def place_of(mount: tuple[str, str], path: str) -> str:
    """Where the group `path` is to be seen: below the mount point, without the part above what is mounted."""
    point, root = mount
    if root != "/" and path.startswith(root):
        path = path[len(root) :]
    return point if path in ("", "/") else f"{point}{path}"


def read(path: str) -> str:
    """A small kernel file, or nothing where it is not there."""
    return (processes.read(path) or b"").decode(errors="replace").rstrip("\n")


def pids_in(group: str) -> list[int]:
    return [int(pid) for pid in read(f"{group}/cgroup.procs").split()]


def write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def write_if_there(path: str, value: str) -> None:
    """For files that depend on the kernel's configuration (swap accounting)."""
    if os.path.exists(path):
        write(path, value)


def remove(directory: str) -> bool:
    """False: there is still something inside."""
    with suppress(OSError):
        os.rmdir(directory)
    return not os.path.exists(directory)
