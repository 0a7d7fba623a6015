"""Anything may happen in any order: requests, hellos, reports (right, stale, repeated, foreign), silence, restarts.

After every step the invariants of core/invariants.py hold, what is stored is the whole state, and the orders
add up to what they are to run. In the end the same inputs are played again and must give the same bytes.
"""

import random
from collections.abc import Callable
from typing import Any, ClassVar

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from roost.core.explain.why import why
from roost.core.replica import load
from roost.core.state.outcome import Step
from roost.core.step import step
from roost.model.events import (
    Cancel,
    Drain,
    Event,
    HeartbeatsReceived,
    NodeConnected,
    NodeDisconnected,
    Promote,
    Remove,
    ReportsReceived,
    Retry,
    Rollback,
    RunNow,
    SetProject,
    Submit,
    Uncordon,
    Unset,
)
from roost.model.limits import DEFAULT_POOL
from roost.model.protocol import Drop, Hello, Report, Run
from roost.model.records.project import Project
from roost.model.states import FINISHED
from roost.ports.store import Snapshot, require
from roost.schema.reason_text import render_text
from roost.stores.memory import Memory
from tests.core.documents import DOCUMENTS, NAMES, PROJECTS, document
from tests.core.scene import BEGINNING_MS, Scene, facts_of, wanted

NODES = ("a", "b", "c")
KEYS = tuple(f"{project}/{name}" for project in PROJECTS for name in NAMES)
WAITING = {"no_nodes", "insufficient_resources", "unsatisfiable", "quota_exceeded", "backoff", "maintenance",
           "after", "schedule"}  # fmt: skip
Habit = Callable[[], None]
Pick = Callable[[Any], Any]

INDEXES = st.none() | st.integers(0, 5)
AGES = st.sampled_from([0, 7, 5_000])
ENDINGS = st.fixed_dictionaries(
    {
        "state": st.just("ended"),
        "cause": st.sampled_from(["exited", "exited", "exited", "timed_out", "stopped", "stopped", "lease", "error"]),
        "code": st.sampled_from([0, 1, 3]),
    },
    optional={"started_ago_ms": AGES, "ended_ago_ms": AGES},
)
REPORTS = ENDINGS | st.fixed_dictionaries(
    {"state": st.sampled_from(["starting", "running", "running", "queued"])},
    optional={"step": st.integers(0, 2), "started_ago_ms": AGES},
)


class Life(RuleBasedStateMachine):
    """A scene in which anything may happen, and a record of all that did."""

    pools: ClassVar[dict[str, str]] = {}  # of nodes that are not in the default one

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(placements_max=3, finished_max=6, seed=5)
        self.scene.checked = False  # the invariants below do it, step by step
        self.scene.honest = False
        self.played: list[tuple[Event, ...] | bool] = []  # a bool: the server started again, True: without memory
        self.times: list[int] = []
        self.outcomes: list[Step] = []
        self.sessions: dict[str, list[int]] = {name: [] for name in NODES}
        self.reported: dict[str, set[int]] = {}  # what each connected agent is to run, from the orders it was sent
        self.tokens: list[int] = []
        self.serial = 0
        self.ended: dict[tuple[str, int, int], str] = {}  # instance, token and version -> how it ended
        for name in NODES:
            self.hello(name, 4, False, [], {"state": "running"})

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
            self.reported.pop(name, None)
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

    @rule(key=st.sampled_from(KEYS), what=st.sampled_from([Promote, Rollback, RunNow]))
    def update(self, key: str, what: Callable[[int, str], Event]) -> None:
        self.play(what(1, key))

    @rule(node=st.sampled_from(NODES), deadline=st.sampled_from([0, 5_000]))
    def drain(self, node: str, deadline: int) -> None:
        self.play(Drain(1, node, deadline))

    @rule(node=st.sampled_from(NODES), what=st.sampled_from([Uncordon, Remove]))
    def uncordon_or_remove(self, node: str, what: Callable[[int, str], Event]) -> None:
        self.play(what(1, node))

    @rule(instances=st.integers(1, 3), borrow=st.booleans(), gone=st.booleans())
    def set_quota(self, instances: int, borrow: bool, gone: bool) -> None:
        quota = Project("red", quota={"instances": instances}, borrow=borrow)
        self.play(Unset(1, "project", "red") if gone else SetProject(1, quota))

    # agents

    @rule(
        node=st.sampled_from(NODES),
        cpu=st.sampled_from([4, 4, 4, 2, 1]),
        stranger=st.sampled_from([False] * 5 + [True]),
        which=st.lists(st.booleans(), max_size=6),
        report=REPORTS,
    )
    def hello(self, node: str, cpu: int, stranger: bool, which: list[bool], report: dict[str, Any]) -> None:
        """An agent comes or comes back, running some of what it was once ordered to run, others no longer."""
        known = [token for token, run in self.scene.runs.items() if token in self._ever(node)]
        chosen = [token for token, yes in zip(reversed(known), which, strict=False) if yes]
        runs = tuple((self.scene.runs[token], Report(token, **report)) for token in chosen)
        identity = "stranger" if stranger else f"machine-{node}"
        facts = facts_of(cpu=cpu, pool=self.pools.get(node, DEFAULT_POOL))
        self.play(NodeConnected(1, Hello(node, identity, facts, 0, runs)))
        if node in self.scene.state.nodes:
            self.sessions[node].append(self.scene.state.nodes[node].session)

    @rule(
        node=st.sampled_from(NODES), which=st.integers(0, 20), report=REPORTS, again=st.booleans(), stale=st.booleans()
    )
    def report(self, node: str, which: int, report: dict[str, Any], again: bool, stale: bool) -> None:
        """About something it holds, or about anything that was ever started anywhere."""
        held = sorted(self.scene.state.allocated.get(node, ()))
        tokens = held if held and not stale else list(self.scene.runs) or [7]
        reported = Report(tokens[which % len(tokens)], **report)
        sessions = self.sessions[node] or [1]
        session = sessions[which % len(sessions)] if stale else sessions[-1]
        self.play(
            ReportsReceived(node, session, 1, (reported, reported) if again else (reported,), delta_missing=which == 0)
        )

    @rule(report=REPORTS)
    def report_all(self, report: dict[str, Any]) -> None:
        """Every node reports the same of everything it holds, in one step."""
        events: list[Event] = []
        for name, node in self.scene.state.nodes.items():
            reports = tuple(Report(token, **report) for token in self.scene.state.allocated[name])
            events.append(ReportsReceived(name, node.session, 1, reports))
        self.play(*events)

    @rule(which=st.lists(st.sampled_from([None, "starting", "running"]), min_size=9, max_size=9))
    def go_on(self, which: list[str | None]) -> None:
        """Nodes report what they should: some of their work has come further."""
        for name, node in self.scene.state.nodes.items():
            pairs = zip(sorted(self.scene.state.allocated[name]), which, strict=False)
            reports = tuple(Report(token, state) for token, state in pairs if state)
            self.play(ReportsReceived(name, node.session, 1, reports))

    @rule(which=st.integers(0, 20), ending=ENDINGS)
    def end(self, which: int, ending: dict[str, Any]) -> None:
        """Something that is held somewhere ends."""
        held = [(name, token) for name, tokens in self.scene.state.allocated.items() for token in sorted(tokens)]
        if held:
            name, token = held[which % len(held)]
            self.play(ReportsReceived(name, self.scene.state.nodes[name].session, 1, (Report(token, **ending),)))

    @rule(node=st.sampled_from(NODES), leaving=st.booleans(), stale=st.booleans())
    def part(self, node: str, leaving: bool, stale: bool) -> None:
        sessions = self.sessions[node] or [1]
        self.play(NodeDisconnected(node, sessions[0 if stale else -1], leaving))

    # time

    @rule(
        duration=st.sampled_from([1, 500, 2_000, 4_400, 10_000, 70_000, 90_000_000]),
        silent=st.sampled_from(["", "", "", "a", "b", "ab", "abc"]),
    )
    def wait(self, duration: int, silent: str) -> None:
        self.scene.now += duration
        alive = [name for name in NODES if self.sessions[name] and name not in silent]
        self.play(HeartbeatsReceived(tuple((name, self.sessions[name][-1], self.scene.now) for name in alive)))

    @rule(forgetful=st.sampled_from([False, False, True]))
    def restart(self, forgetful: bool) -> None:
        """The server starts again, on its store or without memory: then agents tell what they run."""
        self.scene.now += 1_000  # nothing starts in less, and tokens of the next life begin with the time
        self.scene.restart(forgetful=forgetful)
        self.reported.clear()
        if forgetful:
            self.ended.clear()
        self.played.append(forgetful)
        self.times.append(self.scene.now)
        self.play()
        for name in NODES:
            self.hello(name, 4, False, [True] * 6, {"state": "running"})

    # what must be true

    @invariant()
    def the_state_is_sound_and_stored(self) -> None:
        self.scene.check()

    @invariant()
    def every_record_is_stored_as_it_is(self) -> None:
        state = self.scene.state
        records = {("instance", key): instance for key, instance in state.instances.items()}
        records |= {("workload", key): workload for key, workload in state.workloads.items()}
        records |= {("version", key): workload for key, workload in state.versions.items()}
        records |= {("node", name): node for name, node in state.nodes.items()}
        records |= {("project", name): project for name, project in state.projects.items()}
        records |= {("pool", name): pool for name, pool in state.pools.items()}
        records |= {("need", key): need for key, need in state.needs.items()}
        days = [record for projects in state.usage.values() for record in projects.values()]
        records |= {("usage", f"{record.project}/{record.day}"): record for record in days}
        stored = {
            change.record: change.value for change in self.scene.memory.snapshot().records if change.kind != "meta"
        }
        assert stored == {key: msgspec.msgpack.encode(record) for key, record in records.items()}

    @invariant()
    def pending_instances_have_a_reason_and_room_is_not_left_unused(self) -> None:
        state = self.scene.state
        more = bool(self.outcomes) and self.outcomes[-1].wake_at_ms == self.scene.now
        for workload in state.workloads.values():
            indexes = [index for index in range(state.placed_count(workload))]
            for index in [*indexes, *([state.placed_count(workload)] if state.has_unstarted(workload) else [])]:
                reported = why(state, workload.key, index)
                assert render_text(reported.text)
                assert (
                    reported.state != "queued" or reported.code in WAITING or (more and reported.code == "placeable")
                ), reported

    @invariant()
    def agents_were_ordered_what_they_are_to_run(self) -> None:
        for name, contact in self.scene.state.liveness.items():
            if contact.connected:
                assert self.reported.get(name) == set(self.scene.state.allocated[name]), name

    def teardown(self) -> None:
        """Determinism: the same inputs, played from the beginning, give the same bytes."""
        again = load(Snapshot(0, []), BEGINNING_MS, self.scene.settings)
        stored = Memory()
        epoch = require(stored.lead("again")).epoch
        outcomes = iter(self.outcomes)
        for events, now in zip(self.played, self.times, strict=True):
            if isinstance(events, bool):
                stored = Memory() if events else stored
                epoch = require(stored.lead("again")).epoch
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
            reported = set() if orders.whole else self.reported[orders.node]
            for order in orders.orders:
                if isinstance(order, Run):
                    reported.add(order.token)
                elif isinstance(order, Drop):
                    reported.discard(order.token)
            self.reported[orders.node] = reported

    def _nothing_is_given_twice(self, done: Step) -> None:
        for placed in done.placed:
            instance = self.scene.state.instances[placed.instance]
            token, asked = instance.token, dict(self.scene.state.workloads[instance.workload].policy.ask.resources)
            assert token > max(self.tokens, default=0), "a token was given twice"
            self.tokens.append(token)
            for resource, used, total in placed.resources:
                assert used <= total or resource not in asked, (
                    f"{placed.instance} on {placed.node}: too much {resource}"
                )
        assert self.scene.state.serial >= self.serial
        self.serial = self.scene.state.serial

    def _the_finished_stay(self, events: tuple[Event, ...]) -> None:
        """Only a request brings back what has ended, or makes it another version."""
        asked = any(isinstance(event, Retry) for event in events)
        now = {}
        for key, instance in self.scene.state.instances.items():
            ending = self.ended.get((key, instance.token, instance.version))
            assert ending in (None, instance.state) or asked, f"{key} was {ending} and is {instance.state}"
            if instance.state in FINISHED:
                now[key, instance.token, instance.version] = instance.state
        self.ended = now

    def _ever(self, node: str) -> set[int]:
        """Tokens this node was once ordered to run."""
        return {
            order.token
            for done in self.outcomes
            for orders in done.assignments
            if orders.node == node
            for order in orders.orders
            if isinstance(order, Run)
        }


Life.TestCase.settings = settings(stateful_step_count=30)
test_anything_may_happen = Life.TestCase


@pytest.mark.parametrize("seed", range(10))
def test_long_lives(seed: int) -> None:
    """Hypothesis looks for short stories that break something; these are long ones, in which much has piled up."""
    wander(seed, steps=300)


def wander(
    seed: int, steps: int, kind: type[Life] = Life, more: Callable[[Life, Pick], dict[Habit, int]] = lambda *_: {}
) -> None:
    """A life by chance; `more`: what else may happen in it, and how often."""
    chance = random.Random(seed)
    pick = chance.choice
    life = kind()

    def ending() -> dict[str, Any]:
        cause = pick(["exited"] * 4 + ["timed_out", "stopped", "stopped", "lease", "error"])
        return {"state": "ended", "cause": cause, "code": pick([0, 1, 3]), "ended_ago_ms": pick([0, 9, 5_000])}

    def report() -> dict[str, Any]:
        return pick([ending(), {"state": pick(["starting", "running", "queued"]), "step": pick([0, 1])}])

    def index() -> int | None:
        return pick([None, None, 0, 1, 4])

    habits: dict[Habit, float] = {
        lambda: life.submit([document(pick) for _ in range(pick([1, 1, 3]))], pick([True, False])): 8,
        lambda: life.go_on([pick([None, "starting", "running"]) for _ in range(9)]): 8,
        lambda: life.end(pick(range(20)), ending()): 20,
        lambda: life.wait(pick([1, 500, 1_000, 2_000, 4_000]), ""): 10,
        lambda: life.wait(pick([500, 4_400, 10_000, 70_000]), pick(["", "a", "b", "ab", "abc"])): 3,
        lambda: life.cancel(pick(KEYS), index()): 5,
        lambda: life.retry(pick(KEYS), index()): 5,
        lambda: life.update(pick(KEYS), pick([Promote, Promote, Rollback, RunNow])): 5,
        lambda: life.hello(pick(NODES), pick([4, 4, 2, 1]), chance.random() < 0.1, pick([[], [True] * 6]), report()): 5,
        lambda: life.report(pick(NODES), pick(range(20)), report(), pick([True, False]), pick([True, False])): 4,
        lambda: life.report_all(report()): 1,
        lambda: life.part(pick(NODES), pick([True, False]), chance.random() < 0.2): 2,
        lambda: life.drain(pick(NODES), pick([0, 5_000])): 2,
        lambda: life.set_quota(pick([1, 2, 3]), pick([True, False]), pick([True, False, False])): 2,
        lambda: life.uncordon_or_remove(pick(NODES), pick([Uncordon, Uncordon, Remove])): 3,
        lambda: life.restart(pick([False, False, True])): 1,
        lambda: life.wait(90_000_000, "abc"): 0.1,
        **more(life, pick),
    }
    for _ in range(steps):
        chance.choices(list(habits), list(habits.values()))[0]()
        life.the_state_is_sound_and_stored()
        life.every_record_is_stored_as_it_is()
        life.pending_instances_have_a_reason_and_room_is_not_left_unused()
        life.agents_were_ordered_what_they_are_to_run()
    life.teardown()
