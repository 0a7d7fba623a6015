"""Loss: silence, broken streams, whole nodes that die; what was there runs elsewhere, once, and nothing is stuck."""

import pytest

from roost.core.explain.why import why
from roost.model.events import HeartbeatsReceived
from roost.model.protocol import Usage
from roost.model.reasons.attempts import NodeReturned, PinnedToLostNode
from roost.model.reasons.nodes import HeartbeatsMissing
from roost.model.reasons.reason import NodeLost, RescheduleDisabled, RetriesExhausted
from roost.schema.reason_text import render
from tests.core.scene import Scene, job, outcome, service, vm


def test_a_silent_agent_loses_its_placed_and_its_running_instances() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.drain("b")
    scene.submit(job("placed"), job("running"))
    scene.running("running.0")
    scene.uncordon("b")
    done = scene.wait("5s", silent="a")
    assert outcome(done) == {
        "changes": ["node a lost", "instance placed.0 placed", "instance running.0 placed"],
        "orders": ["b: run placed.0 attempt 2, run running.0 attempt 2"],
        "nodes": ["a lost: heartbeats_missing"],
    }
    assert scene.used("a") == 0


def test_a_whole_node_dies_and_its_work_runs_elsewhere_and_says_so() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", count=4))
    scene.running("web.0", "web.1", "web.2", "web.3")
    assert sorted(scene.where("web.0", "web.1", "web.2", "web.3")) == ["a", "a", "b", "b"]
    scene.part("a")
    scene.wait("5s")
    assert set(scene.where("web.0", "web.1", "web.2", "web.3")) == {"b"}
    moved = scene.instance("web.0")
    assert [line.reason for line in moved.story][-3:-1] == [NodeLost("a", HeartbeatsMissing(4_000))] * 2
    assert [move.state for move in moved.story][-3:] == ["lost", "queued", "placed"]
    assert why(scene.state, "default/web", 0).node == "b"


def test_signs_of_life_keep_a_node() -> None:
    scene = Scene("a")
    for _ in range(10):
        scene.wait("3s")
    assert scene.state.nodes["a"].status == "ready"


def test_a_broken_stream_is_suspect_at_once_and_gets_no_new_work_but_keeps_what_it_has() -> None:
    scene = Scene("a")
    scene.submit(job("one"))
    scene.running("one.0")
    assert outcome(scene.part("a")) == {"changes": ["node a suspect"], "nodes": ["a suspect: node_stream_closed"]}
    scene.submit(job("two"))
    assert (scene.states("one.0"), scene.counts("two")) == (["running"], {"queued": 1})
    assert outcome(scene.hello("a", "one.0")) == {
        "changes": ["node a ready", "instance two.0 placed"],
        "orders": ["a: whole: run one.0 attempt 1, run two.0 attempt 1"],
        "replies": ["welcome"],
        "nodes": ["a ready: node_registered"],
    }


def test_a_node_lost_while_stopping_ends_the_instance_as_cancelled() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", retries={"max": 9, "on": ["lost"]}))
    scene.running("web.0")
    scene.cancel("web")
    scene.part("a")
    assert scene.states("web.0") == ["stopping"], "capacity counts until the lease has ended"
    assert outcome(scene.wait("5s")) == {
        "changes": ["node a lost", "instance web.0 cancelled", "workload web cancelled"],
        "nodes": ["a lost: heartbeats_missing"],
    }


@pytest.mark.parametrize("kind", ["job", "service", "vm"])
def test_what_is_kept_waits_for_its_node(kind: str) -> None:
    scene = Scene("b")
    scene.hello("a", cpu=8, drivers=("process", "qemu"))
    document = vm("web") if kind == "vm" else job("web", kind=kind)
    scene.submit(document | {"when_lost": "pin", "resources": {"cpu": 5, "memory": "64MiB"}})
    scene.running("web.0")
    scene.part("a")
    scene.wait("1h")
    assert (scene.states("web.0"), scene.state.nodes["a"].status) == (["running"], "lost")
    assert outcome(scene.hello("a", "web.0", cpu=8))["orders"] == ["a: whole: run web.0 attempt 1"]


def test_what_is_kept_can_still_be_cancelled_before_and_after_its_node_is_lost() -> None:
    scene = Scene("a")
    scene.submit(job("before", when_lost="pin"), job("after", when_lost="pin"))
    scene.running("before.0", "after.0")
    answer = scene.as_ordered("after.0")
    scene.cancel("before")
    scene.part("a")
    scene.wait("5s")
    assert scene.states("before.0", "after.0") == ["cancelled", "running"]
    assert outcome(scene.cancel("after")) == {
        "changes": ["workload after cancelled", "instance after.0 cancelled"],
        "replies": ["after"],
    }
    assert outcome(scene.hello("a", answer))["orders"] == ["a: whole: nothing"], "so the agent stops what it still runs"


def test_what_is_kept_and_was_moving_is_not_started_elsewhere_while_it_may_run() -> None:
    scene = Scene("a", "b")
    scene.submit(service("web", when_lost="pin"))
    scene.running("web.0")
    scene.drain("a")
    scene.part("a")
    scene.wait("1h")
    assert scene.states("web.0") == ["stopping"]
    scene.cancel("web")
    assert scene.states("web.0") == ["cancelled"]


def test_what_is_to_fail_with_its_node_fails() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web", when_lost="fail"))
    scene.running("web.0")
    scene.wait("5s", silent="a")
    assert scene.states("web.0") == ["failed"]
    assert scene.instance("web.0").reason == RescheduleDisabled(NodeLost("a", HeartbeatsMissing(4_000)))


def test_a_job_is_rescheduled_as_often_as_its_retries_say_a_service_always() -> None:
    scene = Scene("a")
    scene.submit(job("job", retries=1), service("service"))
    for _ in range(2):
        scene.hello("a", "job.0", "service.0")
        scene.wait("5s", silent="a")
        scene.hello("a")
    assert scene.states("job.0", "service.0") == ["failed", "placed"]
    assert scene.instance("job.0").reason == RetriesExhausted(NodeLost("a", HeartbeatsMissing(4_000)), 1)
    assert (scene.instance("job.0").losses, scene.instance("service.0").losses) == (2, 2)


def test_losses_and_failures_are_counted_apart() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 1, "on": ["lost", "failed"]}))
    scene.ended("web.0", code=1)
    scene.running("web.0")
    scene.wait("5s", silent="a")
    scene.hello("a")
    assert (scene.states("web.0"), scene.instance("web.0").attempt) == (["placed"], 3)


def test_a_run_that_its_agent_ended_with_the_lease_is_lost_and_runs_again() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.ended("web.0", cause="lease", code=None, signal=9)
    assert [move.state for move in scene.instance("web.0").story][-3:] == ["lost", "queued", "placed"]


def test_a_run_that_a_leaving_node_stopped_runs_elsewhere() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web"))
    scene.running("web.0")
    assert outcome(scene.stopped("web.0"))["orders"] == ["a: drop, run web.0 attempt 2"]


def test_words_of_a_node_that_was_declared_lost_are_not_heard_until_it_says_hello() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    answer = scene.as_ordered("web.0")
    session = scene.state.nodes["a"].session
    scene.wait("5s", silent="a")
    assert outcome(scene.report("a", answer[1], session=session)) == {"ignored": ["a: old_session"]}
    assert outcome(scene.part("a")) == {}
    done = scene.hello("a", answer)
    assert outcome(done)["orders"] == ["a: whole: run web.0 attempt 2"], "without the first attempt: it is stopped"
    assert scene.used("a") == 2_000, "and takes room until then"


# nodes that never come back


def test_a_node_that_stays_lost_for_a_day_is_forgotten() -> None:
    scene = Scene("a", "b")
    scene.part("a")
    scene.wait("5s")
    scene.wait("23h")
    assert "a" in scene.state.nodes
    assert outcome(scene.wait("1h")) == {"changes": ["node a gone"], "nodes": ["a gone: node_removed"]}


def test_a_node_that_was_back_in_between_gets_a_whole_day_again() -> None:
    scene = Scene("a", "b")
    scene.part("a")
    scene.wait("12h")
    scene.hello("a")
    scene.part("a")
    scene.wait("13h")
    assert "a" in scene.state.nodes
    scene.wait("24h")
    assert "a" not in scene.state.nodes


def test_a_lost_node_is_forgotten_also_after_a_restart() -> None:
    scene = Scene("a", "b")
    scene.part("a")
    scene.wait("5s")
    scene.restart()
    scene.hello("b")
    scene.wait("24h")
    assert list(scene.state.nodes) == ["b"]


def test_a_lost_node_that_something_is_kept_on_is_forgotten_a_day_after_that_has_gone() -> None:
    scene = Scene("a")
    scene.submit(job("web", when_lost="pin"))
    scene.running("web.0")
    scene.part("a")
    scene.wait("50h")
    assert scene.states("web.0") == ["running"]
    scene.cancel("web")
    scene.wait("24h")
    assert "a" not in scene.state.nodes


def test_a_lost_node_has_no_measurements() -> None:
    scene = Scene("a")
    scene.step(HeartbeatsReceived((), (("a", Usage(3_000, 1 << 30, at_ms=scene.now)),)))
    assert scene.state.liveness["a"].usage == Usage(3_000, 1 << 30, at_ms=scene.now)
    scene.wait("5s", silent="a")
    assert scene.state.liveness["a"].usage is None
    scene.hello("a")
    assert scene.state.liveness["a"].usage is None


def test_a_pinned_instance_says_since_when_its_node_is_lost_and_that_it_is_back() -> None:
    scene = Scene("a")
    scene.submit(job("web", when_lost="pin"))
    scene.running("web.0")
    answer = scene.as_ordered("web.0")
    scene.wait("10s", silent="a")
    instance = scene.instance("web.0")
    since_ms = scene.state.nodes["a"].story[-1].at_ms
    assert (instance.state, instance.reason) == ("running", PinnedToLostNode("a", since_ms))
    assert "node a lost since 1970-01-01 00:16+00:00" in render(instance.reason)
    scene.hello("a", answer)
    assert (instance.state, instance.reason) == ("running", NodeReturned("a"))
    assert [line.reason.code for line in instance.story[-2:]] == ["pinned_to_lost_node", "node_returned"]
