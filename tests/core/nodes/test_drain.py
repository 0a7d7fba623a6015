"""Taking nodes out of service, putting them back, forgetting them."""

from roost.model.events import Drain, PutRecords
from roost.model.records.opaque import OpaqueRecord
from tests.core.scene import Scene, job, outcome, service


def test_an_empty_node_is_drained_at_once() -> None:
    scene = Scene("a")
    assert outcome(scene.drain("a")) == {
        "changes": ["node a drained"],
        "replies": ["a"],
        "nodes": ["a drained: drain_requested"],
    }


def test_a_draining_node_gets_no_new_work_and_what_it_has_moves_when_it_has_stopped() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.hello("b")
    assert outcome(scene.drain("a")) == {
        "changes": ["node a draining", "instance web.0 stopping"],
        "orders": ["a: stop (node_draining)"],
        "replies": ["a"],
        "nodes": ["a draining: drain_requested"],
    }
    assert outcome(scene.stopped("web.0")) == {
        "changes": ["node a drained", "instance web.0 placed"],
        "orders": ["a: drop", "b: run web.0 attempt 2"],
        "nodes": ["a drained: drain_completed"],
    }
    assert (scene.instance("web.0").losses, scene.instance("web.0").failures) == (0, 0)


def test_services_move_at_once_jobs_may_finish_until_the_deadline() -> None:
    scene = Scene("a")
    scene.submit(service("service"), job("quick"), job("slow"))
    scene.running("service.0", "quick.0", "slow.0")
    scene.wait("2s")
    scene.drain("a", "10m")
    assert scene.states("service.0", "quick.0", "slow.0") == ["stopping", "running", "running"]
    scene.ended("quick.0")
    assert scene.states("quick.0") == ["succeeded"]
    assert outcome(scene.wait("10m")) == {
        "changes": ["instance slow.0 stopping"],
        "orders": ["a: stop (node_draining)"],
    }


def test_without_a_deadline_jobs_finish_however_long_they_take() -> None:
    scene = Scene("a")
    scene.submit(service("service"), job("slow"))
    scene.running("service.0", "slow.0")
    scene.step(Drain(1, "a"))
    scene.wait("24h")
    scene.restart()
    scene.hello("a", "service.0", "slow.0")
    assert scene.states("service.0", "slow.0") == ["stopping", "running"]
    scene.stopped("service.0")
    assert outcome(scene.ended("slow.0"))["nodes"] == ["a drained: drain_completed"]
    assert scene.states("slow.0") == ["succeeded"]


def test_a_drain_can_be_hastened() -> None:
    scene = Scene("a")
    scene.submit(job("slow"))
    scene.running("slow.0")
    scene.step(Drain(1, "a"))
    assert scene.states("slow.0") == ["running"]
    scene.drain("a", "0")
    assert scene.states("slow.0") == ["stopping"]


def test_a_job_that_ends_by_itself_while_it_is_being_moved_has_ended() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.drain("a")
    scene.ended("web.0")
    assert scene.states("web.0") == ["succeeded"]


def test_a_node_lost_while_draining_gives_its_work_away_and_drains_on_when_it_is_back() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.drain("a")
    scene.hello("b")
    scene.part("a")
    scene.wait("5s")
    assert scene.where("web.0") == ["b"]
    assert outcome(scene.hello("a"))["nodes"] == ["a drained: node_registered"]


def test_uncordon_puts_a_node_back_and_what_was_stopping_finds_its_place_again() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.drain("a")
    assert outcome(scene.uncordon("a"))["nodes"] == ["a ready: uncordon_requested"]
    scene.stopped("web.0")
    assert (scene.states("web.0"), scene.where("web.0")) == (["placed"], ["a"])


def test_a_deadline_of_a_drain_that_was_taken_back_does_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.drain("a", "10m")
    scene.uncordon("a")
    assert outcome(scene.wait("10m")) == {}
    assert scene.states("web.0") == ["placed"]


def test_a_drain_survives_a_restart_with_its_deadline() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.drain("a", "10m")
    scene.restart()
    scene.hello("a", "web.0")
    assert (scene.state.nodes["a"].status, scene.states("web.0")) == ("draining", ["running"])
    scene.wait("10m")
    assert scene.states("web.0") == ["stopping"]


def test_a_node_in_touch_or_holding_work_is_not_removed() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    (connected,) = outcome(scene.remove("a"))["replies"]
    scene.part("a")
    (holding,) = outcome(scene.remove("a"))["replies"]
    assert connected.startswith("409 conflict: node a is connected")
    assert holding.startswith("409 conflict: node a is holding work until its lease ends")


def test_a_removed_node_is_gone_and_may_come_back_as_a_new_one() -> None:
    scene = Scene("a", "b")
    scene.part("a")
    assert outcome(scene.remove("a")) == {
        "changes": ["node a gone"],
        "replies": ["a"],
        "nodes": ["a gone: node_removed"],
    }
    scene.restart()
    assert list(scene.state.nodes) == ["b"]
    assert outcome(scene.hello("a", identity="another"))["replies"] == ["welcome"]


def test_the_certificate_of_a_removed_node_goes_in_the_same_commit() -> None:
    scene = Scene("a")
    scene.step(
        PutRecords(1, (OpaqueRecord("certificate", "a", b"one"), OpaqueRecord("certificate", "never-came", b"two")))
    )
    scene.remove("a")  # refused: it is in touch
    assert "a" in scene.state.opaque_records["certificate"]
    scene.part("a")
    done = scene.remove("a")
    assert [(change.kind, change.key, change.value) for change in done.changes] == [
        ("node", "a", None),
        ("certificate", "a", None),
    ]
    assert outcome(scene.remove("never-came"))["replies"] == ["never-came"]
    assert scene.state.opaque_records["certificate"] == {}


def test_unknown_nodes_are_not_found() -> None:
    scene = Scene("a")
    for done in (scene.drain("x"), scene.uncordon("x"), scene.remove("x")):
        assert outcome(done) == {"replies": ["404 not_found: there is no node x"]}
