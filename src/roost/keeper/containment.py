"""Cgroups around runs, so that no process outlives its run, whatever it does with its session and its environment.

The keeper lives in such a group itself, and whatever it starts is born in there: no process is moved after its birth.
A moment later the keeper moves on to the next group. A group that it has left, and whose runs have ended, is emptied:
what is still inside has left its run. Runs that begin within the same moment share a group, and are cleared together.

A move takes 8 to 12 ms on a machine at rest, because the kernel waits for a grace period. So a thread does it, and the
keeper works on. A run that begins meanwhile may be in either group, and counts in both.
"""

import _thread
import os
import signal
from contextlib import suppress

from roost.keeper.cgroup import Cgroups, pids_in, read, remove, write, write_if_there

MOVE_MS = 250  # between two moves: at a thousand runs a second they cost a thousandth of a core
PIDS_MAX = 32_768  # of the runs of one group, threads included: more than a large program has, less than a machine


class Pen:
    """One group, with a directory in each hierarchy that is used."""

    def __init__(self, dirs: tuple[str, ...]) -> None:
        self.dirs = dirs
        self.runs = 0  # that may have processes inside

    def clear(self) -> bool:
        """KILL whatever is inside. True: nothing was."""
        if not any(pid != os.getpid() for pid in pids_in(self.dirs[0])):
            return True
        kill = f"{self.dirs[0]}/cgroup.kill"
        if os.path.exists(kill):
            with suppress(OSError):
                write(kill, "1")
            return False
        for directory in self.dirs:  # nothing inside can fork while it is killed one by one
            with suppress(OSError):
                write_if_there(f"{directory}/pids.max", "0")
        for pid in pids_in(self.dirs[0]):
            if pid != os.getpid():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        return False


class Containment:
    """The groups of one keeper. Every method but `begin`, `settle` and `end` returns at once."""

    def __init__(self, cgroups: Cgroups, prefix: str) -> None:
        self.cgroups = cgroups
        self.prefix = prefix
        self.bases, self.homes = cgroups.pens, cgroups.pen_homes
        self.current: Pen | None = None  # where the keeper is; None: there is no containment
        self.next: Pen | None = None  # where it is moving to
        self.left: list[Pen] = []  # with runs, or not empty yet
        self.spare: list[Pen] = []
        self.made = 0
        self.used = False  # a run began since the last move
        self.move_at = 0  # not before
        self.problem = ""  # why the last move failed
        self.moving = _thread.allocate_lock()  # held by the thread that moves

    @property
    def limits_pids(self) -> bool:
        return self.current is not None and any(os.path.exists(f"{path}/pids.max") for path in self.current.dirs)

    def begin(self) -> None:
        """Clear what an earlier keeper left, and move into the first group."""
        for base in self.bases[:1]:
            for name in os.listdir(base):
                if name.startswith(self.prefix):
                    Pen((f"{base}/{name}",)).clear()
        if not self.bases:
            return
        try:
            pen = self._make()
            self._move(pen)
        except OSError as error:
            self.problem = str(error)
        if not self.problem:
            self._arrived(pen)

    def started(self) -> tuple[Pen, ...]:
        """A run begins now: the groups that it may be in."""
        pens = tuple(pen for pen in (self.current, self.next) if pen is not None)
        for pen in pens:
            pen.runs += 1
        self.used = self.used or bool(pens)
        return pens

    def ended(self, pens: tuple[Pen, ...]) -> None:
        for pen in pens:
            pen.runs -= 1

    def check(self, now: int) -> bool:
        """Move on if there is a reason to, and empty what is to be empty. True: look again soon."""
        if self.current is None:
            return False
        if self.next is not None and not self.moving.locked():
            moved, self.next = self.next, None
            if self.problem:
                self.spare.append(moved)
                self.problem = ""
            else:
                self.left.append(self.current)
                self._arrived(moved)
        if self.used and self.next is None and self.move_at <= now:
            self.move_at = now + MOVE_MS
            self._move_on()
        emptied = [pen for pen in self.left if not pen.runs and pen.clear()]
        self.left = [pen for pen in self.left if pen not in emptied]
        for pen in emptied:
            self._limit(pen)
        self.spare += emptied
        return self.used or self.next is not None or any(not pen.runs for pen in self.left)

    def settle(self) -> None:
        """Wait until no move is under way: in one hierarchy, a limited run is born somewhere else."""
        with self.moving:
            return

    def release(self, pid: int) -> None:
        """A child that is no run, the agent: to where the keeper came from."""
        for home in self.homes if self.current is not None else ():
            with suppress(OSError):
                write(f"{home}/cgroup.procs", str(pid))

    def kill_all(self) -> None:
        for pen in (self.current, self.next, *self.left):
            if pen is not None:
                pen.clear()

    def end(self) -> bool:
        """Back to where the keeper came from. True: every group was empty, and is gone."""
        if self.current is not None:
            self.settle()
            self.release(os.getpid())
            self.left += [pen for pen in (self.current, self.next) if pen is not None]
            self.current = self.next = None
        self.left = [pen for pen in self.left if not (pen.clear() and _remove(pen))]
        self.spare = [pen for pen in self.spare if not _remove(pen)]
        return not self.left

    def _move_on(self) -> None:
        self.used = False
        try:
            self.next = self.spare.pop() if self.spare else self._make()
        except OSError as error:
            self.problem = str(error)
            return
        self.moving.acquire()
        _thread.start_new_thread(self._move_in_thread, (self.next,))

    def _move_in_thread(self, pen: Pen) -> None:
        try:
            self._move(pen)
        finally:
            self.moving.release()

    def _move(self, pen: Pen) -> None:
        try:
            for directory in pen.dirs:
                write(f"{directory}/cgroup.procs", "0")
        except OSError as error:
            self.problem = str(error)

    def _arrived(self, pen: Pen) -> None:
        self.current = pen
        if self.cgroups.kind == "v2":
            self.cgroups.home = pen.dirs[0]  # where the keeper goes back to after the birth of a limited run

    def _make(self) -> Pen:
        self.made += 1
        pen = Pen(tuple(f"{base}/{self.prefix}{self.made}" for base in self.bases))
        for directory in pen.dirs:
            os.makedirs(directory, exist_ok=True)
        self._limit(pen)
        return pen

    def _limit(self, pen: Pen) -> None:
        for directory in pen.dirs:
            with suppress(OSError):
                write_if_there(f"{directory}/pids.max", str(min(PIDS_MAX, _pids_of_machine() // 2)))


def _remove(pen: Pen) -> bool:
    return all([remove(directory) for directory in pen.dirs])


def _pids_of_machine() -> int:
    return int(read("/proc/sys/kernel/pid_max") or PIDS_MAX)
