"""The agent's machine: what orders, driver events and the request to end lead to, without a network or a process."""

from typing import Any

import msgspec

from roost.agent.actor import Actor, Forget, Lease
from roost.agent.connection.machine import Connected, LearnServers, LogLine, Phase, StreamEnd
from roost.agent.health.effects import LeaveHealth
from roost.agent.machine import (
    LAST_EVENTS_MS,
    LEASE_STEPS,
    AgentMachine,
    CompleteLog,
    Effect,
    ReleaseLog,
    StopRun,
    TakenOver,
)
from roost.model.protocol import Answer, Drop, Run, Stop, Welcome
from roost.model.records.node import Facts
from roost.ports.driver import Ended, KnownRun, KnownRuns, Order, Refusal, RunRequest, Started, StartRefused, StopReason
from tests.core.scene import job, wanted

SESSION, LEASE_MS, HELLO_MS = 9, 4_000, 1_000
DOCUMENT = wanted(job("j")).document


def run(token: int, **fields: Any) -> Run:
    return Run(token, "default/j", token, 1, DOCUMENT, grace_ms=700, serial=1, **fields)


def machine_with(*runs: Run) -> tuple[AgentMachine, list[Effect]]:
    """A connected machine that was ordered to run these, and what it wants done."""
    machine = AgentMachine(Actor("n1", "machine", Facts({"cpu": 4_000})), "a:1", "/agent", "", lambda: 1.0, 0)
    machine.happened(KnownRuns(0, 0), 0)
    machine.tick(0)
    machine.link.certified(())
    machine.link.opened("", HELLO_MS)
    machine.link.sent()
    welcome = Welcome(SESSION, HELLO_MS, LEASE_MS, 1, runs)
    return machine, machine.resolve(machine.link.received(welcome, HELLO_MS + 1), HELLO_MS + 1)


def starts(effects: list[Effect]) -> list[str]:
    return [effect.id for effect in effects if isinstance(effect, RunRequest)]


def answered(machine: AgentMachine, now: int, **fields: Any) -> list[Effect]:
    return machine.resolve(machine.link.received(Answer(SESSION, **fields), now), now)


def causes(machine: AgentMachine) -> dict[int, tuple[str, str]]:
    return {token: (attempt.cause, attempt.error) for token, attempt in machine.actor.attempts.items()}


def test_the_lease_comes_before_what_needs_it() -> None:
    _, effects = machine_with(run(1), run(2))
    assert effects[1:3] == [Connected(), Lease(HELLO_MS + LEASE_MS)]
    assert starts(effects) == ["1", "2"]


def test_a_new_session_is_announced_before_it_releases_logs() -> None:
    """The spool would otherwise remove a file because the server before had all of it."""
    machine, _ = machine_with(run(1))
    machine.happened(Started("1", 1, 1_010), 1_010)
    machine.happened(Ended("1", "exited", 1_020, 0), 1_020)
    machine.link.closed(StreamEnd.BROKEN, "", 1_030)
    machine.link.tick(9_000)
    machine.link.certified(())
    machine.link.opened("", 9_000)
    machine.link.sent()
    effects = machine.resolve(machine.link.received(Welcome(SESSION + 1, 9_000, LEASE_MS, 1), 9_001), 9_001)
    lease = Lease(9_000 + LEASE_MS)
    assert effects[1:] == [Connected(), lease, Forget(1), ReleaseLog("default/j/1/1.1"), LearnServers(())]


def test_a_stop_and_a_drop_become_orders_of_the_driver_with_their_reason() -> None:
    machine, _ = machine_with(run(1))
    machine.happened(Started("1", 77, 1_010), 1_010)
    stop = answered(machine, 1_020, base=1, generation=2, orders=(Stop(1, 50, "asked for"),))
    assert stop == [LeaveHealth(1), StopRun("1", 50, StopReason.ORDERED, "asked for")]
    ended = machine.happened(Ended("1", "stopped", 1_030, signal=15, why=StopReason.ORDERED, log_size=4), 1_030)
    assert ended == [LeaveHealth(1), CompleteLog("default/j/1/1.1", 4)]
    assert answered(machine, 1_040, base=2, generation=3, orders=(Drop(1),)) == [], "its end is to be known first"
    machine.tick(1_040)
    assert answered(machine, 1_050, acknowledged=1) == [Forget(1), ReleaseLog("default/j/1/1.1")]
    assert not machine.logs and not machine.actor.attempts


def test_both_logs_of_a_run_with_a_separate_stderr_are_completed_and_released() -> None:
    order = msgspec.structs.replace(run(1), document=wanted(job("j", stderr="separate")).document)
    machine, effects = machine_with(order)
    (request,) = [effect for effect in effects if isinstance(effect, RunRequest)]
    assert (request.log, request.stderr) == ("/agent/logs/default~j~1~1.1", "/agent/logs/default~j~1~1.1.stderr")
    ended = machine.happened(Ended("1", "exited", 1_030, 0, log_size=4, stderr_size=7), 1_030)
    assert ended[1:] == [CompleteLog("default/j/1/1.1", 4), CompleteLog("default/j/1/1.1.stderr", 7)]
    assert machine.actor.attempts[1].report(1_040).stderr_size == 7
    machine.tick(1_040)
    dropped = answered(machine, 1_050, acknowledged=1, base=1, generation=2, orders=(Drop(1),))
    assert dropped == [Forget(1), ReleaseLog("default/j/1/1.1"), ReleaseLog("default/j/1/1.1.stderr")]


def test_a_document_of_another_release_is_given_up_not_a_crash() -> None:
    unreadable = msgspec.msgpack.encode({"name": "j", "stderr": "elsewhere"})
    machine, effects = machine_with(msgspec.structs.replace(run(1), document=unreadable))
    assert starts(effects) == [] and "document" in causes(machine)[1][1]


def test_a_lease_that_grew_by_little_is_not_worth_an_order() -> None:
    machine, _ = machine_with()
    least_ms = LEASE_MS // LEASE_STEPS
    assert answered(machine, 1_300, echo_ms=HELLO_MS + least_ms - 1) == []
    assert answered(machine, 1_310, echo_ms=HELLO_MS + least_ms) == [Lease(HELLO_MS + LEASE_MS + least_ms)]
    assert answered(machine, 1_320, echo_ms=HELLO_MS + least_ms + 1) == []


def test_what_a_closing_driver_does_not_start_another_node_may() -> None:
    machine, _ = machine_with(run(1), run(2))
    machine.happened(StartRefused("closing", "1", Order.START, 1_005, Refusal.CLOSING), 1_005)
    machine.happened(StartRefused("bad order", "2", Order.START, 1_005, Refusal.INVALID), 1_005)
    machine.happened(StartRefused("no such run", "2", Order.FORGET, 1_005, Refusal.NO_SUCH_RUN), 1_005)
    assert causes(machine) == {1: ("stopped", "closing"), 2: ("error", "bad order")}
    (effect,) = machine.tick(1_006)
    assert getattr(effect, "frame").leaving, "the server is not to place more here"  # noqa: B009


def test_a_run_that_is_not_of_this_agent_is_stopped() -> None:
    machine = AgentMachine(Actor("n1", "machine", Facts({})), "a:1", "/agent", "", lambda: 1.0, 0)
    effects = machine.happened(KnownRuns(0, 0, [KnownRun("stray", "no note of ours", "running", 0)]), 0)
    assert effects == [
        LogLine("run stray is not of this agent: stopped"),
        StopRun("stray", 0, StopReason.UNKNOWN, ""),
        TakenOver(0),
    ]


def test_asked_to_end_it_says_goodbye_once_nothing_runs() -> None:
    machine, _ = machine_with(run(1))
    machine.happened(Started("1", 77, 1_010), 1_010)
    machine.stop(1_100)
    assert machine.next_ms() is not None and not machine.is_over
    machine.happened(Ended("1", "stopped", 1_150, why=StopReason.SHUTDOWN), 1_150)
    frames = [getattr(effect, "frame", None) for effect in machine.tick(1_150)]
    assert [frame is not None and frame.leaving for frame in frames] == [True]
    assert machine.link.phase is Phase.LEAVING and not machine.is_over


def test_asked_to_end_while_something_runs_it_leaves_without_a_goodbye() -> None:
    machine, _ = machine_with(run(1))
    machine.happened(Started("1", 77, 1_010), 1_010)
    machine.stop(1_100)
    assert machine.tick(1_100 + LAST_EVENTS_MS) == []
    assert machine.is_over and not machine.has_sent_goodbye
