"""Ways back, and what comes between: a rollback is a change like any other, and a workload that is stopped stays so."""

from typing import Any

from roost.model.events import Maintain, Promote, Rollback
from roost.model.reasons.reason import RolledBack, VersionApplied
from tests.core.scene import Scene, job, outcome, service
from tests.core.services.test_rollout import Service


def back(it: Service, version: int = 0) -> str:
    (reply,) = outcome(it.scene.step(Rollback(1, "default/web", version)))["replies"]
    return reply


def all_done(it: Service) -> None:
    it.roll()
    it.obey()
    it.scene.wait("2s")


def test_back_to_a_version_that_had_more_replicas() -> None:
    it = Service(count=4)
    it.count = 2
    it.apply()
    all_done(it)
    assert it.versions() == [2, 2]
    assert back(it) == "web"
    all_done(it)
    assert (it.versions(), it.now.rollout.state) == ([3] * 4, "done")


def test_a_service_that_is_cancelled_while_it_is_updated_stays_so() -> None:
    it = Service(max_surge=1)
    it.apply(command="serve 2")
    it.scene.cancel("web")
    for _ in range(5):
        it.obey()
        it.scene.wait("2s")
    assert it.scene.counts("web") == {"cancelled": 4}
    assert it.now.finished_ms
    assert "default/web" not in it.scene.state.reconciling


def test_what_is_being_stopped_or_is_over_does_not_go_back() -> None:
    it = Service()
    it.apply(command="serve 2")
    it.roll()
    it.scene.cancel("web")
    assert back(it).startswith("409 name_in_use: name: default/web is being stopped")
    for _ in range(3):
        it.obey()
    assert back(it) == "409 is_over: default/web is over; apply it again to start it"
    assert it.scene.counts("web") == {"cancelled": 4}


def test_an_array_goes_back_only_if_it_has_not_begun_more() -> None:
    scene = Scene("a", cpu=8)
    scene.submit(job("array", count=4))
    scene.apply(job("array", count=5))
    (reply,) = outcome(scene.step(Rollback(1, "default/array")))["replies"]
    assert reply == "409 cannot_change: count: 5 instances of default/array have begun; there cannot be fewer"


def test_a_pending_element_of_a_job_goes_back_too() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("array", count=3, command="one"))
    scene.apply(job("array", count=3, command="two"))
    scene.step(Rollback(1, "default/array"))
    scene.ended("array.0")
    scene.ended("array.1")
    scene.ended("array.2")
    assert [scene.instance(f"array.{index}").version for index in range(3)] == [1, 3, 3]


def test_time_in_which_no_server_led_is_not_held_against_a_version() -> None:
    it = Service()
    it.apply(command="serve 2")
    it.obey()
    it.scene.now += 3_600_000
    it.scene.restart()
    it.scene.step()
    for node in ("a", "b"):
        it.scene.hello(
            node, *[instance.key.removeprefix("default/") for instance in it.instances() if instance.node == node]
        )
    all_done(it)
    assert (it.now.rollout.state, it.versions(), it.now.change) == ("done", [2] * 4, VersionApplied())


def test_neither_is_maintenance() -> None:
    it = Service()
    it.apply(command="serve 2")
    it.scene.step(Maintain(1, True, "new switches"))
    for _ in range(20):
        it.scene.wait("1m")
    it.scene.step(Maintain(1, False))
    all_done(it)
    assert (it.now.rollout.state, it.versions(), it.now.change) == ("done", [2] * 4, VersionApplied())


def test_no_rollback_goes_to_what_has_failed_without_naming_it() -> None:
    it = Service(failures=2)
    it.apply(command="crash")
    it.roll(bad=2)
    it.roll()
    assert it.now.version == 3
    message = "default/web has no version to go back to: none that it had was another one, and good; name one"
    assert back(it) == f"404 no_such_version: {message}"
    assert back(it, 2) == "web"
    assert it.now.change == RolledBack(2)


def test_to_end_well_is_no_failure_where_it_may_end() -> None:
    def once(command: str) -> dict[str, Any]:
        fields = {"restart": {"when": "on_failure"}, "update": {"failures": 1, "max_unavailable": 1}}
        return service("web", count=2, command=command, resources={"cpu": "100m"}, **fields)

    scene = Scene("a")
    scene.submit(once("one"))
    scene.running("web.0", "web.1")
    scene.wait("2s")
    scene.apply(once("two"))
    scene.stopped("web.0")
    scene.running("web.0")
    scene.ended("web.0", code=0)
    scene.wait("2s")
    assert (scene.state.workloads["default/web"].version, scene.states("web.1")) == (2, ["stopping"])


def test_the_version_to_go_back_to_is_kept_however_many_came_since() -> None:
    it = Service(count=2, max_unavailable=2, failures=1)
    for number in range(14):
        it.apply(command=f"serve {number + 2}")
    it.obey()
    it.apply(command="crash")
    it.roll(bad=it.now.version)
    it.roll()
    assert isinstance(it.now.change, RolledBack) and it.now.change.cause is not None
    assert it.versions() == [it.now.version] * 2


def test_a_node_is_lost_in_the_middle_and_no_instance_passes_the_surge() -> None:
    it = Service("a", "b", "c", count=6, max_unavailable=0, max_surge=2)
    it.apply(command="serve 2")
    it.obey()
    for _ in range(4):
        it.scene.wait("2s", silent="a")
    all_done(it)
    it.obey()
    assert it.versions() == [2] * 6
    assert it.most <= 8


def test_other_replicas_and_another_version_at_once() -> None:
    it = Service(count=2)
    it.count = 5
    it.apply(command="serve 2")
    all_done(it)
    assert it.versions() == [2] * 5
    it.count = 0
    it.apply(command="serve 3")
    all_done(it)
    all_done(it)
    assert it.versions() == []
    it.count = 3
    it.apply(command="serve 3")
    all_done(it)
    assert (it.versions(), it.now.rollout.state) == ([4] * 3, "done")


def test_canaries_are_rolled_back_by_hand_or_followed_by_others() -> None:
    it = Service(count=4, canary=1)
    it.apply(command="serve 2")
    it.roll()
    it.apply(command="serve 3")
    it.roll()
    assert (it.now.rollout.state, it.versions()) == ("waiting", [3, 1, 1, 1])
    assert back(it) == "web"
    all_done(it)
    assert (it.now.change, it.versions()) == (RolledBack(1), [4] * 4)
    (reply,) = outcome(it.scene.step(Promote(1, "default/web")))["replies"]
    assert reply.startswith("409 nothing_to_promote")


def test_another_stderr_needs_a_restart() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.running("web.0")
    scene.apply(service("web", labels={"team": "x"}))
    assert scene.states("web.0") == ["running"]
    scene.apply(service("web", labels={"team": "x"}, stderr="separate"))
    assert scene.states("web.0") == ["stopping"]
