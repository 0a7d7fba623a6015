"""A keeper without processes: the same promises about runs, leases, timeouts and endings, on a virtual host.

It outlives agents and ends with its host. What it starts is the truth that the checkers look at.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from roost.model.frames import Run
from roost.sim.world import Clock, World

LATE_MS_MAX = 20  # how late a timer fires on a busy host
TERM_MS_MAX = 60  # how long a process that listens takes to end
KILL_MS_MAX = 120  # how long a killed group takes to be gone; within the margin of a lease


class Behaviour(NamedTuple):
    """What a run does when it is left alone."""

    duration_ms: int | None  # None: it runs for ever
    code: int = 0
    stubborn: bool = False  # does not listen to TERM
    error: str = ""  # cannot even be started


class Witness(Protocol):
    """Whoever watches what really runs."""

    def booted(self, host: str) -> None:
        """A host starts."""

    def behaviour(self, run: Run) -> Behaviour:
        """What this run will do."""

    def began(self, host: str, run: Run) -> None:
        """A process of this run exists from now on."""

    def over(self, host: str, run: Run, cause: str, code: int | None) -> None:
        """Nothing of this run exists any more."""


class Ended(NamedTuple):
    """How a run ended, on the host's clock."""

    cause: str
    code: int | None
    signal: int | None
    error: str
    at_ms: int


class Kept:
    """One run the keeper knows."""

    __slots__ = ("alive", "cause", "deadline_ms", "ended", "run", "started_ms", "stubborn", "term")

    def __init__(self, run: Run, now: int) -> None:
        self.run = run
        self.started_ms = now
        self.cause = ""
        self.alive = False
        self.term = False
        self.stubborn = False
        self.deadline_ms = 0
        self.ended: Ended | None = None


class Pipe(Protocol):
    """The agent's end of the socket between keeper and agent."""

    def happened(self, kind: str, token: int, *more: Any) -> None:
        """Something happened to a run."""


class Keeper:
    """The parent of all runs of one host."""

    def __init__(self, world: World, host: str, clock: Clock, witness: Witness) -> None:
        self._world = world
        self._host = host
        self._clock = clock
        self._witness = witness
        self.runs: dict[int, Kept] = {}
        self.lease_until_ms = 0
        self.alive = True
        self._watching = False
        self.pipe: Pipe | None = None

    # orders

    def start(self, run: Run) -> None:
        """Begin a run. A known token is not started again."""
        if run.token in self.runs or not self.alive:
            return
        now = self._clock.now_ms()
        kept = self.runs[run.token] = Kept(run, now)
        if run.leased and self.lease_until_ms <= now:
            self._end(kept, Ended("lease", None, None, "", now))
            return
        behaviour = self._witness.behaviour(run)
        if behaviour.error:
            self._end(kept, Ended("error", None, None, behaviour.error, now))
            return
        kept.alive, kept.stubborn = True, behaviour.stubborn
        self._witness.began(self._host, run)
        self._emit("started", run.token, now)
        if behaviour.duration_ms is not None:
            self._world.after(behaviour.duration_ms, self._exit, kept, behaviour.code)
        if run.timeout_ms:
            self._at(now + run.timeout_ms, self._time_out, kept)

    def stop(self, token: int, grace_ms: int) -> None:
        """TERM now, KILL after the grace."""
        kept = self.runs.get(token)
        if kept is not None and kept.alive:
            self._stop(kept, "stopped", grace_ms)

    def forget(self, token: int) -> None:
        """Drop an ended run."""
        kept = self.runs.get(token)
        if kept is not None and kept.ended is not None:
            del self.runs[token]

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then. The last word counts, also when it is an earlier time."""
        earlier = until_ms < self.lease_until_ms
        self.lease_until_ms = until_ms
        if earlier or not self._watching:
            self._watching = True
            self._at(until_ms, self._look_at_lease)

    def die(self) -> None:
        """The host is gone, and everything on it."""
        self.alive = False
        for kept in self.runs.values():
            if kept.alive:
                kept.alive = False
                self._witness.over(self._host, kept.run, "host", None)

    # what happens by itself

    def _exit(self, kept: Kept, code: int) -> None:
        if kept.alive:
            cause = kept.cause or "exited"
            self._gone(kept, cause, code, None)

    def _time_out(self, kept: Kept) -> None:
        if kept.alive and not kept.cause:
            self._stop(kept, "timed_out", kept.run.grace_ms)

    def _look_at_lease(self) -> None:
        if not self.alive:
            return
        if self.lease_until_ms > self._clock.now_ms():
            self._at(self.lease_until_ms, self._look_at_lease)
            return
        self._watching = False
        for kept in list(self.runs.values()):
            if kept.alive and kept.run.leased:
                self._stop(kept, "lease", 0)

    def _stop(self, kept: Kept, cause: str, grace_ms: int) -> None:
        kept.cause = kept.cause or cause
        now = self._clock.now_ms()
        if not grace_ms:
            self._world.after(self._world.between(0, KILL_MS_MAX), self._killed, kept)
        elif not kept.term:
            kept.term = True
            if not kept.stubborn:
                self._world.after(self._world.between(0, TERM_MS_MAX), self._terminated, kept)
            kept.deadline_ms = now + grace_ms
            self._at(kept.deadline_ms, self._kill, kept)
        elif now + grace_ms < kept.deadline_ms:
            kept.deadline_ms = now + grace_ms
            self._at(kept.deadline_ms, self._kill, kept)

    def _kill(self, kept: Kept) -> None:
        self._world.after(self._world.between(0, KILL_MS_MAX), self._killed, kept)

    def _terminated(self, kept: Kept) -> None:
        self._gone(kept, kept.cause, None, 15)

    def _killed(self, kept: Kept) -> None:
        self._gone(kept, kept.cause, None, 9)

    def _gone(self, kept: Kept, cause: str, code: int | None, signal: int | None) -> None:
        if kept.alive:
            kept.alive = False
            self._witness.over(self._host, kept.run, cause, code)
            self._end(kept, Ended(cause, code, signal, "", self._clock.now_ms()))

    def _end(self, kept: Kept, ended: Ended) -> None:
        kept.ended = ended
        self._emit("ended", kept.run.token, ended)

    def _emit(self, kind: str, token: int, *more: Any) -> None:
        if self.pipe is not None:
            self.pipe.happened(kind, token, *more)

    def _at(self, shown_ms: int, action: Callable[..., None], *given: Kept) -> None:
        self._world.at(self._clock.true_ms(shown_ms) + self._world.between(0, LATE_MS_MAX), action, *given)
