"""Gangs: all or nothing, also across workloads; who has to start again starts with all of it."""

from typing import Any

from roost.core.explain.why import why
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, service
from tests.core.test_step_budget import until_quiet


def apart(workload: str) -> dict[str, Any]:
    return {"apart": [{"workload": workload, "by": "node"}]}


def test_a_gang_starts_whole_or_not_at_all() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("busy"))
    scene.submit(job("mpi", count=4, gang=True))
    assert scene.counts("mpi") == {"queued": 4}, "three would fit, four do not"
    assert "gang: all of it has to fit at once" in render_text(why(scene.state, "default/mpi").text)
    scene.ended("busy.0")
    assert scene.counts("mpi") == {"placed": 4}


def test_an_instance_that_stands_behind_a_gang_that_does_not_fit_is_not_held_up() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("mpi", count=3, gang=True), job("small"))
    assert scene.states("small.0") == ["placed"]
    assert scene.counts("mpi") == {"queued": 3}


def test_workloads_that_share_a_gang_wait_for_each_other() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("workers", count=3, gang={"name": "train", "size": 4}))
    assert scene.counts("workers") == {"queued": 3}
    assert "1 more of it have to be submitted" in render_text(why(scene.state, "default/workers").text)
    scene.submit(job("server", resources={"cpu": 2}, gang={"name": "train", "size": 4}))
    assert scene.counts("workers") == {"placed": 3} and scene.states("server.0") == ["placed"]


def test_a_lost_member_makes_all_of_it_start_again() -> None:
    scene = Scene("a", "b", "c", cpu=1)
    scene.submit(job("mpi", count=2, gang=True))
    scene.running("mpi.0", "mpi.1")
    gone = scene.instance("mpi.0").node
    scene.wait("6s", silent=gone)
    assert scene.states("mpi.0", "mpi.1") == ["queued", "stopping"]
    scene.stopped("mpi.1")
    assert scene.states("mpi.0", "mpi.1") == ["placed", "placed"]
    assert scene.instance("mpi.0").node != gone


def test_an_instance_that_has_succeeded_does_not_run_again_with_the_rest() -> None:
    scene = Scene("a", "b", "c", cpu=1)
    scene.submit(job("mpi", count=2, gang=True))
    scene.running("mpi.0", "mpi.1")
    scene.ended("mpi.0")
    gone = scene.instance("mpi.1").node
    scene.wait("6s", silent=gone)
    assert scene.states("mpi.0", "mpi.1") == ["succeeded", "placed"]


def test_a_gang_keeps_its_rules_about_company() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("mpi", count=3, gang=True, placement=apart("mpi")))
    assert scene.counts("mpi") == {"queued": 3}
    scene.hello("c")
    assert sorted(scene.where("mpi.0", "mpi.1", "mpi.2")) == ["a", "b", "c"]


def test_pending_gangs_with_rules_about_company_are_checked_once() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("low", count=2, priority=10))
    steps = [
        *until_quiet(scene, scene.submit(job("one", count=3, gang=True, placement=apart("one")))),
        *until_quiet(scene, scene.submit(job("two", count=3, gang=True, placement=apart("two")))),
        *until_quiet(scene, scene.submit(job("urgent", count=3, gang=True, priority=99, placement=apart("urgent")))),
    ]
    assert scene.counts("one") == scene.counts("two") == scene.counts("urgent") == {"queued": 3}
    assert len(steps) == 3, "a trial is no placement that others may wait for"
    scene.submit(job("small"))
    scene.hello("c")
    assert scene.counts("urgent") == {"placed": 3}


def test_a_trial_leaves_nothing_behind() -> None:
    scene = Scene("a", "b", cpu=2)
    before = scene.state.fleet.freed
    scene.submit(job("mpi", count=5, gang=True))
    assert scene.used("a") == scene.used("b") == 0 and scene.state.project_usage == {}
    assert scene.state.fleet.freed == before and not scene.state.fleet.topology.members


def test_a_gang_of_services_restarts_together() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(service("ring", count=2, gang=True))
    scene.running("ring.0", "ring.1")
    scene.ended("ring.0", code=1)
    assert scene.states("ring.0", "ring.1") == ["queued", "stopping"]
    scene.stopped("ring.1")
    scene.wait("2s")
    assert scene.states("ring.0", "ring.1") == ["placed", "placed"]


def test_a_gang_does_not_starve_behind_small_jobs() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("s", count=3, timeout="10m"))
    scene.submit(job("mpi", count=2, gang=True, resources={"cpu": 2}))
    scene.submit(job("early", timeout="10m"))
    assert scene.states("early.0") == ["placed"], "at first no instance is held up"
    scene.wait("31s")
    assert [hold.instance for hold in scene.state.gang_reservations.values()] == ["default/mpi"]
    scene.ended("s.0")
    scene.submit(job("late"), job("quick", timeout="1m"))
    assert scene.states("quick.0") == ["placed"] and scene.counts("late") == {"queued": 1}
    assert "kept for gang default/mpi" in render_text(why(scene.state, "default/late").text)
    scene.ended("s.1", "s.2", "early.0", "quick.0")
    assert scene.counts("mpi") == {"placed": 2} and not scene.state.gang_reservations
    scene.ended("mpi.0")
    assert scene.states("late.0") == ["placed"]


def test_nothing_is_kept_for_a_gang_that_would_not_fit_on_empty_nodes_or_is_cancelled() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(service("up", resources={"cpu": 1}))
    scene.submit(job("busy", timeout="10m"))
    scene.submit(job("huge", count=2, gang=True, resources={"cpu": 2}))
    scene.wait("31s")
    assert not scene.state.gang_reservations, "a service does not end"
    scene.submit(job("mpi", count=3, gang=True))
    scene.wait("31s")
    assert len(scene.state.gang_reservations) == 1
    scene.cancel("mpi")
    scene.submit(job("after"))
    assert not scene.state.gang_reservations and scene.states("after.0") == ["placed"]


def test_a_gang_larger_than_all_nodes_together_can_never_run() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("mpi", count=5, gang=True))
    reported = why(scene.state, "default/mpi")
    assert reported.code == "unsatisfiable"
    assert "gang: all of it needs 5 cpu, all nodes have 4 cpu" in render_text(reported.text)


def test_a_gang_as_a_whole_takes_no_more_than_is_left_over_beside_a_reservation() -> None:
    scene = Scene("a", cpu=8)
    scene.submit(job("long", resources={"cpu": 4}, timeout="10m"))
    scene.submit(job("big", resources={"cpu": 6}))
    scene.wait("31s")
    scene.submit(job("wide", count=2, gang=True, resources={"cpu": 2}), job("narrow", count=2, gang=True))
    assert scene.counts("wide") == {"queued": 2}, "each of them would fit beside the reservation, both do not"
    assert scene.counts("narrow") == {"placed": 2}
    scene.ended("long.0")
    assert scene.states("big.0") == ["placed"]
