"""Recordings of a server, replayed exactly or with another strategy.

Exactly: the same state, events and times give the same changes, byte by byte; the first that differs is reported.
With another strategy: nodes come and go, and people ask, when they did; each run lasts as long as it did.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from roost.core.placement.strategies import STRATEGIES, check_strategy
from roost.core.replica import load
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.core.step import step
from roost.core.transitions import liveness_of
from roost.model.errors import Invalid, Unreadable
from roost.model.events import Event, NodeConnected, NodeDisconnected, ReportsReceived
from roost.model.protocol import Report
from roost.model.states import ABSENT, InstanceState, NodeStatus
from roost.ports.store import Snapshot
from roost.server.engine import recording as journal
from roost.server.engine.recording import Part, RecordedStep, RecordingHeader
from roost.sim.recordings.meter import MeteredAttempt, RecordingMeter
from roost.sim.recordings.nodes import NEVER_MS, Nodes, RecordedEnd, Silence, Who
from roost.sim.report import Replay

TRACE = "roost"
RECORDED = "recorded"  # in place of a strategy: what really happened
MOVES_SHOWN = 20
TAIL_MS_MAX = 1_000  # a report that came later waited for a connection, which is no part of the run
STOP_MS_MIN = 10
STOP_MS_UNKNOWN = 50  # where nothing was stopped: about what a process needs to end when it is asked to
PROGRESS_EVERY = 1_024
BY_ITSELF = ("exited", "timed_out", "error")

Progress = Callable[[float], None]
Life = list[Part]


class Recording(msgspec.Struct):
    lives: list[Life]
    meter: RecordingMeter = msgspec.field(default_factory=RecordingMeter)
    endings: dict[Who, list[RecordedEnd]] = {}
    losses: dict[int, list[str]] = {}  # entry -> nodes that were lost then
    silences: dict[str, list[Silence]] = {}
    stops_ms: list[int] = []  # how long stops took
    stale: set[tuple[int, int]] = set()  # entry and event: refused hellos, ends of old sessions
    entries: int = 0
    first_difference: int | None = None

    @property
    def stop_ms(self) -> int:
        """How long a stop takes; never 0, so that preemptions cannot repeat forever without time passing."""
        return max(STOP_MS_MIN, int(median(self.stops_ms))) if self.stops_ms else STOP_MS_UNKNOWN

    @property
    def is_whole(self) -> bool:
        return all(life[0].header.part == 0 for life in self.lives)

    @property
    def same_decisions(self) -> bool | None:
        """Whether all decisions were as recorded; None if unknown because a beginning is missing."""
        return self.first_difference is None if self.is_whole else None

    def facts(self) -> dict[str, Any]:
        header = self.lives[0][0].header
        files = sum(len(life) for life in self.lives)
        return {"files": files, "lives": len(self.lives), "recorded_by": header.version}


def read_history(path: Path, progress: Progress) -> Recording:
    paths = journal.journals_in(path) if path.is_dir() else [path]
    parts = [part for path in paths if (part := journal.read_part(path)) is not None]
    if not parts:
        raise Invalid(path.name, "there is no journal in this folder" if path.is_dir() else "this journal is empty")
    for part in parts:
        _check_plugins(part)
    history = Recording(_lives(parts))
    _decide_again(history, progress)
    return history


def replay_recorded(history: Recording) -> Replay:
    details = {
        "same_decisions": history.same_decisions,
        "first_difference": history.first_difference if history.is_whole else None,
        "recorded_strategy": history.lives[-1][-1].header.settings.strategy,
    }
    return Replay(TRACE, RECORDED, history.meter.metrics(), series=history.meter.series(), details=details)


def replay_instead(history: Recording, strategy: str, progress: Progress) -> Replay:
    """What would have happened with another strategy. Workloads and pools keep their own."""
    check_strategy(strategy, "strategy")
    meter = RecordingMeter()
    numbers = count(1)
    for life in history.lives:
        header = life[0].header
        instead = msgspec.structs.replace(header.settings, strategy=strategy)
        world = _World(history, meter, _begin(header, instead), header)
        for entry, number in zip(_entries(life), numbers, strict=False):
            world.follow(number, entry)
            if number % PROGRESS_EVERY == 0:
                progress(number / history.entries)
        meter.end(world.state)
    details: dict[str, Any] = {"replayed_exactly": history.same_decisions}
    details |= _compare(history.meter, meter)
    return Replay(TRACE, strategy, meter.metrics(), series=meter.series(), details=details)


# the recording


def _lives(parts: Sequence[Part]) -> list[Life]:
    """Files in the order in which they were written; a file after a missing one is a life without its beginning."""
    lives: list[Life] = []
    for part in sorted(parts, key=lambda part: (part.header.life, part.header.part)):
        last = lives[-1][-1].header if lives else None
        if last is not None and (last.life, last.part + 1) == (part.header.life, part.header.part):
            lives[-1].append(part)
        else:
            lives.append([part])
    return lives


def _entries(life: Life) -> Iterator[RecordedStep]:
    number = life[0].header.first
    for part in life:
        if part.header.first != number:
            raise Unreadable("the end of the file before this one is missing", path=part.path.name)
        for entry in journal.read_entries(part):
            number += 1
            yield entry


def _check_plugins(part: Part) -> None:
    """Without a plug-in that took part, decisions would differ for reasons outside of Roost."""
    for noun, then, now in (
        ("strategy", part.header.strategies, STRATEGIES),
        ("filter", part.header.filters, journal.filter_names()),
    ):
        missing = sorted(set(then) - set(now))
        if missing:
            message = f"the {noun} {missing[0]} took part and is not there now; install the plug-in that brought it"
            raise Invalid(part.path.name, message, code="plugin")


def _begin(header: RecordingHeader, settings: Settings) -> State:
    try:
        state = load(Snapshot(header.revision, header.records), header.now_ms, settings, unclean=header.unclean)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"its state was recorded by Roost {header.version} and cannot be read: {error}") from None
    state.serial = max(state.serial, header.serial)
    for touch in header.touch:
        contact = state.liveness[touch.node]
        contact.connected, contact.lease_until_ms = True, touch.lease_until_ms
        state.fleet.set_open(touch.node, is_open=state.nodes[touch.node].status == NodeStatus.READY, is_online=True)
        if touch.usage is not None:
            contact.usage = touch.usage
            state.fleet.measure(touch.node, touch.usage, header.now_ms)
    return state


def _decide_again(history: Recording, progress: Progress) -> None:
    size = sum(part.path.stat().st_size for life in history.lives for part in life)
    read = 0
    for life in history.lives:
        header = life[0].header
        state = _begin(header, header.settings)
        history.meter.begin(state)
        notes = _Notes(history)
        for entry in _entries(life):
            history.entries += 1
            notes.before(state, entry)
            done = step(state, entry.events, entry.now_ms)
            if journal.checksum(done.changes) != entry.changes and history.first_difference is None:
                history.first_difference = history.entries
            history.meter.stepped(state, entry.events, done, history.entries)
            notes.after(state, entry, done)
        history.meter.end(state)
        read += sum(part.path.stat().st_size for part in life)
        progress(read / size)


class _Notes:
    """Notes during a life how long runs took, and which messages were ignored."""

    def __init__(self, history: Recording) -> None:
        self._history = history
        self._ready_ms: dict[int, int] = {}  # attempt -> when it had its room
        self._over: set[int] = set()

    def before(self, state: State, entry: RecordedStep) -> None:
        joined: set[str] = set()
        for position, event in enumerate(entry.events):
            if isinstance(event, ReportsReceived) and liveness_of(state, event.node, event.session) is not None:
                for report in event.reports:
                    self._take_down(state, event.node, report, entry.now_ms)
            elif isinstance(event, NodeConnected):
                joined.add(event.hello.node)
                for _, report in event.hello.runs:
                    self._take_down(state, event.hello.node, report, entry.now_ms)
            elif isinstance(event, NodeDisconnected):
                if event.node in joined or liveness_of(state, event.node, event.session) is None:
                    self._history.stale.add((self._history.entries, position))

    def after(self, state: State, entry: RecordedStep, done: Step) -> None:
        answers = {reply.request: reply.value for reply in done.replies}
        for position, event in enumerate(entry.events):
            if isinstance(event, NodeConnected) and not isinstance(answers.get(event.request), int):
                self._history.stale.add((self._history.entries, position))
        leaving = {event.node for event in entry.events if isinstance(event, NodeDisconnected) and event.leaving}
        for name, happened in done.node_transitions:
            if happened.state in ABSENT and happened.before not in ABSENT:
                lease = state.lease_ms + state.settings.lease_margin_ms
                since = state.liveness[name].lease_until_ms - (0 if name in leaving else lease)
                self._history.losses.setdefault(self._history.entries, []).append(name)
                self._history.silences.setdefault(name, []).append(Silence(since, state.now_ms))
        for placed in done.placed:
            instance = state.instances.get(placed.instance)
            if instance is not None and not instance.prefilled_behind:
                self._ready_ms[instance.token] = state.now_ms
        for instance in done.activated:
            self._ready_ms[instance.token] = state.now_ms

    def _take_down(self, state: State, node: str, report: Report, now_ms: int) -> None:
        instance = state.allocated.get(node, {}).get(report.token)
        if instance is None or report.state != "ended" or report.token in self._over:
            return
        self._over.add(report.token)
        if instance.state == InstanceState.STOPPING:
            self._history.stops_ms.append(now_ms - instance.since_ms)
        if instance.state == InstanceState.STOPPING or report.cause not in BY_ITSELF:
            return
        submission = self._history.meter.submissions.of(state, instance.workload)
        began_ms = instance.started_ms
        if instance.state != InstanceState.RUNNING:  # as the core counts: it began when its report says
            began_ms = min(now_ms, max(now_ms - report.started_ago_ms, instance.since_ms))
        delay_ms = max(0, began_ms - self._ready_ms.pop(report.token, began_ms))
        run_ms = max(0, now_ms - report.ended_ago_ms - began_ms)
        ending = RecordedEnd(delay_ms, run_ms, min(report.ended_ago_ms, TAIL_MS_MAX), report)
        self._history.endings.setdefault((submission, instance.index), []).append(ending)


# with another strategy


class _World:
    def __init__(self, history: Recording, meter: RecordingMeter, state: State, header: RecordingHeader) -> None:
        self.state = state
        self._stale = history.stale
        self._losses = history.losses
        self._kept_until_ms = 0
        self._meter = meter
        self._wake_ms = NEVER_MS
        meter.begin(state)
        self._nodes = Nodes(history.endings, history.silences, history.stop_ms, meter.submissions)
        self._nodes.begin(state, [touch.node for touch in header.touch])

    def follow(self, number: int, entry: RecordedStep) -> None:
        while (due := min(self._wake_ms, self._nodes.next_ms())) < entry.now_ms:
            self._step(number, max(due, self.state.now_ms), ())
        counted = tuple(event for position, event in enumerate(entry.events) if (number, position) not in self._stale)
        self._step(number, entry.now_ms, counted, self._losses.get(number, ()))

    def _step(self, number: int, now_ms: int, events: tuple[Event, ...], losses: Sequence[str] = ()) -> None:
        state, nodes = self.state, self._nodes
        self._lease(now_ms, losses)
        text = (*nodes.translate(state, events, now_ms), *nodes.report(now_ms))
        done = step(state, text, now_ms)
        self._meter.stepped(state, text, done, number)
        nodes.obey(state, text, done)
        self._wake_ms = NEVER_MS if done.wake_at_ms is None else done.wake_at_ms

    def _lease(self, now_ms: int, losses: Sequence[str]) -> None:
        """Nodes are lost when they were, neither sooner nor later: leases are renewed until then, and end there."""
        state = self.state
        lease = state.lease_ms + state.settings.lease_margin_ms
        if now_ms >= self._kept_until_ms:
            for name, contact in state.liveness.items():
                if state.nodes[name].status not in ABSENT:
                    contact.lease_until_ms = max(contact.lease_until_ms, now_ms + lease)
            self._kept_until_ms = now_ms + lease // 2
        for name in losses:
            if name in state.liveness:
                state.liveness[name].lease_until_ms = now_ms
                state.at(now_ms, TimerKind.LEASE, name)


def _compare(recorded: RecordingMeter, instead: RecordingMeter) -> dict[str, Any]:
    moved: list[tuple[MeteredAttempt, str | None, str | None, int]] = []
    for attempt in recorded.placed | instead.placed:
        would, at = instead.placed.get(attempt, (None, 0))
        was, entry = recorded.placed.get(attempt, (None, at))
        if was != would:
            moved.append((attempt, was, would, entry))
    moved.sort(key=lambda item: item[3])
    shown = [
        {"instance": attempt.instance, "attempt": attempt.number, "was": was, "would_be": would}
        for attempt, was, would, _ in moved[:MOVES_SHOWN]
    ]
    first = moved[0][3] if moved else None
    return {"same_decisions": not moved, "first_difference": first, "moved": len(moved), "moves": shown}
