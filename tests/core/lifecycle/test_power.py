"""The power of virtual machines: each command in each state, repeated and lost, and what moves change."""

from typing import Any

import pytest

from roost.core.explain.why import why
from roost.core.orders import run_order
from roost.model.keys import workload_key
from roost.model.protocol import PowerOrder, Report
from roost.model.records.instance import PowerState
from roost.model.states import Power, PowerAction
from roost.schema.reason_text import message_of, render_text
from tests.core.scene import Scene, job, outcome, vm


def machine(power: str = "running", settings: dict[str, Any] | None = None, **fields: Any) -> Scene:
    """A scene with a virtual machine that runs on node a."""
    scene = Scene(**settings or {})
    scene.hello("a", drivers=("qemu",))
    if settings:
        scene.wait("10s")  # for the leases of earlier servers
    scene.submit(vm("db", **fields))
    scene.powered("db.0", "running")
    if power != "running":
        scene.power("db", {"paused": "pause", "stopped": "stop"}[power])
        scene.powered("db.0", power)
    return scene


def power_of(scene: Scene, name: str = "db.0") -> PowerState:
    found = scene.instance(name).power
    assert found is not None
    return found


def standing(scene: Scene, name: str = "db.0") -> str:
    power = power_of(scene, name)
    return f"{power.reported}, {power.action} pending" if power.is_pending else str(power.reported)


def story(scene: Scene, name: str = "db.0") -> list[str]:
    return [message_of(line.reason) for line in scene.instance(name).story]


def test_a_stop_is_ordered_and_done_when_the_node_says_so() -> None:
    scene = machine(grace="90s")
    stopped = scene.power("db", "stop", by="ann")
    assert outcome(stopped) == {
        "changes": ["instance db.0 running", "audit 1"],
        "orders": ["a: power stop"],
        "replies": ["db"],
    }
    (orders,) = stopped.assignments
    assert orders.orders == (
        PowerOrder(scene.instance("db.0").token, power_of(scene).serial, PowerAction.STOP, 90_000),
    )
    assert standing(scene) == "running, stop pending"
    scene.now += 500
    assert outcome(scene.powered("db.0", "stopped")) == {"changes": ["instance db.0 running"]}
    known = power_of(scene)
    assert (known.reported, known.is_pending, known.by, known.since_ms) == ("stopped", False, "ann", scene.now)
    assert story(scene)[-2:] == ["stop of the vm requested by ann", "vm stopped by ann"]
    assert scene.used("a") == 1_000, "a stopped machine keeps its allocation"


DONE, SAME = "done", "same"
#: What becomes of a command in a power state; otherwise the state that the machine would have to be in.
TABLE = {
    "start": {"running": SAME, "paused": "stopped", "stopped": DONE},
    "stop": {"running": DONE, "paused": DONE, "stopped": SAME},
    "pause": {"running": DONE, "paused": SAME, "stopped": "running"},
    "resume": {"running": SAME, "paused": DONE, "stopped": "paused"},
    "reboot": {"running": DONE, "paused": "running", "stopped": "running"},
    "reset": {"running": DONE, "paused": "running", "stopped": "running"},
}


@pytest.mark.parametrize("power", [*Power])
@pytest.mark.parametrize("action", [*PowerAction])
def test_commands_by_power_state(action: str, power: str) -> None:
    scene = machine(power)
    before = power_of(scene)
    done = outcome(scene.power("db", action))
    match TABLE[action][power]:
        case "done":
            assert done["orders"] == [f"a: power {action}"]
            assert power_of(scene).serial > before.serial
        case "same":
            assert done == {"changes": ["audit " + str(scene.state.audited)], "replies": ["db"]}
            assert power_of(scene) == before
        case _:
            (reply,) = done["replies"]
            assert list(done) == ["replies"], "a command that is refused leaves nothing"
            assert reply.startswith(f"409 wrong_power: default/db.0 is {power}, and {action} is for a vm that is ")
            assert power_of(scene) == before


def test_a_command_is_sent_again_until_its_node_has_done_it() -> None:
    scene = machine()
    scene.part("a")
    scene.power("db", "stop")
    assert outcome(scene.hello("a", "db.0", drivers=("qemu",)))["orders"] == [
        "a: whole: run db.0 attempt 1, power stop"
    ]
    assert outcome(scene.hello("a", "db.0", drivers=("qemu",)))["orders"] == [
        "a: whole: run db.0 attempt 1, power stop"
    ]
    scene.powered("db.0", "stopped")
    assert outcome(scene.hello("a", "db.0", drivers=("qemu",)))["orders"] == ["a: whole: run db.0 attempt 1"]


def test_the_last_command_replaces_one_that_is_pending() -> None:
    scene = machine()
    scene.part("a")
    scene.power("db", "stop")
    first = power_of(scene).serial
    scene.power("db", "start")
    done = scene.hello("a", "db.0", drivers=("qemu",))
    powers = [order for order in done.assignments[0].orders if isinstance(order, PowerOrder)]
    assert [(order.action, order.serial > first) for order in powers] == [("start", True)]


def test_a_report_of_an_earlier_command_leaves_the_last_one_pending() -> None:
    scene = machine()
    scene.power("db", "stop")
    first = power_of(scene).serial
    scene.power("db", "start")
    scene.powered("db.0", "stopped", first)
    assert standing(scene) == "stopped, start pending"
    scene.powered("db.0", "running")
    assert standing(scene) == "running"


def test_power_never_goes_backwards() -> None:
    scene = machine()
    scene.power("db", "stop")
    scene.powered("db.0", "stopped")
    before = power_of(scene)
    assert outcome(scene.powered("db.0", "running", 0)) == {}, "a report that is late"
    assert outcome(scene.powered("db.0", "stopped")) == {}, "a report that is repeated"
    assert power_of(scene) == before


def test_a_command_that_fails_says_why_and_can_be_given_again() -> None:
    scene = machine()
    scene.power("db", "pause")
    scene.powered("db.0", "running", power_problem="its monitor does not answer")
    known = power_of(scene)
    assert (known.wanted, known.problem, known.is_pending) == ("running", "its monitor does not answer", False)
    assert story(scene)[-1] == "pause of the vm failed: its monitor does not answer"
    assert outcome(scene.power("db", "pause"))["orders"] == ["a: power pause"]
    assert not power_of(scene).problem


def test_a_machine_that_changes_by_itself_is_not_commanded_back() -> None:
    scene = machine()
    done = scene.powered("db.0", "paused")
    assert outcome(done) == {"changes": ["instance db.0 running"]}
    assert (power_of(scene).wanted, power_of(scene).by) == ("paused", "")
    assert story(scene)[-1] == "the vm is paused without a command"
    assert outcome(scene.power("db", "resume"))["orders"] == ["a: power resume"]


def test_a_shorter_grace_hurries_a_stop_and_a_longer_one_does_not() -> None:
    scene = machine()
    scene.power("db", "stop", grace_ms=60_000)
    assert "orders" not in outcome(scene.power("db", "stop", grace_ms=120_000))
    assert outcome(scene.power("db", "stop", grace_ms=0))["orders"] == ["a: power stop"]


def test_all_machines_of_a_workload_are_commanded_or_none() -> None:
    scene = Scene()
    scene.hello("a", drivers=("qemu",))
    scene.submit(vm("db", count=2), job("train"))
    scene.powered("db.0", "running")
    assert outcome(scene.power("db", "stop")) == {
        "replies": ["409 not_running: default/db.1 is placed: only a running vm takes power commands"]
    }
    scene.powered("db.1", "running")
    assert outcome(scene.power("db", "stop"))["orders"] == ["a: power stop, power stop"]
    assert outcome(scene.power("db.2", "stop")) == {
        "replies": ["404 not_found: default/db has instances 0 to 1, not 2"]
    }
    (reply,) = outcome(scene.power("train", "stop"))["replies"]
    assert reply.startswith("409 not_a_vm: default/train is a job")


def test_a_reset_of_a_machine_out_of_contact_is_refused_and_a_stop_waits() -> None:
    scene = machine()
    scene.part("a")
    (reply,) = outcome(scene.power("db", "reset"))["replies"]
    assert reply.startswith("409 node_unreachable: node a of default/db.0 is not in contact")
    assert "orders" not in outcome(scene.power("db", "stop"))
    assert power_of(scene).is_pending


def test_a_machine_stays_on_its_lost_node_and_says_so_also_after_a_command() -> None:
    scene = machine()
    scene.wait("60s", silent="a")
    assert scene.states("db.0") == ["running"]
    scene.power("db", "stop")
    assert "lost since" in message_of(scene.instance("db.0").reason)
    scene.hello("a", "db.0", drivers=("qemu",))
    assert story(scene)[-1] == "node a is back"


def test_a_stopped_machine_that_moves_begins_stopped() -> None:
    scene = machine("stopped", when_lost="reschedule")
    scene.hello("b", drivers=("qemu",))
    scene.part("a")
    scene.wait("60s", silent="a")
    assert scene.where("db.0") == ["b"]
    assert run_order(scene.state, scene.instance("db.0")).power == "stopped"
    scene.powered("db.0", "stopped")
    assert story(scene)[-1] == "the vm begins stopped, as it was before"
    assert run_order(scene.state, scene.instance("db.0")).power == ""
    assert outcome(scene.power("db", "start"))["orders"] == ["b: power start"]


def test_a_paused_machine_that_moves_has_no_memory_and_begins_stopped() -> None:
    scene = machine("paused", when_lost="reschedule")
    scene.hello("b", drivers=("qemu",))
    scene.part("a")
    scene.wait("60s", silent="a")
    assert run_order(scene.state, scene.instance("db.0")).power == "stopped"


def test_a_machine_that_a_user_runs_again_is_switched_on() -> None:
    scene = machine("stopped")
    scene.cancel("db")
    scene.stopped("db.0")
    scene.retry("db.0")
    assert scene.instance("db.0").power is None
    assert run_order(scene.state, scene.instance("db.0")).power == ""


def test_a_machine_that_is_being_stopped_for_good_takes_no_commands_and_keeps_its_reason() -> None:
    scene = machine()
    scene.power("db", "pause")
    scene.cancel("db", by="bob")
    scene.powered("db.0", "paused")
    (reply,) = outcome(scene.power("db", "resume"))["replies"]
    assert reply.startswith("409 not_running: default/db.0 is stopping")
    scene.stopped("db.0")
    assert message_of(scene.instance("db.0").reason) == "cancelled by bob"


def test_a_server_without_memory_takes_over_the_power_of_a_machine() -> None:
    scene = machine("stopped", settings={"adopts": True, "awaits_agents": True})
    known, serial = scene.as_ordered("db.0"), power_of(scene).serial
    scene.restart(forgetful=True)
    report = Report(known[1].token, known[1].state, 5, power="stopped", power_serial=serial)
    scene.now += 1_000
    scene.hello("a", (known[0], report), drivers=("qemu",))
    assert standing(scene) == "stopped"
    scene.power("db", "start")
    assert power_of(scene).serial > serial
    assert power_of(scene).is_pending


def test_a_node_that_claims_commands_it_never_got_does_no_harm() -> None:
    scene = machine()
    scene.powered("db.0", "running", 1 << 60)
    scene.power("db", "stop")
    assert power_of(scene).is_pending


def test_jobs_have_no_power_whatever_their_node_says() -> None:
    scene = Scene("a")
    scene.submit(job("train"))
    scene.running("train.0", power="paused", power_serial=3)
    assert scene.instance("train.0").power is None


def test_why_says_who_stopped_a_machine_and_when() -> None:
    scene = machine()
    assert "its vm" not in message(scene)
    scene.power("db", "stop", by="ann")
    assert "; its node has not done the stop that was requested by ann" in message(scene)
    scene.powered("db.0", "stopped")
    scene.wait("3m")
    assert "; its vm has been stopped for 3m, by ann" in message(scene)
    scene.power("db", "start", by="bob")
    scene.powered("db.0", "stopped", power_problem="no memory")
    assert "; its vm has been stopped for 3m; the start that was requested by bob failed: no memory" in message(scene)


def message(scene: Scene) -> str:
    return render_text(why(scene.state, "default/db").text)


@pytest.mark.parametrize("code, ending", [(0, "succeeded"), (1, "failed")])
def test_a_machine_that_ended_by_itself_is_over(code: int, ending: str) -> None:
    """Its guest has powered off, or it failed: nothing starts it again, so nothing waits for it."""
    scene = machine()
    scene.ended("db.0", code=code)
    assert (scene.states("db.0"), bool(scene.state.workloads[workload_key("default", "db")].finished_ms)) == (
        [ending],
        True,
    )
