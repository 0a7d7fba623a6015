"""Why: every instance that waits has a reason with a stable code, every one that was placed its candidates."""

import pytest

from roost.core.explain.why import decision_line, node_report, why
from roost.model.errors import NotFound
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome, service, vm


def test_no_node_at_all_and_no_node_online() -> None:
    scene = Scene()
    scene.submit(job("web"))
    assert why(scene.state, "default/web").code == "no_nodes"
    scene.hello("a", cpu=0.5)
    scene.part("a")
    assert why(scene.state, "default/web").code == "no_nodes"
    assert "roost agent" in render_text(why(scene.state, "default/web").text)


def test_too_large_for_every_node_is_unsatisfiable() -> None:
    scene = Scene()
    scene.hello("a", cpu=1, memory="500M", disk="5G")
    scene.submit(job("web", resources={"cpu": 4, "memory": "8G", "disk": "50G"}))
    reported = why(scene.state, "default/web")
    assert (reported.code, [(blocker.filter, blocker.nodes) for blocker in reported.blockers]) == (
        "unsatisfiable",
        [("capacity", 1)],
    )
    assert "needs 4 cpu, the largest has 1 cpu" in render_text(reported.text)


def test_full_just_now_is_insufficient_resources() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("big", count=2, resources={"cpu": 3}))
    scene.submit(job("web", resources={"cpu": 2}))
    reported = why(scene.state, "default/web")
    assert reported.code == "insufficient_resources"
    assert render_text(reported.text) == (
        "default/web.0 (needs 2 cpu) waits for room: resources: needs 2 cpu, at most 1 cpu free (2 nodes)"
    )


def test_a_capability_no_node_has_is_unsatisfiable_and_tells_every_reason() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", image="python:3.12"), vm("vm"), job("gpu", resources={"gpu": 1}))
    scene.submit(job("far", placement={"pool": "far"}), job("arm", placement={"require": ["arch == 'arm64'"]}))
    message = {name: why(scene.state, f"default/{name}") for name in ("web", "vm", "gpu", "far", "arm")}
    assert {reported.code for reported in message.values()} == {"unsatisfiable"}
    assert {name: render_text(reported.blockers[0].reason) for name, reported in message.items()} == {
        "web": "driver: offers no containers",
        "vm": "driver: has no qemu driver",
        "gpu": "capacity: needs 1 gpu, the largest has 0 gpu",
        "far": "pool: not in far",
        "arm": "require: arch == 'arm64' does not hold",
    }
    assert {reported.blockers[0].nodes for reported in message.values()} == {2}


def test_draining_and_offline_nodes_are_distinguished() -> None:
    scene = Scene("a", "b", "c", cpu=1)
    scene.submit(job("busy", count=3))
    scene.drain("b", "1h")
    scene.part("c")
    scene.submit(job("web"))
    reported = why(scene.state, "default/web")
    assert [(blocker.filter, blocker.nodes) for blocker in reported.blockers] == [("status", 2), ("resources", 3)]
    assert render_text(reported.blockers[0].reason) == "status: 1 offline, 1 draining"


def test_a_pause_before_the_next_attempt_is_a_reason() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.ended("web.0", code=1)
    reported = why(scene.state, "default/web")
    assert reported.code == "backoff"
    assert render_text(reported.text) == "default/web.0 waits 1s before its next attempt: exit code 1; restarting in 1s"


def test_what_was_placed_tells_its_candidates() -> None:
    scene = Scene("a", "b")
    scene.submit(job("one"))
    scene.submit(job("two"))
    reported = why(scene.state, "default/two", 0)
    assert render_text(reported.text) == (
        "default/two.0 is placed on b: on b by least_loaded; least_loaded chose b with 1.000 "
        "over a 0.900 (2 of 2 nodes were eligible)"
    )
    assert (reported.node, reported.candidates) == ("b", (("b", 1.0), ("a", 0.9)))


def test_without_an_index_the_first_that_waits_is_reported() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("array", count=4))
    assert why(scene.state, "default/array").instance == "default/array.2"
    scene.ended("array.0", "array.1")
    scene.ended("array.2", "array.3")
    assert why(scene.state, "default/array").instance == "default/array.0"


def test_unknown_names_are_not_found() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    for workload, index in (("default/nobody", None), ("default/web", 1), ("default/web", -1)):
        with pytest.raises(NotFound):
            why(scene.state, workload, index)
    with pytest.raises(NotFound):
        node_report(scene.state, "nobody")


def test_a_decision_is_one_readable_line() -> None:
    scene = Scene("a", cpu=16)
    (one,) = scene.submit(job("web", resources={"cpu": 1.5, "memory": "4GiB", "license": 2})).placed or [None]
    assert one is None
    scene.hello("b", cpu=16, memory="32GiB", more={"license": 3})
    line = decision_line(*scene.steps[-1].placed[0])
    assert line == (
        "placed default/web.0 on b by least_loaded: cpu 1.5/16, memory 4GiB/32GiB, disk 0/100GiB, license 2/3"
    )


def test_a_node_tells_what_it_uses_and_runs() -> None:
    scene = Scene("a")
    scene.submit(job("web", resources={"cpu": 2, "memory": "1GiB"}))
    reported = node_report(scene.state, "a")
    assert reported["used"] == {"cpu": 2_000, "memory": 1 << 30, "disk": 0}
    assert reported["running"] == [scene.instance("web.0")]


def test_asking_why_changes_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("web", resources={"cpu": 9}))
    why(scene.state, "default/web")
    assert outcome(scene.step()) == {}


def test_a_pending_instance_of_an_earlier_version_is_explained_by_that_version() -> None:
    """It was explained by the new version, which had room, while the earlier one can never be placed."""
    scene = Scene("n1", cpu=4)
    update = {"canary": 1, "max_unavailable": 0, "max_surge": 1}
    scene.apply(service("web", count=2, update=update, placement={"require": ["zone == 'a'"]}))
    scene.apply(service("web", count=2, update=update, command="serve 2"))
    assert scene.state.instances["default/web.1"].version == 1
    assert why(scene.state, "default/web", 1).code == "unsatisfiable"
