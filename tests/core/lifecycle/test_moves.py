"""Where virtual machines run: they start again where their disks are, and leave only as their document allows."""

from typing import Any

import pytest

from roost.core.explain.drain_preview import drain_preview
from roost.core.explain.why import why
from roost.core.step import make_plan
from roost.model.errors import Invalid
from roost.model.events import MarkPool, Reserve, SetPool, Submit
from roost.model.records.project import Pool, Reservation
from roost.schema.reason_text import message_of, render_text
from tests.core.scene import Scene, job, outcome, vm, wanted

QEMU: dict[str, Any] = {"drivers": ("qemu", "process")}


def machine(*others: str, **fields: Any) -> Scene:
    """A virtual machine that runs on node a, and nodes where it could run as well."""
    scene = Scene()
    scene.hello("a", **QEMU)
    scene.submit(vm("db", **fields))
    scene.powered("db.0", "running")
    for name in others:
        scene.hello(name, **QEMU)
    return scene


def text(scene: Scene, name: str = "default/db") -> str:
    return render_text(why(scene.state, name).text)


# home


def test_a_machine_whose_host_was_started_anew_starts_there_again_and_not_elsewhere() -> None:
    scene = machine("b")
    scene.part("a")
    scene.wait("60s", silent="a")
    scene.hello("a", identity="machine-a/2", **QEMU)
    assert (scene.states("db.0"), scene.where("db.0")) == (["placed"], ["a"])


def test_a_machine_waits_for_its_node_and_why_says_so() -> None:
    scene = machine("b")
    scene.cancel("db")
    scene.stopped("db.0")
    scene.drain("a")
    scene.retry("db.0")
    assert scene.states("db.0") == ["queued"]
    assert text(scene) == "default/db.0 waits: home: node a, which has its disks, is drained"
    scene.uncordon("a")
    assert (scene.states("db.0"), scene.where("db.0")) == (["placed"], ["a"])


def test_a_machine_without_room_at_home_waits_and_others_of_its_kind_do_not() -> None:
    scene = machine("b")
    scene.cancel("db")
    scene.stopped("db.0")
    scene.submit(job("full", resources={"cpu": 4}, placement={"require": ["name == 'a'"]}))
    assert scene.where("full.0") == ["a"]
    scene.retry("db.0")
    assert (
        text(scene) == "default/db.0 waits: home: node a, which has its disks, has no room for it "
        "(needs 1 cpu, 64MiB memory)"
    )
    scene.submit(vm("other"))
    assert scene.where("other.0") == ["b"], "an equal machine without a home is not behind it"
    scene.running("full.0")
    scene.ended("full.0")
    assert scene.where("db.0") == ["a"]


def test_a_machine_of_a_removed_node_starts_elsewhere_once_its_document_allows_it() -> None:
    scene = machine("b")
    scene.cancel("db")
    scene.stopped("db.0")
    scene.part("a", leaving=True)
    scene.wait("60s", silent="a")
    scene.remove("a")
    scene.retry("db.0")
    assert "node a, which has its disks, is no longer known; with `move: cold` it starts elsewhere" in text(scene)
    scene.apply(vm("db", move="cold"))
    assert (scene.states("db.0"), scene.where("db.0")) == (["placed"], ["b"])


def test_a_machine_that_may_move_prefers_its_home() -> None:
    scene = machine("b", move="cold")
    scene.submit(job("busy", resources={"cpu": 2}, placement={"require": ["name == 'a'"]}))
    scene.stopped("db.0")
    assert (scene.instance("db.0").attempt, scene.where("db.0")) == (2, ["a"]), "b has more room"


def test_a_machine_that_never_ran_has_no_home() -> None:
    scene = Scene()
    scene.hello("a", **QEMU)
    scene.submit(vm("db"))
    scene.hello("b", **QEMU)
    scene.ended("db.0", cause="error", code=None, error="no image")
    assert scene.instance("db.0").home == ""


# drain, pools, reservations, preemption


@pytest.mark.parametrize("move", ["live", "never"])
@pytest.mark.parametrize("deadline", ["0", "1s"])
def test_a_drain_leaves_a_machine_that_must_not_be_stopped(move: str, deadline: str) -> None:
    scene = machine("b", move=move)
    assert "orders" not in outcome(scene.drain("a", deadline))
    assert "orders" not in outcome(scene.wait("1s"))
    assert (scene.states("db.0"), scene.state.nodes["a"].status) == (["running"], "draining")
    stays = f"it stays on its node, which is to be emptied: `move: {move}` does not let it be stopped for that"
    assert stays in text(scene)
    assert message_of(scene.instance("db.0").story[-1].reason) == stays
    assert scene.state.workloads["default/db"].finished_ms == 0


def test_a_drain_moves_a_machine_that_may_at_once() -> None:
    scene = machine("b", move="cold")
    assert outcome(scene.drain("a", "1h"))["orders"] == ["a: stop (node_draining)"]
    scene.stopped("db.0")
    assert (scene.states("db.0"), scene.where("db.0")) == (["placed"], ["b"])


def test_a_preview_of_a_drain_says_which_machines_stay() -> None:
    scene = machine("b")
    scene.submit(vm("free", move="cold"))
    preview = drain_preview(scene.state, "a", 0)
    assert [(move.instance, move.node, move.code) for move in preview.moves] == [("default/db.0", "", "vm_stays")]
    assert not preview.is_whole


def test_a_failed_pool_and_a_draining_one_leave_a_machine_that_must_not_be_stopped() -> None:
    scene = machine("b")
    scene.step(SetPool(1, Pool("default", when_failed="move")))
    assert "orders" not in outcome(scene.step(MarkPool(1, "default", "failed")))
    scene.step(MarkPool(1, "default", "ready"))
    assert "orders" not in outcome(scene.step(MarkPool(1, "default", "draining")))
    assert scene.states("db.0") == ["running"]


def test_a_draining_pool_moves_a_machine_that_may() -> None:
    scene = machine(move="cold")
    assert outcome(scene.step(MarkPool(1, "default", "draining")))["orders"] == ["a: stop (pool_draining)"]


def test_a_reservation_leaves_a_machine_that_must_not_be_stopped() -> None:
    scene = machine("b")
    assert "orders" not in outcome(scene.step(Reserve(1, Reservation("night", "red", ("a",), 0))))
    assert scene.states("db.0") == ["running"]


def test_a_machine_is_preempted_only_where_its_document_allows_it() -> None:
    urgent = job("urgent", priority=99, resources={"cpu": 4})
    scene = machine(priority=1)
    assert "orders" not in outcome(scene.submit(urgent))
    scene = machine(priority=1, move="cold", preemptible=True)
    assert outcome(scene.submit(urgent))["orders"] == ["a: stop (preempted)"]
    scene.stopped("db.0")
    assert (scene.states("db.0"), scene.states("urgent.0")) == (["queued"], ["placed"])


def test_preemption_needs_consent_to_be_stopped() -> None:
    with pytest.raises(Invalid, match="preemptible: preemption stops a vm"):
        wanted(vm("db", preemptible=True))
    with pytest.raises(Invalid, match="move: only a workload of `kind: vm` has this"):
        wanted(job("db", move="cold"))


# updates


def test_a_change_that_needs_no_boot_takes_effect_at_once() -> None:
    scene = machine("b")
    scene.apply(vm("db", move="cold"))
    assert (scene.instance("db.0").version, scene.states("db.0")) == (2, ["running"])
    assert outcome(scene.drain("a"))["orders"] == ["a: stop (node_draining)"]


BIG = {"cpu": 2, "memory": "128MiB"}


def test_a_machine_gets_another_size_at_its_next_boot_and_the_plan_says_so() -> None:
    scene = machine()
    plan = make_plan(scene.state, Submit(1, (wanted(vm("db", resources=BIG)),), same_ok=True), scene.now)
    assert (plan.changed, plan.next_boot, plan.stopped) == (("default/db",), ("default/db.0",), ())
    assert "orders" not in outcome(scene.apply(vm("db", resources=BIG)))
    assert (scene.instance("db.0").version, scene.used("a")) == (1, 1_000)
    assert "it gets version 2 when it is started or rebooted" in text(scene)
    assert outcome(scene.power("db", "reset"))["orders"] == ["a: power reset"], "no boot of its firmware"
    scene.powered("db.0", "running")
    assert outcome(scene.power("db", "reboot"))["orders"] == ["a: stop (updated_to_version)"]
    scene.stopped("db.0")
    assert (scene.instance("db.0").version, scene.used("a"), scene.where("db.0")) == (2, 2_000, ["a"])


def test_a_stopped_machine_gets_another_size_when_it_is_started() -> None:
    scene = machine()
    scene.power("db", "stop")
    scene.powered("db.0", "stopped")
    scene.apply(vm("db", resources=BIG))
    assert outcome(scene.power("db", "start"))["orders"] == ["a: stop (updated_to_version)"]
    scene.stopped("db.0")
    assert (scene.instance("db.0").version, scene.instance("db.0").power) == (2, None), "it boots"


def test_a_size_that_does_not_fit_where_the_disks_are_is_refused_at_boot() -> None:
    scene = machine("b")
    scene.submit(job("busy", resources={"cpu": 2.5}, placement={"require": ["name == 'a'"]}))
    scene.apply(vm("db", resources=BIG))
    done = outcome(scene.power("db", "reboot"))
    assert list(done) == ["replies"]
    assert done["replies"][0].startswith("409 no_room_for_version: version 2 of default/db.0 does not fit on node a")
    assert scene.used("a") == 3_500
    scene.ended("busy.0")
    assert outcome(scene.power("db", "reboot"))["orders"] == ["a: stop (updated_to_version)"]


def test_there_cannot_be_fewer_machines_than_have_begun() -> None:
    scene = machine(count=2)
    (reply,) = outcome(scene.apply(vm("db")))["replies"]
    assert reply.startswith("409 cannot_change: count: 2 instances of default/db have begun")
