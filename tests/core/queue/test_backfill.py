"""Places kept for instances that wait long, backfill that never makes it late, reservations, deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from roost.core.explain.why import why
from roost.model.events import Reserve, Unset
from roost.model.reasons.attempts import DeadlineUnreachable, NodeReserved
from roost.model.reasons.subjects import ProjectRef
from roost.model.records.project import Reservation
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome, service


def test_big_jobs_do_not_starve_behind_small_ones() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("s", count=3, timeout="1m"))
    scene.submit(job("big", resources={"cpu": 4}))
    scene.submit(job("early"))
    assert scene.states("early.0") == ["placed"], "at first no instance is held up"
    scene.wait("31s")
    scene.submit(job("late"))
    scene.ended("s.0")
    assert scene.counts("late") == {"queued": 1}
    assert "kept for default/big.0" in render_text(why(scene.state, "default/late").text)
    scene.ended("s.1", "s.2", "early.0")
    assert scene.states("big.0") == ["placed"]


def test_an_instance_that_is_sure_to_be_gone_in_time_may_pass() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("long", resources={"cpu": 3}, timeout="10m"))
    scene.submit(job("big", resources={"cpu": 4}))
    scene.wait("31s")
    scene.submit(job("short", timeout="5m"), job("too-long", timeout="20m"), job("endless"))
    assert scene.states("short.0") == ["placed"]
    assert scene.counts("too-long") == scene.counts("endless") == {"queued": 1}


def test_an_instance_that_takes_no_more_than_is_left_over_may_pass() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("long", resources={"cpu": 3}, timeout="10m"))
    scene.submit(job("big", resources={"cpu": 3}))
    scene.wait("31s")
    scene.submit(job("one"), job("two"))
    assert scene.states("one.0") == ["placed"] and scene.counts("two") == {"queued": 1}
    scene.ended("long.0")
    assert scene.states("big.0") == ["placed"]


def test_an_older_head_that_returns_passes_a_reservation_that_blocked_its_class() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(service("old", resources={"cpu": 1}, restart={"pause": "5s", "pause_max": "5s"}))
    scene.submit(job("long", resources={"cpu": 2}, timeout="10m"))
    scene.running("old.0")
    scene.submit(job("big", resources={"cpu": 3}))
    scene.wait("31s")
    scene.submit(job("young", count=2, resources={"cpu": 1}))
    assert scene.counts("young") == {"queued": 2}
    scene.ended("old.0", code=1)  # one young job fits beside the reservation, the other does not
    assert scene.states("old.0") == ["queued"] and scene.counts("young") == {"placed": 1, "queued": 1}
    scene.wait("6s")
    assert scene.states("old.0") == ["placed"] and scene.counts("young") == {"placed": 1, "queued": 1}


def test_a_place_is_kept_on_one_node_only() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("s", count=2, resources={"cpu": 3}, timeout="10m"), job("big", resources={"cpu": 4}))
    scene.wait("31s")
    scene.submit(job("x"), job("y"))
    assert scene.states("x.0") == ["placed"] and scene.counts("y") == {"queued": 1}


def test_what_never_ends_is_not_waited_for() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(service("up", resources={"cpu": 2}), job("big", resources={"cpu": 4}))
    scene.wait("5m")
    scene.submit(job("small"))
    assert scene.states("small.0") == ["placed"]


def test_a_cancelled_head_lets_the_others_go() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("s", resources={"cpu": 3}, timeout="10m"), job("big", resources={"cpu": 4}))
    scene.wait("31s")
    scene.submit(job("x"))
    assert scene.counts("x") == {"queued": 1}
    scene.cancel("big")
    assert scene.states("x.0") == ["placed"]


RUNS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=14)


@given(RUNS)
def test_backfill_never_makes_the_head_late(runs: list[tuple[int, int]]) -> None:
    """On one node, with runs that last exactly as long as declared: a start once kept is never moved back."""
    scene = Scene("a", cpu=4, backfill_after_ms=0, preempt_margin=0, prefill_max=0)
    for number, (cpu, minutes) in enumerate(runs):
        scene.submit(job(f"j{number}", resources={"cpu": cpu}, timeout=f"{minutes}m"))
    kept: dict[str, int] = {}
    while live := [instance for instance in scene.state.instances.values() if instance.state == "placed"]:
        for hold in scene.state.backfill_reservations.values():
            assert hold.shadow_ms <= kept.setdefault(hold.instance, hold.shadow_ms)
        for instance in live:
            assert instance.since_ms <= kept.get(instance.key, instance.since_ms)
        ends = {
            instance.key: instance.since_ms + scene.state.workloads[instance.workload].policy.timeout_ms
            for instance in live
        }
        first = min(ends.values())
        scene.wait(f"{first - scene.now}ms")
        scene.ended(*(key for key, end_ms in ends.items() if end_ms == first))
    assert {instance.state for instance in scene.state.instances.values()} == {"succeeded"}
    assert len(scene.state.instances) == len(runs)


def reserve(scene: Scene, name: str, project: str, *nodes: str, start: int = 0, end: int = 0, count: int = 0) -> str:
    done = scene.step(Reserve(1, Reservation(name, project, nodes, start, end), count))
    return str(outcome(done).get("replies"))


def test_reserved_nodes_are_for_one_project_only() -> None:
    scene = Scene("a", "b", cpu=2)
    reserve(scene, "r", "red", "a")
    scene.submit(job("x", project="blue", count=4), job("y", project="red", count=2))
    assert scene.state.project_usage["blue"]["instances"] == 2
    assert {instance.node for instance in scene.state.allocated["a"].values()} == {"a"}
    assert all(instance.workload == "red/y" for instance in scene.state.allocated["a"].values())
    scene.step(Unset(1, "reservation", "r"))
    scene.ended("red/y.0")
    assert scene.state.project_usage["blue"]["instances"] == 3


def test_before_a_reservation_begins_only_instances_gone_in_time_come_and_then_the_others_go() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("old", project="blue"))
    reserve(scene, "r", "red", "a", start=scene.now + 600_000, end=scene.now + 1_200_000)
    scene.submit(job("quick", project="blue", timeout="5m"), job("slow", project="blue", timeout="15m"))
    assert scene.states("blue/quick.0") == ["placed"] and "blue/slow.0" not in scene.state.instances
    scene.ended("blue/quick.0")
    for _ in range(10):
        scene.wait("1m")
    assert scene.states("blue/old.0") == ["stopping"]
    assert scene.instance("blue/old.0").reason == NodeReserved("a", ProjectRef("red"))
    scene.stopped("blue/old.0")
    assert scene.states("blue/old.0") == ["queued"]
    for _ in range(10):
        scene.wait("1m")
    assert scene.states("blue/old.0", "blue/slow.0") == ["placed", "placed"] and not scene.state.reservations


def test_a_reservation_survives_a_restart() -> None:
    scene = Scene("a", cpu=4)
    reserve(scene, "r", "red", "a")
    scene.restart()
    scene.hello("a", cpu=4)
    scene.submit(job("x", project="blue"))
    assert "blue/x.0" not in scene.state.instances


def test_a_reservation_that_is_asked_for_twice_is_there_once() -> None:
    scene = Scene("a", "b", cpu=4)
    assert reserve(scene, "r", "red", count=1) == "['r']"
    assert "409 name_in_use" in reserve(scene, "r", "red", count=1)
    assert list(scene.state.reservations) == ["r"] and len(scene.state.reservations["r"].nodes) == 1
    scene.submit(job("x", project="blue", count=8))
    assert scene.state.project_usage["blue"]["instances"] == 4, "one node is kept, the other is not"


def test_nodes_are_chosen_where_only_a_number_is_given_and_no_reservation_gets_them_twice() -> None:
    scene = Scene("a", "b", "c", cpu=4)
    scene.submit(job("x", project="blue"))
    assert reserve(scene, "r", "red", count=2) == "['r']"
    assert scene.state.reservations["r"].nodes == ("b", "c")
    assert "insufficient_resources" in reserve(scene, "s", "red", count=2)
    assert "reserved by r" in reserve(scene, "s", "red", "b")
    assert "there is no node z" in reserve(scene, "s", "red", "z")
    assert "name_in_use" in reserve(scene, "r", "red", "a")


def test_least_slack_first_within_a_priority() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("busy"))
    scene.submit(job("none"), job("later", deadline="2h", expected="10m"), job("soon", deadline="1h"))
    scene.submit(job("tight", deadline="90m", expected="80m"), job("first", priority=60))
    ran = []
    scene.ended("busy.0")
    while live := [key for key, instance in scene.state.instances.items() if instance.state == "placed"]:
        ran += live
        scene.ended(*live)
    assert ran == [f"default/{name}.0" for name in ("first", "tight", "soon", "later", "none")]


def test_a_deadline_that_cannot_be_met_now_ends_at_once_with_the_arithmetic() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("busy"))
    scene.submit(job("long", deadline="30m", expected="20m"), job("never", deadline="5m", expected="10m"))
    assert scene.counts("never") == {"expired": 1}
    assert scene.counts("long") == {"queued": 1}
    for _ in range(10):
        scene.wait("1m")
    assert scene.counts("long") == {"expired": 1}
    assert scene.state.workloads["default/long"].reason == DeadlineUnreachable(20 * 60_000, 20 * 60_000)
