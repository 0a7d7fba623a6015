"""The engine without I/O: how it cuts batches, and what silence means while it could not listen."""

from roost.core.state.records import Settings
from roost.core.state.weight import weight
from roost.model.events import NodeConnected, ReportsReceived, Submit, Uncordon
from roost.model.protocol import Hello, Report
from roost.model.records.node import Facts
from roost.model.spec.submission import spec_of_document
from roost.ports.store import Snapshot
from roost.server.engine.machine import BATCH_UNITS, Act, CommitChanges, EngineMachine


def leading(now: int = 1_000, **settings: int) -> EngineMachine:
    machine = EngineMachine(Settings(**settings))
    machine.mirrored(Snapshot(0, []))
    machine.elected(1, now, unclean=False)
    return machine


def turn(machine: EngineMachine, now: int) -> Act:
    """One step, durable at once."""
    effects = machine.turn(now)
    if isinstance(effects[0], CommitChanges):
        effects = machine.committed(now)
    act = effects[0]
    assert isinstance(act, Act)
    return act


def test_a_batch_is_cut_by_the_weight_of_its_events() -> None:
    machine = leading()
    reports = tuple(Report(token, "running") for token in range(100))
    for number in range(10):
        machine.tell(ReportsReceived("n", 1, number, reports))
    sizes = [len(turn(machine, 1_001).batch) for _ in range(4)]
    assert sizes == [3, 3, 3, 1]
    assert 3 * weight(ReportsReceived("n", 1, 0, reports)) <= BATCH_UNITS


def test_an_event_that_is_heavier_than_a_batch_is_taken_alone() -> None:
    machine = leading()
    specs = tuple(spec_of_document({"name": f"j{number}", "command": "true"}) for number in range(1_000))
    machine.tell(Submit(0, specs))
    machine.tell(Uncordon(0, "n"))
    assert weight(Submit(0, specs)) > BATCH_UNITS
    assert [len(turn(machine, 1_001).batch) for _ in range(2)] == [1, 1]
    assert machine.inbox == []


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
