"""Estimates: when an instance may start. The real core runs forward on a copy, in which runs end as runs did before."""

from heapq import heappop, heappush, nsmallest

import msgspec

from roost.core.effects import Step
from roost.core.ending import nearest_nodes
from roost.core.hold import HOLDS_MAX, ROWS_MAX
from roost.core.lengths import Length, Lengths, ran_ms
from roost.core.state import State
from roost.core.step import step
from roost.core.trial import Subject
from roost.core.whatif import glance
from roost.model.events import Event, Reported
from roost.model.frames import Report, Run, Stop
from roost.model.instance import Instance
from roost.model.states import HOLDING

QUANTILES = (25, 50, 90)  # earliest, likely, latest
ENDS_MAX = 2_000  # in all three futures together, some 100 us each
LOOKS_MAX = 2_000  # at what holds room, per pass, in order to keep places: 10 us each
HELD_MAX = 20_000  # where more holds room, only the nodes that lack least are looked at: the others seem to go on
TOGETHER_MAX = 32  # ends of one moment that are looked at together
WORK_MAX = 150_000  # in all three futures together; about as many microseconds, see _work
NEVER = 1 << 62

Running = tuple[Instance, Length | None, int]  # who, how long such runs take, and how long it has run
End = tuple[int, int, str, bool]  # when, the attempt's token, its node, and whether it was told to stop


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """When it may start, in ms since 1970: a quarter of all runs, half and nine tenths being as long as before."""

    words: str
    earliest_ms: int | None = None
    likely_ms: int | None = None
    latest_ms: int | None = None


def estimate(state: State, subject: Subject) -> Estimate:
    """When an instance may start, or in words why nobody can tell."""
    lengths = Lengths(state)
    names = list(state.held)
    if sum(map(len, state.held.values())) > HELD_MAX:
        names = nearest_nodes(state, subject.workload)
    running, unknown = _running(state, lengths, names)
    starts: list[int] = []
    words = ""
    for percent in QUANTILES:
        future = _Future(state, lengths, percent, unknown)
        start = future.start_of(subject, running, ENDS_MAX // len(QUANTILES))
        words = future.trouble or words
        starts += [] if start is None else [start]
    if not starts:
        return Estimate(words)
    told = f"from {_sources(lengths)}"
    told = f"{told}; {words}" if len(starts) < len(QUANTILES) else told
    return Estimate(told, *sorted(starts))


def _running(state: State, lengths: Lengths, names: list[str]) -> tuple[list[Running], int]:
    """What holds room on nodes and is going to end, and how many there are of which nobody knows when."""
    found: list[Running] = []
    known: dict[str, Length | None] = {}
    unknown = 0
    for name in names:
        for instance in state.held[name].values():
            if instance.behind:
                continue  # it has no room of its own yet
            key = instance.workload
            if key not in known:
                known[key] = lengths.of(state.workloads[key])
            length = known[key]
            if length is not None or instance.state == "stopping":
                found.append((instance, length, ran_ms(instance, state.now_ms)))
            else:
                unknown += 1
    return found, unknown


def _sources(lengths: Lengths) -> str:
    names = {
        "workload": "past runs of the same workloads",
        "ask": "past runs that asked for the same",
        "expected": "what users expect",
        "timeout": "timeouts",
    }
    used = lengths.sources()
    return ", ".join(words for source, words in names.items() if source in used) or "what is free"


def _is_large(state: State) -> bool:
    """Whether to keep places for all who wait long would take more time than an estimate is worth."""
    held = sum(map(len, state.held.values())) // max(1, len(state.held))
    return min(HOLDS_MAX, len(state.queue.lines)) * min(ROWS_MAX, len(state.held)) * held > LOOKS_MAX


def _work(ends: int, starts: int, lines: int, holds: int) -> int:
    """What a step of a forecast costs, in microseconds."""
    return 50 + 60 * ends + 250 * starts + lines * (4 + 2 * ends) + holds * LOOKS_MAX


class _Future:
    """One future: a copy of the state, and when which run ends in it."""

    def __init__(self, state: State, lengths: Lengths, percent: int, unknown: int) -> None:
        self._state = glance(state)
        self._state.settings = msgspec.structs.replace(state.settings, ahead_max=0)  # to stand behind is no start
        self._lengths = lengths
        self._percent = percent
        self._ends: list[End] = []
        self._unknown = unknown
        self._left = 0
        self.trouble = ""  # why there is no answer, in words

    def start_of(self, subject: Subject, running: list[Running], ends_max: int) -> int | None:
        """When an instance starts in this future, found within so many ends."""
        state, now = self._state, self._state.now_ms
        if _is_large(state):
            state.holds = {line: hold for line, hold in state.holds.items() if hold.for_whom == subject.key}
            state.settings = msgspec.structs.replace(state.settings, patience_ms=NEVER)
        for contact in state.contacts.values():
            contact.lease_until_ms = NEVER  # nobody is lost in a forecast
        self._ends = nsmallest(ends_max + 1, [self._end_of(*each) for each in running])
        own = state.instances.get(subject.key)
        if own is not None and own.ready_ms > now:
            heappush(self._ends, (own.ready_ms, 0, "", False))
        self._left, work = ends_max, WORK_MAX // len(QUANTILES)
        while self._ends and self._left > 0 and work > 0:
            now = max(now, self._ends[0][0])
            due = self._due(now)
            done = step(state, due, now)
            work -= _work(len(due), len(done.placed), len(state.queue.lines), len(state.holds))
            now_is = self._is_now(subject)
            if now_is in HOLDING:
                return now
            if now_is != "queued":
                self.trouble = f"it would be {now_is} before it starts"
                return None
            self._go_on(done, now)
        looked = ends_max - self._left
        self.trouble = f"not within the next {looked:,} ends" if self._ends else self._unknown_words()
        return None

    def _is_now(self, subject: Subject) -> str:
        """What has become of an instance."""
        instance, workload = self._state.instances.get(subject.key), self._state.workloads.get(subject.workload.key)
        if workload is None:
            return "gone"
        if instance is not None and instance.behind:
            return "queued"
        return instance.state if instance is not None else workload.rest or "queued"

    def _due(self, now: int) -> list[Event]:
        """What ends now, as agents report it; a few at a time, because the first may be enough."""
        events: list[Event] = []
        while self._ends and self._ends[0][0] <= now and len(events) < TOGETHER_MAX and self._left > 0:
            _, token, node, is_stopped = heappop(self._ends)
            self._left -= 1
            if token in self._state.held.get(node, ()):
                cause = "stopped" if is_stopped else "exited"
                report = Report(token, "ended", cause=cause, code=None if is_stopped else 0)
                events.append(Reported(node, self._state.nodes[node].session, 0, (report,)))
        return events

    def _go_on(self, done: Step, now: int) -> None:
        """What was started ends in its time; what was told to stop does so at once."""
        for each in done.stepped_up:
            self._begin(each.workload, each.token, each.node, now)
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

    def _end_of(self, instance: Instance, length: Length | None, elapsed: int) -> End:
        now = self._state.now_ms
        if length is None or instance.state == "stopping":
            return now + 1, instance.token, instance.node, True
        left = max(0, length.at(self._percent, elapsed) - elapsed)
        return now + left, instance.token, instance.node, False

    def _unknown_words(self) -> str:
        if self._unknown:
            many = f"{self._unknown:,} of what holds room" if self._unknown > 1 else "what holds room"
            return f"not known: {many} has no known end (no past runs, no `expected`, no `timeout`)"
        return "not known: it would not start even if all that runs had ended"
