"""A cgroup around every run, so that no process outlives its run, whatever it does with its session and environment.

The keeper enters the group of a run before each birth, so that no process is moved after its birth. It moves only its
one thread: that takes 5 us, where moving a process waits for a grace period of the kernel, some milliseconds. Groups of
ended runs are emptied and used again.

v1 has a file for that (`tasks`). In v2, threads move only between threaded groups, which lie below one that the keeper
lives in. Such groups cannot be killed as a whole: nothing inside may fork while its processes are killed one by one.
"""

import os
import signal
from contextlib import suppress

from roost.keeper.cgroup import PIDS_MAX, Cgroups, read, remove, write, write_if_there
from roost.keeper.processes import log

OPEN_MAX = 256  # groups whose files are kept open, two each; more runs than that at once cost 15 us more each


class Pen:
    """The group of one run. `entrance`: the file that takes threads; `members`: the one that lists who is inside."""

    def __init__(self, directory: str, entrance: str, members: str, pids_max: int, *, keep_open: bool) -> None:
        self.dir = directory
        self.pids_max = pids_max
        self.entrance = f"{directory}/{entrance}"
        self.members = members
        self.enter_fd = os.open(self.entrance, os.O_WRONLY) if keep_open else -1
        counts = keep_open and os.path.exists(f"{directory}/pids.current")
        self.count_fd = os.open(f"{directory}/pids.current", os.O_RDONLY) if counts else -1
        self.is_closed = False  # nothing inside may fork

    def enter(self) -> None:
        """Move this thread in."""
        if self.enter_fd >= 0:
            os.write(self.enter_fd, b"0")
        else:
            write(self.entrance, "0")

    def others(self) -> list[int]:
        """The processes inside and in groups that they made, without the keeper. 0 is one of another pid namespace."""
        texts = [read(f"{directory}/{self.members}") for directory, _, _ in os.walk(self.dir)]
        return [int(pid) for pid in " ".join(texts).split() if int(pid) not in (0, os.getpid())]

    def is_empty(self, keepers: int) -> bool:
        """Whether nothing but so many threads of the keeper is inside."""
        if self.count_fd < 0:
            return not self.others()
        try:
            return int(os.pread(self.count_fd, 32, 0)) == keepers
        except OSError:  # only an empty group can be removed
            return True

    def clear(self) -> bool:
        """KILL whatever is inside. True: nothing was."""
        pids = self.others()
        if pids and not self.is_closed:
            self.is_closed = True
            with suppress(OSError):
                write_if_there(f"{self.dir}/pids.max", "0")
            pids = self.others()
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    def open(self) -> None:
        """For a run: with its limit."""
        self.is_closed = False
        limit_pids(self.dir, self.pids_max)

    def remove(self) -> bool:
        """False: there is still something inside."""
        for fd in (self.enter_fd, self.count_fd):
            if fd >= 0:
                os.close(fd)
        self.enter_fd = self.count_fd = -1
        return all([remove(directory) for directory, _, _ in os.walk(self.dir, topdown=False)])


class Containment:
    """The groups of one keeper. Every method but `begin` and `end` returns at once."""

    def __init__(self, cgroups: Cgroups, prefix: str) -> None:
        self.cgroups = cgroups
        self.prefix = prefix
        self.threaded = cgroups.pens_threaded
        self.base = f"{cgroups.pens}/{prefix}root" if cgroups.pens and self.threaded else cgroups.pens
        self.works = False
        self.limits_pids = False
        self.inside: Pen | None = None  # where the keeper is; None: at the base, or where it came from
        self.left: list[Pen] = []  # of ended runs, not empty yet
        self.spare: list[Pen] = []
        self.made = 0

    def begin(self) -> None:
        """Clear what an earlier keeper left, and try the first group."""
        if not self.base:
            return
        try:
            self._clear_earlier()
            pen = self._make()
            self.spare.append(pen)
            if self.threaded:  # beside a threaded group the keeper may live, and only there
                write(f"{self.base}/cgroup.procs", "0")
                self.cgroups.home = self.cgroups.home and self.base
            self.enter(pen)
            self.go_home()
        except OSError as error:
            log(f"no process can be kept from outliving its run: {error}")
            self.end()
            return
        self.works = True
        self.limits_pids = os.path.exists(f"{pen.dir}/pids.max")

    def enter_empty(self) -> Pen | None:
        """A group for a run, entered; None: there is no containment. Raises OSError."""
        while self.spare and self.works:
            pen = self.spare.pop()
            try:
                self.enter(pen)
                return pen
            except OSError:  # it was removed
                pen.remove()
        if not self.works:
            return None
        pen = self._make()
        self.enter(pen)
        return pen

    def enter(self, pen: Pen) -> None:
        """The next child is born in there. Raises OSError."""
        if self.inside is not pen:
            pen.enter()
            self.inside = pen

    def go_home(self) -> None:
        """The next child is in no run's group."""
        if self.inside is not None:
            write(f"{self.base}/{'cgroup.threads' if self.threaded else 'tasks'}", "0")
            self.inside = None

    def ended(self, pen: Pen) -> None:
        """A run has ended: nothing stays of it."""
        if pen.is_empty(int(pen is self.inside)):
            self.spare.append(pen)
        else:
            pen.clear()
            self.left.append(pen)

    def check(self) -> bool:
        """Empty what is to be empty. True: look again soon."""
        if self.left:
            emptied = [pen for pen in self.left if pen.clear()]
            self.left = [pen for pen in self.left if pen not in emptied]
            for pen in emptied:
                pen.open()
            self.spare += emptied
        return bool(self.left)

    def release(self, pid: int) -> None:
        """A child that is no run, the agent: to where the keeper came from."""
        for home in self.cgroups.pen_homes if self.works else ():
            with suppress(OSError):
                write(f"{home}/cgroup.procs", str(pid))

    def end(self) -> bool:
        """Back to where the keeper came from. True: every group was empty, and is gone."""
        self.release(os.getpid())
        self.works, self.inside = False, None
        self.left = [pen for pen in self.left if not (pen.clear() and pen.remove())]
        self.spare = [pen for pen in self.spare if not pen.remove()]
        return not self.left and (not self.threaded or remove(self.base))

    def _make(self) -> Pen:
        self.made += 1
        directory = f"{self.base}/{self.prefix}{self.made}"
        os.makedirs(directory, exist_ok=True)
        pen = self._pen(directory, keep_open=self.made <= OPEN_MAX)
        pen.open()
        return pen

    def _pen(self, directory: str, *, keep_open: bool = False) -> Pen:
        if not self.threaded:
            return Pen(directory, "tasks", "cgroup.procs", self.cgroups.pids_max, keep_open=keep_open)
        if read(f"{directory}/cgroup.type") != "threaded":
            write(f"{directory}/cgroup.type", "threaded")
        return Pen(directory, "cgroup.threads", "cgroup.threads", self.cgroups.pids_max, keep_open=keep_open)

    def _clear_earlier(self) -> None:
        if self.threaded:
            os.makedirs(self.base, exist_ok=True)
            with suppress(OSError):  # not every tree has it
                write(f"{self.base}/cgroup.subtree_control", "+pids")
        for name in os.listdir(self.base):
            if name.startswith(self.prefix) and name[len(self.prefix) :].isdecimal():
                pen = self._pen(f"{self.base}/{name}")
                pen.clear()
                pen.remove()


def limit_pids(directory: str, pids_max: int = PIDS_MAX) -> None:
    """In the group of a run, where the tree can do it."""
    of_machine = int(read("/proc/sys/kernel/pid_max") or PIDS_MAX)
    with suppress(OSError):
        write_if_there(f"{directory}/pids.max", str(min(pids_max, of_machine // 2)))
