"""Runs with files, as the agent's machine handles them: what is fetched, held back, collected and reported when."""

from typing import Any

import msgspec

from roost.agent.actor import Actor, Forget
from roost.agent.connection.machine import SendFrame, StreamEnd
from roost.agent.files.progress import (
    COLLECT_MS_MAX,
    FETCH_MS_MAX,
    CollectOutputs,
    FetchInputs,
    LeaveInputs,
    LeaveOutputs,
)
from roost.agent.health.effects import LeaveHealth
from roost.agent.machine import (
    LAST_EVENTS_MS,
    LAST_OUTPUTS_MS,
    AgentMachine,
    CompleteLog,
    Effect,
    ReleaseLog,
    StopRun,
    TakenOver,
)
from roost.agent.prepare import from_note, note
from roost.model.protocol import Drop, Report, Run, Stop, Welcome
from roost.model.records.files import FileSet, InputFailure, InputProblem, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.node import Facts
from roost.model.spec.files import OutputBlock, OutputsWhen
from roost.ports.driver import Ended, KnownRun, KnownRuns, RunRequest, Started, StopReason
from tests.agent.test_machine import HELLO_MS, LEASE_MS, SESSION, answered, causes, machine_with, starts
from tests.core.scene import job, wanted

MISSING = InputFailure(InputProblem.NOT_FOUND, "data/a", is_final=True)
INPUTS = (RunInput("data", "sha256:" + "1" * 64),)
LOG = "default/j/1/1.1"
STORED = Outputs(FileSet("sha256:" + "2" * 64, 1, 10))


def run(token: int, *, inputs: bool = False, outputs: list[Any] | None = None, **fields: Any) -> Run:
    document = wanted(job("j", outputs=outputs or [])).document
    given = INPUTS if inputs else ()
    return Run(token, "default/j", token, 1, document, grace_ms=700, serial=1, inputs=given, **fields)


def ended(token: int = 1, cause: str = "exited", code: int | None = 0, at: int = 1_030, **fields: Any) -> Ended:
    return Ended(str(token), cause, at, code, log_size=4, **fields)


def reports(machine: AgentMachine, now: int) -> dict[int, Report]:
    """What the next beat tells the server."""
    frames = [effect.frame for effect in machine.tick(now) if isinstance(effect, SendFrame)]
    machine.link.sent()
    return {report.token: report for frame in frames for report in getattr(frame, "reports", ())}


def running(*outputs: Any) -> AgentMachine:
    machine, _ = machine_with(run(1, outputs=list(outputs) or ["dist/*"]))
    machine.happened(Started("1", 77, 1_010), 1_010)
    return machine


def collecting(*outputs: Any) -> AgentMachine:
    machine = running(*outputs)
    machine.happened(ended(), 1_030)
    return machine


# inputs


def test_a_run_with_inputs_begins_when_they_are_there() -> None:
    machine, effects = machine_with(run(1, inputs=True), run(2))
    assert starts(effects) == ["2"]
    assert [effect for effect in effects if isinstance(effect, FetchInputs)] == [
        FetchInputs(1, INPUTS, "/agent/work/1")
    ]
    assert list(reports(machine, 1_300)) == [2], "nothing is reported that a later agent would not know"
    (request,) = machine.fetched(1, None, 1_400)
    assert isinstance(request, RunRequest) and request.id == "1" and request.dir == "/agent/work/1"
    assert reports(machine, 1_700)[1].state == "starting"
    assert machine.fetched(1, None, 1_800) == []


def test_inputs_that_never_come_end_the_attempt_before_it_began() -> None:
    machine, _ = machine_with(run(1, inputs=True))
    assert machine.fetched(1, MISSING, 1_400) == [LeaveHealth(1)]
    report = reports(machine, 1_400)[1]
    assert (report.state, report.cause, report.error, report.inputs_failed) == ("ended", "error", "", MISSING)


def test_inputs_have_a_deadline() -> None:
    machine, _ = machine_with(run(1, inputs=True, leased=False))
    end = HELLO_MS + 1 + FETCH_MS_MAX
    assert machine.tick(end - 1).count(LeaveInputs(1)) == 0
    assert LeaveInputs(1) in machine.tick(end)
    assert machine.actor.attempts[1].inputs_failed == InputFailure(InputProblem.TIMED_OUT)
    assert machine.fetched(1, None, end + 1) == []


def test_a_stop_while_inputs_are_fetched_is_the_end_and_nothing_starts_later() -> None:
    machine, _ = machine_with(run(1, inputs=True))
    effects = answered(machine, 1_020, base=1, generation=2, orders=(Stop(1, 50, "asked for"),))
    assert effects == [LeaveHealth(1), LeaveInputs(1)]
    assert reports(machine, 1_020)[1].cause == "stopped"
    assert machine.fetched(1, None, 1_030) == []
    dropped = answered(machine, 1_050, acknowledged=1, base=2, generation=3, orders=(Drop(1),))
    assert dropped == [Forget(1), ReleaseLog(LOG)]


def test_a_drop_while_inputs_are_fetched_is_the_end() -> None:
    machine, _ = machine_with(run(1, inputs=True))
    assert answered(machine, 1_020, base=1, generation=2, orders=(Drop(1),)) == [LeaveHealth(1), LeaveInputs(1)]
    assert machine.fetched(1, None, 1_030) == []


def test_the_lease_ends_what_is_fetched_unless_it_runs_without_one() -> None:
    machine, _ = machine_with(run(1, inputs=True), run(2, inputs=True, leased=False))
    machine.link.closed(StreamEnd.BROKEN, "", 1_030)
    assert machine.next_ms() is not None
    effects = machine.tick(HELLO_MS + LEASE_MS)
    assert [effect for effect in effects if isinstance(effect, LeaveInputs)] == [LeaveInputs(1)]
    assert causes(machine) == {1: ("lease", ""), 2: ("", "")}
    next_ms = machine.next_ms()
    assert next_ms is None or next_ms > HELLO_MS + LEASE_MS, "run 2 has no lease"


def test_nothing_begins_between_a_hello_and_its_welcome() -> None:
    """A server that hears nothing of a run may have given it to another node."""
    machine, _ = machine_with(run(1, inputs=True), run(2, inputs=True))
    machine.link.closed(StreamEnd.BROKEN, "", 1_030)
    machine.tick(4_000)
    machine.link.certified(())
    hello = machine.link.opened("", 4_900)
    machine.link.sent()
    assert [getattr(effect, "frame").runs for effect in hello if isinstance(effect, SendFrame)] == [()]  # noqa: B009
    assert machine.fetched(1, None, 4_950) == [] and machine.fetched(2, None, 4_950) == []
    effects = machine.resolve(machine.link.received(Welcome(SESSION + 1, 4_900, LEASE_MS, 1, (run(1),)), 4_960), 4_960)
    assert starts(effects) == ["1"] and causes(machine)[2][0] == "stopped"


def test_a_document_that_this_agent_cannot_read_is_not_fetched_for() -> None:
    unreadable = msgspec.msgpack.encode({"name": "j", "outputs": 7})
    machine, effects = machine_with(msgspec.structs.replace(run(1, inputs=True), document=unreadable))
    assert not any(isinstance(effect, FetchInputs | RunRequest) for effect in effects)
    assert causes(machine)[1][0] == "error" and "document" in causes(machine)[1][1]


def test_an_agent_that_ends_leaves_unbegun_runs_to_other_nodes() -> None:
    machine, _ = machine_with(run(1, inputs=True))
    assert machine.stop(1_100) == [LeaveHealth(1), LeaveInputs(1)]
    frames = [getattr(effect, "frame") for effect in machine.tick(1_100)]  # noqa: B009
    assert [(frame.leaving, [report.cause for report in frame.reports]) for frame in frames] == [(True, ["stopped"])]


def test_an_agent_that_is_replaced_gives_nothing_up() -> None:
    """The agent after it gets the order again: the server has heard nothing of it."""
    machine, _ = machine_with(run(1, inputs=True), run(2))
    machine.happened(Started("2", 77, 1_010), 1_010)
    assert machine.stop(1_100) == []
    assert machine.tick(1_100 + LAST_EVENTS_MS) == []
    assert machine.is_over and not machine.has_sent_goodbye and causes(machine)[1] == ("", "")


# prefilled runs


def test_a_run_waits_for_the_inputs_of_the_run_before_it() -> None:
    """The driver would begin it at once: it does not know the other one."""
    machine, effects = machine_with(run(1, inputs=True), run(2, after=1), run(3, inputs=True, after=2))
    assert starts(effects) == []
    assert machine.fetched(3, None, 1_300) == []
    assert [(item.id, item.after) for item in machine.fetched(1, None, 1_400) if isinstance(item, RunRequest)] == [
        ("1", ""),
        ("2", "1"),
        ("3", "2"),
    ]


def test_a_run_moves_up_when_the_one_before_it_gets_no_inputs() -> None:
    machine, effects = machine_with(run(1), run(2, inputs=True, after=1), run(3, after=2))
    assert starts(effects) == ["1"]
    effects = machine.fetched(2, MISSING, 1_400)
    (request,) = [effect for effect in effects if isinstance(effect, RunRequest)]
    assert (request.id, request.after) == ("3", "1")
    order = from_note(request.note)
    assert order is not None and order.after == 1


def test_a_run_waits_for_the_outputs_of_the_run_before_it() -> None:
    """Until the server knows of the end, the room belongs to the first run."""
    machine, effects = machine_with(run(1, outputs=["dist"]), run(2, after=1))
    assert starts(effects) == ["1"]
    machine.happened(Started("1", 77, 1_010), 1_010)
    assert starts(machine.happened(ended(), 1_030)) == []
    assert starts(machine.collected(1, STORED, 1_100)) == ["2"]


# outputs


def test_an_end_is_reported_with_its_outputs() -> None:
    machine = running()
    blocks = (OutputBlock("dist/*"),)
    assert machine.happened(ended(), 1_030) == [
        LeaveHealth(1),
        CompleteLog(LOG, 4),
        CollectOutputs(1, blocks, "/agent/work/1"),
    ]
    report = reports(machine, 1_200)[1]
    assert (report.state, report.ready) == ("running", False)
    assert machine.happened(ended(), 1_210) == []
    assert machine.collected(1, STORED, 1_500) == []
    report = reports(machine, 1_500)[1]
    assert (report.state, report.cause, report.code, report.outputs) == ("ended", "exited", 0, STORED)
    assert report.ended_ago_ms == 1_500 - 1_030, "the run is not longer because of its outputs"
    assert machine.collected(1, STORED, 1_600) == [], "and nothing else is reported"


def is_collected(event: Ended, *outputs: Any) -> bool:
    machine = running(*outputs)
    effects = machine.happened(event, 1_030)
    found = any(isinstance(effect, CollectOutputs) for effect in effects)
    assert found == (machine.actor.attempts[1].state == "running")
    return found


def test_which_ends_have_outputs() -> None:
    assert is_collected(ended(code=3))
    assert is_collected(ended(code=None, signal=9))
    assert is_collected(ended(cause="timed_out", code=None))
    assert is_collected(ended(cause="stopped", why=StopReason.UNHEALTHY))
    assert not is_collected(ended(cause="stopped", why=StopReason.ORDERED))
    assert not is_collected(ended(cause="stopped", why=StopReason.DROPPED))
    assert not is_collected(ended(cause="stopped", why=StopReason.SHUTDOWN))
    assert not is_collected(ended(cause="lease"))
    assert not is_collected(ended(cause="error"))


def test_some_outputs_are_of_a_success_alone() -> None:
    success, always = OutputBlock("good", OutputsWhen.SUCCESS), OutputBlock("log")
    assert is_collected(ended(), success)
    assert not is_collected(ended(code=1), success)
    effects = running(success, always).happened(ended(code=1), 1_030)
    assert [effect.outputs for effect in effects if isinstance(effect, CollectOutputs)] == [(always,)]


def test_a_run_that_never_began_has_no_outputs() -> None:
    machine, _ = machine_with(run(1, outputs=["dist"]))
    machine.happened(ended(cause="timed_out"), 1_030)
    assert reports(machine, 1_030)[1].outputs is None


def test_outputs_have_a_deadline() -> None:
    machine = collecting(OutputBlock("a", required=True), "b")
    machine.tick(1_030 + COLLECT_MS_MAX - 1)
    assert causes(machine)[1][0] == ""
    assert LeaveOutputs(1) in machine.tick(1_030 + COLLECT_MS_MAX)
    gaps = (OutputGap(OutputProblem.NOT_STORED, "a", required=True), OutputGap(OutputProblem.NOT_STORED, "b"))
    assert machine.actor.attempts[1].outputs == Outputs(gaps=gaps)
    assert machine.collected(1, STORED, 1_040 + COLLECT_MS_MAX) == []


def test_a_stop_leaves_outputs_the_grace_of_the_run() -> None:
    machine = collecting()
    assert answered(machine, 1_040, base=1, generation=2, orders=(Stop(1, 50, "asked for"),)) == []
    next_ms = machine.next_ms()
    assert next_ms is not None and next_ms <= 1_090
    assert LeaveOutputs(1) in machine.tick(1_090)
    assert causes(machine)[1] == ("exited", "") and machine.actor.attempts[1].outputs is not None


def test_a_drop_is_the_end_of_collecting_also_after_a_stop() -> None:
    machine = collecting()
    answered(machine, 1_040, base=1, generation=2, orders=(Stop(1, 500, "asked for"),))
    assert answered(machine, 1_050, base=2, generation=3, orders=(Drop(1),)) == [LeaveOutputs(1)]
    assert machine.actor.attempts[1].outputs is None
    assert machine.collected(1, STORED, 1_060) == []


def test_a_lost_lease_is_not_the_end_of_collecting() -> None:
    machine = collecting()
    machine.link.closed(StreamEnd.BROKEN, "", 1_030)
    assert LeaveOutputs(1) not in machine.tick(HELLO_MS + 2 * LEASE_MS)


def test_an_agent_collects_what_the_one_before_it_had_not_reported() -> None:
    machine = AgentMachine(Actor("n1", "machine", Facts({})), "a:1", "/agent", "", lambda: 1.0, 0)
    known = KnownRun("1", note(run(1, outputs=["dist"])), "ended", 900, ended=ended())
    effects: list[Effect] = machine.happened(KnownRuns(0, 0, [known]), 1_100)
    assert CollectOutputs(1, (OutputBlock("dist"),), "/agent/work/1") in effects
    assert isinstance(effects[-1], TakenOver) and machine.live_attempts() == [1]


def test_a_goodbye_waits_for_outputs_but_not_for_long() -> None:
    machine = collecting()
    machine.stop(1_100)
    reports(machine, 1_100 + LAST_EVENTS_MS)
    assert not machine.is_over
    machine.collected(1, STORED, 1_500)
    (frame,) = [effect.frame for effect in machine.tick(1_500) if isinstance(effect, SendFrame)]
    assert getattr(frame, "leaving") and [report.outputs for report in getattr(frame, "reports")] == [STORED]  # noqa: B009

    machine = collecting()
    machine.stop(1_100)
    machine.tick(1_100 + LAST_OUTPUTS_MS)
    assert machine.is_over and not machine.has_sent_goodbye, "the next agent collects again"


def test_a_stop_of_a_run_that_still_runs_goes_to_the_driver() -> None:
    machine = running()
    effects = answered(machine, 1_020, base=1, generation=2, orders=(Stop(1, 50, "x"),))
    assert effects == [LeaveHealth(1), StopRun("1", 50, StopReason.ORDERED, "x")]


def test_a_report_has_as_many_gaps_as_a_hello_has_room_for() -> None:
    machine = collecting()
    gaps = tuple(OutputGap(OutputProblem.UNREADABLE, f"{number:0>1000}") for number in range(100))
    machine.collected(1, Outputs(STORED.files, gaps, 5), 1_500)
    assert machine.actor.attempts[1].outputs == Outputs(STORED.files, gaps[:1], 99 + 5)


def test_inputs_count_as_what_a_node_keeps_of_an_attempt() -> None:
    many = tuple(RunInput(f"{number:0>1000}", "sha256:" + "1" * 64) for number in range(1_000))
    orders = [msgspec.structs.replace(run(token), inputs=many) for token in range(1, 61)]
    _, effects = machine_with(*orders)
    begun = sum(isinstance(effect, FetchInputs) for effect in effects)
    assert 0 < begun < 60, "the others are for another node"
