"""The keeper of a virtual host: the twin from drivers/fake.py on the host's own clock, with a witness looking on.

It outlives agents and ends with its host. What it starts is the truth that the checkers look at.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from roost.drivers.fake import Act, FakeDriver
from roost.model.frames import Run
from roost.ports.driver import Ended, Event, Known, Runs, Started, Step
from roost.ports.driver import Run as Job
from roost.sim.world import Clock, World

#: How late a keeper deals with what is due, at most: a busy host, and a killed group that takes its time to be gone.
LATE_MS_MAX = 140
PROMPT_MS_MAX = 3  # most of the time


class Witness(Protocol):
    """Whoever watches what really runs."""

    def behaviour(self, run: Run) -> Sequence[Act]:
        """What the steps of this run will do."""

    def began(self, host: str, run: Run) -> None:
        """A process of this run exists from now on."""

    def over(self, host: str, run: Run, cause: str, code: int | None) -> None:
        """Nothing of this run exists any more."""

    def is_well(self, run: Run) -> bool:
        """What its health check would find now."""


class Keeper:
    """The parent of all runs of one host. Whoever is connected to it is told what happens."""

    def __init__(self, world: World, host: str, clock: Clock, witness: Witness) -> None:
        self._world = world
        self._host = host
        self._clock = clock
        self._witness = witness
        self._driver = FakeDriver(script=self._script, now=clock.now_ms())
        self._runs: dict[str, Run] = {}
        self._alive: dict[str, Run] = {}
        self._wake_ms: int | None = None
        self.alive = True
        self.tell: Callable[[Event], None] | None = None

    def connect(self, tell: Callable[[Event], None]) -> Runs:
        """A new agent: what there is now; the rest it is told."""
        self._catch_up()
        self.tell = tell
        return self._driver.connect()

    def run_of(self, known: Known) -> Run:
        """The order that a run was started with; a real keeper has it in the note."""
        return self._runs[known.id]

    def start(self, run: Run) -> None:
        """Begin a run. A known one is not begun again."""
        job = str(run.token)
        self._runs[job] = run
        steps = [Step(["work"])] * len(self._witness.behaviour(run))
        self._follow(
            lambda: self._driver.start(
                Job(
                    job,
                    steps,
                    {},
                    "/",
                    "/",
                    timeout_ms=run.timeout_ms,
                    grace_ms=run.grace_ms,
                    leased=run.leased,
                    after=str(run.after) if run.after else "",
                )  # fmt: skip
            )
        )

    def stop(self, token: int, grace_ms: int, cause: str) -> None:
        """TERM now, KILL after the grace."""
        self._follow(lambda: self._driver.stop(str(token), grace_ms, cause))

    def forget(self, token: int) -> None:
        """Drop an ended run."""
        self._follow(lambda: self._driver.forget(str(token)))

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then. The last word counts."""
        self._follow(lambda: self._driver.lease(until_ms))

    def stop_all(self, grace_ms: int) -> None:
        """The host is being shut down."""
        for job in self._driver.live():
            self.stop(int(job), grace_ms, "shutdown")

    def is_well(self, token: int) -> bool:
        """What a health check of this run finds: nothing that is not there is well."""
        run = self._alive.get(str(token))
        return run is not None and self._witness.is_well(run)

    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self._alive

    def die(self) -> None:
        """The host is gone, and everything on it."""
        self.alive = False
        self._driver.lose()
        for run in self._alive.values():
            self._witness.over(self._host, run, "host", None)
        self._alive.clear()

    def _script(self, job: Job) -> Sequence[Act]:
        return self._witness.behaviour(self._runs[job.id])

    def _follow(self, order: Callable[[], None]) -> None:
        if self.alive:
            self._catch_up()
            order()
            self._catch_up()

    def _catch_up(self) -> None:
        for event in self._driver.advance(self._clock.now_ms()):
            if isinstance(event, Started):
                self._alive[event.id] = self._runs[event.id]
                self._witness.began(self._host, self._runs[event.id])
            elif isinstance(event, Ended) and event.id in self._alive:
                self._witness.over(self._host, self._alive.pop(event.id), event.cause, event.code)
            if self.tell is not None:
                self.tell(event)
        at_ms = self._driver.next_at()
        if at_ms is not None and (self._wake_ms is None or at_ms < self._wake_ms):
            self._wake_ms = at_ms
            late = LATE_MS_MAX if self._world.happens(0.3) else PROMPT_MS_MAX
            self._world.at(self._clock.true_ms(at_ms) + self._world.between(0, late), self._wake, at_ms)

    def _wake(self, at_ms: int) -> None:
        if self.alive and at_ms == self._wake_ms:
            self._wake_ms = None
            self._catch_up()
