"""Work ahead and nodes that leave, come back, or tell a server without memory what they have."""

import pytest

from roost.core.transitions import RETRACT_AFTER_MS
from roost.model.events import NodeConnected
from roost.model.protocol import Hello, Report
from tests.core.prefill_scene import brief, chain, charged, end, ordered, waiting
from tests.core.scene import facts_of, job

# nodes that leave


@pytest.mark.parametrize("deadline", ["0", "1m"])
def test_a_draining_node_begins_nothing_that_stands_behind(deadline: str) -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.running("j.0")
    scene.hello("b", cpu=1)
    scene.drain("a", deadline)
    assert scene.states("j.1", "j.2") == ["stopping", "stopping"]
    scene.ended("j.2", "j.1", cause="stopped", code=None)
    assert "a" not in scene.where("j.1", "j.2")
    end(scene, "j.0")
    assert scene.state.nodes["a"].status == "drained" and not scene.state.allocated["a"]


def test_a_lost_node_loses_those_that_stood_there_too() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.hello("b", cpu=1)
    scene.wait("5s", silent="a")
    assert not scene.state.allocated["a"]
    assert scene.used("a") == 0 and scene.used("b") == 1_000
    assert {scene.instance(f"j.{index}").node for index in range(3)} <= {"", "b"}


def test_a_broken_stream_moves_what_may_run_twice_and_leaves_the_rest() -> None:
    for fenced in (True, False):
        scene = brief()
        scene.hello("b", cpu=1)
        scene.submit(job("block", resources={"cpu": 1}, priority=60, placement={"require": ["name == 'b'"]}))
        scene.submit(job("j", count=3, fenced=fenced))
        scene.part("a")
        assert [scene.instance(f"j.{index}").node for index in range(3)] == (["a"] * 3 if fenced else [""] * 3)


def test_work_that_may_run_twice_and_work_that_may_not_do_not_stand_behind_each_other() -> None:
    """With the stream of its node broken the first would be gone and the second would have its room."""
    scene = brief()
    scene.submit(job("twice", fenced=False), job("once", count=3))
    assert chain(scene, "twice.0") == []
    end(scene, "twice.0")
    assert chain(scene, "once.0") == ["once.1", "once.2"]


def test_no_new_instance_stands_behind_on_a_node_that_is_out_of_touch() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.part("a")
    end(scene, "j.0")  # sent before the stream broke
    assert scene.states("j.0", "j.1") == ["succeeded", "placed"]
    assert chain(scene, "j.1") == ["j.2"]


# hellos


def test_a_node_that_comes_back_goes_on_as_it_was() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    scene.running("j.0")
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.part("a")
    scene.hello("a", *runs, cpu=1)
    assert chain(scene, "j.0") == ["j.1", "j.2"] and scene.states("j.1") == ["starting"]


def test_a_node_that_comes_back_without_the_first_one_runs_the_next() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    scene.running("j.0")
    runs = [scene.as_ordered("j.1"), waiting(scene, "j.2")]
    scene.hello("a", *runs, cpu=1)
    assert scene.states("j.1") == ["running"] and chain(scene, "j.1")[0] == "j.2"
    assert scene.used("a") == 1_000


def test_orders_that_got_lost_are_given_again_in_their_order() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    scene.running("j.0")
    done = scene.hello("a", scene.as_ordered("j.0"), cpu=1)
    assert [(order.index, bool(order.after)) for order in ordered(done)] == [(0, False), (1, True), (2, True)]


def test_a_restarted_server_knows_the_order_of_prefilled_instances() -> None:
    scene = brief()
    scene.submit(job("j", count=9))
    scene.running("j.0")
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.restart()
    assert chain(scene, "j.0") == ["j.1", "j.2"] and scene.used("a") == 1_000
    scene.hello("a", *runs, cpu=1)
    end(scene, "j.0")
    assert scene.instance("j.1").prefilled_behind == 0 and chain(scene, "j.1")[0] == "j.2"
    scene.wait(f"{2 * RETRACT_AFTER_MS}ms")
    assert scene.states("j.2") == ["stopping"]


def test_a_server_without_memory_learns_the_order_of_prefilled_instances() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    scene.running("j.0")
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.now += 1_000
    scene.restart(forgetful=True)
    scene.hello("a", *runs, cpu=1)
    assert chain(scene, "j.0") == ["j.1", "j.2"]
    assert (scene.used("a"), charged(scene)) == (1_000, 1)
    end(scene, "j.0")
    assert scene.used("a") == 1_000 and chain(scene, "j.1") == ["j.2"]


def test_it_learns_that_also_when_the_first_one_has_ended() -> None:
    scene = brief()
    scene.submit(job("j", count=3))
    first, second, third = scene.as_ordered("j.0"), scene.as_ordered("j.1"), waiting(scene, "j.2")
    scene.now += 1_000
    scene.restart(forgetful=True)
    ended = Report(first[0].token, "ended", cause="exited", code=0)
    scene.hello("a", (first[0], ended), second, third, cpu=1)
    assert scene.states("j.0", "j.1", "j.2") == ["succeeded", "running", "starting"]
    assert chain(scene, "j.1") == ["j.2"] and scene.used("a") == 1_000


def test_a_chain_of_ghosts_takes_the_room_of_one() -> None:
    """The node was lost and all was given away; it comes back with what it still has until it has stopped it."""
    scene = brief()
    scene.submit(job("j", count=3, fenced=False))
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.wait("5s", silent="a")
    scene.step(NodeConnected(1, Hello("a", "machine-a", facts_of(cpu=1), 0, tuple(runs))))
    assert scene.used("a") == 1_000 and scene.counts("j") == {"queued": 3}
    ends = [Report(run.token, "ended", cause="stopped") for run, _ in reversed(runs)]
    for report in ends:
        assert scene.used("a") == 1_000 or report.token == runs[0][0].token
        scene.report("a", report)
    assert scene.states("j.0") == ["placed"]


def test_an_orphan_keeps_its_room_when_the_instance_behind_it_is_gone() -> None:
    """The second one was being stopped when the stream broke; it ends at once, the first one takes its time."""
    scene = brief()
    scene.submit(job("j", count=2, fenced=False))
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1")]
    scene.cancel("j.1")
    scene.part("a")
    assert scene.states("j.0", "j.1") == ["queued", "cancelled"]
    scene.hello("a", *runs, cpu=1)
    scene.report("a", Report(runs[1][0].token, "ended", cause="stopped"))
    assert scene.used("a") == 1_000 and scene.states("j.0") == ["queued"]
    scene.report("a", Report(runs[0][0].token, "ended", cause="stopped"))
    assert scene.states("j.0") == ["placed"]


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_chain_that_was_closed_is_reported_as_it_is_now(forgetful: bool) -> None:
    scene = brief()
    scene.submit(job("j", count=3, fenced=not forgetful))
    scene.running("j.0")
    scene.cancel("j.1")
    scene.ended("j.1", cause="stopped", code=None)
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.2")]
    scene.now += 1_000
    if forgetful:
        scene.restart(forgetful=True)
    else:
        scene.part("a")
    scene.hello("a", *runs, cpu=1)
    assert chain(scene, "j.0") == ["j.2"] and scene.used("a") == 1_000


def test_orphan_behind_one_that_ends_has_its_room_until_it_ends() -> None:
    """The keeper begins the next of a chain at once. The order to stop it may come a moment later."""
    scene = brief()
    scene.submit(job("j", count=3, fenced=False))
    runs = [scene.as_ordered("j.0"), waiting(scene, "j.1"), waiting(scene, "j.2")]
    scene.part("a")
    scene.hello("a", *runs, cpu=1)
    for run, _ in runs:
        assert scene.used("a") == 1_000 and scene.counts("j") == {"queued": 3}
        scene.report("a", Report(run.token, "ended", cause="exited", code=1))
    assert scene.states("j.0") == ["placed"]
