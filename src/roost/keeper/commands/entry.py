"""The way into a run: its cgroups, namespaces, user and limits, then a program in place of this one."""

import fcntl
import os
import resource
import signal
import socket
import struct
import termios
from contextlib import suppress

from roost.keeper import cgroup, processes
from roost.keeper.slots import messages, seccomp, system
from roost.keeper.slots.slot import OOM_CHOOSE_FIRST
from roost.keeper.spawn import MESSAGES, SpawnRefused, ignored_signals, program

NAMESPACES = ("mnt", "ipc", "uts", "pid")


class CommandOrder:
    """What to start and where; marshal carries it as a tuple."""

    def __init__(
        self, id: str, argv: list[str], env: dict[str, str], place: str, pid: int, slot: int, user: int, group: int,
        is_isolated: bool, size: "tuple[int, int] | None",
    ) -> None:  # fmt: skip
        self.id = id
        self.argv = argv
        self.env = env
        self.place = place  # the work directory
        self.pid = pid  # a process of the run
        self.slot = slot  # process 1 of its namespaces; 0: it has none of its own
        self.user = user
        self.group = group
        self.is_isolated = is_isolated  # another user than ours, or no privileges
        self.size = size  # rows and columns of its terminal; None: it has none

    def packed(self) -> "tuple[object, ...]":
        return (
            self.id, self.argv, self.env, self.place, self.pid, self.slot, self.user, self.group, self.is_isolated,
            self.size,
        )  # fmt: skip


def enter(order: CommandOrder) -> None:
    """Go where the run is; children are born there. Raises OSError."""
    join_groups(order.slot or order.pid)
    if not order.slot:
        return
    names = NAMESPACES if os.geteuid() == 0 else ("user", *NAMESPACES)
    target = member_of(order.slot)
    with suppress(OSError, ValueError):
        limit = resource.prlimit(target, resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, limit)
    for fd in [os.open(f"/proc/{target}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]:
        system.enter(fd)
        os.close(fd)


def member_of(slot: int) -> int:
    """A process of a slot that may be looked at. Raises ProcessLookupError."""
    members = (processes.read(f"/proc/{slot}/task/{slot}/children") or b"").split()
    if not members:
        raise ProcessLookupError(3, "no process of the run is there any longer", "its slot")
    return int(members[0])


def join_groups(pid: int) -> None:
    """Every cgroup of a process that is not ours already."""
    mounts = cgroup.mounts_of(cgroup.read("/proc/self/mountinfo"))
    own = cgroup.groups_of(cgroup.read("/proc/self/cgroup"))
    theirs = cgroup.groups_of(cgroup.read(f"/proc/{pid}/cgroup"))
    if not theirs:
        raise ProcessLookupError(3, "no process of the run is there any longer", f"process {pid}")
    for names, path in theirs.items():
        mount = mounts.get(names.split(",")[0] if names else "cgroup2")
        if path != own.get(names) and mount is not None:
            cgroup.write(f"{cgroup.place_of(mount, path)}/cgroup.procs", "0")


def become(order: CommandOrder, link: socket.socket, files: "list[int]") -> None:
    """Be the command. Returns only by raising SpawnRefused or OSError."""
    os.setsid()
    os.chdir(order.place)  # the user of the run may not pass the folders above it
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OOM_CHOOSE_FIRST)
    if order.is_isolated:
        leave_privileges(order)
    system.die_with_parent()
    for number in ignored_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if order.size is not None:  # from here on, keys may be signals
        files = [open_terminal(link, *order.size)]
    for target, fd in enumerate((files[0], files[len(files) // 2], files[-1])):
        os.dup2(fd, target)
    argv = order.argv
    path = argv[0] if "/" in argv[0] else program(argv[0], order.env["PATH"])
    try:
        os.execve(path, argv, order.env)
    except OSError as error:
        raise SpawnRefused(f"{argv[0]}: {MESSAGES.get(error.errno or 0, error.strerror)}") from error
    except ValueError as error:  # a NUL inside, or half a surrogate pair
        raise SpawnRefused(f"{argv[0]}: {error}") from error


def leave_privileges(order: CommandOrder) -> None:
    """As the run's own processes were born."""
    is_root = os.geteuid() == 0
    if is_root:
        os.setgroups([])
    system.give_up_privileges()
    if order.slot and seccomp.is_known():
        seccomp.install()
    if is_root:
        os.setresgid(order.group, order.group, order.group)
        os.setresuid(order.user, order.user, order.user)


def open_terminal(link: socket.socket, rows: int, columns: int) -> int:
    """One of the run's own, as /dev/pts shows it there. The agent gets its other side."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    messages.send(link, ("terminal",), (master,))
    return slave
