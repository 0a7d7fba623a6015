"""What people ask for: submit, cancel, retry; in each state, twice, and of things that do not exist."""

import pytest

from roost.core.lifecycle import commands
from roost.core.lifecycle.commands import REACH_MAX
from roost.core.placement.strategies import STRATEGIES
from roost.model.events import Submit
from roost.model.reasons.attempts import CancelRequested
from roost.schema.reason_text import message_of
from tests.core.scene import Scene, job, outcome, service, wanted

# submit


def test_names_that_begin_alike_do_not_clash() -> None:
    scene = Scene("a")
    scene.submit(job("web"), job("web-1"), job("we"))
    scene.cancel("web")
    assert scene.states("web.0", "web-1.0", "we.0") == ["stopping", "placed", "placed"]


def test_the_same_name_in_two_projects_is_two_workloads() -> None:
    scene = Scene("a")
    assert outcome(scene.submit(job("web"), job("web", project="other")))["replies"] == ["web other/web"]


def test_a_name_in_use_is_a_conflict_and_nothing_of_the_request_stays() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    assert outcome(scene.submit(job("new"), job("web"))) == {
        "replies": ["409 name_in_use: [1].name: default/web is in use since 0ms; cancel it first or take another name"]
    }
    assert list(scene.state.workloads) == ["default/web"]


def test_a_name_twice_in_one_request_is_a_conflict() -> None:
    scene = Scene("a")
    assert outcome(scene.submit(job("web"), job("web"))) == {
        "replies": ["409 name_in_use: [1].name: default/web is in the same request twice"]
    }


def test_the_same_document_again_changes_nothing_where_that_was_asked_for() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    assert outcome(scene.submit(job("web"), same_ok=True)) == {"replies": ["web"]}
    (reply,) = outcome(scene.submit(job("web", priority=1)))["replies"]
    assert reply.startswith("409 name_in_use")


def test_only_what_lives_is_changed_where_that_was_asked_for() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    assert outcome(scene.submit(service("web"), must_exist=True)) == {"replies": ["web"]}
    assert outcome(scene.submit(service("web", count=2), must_exist=True))["replies"] == ["web"]
    assert (scene.state.workloads["default/web"].version, scene.state.workloads["default/web"].count) == (2, 2)


def test_what_must_exist_and_does_not_or_is_over_is_not_found_and_nothing_is_made() -> None:
    scene = Scene("a")
    scene.submit(job("old"))
    scene.ended("old.0")
    scene.submit(service("web"))
    assert outcome(scene.submit(job("new"), must_exist=True)) == {
        "replies": ["404 not_found: name: there is no workload default/new"]
    }
    for again in (job("old"), job("old", priority=1)):
        assert outcome(scene.submit(again, same_ok=True, must_exist=True)) == {
            "replies": ["404 not_found: name: default/old is over: submit it again"]
        }
    assert outcome(scene.submit(service("web", count=2), job("new"), must_exist=True)) == {
        "replies": ["404 not_found: [1].name: there is no workload default/new"]
    }
    assert list(scene.state.workloads) == ["default/old", "default/web"]
    assert scene.state.workloads["default/web"].version == 1, "all are changed, or none"


def test_what_must_exist_is_still_changed_only_as_it_can_be_and_once_in_a_request() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    (reply,) = outcome(scene.submit(job("web"), must_exist=True))["replies"]
    assert reply.startswith("409 cannot_change: kind")
    (reply,) = outcome(scene.submit(service("web", count=2), service("web", count=3), must_exist=True))["replies"]
    assert reply.startswith("409 name_in_use: [1].name")


def test_the_name_of_a_finished_workload_is_free_again_and_its_logs_go() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    serial = scene.state.workloads["default/web"].serial
    scene.ended("web.0", code=1)
    assert outcome(scene.submit(job("web"))) == {
        "changes": ["instance web.0 placed", "workload web"],
        "orders": ["a: run web.0 attempt 1"],
        "replies": ["web"],
        "swept": [f"default/web/{serial}"],
    }


def test_an_unknown_strategy_is_refused_with_the_known_ones_and_nothing_is_stored() -> None:
    scene = Scene("a")
    assert outcome(scene.submit(job("web", placement={"strategy": "magic"}))) == {
        "replies": [
            "422 invalid_strategy: placement.strategy: there is no strategy 'magic'; known are "
            + ", ".join(sorted(STRATEGIES))
        ]
    }
    assert not scene.state.workloads


def test_more_workloads_than_can_be_known_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "WORKLOADS_MAX", 2)
    scene = Scene("a")
    scene.submit(job("one"))
    assert outcome(scene.submit(job("two"), job("three"))) == {
        "replies": ["409 too_many: there are 1 workloads already"],
    }
    assert outcome(scene.submit(job("two")))["replies"] == ["two"]


# cancel


def test_cancelled_while_queued_ends_at_once() -> None:
    scene = Scene()
    scene.submit(job("web"))
    assert outcome(scene.cancel("web")) == {"changes": ["workload web cancelled"], "replies": ["web"]}
    assert scene.counts("web") == {"cancelled": 1}
    assert outcome(scene.hello("a"))["orders"] == ["a: whole: nothing"]


@pytest.mark.parametrize("before", ["placed", "starting", "running"])
def test_cancelled_on_a_node_stops_first_and_takes_room_until_the_agent_confirms(before: str) -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("web"))
    if before != "placed":
        scene._reported(("web.0",), before, {})
    scene.submit(job("next"))
    assert outcome(scene.cancel("web", "alice")) == {
        "changes": ["workload web cancelled", "instance web.0 stopping", "audit 1"],
        "orders": ["a: stop (cancel_requested)"],
        "replies": ["web"],
    }
    assert (scene.used("a"), scene.counts("next")) == (1_000, {"queued": 1})
    assert outcome(scene.stopped("web.0")) == {
        "changes": ["instance web.0 cancelled", "workload web cancelled", "instance next.0 placed"],
        "orders": ["a: drop, run next.0 attempt 1"],
    }
    assert scene.instance("web.0").reason == CancelRequested("alice")


def test_cancelled_stays_cancelled_even_if_it_ended_by_itself_just_before() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.cancel("web")
    scene.ended("web.0", code=0)
    assert scene.states("web.0") == ["cancelled"]


def test_a_cancelled_attempt_is_not_tried_again() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 5, "on": ["lost", "failed"]}))
    scene.cancel("web")
    scene.ended("web.0", code=1)
    assert scene.states("web.0") == ["cancelled"]


def test_cancelling_twice_is_the_same_as_once() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.cancel("web")
    assert outcome(scene.cancel("web"))["replies"] == ["web"]
    scene.stopped("web.0")
    assert outcome(scene.cancel("web")) == {"replies": ["web"]}
    assert scene.states("web.0") == ["cancelled"]


def test_cancelling_what_succeeded_changes_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.ended("web.0")
    assert outcome(scene.cancel("web")) == {"replies": ["web"]}
    assert scene.states("web.0") == ["succeeded"]


def test_cancelling_an_unknown_workload_is_not_found() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    assert outcome(scene.cancel("nobody")) == {"replies": ["404 not_found: there is no workload default/nobody"]}
    assert outcome(scene.cancel("web.1")) == {
        "replies": ["404 not_found: default/web has instances 0 to 0, not 1"],
    }


def test_one_instance_of_an_array_is_cancelled_and_the_others_run() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("array", count=4))
    scene.cancel("array.0")
    scene.cancel("array.3")
    assert scene.states("array.0", "array.1", "array.2", "array.3") == ["stopping", "placed", "queued", "cancelled"]
    scene.stopped("array.0")
    scene.ended("array.1", "array.2")
    assert scene.counts("array") == {"cancelled": 2, "succeeded": 2}
    assert scene.state.workloads["default/array"].finished_ms


def test_an_index_too_far_from_its_turn_is_refused_because_all_before_it_would_need_records() -> None:
    scene = Scene()
    scene.submit(job("array", count=REACH_MAX + 2))
    (reply,) = outcome(scene.cancel(f"array.{REACH_MAX + 1}"))["replies"]
    assert reply.startswith("409 conflict: index: index 10001 is too far from its turn")
    assert not scene.state.instances


def test_cancelling_while_it_moves_off_a_draining_node_means_it_does_not_come_back() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.drain("a")
    scene.cancel("web")
    scene.stopped("web.0")
    assert scene.states("web.0") == ["cancelled"]


def test_a_cancelled_service_does_not_start_again() -> None:
    scene = Scene("a")
    scene.submit(service("web", count=2))
    scene.running("web.0", "web.1")
    scene.ended("web.0")
    assert scene.states("web.0") == ["queued"], "it waits before it starts again"
    scene.cancel("web")
    scene.stopped("web.1")
    scene.wait("10m")
    assert scene.counts("web") == {"cancelled": 2}


# retry


def test_retry_runs_again_what_ended_otherwise_than_well() -> None:
    scene = Scene("a")
    scene.submit(job("array", count=3))
    scene.ended("array.0")
    scene.ended("array.1", code=1)
    assert outcome(scene.retry("array")) == {
        "changes": ["workload array", "instance array.1 placed"],
        "orders": ["a: run array.1 attempt 2"],
        "replies": ["array"],
    }
    assert scene.states("array.0", "array.1", "array.2") == ["succeeded", "placed", "placed"]


def test_retry_of_a_named_instance_runs_it_again_however_it_ended() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.ended("web.0")
    assert outcome(scene.retry("web")) == {
        "replies": [
            "409 nothing_to_retry: nothing of default/web has failed; name an instance (web.0) to run it again anyway"
        ]
    }
    scene.retry("web.0")
    assert (scene.states("web.0"), scene.state.workloads["default/web"].finished_ms) == (["placed"], 0)


def test_retry_of_a_cancelled_workload_runs_also_what_never_ran() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("array", count=3))
    scene.cancel("array")
    scene.stopped("array.0")
    assert scene.counts("array") == {"cancelled": 3}
    scene.retry("array")
    assert scene.counts("array") == {"placed": 1, "queued": 2}
    for name in ("array.0", "array.1", "array.2"):
        scene.ended(name)
    assert scene.counts("array") == {"succeeded": 3}


def test_what_never_ran_keeps_its_age_when_it_is_tried_again() -> None:
    scene = Scene()
    scene.submit(job("old"))
    scene.submit(job("young"))
    scene.cancel("old")
    scene.hello("too-small", cpu=0.5)
    scene.retry("old")
    scene.hello("a", cpu=1)
    assert scene.states("old.0") == ["placed"]
    assert scene.counts("young") == {"queued": 1}


def test_retry_of_one_replica_of_a_cancelled_service_leaves_the_others_cancelled() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(service("web", count=3))
    scene.cancel("web")
    scene.stopped("web.0")
    scene.retry("web.0")
    scene.hello("b", cpu=4)
    assert scene.counts("web") == {"placed": 1, "cancelled": 2}


def test_a_retried_instance_of_a_cancelled_array_is_retried_and_rescheduled_like_any_other() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("array", count=3, retries={"max": 1, "on": ["lost", "failed"]}))
    scene.cancel("array")
    scene.stopped("array.0")
    scene.retry("array.0")
    scene.ended("array.0", code=1)
    assert (scene.states("array.0"), scene.instance("array.0").attempt) == (["placed"], 3)
    scene.hello("b", cpu=1)
    scene.wait("5s", silent="a")
    assert (scene.states("array.0"), scene.where("array.0")) == (["placed"], ["b"])


@pytest.mark.parametrize("limit", ["queue_timeout", "deadline"])
def test_limits_on_waiting_count_from_the_retry(limit: str) -> None:
    scene = Scene("a")
    scene.submit(job("web", **{limit: "10s"}))
    scene.ended("web.0", code=1)
    scene.part("a", leaving=True)
    scene.wait("1h")
    scene.retry("web")
    scene.wait("9s")
    assert scene.states("web.0") == ["queued"]


def test_retry_of_what_is_live_is_a_conflict() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    (reply,) = outcome(scene.retry("web.0"))["replies"]
    assert reply.startswith("409 nothing_to_retry")


# when_full


def test_a_workload_that_does_not_want_to_wait_is_rejected_with_the_reason() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("one"))
    assert outcome(scene.submit(job("two", when_full="reject"))) == {
        "changes": ["workload two rejected"],
        "replies": ["two"],
    }
    assert message_of(scene.state.workloads["default/two"].reason) == (
        "insufficient_resources: resources: needs 1 cpu, at most 0 cpu free (1 node)"
    )
    scene.ended("one.0")
    assert scene.counts("two") == {"rejected": 1}


def test_what_was_rejected_may_be_tried_again_and_still_does_not_wait() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("one"))
    scene.submit(job("two", when_full="reject"))
    scene.retry("two")
    assert scene.counts("two") == {"rejected": 1}
    scene.ended("one.0")
    scene.retry("two")
    assert scene.counts("two") == {"placed": 1}


def test_more_than_one_pass_can_place_is_not_a_reason_to_reject() -> None:
    scene = Scene("a", cpu=5, placements_max=2)
    done = scene.submit(job("array", count=5, when_full="reject"))
    assert done.wake_at_ms == scene.now
    scene.step()
    scene.step()
    assert scene.counts("array") == {"placed": 5}


def test_applying_a_finished_job_again_changes_nothing_until_it_is_asked_to_run_again() -> None:
    scene = Scene("a")
    scene.submit(job("build"))
    scene.ended("build.0", code=1, cause="exited")
    serial = scene.state.workloads["default/build"].serial
    scene.apply(job("build"))
    assert (scene.states("build.0"), scene.state.workloads["default/build"].serial) == (["failed"], serial)
    scene.apply(job("build", command="make other"))
    assert scene.states("build.0") == ["placed"], "another document is another job"
    scene.ended("build.0")
    scene.step(Submit(1, (wanted(job("build", command="make other")),), same_ok=True, rerun=True))
    assert scene.states("build.0") == ["placed"]


def test_applying_a_cancelled_service_again_starts_it() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.cancel("web")
    scene.stopped("web.0")
    scene.apply(service("web"))
    assert scene.states("web.0") == ["placed"]
