"""Anything may happen in any order: requests, hellos, reports (right, stale, repeated, foreign), silence, restarts.

After every step the invariants of core/check.py hold, what is stored tells the whole state, and what agents were told
adds up to what they are to run. In the end the same inputs are played again and must give the same bytes.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roost.core.effects import Step
from roost.core.explain import why
from roost.core.state import Settings, load
from roost.core.step import step
from roost.model.events import Cancel, Drain, Event, Heard, Joined, Parted, Remove, Reported, Resume, Retry, Submit
from roost.model.frames import Drop, Hello, Report, Run
from roost.model.states import FINISHED
from roost.ports.store import Snapshot
from tests.core.scene import BEGINNING_MS, Scene, facts_of, wanted

NODES = ("a", "b", "c")
NAMES = ("one", "two", "three", "four")
KEYS = tuple(f"default/{name}" for name in NAMES)
WAITING = {"no_nodes", "insufficient_resources", "unsatisfiable", "backoff"}

DOCUMENTS = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "command": st.just("true")},
    optional={
        "kind": st.sampled_from(["job", "service"]),
        "count": st.integers(1, 5),
        "priority": st.integers(0, 2),
        "resources": st.fixed_dictionaries({"cpu": st.integers(0, 3)}),
        "retries": st.fixed_dictionaries(
            {"max": st.integers(0, 2), "on": st.lists(st.sampled_from(["lost", "failed", "timed_out", "exit:3"]), max_size=3)}
        ),
        "queue_timeout": st.integers(1, 20),
        "deadline": st.integers(1, 60),
        "when_full": st.sampled_from(["queue", "reject"]),
        "when_lost": st.sampled_from(["reschedule", "fail", "keep"]),
        "exclusive": st.booleans(),
        "keep": st.integers(0, 600),
        "placement": st.fixed_dictionaries(
            {"strategy": st.sampled_from(["", "best_fit", "round_robin", "next_fit", "random", "first_fit"])}
        ),
    },
)
INDEXES = st.none() | st.integers(0, 5)
REPORTS = st.fixed_dictionaries(
    {"state": st.sampled_from(["starting", "running", "ended", "ended", "queued"])},
    optional={
        "cause": st.sampled_from(["exited", "timed_out", "stopped", "lease", "error"]),
        "code": st.sampled_from([0, 0, 1, 3]),
        "step": st.integers(0, 2),
        "started_ago_ms": st.integers(0, 5_000),
        "ended_ago_ms": st.integers(0, 5_000),
    },
)


class Life(RuleBasedStateMachine):
    """A scene in which anything may happen, and a record of all that did."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(placements_max=3, finished_max=6, seed=5)
        self.scene.checked = False  # the invariants below do it, step by step
        self.scene.honest = False
        self.played: list[tuple[Event, ...] | None] = []  # None: the server started again
        self.times: list[int] = []
        self.outcomes: list[Step] = []
        self.sessions: dict[str, list[int]] = {name: [] for name in NODES}
        self.told: dict[str, set[int]] = {}  # what each connected agent is to run, from the orders it was sent
        self.tokens: list[int] = []
        self.serial = 0
        self.ended: dict[tuple[str, int], str] = {}
        self.hello("a", 4, False, [], {"state": "running"})

    def play(self, *events: Event) -> Step:
        before = dict(self.scene.state.nodes)
        done = self.scene.step(*events)
        self.played.append(events)
        self.times.append(self.scene.now)
        self.outcomes.append(done)
        self._obey(done)
        self._nothing_is_given_twice(done)
        self._the_finished_stay(events)
        for name in before.keys() - self.scene.state.nodes.keys():
            self.told.pop(name, None)
        return done

    # requests

    @rule(documents=st.lists(DOCUMENTS, min_size=1, max_size=3), same_ok=st.booleans())
    def submit(self, documents: list[dict[str, Any]], same_ok: bool) -> None:
        self.play(Submit(1, tuple(wanted(document) for document in documents), same_ok))

    @rule(key=st.sampled_from(KEYS), index=INDEXES)
    def cancel(self, key: str, index: int | None) -> None:
        self.play(Cancel(1, key, index))

    @rule(key=st.sampled_from(KEYS), index=INDEXES)
    def retry(self, key: str, index: int | None) -> None:
        self.play(Retry(1, key, index))

    @rule(node=st.sampled_from(NODES), deadline=st.sampled_from([0, 5_000]))
    def drain(self, node: str, deadline: int) -> None:
        self.play(Drain(1, node, deadline))

    @rule(node=st.sampled_from(NODES), what=st.sampled_from([Resume, Remove]))
    def resume_or_remove(self, node: str, what: Callable[[int, str], Event]) -> None:
        self.play(what(1, node))

    # agents

    @rule(
        node=st.sampled_from(NODES),
        cpu=st.integers(1, 4),
        stranger=st.sampled_from([False] * 5 + [True]),
        which=st.lists(st.booleans(), max_size=6),
        report=REPORTS,
    )
    def hello(self, node: str, cpu: int, stranger: bool, which: list[bool], report: dict[str, Any]) -> None:
        """An agent comes or comes back, running some of what it was once told to run, others not any more."""
        known = [token for token, run in self.scene.runs.items() if token in self._ever(node)]
        chosen = [token for token, yes in zip(reversed(known), which, strict=False) if yes]
        runs = tuple((self.scene.runs[token], Report(token, **report)) for token in chosen)
        identity = "stranger" if stranger else f"machine-{node}"
        self.play(Joined(1, Hello(node, identity, facts_of(cpu=cpu), 0, runs)))
        if node in self.scene.state.nodes:
            self.sessions[node].append(self.scene.state.nodes[node].session)

    @rule(node=st.sampled_from(NODES), which=st.integers(0, 20), report=REPORTS, again=st.booleans(), stale=st.booleans())
    def report(self, node: str, which: int, report: dict[str, Any], again: bool, stale: bool) -> None:
        """About something it holds, or about anything that was ever started anywhere."""
        held = sorted(self.scene.state.held.get(node, ()))
        tokens = held if held and not stale else list(self.scene.runs) or [7]
        told = Report(tokens[which % len(tokens)], **report)
        sessions = self.sessions[node] or [1]
        session = sessions[which % len(sessions)] if stale else sessions[-1]
        self.play(Reported(node, session, 1, (told, told) if again else (told,), lacking=which == 0))

    @rule(data=st.data(), report=REPORTS)
    def report_all(self, data: st.DataObject, report: dict[str, Any]) -> None:
        """Every node reports on everything it holds, in one step."""
        events: list[Event] = []
        for name, node in self.scene.state.nodes.items():
            reports = tuple(Report(token, **report) for token in self.scene.state.held[name])
            events.append(Reported(name, node.session, 1, reports))
        self.play(*events)

    @rule(node=st.sampled_from(NODES), leaving=st.booleans(), stale=st.booleans())
    def part(self, node: str, leaving: bool, stale: bool) -> None:
        sessions = self.sessions[node] or [1]
        self.play(Parted(node, sessions[0 if stale else -1], leaving))

    # time

    @rule(duration=st.sampled_from([0, 1, 500, 4_400, 10_000, 70_000]), alive=st.sets(st.sampled_from(NODES)))
    def wait(self, duration: int, alive: set[str]) -> None:
        self.scene.now += duration
        beats = tuple((name, self.sessions[name][-1], self.scene.now) for name in sorted(alive) if self.sessions[name])
        self.play(Heard(beats))

    @rule()
    def wait_a_day(self) -> None:
        self.scene.now += 90_000_000
        self.play()

    @precondition(lambda self: self.played)
    @rule()
    def restart(self) -> None:
        self.scene.restart()
        self.told.clear()
        self.played.append(None)
        self.times.append(self.scene.now)
        self.play()

    # what must be true

    @invariant()
    def the_state_is_sound_and_stored(self) -> None:
        self.scene.check()

    @invariant()
    def every_record_is_stored_as_it_is(self) -> None:
        state = self.scene.state
        records = {("instance", key): each for key, each in state.instances.items()}
        records |= {("workload", key): each for key, each in state.workloads.items()}
        records |= {("node", name): each for name, each in state.nodes.items()}
        stored = {change[:2]: change.value for change in self.scene.memory.snapshot().records if change.kind != "meta"}
        assert stored == {key: msgspec.msgpack.encode(record) for key, record in records.items()}

    @invariant()
    def whoever_waits_has_a_reason_and_room_is_not_left_unused(self) -> None:
        state = self.scene.state
        more = bool(self.outcomes) and self.outcomes[-1].wake_at_ms == self.scene.now
        for workload in state.workloads.values():
            indexes = [index for index in range(state.begun(workload))]
            for index in [*indexes, *([state.begun(workload)] if state.has_fresh(workload) else [])]:
                told = why(state, workload.key, index)
                assert told.words
                assert told.state != "queued" or told.code in WAITING or (more and told.code == "placeable"), told

    @invariant()
    def agents_were_told_what_they_are_to_run(self) -> None:
        for name, contact in self.scene.state.contacts.items():
            if contact.connected:
                assert self.told.get(name) == set(self.scene.state.held[name]), name

    def teardown(self) -> None:
        """Determinism: the same inputs, played from the beginning, give the same bytes."""
        again = load(Snapshot(0, []), BEGINNING_MS, self.scene.settings)
        stored = Scene(placements_max=3).memory
        epoch = stored.lead("again")
        outcomes = iter(self.outcomes)
        for events, now in zip(self.played, self.times, strict=True):
            if events is None:
                again = load(stored.snapshot(), now, self.scene.settings)
                continue
            done, first = step(again, events, now), next(outcomes)
            assert done.changes == first.changes
            assert done.assignments == first.assignments
            assert [reply.request for reply in done.replies] == [reply.request for reply in first.replies]
            if done.changes:
                stored.apply(epoch, done.changes)

    def _obey(self, done: Step) -> None:
        for orders in done.assignments:
            told = set() if orders.whole else self.told[orders.node]
            for order in orders.orders:
                if isinstance(order, Run):
                    told.add(order.token)
                elif isinstance(order, Drop):
                    told.discard(order.token)
            self.told[orders.node] = told

    def _nothing_is_given_twice(self, done: Step) -> None:
        for placed in done.placed:
            instance = self.scene.state.instances[placed.instance]
            token, asked = instance.token, dict(self.scene.state.workloads[instance.workload].policy.ask.resources)
            assert token > max(self.tokens, default=0), "a token was given twice"
            self.tokens.append(token)
            for resource, used, total in placed.resources:
                assert used <= total or resource not in asked, f"{placed.instance} was placed on {placed.node} beyond its {resource}"
        assert self.scene.state.serial >= self.serial
        self.serial = self.scene.state.serial

    def _the_finished_stay(self, events: tuple[Event, ...]) -> None:
        """Only somebody who asks for it brings back what has ended."""
        asked = any(isinstance(event, Retry) for event in events)
        now = {}
        for key, instance in self.scene.state.instances.items():
            ending = self.ended.get((key, instance.token))
            assert ending in (None, instance.state) or asked, f"{key} was {ending} and is {instance.state}"
            if instance.state in FINISHED:
                now[key, instance.token] = instance.state
        self.ended = now

    def _ever(self, node: str) -> set[int]:
        """Tokens this node was once told to run."""
        return {
            order.token
            for done in self.outcomes
            for orders in done.assignments
            if orders.node == node
            for order in orders.orders
            if isinstance(order, Run)
        }


Life.TestCase.settings = settings(stateful_step_count=50)
test_anything_may_happen = Life.TestCase
