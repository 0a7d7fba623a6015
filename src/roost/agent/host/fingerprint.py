"""What this host offers and how much of it is in use: from /proc and cgroups, bounded by what our group may use."""

import os
import pwd
from contextlib import suppress

import msgspec

from roost.keeper import cgroup
from roost.model.limits import PORT_ANY_FIRST, PORT_ANY_LAST
from roost.model.protocol import Usage
from roost.model.records.node import Facts
from roost.model.states import IsolationLevel

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386", "i386": "386"}
OWN_FILES_MAX = 10_000  # how many of our own files are counted: a hundred milliseconds at worst, when an agent starts
UNBOUNDED = 1 << 60  # more than any machine has
NO_WISHES = Facts({})

_TICKS = os.sysconf("SC_CLK_TCK")


def facts(
    data_dir: str, wishes: Facts = NO_WISHES, share: int = 1, number: int = 1, *, ports: str = "",
    isolation: IsolationLevel = IsolationLevel.NONE, users: bool = False, proc: str = "/proc",
) -> Facts:  # fmt: skip
    """What this host offers, with what the agent's options set instead, `wishes`.

    Where several agents share the machine: the part of this agent, which is `number` of `share`. `ports` are those that
    its keeper has claimed, FIRST-LAST.
    """
    cpu_m, memory = bounds_of(f"{proc}/self")
    gpus = gpu_models(proc) if number == 1 else []  # devices have numbers: two agents would give the same away
    found = {
        "cpu": min(len(os.sched_getaffinity(0)) * 1000, cpu_m),
        "memory": min(meminfo(proc)["MemTotal"], memory),
        "disk": disk(data_dir),
    }
    resources = {name: amount // share for name, amount in found.items()}
    if gpus:
        resources["gpu"] = len(gpus) * 1000
    first, _, last = ports.partition("-")
    host = os.uname()
    labels = {
        "os": host.sysname.lower(),
        "kernel": host.release,
        "hostname": host.nodename,
        "limits": cgroup.detect().kind,
        "isolation": str(isolation),
    }
    return msgspec.structs.replace(
        wishes,
        resources=resources | wishes.resources,
        labels=labels | wishes.labels,
        arch=ARCHITECTURES.get(host.machine, host.machine),
        gpu_model=wishes.gpu_model or (gpus[0] if len(set(gpus)) == 1 else ""),
        port_first=int(first or PORT_ANY_FIRST),
        port_last=int(last or PORT_ANY_LAST),
        user=user_name(),
        isolation=isolation,
        users=users,
    )


def user_name() -> str:
    """Of this process; its number where the machine has no name for it, as in many containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def disk(data_dir: str) -> int:
    """Bytes we could have: what is free where our data lies, and what we hold already."""
    place = data_dir
    while not os.path.exists(place):
        place = os.path.dirname(place) or "."
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize + own_files(data_dir)


def own_files(data_dir: str) -> int:
    """What our own files take up, as far as we count. Without it a restarted agent would offer less each time."""
    total = seen = 0
    for folder, _, files in os.walk(data_dir):
        for name in files:
            with suppress(OSError):  # gone while we looked
                total += os.lstat(f"{folder}/{name}").st_blocks * 512
        seen += 1 + len(files)
        if seen > OWN_FILES_MAX:
            break
    return total


def gpu_models(proc: str = "/proc") -> list[str]:
    """The model of each GPU: NVIDIA's driver says what it has, and nothing is loaded to ask it.

    A node has one model or none to name: a request for one must not get another.
    """
    place = f"{proc}/driver/nvidia/gpus"
    try:
        devices = sorted(os.listdir(place))
    except OSError:
        return []
    models = []
    for device in devices:
        lines = (line.partition(":") for line in cgroup.read(f"{place}/{device}/information").splitlines())
        models.append(next((" ".join(value.split()) for name, _, value in lines if name.strip() == "Model"), ""))
    return models


def bounds_of(process: str) -> tuple[int, int]:
    """The milli-cores and bytes that the cgroups above us allow; UNBOUNDED where they allow everything."""
    cpu_m = min(map(cpu_bound, groups_above(process, "cpu")), default=UNBOUNDED)
    return cpu_m, min(map(memory_bound, groups_above(process, "memory")), default=UNBOUNDED)


def groups_above(process: str, controller: str) -> list[str]:
    """The directories of a process's group and all above it, for one controller (v1) or all of them (v2)."""
    mounts = cgroup.mounts_of(cgroup.read(f"{process}/mountinfo"))
    own = cgroup.groups_of(cgroup.read(f"{process}/cgroup"))
    mount, path = mounts.get(controller), next((own[names] for names in own if controller in names.split(",")), None)
    if mount is None or path is None:
        mount, path = mounts.get("cgroup2"), own.get("")
    if mount is None or path is None:
        return []
    here, top = cgroup.place_of(mount, path), mount[0]
    found = [here]
    while len(here) > len(top):
        here = os.path.dirname(here)
        found.append(here)
    return found


def cpu_bound(group: str) -> int:
    arguments = cgroup.read(f"{group}/cpu.max").split()
    if not arguments:
        arguments = [cgroup.read(f"{group}/cpu.cfs_quota_us"), cgroup.read(f"{group}/cpu.cfs_period_us")]
    if len(arguments) < 2 or not arguments[0].isdigit() or not arguments[1].isdigit() or arguments[1] == "0":
        return UNBOUNDED  # "max", -1, or no such file
    return int(arguments[0]) * 1000 // int(arguments[1])


def memory_bound(group: str) -> int:
    """Bytes a group may use. v1 says "no limit" with a number that no machine has."""
    text = cgroup.read(f"{group}/memory.max") or cgroup.read(f"{group}/memory.limit_in_bytes")
    return min(int(text), UNBOUNDED) if text.isdigit() else UNBOUNDED


def meminfo(proc: str = "/proc") -> dict[str, int]:
    return {name.rstrip(":"): kib * 1024 for name, kib in values(cgroup.read(f"{proc}/meminfo")).items()}


class UsageMeter:
    """What is in use now. A group with bounds of its own measures itself; otherwise the whole machine is measured.

    One of several agents on a machine says its share of it, so that the ratio to what it offers is right.
    """

    def __init__(self, data_dir: str, share: int = 1, *, proc: str = "/proc") -> None:
        self.data_dir = data_dir
        self.share = share
        self.proc = proc
        cpu_m, memory = bounds_of(f"{proc}/self")
        cpu_groups, memory_groups = groups_above(f"{proc}/self", "cpuacct"), groups_above(f"{proc}/self", "memory")
        self.cpu_group = cpu_groups[0] if cpu_m < UNBOUNDED and cpu_groups else ""
        self.memory_group = memory_groups[0] if memory < UNBOUNDED and memory_groups else ""
        self.last_busy_ms = self.busy_ms()
        self.last_at_ms: int | None = None

    def usage(self, now: int) -> Usage:
        """Milli-cores since the last time asked (0 the first time), and bytes of memory and disk."""
        busy_ms = self.busy_ms()
        past_ms = now - self.last_at_ms if self.last_at_ms is not None else 0
        milli = max(0, busy_ms - self.last_busy_ms) * 1000 // past_ms if past_ms > 0 else 0
        self.last_busy_ms, self.last_at_ms = busy_ms, now
        found = os.statvfs(self.data_dir)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return Usage(milli // self.share, self.memory_used() // self.share, used // self.share)

    def busy_ms(self) -> int:
        group = self.cpu_group
        if group and (v2 := values(cgroup.read(f"{group}/cpu.stat")).get("usage_usec")):
            return v2 // 1000
        if group and (v1 := cgroup.read(f"{group}/cpuacct.usage")):
            return int(v1) // 1_000_000
        first = cgroup.read(f"{self.proc}/stat").split("\n", 1)[0].split()
        user, nice, system, _idle, _wait, irq, softirq = (int(word) for word in first[1:8])
        return (user + nice + system + irq + softirq) * 1000 // _TICKS

    def memory_used(self) -> int:
        """What could not be had without taking it from a process: caches that can be dropped do not count."""
        group = self.memory_group
        if group:
            used = cgroup.read(f"{group}/memory.current") or cgroup.read(f"{group}/memory.usage_in_bytes")
            existing = values(cgroup.read(f"{group}/memory.stat"))
            return max(0, int(used or 0) - existing.get("total_inactive_file", existing.get("inactive_file", 0)))
        found = meminfo(self.proc)
        return found["MemTotal"] - found.get("MemAvailable", found["MemFree"])


def values(text: str) -> dict[str, int]:
    """Lines of a name and a number, as the kernel writes them."""
    lines = (line.split() for line in text.splitlines())
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1 and fields[1].isdigit()}
