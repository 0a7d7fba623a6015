"""The keeper's twin in memory: no process, no clock. Runs end as their script says; time is passed in.

Orders take effect at the time of the last `advance`. It keeps the rules of the keeper: TERM, grace, KILL; the first
cause is the one that is told; a leased run ends with the lease, at once; ended runs are known until forgotten.
"""

from collections.abc import Callable, Sequence

import msgspec

from roost.ports.driver import Ended, Event, Known, Refused, Run, Runs, Started, StepBegan, Tell

SIGKILL, SIGTERM = 9, 15
NOT_STARTED = 127  # what a shell says of a program that is not there


class Act(msgspec.Struct, frozen=True):
    """What one step does. The default ends well at once; `after_ms=None` runs until it is made to end."""

    after_ms: int | None = 0
    code: int = 0
    signal: int | None = None
    term_ms: int | None = 0  # how long it takes to end when asked to; None: it does not listen
    term_code: int | None = None  # with which code it ends then; None: by the signal itself
    error: str = ""  # it cannot be started


Script = Callable[[Run], Sequence[Act]]


def at_once(run: Run) -> Sequence[Act]:
    """Every step ends well and takes no time."""
    return (Act(),)


class FakeDriver:
    """The same orders as every driver, and the means to let time pass and to look in. Times are milliseconds."""

    def __init__(self, tell: Tell | None = None, script: Script = at_once, now: int = 0) -> None:
        self.now = now
        self.lease_until = 0
        self._tell = tell
        self._script = script
        self._known: dict[str, _Life] = {}
        self._live: dict[str, _Life] = {}
        self._out: list[Event] = []
        self._pids = 1000

    # orders

    def start(self, run: Run) -> None:
        """Begin a run; an id that is known is not begun again."""
        if run.id in self._known:
            return
        self._pids += 1
        life = _Life(run, list(self._script(run)) or [Act()], self._pids)
        self._known[run.id] = self._live[run.id] = life
        after = run.after
        while (other := self._known.get(after)) is not None and other.ended is not None:
            after = other.after  # one that ended before it began: its turn would have come later
        if after in self._live and after != run.id:
            life.after = after
        else:
            self._first(life)

    def stop(self, id: str, grace_ms: int, why: str) -> None:
        """TERM, grace, KILL. Asked again, the shorter grace holds."""
        life = self._known.get(id)
        if life is None:
            self._out.append(Refused("no such run", id, "stop", self.now))
        elif life.ended is None:
            life.why = life.why or why
            self._stop(life, "stopped", grace_ms)

    def forget(self, id: str) -> None:
        """Drop what is known of a run that has ended."""
        life = self._known.get(id)
        if life is not None and life.ended is None:
            self._out.append(Refused("the run has not ended", id, "forget", self.now))
        elif life is not None:
            del self._known[id]

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then. The last word counts."""
        self.lease_until = until_ms
        if until_ms <= self.now:
            self._end_lease()

    # the world

    def advance(self, now: int) -> list[Event]:
        """Let time pass; what happened on the way, in order. Also told to the callback, if there is one."""
        while (at := self._next()) is not None and at <= now:
            self.now = max(self.now, at)
            self._happen()
        self.now = max(self.now, now)
        events, self._out = self._out, []
        if self._tell is not None:
            for event in events:
                self._tell(event)
        return events

    def next_at(self) -> int | None:
        """When something happens next by itself; None: never."""
        return self.now if self._out else self._next()

    def connect(self) -> Runs:
        """What a new agent is told first. What was on its way to the old one is lost: the state says it all."""
        self._out.clear()
        return Runs(self.now, self.lease_until, [life.record() for life in self._known.values()])

    def live(self) -> list[str]:
        """What runs or waits."""
        return list(self._live)

    def lose(self) -> None:
        """The whole node is gone: nothing runs, nothing is known, nobody is told."""
        self._known.clear()
        self._live.clear()
        self._out.clear()
        self.lease_until = 0

    # inside

    def _next(self) -> int | None:
        times = [at for life in self._live.values() for at in (life.ends_at, life.due_at) if at is not None]
        if any(life.run.leased for life in self._live.values()):
            times.append(self.lease_until)
        return min(times, default=None)

    def _happen(self) -> None:
        """All that is due now: first what ends by itself, then what time and lease demand."""
        for life in [life for life in self._live.values() if life.ends_at is not None and life.ends_at <= self.now]:
            self._over(life, life.exit())
        for life in [life for life in self._live.values() if life.due_at is not None and life.due_at <= self.now]:
            life.due_at = None
            if life.stopping:
                self._kill(life)
            else:
                self._stop(life, "timed_out", life.run.grace_ms)
        if self.lease_until <= self.now:
            self._end_lease()

    def _first(self, life: "_Life") -> None:
        """The run itself begins, if the lease allows it."""
        life.after, life.started_at = "", self.now
        if life.run.leased and self.lease_until <= self.now:
            self._end(life, "lease", None)
        elif self._begin(life) and life.run.timeout_ms:
            life.due_at = self.now + life.run.timeout_ms

    def _begin(self, life: "_Life") -> bool:
        """The current step, or the first after it that can be started."""
        while error := life.act().error:
            life.codes.append(NOT_STARTED)
            ignored = life.run.steps[life.step].ignore_failure
            if not ignored or life.is_last():
                self._end(life, "exited" if ignored else "error", 0 if ignored else None, error)
                return False
            life.step += 1
        act = life.act()
        life.ends_at = None if act.after_ms is None else self.now + act.after_ms
        run = life.run
        if life.step == 0:
            self._out.append(Started(run.id, life.pid, self.now))
        if len(run.steps) > 1:
            before = life.codes[-1] if life.codes else None
            self._out.append(StepBegan(run.id, life.step, self.now, before=before, pid=life.pid))
        return True

    def _stop(self, life: "_Life", cause: str, grace_ms: int) -> None:
        if life.ended is not None:
            return
        life.cause = life.cause or cause
        if life.after:
            self._end(life, cause, None)
            return
        if not grace_ms:
            self._kill(life)
        elif not life.stopping:
            life.stopping = True
            life.due_at = self.now + grace_ms
            act = life.act()
            if act.term_ms is not None and (life.ends_at is None or self.now + act.term_ms < life.ends_at):
                life.ends_at = self.now + act.term_ms
                life.termed = True
        elif life.due_at is not None:
            life.due_at = min(life.due_at, self.now + grace_ms)

    def _kill(self, life: "_Life") -> None:
        self._over(life, -SIGKILL)

    def _end_lease(self) -> None:
        for life in [life for life in self._live.values() if life.run.leased]:
            self._stop(life, "lease", 0)

    def _over(self, life: "_Life", code: int) -> None:
        """A step is over: the next one, or the end."""
        life.codes.append(code)
        ignored = life.run.steps[life.step].ignore_failure
        if life.cause or life.is_last() or (code and not ignored):
            self._end(life, life.cause or "exited", 0 if ignored and not life.cause else code)
        else:
            life.step += 1
            self._begin(life)

    def _end(self, life: "_Life", cause: str, code: int | None, error: str = "") -> None:
        several = len(life.run.steps) > 1 or bool(life.codes and life.codes[-1] and code == 0)
        life.ended = Ended(
            life.run.id,
            cause,
            self.now,
            code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            step=life.step,
            error=error,
            why=life.why,
            codes=list(life.codes) if several else [],
        )
        life.ends_at = life.due_at = None
        del self._live[life.run.id]
        self._out.append(life.ended)
        for other in [other for other in self._live.values() if other.after == life.run.id]:
            if life.after:  # it never began: whoever waited for it waits for whom it waited for
                other.after = life.after
            else:
                self._first(other)


class _Life:
    """One run as it stands."""

    def __init__(self, run: Run, acts: list[Act], pid: int) -> None:
        self.run = run
        self.acts = acts
        self.started_at = 0
        self.after = ""  # the run it waits for
        self.pid = pid
        self.step = 0
        self.ends_at: int | None = None  # by itself, or because it was asked to
        self.due_at: int | None = None  # the timeout, or KILL
        self.stopping = False
        self.termed = False
        self.cause = ""
        self.why = ""
        self.codes: list[int] = []
        self.ended: Ended | None = None

    def act(self) -> Act:
        """What the current step does; a script that is too short repeats its last."""
        return self.acts[min(self.step, len(self.acts) - 1)]

    def exit(self) -> int:
        """With what it ends now; negative: a signal."""
        act = self.act()
        if self.termed:
            return -SIGTERM if act.term_code is None else act.term_code
        return act.code if act.signal is None else -act.signal

    def is_last(self) -> bool:
        """Whether no step follows."""
        return self.step + 1 == len(self.run.steps)

    def record(self) -> Known:
        """Everything a new agent has to know about it."""
        state = "ended" if self.ended else "stopping" if self.stopping else "waiting" if self.after else "running"
        pid = 0 if self.ended or self.after else self.pid
        run = self.run
        return Known(
            run.id, run.note, state, self.started_at, self.step, pid, run.leased, ended=self.ended, after=self.after
        )
