"""The keeper's runs as processes: the host that the keeper's rules act on.

Starts the processes of steps, takes in those that have ended, and looks after their directories, logs and cgroups.
"""

import binascii
import os
import signal
import time
from collections.abc import Callable

from roost.keeper import processes as proc
from roost.keeper.cgroup import Cgroups, Group, clear
from roost.keeper.clock import NEVER, now_ms
from roost.keeper.containers.ending import Containers
from roost.keeper.containment import Containment, limit_pids
from roost.keeper.machines.owned import Machines
from roost.keeper.orphans import Orphans
from roost.keeper.recycling import RecycledFiles, close, size_of
from roost.keeper.rules import Host, Rules
from roost.keeper.run import KeeperRun, RunRefused, is_gone, kill, lacks_limits, signal_group, spawn
from roost.keeper.slots.pool import SlotPool
from roost.keeper.socket import KeeperSocket
from roost.keeper.spawn import ignored_signals
from roost.keeper.usage import cpu_s_of, io_of

LOGS_OPEN_MAX = 256  # more logs of runs than that are not held open, and not used again
CLOSING_LOOKS_MAX = 100  # half a second: longer means a process that cannot be killed
LINGER_MS = 10  # how often to look whether a killed group is gone
CONTAINER_MS_MAX = NEVER  # a container may run as long as its engine does not say that it is gone
LINGER_MS_MAX = 2_000  # a group that resists KILL for longer hangs in the kernel; waiting longer would not help

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class RunTable(Host):
    """Every method gets the time; none of them waits."""

    def __init__(
        self, directory: str, cgroups: Cgroups, link: KeeperSocket, *, reaper: bool, recycle: bool,
        hidden: list[str], readable: list[str],
    ) -> None:  # fmt: skip
        self.rules = Rules(self, directory)
        self.home_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.ignored = ignored_signals()
        self.cgroups = cgroups
        self.link = link
        self.spares = RecycledFiles(f"{directory}/spare", enabled=recycle and reaper and proc.children() is not None)
        self.places: dict[str, int] = {}  # work directories and logs, and how many known runs have each
        self.by_pid: dict[int, KeeperRun] = {}  # main processes that were not waited for yet
        self.lingering: dict[str, int] = {}  # main process gone, others of its group not yet; until when to wait
        self.linger_at = NEVER
        self.group_prefix = f"roost-{binascii.crc32(directory.encode(errors='surrogateescape')):08x}-"
        self.containment = Containment(cgroups, f"{self.group_prefix}pen-")
        clear(cgroups, self.group_prefix)
        self.containment.begin()
        self.strays = Orphans(directory, self.spares, self.containment, reaper=reaper)
        self.slots = SlotPool(
            self.rules, link.epoll, cgroups, self.group_prefix, directory, hidden, readable,
            self.containment.go_home, self.containment.release,
        )  # fmt: skip
        self.containers = Containers(link.epoll)
        self.machines = Machines(self.rules, link.epoll)
        self.own_rss_max = 0  # KiB
        self.groups_made = 0

    # --- what the rules ask for

    def enforces(self) -> tuple[str, ...]:
        able = {
            "cpu": self.cgroups.cpu, "memory": self.cgroups.memory, "pids": self.containment.limits_pids,
            "cleanup": self.containment.works,
        }  # fmt: skip
        return tuple(name for name, is_able in able.items() if is_able)

    def admitted(self, run: KeeperRun) -> None:
        self.places[run.dir] = self.places.get(run.dir, 0) + 1
        for log in run.logs:
            self.places[log] = self.places.get(log, 0) + 1

    def forgotten(self, run: KeeperRun, now: int) -> None:
        owner = owner_of(run)[0]
        self._release(run.log, run.log_fd, owner)
        if run.stderr:
            self._release(run.stderr, run.stderr_fd, owner)
        if self._left(run.dir) and run.made_dir:
            self.spares.drop_dir(run.dir, owner_of(run)[0])
        self.strays.check_soon(now)

    def _release(self, log: str, fd: int, owner: int) -> None:
        if self._left(log):
            self.spares.drop_log(log, fd, owner)
        else:
            close(fd)

    def _left(self, place: str) -> bool:
        """Whether the run that leaves was the last one there: attempts may share a directory or a log."""
        count = self.places.pop(place)
        if count > 1:
            self.places[place] = count - 1
        return count == 1

    def limit(self, run: KeeperRun) -> None:
        if is_in_slot(run):
            return  # a slot has its groups already
        self.groups_made += 1
        assert run.limits is not None
        missing = self.cgroups.missing(*run.limits)
        try:
            group = Group(self.cgroups, f"{self.group_prefix}{self.groups_made}", *run.limits)
        except OSError as error:
            run.limits_said = f"none: {error}"
            return
        if group.dirs:
            run.group = group
            limit_pids(group.dirs[0], self.cgroups.pids_max)  # of use in v2, where this is the only group of the run
        if missing:
            run.limits_said = f"{'some' if group.dirs else 'none'}: {missing}"

    def spawn(self, run: KeeperRun) -> str:
        try:
            if run.log_fd < 0 or (run.stderr and run.stderr_fd < 0):
                self._furnish(run)
            run.log_offset = os.fstat(run.log_fd).st_size if len(run.steps) > 1 else 0
            if is_in_slot(run):
                return self.slots.start(run, now_ms())
            if lacks := lacks_limits(run):
                return lacks
            self._contain(run)
            run.pid = self._spawner(run)(run, self.ignored)
        except RunRefused as error:
            return str(error)
        if len(self.rules.known) > LOGS_OPEN_MAX // len(run.logs):
            close(run.log_fd)
            close(run.stderr_fd)
            run.log_fd = run.stderr_fd = -1
        self.by_pid[run.pid] = run
        self.strays.check_soon(now_ms())
        if run.group is not None:
            self._apply_limits(run, run.group)
        return ""

    def _spawner(self, run: KeeperRun) -> Callable[[KeeperRun, list[int]], int]:
        if run.machine is not None:
            return self.machines.spawn
        if run.container is None:
            return spawn
        run.container.limit_pids(self.cgroups.pids_max)
        return self.containers.spawn

    def terminate(self, run: KeeperRun) -> None:
        if is_in_slot(run):
            self.slots.signal(run, signal.SIGTERM, signal.SIGCONT)
            return
        if run.machine is not None:
            self.machines.terminate(run)
        else:
            signal_group(run.pid, signal.SIGTERM)
        signal_group(run.pid, signal.SIGCONT)  # a stopped process could not hear the first

    def kill(self, run: KeeperRun) -> None:
        if is_in_slot(run):
            self.slots.kill(run)
        else:
            kill(run)
            self.containers.end(run, now_ms())

    def command(self, run: KeeperRun, serial: int, action: str, grace_ms: int) -> None:
        self.machines.command(run, serial, action, grace_ms)

    def finished(self, run: KeeperRun, now: int) -> int:
        if run.group is not None:
            run.oom = run.oom or run.group.out_of_memory()
            run.usage.at_least(run.group.cpu_s(), run.group.memory_max())
            self.strays.remove(run.group)
        if run.pen is not None:
            self.containment.ended(run.pen)
            run.pen = None
        self.slots.finished(run, now)
        self.containers.forget(run, now)
        self.strays.check_soon(now)
        if run.stderr:
            run.stderr_size = size_of(run.stderr_fd, run.stderr)
        return size_of(run.log_fd, run.log)

    def emit(self, line: str, now: int, hold_ms: int) -> None:
        self.link.emit(line, now, hold_ms)

    # --- what happens by itself

    def reap(self, now: int) -> list[tuple[int, int]]:
        """Take in every child that has ended; those that are no run's are returned, with their status.

        The group is killed while the dead main process still holds its number: afterwards the number may be another's.
        """
        others: list[tuple[int, int]] = []
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, _ENDED)
            except ChildProcessError:
                break
            if found is None:
                break
            run = self.by_pid.pop(found.si_pid, None)
            if run is not None:
                signal_group(run.pid, signal.SIGKILL)
            pid, status, usage = os.wait4(found.si_pid, 0)
            if run is None:
                if self.slots.ended(pid, usage, status, now):
                    continue
                self.strays.reaped(pid, now)
                others.append((pid, status))
                continue
            run.code, run.is_exited = os.waitstatus_to_exitcode(status), True
            memory_max = self._memory_max(usage.ru_maxrss)
            run.usage.add(cpu_s_of(usage), memory_max, self.own_rss_max * 1024, *io_of(usage))
            if self._is_gone(run, now):
                self._step_over(run, now)
            else:
                self.lingering[run.id] = now + (LINGER_MS_MAX if run.container is None else CONTAINER_MS_MAX)
        if self.lingering:
            self._look_at_lingering(now)
        return others

    def tick(self, now: int) -> None:
        self.rules.tick(now)
        self.slots.tick(now)
        self.containers.turn(now)
        self.machines.turn(now)
        if self.linger_at <= now:
            self._look_at_lingering(now)
        if self.strays.look_at <= now:
            os.fchdir(self.home_fd)  # not to stay in a directory that an operator wants to unmount
            self.strays.check(self.rules.live, self.by_pid.keys() | self.slots.pids, now)

    def next_at(self) -> int:
        others = self.slots.next_at(), self.containers.next_at()
        return min(self.strays.look_at, self.linger_at, self.rules.next_at(), *others)

    def kill_all(self) -> None:
        """The last resort, when the keeper itself is broken: nothing may run without a keeper."""
        self.slots.kill_all()
        pens = self.containment.left
        for run in self.rules.live.values():
            kill(run)
            self.containers.kill_at_once(run)
            pens += [run.pen] if run.pen is not None else []
        self.containment.check()

    def close(self) -> None:
        """All runs have ended: clear away what left their groups, and the spares."""
        self.spares.clear()
        self.slots.kill_all()
        for _ in range(CLOSING_LOOKS_MAX):
            self.strays.check((), self.slots.pids, now_ms())
            if self.containment.end() and self.strays.look_at == NEVER and self.slots.is_empty():
                break
            time.sleep(0.005)  # to be adopted and killed takes a moment, for each generation
            self.reap(now_ms())

    # --- one run

    def _furnish(self, run: KeeperRun) -> None:
        try:
            run.made_dir = run.made_dir or self.spares.make_dir(run.dir, *owner_of(run))
        except OSError as error:
            raise RunRefused(f"work directory {run.dir}: {error.strerror}") from error
        if run.log_fd < 0:
            run.log_fd = self._open(run.log, run)
        if run.stderr and run.stderr_fd < 0:
            run.stderr_fd = self._open(run.stderr, run)

    def _open(self, log: str, run: KeeperRun) -> int:
        """It belongs to the user of the run, who may open it again: /dev/stderr is a name of it."""
        try:
            return self.spares.open_log(log, *owner_of(run))
        except OSError as error:
            raise RunRefused(f"log file {log}: {error.strerror}") from error

    def _contain(self, run: KeeperRun) -> None:
        """Go where the run is to be born. In v2, a limited run has a group already, and spawning goes there."""
        try:
            if run.group is not None and self.cgroups.home:
                self.containment.go_home()
                return
            if run.pen is not None:
                self.containment.enter(run.pen)
            else:
                run.pen = self.containment.enter_empty()
        except OSError as error:  # not born in the group of another run, with which it would end
            raise RunRefused(f"cgroup: {error.strerror}") from error

    def _apply_limits(self, run: KeeperRun, group: Group) -> None:
        try:
            if not group.apply():
                run.oom = True
                kill(run)
        except OSError as error:  # a quota above that of the group around it, for one
            run.limits_said = f"none: {error}"

    def _memory_max(self, rss_max_kib: int) -> int:
        """What a child used at most. 0: not more than our own size, with which its count began."""
        if self.own_rss_max < rss_max_kib < 2 * self.own_rss_max or not self.own_rss_max:
            self.own_rss_max = proc.own_size_max_kib()
        return rss_max_kib * 1024 if rss_max_kib > self.own_rss_max else 0

    def _is_gone(self, run: KeeperRun, now: int) -> bool:
        return is_gone(run) and self.containers.is_gone(run, now)

    def _step_over(self, run: KeeperRun, now: int) -> None:
        problem = self.containers.problem(run)
        if run.machine is not None and (problem := self.machines.ended(run, now)):
            run.cause = run.cause or "error"
        self.rules.step_over(run, now, problem)

    def _look_at_lingering(self, now: int) -> None:
        """A step is over when nothing of its group is left, not only its main process."""
        for run_id, until in list(self.lingering.items()):
            run = self.rules.live[run_id]
            if self._is_gone(run, now):
                del self.lingering[run_id]
                self._step_over(run, now)
            elif until <= now:
                del self.lingering[run_id]
                run.cause = run.cause or "exited"  # no further step beside what is left
                self.rules.step_over(run, now, f"processes of group {run.pid} cannot be killed")
            else:
                kill(run)  # again: a member may have been forking when the first KILL went round
        self.linger_at = now + LINGER_MS if self.lingering else NEVER


def is_in_slot(run: KeeperRun) -> bool:
    return run.isolation is not None and run.isolation.in_slot and run.machine is None


def owner_of(run: KeeperRun) -> tuple[int, int]:
    """The user and the group of its files."""
    if run.isolation is None:
        return os.geteuid(), os.getegid()
    return run.isolation.user, run.isolation.group
