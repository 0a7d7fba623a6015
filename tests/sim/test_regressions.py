"""What the simulator found, each as the smallest scene that shows it."""

from typing import Any

import msgspec
import pytest

from roost.agent.actor import Actor, Forget, Halt, Lease, Start
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.drivers.fake import FakeDriver, ScriptedAct
from roost.model.events import NodeConnected
from roost.model.protocol import Answer, Drop, Hello, Report, Run, Welcome
from roost.model.reasons.attempts import MissingOnNode
from roost.model.records.node import Facts
from roost.ports.driver import Ended, RunRequest, Started, StepCommand
from tests.core.prefill_scene import brief, chain, waiting
from tests.core.scene import Scene, facts_of, job, outcome, service

BACK_MS = 600_000  # ten minutes


def hello(scene: Scene, name: str, sent_ms: int, *runs: str) -> Step:
    """A hello that was sent at this time of its agent's clock."""
    answer = tuple(scene.as_ordered(run) for run in runs)
    return scene.step(NodeConnected(1, Hello(name, f"machine-{name}", facts_of(), sent_ms, answer)))


def actor_of(*orders: Run) -> Actor:
    """An agent that sent hello at 100 and was welcomed with these orders, in generation 1 and with a lease of 4 s."""
    actor = Actor("n1", "machine", Facts({"cpu": 4_000}))
    actor.hello(100)
    actor.welcomed(Welcome(7, 100, 4_000, 1, orders), 101)
    return actor


def run(token: int) -> Run:
    return Run(token, f"default/w{token}", 0, 1, b"document")


# the lease has passed, and it was not checked yet


@pytest.mark.parametrize("event", ["its stream breaks", "it is drained", "it is uncordoned"])
def test_a_node_found_to_be_out_of_its_lease_loses_its_work_too(event: str) -> None:
    """It became lost by the way, and its work stayed with it forever."""
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web"))
    scene.running("web.0")
    assert scene.where("web.0") == ["a"]
    if event != "its stream breaks":
        scene.part("a")
    scene.wait("4s", silent="a")
    scene.now += 1_000
    {"its stream breaks": scene.part, "it is drained": scene.drain, "it is uncordoned": scene.uncordon}[event]("a")
    assert scene.state.nodes["a"].status == "lost"
    assert (scene.states("web.0"), scene.where("web.0")) == (["placed"], ["b"])


# clocks


def test_an_instance_that_waits_for_another_attempt_does_not_wait_for_a_clock_that_was_set_back() -> None:
    """The server's clock was ten minutes back after a restart, and the attempt waited for them to pass."""
    scene = Scene("a", cpu=1)
    scene.submit(job("web"))
    scene.wait("5s", silent="a")
    assert scene.states("web.0") == ["queued"]
    scene.now -= BACK_MS
    scene.restart()
    scene.hello("a", cpu=1)
    assert scene.states("web.0") == ["placed"]


def test_a_pause_before_a_restart_is_never_longer_than_the_longest_pause() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(service("web"))
    scene.running("web.0")
    scene.ended("web.0")
    assert scene.states("web.0") == ["queued"]
    scene.now -= BACK_MS
    scene.restart()
    scene.hello("a", cpu=1)
    scene.wait("59s")
    assert scene.states("web.0") == ["queued"]
    scene.hello("a", cpu=1)
    scene.wait("1s")
    assert scene.states("web.0") == ["placed"]


# hellos that are late


def test_a_hello_that_was_overtaken_by_a_later_one_is_refused() -> None:
    """It knew nothing of what the node was ordered since: that was given away while it ran."""
    scene = Scene(cpu=1)
    hello(scene, "a", 200)
    scene.submit(job("web"))
    scene.running("web.0")
    late = hello(scene, "a", 100)
    assert outcome(late) == {
        "replies": [
            "503 stale_hello: stale registration of node a: a newer one was received; reconnect",
        ]
    }
    assert scene.states("web.0") == ["running"]


def test_it_is_refused_also_by_a_server_that_has_just_started() -> None:
    scene = Scene(cpu=1)
    hello(scene, "a", 200)
    scene.submit(job("web"))
    scene.running("web.0")
    scene.restart()
    hello(scene, "a", 100)
    assert scene.states("web.0") == ["running"]
    hello(scene, "a", 300, "web.0")
    assert scene.states("web.0") == ["running"]


def test_it_is_refused_also_when_its_node_is_lost_by_now() -> None:
    """Its node was open for work that no agent was there to start."""
    scene = Scene(cpu=1)
    hello(scene, "a", 200)
    scene.wait("5s", silent="a")
    assert "503 stale_hello" in outcome(hello(scene, "a", 100))["replies"][0]
    assert scene.state.nodes["a"].status == "lost"


def test_a_machine_that_rebooted_is_welcome_and_has_nothing_left_not_even_what_was_only_placed() -> None:
    """What was placed may have begun there before: it was begun again under the same token."""
    scene = Scene("b", cpu=1)
    scene.hello("a", identity="machine/1", sent_ms=90_000, cpu=1)
    scene.submit(job("one"), job("two", retries=0))
    assert sorted(scene.where("one.0", "two.0")) == ["a", "b"]
    done = scene.hello("a", identity="machine/2", sent_ms=50, cpu=1)
    assert outcome(done)["replies"] == ["welcome"]
    lost = next(instance for instance in scene.state.instances.values() if instance.losses)
    assert lost.state in ("placed", "failed") and any(isinstance(line.reason, MissingOnNode) for line in lost.story)


def test_a_hello_of_the_life_before_is_refused() -> None:
    scene = Scene(cpu=1)
    scene.hello("a", identity="machine/1", sent_ms=100)
    scene.hello("a", identity="machine/2", sent_ms=50)
    assert "503 stale_hello" in outcome(scene.hello("a", identity="machine/1", sent_ms=200))["replies"][0]


# leases that were longer once


def test_a_restart_with_a_shorter_lease_waits_for_the_longer_ones_that_agents_still_hold() -> None:
    """Work was given away while its node still had the lease of the server before."""
    scene = Scene("a", "b", cpu=1, lease_ms=10_000)
    scene.submit(job("web"))
    scene.running("web.0")
    scene.settings = Settings(lease_ms=1_000)
    scene.restart()
    scene.hello("b", cpu=1)
    scene.wait("10s")
    assert scene.where("web.0") == ["a"]
    scene.wait("400ms")
    assert scene.where("web.0") == ["b"]


def test_a_hello_does_not_make_a_longer_lease_shorter_as_its_answer_may_get_lost() -> None:
    scene = Scene("a", cpu=1, lease_ms=10_000)
    scene.settings = Settings(lease_ms=1_000)
    scene.restart()
    scene.hello("a", cpu=1)
    assert scene.state.liveness["a"].lease_until_ms == scene.now + 10_400
    scene.wait("10s", silent="a")
    assert scene.state.nodes["a"].status == "ready"


def test_a_shorter_lease_counts_once_the_longer_ones_have_ended() -> None:
    scene = Scene("a", cpu=1, lease_ms=10_000)
    scene.settings = Settings(lease_ms=1_000)
    scene.restart()
    scene.hello("a", cpu=1)
    scene.wait("10s")
    scene.restart()
    scene.wait("1400ms")
    assert scene.state.nodes["a"].status == "lost"


# work that is kept


def test_what_was_kept_out_of_touch_and_cancelled_is_not_run_again_before_its_end_is_confirmed() -> None:
    """No lease ends it, so cancelling it there and asking for another run made two."""
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web", when_lost="pin"))
    scene.running("web.0")
    run = scene.as_ordered("web.0")
    scene.wait("5s", silent="a")
    scene.cancel("web")
    assert scene.states("web.0") == ["cancelled"]
    refusal = "409 may_still_run: default/web.0 may still be running on a, which has not confirmed its end"
    assert outcome(scene.retry("web")) == {"replies": [refusal]}
    scene.hello("a", run, cpu=1)
    assert outcome(scene.retry("web")) == {"replies": [refusal]}
    scene.report("a", Report(run[0].token, "ended", cause="stopped", signal=15))
    scene.retry("web")
    assert scene.states("web.0") == ["placed"]


def test_it_can_be_run_again_once_its_node_was_removed() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web", when_lost="pin"))
    scene.running("web.0")
    scene.wait("5s", silent="a")
    scene.cancel("web")
    scene.remove("a")
    scene.retry("web")
    assert (scene.states("web.0"), scene.where("web.0")) == (["placed"], ["b"])


# servers that forget


def kept_in_two_places(**fields: Any) -> tuple[Scene, Any]:
    """A server that forgot a service of two replicas, one on each node; one of the nodes has come back."""
    scene = Scene("a", "b", cpu=1)
    scene.submit(service("web", count=2, **fields))
    scene.running("web.0", "web.1")
    first = scene.as_ordered("web.0")
    scene.now += 1_000
    scene.restart(forgetful=True)
    scene.hello("a", first, cpu=2)
    return scene, first


def test_a_replica_no_agent_reported_is_not_started_before_every_lease_has_ended_and_been_enforced() -> None:
    scene, _ = kept_in_two_places()
    scene.wait("4399ms")
    assert scene.counts("web") == {"running": 1}
    scene.wait("1ms")
    assert scene.counts("web") == {"running": 1, "placed": 1}


def test_a_replica_that_is_kept_out_of_touch_is_not_started_again_elsewhere() -> None:
    """No lease ends it, so it may be running forever."""
    scene, _ = kept_in_two_places(when_lost="pin")
    scene.wait("1h")
    assert scene.counts("web") == {"running": 1}


def reports_of_two_attempts() -> tuple[Scene, Any, Any]:
    """A server that forgot a job; one agent knows of its first attempt, which was lost, another runs the second."""
    scene = Scene("a", "b", "c", cpu=1)
    scene.submit(job("web"))
    scene.running("web.0")
    first, _ = scene.as_ordered("web.0")
    scene.wait("5s", silent="a")
    scene.running("web.0")
    second = scene.as_ordered("web.0")
    scene.now += 1_000
    scene.restart(forgetful=True)
    return scene, (first, Report(first.token, "ended", cause="lease")), second


def test_an_attempt_that_was_lost_is_not_tried_again_while_a_silent_agent_may_be_running_the_next() -> None:
    """The agent that had lost the first attempt spoke first, and a third one began beside the second."""
    scene, first, _ = reports_of_two_attempts()
    scene.hello("a", first, cpu=1)
    scene.wait("4399ms")
    assert scene.states("web.0") == ["queued"]
    scene.wait("1ms")
    assert scene.states("web.0") == ["placed"]


@pytest.mark.parametrize("ending", ["lease", "exited"])
def test_the_later_attempt_counts_whichever_agent_reports_first(ending: str) -> None:
    scene, (run, report), second = reports_of_two_attempts()
    report = msgspec.structs.replace(report, cause=ending, code=1 if ending == "exited" else None)
    scene.hello("a", (run, report), cpu=1)
    assert scene.states("web.0") == ["queued" if ending == "lease" else "failed"]
    scene.hello("b", second, cpu=1)
    assert (scene.states("web.0"), scene.where("web.0")) == (["running"], ["b"])
    assert scene.instance("web.0").attempt == 2
    scene.hello("a", (run, report), cpu=1)
    assert scene.where("web.0") == ["b"]


# agents


def test_an_end_between_hello_and_welcome_is_reported_before_it_is_forgotten() -> None:
    """The server had heard of a run and never of its end: it counted its room forever."""
    actor = actor_of(run(1))
    actor.started(1, 102, 102)
    actor.parted()
    actor.hello(200)
    actor.ended(Ended("1", "exited", 300, 0), 300)
    actions = actor.welcomed(Welcome(8, 200, 4_000, 1, ()), 400)
    assert actions == [Lease(4_200)]
    beat = actor.beat(400)
    assert [(report.token, report.state) for report in beat.reports] == [(1, "ended")]
    assert actor.answered(Answer(8, base=1, generation=2, orders=(Drop(1),)), 410) == [Forget(1)]


def test_a_welcome_that_comes_twice_is_heard_once() -> None:
    """The second one took the agent back to its first orders: what had ended was started again."""
    actor = actor_of()
    welcome = Welcome(7, 100, 4_000, 1, (run(1),))
    assert actor.answered(Answer(7, base=1, generation=2, orders=(run(2),)), 120) == [Start(run(2))]
    assert actor.welcomed(welcome, 130) == []
    assert (actor.generation, list(actor.attempts)) == (2, [2])


def test_an_echo_that_comes_late_takes_nothing_from_the_lease() -> None:
    actor = actor_of()
    assert actor.answered(Answer(7, echo_ms=900), 1_000) == [Lease(4_900)]
    assert actor.answered(Answer(7, echo_ms=500), 1_001) == []


def test_the_lease_of_a_new_session_counts_also_when_it_is_shorter() -> None:
    actor = actor_of()
    actor.parted()
    actor.hello(200)
    assert actor.welcomed(Welcome(8, 200, 1_000, 1, ()), 210) == [Lease(1_200)]


def test_a_hello_of_an_earlier_life_is_late_also_when_that_life_was_never_heard_of() -> None:
    scene = Scene()
    scene.hello("a", identity="machine/3", sent_ms=50)
    assert "503 stale_hello" in outcome(scene.hello("a", identity="machine/2", sent_ms=200))["replies"][0]


# work ahead


def test_a_whole_assignment_with_one_to_be_stopped_in_a_chain_begins_only_the_first() -> None:
    """The one between them was started and stopped before the last one was heard of, which then began at once."""
    scene = brief()
    scene.submit(job("j", count=3))
    scene.cancel("j.1")
    whole = scene.report("a", lacking=True).assignments[0].orders
    actor = Actor("a", "machine", Facts({"cpu": 1_000}))
    actor.hello(100)
    driver = FakeDriver(script=lambda job: [ScriptedAct(after_ms=None)])
    driver.lease(10_000)
    for action in actor.welcomed(Welcome(7, 100, 4_000, 1, whole), 101):
        if isinstance(action, Start):
            order = action.run
            after = str(order.after) if order.after else ""
            driver.start(RunRequest(str(order.token), [StepCommand(["work"])], {}, "/", "/", after=after))
        elif isinstance(action, Halt):
            driver.stop(str(action.token), action.grace_ms, action.reason, action.detail)
    began = [event.id for event in driver.advance(200) if isinstance(event, Started)]
    assert began == [str(scene.instance("j.0").token)]


def test_ghosts_that_stand_behind_each_other_take_the_room_of_one() -> None:
    """Each took its own when their node came back: more than the node had."""
    scene = brief()
    scene.submit(job("j", count=3, fenced=False))
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.part("a")
    scene.hello("a", *runs, cpu=1)
    assert scene.used("a") == 1_000


def test_an_instance_that_steps_up_and_is_placed_again_in_the_same_step_is_the_head_of_one_chain() -> None:
    """It had failed meanwhile and was tried again: two were to stand behind it, side by side."""
    scene = brief()
    scene.submit(job("j", count=9, retries={"max": 2, "on": ["failed"]}))
    first, second, third = (scene.instance(f"j.{index}").token for index in range(3))
    scene.report(
        "a",
        Report(first, "ended", 25, cause="exited", code=0),
        Report(second, "ended", 25, cause="exited", code=1),
        Report(third, "ended", 25, cause="exited", code=0),
    )
    assert scene.states("j.0", "j.1", "j.2") == ["succeeded", "placed", "succeeded"]
    assert chain(scene, "j.1") == ["j.3", "j.4"]
