"""Operators cordon, hold everything up, set pools, fail and empty them in a life in which anything else may happen.

The invariants are those of test_machine.py. Besides: while there is maintenance nothing is placed, moved or given up; a
node that is cordoned, or of a pool that is not well, or of another project's, gets nothing new.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from roost.core.explain.drain_preview import drain_preview
from roost.core.state.outcome import Step
from roost.core.state.state import in_maintenance
from roost.model.events import Cancel, Cordon, Event, Maintain, MarkPool, SetPool, Submit, Unset
from roost.model.reasons.nodes import NodeLeft
from roost.model.records.project import Pool
from roost.model.states import ALLOCATED
from tests.core.documents import NAMES, PROJECTS
from tests.core.scene import wanted
from tests.core.test_step import KEYS, NODES, Life, wander

POOLS = ("one", "two")


class Operated(Life):
    """A life with operators in it."""

    pools: ClassVar[dict[str, str]] = {"a": "one", "b": "one", "c": "two"}

    def play(self, *events: Event) -> Step:
        state = self.scene.state
        was_frozen = in_maintenance(state)
        before = {key: (instance.state, instance.node) for key, instance in state.instances.items()}
        lost = {name for name, node in state.nodes.items() if node.status == "lost"}
        done = super().play(*events)
        if was_frozen and in_maintenance(state):
            self._nothing_moves(done, before, lost, events)
        for placed in done.placed:
            self._may_go_there(placed.node, placed.instance)
        return done

    def _nothing_moves(
        self, done: Step, before: dict[str, tuple[str, str]], lost: set[str], events: tuple[Event, ...]
    ) -> None:
        state = self.scene.state
        assert not done.placed
        leaving = {
            name for name, node in state.nodes.items() if node.story and isinstance(node.story[-1].reason, NodeLeft)
        }
        given_up = {name for name, node in state.nodes.items() if node.status == "lost"} - lost - leaving
        assert not given_up, f"{given_up} were given up"
        if any(isinstance(event, Cancel) for event in events):
            return
        for key, instance in state.instances.items():
            if instance.state == "stopping" and before.get(key, ("", ""))[0] in ("placed", "starting", "running"):
                raise AssertionError(f"{key} is stopped: {instance.reason}")

    def _may_go_there(self, node: str, key: str) -> None:
        state = self.scene.state
        instance = state.instances.get(key)
        if instance is None or instance.node != node or instance.state not in ALLOCATED:
            return
        found = state.nodes[node]
        pool = state.pools.get(found.facts.pool, Pool(found.facts.pool))
        assert found.status == "ready", f"{key} went to {node}, which is {found.status}"
        assert pool.status == "ready", f"{key} went to {node} of pool {pool.name}, which is {pool.status}"
        project = state.workloads[instance.workload].project
        assert not pool.projects or project in pool.projects, f"{key} went to {node}, which is for {pool.projects}"


def habits_of(life: Life, pick: Callable[[Any], Any]) -> dict[Callable[[], None], int]:
    """What operators do, and how often."""

    def play(event: Event) -> None:
        life.play(event)

    def set_pool() -> None:
        name = pick(POOLS)
        play(
            SetPool(
                1,
                Pool(
                    name,
                    pick(["", "best_fit"]),
                    labels=pick([{}, {"k": "v"}]),
                    taints=pick([(), ("t:soft",)]),
                    projects=pick([(), (), (), ("red",)]),
                    when_failed=pick(["move", "cancel"]),
                    fallback=pick(["", *(pool for pool in POOLS if pool != name)]),
                    fail_after_ms=pick([0, 5_000, 60_000]),
                ),
            )
        )

    def submit() -> None:
        document = {"name": pick(NAMES), "project": pick(PROJECTS), "command": "true", "count": pick([1, 3])}
        document["kind"] = pick(["job", "service"])
        document["placement"] = {"pool": pick([["one"], ["two"], ["one", "two"]])}
        play(Submit(1, (wanted(document),)))

    def try_drain() -> None:
        node = pick(NODES)
        if node in life.scene.state.nodes:
            drain_preview(life.scene.state, node, pick([0, 60_000]))

    return {
        lambda: play(Cordon(1, pick(NODES))): 3,
        lambda: play(Maintain(1, True, "care", pick([0, 3_000, 60_000]))): 1,
        lambda: play(Maintain(1, False)): 3,
        lambda: play(MarkPool(1, pick(POOLS), pick(["ready", "ready", "draining", "failed"]), "trouble")): 4,
        set_pool: 2,
        lambda: play(Unset(1, "pool", pick(POOLS))): 1,
        submit: 5,
        lambda: play(Cancel(1, pick(KEYS))): 1,
        try_drain: 2,
    }


@pytest.mark.parametrize("seed", range(10))
def test_long_lives_with_operators(seed: int) -> None:
    wander(seed, 300, Operated, habits_of)
