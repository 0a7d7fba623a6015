"""Preemption where instances are stopping already: their room counts, and it is reserved for the head."""

from hypothesis import given
from hypothesis import strategies as st

from roost.model.events import SetProject
from roost.model.records.project import Project
from tests.core.scene import Scene, job, service


def stopping(scene: Scene) -> list[str]:
    return sorted(instance.key for instance in scene.state.instances.values() if instance.state == "stopping")


def scene_with_stopping(*others: dict[str, object], cpu: int, grace: str = "10s", stopping_cpu: int = 1) -> Scene:
    """A node `a` that is full, and on which a cancelled service has not ended yet."""
    scene = Scene("a", cpu=cpu)
    scene.submit(service("leaving", priority=90, grace=grace, resources={"cpu": stopping_cpu}), *others)
    scene.running(*(instance.key for instance in scene.state.instances.values()))
    scene.cancel("leaving")
    assert stopping(scene) == ["default/leaving.0"]
    return scene


def test_preempted_instances_do_not_return_while_the_head_waits_for_another_one_to_stop() -> None:
    low = job("low", count=2, priority=10, resources={"cpu": "500m"})
    scene = scene_with_stopping(job("busy", count=2, priority=90), low, cpu=4)
    scene.submit(job("head", priority=50, resources={"cpu": 2}))
    assert stopping(scene) == ["default/leaving.0", "default/low.0", "default/low.1"]
    scene.stopped("low.0", "low.1")
    assert scene.states("low.0", "low.1") == ["queued", "queued"], "or they would be stopped again, without end"
    scene.wait("1s")
    assert scene.states("low.0", "low.1") == ["queued", "queued"]
    scene.stopped("leaving.0")
    assert scene.states("head.0", "low.0", "low.1") == ["placed", "queued", "queued"]
    assert scene.state.preemptions == 2


def test_an_instance_that_is_stopping_makes_room_enough_and_none_is_preempted() -> None:
    scene = scene_with_stopping(job("low", priority=10), cpu=3, stopping_cpu=2)
    scene.submit(job("head", priority=50, resources={"cpu": 2}), job("thief", priority=20))
    assert stopping(scene) == ["default/leaving.0"]
    scene.stopped("leaving.0")
    assert scene.states("head.0", "low.0") == ["placed", "running"]
    assert (scene.counts("thief"), scene.state.preemptions) == ({"queued": 1}, 0)


def test_a_gang_counts_the_room_of_instances_that_are_stopping() -> None:
    scene = scene_with_stopping(job("low", count=2, priority=10), cpu=3)
    scene.submit(job("mpi", count=2, gang=True, priority=90))
    assert stopping(scene) == ["default/leaving.0", "default/low.1"]
    scene.stopped("low.1")
    assert scene.states("low.0", "low.1") == ["running", "queued"]
    scene.stopped("leaving.0")
    assert scene.counts("mpi") == {"placed": 2} and scene.state.preemptions == 1


def test_a_reclaimed_instance_of_higher_priority_does_not_return_while_the_owner_waits() -> None:
    scene = Scene("a", cpu=4)
    for name, quota in (("red", 1_000), ("blue", 2_000)):
        scene.step(SetProject(1, Project(name, quota={"cpu": quota}, borrow=True)))
    scene.submit(service("leaving", priority=90), job("borrower", project="red", count=3, priority=90))
    scene.running("leaving.0", *(f"red/borrower.{index}" for index in range(3)))
    scene.cancel("leaving")
    scene.submit(job("owner", project="blue", priority=10, resources={"cpu": 2}))
    assert stopping(scene) == ["default/leaving.0", "red/borrower.2"]
    scene.stopped("red/borrower.2")
    scene.wait("1s")
    assert scene.states("red/borrower.2") == ["queued"]
    scene.stopped("leaving.0")
    assert scene.states("blue/owner.0", "red/borrower.2") == ["placed", "queued"]
    assert scene.state.preemptions == 1


def test_a_long_grace_is_not_waited_for() -> None:
    scene = scene_with_stopping(cpu=1, grace="10m")
    scene.hello("b", cpu=1)
    scene.submit(job("low", priority=10))
    scene.submit(job("head", priority=50))
    assert stopping(scene) == ["default/leaving.0", "default/low.0"]


def test_an_instance_that_outlasts_its_grace_is_waited_for_no_longer() -> None:
    scene = scene_with_stopping(cpu=1)
    scene.hello("b", cpu=1)
    scene.submit(job("low", priority=10))
    scene.submit(job("head", priority=50))
    assert stopping(scene) == ["default/leaving.0"]
    for _ in range(41):
        scene.wait("1s")
    assert stopping(scene) == ["default/leaving.0", "default/low.0"]


def test_a_preempted_instance_that_outlasts_its_grace_is_waited_for_no_longer() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("low", count=2, priority=10))
    scene.submit(job("head", priority=50))
    assert stopping(scene) == ["default/low.1"]
    for _ in range(41):
        scene.wait("1s")
    assert stopping(scene) == ["default/low.0", "default/low.1"]
    scene.stopped("low.0")
    assert scene.states("head.0", "low.0") == ["placed", "queued"]


def test_a_head_does_not_wait_on_a_node_that_is_drained() -> None:
    scene = scene_with_stopping(cpu=1)
    scene.hello("b", cpu=1)
    scene.submit(job("low", priority=10))
    scene.submit(job("head", priority=50))
    scene.drain("a")
    scene.wait("31s")
    assert stopping(scene) == ["default/leaving.0", "default/low.0"]


WORK = st.tuples(st.sampled_from((0, 30, 60, 90)), st.integers(1, 4), st.sampled_from(("", "1s", "1h")))


@given(st.lists(WORK, min_size=2, max_size=10), st.integers(0, 3))
def test_preemption_comes_to_rest_while_some_instances_take_long_to_stop(
    work: list[tuple[int, int, str]], slow: int
) -> None:
    scene = Scene("a", "b", cpu=4, backfill_after_ms=0)
    for number, (priority, cpu, timeout) in enumerate(work):
        limit = {"timeout": timeout} if timeout else {}
        scene.submit(job(f"j{number}", priority=priority, resources={"cpu": f"{cpu * 500}m"}, **limit))
        if number == slow:
            scene.running(*(key for key, instance in scene.state.instances.items() if instance.state == "placed"))
            scene.cancel(f"j{number // 2}")
    late = {f"default/j{slow // 2}.0"}
    for _ in range(8):
        if not (quick := [key for key in stopping(scene) if key not in late]):
            break
        scene.stopped(*quick)
    assert set(stopping(scene)) <= late, "it comes to rest"
