"""Measurements during a replay: placements, waits, and use of the nodes."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model.events import Event, Submit, inner
from roost.model.states import InstanceState
from roost.sim.report import POINTS, Point, Series

CPU = "cpu"
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

Submission = tuple[str, int]  # a workload's key, and when it was submitted; -N: before the Nth life began


class MeteredAttempt(NamedTuple):
    """One attempt, named independently of the strategy: tokens and serials would differ."""

    instance: str  # PROJECT/NAME.INDEX
    submitted_ms: int
    number: int


class Submissions:
    """Maps a workload to its submission: names are reused."""

    def __init__(self) -> None:
        self._lives = 0
        self._when: dict[int, int] = {}  # by serial

    def see(self, state: State, events: Sequence[Event], now_ms: int) -> None:
        keys = [spec.key for event in map(inner, events) if isinstance(event, Submit) for spec in event.specs]
        for workload in filter(None, map(state.workloads.get, keys)):
            self._when.setdefault(workload.serial, now_ms)

    def know(self, state: State) -> None:
        self._lives += 1
        self._when = {workload.serial: -self._lives for workload in state.workloads.values()}

    def of(self, state: State, key: str) -> Submission:
        workload = state.workloads.get(key)
        return key, self._when.get(workload.serial, -self._lives) if workload is not None else -self._lives


class RecordingMeter:
    """Measures every step. Time between two lives does not count."""

    def __init__(self) -> None:
        self.submissions = Submissions()
        self.steps = 0
        self.placements = 0
        self.placed: dict[MeteredAttempt, tuple[str, int]] = {}  # node, entry
        self.peak_nodes = 0
        self._waits_ms = 0
        self._started: set[tuple[int, int]] = set()  # serial of the workload and index
        self._waited = 0
        self._waiting = 0
        self._seen = (0, 0)  # of the fleet
        self._now_ms = 0
        self._began_ms = 0
        self._amounts = (0, 0)  # used, total
        self._used: Counter[int] = Counter()  # processor time by minute
        self._total: Counter[int] = Counter()

    def begin(self, state: State) -> None:
        self.submissions.know(state)
        for instance in state.instances.values():
            if instance.started_ms:
                self._started.add((state.workloads[instance.workload].serial, instance.index))
        self._now_ms = state.now_ms
        self._began_ms = self._began_ms or state.now_ms
        self._seen = (-1, -1)
        self._inspect(state)

    def end(self, state: State) -> None:
        self._waiting = sum(
            workload.count - state.placed_count(workload)
            for workload in state.workloads.values()
            if state.first_unstarted(workload) >= 0
        ) + sum(instance.state == InstanceState.QUEUED for instance in state.instances.values())

    def stepped(self, state: State, events: Sequence[Event], done: Step, entry: int) -> None:
        self.steps += 1
        length = state.now_ms - self._now_ms
        self._now_ms = state.now_ms
        if length > 0:
            self._used[state.now_ms // MINUTE_MS] += self._amounts[0] * length
            self._total[state.now_ms // MINUTE_MS] += self._amounts[1] * length
        self.submissions.see(state, events, state.now_ms)
        self._inspect(state)
        self.placements += len(done.placed)
        for placed in done.placed:
            attempt = self.attempt(state, placed.instance)
            if attempt is not None:
                self.placed[attempt] = (placed.node, entry)
        for change in done.changes:
            if change.kind == "instance":
                self._wait(state, change.key)

    def attempt(self, state: State, key: str) -> MeteredAttempt | None:
        instance = state.instances.get(key)
        if instance is None:
            return None
        return MeteredAttempt(key, self.submissions.of(state, instance.workload)[1], instance.attempt)

    def metrics(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "placements": self.placements,
            "wait_mean_s": self._waits_ms / max(1, self._waited) / 1_000,
            "utilisation": self._used.total() / max(1, self._total.total()),
            "peak_nodes": self.peak_nodes,
            "waiting_at_end": self._waiting,
        }

    def series(self) -> tuple[Series, ...]:
        first = self._began_ms // MINUTE_MS
        points: list[Point] = []
        minutes = sorted(self._total)
        every = max(1, -(-len(minutes) // POINTS))
        for at in range(0, len(minutes), every):
            some = minutes[at : at + every]
            used, total = (sum(amounts[minute] for minute in some) for amounts in (self._used, self._total))
            points.append(((some[0] - first) * MINUTE_MS / HOUR_MS, used / max(1, total)))
        return (Series("utilisation", "of the processors in touch", points),)

    def _inspect(self, state: State) -> None:
        fleet = state.fleet
        seen = (fleet.position, fleet.layout)
        if seen == self._seen:
            return
        self._seen = seen
        if CPU in fleet.total:
            online = fleet.online
            self._amounts = (int(fleet.used[CPU][online].sum()), int(fleet.total[CPU][online].sum()))
        self.peak_nodes = max(self.peak_nodes, sum(map(bool, state.allocated.values())))

    def _wait(self, state: State, key: str) -> None:
        instance = state.instances.get(key)
        if instance is None or not instance.started_ms:
            return
        workload = state.workloads[instance.workload]
        who = (workload.serial, instance.index)
        if who not in self._started:
            self._started.add(who)
            self._waited += 1
            self._waits_ms += max(0, instance.started_ms - workload.submitted_ms)
