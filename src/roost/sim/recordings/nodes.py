"""Recorded nodes in virtual time: they follow the orders of the replay, and each attempt runs as long as it did."""

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import msgspec

from roost.core.orders import run_order
from roost.core.state.outcome import Orders, Step
from roost.core.state.state import State
from roost.model.events import (
    Event,
    HeartbeatsReceived,
    NodeConnected,
    NodeDisconnected,
    ReportsReceived,
    Submit,
    inner,
)
from roost.model.protocol import Drop, Report, Run, Stop
from roost.model.states import ABSENT, AttemptState, EndCause, InstanceState
from roost.sim.recordings.meter import Submission, Submissions

NEVER_MS = 1 << 62
TERM = 15

Who = tuple[Submission, int]  # an instance


class RecordedEnd(NamedTuple):
    delay_ms: int  # from having its room to running
    run_ms: int
    tail_ms: int  # from its end to the report
    report: Report


class Silence(NamedTuple):
    """A lost node sent no heartbeat in this time."""

    since_ms: int
    until_ms: int


class Doing(msgspec.Struct):
    order: Run
    who: Who
    started_ms: int = -1  # -1: prefilled behind another, or being started
    ending: RecordedEnd | None = None
    report: Report | None = None  # of its end
    ended_ms: int = 0
    stops_ms: int = NEVER_MS  # when it has stopped, if it was stopped

    def reported(self, now_ms: int) -> Report:
        ago = max(0, now_ms - self.started_ms) if self.started_ms >= 0 else 0
        if self.report is not None:
            since = max(0, now_ms - self.ended_ms)
            return msgspec.structs.replace(self.report, started_ago_ms=ago, ended_ago_ms=since)
        state = AttemptState.RUNNING if self.started_ms >= 0 else AttemptState.STARTING
        return Report(self.order.token, state, started_ago_ms=ago)


class RecordedAgent(msgspec.Struct):
    identity: str
    session: int = 0
    sequence: int = 0
    connected: bool = False
    runs: dict[int, Doing] = {}


class Nodes:
    def __init__(
        self,
        endings: Mapping[Who, Sequence[RecordedEnd]],
        silences: Mapping[str, Sequence[Silence]],
        stop_ms: int,
        submissions: Submissions,
    ) -> None:
        self._endings = endings
        self._silences = silences
        self._stop_ms = stop_ms
        self._submissions = submissions
        self._used: Counter[Who] = Counter()  # endings that have happened
        self._agents: dict[str, RecordedAgent] = {}
        self._due: list[tuple[int, int, str, int]] = []  # time, tie-breaker, node, token
        self._numbers = count()

    def begin(self, state: State, connected: Sequence[str]) -> None:
        self._agents.clear()
        self._due.clear()
        for name in connected:
            node = state.nodes[name]
            self._agents[name] = RecordedAgent(node.identity, node.session, connected=True)
            for token in sorted(state.allocated[name]):
                instance = state.allocated[name][token]
                runs = instance.state in (InstanceState.RUNNING, InstanceState.STOPPING)
                self._take_up(state, name, run_order(state, instance), instance.started_ms if runs else -1)

    def next_ms(self) -> int:
        return self._due[0][0] if self._due else NEVER_MS

    def translate(self, state: State, events: Sequence[Event], now_ms: int) -> list[Event]:
        """The recorded events with the sessions and runs of these agents, without reports and heartbeats."""
        text: list[Event] = []
        for event in map(inner, events):
            if isinstance(event, HeartbeatsReceived):
                text.append(HeartbeatsReceived((), event.usage))
            elif isinstance(event, NodeConnected):
                text.append(self._hello(state, event, now_ms))
            elif isinstance(event, NodeDisconnected):
                agent = self._agents.get(event.node)
                if agent is not None and agent.connected:
                    agent.connected = event.leaving
                    text.append(msgspec.structs.replace(event, session=agent.session))
            elif isinstance(event, Submit):  # a plan was made for another strategy: it is not insisted on
                text.append(msgspec.structs.replace(event, expected=None))
            elif not isinstance(event, ReportsReceived):
                text.append(event)
        return text

    def report(self, now_ms: int) -> list[Event]:
        """Advance to now, and report what happened. A disconnected node reports it with its next hello."""
        answer: dict[str, dict[int, Report]] = {}
        while self._due and self._due[0][0] <= now_ms:
            when, _, name, token = heappop(self._due)
            agent = self._agents[name]
            doing = agent.runs.get(token)
            if doing is None:
                continue
            if doing.report is None:
                self._go_on(name, doing, when)
            is_silent = any(silence.since_ms < now_ms <= silence.until_ms for silence in self._silences.get(name, ()))
            tail_ms = doing.ending.tail_ms if doing.ending is not None else 0
            is_due = doing.report is None or doing.ended_ms + tail_ms <= now_ms
            if agent.connected and not is_silent and is_due:
                answer.setdefault(name, {})[token] = doing.reported(now_ms)
        text: list[Event] = []
        for name, reports in sorted(answer.items()):
            agent = self._agents[name]
            agent.sequence += 1
            text.append(ReportsReceived(name, agent.session, agent.sequence, tuple(reports.values())))
        return text

    def obey(self, state: State, events: Sequence[Event], done: Step) -> None:
        answers = {reply.request: reply.value for reply in done.replies}
        for event in events:
            session = answers.get(event.request) if isinstance(event, NodeConnected) else None
            if isinstance(event, NodeConnected) and isinstance(session, int):
                agent = self._agents[event.hello.node]
                agent.session, agent.connected = session, True
        for name, line in done.node_transitions:
            if line.state in ABSENT and line.before not in ABSENT and name in self._agents:
                agent = self._agents[name]
                agent.connected = False
                agent.runs = {token: doing for token, doing in agent.runs.items() if not doing.order.leased}
        for orders in done.assignments:
            self._order(state, orders)

    # what a node does

    def _order(self, state: State, orders: Orders) -> None:
        agent = self._agents.get(orders.node)
        if agent is None:
            return
        if orders.whole:
            wanted = {order.token for order in orders.orders if isinstance(order, Run)}
            for token in [token for token in agent.runs if token not in wanted]:
                self._drop(orders.node, agent, token, state.now_ms)
        for order in orders.orders:
            if isinstance(order, Drop):
                self._drop(orders.node, agent, order.token, state.now_ms)
            elif isinstance(order, Stop):
                self._stop(orders.node, agent.runs.get(order.token), state.now_ms)
            elif isinstance(order, Run) and order.token not in agent.runs:
                self._take_up(state, orders.node, order)

    def _drop(self, name: str, agent: RecordedAgent, token: int, now_ms: int) -> None:
        """A live run keeps its allocation until it was stopped and that was reported."""
        doing = agent.runs.get(token)
        if doing is not None and doing.report is not None:
            del agent.runs[token]
        else:
            self._stop(name, doing, now_ms)

    def _stop(self, name: str, doing: Doing | None, now_ms: int) -> None:
        if doing is not None and doing.stops_ms == NEVER_MS:
            doing.stops_ms = now_ms + self._stop_ms
            self._at(doing.stops_ms, name, doing.order.token)

    def _take_up(self, state: State, name: str, order: Run, started_ms: int = -1) -> None:
        agent = self._agents[name]
        doing = Doing(order, (self._submissions.of(state, order.workload), order.index))
        agent.runs[order.token] = doing
        before = agent.runs.get(order.after)
        if started_ms >= 0:
            self._start(name, doing, started_ms)
        elif before is None or before.report is not None:
            self._make_ready(name, doing, state.now_ms)

    def _make_ready(self, name: str, doing: Doing, now_ms: int) -> None:
        ending = self._next_ending(doing.who)
        self._at(now_ms + (ending.delay_ms if ending else 0), name, doing.order.token)

    def _go_on(self, name: str, doing: Doing, when_ms: int) -> None:
        if when_ms >= doing.stops_ms:
            doing.report = Report(doing.order.token, AttemptState.ENDED, cause=EndCause.STOPPED, signal=TERM)
            doing.ending = None
            self._ended(name, doing, when_ms)
        elif doing.started_ms < 0:
            self._start(name, doing, when_ms)
        else:
            assert doing.ending is not None
            self._used[doing.who] += 1
            doing.report = msgspec.structs.replace(doing.ending.report, token=doing.order.token)
            self._ended(name, doing, when_ms)
            if doing.ending.tail_ms:
                self._at(when_ms + doing.ending.tail_ms, name, doing.order.token)

    def _start(self, name: str, doing: Doing, when_ms: int) -> None:
        doing.started_ms = when_ms
        doing.ending = self._next_ending(doing.who)
        if doing.ending is not None:
            self._at(when_ms + doing.ending.run_ms, name, doing.order.token)

    def _ended(self, name: str, doing: Doing, when_ms: int) -> None:
        """Its resources are free on the node: the attempt prefilled behind it starts."""
        doing.ended_ms = when_ms
        for other in self._agents[name].runs.values():
            if other.order.after == doing.order.token and other.started_ms < 0 and other.report is None:
                self._make_ready(name, other, when_ms)

    def _next_ending(self, who: Who) -> RecordedEnd | None:
        """None: it did not end in the recording."""
        endings, used = self._endings.get(who, ()), self._used[who]
        return endings[used] if used < len(endings) else None

    def _at(self, when_ms: int, name: str, token: int) -> None:
        heappush(self._due, (when_ms, next(self._numbers), name, token))

    # what it says

    def _hello(self, state: State, event: NodeConnected, now_ms: int) -> NodeConnected:
        """The first hello of a life reports what really ran, which was decided before it; later ones what runs here."""
        hello = event.hello
        agent = self._agents.get(hello.node)
        if agent is None:
            agent = self._agents[hello.node] = RecordedAgent(hello.identity)
            for run, report in hello.runs:
                if report.state != "ended":
                    started = now_ms - report.started_ago_ms if report.state == "running" else -1
                    self._take_up(state, hello.node, run, started)
            return event
        if agent.identity != hello.identity:
            agent.identity = hello.identity
            agent.runs.clear()
        runs = tuple((doing.order, doing.reported(now_ms)) for doing in agent.runs.values())
        return msgspec.structs.replace(event, hello=msgspec.structs.replace(hello, runs=runs))
