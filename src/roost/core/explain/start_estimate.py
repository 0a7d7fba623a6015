"""Estimates: when an instance may start. The real core runs forward on a copy, in which runs end as runs did before."""

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from itertools import islice
from typing import NamedTuple

import msgspec

from roost.core.explain.eviction_sets import nearest_nodes
from roost.core.explain.trial import Subject, decide
from roost.core.queue.backfill import BACKFILL_RESERVATIONS_MAX, ROWS_MAX
from roost.core.state.outcome import Step
from roost.core.state.state import State, overlay
from roost.model.events import Event, ReportsReceived
from roost.model.keys import instance_key
from roost.model.protocol import Report, Run, Stop
from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Workload
from roost.model.states import ALLOCATED, AttemptState, EndCause, InstanceState, WorkloadKind

QUANTILES = (25, 50, 90)  # earliest, likely, latest
ENDS_MAX = 2_000  # in all three futures together, some 100 us each
CHECKS_MAX = 2_000  # at what holds room, per pass, in order to keep places: 10 us each
ALLOCATED_MAX = 20_000  # where more holds room, only the nodes that lack least are looked at: the others seem to go on
TOGETHER_MAX = 32  # ends of one moment that are looked at together
WORK_MAX = 150_000  # in all three futures together; about as many microseconds, see _work
NEVER = 1 << 62
SAMPLES_MAX = 500  # runs looked at per workload or ask: more do not move a quantile
FINISHED_MAX = 2_000  # finished workloads looked at for runs with the same ask: some milliseconds


class RuntimeSamples(NamedTuple):
    """Run times in milliseconds, sorted."""

    samples: tuple[int, ...]
    source: str  # workload | ask | expected | timeout

    def at(self, percent: int, elapsed: int = 0) -> int:
        """The run time that so many of a hundred runs do not pass, given that it has lasted this long already.

        An attempt that ran longer than all earlier ones may end at any moment, or run as long again.
        """
        left = [sample for sample in self.samples if sample > elapsed]
        if not left:
            return elapsed * (100 + percent) // 100
        return left[min(len(left) - 1, len(left) * percent // 100)]


class RuntimeHistory:
    """The run times of all workloads, each found at its first use."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._cache: dict[str, RuntimeSamples | None] = {}
        self._by_ask: dict[Ask, list[int]] | None = None

    def of(self, workload: Workload) -> RuntimeSamples | None:
        """None: unknown, or it does not end."""
        if workload.policy.kind != WorkloadKind.JOB:
            return None
        if workload.key not in self._cache:
            self._cache[workload.key] = self._find(workload)
        return self._cache[workload.key]

    def sources(self) -> frozenset[str]:
        return frozenset(length.source for length in self._cache.values() if length is not None)

    def _find(self, workload: Workload) -> RuntimeSamples | None:
        policy = workload.policy
        progress = self._state.progress.get(workload.key)
        if progress is not None and progress.counts.get(InstanceState.SUCCEEDED, 0) > 0:
            own = sorted(_samples(self._state, workload))
            if own:
                return RuntimeSamples(tuple(own), "workload")
        alike = self._alike(policy.ask)
        if alike:
            return RuntimeSamples(tuple(sorted(alike)), "ask")
        if policy.expected_ms:
            return RuntimeSamples((policy.expected_ms,), "expected")
        return RuntimeSamples((policy.timeout_ms,), "timeout") if policy.timeout_ms else None

    def _alike(self, ask: Ask) -> list[int]:
        """Run times of finished workloads with the same ask, the latest first."""
        if self._by_ask is None:
            self._by_ask = {}
            for key in islice(reversed(self._state.finished), FINISHED_MAX):
                workload = self._state.workloads[key]
                existing = self._by_ask.setdefault(workload.policy.ask, [])
                if len(existing) < SAMPLES_MAX and workload.policy.kind == WorkloadKind.JOB:
                    existing.extend(_samples(self._state, workload))
        return self._by_ask.get(ask, [])


def _samples(state: State, workload: Workload) -> Iterator[int]:
    begun = state.placed_count(workload)
    for index in range(max(0, begun - SAMPLES_MAX), begun):
        instance = state.instances.get(instance_key(workload.key, index))
        if instance is not None and instance.state == InstanceState.SUCCEEDED:
            yield ran_ms(instance, instance.finished_ms)


def ran_ms(instance: Instance, until_ms: int) -> int:
    """How long it has run, from its start or, if that is unknown, from its placement."""
    began = instance.started_ms or next((move.at_ms for move in reversed(instance.story) if move.state == "placed"), 0)
    return max(0, until_ms - began) if began else 0


Running = tuple[Instance, RuntimeSamples | None, int]  # who, how long such runs take, and how long it has run
End = tuple[int, int, str, bool]  # when, the attempt's token, its node, and whether it is stopping


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """When it may start, in ms since 1970: a quarter of all runs, half and nine tenths being as long as before."""

    message: str
    earliest_ms: int | None = None
    likely_ms: int | None = None
    latest_ms: int | None = None


def estimate(state: State, subject: Subject) -> Estimate:
    lengths = RuntimeHistory(state)
    names = list(state.allocated)
    if sum(map(len, state.allocated.values())) > ALLOCATED_MAX:
        names = nearest_nodes(state, subject.workload)
    running, unknown = _running(state, lengths, names)
    starts: list[int] = []
    message = ""
    for percent in QUANTILES:
        future = _Future(state, lengths, percent, unknown)
        start = future.start_of(subject, running, ENDS_MAX // len(QUANTILES))
        message = future.trouble or message
        starts += [] if start is None else [start]
    if not starts:
        return Estimate(message)
    answer = f"from {_sources(lengths)}"
    answer = f"{answer}; {message}" if len(starts) < len(QUANTILES) else answer
    return Estimate(answer, *sorted(starts))


def _running(state: State, lengths: RuntimeHistory, names: list[str]) -> tuple[list[Running], int]:
    found: list[Running] = []
    unknown = 0
    for name in names:
        for instance in state.allocated[name].values():
            if instance.prefilled_behind:
                continue  # it has no room of its own yet
            length = lengths.of(state.workloads[instance.workload])
            if length is not None or instance.state == InstanceState.STOPPING:
                found.append((instance, length, ran_ms(instance, state.now_ms)))
            else:
                unknown += 1
    return found, unknown


def _sources(lengths: RuntimeHistory) -> str:
    names = {
        "workload": "past runs of the same workloads",
        "ask": "past runs that asked for the same",
        "expected": "what users expect",
        "timeout": "timeouts",
    }
    used = lengths.sources()
    return ", ".join(message for source, message in names.items() if source in used) or "what is free"


def _is_large(state: State) -> bool:
    """Whether backfill reservations would take more time than an estimate is worth."""
    nodes = len(state.allocated)
    allocated = sum(map(len, state.allocated.values())) // max(1, nodes)
    return min(BACKFILL_RESERVATIONS_MAX, len(state.queue.classes)) * min(ROWS_MAX, nodes) * allocated > CHECKS_MAX


def _work(ends: int, starts: int, lines: int, holds: int) -> int:
    """What a step of a forecast costs, in microseconds."""
    return 50 + 60 * ends + 250 * starts + lines * (4 + 2 * ends) + holds * CHECKS_MAX


class _Future:
    def __init__(self, state: State, lengths: RuntimeHistory, percent: int, unknown: int) -> None:
        self._state = overlay(state)
        self._state.settings = msgspec.structs.replace(state.settings, prefill_max=0)  # to stand behind is no start
        self._lengths = lengths
        self._percent = percent
        self._ends: list[End] = []
        self._unknown = unknown
        self._remaining = 0
        self.trouble = ""  # why there is no estimate

    def start_of(self, subject: Subject, running: list[Running], ends_max: int) -> int | None:
        state, now = self._state, self._state.now_ms
        if _is_large(state):
            reservations = state.backfill_reservations.items()
            state.backfill_reservations = {line: held for line, held in reservations if held.instance == subject.key}
            state.settings = msgspec.structs.replace(state.settings, backfill_after_ms=NEVER)
        for contact in state.liveness.values():
            contact.lease_until_ms = NEVER  # no node is lost in a forecast
        self._ends = nsmallest(ends_max + 1, [self._end_of(*item) for item in running])
        own = state.instances.get(subject.key)
        if own is not None and own.not_before_ms > now:
            heappush(self._ends, (own.not_before_ms, 0, "", False))
        self._remaining, work = ends_max, WORK_MAX // len(QUANTILES)
        while self._ends and self._remaining > 0 and work > 0:
            now = max(now, self._ends[0][0])
            due = self._due(now)
            done = decide(state, due, now)
            work -= _work(len(due), len(done.placed), len(state.queue.classes), len(state.backfill_reservations))
            now_is = self._is_now(subject)
            if now_is in ALLOCATED:
                return now
            if now_is != "queued":
                self.trouble = f"it would be {now_is} before it starts"
                return None
            self._advance(done, now)
        checked = ends_max - self._remaining
        self.trouble = f"not within the next {checked:,} ends" if self._ends else self._unknown_message()
        return None

    def _is_now(self, subject: Subject) -> str:
        instance, workload = self._state.instances.get(subject.key), self._state.workloads.get(subject.workload.key)
        if workload is None:
            return "gone"
        if instance is not None and instance.prefilled_behind:
            return "queued"
        return instance.state if instance is not None else workload.unstarted_end_state or InstanceState.QUEUED

    def _due(self, now: int) -> list[Event]:
        """What ends now, as agents report it; a few at a time, because the first may be enough."""
        events: list[Event] = []
        while self._ends and self._ends[0][0] <= now and len(events) < TOGETHER_MAX and self._remaining > 0:
            _, token, node, is_stopped = heappop(self._ends)
            self._remaining -= 1
            if token in self._state.allocated.get(node, ()):
                cause = EndCause.STOPPED if is_stopped else EndCause.EXITED
                report = Report(token, AttemptState.ENDED, cause=cause, code=None if is_stopped else 0)
                events.append(ReportsReceived(node, self._state.nodes[node].session, 0, (report,)))
        return events

    def _advance(self, done: Step, now: int) -> None:
        for instance in done.activated:
            self._begin(instance.workload, instance.token, instance.node, now)
        for orders in done.assignments:
            for order in orders.orders:
                if isinstance(order, Run):
                    self._begin(order.workload, order.token, orders.node, now)
                elif isinstance(order, Stop):
                    heappush(self._ends, (now + 1, order.token, orders.node, True))

    def _begin(self, workload: str, token: int, node: str, now: int) -> None:
        length = self._lengths.of(self._state.workloads[workload]) if workload in self._state.workloads else None
        if length is None:
            self._unknown += 1
        else:
            heappush(self._ends, (now + length.at(self._percent), token, node, False))

    def _end_of(self, instance: Instance, length: RuntimeSamples | None, elapsed: int) -> End:
        now = self._state.now_ms
        if length is None or instance.state == InstanceState.STOPPING:
            return now + 1, instance.token, instance.node, True
        left = max(0, length.at(self._percent, elapsed) - elapsed)
        return now + left, instance.token, instance.node, False

    def _unknown_message(self) -> str:
        if self._unknown:
            many = f"{self._unknown:,} of what holds room" if self._unknown > 1 else "what holds room"
            return f"not known: {many} has no known end (no past runs, no `expected`, no `timeout`)"
        return "not known: it would not start even if all that runs had ended"
