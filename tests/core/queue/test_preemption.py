"""Preemption: who matters more by a margin takes the smallest sufficient set; what is freed is kept; no cycles."""

from hypothesis import given
from hypothesis import strategies as st

from tests.core.scene import Scene, job, outcome, service


def stopping(scene: Scene) -> list[str]:
    return sorted(instance.key for instance in scene.state.instances.values() if instance.state == "stopping")


def test_an_instance_that_matters_more_by_the_margin_stops_one_that_matters_less() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", count=2, priority=40))
    done = scene.submit(job("high", priority=60))
    assert stopping(scene) == ["default/low.1"], "the youngest of equal ones"
    assert outcome(done)["orders"] == ["a: stop (preempted)"]
    scene.stopped("low.1")
    assert scene.states("high.0", "low.1") == ["placed", "queued"]
    assert scene.instance("low.1").losses == scene.instance("low.1").failures == 0


def test_below_the_margin_or_not_preemptible_no_instance_is_stopped() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", priority=40), job("vital", priority=0, preemptible=False))
    scene.submit(job("high", priority=59))
    assert stopping(scene) == []


def test_one_large_victim_rather_than_two_small_ones() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("s1", priority=10), job("s2", priority=10), job("large", priority=30, resources={"cpu": 2}))
    scene.submit(job("high", priority=60, resources={"cpu": 2}))
    assert stopping(scene) == ["default/large.0"]


def test_the_node_on_which_fewest_have_to_go() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("small", count=2, priority=10, placement={"require": ["name == 'a'"]}))
    scene.submit(job("wide", priority=10, resources={"cpu": 2}))
    scene.submit(job("high", priority=90, resources={"cpu": 2}))
    assert stopping(scene) == ["default/wide.0"]


def test_what_is_freed_is_kept_for_the_instance_that_caused_it() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", count=2, priority=10))
    scene.submit(job("high", priority=90, resources={"cpu": 2}))
    assert stopping(scene) == ["default/low.0", "default/low.1"]
    scene.submit(job("thief", priority=50))
    scene.stopped("low.0")
    assert scene.counts("thief") == {"queued": 1}, "half of the room is there, but not for it"
    scene.stopped("low.1")
    assert scene.states("high.0") == ["placed"] and scene.counts("thief") == {"queued": 1}


def test_the_room_stays_kept_over_a_restart() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", count=2, priority=10))
    scene.submit(job("high", priority=90, resources={"cpu": 2}))
    scene.submit(job("thief", priority=50))
    runs = [scene.as_ordered("low.0"), scene.as_ordered("low.1")]
    scene.restart()
    scene.hello("a", *runs, cpu=2)
    scene.stopped("low.0")
    assert scene.counts("thief") == {"queued": 1}
    scene.stopped("low.1")
    assert scene.states("high.0") == ["placed"]


def test_a_gang_is_taken_whole() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("mpi", count=2, gang=True, priority=10))
    scene.submit(job("high", priority=90))
    assert stopping(scene) == ["default/mpi.0", "default/mpi.1"]
    scene.stopped("mpi.0", "mpi.1")
    assert scene.states("high.0", "mpi.0", "mpi.1") == ["placed", "queued", "queued"]


def test_a_cancelled_preemptor_leaves_the_room_to_others() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", count=2, priority=10))
    scene.submit(job("high", priority=90, resources={"cpu": 2}))
    scene.submit(job("other", priority=20))
    scene.stopped("low.0")
    scene.cancel("high")
    assert scene.states("other.0") == ["placed"]


def test_devices_and_ports_are_freed_too() -> None:
    scene = Scene(cpu=8)
    scene.hello("g", cpu=8, more={"gpu": 2_000})
    scene.submit(job("train", count=2, priority=10, resources={"cpu": 1, "gpu": 1}))
    scene.submit(job("urgent", priority=90, resources={"cpu": 1, "gpu": "500m"}))
    assert stopping(scene) == ["default/train.1"]
    scene.submit(service("old", priority=10, ports={"http": 80}))
    scene.submit(service("new", priority=90, ports={"http": 80}))
    assert "default/old.0" in stopping(scene)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 3)), min_size=2, max_size=12))
def test_an_instance_that_was_preempted_never_preempts_its_preemptor_back(wanted: list[tuple[int, int]]) -> None:
    scene = Scene("a", "b", cpu=3)
    for number, (priority, cpu) in enumerate(wanted):
        scene.submit(job(f"j{number}", priority=priority, resources={"cpu": cpu}))
        for key in stopping(scene):
            scene.stopped(key)
    for _ in range(40):
        if not (left := stopping(scene)):
            break
        scene.stopped(*left)
    assert scene.state.preemption_cycles == 0
    assert not stopping(scene), "it comes to rest"
    holding = {instance.workload: instance for instance in scene.state.instances.values() if instance.state == "placed"}
    for key, workload in scene.state.workloads.items():
        if key not in holding:
            least = min((scene.state.workloads[state].policy.priority for state in holding), default=100)
            assert workload.policy.priority < least + 20 or workload.policy.ask.resources[0][1] > 1_000


def test_for_a_gang_all_that_have_to_go_are_stopped_or_none() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("low", count=3, priority=10), job("vital", priority=10, preemptible=False))
    scene.submit(job("huge", count=2, gang=True, priority=90, resources={"cpu": 2}))
    assert stopping(scene) == [], "one of them would not come in, so none is stopped"
    scene.cancel("huge")
    scene.submit(job("mpi", count=3, gang=True, priority=90))
    assert stopping(scene) == ["default/low.0", "default/low.1", "default/low.2"]
    scene.submit(job("thief", priority=50))
    scene.stopped("low.0")
    assert scene.counts("thief") == {"queued": 1}, "the room is kept for the gang"
    scene.stopped("low.1", "low.2")
    assert scene.counts("mpi") == {"placed": 3} and scene.counts("thief") == {"queued": 1}


def test_a_gang_uses_what_is_free_before_it_stops_any_instance() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("low", count=3, priority=10))
    scene.submit(job("mpi", count=2, gang=True, priority=90))
    assert len(stopping(scene)) == 1
    scene.stopped(*stopping(scene))
    assert scene.counts("mpi") == {"placed": 2}


def test_room_that_is_made_is_kept_also_where_another_instance_only_waits_for_a_place() -> None:
    scene = Scene("a", cpu=4, backfill_after_ms=0)
    scene.submit(service("base", priority=90), job("brief", priority=90, timeout="1h", resources={"cpu": "500m"}))
    scene.submit(service("low", count=3, priority=10, resources={"cpu": "500m"}, grace="1s"))
    scene.running("low.0", "low.1", "low.2")
    scene.submit(job("patient", priority=10, resources={"cpu": "1500m"}))
    assert [backfill_reservation.instance for backfill_reservation in scene.state.backfill_reservations.values()] == [
        "default/patient.0"
    ]
    scene.submit(job("high", priority=60, resources={"cpu": 2}))
    assert stopping(scene) == ["default/low.1", "default/low.2"]
    scene.stopped("low.2")
    assert scene.states("low.2") == ["queued"], "or it would be stopped again, forever"
    scene.stopped("low.1")
    assert scene.states("high.0") == ["placed"]


def test_a_short_job_does_not_take_the_room_before_the_grace_of_the_stopped_has_passed() -> None:
    scene = Scene("a", cpu=3)
    scene.submit(service("low", count=3, priority=50, grace="3s"))
    scene.running("low.0", "low.1", "low.2")
    scene.submit(job("high", priority=90, resources={"cpu": 3}), job("short", count=2, priority=10, timeout="1s"))
    assert stopping(scene) == ["default/low.0", "default/low.1", "default/low.2"]
    scene.stopped("low.1")
    assert scene.counts("short") == {"queued": 2}, "or it would be stopped at once, and again and again"
    scene.stopped("low.0", "low.2")
    assert scene.states("high.0") == ["placed"]


def test_short_jobs_take_only_what_the_preemptor_leaves_over() -> None:
    scene = Scene("a", cpu=5)
    scene.submit(service("low", count=2, priority=50, grace="3s", resources={"cpu": 2}))
    scene.submit(job("high", priority=90, resources={"cpu": 4}))
    assert stopping(scene) == ["default/low.0", "default/low.1"]
    scene.submit(job("short", count=3, priority=10, timeout="1s"))
    scene.stopped("low.0")
    assert scene.counts("short") == {"placed": 1, "queued": 2}
    scene.stopped("low.1")
    assert scene.states("high.0") == ["placed"]


def test_a_preemptor_uses_what_another_leaves_over_before_it_stops_more() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("large", priority=10, resources={"cpu": 2}), job("small", count=2, priority=30))
    scene.submit(job("first", priority=90))
    scene.submit(job("second", priority=80))
    assert stopping(scene) == ["default/large.0"], "it has room for both"
    scene.stopped("large.0")
    assert scene.states("first.0", "second.0") == ["placed", "placed"]
