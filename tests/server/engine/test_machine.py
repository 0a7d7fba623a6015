"""The engine without I/O: how it cuts batches, pauses long steps, and what silence means while it could not listen."""

from collections.abc import Iterator
from typing import Any

import pytest

from roost.core.lifecycle.retention import FORGOTTEN_PER_UNIT, sweep
from roost.core.state.outcome import at_once
from roost.core.state.records import FLUSHED_PER_UNIT, Settings
from roost.core.state.weight import weight
from roost.core.step import begin, conclude, handle
from roost.core.timers import expire
from roost.core.transitions import DIRTY_AT_ONCE, DIRTY_PER_UNIT
from roost.model.events import Cancel, NodeConnected, ReportsReceived, Retry, Submit, Uncordon, WorkloadSpec
from roost.model.protocol import Hello, Report
from roost.model.records.instance import Instance
from roost.model.records.node import Facts
from roost.model.spec.submission import spec_of_document
from roost.model.states import AttemptState, InstanceState
from roost.ports.store import Snapshot
from roost.server.engine.machine import (
    BATCH_UNITS,
    SLICE_UNITS,
    Act,
    AnswerRequest,
    CommitChanges,
    EngineMachine,
    Pause,
)


def leading(now: int = 1_000, slice_units: int = SLICE_UNITS, **settings: int) -> EngineMachine:
    machine = EngineMachine(Settings(**settings), slice_units=slice_units)
    machine.mirrored(Snapshot(0, []))
    machine.elected(1, now, unclean=False)
    return machine


def turn(machine: EngineMachine, now: int) -> Act:
    """One step, durable at once."""
    effects = machine.turn(now)
    while isinstance(effects[0], Pause):
        effects = machine.go_on()
    if isinstance(effects[0], CommitChanges):
        effects = machine.committed(now)
    act = effects[0]
    assert isinstance(act, Act)
    return act


def test_a_batch_is_cut_by_the_weight_of_its_events() -> None:
    machine = leading()
    reports = tuple(Report(token, "running") for token in range(400))
    for number in range(10):
        machine.tell(ReportsReceived("n", 1, number, reports))
    sizes = [len(turn(machine, 1_001).batch) for _ in range(4)]
    assert sizes == [3, 3, 3, 1]
    assert 3 * weight(ReportsReceived("n", 1, 0, reports)) <= BATCH_UNITS


def test_an_event_that_is_heavier_than_a_batch_is_taken_alone() -> None:
    machine = leading()
    specs = tuple(spec_of_document({"name": f"j{number}", "command": "true"}) for number in range(4_000))
    machine.tell(Submit(0, specs))
    machine.tell(Uncordon(0, "n"))
    assert weight(Submit(0, specs)) > BATCH_UNITS
    assert [len(turn(machine, 1_001).batch) for _ in range(2)] == [1, 1]
    assert machine.inbox == []


def jobs(number: int, **fields: Any) -> tuple[WorkloadSpec, ...]:
    return tuple(spec_of_document({"name": f"j{index}", "command": "true", **fields}) for index in range(number))


def test_step_of_a_large_batch_pauses_and_is_one_commit() -> None:
    machine = leading()
    machine.ask(lambda request: Submit(request, jobs(5_000)), None, 1_000)
    effects = machine.turn(1_001)
    pauses = 0
    while effects == [Pause()]:
        assert machine.is_deciding
        pauses += 1
        effects = machine.go_on()
    (commit,) = effects
    assert isinstance(commit, CommitChanges)
    assert len([change for change in commit.changes if change.kind == "workload"]) == 5_000
    assert pauses >= 12_500 // SLICE_UNITS  # checked, taken in, and half a unit each to encode
    act, answer, _ = machine.committed(1_002)
    assert isinstance(act, Act) and len(act.batch) == 1
    assert isinstance(answer, AnswerRequest) and len(answer.value) == 5_000
    assert not machine.is_deciding


def test_a_large_batch_that_is_refused_leaves_nothing() -> None:
    machine = leading()
    turn(machine, 1_000)  # the first commit of a store
    machine.ask(lambda request: Submit(request, (*jobs(3_000), *jobs(1))), None, 1_000)
    act = turn(machine, 1_001)
    assert act.done.changes == []
    assert machine.state.workloads == {} and not machine.state.queue.classes
    assert [reply.value.path for reply in act.done.replies] == ["[3000].name"]


def test_a_step_with_pauses_decides_the_same_as_one_without() -> None:
    stored = []
    for slice_units in (1, 7, 1 << 60):
        machine = leading(slice_units=slice_units)
        for name in ("a", "b"):
            hello = Hello(name, "id", Facts({"cpu": 8_000, "memory": 1 << 40, "disk": 1 << 40}), 0)
            machine.ask(lambda request, hello=hello: NodeConnected(request, hello), None, 1_000)
        specs = (*jobs(20), spec_of_document({"name": "last", "command": "x", "after": ["j1"]}))
        machine.ask(lambda request, specs=specs: Submit(request, specs), None, 1_000)
        stored.append([(change.kind, change.key, change.value) for change in turn(machine, 1_001).done.changes])
    assert stored[0] == stored[1] == stored[2] != []


def longest_slice(work: Iterator[int]) -> tuple[int, int]:
    """The most units between two moments at which work can pause, and all of them."""
    units = list(work)
    return max(units), sum(units)


def full_machine(nodes: int, slice_units: int = SLICE_UNITS) -> EngineMachine:
    """Nodes with four small runs each."""
    machine = leading(slice_units=slice_units, step_units=1 << 30, placements_max=10_000)
    room = Facts({"cpu": 4_000, "memory": 1 << 40, "disk": 1 << 40})
    for number in range(nodes):
        hello = Hello(f"n{number:03}", f"id-{number}", room, 0)
        machine.ask(lambda request, hello=hello: NodeConnected(request, hello), None, 1_000)
    low = spec_of_document({"name": "low", "command": "x", "count": 4 * nodes, "resources": {"cpu": 1}})
    machine.ask(lambda request: Submit(request, (low,)), None, 1_000)
    while len(machine.state.instances) < 4 * nodes:
        turn(machine, 1_001)
    return machine


def urgent(cpu: int, **fields: Any) -> WorkloadSpec:
    document = {"name": "urgent", "command": "x", "priority": 100, "resources": {"cpu": cpu}, **fields}
    return spec_of_document(document)


@pytest.mark.parametrize(
    ("fields", "per_node", "stopped"),
    [
        ({"cpu": 3}, 2, 3),  # each node is looked at twice, and then all sets of up to three attempts
        ({"cpu": 4}, 3, 4),  # no set of three is enough: the fewest are sought on each node
        ({"cpu": 4, "count": 2, "gang": True}, 3, 8),  # twice 64 nodes
    ],
)
def test_search_for_a_preemption_can_pause_after_every_node_and_part_of_the_sets(
    fields: dict[str, Any], per_node: int, stopped: int
) -> None:
    state = full_machine(130).state
    out = begin(state, 1_002)
    at_once(handle(state, out, Submit(1, (urgent(**fields),))))
    slices = list(conclude(state, out))
    assert list(state.pending_preemptions) == [f"default/urgent.{index}" for index in range(fields.get("count", 1))]
    assert len([order for orders in out.assignments for order in orders.orders]) == stopped
    assert len(slices) > per_node * 128 and max(slices) <= 2 * SLICE_UNITS


def test_gangs_that_start_or_preempt_with_pauses_are_decided_the_same() -> None:
    stored = []
    for slice_units in (1, 7, 1 << 60):
        machine = full_machine(6, slice_units)
        specs = (urgent(4, count=3, gang=True), urgent(2, name="second", count=6, gang=True, priority=90))
        for spec in specs:
            machine.ask(lambda request, spec=spec: Submit(request, (spec,)), None, 1_002)
        changes = turn(machine, 1_002).done.changes
        stops = [report for node, held in machine.state.allocated.items() for report in ended(machine, node, held)]
        assert len(stops) == 24
        changes += turn(machine, 1_003).done.changes
        assert machine.state.progress_of(machine.state.workloads["default/urgent"]).counts[InstanceState.PLACED] == 3
        stored.append([(change.kind, change.key, change.value) for change in changes])
    assert stored[0] == stored[1] == stored[2] != []


def ended(machine: EngineMachine, node: str, held: dict[int, Instance]) -> list[Report]:
    """The stopped attempts of a node end, and its agent reports it."""
    stopping = [token for token, instance in held.items() if instance.state == InstanceState.STOPPING]
    reports = [Report(token, AttemptState.ENDED) for token in stopping]
    machine.tell(ReportsReceived(node, machine.state.nodes[node].session, 1, tuple(reports)))
    return reports


def cancelled_array() -> EngineMachine:
    """An array of 2,000 that has ended."""
    machine = leading(placements_max=10_000, step_units=1 << 30)
    hello = Hello("n", "id", Facts({"cpu": 10_000_000, "memory": 1 << 50, "disk": 1 << 50}), 0)
    machine.ask(lambda request: NodeConnected(request, hello), None, 1_000)
    array = spec_of_document({"name": "array", "command": "x", "count": 2_000, "retention": "1m"})
    machine.ask(lambda request: Submit(request, (array,)), None, 1_000)
    turn(machine, 1_001)
    machine.ask(lambda request: Cancel(request, "default/array"), None, 1_002)
    turn(machine, 1_002)
    state = machine.state
    reports = tuple(Report(token, AttemptState.ENDED) for token in state.allocated["n"])
    machine.tell(ReportsReceived("n", state.nodes["n"].session, 1, reports))
    turn(machine, 1_003)
    assert state.workloads["default/array"].finished_ms == 1_003 and len(state.instances) == 2_000
    return machine


def test_transitions_of_a_large_step_are_collected_with_pauses() -> None:
    state = cancelled_array().state
    out = begin(state, 1_004)
    at_once(handle(state, out, Retry(1, "default/array")))
    slices = list(conclude(state, out))
    assert len(out.transitions) == 2 * 2_000, "queued, and placed"
    assert sum(slices) >= 2_000 // DIRTY_PER_UNIT + 2_000 // FLUSHED_PER_UNIT + 2_000
    assert slices.count(DIRTY_AT_ONCE // DIRTY_PER_UNIT) >= 2_000 // DIRTY_AT_ONCE


def test_large_finished_array_is_forgotten_with_pauses() -> None:
    state = cancelled_array().state
    out = begin(state, 61_004)
    expire(state, out, 61_004)
    assert longest_slice(sweep(state, out)) == (1, 2_000 // FORGOTTEN_PER_UNIT)
    assert state.workloads == {} and state.instances == {}


def test_node_whose_heartbeat_is_answered_in_a_pause_is_not_lost_in_that_step() -> None:
    machine = leading(slice_units=1, lease_ms=4_000, lease_margin_ms=400)
    machine.ask(lambda request: NodeConnected(request, Hello("n", "id", Facts({"cpu": 1_000}), 0)), None, 1_000)
    turn(machine, 1_000)
    machine.ask(lambda request: Submit(request, jobs(3)), None, 6_000)
    assert machine.turn(6_000) == [Pause()], "its lease has ended, which the step has not seen yet"
    assert machine.heard("n", machine.state.nodes["n"].session, None, 6_001)
    while (effects := machine.go_on()) == [Pause()]:
        pass
    act = machine.committed(6_002)[0]
    assert isinstance(act, Act) and [type(event).__name__ for event in act.batch] == ["Submit", "HeartbeatsReceived"]
    assert machine.state.nodes["n"].status == "ready", effects


def test_time_in_which_nothing_was_read_is_no_silence_of_agents() -> None:
    machine = leading(lease_ms=4_000, lease_margin_ms=400)
    machine.ask(lambda request: NodeConnected(request, Hello("n", "id", Facts({"cpu": 1_000}), 0)), None, 1_000)
    turn(machine, 1_000)
    machine.unread(5_000)
    turn(machine, 6_300)
    assert machine.state.nodes["n"].status == "ready", "its heartbeats of that time are still to be read"
    turn(machine, 10_400)
    assert machine.state.nodes["n"].status == "lost", "it was silent for a whole lease in which the server read"


def test_a_node_is_lost_after_a_lease_if_all_was_read() -> None:
    machine = leading(lease_ms=4_000, lease_margin_ms=400)
    machine.ask(lambda request: NodeConnected(request, Hello("n", "id", Facts({"cpu": 1_000}), 0)), None, 1_000)
    turn(machine, 1_000)
    turn(machine, 6_300)
    assert machine.state.nodes["n"].status == "lost"
