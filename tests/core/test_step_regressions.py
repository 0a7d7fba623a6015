"""What lives in which anything may happen have found, each as the smallest scene that shows it."""

from roost.model.events import Cancel, ReportsReceived, Retry
from roost.model.protocol import Report
from tests.core.scene import Scene, job


def test_a_node_that_is_removed_takes_its_ghosts_along() -> None:
    """They stayed in the crowd: others kept away from where no instance was, and found company that was gone."""
    scene = Scene("a", cpu=1)
    scene.submit(job("j", fenced=False))
    orphan = scene.as_ordered("j.0")
    scene.part("a")
    scene.hello("a", orphan, cpu=1)
    scene.part("a")
    scene.remove("a")
    assert "a" not in scene.state.nodes
    assert scene.state.fleet.topology.members == {}


def test_an_instance_in_two_queues_is_placed_once() -> None:
    """It was kept out by a neighbour, cancelled, and asked for again just as the neighbour went."""
    scene = Scene("a", cpu=4)
    scene.submit(job("db", placement={"apart": [{"workload": "shy"}]}))
    scene.submit(job("shy", count=2))
    assert scene.counts("shy") == {"queued": 2}
    node, gone = scene.state.nodes["a"], Report(scene.instance("db.0").token, "ended", cause="exited", code=0)
    scene.step(
        Cancel(1, "default/shy", None),
        Retry(1, "default/shy", None),
        ReportsReceived("a", node.session, 1, (gone,)),
    )
    assert scene.counts("shy") == {"placed": 2}
    assert [scene.instance(f"shy.{index}").attempt for index in range(2)] == [1, 1]
    assert scene.used("a") == 2_000


def test_a_finished_workload_that_turns_out_to_live_is_watched_again() -> None:
    """A server without memory heard of the end of the first attempt, and after a restart that the second runs."""
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("j", deadline=600))
    scene.running("j.0")
    first, _ = scene.as_ordered("j.0")
    scene.wait("5s", silent="a")
    scene.running("j.0")
    second = scene.as_ordered("j.0")
    scene.now += 1_000
    scene.restart(forgetful=True)
    scene.hello("a", (first, Report(first.token, "ended", cause="exited", code=1)), cpu=1)
    assert scene.states("j.0") == ["failed"]
    scene.now += 1_000
    scene.restart()
    scene.hello("b", second, cpu=1)
    assert scene.states("j.0") == ["running"]
    assert ("queue", "default/j") in {(kind, key) for _, kind, key in scene.state.timers}
