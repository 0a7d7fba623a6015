"""What the simulation found in updates, order and pools: the smallest scene of each. The names say what must hold."""

from roost.model.events import Maintain
from roost.model.protocol import Report
from roost.model.reasons.attempts import DependencyUnknown
from roost.model.reasons.subjects import WorkloadRef
from tests.core.scene import Scene, job
from tests.core.services.test_rollout import Service, web


def test_found_a_drain_without_a_deadline_keeps_to_the_floor_after_a_restart_too() -> None:
    it = Service("a", "b", "c", count=4, max_unavailable=1)
    scene, node = it.scene, it.instances()[0].node
    assert [instance.node for instance in it.instances()].count(node) == 2
    scene.drain(node)
    scene.restart()
    scene.step()
    assert [instance.state for instance in it.instances()].count("running") == 3


def test_found_those_that_are_ready_but_not_for_long_are_not_all_stopped_at_once() -> None:
    it = Service(count=4, max_unavailable=1)
    it.apply(command="serve 2", healthy_after="1m")
    assert [instance.state for instance in it.instances()].count("running") == 3


def test_found_an_element_does_not_start_after_one_that_was_cancelled_before_its_other_condition_came() -> None:
    scene = Scene("a")
    scene.submit(job("slow", count=2, resources={"cpu": 3}), job("other", count=2, resources={"cpu": 99}))
    conditions = [
        {"workload": "slow", "when": "started", "each": True},
        {"workload": "other", "when": "succeeded", "each": True},
    ]
    scene.submit(job("last", count=2, after=conditions, resources={"cpu": 0}))
    scene.cancel("other")
    scene.running("slow.0")
    assert scene.states("last.0") == ["cancelled"]
    scene.ended("slow.0")
    scene.running("slow.1")
    assert scene.states("last.1") == ["cancelled"]


def test_found_a_server_without_memory_completes_a_service_in_its_present_version() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(2))
    _roll(scene)
    scene.apply(web(2, command="serve 2"))
    _roll(scene)
    answer = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.wait("1m")
    assert [(instance.index, instance.version) for instance in scene.state.instances.values()] == [(0, 2), (1, 2)]


def test_found_a_server_without_memory_updates_no_instance_that_may_still_run_elsewhere() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(2))
    _roll(scene)
    answer = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.apply(web(2, command="serve 2"))
    assert "default/web.1" not in scene.state.instances or scene.states("web.1") == ["queued"]  # b may be running it


def test_found_an_instance_that_never_ran_is_not_forgotten_when_others_stand_in() -> None:
    scene = Scene("a", cpu=0.2)
    scene.submit(web(2, max_unavailable=0, max_surge=1))
    _roll(scene)
    scene.apply(web(4, command="serve 2", max_unavailable=0, max_surge=1))
    _roll(scene)
    scene.hello("b")
    _roll(scene)
    assert [
        (instance.index, instance.state) for instance in scene.state.instances.values() if instance.state == "running"
    ] == [(index, "running") for index in range(4)]


def test_found_a_service_that_is_kept_is_not_started_elsewhere_by_an_update_after_its_node_was_lost() -> None:
    scene = Scene("a", "b")
    scene.submit(web(2) | {"when_lost": "pin"})
    _roll(scene)
    node = scene.instance("web.0").node
    scene.wait("1m", silent=node)
    assert scene.state.nodes[node].status == "lost"
    scene.cancel("web.0")
    scene.apply(web(2, command="serve 2") | {"when_lost": "pin"})
    assert scene.states("web.0") == ["cancelled"]  # its node may be running it still


def test_found_what_a_server_without_memory_heard_of_waits_for_all_others_to_speak_also_if_it_is_updated() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(2))
    _roll(scene)
    old = scene.as_ordered("web.1")
    scene.apply(web(2, command="serve 2"))
    _roll(scene)
    answer = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer, (old[0], Report(old[0].token, "ended", cause="lease")))
    assert scene.states("web.1") == ["queued"]  # b may be running a later attempt of it


def test_found_a_server_without_memory_never_starts_again_what_is_kept_and_no_agent_reported() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(2) | {"when_lost": "pin"})
    _roll(scene)
    answer = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.wait("1m")
    scene.apply(web(2, command="serve 2") | {"when_lost": "pin"})
    assert "default/web.1" not in scene.state.instances or scene.states("web.1") == ["queued"]


def test_found_a_server_without_memory_adds_no_surge_replica_that_may_run_pinned_elsewhere() -> None:
    scene = Scene("a", "b", "c", adopts=True)
    document = web(2, max_unavailable=0, max_surge=1) | {"when_lost": "pin"}
    scene.submit(document)
    _roll(scene)
    answers = scene.as_ordered("web.0"), scene.as_ordered("web.1")
    scene.restart(forgetful=True)
    scene.hello("a", *answers)
    scene.running("web.0")
    scene.running("web.1")
    scene.wait("1m")
    scene.apply(document | {"command": "serve 2"})
    assert "default/web.2" not in scene.state.instances  # a node that has not spoken yet may be running it


def test_found_a_server_without_memory_adds_surge_replicas_when_all_leases_have_ended() -> None:
    scene = Scene("a", "b", "c", adopts=True)
    scene.submit(web(2, max_unavailable=0, max_surge=1))
    _roll(scene)
    answers = scene.as_ordered("web.0"), scene.as_ordered("web.1")
    scene.restart(forgetful=True)
    scene.hello("a", *answers)
    scene.running("web.0")
    scene.running("web.1")
    scene.apply(web(2, max_unavailable=0, max_surge=1, command="serve 2"))
    assert "default/web.2" not in scene.state.instances  # b may be running it
    scene.wait("1m")
    assert scene.state.instances["default/web.2"].version == 2


def test_found_a_server_without_memory_counts_no_index_that_is_neither_reported_nor_wanted() -> None:
    scene = Scene("a", "b", adopts=True)
    document = web(4, max_surge=1) | {"when_lost": "pin"}
    scene.submit(document)
    _roll(scene)
    answers = [scene.as_ordered(f"web.{index}") for index in range(3)]
    scene.restart(forgetful=True)
    scene.hello("a", *answers)
    scene.apply(web(3, max_surge=1, command="serve 2") | {"when_lost": "pin"})
    scene.wait("1m")
    assert scene.state.placed_count(scene.state.workloads["default/web"]) == 3


def test_found_a_pause_that_is_longer_than_a_service_pauses_by_itself_is_loaded_as_it_was() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(1) | {"restart": {"pause": 1, "pause_max": 2}})
    _roll(scene)
    answer = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", answer)
    scene.ended("web.0", code=1)  # the scene looks whether what is loaded is the same
    assert scene.states("web.0") == ["queued"]


def test_found_a_clock_that_was_set_back_does_not_hold_an_update_up() -> None:
    scene = Scene("a")
    scene.submit(web(1, healthy_after="3s"))
    _roll(scene)
    scene.apply(web(1, command="serve 2", healthy_after="3s"))
    scene.stopped("web.0")
    scene.running("web.0")
    scene.now -= 600_000
    scene.restart()
    scene.hello("a", "web.0")
    _roll(scene)
    assert scene.state.workloads["default/web"].rollout.state == "done"  # type: ignore[union-attr]


def test_found_what_is_kept_is_not_started_again_elsewhere_when_a_service_gets_smaller_and_larger() -> None:
    scene = Scene("a", "b")
    scene.submit(web(2) | {"when_lost": "pin"})
    _roll(scene)
    node = scene.instance("web.1").node
    scene.part(node)
    scene.apply(web(1) | {"when_lost": "pin"})
    scene.wait("1m", silent=node)
    assert scene.state.nodes[node].status == "lost"
    scene.apply(web(2) | {"when_lost": "pin"})
    placed = [
        instance for instance in scene.state.instances.values() if instance.index == 1 and instance.state == "placed"
    ]
    assert not placed  # no agent has confirmed that it was stopped


def test_found_a_server_without_memory_counts_rightly_when_the_newest_version_is_smaller() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(web(5))
    _roll(scene)
    old = scene.as_ordered("web.3")
    scene.apply(web(1, command="serve 2"))
    _roll(scene)
    new = scene.as_ordered("web.0")
    scene.restart(forgetful=True)
    scene.hello("a", old)
    scene.hello("b", new)  # the scene looks whether all is counted


def test_found_a_service_with_one_that_may_still_be_kept_somewhere_can_be_ended() -> None:
    scene = Scene("a", "b")
    scene.submit(web(2) | {"when_lost": "pin"})
    _roll(scene)
    node = scene.instance("web.1").node
    scene.part(node)
    scene.apply(web(1) | {"when_lost": "pin"})
    scene.wait("1m", silent=node)
    scene.cancel("web")
    _roll(scene)  # the scene looks whether all is counted
    assert scene.state.workloads["default/web"].finished_ms


def test_found_a_service_that_gets_smaller_and_ends_during_maintenance_leaves_no_instance_behind() -> None:
    scene = Scene("a")
    scene.step(Maintain(1, on=True))
    scene.submit(web(3))
    scene.apply(web(3, command="serve 2"))
    scene.apply(web(1, command="serve 2"))
    scene.cancel("web")
    scene.restart()
    scene.step(Maintain(1, on=False))
    scene.wait("1s")
    assert list(scene.state.instances) == ["default/web.0"]


def _roll(scene: Scene) -> None:
    """Agents do what they are ordered, for a while."""
    for _ in range(8):
        for instance in list(scene.state.instances.values()):
            if instance.state == "stopping":
                scene.stopped(instance.key.removeprefix("default/"))
            elif instance.state in ("placed", "starting"):
                scene.running(instance.key.removeprefix("default/"))
        scene.wait("2s")


def test_found_a_server_without_memory_does_not_take_for_done_what_no_agent_reported() -> None:
    scene = Scene("a", "b", adopts=True)
    scene.submit(job("first", count=2))
    scene.running("first.0", "first.1")
    run, node = scene.as_ordered("first.0")[0], scene.where("first.0")[0]
    scene.now += 60_000
    scene.restart(forgetful=True)
    scene.hello(node, (run, Report(run.token, "ended", cause="exited", code=0)))
    assert scene.state.workloads["default/first"].finished_ms
    scene.submit(job("then", after=["first"]), job("later", after=[{"workload": "first", "when": "finished"}]))
    assert scene.state.workloads["default/then"].reason == DependencyUnknown(
        WorkloadRef("default", "first"), is_partial=True
    )
    assert scene.states("later.0") == ["placed"]


def test_found_a_replica_that_comes_back_after_scaling_down_does_not_write_the_log_of_the_one_before() -> None:
    """A log is called after workload, serial, index and attempt: the attempts of an index are never counted anew."""
    it = Service(count=2)
    it.scene.apply(web(1))
    it.obey()
    assert [instance.index for instance in it.instances()] == [0]
    it.scene.apply(web(2))
    assert [instance.attempt for instance in it.instances()] == [1, 2]
    it.scene.restart()
    assert [instance.attempt for instance in it.instances()] == [1, 2]
