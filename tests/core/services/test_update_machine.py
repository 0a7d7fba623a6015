"""Updates in any order with everything that comes between: reports, crashes, sickness, losses, drains, words, restarts.

After every step: no ready instance was stopped by an update or a drain so that fewer than the floor are left, and
no instance was placed beyond count and surge. In the end, when agents follow their orders, every service is what it
should be. The limits are worked out as in the simulation, not as in the core; the scene compares restart and standby.
"""

import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from roost.core.state.outcome import Step
from roost.model.events import Event, Promote, Rollback
from roost.model.protocol import Report
from roost.model.records.instance import Instance
from roost.model.states import ALLOCATED
from roost.sim.checks.services import WITHIN_LIMITS, floor_of, has_ended, is_available, surge_of
from tests.core.scene import Scene, service

NODES = ("a", "b", "c")
NAMES = ("web", "api")
ROUNDS_MAX = 60  # of agents that do what they are ordered: ten replicas one by one, twice, and some pauses
UPDATES = (
    {"max_unavailable": 1},
    {"max_unavailable": 0, "max_surge": 1, "healthy_after": 0},
    {"max_unavailable": 0, "max_surge": 2, "healthy_after": "3s"},
    {"max_unavailable": "50%", "max_surge": "50%", "deadline": "10s", "failures": 1},
    {"max_unavailable": 2, "canary": 1, "deadline": "10s"},
    {"max_unavailable": 1, "max_surge": 1, "canary": 2, "failures": 1, "rollback": False},
)
COMMANDS = ("serve 1", "serve 2", "serve 3")


def document(name: str, command: str, count: int, update: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return service(name, command=command, count=count, update=update, resources={"cpu": "100m"}, **fields)


class Updates(RuleBasedStateMachine):
    """Two services on three nodes, watched from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(*NODES, cpu=1)
        self.away: set[str] = set()  # nodes that are out of touch; only ever asked for members
        for name in NAMES:
            self.apply(name, "serve 1", 3, UPDATES[0], zone=False)
        self.obey([True] * 9, ready=True)

    # people

    @rule(
        name=st.sampled_from(NAMES),
        command=st.sampled_from(COMMANDS),
        count=st.integers(1, 5),
        update=st.sampled_from(UPDATES),
        zone=st.booleans(),
    )
    def apply(self, name: str, command: str, count: int, update: dict[str, Any], zone: bool) -> None:
        fields = {"placement": {"require": ["name != 'c'"]}} if zone else {}
        self.play(lambda: self.scene.apply(document(name, command, count, update, **fields)))

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from([Promote, Promote, Rollback]))
    def transmit(self, name: str, what: Callable[[int, str], Event]) -> None:
        self.play(lambda: self.scene.step(what(1, f"default/{name}")))

    @rule(node=st.sampled_from(NODES))
    def drain(self, node: str) -> None:
        self.play(lambda: self.scene.drain(node))

    @rule(node=st.sampled_from(NODES))
    def uncordon(self, node: str) -> None:
        self.play(lambda: self.scene.uncordon(node))

    # agents

    @rule(which=st.lists(st.booleans(), min_size=9, max_size=9), ready=st.sampled_from([True, True, False]))
    def obey(self, which: list[bool], ready: bool) -> None:
        """Some of what agents were ordered is done."""
        for instance, yes in zip(self.in_touch(), which * 3, strict=False):
            if yes and instance.state in ("placed", "starting"):
                self.report(instance, Report(instance.token, "running", ready=ready))
            elif yes and instance.state == "stopping":
                self.report(instance, Report(instance.token, "ended", cause="stopped", signal=15))

    @rule(which=st.integers(0, 20), ready=st.booleans())
    def observe_after(self, which: int, ready: bool) -> None:
        """A health check says something new."""
        running = [instance for instance in self.in_touch() if instance.state == "running"]
        if running:
            instance = running[which % len(running)]
            self.report(instance, Report(instance.token, "running", ready=ready, error="" if ready else "no answer"))

    @rule(which=st.integers(0, 20))
    def crash(self, which: int) -> None:
        running = [instance for instance in self.in_touch() if instance.state == "running"]
        if running:
            instance = running[which % len(running)]
            self.report(instance, Report(instance.token, "ended", cause="exited", code=1))

    @rule(node=st.sampled_from(NODES))
    def lose(self, node: str) -> None:
        """A node is gone, with all that ran there."""
        if node not in self.away:
            self.away.add(node)
            self.play(lambda: self.scene.part(node))
            self.pass_time("30s")

    @rule(node=st.sampled_from(NODES))
    def come_back(self, node: str) -> None:
        if node in self.away:
            self.away.discard(node)
            self.play(lambda: self.scene.hello(node, cpu=1))

    # time

    @rule(duration=st.sampled_from(["500ms", "1s", "3s", "11s", "2m"]))
    def pass_time(self, duration: str) -> None:
        self.play(lambda: self.scene.wait(duration, silent=" ".join(self.away)))

    @rule()
    def restart(self) -> None:
        """Another server on the same store; agents come back to it."""
        self.scene.restart()
        self.play(self.scene.step)
        for node in NODES:
            if node not in self.away:
                allocated = [
                    instance
                    for instance in self.scene.state.allocated[node].values()
                    if instance.state in ("running", "stopping")
                ]
                answer = [(self.scene.as_ordered(instance.key)[0], self.as_it_is(instance)) for instance in allocated]
                self.play(lambda node=node, answer=answer: self.scene.hello(node, *answer, cpu=1))

    # what must be true

    def play(self, happen: Callable[[], Step]) -> None:
        """Let something happen, and look at what came of it."""
        state = self.scene.state
        before = {key: _copy(instance) for key, instance in state.instances.items()}
        done = happen()
        for placed in done.placed:
            workload = state.workloads[state.instances[placed.instance].workload]
            index = state.instances[placed.instance].index
            assert index < workload.count + surge_of(workload), f"{placed.instance} is one too many"
        for key, old in before.items():
            new = state.instances.get(key)
            if new is not None and new.state == "stopping" and old.state == "running" and old.ready_since_ms:
                self._enough_are_left(old, new, before)

    def _enough_are_left(self, old: Instance, new: Instance, before: dict[str, Instance]) -> None:
        workload = self.scene.state.workloads[new.workload]
        if not isinstance(new.reason, WITHIN_LIMITS) or self.turned_sick == new.token:
            return
        own = [instance for instance in self.scene.state.instances.values() if instance.workload == new.workload]
        over = [instance for instance in own if instance.index < workload.count and has_ended(instance)]
        ready = sum(instance.state == "running" and instance.ready_since_ms > 0 for instance in own)
        assert ready >= floor_of(workload) - len(over), f"{new.key} was stopped ({new.reason}), {ready} are left ready"
        old.version = new.version
        if is_available(workload, old, self.scene.now):
            left = sum(is_available(workload, instance, self.scene.now) for instance in own)
            assert left >= floor_of(workload) - len(over), f"{new.key} was stopped ({new.reason}), {left} are available"

    turned_sick = 0  # the attempt of which the present step says that it is not ready

    def report(self, instance: Instance, report: Report) -> None:
        self.turned_sick = 0 if report.ready else report.token
        self.play(lambda: self.scene.report(instance.node, report))
        self.turned_sick = 0

    def teardown(self) -> None:
        """Whatever was: a good version comes through, and nothing is left over."""
        for node in NODES:
            self.come_back(node)
            self.uncordon(node)
        for name in NAMES:
            self.apply(name, f"serve for {name}", 3, {"max_unavailable": 1, "deadline": "1h"}, zone=False)
        for _ in range(ROUNDS_MAX):
            self.obey([True] * 30, ready=True)
            for instance in self.in_touch():
                if instance.state == "running" and not instance.ready_since_ms:
                    self.report(instance, Report(instance.token, "running"))
            self.pass_time("3s")
        for name in NAMES:
            self._is_settled(f"default/{name}")

    def _is_settled(self, key: str) -> None:
        state = self.scene.state
        workload = state.workloads[key]
        assert workload.rollout is not None and workload.rollout.state == "done", workload.rollout
        own = [instance for instance in state.instances.values() if instance.workload == key]
        answer = sorted(
            (instance.index, instance.state, instance.version, instance.ready_since_ms > 0) for instance in own
        )
        assert answer == [(index, "running", workload.version, True) for index in range(3)]
        assert key not in state.reconciling

    def in_touch(self) -> list[Instance]:
        allocated = [instance for instance in self.scene.state.instances.values() if instance.state in ALLOCATED]
        return [instance for instance in allocated if instance.node not in self.away]

    def as_it_is(self, instance: Instance) -> Report:
        is_ready = instance.state == "stopping" or instance.ready_since_ms > 0
        return Report(instance.token, "running", ready=is_ready)


def _copy(instance: Instance) -> Instance:
    return Instance(**{name: getattr(instance, name) for name in Instance.__struct_fields__})


Updates.TestCase.settings = settings(stateful_step_count=30)
test_updates_keep_to_their_limits = Updates.TestCase


@pytest.mark.parametrize("seed", range(6))
def test_long_lives_of_services(seed: int) -> None:
    wander(seed, steps=150)


def wander(seed: int, steps: int) -> None:
    """A long life by chance."""
    chance = random.Random(seed)
    pick = chance.choice
    life = Updates()
    habits: dict[Callable[[], None], float] = {
        lambda: life.apply(
            pick(NAMES), pick(COMMANDS), pick([1, 2, 3, 5]), pick(UPDATES), pick([False, False, True])
        ): 4,
        lambda: life.transmit(pick(NAMES), pick([Promote, Promote, Rollback])): 3,
        lambda: life.drain(pick(NODES)): 1,
        lambda: life.uncordon(pick(NODES)): 2,
        lambda: life.obey([pick([True, True, False]) for _ in range(9)], pick([True, True, True, False])): 14,
        lambda: life.observe_after(pick(range(20)), pick([True, True, False])): 4,
        lambda: life.crash(pick(range(20))): 2,
        lambda: life.lose(pick(NODES)): 1,
        lambda: life.come_back(pick(NODES)): 2,
        lambda: life.pass_time(pick(["500ms", "1s", "3s", "11s"])): 8,
        life.restart: 1,
    }
    for _ in range(steps):
        chance.choices(list(habits), list(habits.values()))[0]()
    life.teardown()
