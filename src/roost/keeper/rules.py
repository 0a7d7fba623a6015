"""The keeper's rules as a machine: which run begins, when it has to end, and how its end is reported.

No clock, no process, no file of its own: every method is given the time, and what is to be done on the machine is asked
of a `Host`. run_table.py is that host with real processes; drivers/fake.py is one with scripts, for the simulator.
"""

import heapq

from roost import __version__
from roost.keeper import run as orders
from roost.keeper.clock import NEVER
from roost.keeper.run import KeeperRun, RunRefused, ending, is_last, number, text
from roost.keeper.socket import HOLD_MS, PROTOCOL, encode

RUNS_MAX = 8_192  # known at a time, ended ones included: about 1 KiB each, and their notes
NOTES_SIZE_MAX = 128 << 20  # all together: they are sent at once to an agent that connects
BACKLOG_HOLD_MS = 5  # while runs wait here for others to end, ends are sent together: there is no hurry


class Host:
    """What the rules need of the machine; this one does nothing. Each call returns at once, and none raises."""

    def enforces(self) -> tuple[str, ...]:
        """What of cpu, memory, pids and cleanup is possible here."""
        return ()

    def admitted(self, run: KeeperRun) -> None:
        """A run is known from now on."""

    def forgotten(self, run: KeeperRun, now: int) -> None:
        """A run that has ended is no longer known."""

    def limit(self, run: KeeperRun) -> None:
        """Prepare the limits of a run that is about to begin."""

    def spawn(self, run: KeeperRun) -> str:
        """Start the process of the current step and set its `pid`; returns why that cannot be, or nothing.

        Without a `pid` it is on its way: the host calls `started` or `not_started` later.
        """
        return ""

    def terminate(self, run: KeeperRun) -> None:
        """Ask the processes of a run to end."""

    def kill(self, run: KeeperRun) -> None:
        """End the processes of a run, whatever they do."""

    def command(self, run: KeeperRun, serial: int, action: str, grace_ms: int) -> None:
        """Change the power state of a virtual machine. Its supervisor answers with `Rules.powered`."""

    def finished(self, run: KeeperRun, now: int) -> int:
        """Nothing of a run is left: clear away what it used. Returns the size of its log, and sets `stderr_size`."""
        return 0

    def emit(self, line: str, now: int, hold_ms: int) -> None:
        """Tell the agent, after this time at the latest."""


class Rules:
    """The table of runs. Orders and what happened go in; the host gets what to do."""

    def __init__(self, host: Host, mark: str) -> None:
        self.host = host
        self.mark = mark  # in the environment of every process
        self.known: dict[str, KeeperRun] = {}
        self.live: dict[str, KeeperRun] = {}
        self.notes_size = 0
        self.due: list[tuple[int, str]] = []  # a heap; entries that no longer match their run's deadline are skipped
        self.lease_until = 0
        self.leased: dict[str, KeeperRun] = {}  # those that end with the lease
        self.followers: dict[str, list[KeeperRun]] = {}  # runs that begin when a run has ended
        self.closing = False

    # --- orders

    def start(self, order: dict[str, object], now: int) -> None:
        """Begin a run. A known id is not started again: orders may be repeated. Raises RunRefused."""
        run_id = text(order, "id")
        if run_id in self.known:
            return
        if self.closing:
            raise RunRefused("the keeper is shutting down", orders.CLOSING)
        if len(self.known) >= RUNS_MAX:
            raise RunRefused(f"{RUNS_MAX} runs are known already; forget those that ended", orders.FULL)
        run = KeeperRun(run_id, order, self.mark, now)
        if self.notes_size + len(run.note) > NOTES_SIZE_MAX:
            raise RunRefused(
                f"notes of {NOTES_SIZE_MAX >> 20} MiB are kept already; forget runs that ended", orders.FULL
            )
        if "until" in order:
            self.lease(number(order, "until", 0), now)
        self.known[run_id] = self.live[run_id] = run
        self.notes_size += len(run.note)
        self.host.admitted(run)
        after = text(order, "after", "")
        while (other := self.known.get(after)) is not None and other.ended:
            after = other.after  # one that ended before it began: its turn would have come later
        if after in self.live and after != run_id:
            self._wait(run, after)
        else:
            self._begin(run, now)

    def stop(self, order: dict[str, object], now: int) -> None:
        """TERM now, KILL after the grace. Asked again, the shorter grace holds. Raises RunRefused."""
        run = self.known.get(text(order, "id"))
        if run is None:
            raise RunRefused("no such run", orders.NO_SUCH_RUN)
        if not run.ended:
            if not run.why:
                run.why = text(order, "why", "")
                run.detail = text(order, "detail", "", orders.DETAIL_LENGTH_MAX)
            self._stop(run, "stopped", number(order, "grace_ms", run.grace_ms), now)

    def power(self, order: dict[str, object], now: int) -> None:
        """Pass a command on to the supervisor of a machine. What it has carried out already is left. Raises
        RunRefused."""
        run = self.known.get(text(order, "id"))
        if run is None:
            raise RunRefused("no such run", orders.NO_SUCH_RUN)
        if run.machine is None:
            raise RunRefused("the run is no virtual machine")
        serial, action = number(order, "serial", 0), text(order, "action")
        if action not in orders.POWER_ACTIONS:
            raise RunRefused(f"action has to be one of {', '.join(orders.POWER_ACTIONS)}")
        if run.ended or run.state == "stopping" or serial <= run.power_serial:
            return
        run.power_asked = (serial, action, number(order, "grace_ms", run.grace_ms))
        if run.pid:
            self.host.command(run, *run.power_asked)

    def powered(self, run: KeeperRun, power: str, serial: int, problem: str, now: int) -> None:
        """The supervisor of a machine tells its power state."""
        if run.ended:
            return
        run.power, run.power_serial = power, serial
        what = encode({"power": power, "serial": serial, "at": now, "problem": problem})
        self.host.emit(f'{{"event":"power","id":{run.quoted},{what[1:]}', now, HOLD_MS)

    def forget(self, order: dict[str, object], now: int) -> None:
        """Drop an ended run. Raises RunRefused."""
        run = self.known.get(text(order, "id"))
        if run is None:
            return
        if not run.ended:
            raise RunRefused("the run has not ended", orders.NOT_ENDED)
        del self.known[run.id]
        self.notes_size -= len(run.note)
        self.host.forgotten(run, now)

    def lease(self, until: int, now: int) -> None:
        """Leased runs may go on until then. The last order counts, also when it is an earlier time."""
        self.lease_until = until
        if until <= now:
            self._end_lease(now)

    def stop_all(self, grace_ms: int, why: str, now: int) -> None:
        self.closing = True
        for run in list(self.live.values()):
            run.why = run.why or why
            self._stop(run, "stopped", grace_ms, now)

    def greeting(self, now: int) -> str:
        runs = ",".join(run.record() for run in self.known.values())
        able = encode(self.host.enforces())
        me = f'"protocol":{PROTOCOL},"software":"{__version__}"'
        return f'{{"event":"runs","at":{now},{me},"lease":{self.lease_until},"enforces":{able},"runs":[{runs}]}}'

    # --- what happens by itself

    def tick(self, now: int) -> None:
        """Whatever is due: timeouts, KILLs, the end of the lease."""
        while self.due and self.due[0][0] <= now:
            at, run_id = heapq.heappop(self.due)
            run = self.live.get(run_id)
            if run is None or run.deadline != at:
                continue
            run.deadline = 0
            if run.state == "running":
                self._stop(run, "timed_out", run.grace_ms, now)
            else:
                self.host.kill(run)
        if self.lease_until <= now and self.leased:
            self._end_lease(now)

    def next_at(self) -> int:
        at = self.due[0][0] if self.due else NEVER
        return min(at, self.lease_until) if self.leased else at

    def step_over(self, run: KeeperRun, now: int, error: str = "") -> None:
        """Nothing of a step is left, and `run.code` says how its process ended: the next step, or the end."""
        run.pid = 0
        run.is_exited = False
        run.codes += (run.code,)
        if run.cause or is_last(run):
            self._end(run, run.cause or "exited", now, error)
        else:
            run.step += 1
            self._step(run, now)

    def started(self, run: KeeperRun, now: int) -> None:
        """The process of the current step is there. Time is limited from the first of them on."""
        if run.timeout_ms and not run.is_timed:
            run.is_timed = True
            if not run.cause:
                self._later(run, now + run.timeout_ms)
        if run.step == 0:
            limits = f',"limits":{encode(run.limits_said)}' if run.limits_said else ""
            self.host.emit(f'{{"event":"started","id":{run.quoted},"pid":{run.pid},"at":{now}{limits}}}', now, HOLD_MS)
            if run.power_asked is not None:  # while it waited for another run
                self.host.command(run, *run.power_asked)
        if len(run.steps) > 1:
            where = f'"step":{run.step},"pid":{run.pid},"at":{now},"log_offset":{run.log_offset}'
            before = run.codes[-1] if run.codes else "null"
            self.host.emit(f'{{"event":"step","id":{run.quoted},{where},"before":{before}}}', now, 0)

    def not_started(self, run: KeeperRun, error: str, now: int) -> None:
        """The process that was on its way cannot be: the next step, or the end."""
        if self._pass_over(run, error, now):
            self._step(run, now)

    # --- the life of one run

    def _wait(self, run: KeeperRun, after: str) -> None:
        run.state, run.started_at, run.after = "waiting", 0, after
        self.followers.setdefault(after, []).append(run)
        if run.leased:
            self.leased[run.id] = run

    def _begin(self, run: KeeperRun, now: int) -> None:
        run.state, run.started_at, run.after = "running", now, ""
        if run.leased:
            if self.lease_until <= now:
                self._end(run, "lease", now)
                return
            self.leased[run.id] = run
        if run.limits:
            self.host.limit(run)
        self._step(run, now)

    def _pass_on(self, run: KeeperRun, now: int) -> None:
        """The followers of a run begin; if it never began itself, they wait for the run it waited for."""
        if run.after:
            self.followers[run.after].remove(run)
            for follower in self.followers.pop(run.id, ()):
                self._wait(follower, run.after)
            if not self.followers[run.after]:
                del self.followers[run.after]
        else:
            for follower in self.followers.pop(run.id, ()):
                self._begin(follower, now)

    def _step(self, run: KeeperRun, now: int) -> None:
        """Start the current step, or the first after it that can be."""
        while error := self.host.spawn(run):
            if not self._pass_over(run, error, now):
                return
        if run.pid:
            self.started(run, now)

    def _pass_over(self, run: KeeperRun, error: str, now: int) -> bool:
        """The current step could not be started. True: the next one is to be."""
        if run.cause:
            self._end(run, run.cause, now)
            return False
        run.codes += (127,)  # as a shell would say
        if not run.steps[run.step][1]:
            self._end(run, "error", now, error)
            return False
        if run.step + 1 == len(run.steps):
            self._end(run, "exited", now, error)
            return False
        run.step += 1
        return True

    def _stop(self, run: KeeperRun, cause: str, grace_ms: int, now: int) -> None:
        """The first cause is the one that is reported. A second order can only make the grace shorter."""
        if run.ended or (run.is_exited and is_last(run)):
            return  # it ended by itself before; only its remains are still being cleared away
        run.cause = run.cause or cause
        if run.state == "waiting":
            self._end(run, cause, now)
        elif not grace_ms:
            run.state = "stopping"
            run.deadline = 0
            self.host.kill(run)
        elif run.state == "running":
            run.state = "stopping"
            self.host.terminate(run)
            self._later(run, now + grace_ms)
        elif now + grace_ms < run.deadline:
            self._later(run, now + grace_ms)

    def _end_lease(self, now: int) -> None:
        leased, self.leased = self.leased, {}
        for run in leased.values():
            self._stop(run, "lease", 0, now)

    def _later(self, run: KeeperRun, at: int) -> None:
        run.deadline = at
        heapq.heappush(self.due, (at, run.id))
        if len(self.due) > 64 + 4 * len(self.live):  # runs that ended long before their timeout
            self.due = [(other.deadline, other.id) for other in self.live.values() if other.deadline]
            heapq.heapify(self.due)

    def _end(self, run: KeeperRun, cause: str, now: int, error: str = "") -> None:
        log_size = self.host.finished(run, now)
        run.ended = ending(run, cause, now, error, log_size)
        run.state = "ended"
        run.slim()
        del self.live[run.id]
        if run.leased:
            self.leased.pop(run.id, None)
        self.host.emit(run.ended, now, BACKLOG_HOLD_MS if self.followers else 0)
        self._pass_on(run, now)
