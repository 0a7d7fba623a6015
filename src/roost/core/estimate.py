"""Estimates: when an instance may start. The real core runs forward on a copy, in which runs end as runs did before."""

from heapq import heapify, heappop, heappush

import msgspec

from roost.core.effects import Step
from roost.core.lengths import Lengths, ran_ms
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
NEVER = 1 << 62

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
    starts: list[int | None] = []
    words = ""
    for percent in QUANTILES:
        future = _Future(state, lengths, percent)
        starts.append(future.start_of(subject, ENDS_MAX // len(QUANTILES)))
        words = future.trouble or words
    known = sorted(each for each in starts if each is not None)
    if not known:
        return Estimate(words)
    told = f"from {_sources(lengths)}"
    told = f"{told}; {words}" if len(known) < len(QUANTILES) else told
    return Estimate(told, known[0], *known[1:])


def _sources(lengths: Lengths) -> str:
    names = {
        "workload": "past runs of the same workloads",
        "ask": "past runs that asked for the same",
        "expected": "what users expect",
        "timeout": "timeouts",
    }
    used = lengths.sources()
    return ", ".join(words for source, words in names.items() if source in used) or "what is free"


class _Future:
    """One future: a copy of the state, and when which run ends in it."""

    def __init__(self, state: State, lengths: Lengths, percent: int) -> None:
        self._state = glance(state)
        self._lengths = lengths
        self._percent = percent
        self._ends: list[End] = []
        self._unknown = 0
        self.trouble = ""  # why there is no answer, in words

    def start_of(self, subject: Subject, ends_max: int) -> int | None:
        """When an instance starts in this future."""
        state = self._state
        now = state.now_ms
        for contact in state.contacts.values():
            contact.lease_until_ms = NEVER  # nobody is lost in a forecast
        for held in state.held.values():
            self._ends += [end for each in held.values() if (end := self._end_of(each)) is not None]
        heapify(self._ends)
        own = state.instances.get(subject.key)
        if own is not None and own.ready_ms > now:
            heappush(self._ends, (own.ready_ms, 0, "", False))
        for _ in range(ends_max):
            if not self._ends:
                self.trouble = self._unknown_words()
                return None
            now = max(now, self._ends[0][0])
            done = step(state, self._due(now), now)
            now_is = self._is_now(subject)
            if now_is in HOLDING:
                return now
            if now_is != "queued":
                self.trouble = f"it would be {now_is} before it starts"
                return None
            self._go_on(done, now)
        self.trouble = f"more than {ends_max:,} runs have to end before it"
        return None

    def _is_now(self, subject: Subject) -> str:
        """What has become of an instance."""
        instance, workload = self._state.instances.get(subject.key), self._state.workloads.get(subject.workload.key)
        if workload is None:
            return "gone"
        return instance.state if instance is not None else workload.rest or "queued"

    def _due(self, now: int) -> list[Event]:
        """What ends now, as agents report it."""
        events: list[Event] = []
        while self._ends and self._ends[0][0] <= now:
            _, token, node, is_stopped = heappop(self._ends)
            if token in self._state.held.get(node, ()):
                cause = "stopped" if is_stopped else "exited"
                report = Report(token, "ended", cause=cause, code=None if is_stopped else 0)
                events.append(Reported(node, self._state.nodes[node].session, 0, (report,)))
        return events

    def _go_on(self, done: Step, now: int) -> None:
        """What was started ends in its time; what was told to stop does so at once."""
        for orders in done.assignments:
            for order in orders.orders:
                if isinstance(order, Run):
                    length = self._lengths.of(self._state.workloads[order.workload])
                    if length is None:
                        self._unknown += 1
                    else:
                        heappush(self._ends, (now + length.at(self._percent), order.token, orders.node, False))
                elif isinstance(order, Stop):
                    heappush(self._ends, (now + 1, order.token, orders.node, True))

    def _end_of(self, instance: Instance) -> End | None:
        now = self._state.now_ms
        if instance.state == "stopping":
            return now + 1, instance.token, instance.node, True
        length = self._lengths.of(self._state.workloads[instance.workload])
        if length is None:
            self._unknown += 1
            return None
        elapsed = ran_ms(instance, now)
        left = max(0, length.at(self._percent, elapsed) - elapsed)
        return now + left, instance.token, instance.node, False

    def _unknown_words(self) -> str:
        if self._unknown:
            many = f"{self._unknown} of what holds room" if self._unknown > 1 else "what holds room"
            return f"not known: {many} has no known end (no past runs, no `expected`, no `timeout`)"
        return "not known: it would not start even if all that runs had ended"
