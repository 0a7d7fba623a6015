"""Updates of services: a new version comes in within its limits, waits for a word, fails and goes back."""

from typing import Any

import pytest

from roost.core.state.versions import versions_of
from roost.model.events import Promote, Rollback
from roost.model.reasons.attempts import ExitCode
from roost.model.reasons.reason import RolledBack, RolloutFailures, RolloutStalled, VersionApplied
from roost.model.reasons.subjects import HealthEvidence
from roost.model.states import ALLOCATED
from tests.core.scene import Scene, job, outcome, service


def web(count: int = 4, command: str = "serve 1", **update: Any) -> dict[str, Any]:
    fields = {"update": {"max_unavailable": 1, **update}} if update or count else {}
    return service("web", count=count, command=command, resources={"cpu": "100m"}, **fields)


class Service:
    """A service whose agents do at once what they are ordered. Its floor and ceiling are watched at every step."""

    def __init__(self, *nodes: str, count: int = 4, **update: Any) -> None:
        self.scene = Scene(*(nodes or ("a", "b")))
        self.count, self.update = count, update
        self.fewest, self.most = count, 0
        self.scene.submit(web(count, **update))
        self.obey()
        self.scene.wait("2s")

    @property
    def now(self) -> Any:
        return self.scene.state.workloads["default/web"]

    def instances(self) -> list[Any]:
        return [instance for instance in self.scene.state.instances.values() if instance.workload == "default/web"]

    def apply(self, **fields: Any) -> None:
        self.scene.apply(web(self.count, **(self.update | fields)))
        self.watch()

    def obey(self, bad: int = 0) -> None:
        """Agents start and stop what they were ordered to; version `bad` ends as soon as it runs."""
        for instance in self.instances():
            name = instance.key.removeprefix("default/")
            if instance.state in ("placed", "starting"):
                self.scene.running(name)
                if instance.version == bad:
                    self.scene.ended(name, code=1)
            elif instance.state == "stopping":
                self.scene.stopped(name)
        self.watch()

    def watch(self) -> None:
        serving = sum(bool(instance.ready_since_ms) for instance in self.instances())
        self.fewest = min(self.fewest, serving)
        self.most = max(self.most, sum(instance.state in ALLOCATED for instance in self.instances()))

    def roll(self, rounds: int = 40, bad: int = 0) -> None:
        for _ in range(rounds):
            self.obey(bad)
            self.scene.wait("2s")
            if self.now.rollout is None or self.now.rollout.state not in ("rolling",):
                break

    def versions(self) -> list[int]:
        return [instance.version for instance in sorted(self.instances(), key=lambda instance: instance.index)]


def test_a_changed_document_makes_a_new_version_that_comes_in_one_after_the_other() -> None:
    it = Service()
    it.apply(command="serve 2")
    assert (it.now.version, it.now.change, it.now.rollout.state) == (2, VersionApplied(), "rolling")
    assert it.scene.states("web.0", "web.1") == ["stopping", "running"]
    it.roll()
    assert (it.now.rollout.state, it.now.rollout.done, it.versions()) == ("done", 4, [2, 2, 2, 2])
    assert (it.fewest, it.most) == (3, 4)
    assert "default/web" not in it.scene.state.reconciling


def test_with_a_surge_others_stand_in_and_no_instance_is_missing() -> None:
    it = Service(max_unavailable=0, max_surge=1)
    it.apply(command="serve 2")
    assert it.scene.states("web.4") == ["placed"] and it.scene.states("web.0") == ["running"]
    it.roll()
    assert (it.now.rollout.state, it.fewest, it.most) == ("done", 4, 5)
    assert it.scene.states("web.4") == ["stopping"]
    it.obey()
    assert it.versions() == [2, 2, 2, 2]
    assert "default/web.4" not in it.scene.state.instances


def test_shares_are_rounded_so_that_something_may_move() -> None:
    it = Service(count=10, max_unavailable="25%")
    it.apply(command="serve 2")
    assert [instance.state for instance in it.instances()].count("stopping") == 3
    it.roll()
    assert (it.now.rollout.state, it.fewest) == ("done", 7)


def test_what_needs_no_restart_is_taken_over_where_it_runs() -> None:
    it = Service()
    tokens = [instance.token for instance in it.instances()]
    done = it.scene.apply(web(4, max_unavailable=2) | {"priority": 70, "labels": {"team": "x"}, "grace": "3s"})
    assert not done.assignments
    assert (it.versions(), [instance.token for instance in it.instances()]) == ([2, 2, 2, 2], tokens)
    assert it.now.rollout.state == "done"
    assert it.scene.state.priorities == {70: 4}


def test_more_and_fewer() -> None:
    it = Service()
    it.count = 6
    it.apply()
    it.obey()
    assert it.versions() == [2] * 6
    it.count = 2
    it.apply()
    it.roll()
    it.obey()
    assert (it.versions(), it.now.rollout.state) == ([3, 3], "done")
    it.count = 4
    it.apply()
    it.obey()
    assert it.versions() == [4] * 4


def test_more_are_wanted_again_while_some_retire() -> None:
    it = Service(count=4)
    it.count = 2
    it.apply()
    it.scene.stopped("web.2")
    it.count = 4
    it.apply()
    it.roll()
    it.obey()
    assert it.versions() == [3] * 4
    assert it.scene.counts("web") == {"running": 4}


def test_canaries_wait_for_a_word() -> None:
    it = Service(canary=1)
    it.apply(command="serve 2")
    it.roll()
    assert (it.now.rollout.state, it.versions()) == ("waiting", [2, 1, 1, 1])
    it.scene.wait("1h")
    assert it.now.rollout.state == "waiting"
    assert outcome(it.scene.step(Promote(1, "default/web")))["replies"] == ["web"]
    it.roll()
    assert (it.now.rollout.state, it.versions()) == ("done", [2, 2, 2, 2])
    (reply,) = outcome(it.scene.step(Promote(1, "default/web")))["replies"]
    assert reply.startswith("409 nothing_to_promote")


def test_canaries_that_are_not_there_yet_are_not_promoted() -> None:
    it = Service(canary=1)
    it.apply(command="serve 2")
    (reply,) = outcome(it.scene.step(Promote(1, "default/web")))["replies"]
    assert reply.startswith("409 canaries_not_ready: 0 of 1 canaries")


def test_an_instance_that_is_lost_while_canaries_wait_comes_back_as_it_was() -> None:
    it = Service("a", "b", canary=1)
    it.apply(command="serve 2")
    it.roll()
    lost = next(instance for instance in it.instances() if instance.version == 1)
    for _ in range(4):
        it.scene.wait("2s", silent=lost.node)
    it.obey()
    assert sorted(it.versions()) == [1, 1, 1, 2]


def test_a_bad_version_goes_back_by_itself_and_says_why() -> None:
    it = Service(failures=2)
    good = {instance.index: instance.token for instance in it.instances()}
    it.apply(command="crash")
    it.roll(bad=2)
    it.roll()
    assert it.now.version == 3 and it.now.document == it.scene.state.versions["default/web@1"].document
    assert it.now.change == RolledBack(1, cause=RolloutFailures(2, 2, ExitCode(1)))
    assert (it.now.rollout.state, it.versions(), it.fewest) == ("done", [3, 3, 3, 3], 3)
    stayed = [instance.index for instance in it.instances() if instance.token == good[instance.index]]
    assert stayed == [1, 2, 3]


def test_a_version_that_never_gets_ready_goes_back_after_its_deadline() -> None:
    it = Service(deadline="30s")
    it.apply(command="serve 2")
    it.obey()
    for instance in it.instances():
        if instance.version == 2 and instance.state == "placed":
            it.scene.running(instance.key.removeprefix("default/"), ready=False, error="503")
    assert it.scene.instance("web.0").health_failure == HealthEvidence("", "", "503")
    for _ in range(20):
        it.scene.wait("2s")
    assert it.now.change == RolledBack(1, cause=RolloutStalled(2, 30_000, HealthEvidence("", "", "503")))
    it.roll()
    assert it.now.rollout.state == "done"


def test_without_a_way_back_it_stops_where_it_is() -> None:
    it = Service(failures=1, rollback=False)
    it.apply(command="crash")
    it.obey()
    it.obey(bad=2)
    it.scene.wait("5s")
    assert (it.now.rollout.state, it.versions()) == ("failed", [2, 1, 1, 1])
    it.apply(command="serve 3", rollback=False)
    it.roll()
    assert (it.now.version, it.now.rollout.state, it.versions()) == (3, "done", [3] * 4)


def test_what_failed_for_lack_of_time_and_comes_through_after_all_is_done() -> None:
    it = Service("a", count=1, max_unavailable=1, deadline="10s", rollback=False)
    it.apply(command="serve 2", rollback=False, deadline="10s")
    it.scene.stopped("web.0")
    it.scene.running("web.0", ready=False, error="not yet")
    for _ in range(6):
        it.scene.wait("2s")
    assert it.now.rollout.state == "failed"
    it.scene.running("web.0")
    it.scene.wait("2s")
    assert (it.now.rollout.state, it.now.rollout.done) == ("done", 1)
    assert "default/web" not in it.scene.state.reconciling


def test_what_failed_is_tried_again_when_it_is_applied_again() -> None:
    it = Service(failures=1, rollback=False)
    it.apply(command="serve 2", rollback=False)
    it.obey()
    it.obey(bad=2)
    assert it.now.rollout.state == "failed"
    it.apply(command="serve 2", rollback=False)
    it.scene.wait("5s")
    it.roll()
    assert (it.now.version, it.now.rollout.state, it.versions()) == (3, "done", [3] * 4)


def test_one_that_was_cancelled_and_comes_back_with_an_update_is_waited_for() -> None:
    it = Service(count=2, max_unavailable=1)
    it.scene.cancel("web.1")
    it.scene.stopped("web.1")
    it.apply(command="serve 2")
    assert it.scene.states("web.0", "web.1") == ["running", "placed"]
    it.roll()
    assert (it.now.rollout.state, it.versions()) == ("done", [2, 2])


def test_an_operator_wants_the_version_before() -> None:
    it = Service()
    it.apply(command="serve 2")
    it.roll()
    it.apply(command="serve 3")
    it.roll()
    assert outcome(it.scene.step(Rollback(1, "default/web")))["replies"] == ["web"]
    it.roll()
    assert (it.now.version, it.now.change) == (4, RolledBack(2))
    assert it.now.document == it.scene.state.versions["default/web@2"].document
    it.scene.step(Rollback(1, "default/web", 1))
    assert it.now.document == it.scene.state.versions["default/web@1"].document
    (reply,) = outcome(it.scene.step(Rollback(1, "default/web", 77)))["replies"]
    assert reply.startswith("404 no_such_version: default/web has no version 77 to go back to; those known are 1, 2, 3")


def test_one_that_was_cancelled_before_an_update_comes_back_as_the_new_version() -> None:
    it = Service(rollback=False)
    it.scene.cancel("web.3")
    it.scene.stopped("web.3")
    it.apply(command="serve 2", rollback=False, canary=1)
    it.roll()
    it.scene.step(Promote(1, "default/web"))
    it.roll()
    assert (it.versions(), it.scene.states("web.3")) == ([2, 2, 2, 2], ["running"])


def test_what_was_never_changed_has_no_way_back() -> None:
    it = Service()
    (reply,) = outcome(it.scene.step(Rollback(1, "default/web")))["replies"]
    assert reply == "404 no_such_version: default/web has no version to go back to: it was never changed"


def test_a_change_on_the_way_is_overtaken_by_another() -> None:
    it = Service(failures=2)
    it.apply(command="serve 2")
    it.obey()
    it.apply(command="crash")
    it.roll(bad=3)
    it.roll()
    assert isinstance(it.now.change, RolledBack) and it.now.change.version == 1
    assert it.versions() == [4] * 4


def test_only_so_many_versions_are_kept() -> None:
    it = Service(count=1)
    for number in range(14):
        it.apply(command=f"serve {number}")
        it.roll()
    assert len(versions_of(it.scene.state, it.now)) == 10


def test_a_rule_that_changes_moves_an_instance_that_breaks_it_within_the_same_limits() -> None:
    scene = Scene("a", "b", "c", "d")
    scene.submit(web(3) | {"placement": {"strategy": "best_fit"}})
    for name in ("web.0", "web.1", "web.2"):
        scene.running(name)
    scene.wait("2s")
    assert scene.where("web.0", "web.1", "web.2") == ["a", "a", "a"]
    scene.apply(web(3) | {"placement": {"strategy": "best_fit", "per_node": 1}})
    assert scene.states("web.0", "web.1", "web.2") == ["stopping", "running", "running"]
    scene.stopped("web.0")
    scene.running("web.0")
    scene.wait("2s")
    assert scene.states("web.1", "web.2") == ["stopping", "running"]
    scene.stopped("web.1")
    scene.running("web.1")
    scene.wait("2s")
    assert sorted(scene.where("web.0", "web.1", "web.2")) == ["a", "b", "c"]
    assert scene.state.workloads["default/web"].rollout.state == "done"
    assert scene.instance("web.2").attempt == 1


def test_a_drained_node_is_left_within_the_limits() -> None:
    it = Service("a", "b", count=4)
    on_a = [instance for instance in it.instances() if instance.node == "a"]
    assert len(on_a) == 2
    it.scene.drain("a")
    assert [item.state for item in on_a].count("stopping") == 1
    it.roll(rounds=6)
    it.obey()
    it.scene.wait("2s")
    it.obey()
    it.scene.wait("2s")
    assert it.scene.state.nodes["a"].status == "drained"
    assert it.fewest == 3


def test_at_the_deadline_of_a_drain_everything_goes() -> None:
    it = Service("a", "b", count=4)
    it.scene.drain("a", "10s")
    assert [instance.state for instance in it.instances() if instance.node == "a"].count("stopping") == 1
    it.scene.wait("11s")
    assert [instance.state for instance in it.instances() if instance.node == "a"] == ["stopping", "stopping"]


def test_a_server_that_starts_again_goes_on_with_an_update() -> None:
    it = Service()
    it.apply(command="serve 2")
    it.obey()
    it.scene.restart()
    for node in ("a", "b"):
        it.scene.hello(
            node, *[instance.key.removeprefix("default/") for instance in it.instances() if instance.node == node]
        )
    it.roll()
    assert (it.now.rollout.state, it.versions()) == ("done", [2] * 4)


def test_a_job_that_is_changed_goes_on_and_pending_work_is_of_the_new_version() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("array", count=4))
    scene.running("array.0")
    scene.apply(job("array", count=5, command="false", retries={"max": 1, "on": ["failed"]}))
    scene.ended("array.0")
    assert (scene.instance("array.0").version, scene.states("array.0")) == (1, ["succeeded"])
    scene.ended("array.1")
    assert [scene.instance(f"array.{index}").version for index in (2, 3)] == [2, 2]
    assert scene.state.workloads["default/array"].count == 5
    (reply,) = outcome(scene.apply(job("array", count=2)))["replies"]
    assert reply.startswith("409 cannot_change: count: ")


@pytest.mark.parametrize(
    ("document", "report"),
    [
        (job("web"), "409 cannot_change: kind: default/web is a service; cancel it first to make it a job"),
        (service("web", gang=True), "409 cannot_change: gang: default/web lives, and who is of its gang cannot change"),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_happens(document: dict[str, Any], report: str) -> None:
    scene = Scene("a")
    scene.submit(web())
    assert outcome(scene.apply(document)) == {"replies": [report]}


def test_a_job_that_is_made_as_small_as_it_has_come_is_over() -> None:
    scene = Scene("a", cpu=1, prefill_max=0)
    scene.submit(job("array", count=4))
    scene.ended("array.0")
    scene.submit(job("big", priority=60))
    scene.ended("array.1")
    assert scene.states("big.0") == ["placed"]
    scene.apply(job("array", count=2))
    assert scene.state.workloads["default/array"].finished_ms
