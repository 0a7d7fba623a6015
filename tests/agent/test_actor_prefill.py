"""Runs that stand behind each other, as an agent tells of them: what they really wait for, also after a restart."""

from pathlib import Path

import msgspec

from roost.agent.actor import Actor, Halt, Start
from roost.agent.prepare import waits_for
from roost.agent.service import Service
from roost.drivers.fake import FakeDriver, ScriptedAct
from roost.model.protocol import Answer, Drop, Run, Stop, Welcome
from roost.model.records.node import Facts
from roost.ports.driver import Ended, KnownRun, StopReason
from tests.core.scene import job, wanted


def run(token: int, after: int = 0) -> Run:
    return Run(token, f"default/w{token}", 0, 1, b"document", after=after)


def actor_of(*orders: Run) -> Actor:
    actor = Actor("n1", "machine", Facts({"cpu": 1_000}))
    actor.hello(100)
    actor.welcomed(Welcome(7, 100, 4_000, 1, orders), 101)
    actor.started(1, 102, 102)
    return actor


def afters(actor: Actor) -> dict[int, int]:
    return {run.token: run.after for run, _ in actor.hello(900).runs}


def test_a_hello_has_the_order_of_prefilled_runs() -> None:
    actor = actor_of(run(1), run(2, after=1), run(3, after=2))
    assert afters(actor) == {1: 0, 2: 1, 3: 2}
    assert [report.state for _, report in actor.hello(900).runs] == ["running", "starting", "starting"]


def test_the_order_of_prefilled_runs_closes_over_one_that_is_gone() -> None:
    actor = actor_of(run(1), run(2, after=1), run(3, after=2))
    assert actor.answered(Answer(7, base=1, generation=2, orders=(Stop(2, 50, "x"),)), 110) == [
        Halt(2, 50, StopReason.ORDERED, "x")
    ]
    actor.ended(Ended("2", "stopped", 111), 111)
    actor.beat(112)
    actor.answered(Answer(7, base=2, generation=3, orders=(Drop(2),)), 113)
    assert afters(actor) == {1: 0, 3: 1}


def test_one_that_ran_leaves_its_place_to_no_run() -> None:
    actor = actor_of(run(1), run(2, after=1))
    actor.ended(Ended("1", "exited", 111, 0), 111)
    assert afters(actor) == {1: 0, 2: 1}


def test_what_is_no_longer_wanted_is_stopped_from_the_end_of_a_chain() -> None:
    actor = actor_of(run(1), run(2, after=1), run(3, after=2))
    actions = actor.answered(Answer(7, generation=2, whole=True, orders=(run(4),)), 110)
    assert [action.token for action in actions if isinstance(action, Halt)] == [3, 2, 1]
    assert [action.run.token for action in actions if isinstance(action, Start)] == [4]


def test_a_new_agent_takes_the_order_of_prefilled_runs_from_the_keeper() -> None:
    order = run(3, after=2)
    assert waits_for(order, KnownRun("3", "", "waiting", 0, after="1")).after == 1
    assert waits_for(order, KnownRun("3", "", "waiting", 0, after="2")) is order
    assert waits_for(order, KnownRun("3", "", "running", 5)) is order


async def test_one_that_cannot_be_started_here_leaves_its_place_to_the_next(tmp_path: Path) -> None:
    """The driver never hears of it: who is to wait for it would begin at once, beside the first."""
    service = Service(str(tmp_path), "n1", "machine", Facts({"cpu": 1_000}), "127.0.0.1:1", lambda: None)
    service.driver = driver = FakeDriver(script=lambda run: [ScriptedAct(after_ms=None)])
    document = wanted(job("j")).document
    first, last = (msgspec.structs.replace(other_run, document=document) for other_run in (run(1), run(3, after=2)))
    service.actor.hello(100)
    actions = service.actor.welcomed(Welcome(7, 100, 4_000, 1, (first, run(2, after=1), last)), 101)
    service._perform(service.machine.resolve([*actions], 101))
    assert [(run.id, run.state, run.after) for run in driver.connect().runs] == [
        ("1", "running", ""),
        ("3", "waiting", "1"),
    ]
