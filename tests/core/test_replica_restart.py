"""A server that starts again: on its store, or without any memory. What ran is never started a second time."""

import msgspec

from roost.core.explain.why import why
from roost.core.state.records import SERIALS_RESERVED, Settings
from roost.model.protocol import Report
from roost.model.reasons.attempts import AdoptedFromAgent, RecoveredFromAgent
from roost.model.records.workload import DEFAULT_RESTART
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, outcome, service


def test_agents_say_hello_again_and_nothing_that_runs_is_restarted() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("web", count=4))
    scene.running("web.0", "web.1")
    on_a = [name for name in ("web.0", "web.1", "web.2", "web.3") if scene.where(name) == ["a"]]
    before = scene.state.instances["default/web.0"]
    scene.restart()
    assert scene.instance("web.0") == before
    done = scene.hello("a", *[name for name in on_a if scene.states(name) == ["running"]], cpu=2)
    assert outcome(done) == {
        "changes": ["meta meta", "node a ready"],
        "orders": ["a: whole: run web.0 attempt 1, run web.2 attempt 1"],
        "replies": ["welcome"],
    }
    assert scene.counts("web") == {"running": 2, "placed": 2}


def test_what_ended_meanwhile_is_reported_at_hello() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    run, report = scene.as_ordered("web.0")
    scene.restart()
    scene.hello("a", (run, Report(run.token, "ended", cause="exited", code=0)))
    assert scene.states("web.0") == ["succeeded"]


def test_nodes_get_a_whole_lease_to_come_back() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.now += 3_600_000
    scene.restart()
    assert outcome(scene.wait("4s")) == {}
    scene.hello("b")
    scene.wait("1s")
    assert (scene.states("web.0"), scene.where("web.0")) == (["placed"], ["b"])


def test_pending_work_waits_on_in_the_same_order() -> None:
    scene = Scene()
    scene.submit(job("low", priority=1), job("high", priority=9))
    scene.submit(job("old"))
    scene.submit(job("young"))
    scene.restart()
    scene.hello("a", cpu=2)
    scene.ended("old.0", "young.0")
    placed = [placed.instance for done in scene.steps for placed in done.placed]
    assert placed == ["default/old.0", "default/young.0", "default/high.0", "default/low.0"]


def test_tokens_only_grow_also_over_restarts() -> None:
    scene = Scene("a", cpu=1)
    tokens = []
    for number in range(3):
        scene.submit(job(f"job-{number}"))
        tokens.append(scene.instance(f"job-{number}.0").token)
        scene.ended(f"job-{number}.0")
        scene.restart()
        scene.hello("a", cpu=1)
    assert tokens == sorted(set(tokens))
    assert tokens[2] - tokens[0] > SERIALS_RESERVED, "whatever was given out and never stored is skipped"


def test_the_store_hears_of_serials_once_in_a_while_only() -> None:
    scene = Scene("a", cpu=1_000)
    done = [scene.submit(job(f"job-{number}")) for number in range(50)]
    assert not [change for step in done for change in change_kinds(step) if change == "meta"]


def change_kinds(done: object) -> list[str]:
    return [change.kind for change in done.changes]  # type: ignore[attr-defined]


def test_a_node_keeps_the_lease_it_was_given_when_leases_are_shorter_after_a_restart() -> None:
    scene = Scene("a", "b", lease_ms=20_000)
    scene.submit(job("web"))
    scene.running("web.0")
    scene.settings = Settings(lease_ms=4_000)
    scene.restart()
    scene.hello("b")
    scene.wait("19s")
    assert scene.where("web.0") == ["a"]
    scene.wait("2s")
    assert scene.where("web.0") == ["b"]
    assert outcome(scene.hello("a"))["replies"] == ["welcome"]
    scene.wait("5s", silent="a")
    assert scene.state.nodes["a"].status == "lost", "from now on the shorter lease counts"


def test_a_pause_does_not_last_forever_when_the_clock_was_set_back() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.ended("web.0", code=1)
    scene.now -= 3_600_000
    scene.restart()
    scene.hello("a")
    scene.now += DEFAULT_RESTART.pause_max_ms
    scene.wait("1s")
    assert scene.states("web.0") == ["placed"]


def test_a_finished_service_comes_back_as_it_is_stored_after_the_clock_was_set_back() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.running("web.0")
    scene.wait("10m")
    scene.cancel("web")
    scene.stopped("web.0")
    assert scene.state.workloads["default/web"].rollout.state == "done"
    scene.now -= 900_000
    scene.restart()
    began_ms = scene.now
    scene.hello("a")
    scene.wait("1s")
    scene.retry("web")
    assert scene.state.workloads["default/web"].rollout.progress_ms == began_ms


# without memory


def forgetful(*, count: int = 1, **fields: object) -> tuple[Scene, dict[str, object]]:
    """A server without memory, after its nodes ran an array; what their agents will tell."""
    scene = Scene("a", "b", cpu=count)
    scene.submit(job("web", count=count, **fields))
    names = [f"web.{index}" for index in range(count)]
    scene.running(*names)
    reported = {name: (scene.where(name)[0], scene.as_ordered(name)) for name in names}
    scene.now += 60_000
    scene.restart(forgetful=True)
    return scene, reported


def test_a_server_without_memory_takes_over_what_agents_run() -> None:
    scene, reported = forgetful()
    node, run = reported["web.0"]
    done = scene.hello(node, run)
    assert outcome(done) == {
        "changes": ["meta meta", "workload web", "instance web.0 running", "node a ready"],
        "orders": ["a: whole: run web.0 attempt 1"],
        "replies": ["welcome"],
        "nodes": ["a ready: node_registered"],
    }
    instance = scene.instance("web.0")
    assert (instance.token, instance.started_ms) == (run[0].token, scene.now - 5)
    assert [line.reason for line in instance.story] == [RecoveredFromAgent(), AdoptedFromAgent()]
    assert {move.revision for move in instance.story} == {scene.state.revision}
    assert scene.used("a") == 1_000
    scene.ended("web.0")
    assert scene.counts("web") == {"succeeded": 1}
    assert scene.state.workloads["default/web"].finished_ms


def test_it_keeps_document_age_and_policy() -> None:
    scene, reported = forgetful(priority=7, timeout="10m")
    node, run = reported["web.0"]
    scene.hello(node, run)
    workload = scene.state.workloads["default/web"]
    assert (workload.policy.priority, workload.policy.timeout_ms) == (7, 600_000)
    assert (workload.serial, workload.submitted_ms) == (run[0].serial, run[0].submitted_ms)


def test_new_tokens_are_larger_than_those_of_the_life_before() -> None:
    scene, reported = forgetful()
    node, run = reported["web.0"]
    scene.hello(node, run)
    scene.submit(job("new"))
    assert scene.instance("new.0").token > run[0].token


def test_instances_no_agent_reports_are_not_run_again_not_even_after_another_restart() -> None:
    scene, reported = forgetful(count=4)
    node, run = reported["web.2"]
    scene.hello(node, run)
    scene.wait("1h")
    scene.restart()
    scene.hello(node, run)
    assert list(scene.state.instances) == ["default/web.2"]
    assert scene.counts("web") == {"running": 1}
    reported = why(scene.state, "default/web", 1)
    assert (reported.state, reported.code) == ("lost", "unknown")
    assert (
        render_text(reported.text)
        == "default/web.1 was submitted to an earlier server, and no agent has reported it to this one"
    )


def test_a_workload_taken_over_in_part_can_be_cancelled() -> None:
    scene, reported = forgetful(count=4)
    node, run = reported["web.2"]
    scene.hello(node, run)
    assert outcome(scene.cancel("web"))["replies"] == ["web"]
    scene.stopped("web.2")
    assert scene.counts("web") == {"cancelled": 1}


def test_a_service_gets_back_the_replicas_no_agent_reported_once_every_agent_had_time_to_speak() -> None:
    scene, reported = forgetful(count=3, kind="service")
    (node, first), (same, third) = reported["web.0"], reported["web.2"]
    assert node == same
    scene.hello(node, first, third, cpu=3)
    scene.wait("4s")
    assert scene.counts("web") == {"running": 2}
    scene.wait("400ms")
    assert scene.counts("web") == {"running": 2, "placed": 1}


def test_it_gets_them_back_also_if_the_server_starts_again_in_between() -> None:
    scene, reported = forgetful(count=3, kind="service")
    node, run = reported["web.0"]
    scene.hello(node, run, cpu=3)
    scene.restart()
    scene.hello(node, run, cpu=3)
    assert scene.counts("web") == {"running": 1}
    scene.wait("4400ms")
    assert scene.counts("web") == {"running": 1, "placed": 2}


def test_a_second_agent_may_speak_after_the_first_ones_part_has_finished() -> None:
    scene, reported = forgetful(count=2)
    (first_node, first), (second_node, second) = reported["web.0"], reported["web.1"]
    assert first_node != second_node
    scene.hello(first_node, (first[0], Report(first[0].token, "ended", cause="exited", code=0)))
    assert scene.state.workloads["default/web"].finished_ms
    scene.hello(second_node, second)
    assert scene.counts("web") == {"succeeded": 1, "running": 1}
    assert not scene.state.workloads["default/web"].finished_ms
    scene.ended("web.1")
    assert (scene.counts("web"), scene.state.finished_instances) == ({"succeeded": 2}, 2)


def test_what_was_cancelled_before_its_agent_spoke_is_not_taken_over() -> None:
    scene, reported = forgetful(count=2)
    (first_node, first), (second_node, second) = reported["web.0"], reported["web.1"]
    scene.hello(first_node, first)
    scene.cancel("web")
    done = scene.hello(second_node, second)
    assert outcome(done)["orders"] == [f"{second_node}: whole: nothing"]
    assert scene.used(second_node) == 1_000, "it takes room until its agent has stopped it"


def test_a_name_given_to_something_else_meanwhile_is_not_given_back() -> None:
    scene, reported = forgetful()
    node, run = reported["web.0"]
    scene.submit(job("web", command="something else"))
    done = scene.hello(node, run, cpu=1)
    assert outcome(done)["orders"] == ["a: whole: nothing"]
    assert scene.counts("web") == {"queued": 1}, "the first run takes the room until it has gone"
    scene.report(node, Report(run[0].token, "ended", cause="stopped"))
    assert scene.states("web.0") == ["placed"]


def test_a_server_with_memory_takes_nothing_over_that_it_has_given_away() -> None:
    scene = Scene("a", "b")
    scene.submit(service("web"))
    scene.running("web.0")
    reported = scene.as_ordered("web.0")
    scene.wait("5s", silent="a")
    scene.restart()
    scene.hello("b")
    done = scene.hello("a", reported)
    assert outcome(done)["orders"] == ["a: whole: nothing"]
    assert scene.where("web.0") == ["b"]


def test_a_run_that_cannot_be_read_is_not_taken_over_and_stops_no_instance() -> None:
    scene, reported = forgetful()
    node, (run, report) = reported["web.0"]
    unreadable, refused = {"document": b"\xff"}, {"document": b"\x81\xa4name\xa0"}
    for broken in (unreadable, refused, {"workload": "default/other"}, {"index": 1}):
        done = scene.hello(node, (msgspec.structs.replace(run, **broken), report))
        assert outcome(done)["orders"] == ["a: whole: nothing"]
        assert not scene.state.workloads


def test_a_new_service_of_the_same_name_is_left_alone_by_what_was_to_be_completed() -> None:
    scene, reported = forgetful(kind="service")
    node, run = reported["web.0"]
    scene.hello(node, run, cpu=1)
    scene.cancel("web")
    scene.stopped("web.0")
    scene.submit(service("web", count=3))
    assert scene.counts("web") == {"placed": 1, "queued": 2}
    assert outcome(scene.wait("4s")) == {}
