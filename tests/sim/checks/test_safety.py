"""Checks of the simulated world, fed by hand with what must not happen and with what may."""

from typing import Any

import msgspec
import pytest

from roost.model.errors import NoService
from roost.model.records.workload import Ask, Policy, Schedule, Workload
from roost.model.states import WorkloadKind
from roost.ports.store import Change, Snapshot
from roost.sim.checks.oracle import Oracle
from roost.sim.checks.requests import EffectiveRequests, RequestCheckers
from roost.sim.checks.safety import ATTEMPTS_PER_S_MAX, Checkers
from roost.sim.world.world import World, Wrong

MINUTE_MS = 60_000
DOCUMENT = msgspec.msgpack.encode({"name": "tick", "command": "work"})


def checkers(world: World) -> Checkers:
    return Checkers(world, Oracle(world), lambda: Snapshot(0, []))


def attempts(checks: Checkers, world: World, number: int, every_ms: int) -> None:
    for _ in range(number):
        checks._not_too_often("default/a.0")
        world.run(world.now + every_ms)


def test_an_instance_that_is_restarted_too_often_is_noticed() -> None:
    world = World(0)
    checks = checkers(world)
    attempts(checks, world, ATTEMPTS_PER_S_MAX, 14)
    with pytest.raises(Wrong, match="21 attempts within a second"):
        attempts(checks, world, 1, 14)


def test_as_many_restarts_over_a_longer_time_are_not() -> None:
    world = World(0)
    attempts(checkers(world), world, 10 * ATTEMPTS_PER_S_MAX, 1_000 // ATTEMPTS_PER_S_MAX + 1)


def test_a_request_that_was_refused_and_is_carried_out_later_is_noticed() -> None:
    requests = RequestCheckers()
    requests.answered("s0", 1, 7, NoService("the store is away"))
    requests.committed(EffectiveRequests(("s0", 2), {7: None}))  # another life: another request
    with pytest.raises(Wrong, match="carried out later"):
        requests.committed(EffectiveRequests(("s0", 1), {7: None}))


def test_a_request_of_unknown_outcome_may_have_been_carried_out() -> None:
    requests = RequestCheckers()
    requests.answered("s0", 1, 7, NoService("who knows", code="outcome_unknown"))
    requests.committed(EffectiveRequests(("s0", 1), {7: None}))


def scheduled(tick_ms: int) -> Workload:
    policy = Policy(WorkloadKind.JOB, Ask(), schedule=Schedule("* * * * *"))
    return Workload("default", "tick", policy, DOCUMENT, 1, 1, tick_ms=tick_ms)


def run_of(tick_ms: int) -> Workload:
    policy = Policy(WorkloadKind.JOB, Ask())
    return Workload("default", "tick-1", policy, DOCUMENT, 1, 2, parent="default/tick", tick_ms=tick_ms)


def commit(checks: Checkers, *workloads: Workload) -> None:
    encode: Any = msgspec.msgpack.encode
    checks.records.committed([Change("workload", workload.key, encode(workload)) for workload in workloads])
    checks.living.committed()


def test_a_tick_whose_run_follows_in_the_same_commit_is_not_forgotten() -> None:
    checks = checkers(World(0))
    commit(checks, scheduled(MINUTE_MS))
    commit(checks, scheduled(2 * MINUTE_MS), run_of(2 * MINUTE_MS))


def test_a_tick_without_a_run_and_without_a_reason_is_noticed() -> None:
    checks = checkers(World(0))
    commit(checks, scheduled(MINUTE_MS))
    with pytest.raises(Wrong, match="does not say why"):
        commit(checks, scheduled(2 * MINUTE_MS))
