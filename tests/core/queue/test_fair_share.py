"""Projects in the queue: fair shares by weight, quotas that are never passed, borrowing and taking back."""

from roost.model.events import SetPool, SetProject, Unset
from roost.model.reasons.attempts import Preempted
from roost.model.reasons.subjects import ProjectRef
from roost.model.records.project import Pool, Project
from tests.core.scene import Scene, job, outcome, service


def set_project(scene: Scene, name: str, **fields: object) -> None:
    scene.step(SetProject(1, Project(name, **fields)))  # type: ignore[arg-type]


def running(scene: Scene, project: str) -> int:
    return scene.state.project_usage.get(project, {}).get("instances", 0)


def test_two_projects_that_want_everything_get_half_each() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("many", project="red", count=20))
    assert running(scene, "red") == 8
    scene.submit(job("other", project="blue", count=20))
    for _ in range(8):
        first = min(
            (instance for instance in scene.state.instances.values() if instance.state == "placed"),
            key=lambda x: x.token,
        )
        scene.ended(first.key)
    assert (running(scene, "red"), running(scene, "blue")) == (4, 4)


def test_a_weight_of_three_gets_three_times_as_much() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "blue", weight=3)
    scene.submit(job("r", project="red", count=20), job("b", project="blue", count=20))
    assert (running(scene, "red"), running(scene, "blue")) == (2, 6)


def test_priority_comes_before_the_share() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("r", project="red", count=2, priority=60), job("b", project="blue"))
    assert (running(scene, "red"), running(scene, "blue")) == (2, 0)


def test_the_share_is_of_whatever_is_scarcest() -> None:
    scene = Scene("a", cpu=8)  # and 16 GiB
    scene.submit(
        job("m", project="red", count=9, resources={"cpu": 1, "memory": "4GiB"}),
        job("c", project="blue", count=9, resources={"cpu": 2}),
    )
    assert (running(scene, "red"), running(scene, "blue")) == (4, 2), "a quarter of the memory is as much as of the cpu"


def test_a_quota_is_never_passed_and_the_rest_waits_with_words() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "red", quota={"cpu": 3_000})
    scene.submit(job("many", project="red", count=5))
    assert running(scene, "red") == 3
    scene.submit(job("b", project="blue", count=9))
    assert running(scene, "blue") == 5, "no other instance is held up"
    scene.ended("red/many.0")
    assert running(scene, "red") == 3


def test_a_raised_quota_lets_the_rest_run_at_once() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "red", quota={"instances": 1})
    scene.submit(job("many", project="red", count=3))
    assert running(scene, "red") == 1
    set_project(scene, "red", quota={"instances": 2})
    assert running(scene, "red") == 2
    scene.step(Unset(1, "project", "red"))
    assert running(scene, "red") == 3


def test_quota_ten_three_asked_counted_two_and_four_asked_refused_whole_disabled_counted_only() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "ten", quota={"instances": 10})
    set_project(scene, "two", quota={"instances": 2})
    set_project(scene, "off", quota={"instances": 1}, counted=True)
    scene.submit(service("web", project="ten", count=3))
    assert running(scene, "ten") == 3
    done = scene.submit(service("web", project="two", count=4))
    assert "quota_exceeded" in str(outcome(done)["replies"]) and "two/web" not in scene.state.workloads
    scene.submit(service("web", project="off", count=4))
    assert running(scene, "off") == 4


def test_one_instance_larger_than_the_quota_is_refused_for_it_could_never_run() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "red", quota={"cpu": 1_000})
    done = scene.submit(job("big", project="red", resources={"cpu": 2}))
    assert "quota_exceeded" in str(outcome(done)["replies"])


def test_an_instance_that_may_borrow_uses_what_others_leave_and_gives_it_back() -> None:
    scene = Scene("a", cpu=4)
    set_project(scene, "red", quota={"cpu": 2_000}, borrow=True)
    set_project(scene, "blue", quota={"cpu": 2_000}, borrow=True)
    scene.submit(job("many", project="red", count=9))
    assert running(scene, "red") == 4, "two of its own and two of blue's"
    done = scene.submit(job("mine", project="blue", count=2))
    stopping = [instance.key for instance in scene.state.instances.values() if instance.state == "stopping"]
    assert len(stopping) == 1 and outcome(done)["orders"] == ["a: stop (preempted)"]
    reason = scene.instance(stopping[0]).reason
    assert isinstance(reason, Preempted) and reason.over_quota == ProjectRef("red")
    scene.stopped(*stopping)
    assert running(scene, "blue") == 1
    stopping = [instance.key for instance in scene.state.instances.values() if instance.state == "stopping"]
    scene.stopped(*stopping)
    assert (running(scene, "red"), running(scene, "blue")) == (2, 2)
    assert not [instance for instance in scene.state.instances.values() if instance.state == "stopping"]


def test_no_instance_borrows_more_than_all_quotas_together() -> None:
    scene = Scene("a", cpu=8)
    set_project(scene, "red", quota={"cpu": 2_000}, borrow=True)
    set_project(scene, "blue", quota={"cpu": 1_000})
    scene.submit(job("many", project="red", count=9))
    assert running(scene, "red") == 3


def test_a_pool_may_promise_more_than_there_is_and_choose_its_own_strategy() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.step(SetPool(1, Pool("default", "best_fit", {"cpu": 200})))
    scene.submit(job("j", count=8, placement={"pool": "default"}))
    assert scene.counts("j") == {"placed": 8}
    assert scene.instance("j.1").node == scene.instance("j.0").node, "best_fit, not least_loaded"


def test_what_is_set_survives_a_restart() -> None:
    scene = Scene("a", cpu=4)
    set_project(scene, "red", quota={"cpu": 1_000}, weight=2)
    scene.step(SetPool(1, Pool("default", "", {"cpu": 150})))
    scene.restart()
    assert scene.state.projects["red"].weight == 2
    assert scene.state.fleet.total["cpu"].tolist() == [6_000]


def test_what_is_taken_back_is_not_borrowed_again_by_an_instance_that_comes_before() -> None:
    scene = Scene("a", cpu=2)
    set_project(scene, "red", quota={"cpu": 1_000}, borrow=True)
    set_project(scene, "blue", quota={"cpu": 1_000}, borrow=True)
    scene.submit(job("high", project="red", count=5, priority=90))
    scene.submit(job("low", project="blue", priority=10))
    stopping = [instance.key for instance in scene.state.instances.values() if instance.state == "stopping"]
    assert len(stopping) == 1
    scene.stopped(*stopping)
    assert (running(scene, "red"), running(scene, "blue")) == (1, 1)
    assert not [instance for instance in scene.state.instances.values() if instance.state == "stopping"]


def test_nothing_is_taken_back_on_a_node_that_is_reserved_for_an_earlier_line() -> None:
    """None could be reserved for the owner: the borrower got the room again, and was stopped again, without end."""
    scene = Scene("a", cpu=4, backfill_after_ms=0)
    set_project(scene, "red", quota={"cpu": 1_000}, borrow=True)
    set_project(scene, "blue", quota={"cpu": 1_000})
    scene.submit(job("long", resources={"cpu": 2}, expected="1h", preemptible=False))
    scene.submit(job("borrower", project="red", count=2, priority=90, expected="2h"))
    scene.running("long.0", "red/borrower.0", "red/borrower.1")
    scene.submit(job("earlier", resources={"cpu": 3}, priority=60))
    (reservation,) = scene.state.backfill_reservations.values()
    assert (reservation.instance, reservation.extra["cpu"]) == ("default/earlier.0", 1_000)
    scene.submit(job("owner", project="blue", priority=50))
    for _ in range(3):
        stopping = [instance.key for instance in scene.state.instances.values() if instance.state == "stopping"]
        scene.stopped(*stopping)
    assert scene.states("red/borrower.0", "red/borrower.1") == ["running", "running"]
    assert [scene.instance(f"red/borrower.{index}").attempt for index in range(2)] == [1, 1]
    scene.ended("long.0")
    assert (scene.states("blue/owner.0"), scene.counts("earlier")) == (["placed"], {"queued": 1})
