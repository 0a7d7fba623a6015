"""The keeper's table of runs: starts their steps, watches over time and lease, and says how each one ended."""

from __future__ import annotations

import binascii
import heapq
import os
import signal
import time

from roost.agent import keeper_proc as proc
from roost.agent.cgroup import Cgroups, Group, clear
from roost.agent.keeper_clock import NEVER, now_ms
from roost.agent.keeper_link import Link, encode
from roost.agent.keeper_run import (
    NOT_MADE,
    Refused,
    Run,
    ending,
    ignored_signals,
    is_gone,
    is_last,
    kill,
    limit,
    number,
    signal_group,
    spawn,
    text,
)
from roost.agent.keeper_spare import Spares, size_of
from roost.agent.keeper_strays import Strays

RUNS_MAX = 8_192  # known at a time, ended ones included: about 1 KiB each, and their notes
NOTES_SIZE_MAX = 128 << 20  # all together: they are told at once to whoever connects
LOGS_OPEN_MAX = 256  # more runs than that: their logs are not held open, and not used again
CLOSING_LOOKS_MAX = 100  # half a second: longer means a process that cannot be killed
BACKLOG_HOLD_MS = 5  # while runs wait here for others to end, what ended is told together: nobody has to hurry
LINGER_MS = 10  # how often to look whether a killed group is gone
LINGER_MS_MAX = 2_000  # a group that resists KILL for longer hangs in the kernel; waiting more would help nobody

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Runs:
    """Every method is told the time; none of them waits."""

    def __init__(self, directory: str, cgroups: Cgroups, link: Link, *, reaper: bool) -> None:
        self.directory = directory
        self.home_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.ignored = ignored_signals()
        self.cgroups = cgroups
        self.link = link
        self.spares = Spares(f"{directory}/spare", enabled=reaper and proc.children() is not None)
        self.known: dict[str, Run] = {}
        self.live: dict[str, Run] = {}
        self.notes_size = 0
        self.places: dict[str, int] = {}  # work directories and logs, and how many known runs have each
        self.by_pid: dict[int, Run] = {}  # main processes that were not waited for yet
        self.lingering: dict[str, int] = {}  # main process gone, others of its group not yet; until when to wait
        self.linger_at = NEVER
        self.due: list[tuple[int, str]] = []  # a heap; entries that no longer match their run's deadline are skipped
        self.lease_until = 0
        self.leased: dict[str, Run] = {}  # those that end with the lease
        self.followers: dict[str, list[Run]] = {}  # who begins when a run has ended
        self.closing = False
        self.strays = Strays(directory, self.spares, reaper=reaper)
        self.own_rss_max = 0  # KiB
        self.groups_made = 0
        self.group_prefix = f"roost-{binascii.crc32(directory.encode(errors='surrogateescape')):08x}-"
        clear(cgroups, self.group_prefix)

    # --- orders

    def start(self, order: dict[str, object], now: int) -> None:
        """Begin a run. A known id is not started again: orders may be repeated."""
        run_id = text(order, "id")
        if run_id in self.known:
            return
        if self.closing:
            raise Refused("the keeper is shutting down")
        if len(self.known) >= RUNS_MAX:
            raise Refused(f"{RUNS_MAX} runs are known already; forget those that ended")
        run = Run(run_id, order, self.directory, now)
        if self.notes_size + len(run.note) > NOTES_SIZE_MAX:
            raise Refused(f"notes of {NOTES_SIZE_MAX >> 20} MiB are kept already; forget runs that ended")
        if "until" in order:
            self.lease(number(order, "until", 0), now)
        self.known[run_id] = self.live[run_id] = run
        self.places[run.dir] = self.places.get(run.dir, 0) + 1
        self.places[run.log] = self.places.get(run.log, 0) + 1
        self.notes_size += len(run.note)
        after = text(order, "after", "")
        while (other := self.known.get(after)) is not None and other.ended:
            after = other.after  # one that ended before it began: its turn would have come later
        if after in self.live and after != run_id:
            self._wait(run, after)
        else:
            self._begin(run, now)

    def stop(self, order: dict[str, object], now: int) -> None:
        """TERM now, KILL after the grace. Asked again, the shorter grace holds."""
        run = self.known.get(text(order, "id"))
        if run is None:
            raise Refused("no such run")
        if not run.ended:
            run.why = run.why or text(order, "why", "", 1_000)
            self._stop(run, "stopped", number(order, "grace_ms", run.grace_ms), now)

    def forget(self, order: dict[str, object], now: int) -> None:
        """Drop an ended run, and its log and work directory where they are empty."""
        run = self.known.get(text(order, "id"))
        if run is None:
            return
        if not run.ended:
            raise Refused("the run has not ended")
        del self.known[run.id]
        self.notes_size -= len(run.note)
        if self._left(run.log):
            self.spares.drop_log(run.log, run.log_fd)
        elif run.log_fd >= 0:
            os.close(run.log_fd)
        if self._left(run.dir) and run.made_ns != NOT_MADE:
            self.spares.drop_dir(run.dir, run.made_ns)
        self.strays.look_soon(now)

    def _left(self, place: str) -> bool:
        """Whether the run that leaves was the last one there: attempts may share a directory or a log."""
        count = self.places.pop(place)
        if count > 1:
            self.places[place] = count - 1
        return count == 1

    def lease(self, until: int, now: int) -> None:
        """Leased runs may go on until then. The last word counts, also when it is an earlier time."""
        self.lease_until = until
        if until <= now:
            self._end_lease(now)

    def stop_all(self, grace_ms: int, why: str, now: int) -> None:
        """No new runs; all others are asked to stop."""
        self.closing = True
        for run in list(self.live.values()):
            run.why = run.why or why
            self._stop(run, "stopped", grace_ms, now)

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
                self.strays.reaped(pid, now)
                others.append((pid, status))
                continue
            run.status = status
            run.cpu_s += usage.ru_utime + usage.ru_stime
            if usage.ru_maxrss > self.own_rss_max:
                self._count_memory(run, usage.ru_maxrss)
            if is_gone(run):
                self._over(run, now)
            else:
                self.lingering[run.id] = now + LINGER_MS_MAX
        if self.lingering:
            self._look_at_lingering(now)
        return others

    def tick(self, now: int) -> None:
        """Whatever is due: timeouts, KILLs, the end of the lease, and looking after those that left their group."""
        while self.due and self.due[0][0] <= now:
            at, run_id = heapq.heappop(self.due)
            run = self.live.get(run_id)
            if run is None or run.deadline != at:
                continue
            run.deadline = 0
            if run.state == "running":
                self._stop(run, "timed_out", run.grace_ms, now)
            else:
                kill(run)
        if self.lease_until <= now and self.leased:
            self._end_lease(now)
        if self.linger_at <= now:
            self._look_at_lingering(now)
        if self.strays.look_at <= now:
            os.fchdir(self.home_fd)  # not to sit for ever in a directory that somebody wants to unmount
            self.strays.look(self.live, self.by_pid, now)

    def next_at(self) -> int:
        """When `tick` has something to do next."""
        at = min(self.strays.look_at, self.linger_at)
        if self.due:
            at = min(at, self.due[0][0])
        return min(at, self.lease_until) if self.leased else at

    def kill_all(self) -> None:
        """The last resort, when the keeper itself is broken: nothing may run without somebody to watch it."""
        for run in self.live.values():
            kill(run)

    def close(self) -> None:
        """All runs have ended: clear away what left their groups, and the spares."""
        self.spares.clear()
        for _ in range(CLOSING_LOOKS_MAX):
            self.strays.look((), (), now_ms())
            if self.strays.look_at == NEVER:
                break
            time.sleep(0.005)  # to be adopted and killed takes a moment, for each generation
            self.reap(now_ms())

    # --- the life of one run

    def _wait(self, run: Run, after: str) -> None:
        run.state, run.started_at, run.after = "waiting", 0, after
        self.followers.setdefault(after, []).append(run)
        if run.leased:
            self.leased[run.id] = run

    def _begin(self, run: Run, now: int) -> None:
        run.state, run.started_at, run.after = "running", now, ""
        if run.leased:
            if self.lease_until <= now:
                self._end(run, "lease", now)
                return
            self.leased[run.id] = run
        if run.limits:
            self.groups_made += 1
            limit(run, self.cgroups, f"{self.group_prefix}{self.groups_made}")
        if self._step(run, now) and run.timeout_ms:
            self._later(run, now + run.timeout_ms)

    def _pass_on(self, run: Run, now: int) -> None:
        """Who waited for a run begins; if that never began itself, they wait for whom it waited for."""
        if run.after:
            self.followers[run.after].remove(run)
            for follower in self.followers.pop(run.id, ()):
                self._wait(follower, run.after)
            if not self.followers[run.after]:
                del self.followers[run.after]
        else:
            for follower in self.followers.pop(run.id, ()):
                self._begin(follower, now)

    def _step(self, run: Run, now: int) -> bool:
        """Start the current step, or the first after it that can be. False: the run has ended."""
        while True:
            try:
                offset = self._spawn(run)
                break
            except Refused as error:
                run.codes += (127,)  # as a shell would say
                if not run.steps[run.step][1]:
                    self._end(run, "error", now, str(error))
                    return False
                if run.step + 1 == len(run.steps):
                    self._end(run, "exited", now, str(error))
                    return False
                run.step += 1
        if run.step == 0:
            limits = f',"limits":{encode(run.limits_said)}' if run.limits_said else ""
            self.link.emit_soon(f'{{"event":"started","id":{run.quoted},"pid":{run.pid},"at":{now}{limits}}}', now)
        if len(run.steps) > 1:
            where = f'"step":{run.step},"pid":{run.pid},"at":{now},"log_offset":{offset}'
            before = run.codes[-1] if run.codes else "null"
            self.link.emit(f'{{"event":"step","id":{run.quoted},{where},"before":{before}}}')
        return True

    def _spawn(self, run: Run) -> int:
        """The process of the current step; returns how long the log is as it begins."""
        if run.log_fd < 0:
            self._furnish(run)
        offset = os.fstat(run.log_fd).st_size if len(run.steps) > 1 else 0
        run.pid = spawn(run, self.ignored)
        if len(self.known) > LOGS_OPEN_MAX:
            os.close(run.log_fd)
            run.log_fd = -1
        self.by_pid[run.pid] = run
        if run.group is not None:
            self._apply_limits(run, run.group)
        return offset

    def _furnish(self, run: Run) -> None:
        """Its work directory and its log."""
        try:
            if run.made_ns == NOT_MADE:
                run.made_ns = self.spares.make_dir(run.dir)
        except OSError as error:
            raise Refused(f"work directory {run.dir}: {error.strerror}") from error
        try:
            run.log_fd = self.spares.open_log(run.log)
        except OSError as error:
            raise Refused(f"log file {run.log}: {error.strerror}") from error

    def _apply_limits(self, run: Run, group: Group) -> None:
        try:
            if not group.apply():
                run.oom = True
                kill(run)
        except OSError as error:  # a quota above that of the group around it, for one
            run.limits_said = f"none: {error}"

    def _stop(self, run: Run, cause: str, grace_ms: int, now: int) -> None:
        """The first cause is the one that is told. A second word can only make the grace shorter."""
        if run.id in self.lingering and is_last(run):
            return  # it ended by itself before anybody asked; only its remains are still being cleared away
        if run.ended:
            return
        run.cause = run.cause or cause
        if run.state == "waiting":
            self._end(run, cause, now)
        elif not grace_ms:
            run.state = "stopping"
            run.deadline = 0
            kill(run)
        elif run.state == "running":
            run.state = "stopping"
            signal_group(run.pid, signal.SIGTERM)
            signal_group(run.pid, signal.SIGCONT)  # a stopped process could not hear the first
            self._later(run, now + grace_ms)
        elif now + grace_ms < run.deadline:
            self._later(run, now + grace_ms)

    def _end_lease(self, now: int) -> None:
        leased, self.leased = self.leased, {}
        for run in leased.values():
            self._stop(run, "lease", 0, now)

    def _later(self, run: Run, at: int) -> None:
        run.deadline = at
        heapq.heappush(self.due, (at, run.id))
        if len(self.due) > 64 + 4 * len(self.live):  # runs that ended long before their timeout
            self.due = [(other.deadline, other.id) for other in self.live.values() if other.deadline]
            heapq.heapify(self.due)

    def _count_memory(self, run: Run, rss_max_kib: int) -> None:
        """What a child used at most. Not more than our own size tells nothing: the count begins with the spawner's."""
        if rss_max_kib < 2 * self.own_rss_max or not self.own_rss_max:
            self.own_rss_max = proc.own_size_max_kib()
        if rss_max_kib > self.own_rss_max:
            run.rss_max = max(run.rss_max, rss_max_kib * 1024)

    def _look_at_lingering(self, now: int) -> None:
        """A step is over when nothing of its group is left, not only its main process."""
        for run_id, until in list(self.lingering.items()):
            run = self.live[run_id]
            if is_gone(run):
                del self.lingering[run_id]
                self._over(run, now)
            elif until <= now:
                del self.lingering[run_id]
                run.cause = run.cause or "exited"  # no further step beside what is left
                self._over(run, now, f"processes of group {run.pid} cannot be killed")
            else:
                kill(run)  # again: a member may have been forking when the first KILL went round
        self.linger_at = now + LINGER_MS if self.lingering else NEVER

    def _over(self, run: Run, now: int, error: str = "") -> None:
        """A step is over: the next one, or the end."""
        run.pid = 0
        run.codes += (os.waitstatus_to_exitcode(run.status),)
        if run.cause or is_last(run):
            self._end(run, run.cause or "exited", now, error)
        else:
            run.step += 1
            self._step(run, now)

    def _end(self, run: Run, cause: str, now: int, error: str = "") -> None:
        if run.group is not None:
            run.oom = run.oom or run.group.out_of_memory()
            run.rss_max = run.group.memory_max() or run.rss_max
            self.strays.remove(run.group)
        log_size = os.fstat(run.log_fd).st_size if run.log_fd >= 0 else size_of(run.log)
        run.ended = ending(run, cause, now, error, log_size)
        run.state = "ended"
        run.slim()
        del self.live[run.id]
        if run.leased:
            self.leased.pop(run.id, None)
        self.strays.look_soon(now)
        if self.followers:
            self.link.emit_soon(run.ended, now, BACKLOG_HOLD_MS)
        else:
            self.link.emit(run.ended)
        self._pass_on(run, now)
