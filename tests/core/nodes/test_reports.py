"""What agents say: hello and its names, reports that count, and reports that do not."""

import msgspec
import pytest

from roost.model.events import NodeConnected, ReportsReceived
from roost.model.protocol import Hello, Report
from roost.model.reasons.attempts import ExitCode, InputsFailed, KilledBySignal, StartFailed, TimeoutExceeded
from roost.model.reasons.reason import Reason
from roost.model.records.files import InputFailure, InputProblem
from tests.core.scene import Scene, facts_of, job, outcome

MISSING = InputFailure(InputProblem.NOT_FOUND, "data/a", is_final=True)


def test_a_new_agent_is_a_ready_node_and_gets_its_whole_assignment() -> None:
    scene = Scene()
    assert outcome(scene.hello("a")) == {
        "changes": ["meta meta", "node a ready"],
        "orders": ["a: whole: nothing"],
        "replies": ["welcome"],
        "nodes": ["a ready: node_registered"],
    }


def test_a_name_used_by_a_connected_agent_is_refused() -> None:
    scene = Scene("a")
    assert outcome(scene.hello("a", identity="another")) == {
        "replies": ["409 already_exists: node: a node named a is connected; give this agent another --name"]
    }
    assert scene.state.nodes["a"].identity == "machine-a"


def test_the_same_machine_may_say_hello_again_and_the_old_session_is_no_longer_heard() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    old = scene.state.nodes["a"].session
    assert outcome(scene.hello("a", "web.0"))["orders"] == ["a: whole: run web.0 attempt 1"]
    late = scene.report("a", Report(scene.instance("web.0").token, "ended", cause="exited", code=0), session=old)
    assert outcome(late) == {"ignored": ["a: old_session"]}
    assert scene.states("web.0") == ["running"]


def test_room_is_counted_once_however_often_a_node_speaks_of_what_it_runs() -> None:
    scene = Scene("a")
    scene.submit(job("web", resources={"cpu": 3}))
    scene.running("web.0")
    for _ in range(3):
        scene.hello("a", "web.0")
        scene.running("web.0")
        scene.report("a", lacking=True)
        assert scene.used("a") == 3_000
    scene.ended("web.0")
    assert scene.used("a") == 0


def test_a_name_of_a_disconnected_agent_that_holds_nothing_is_taken_over() -> None:
    scene = Scene("a")
    scene.part("a")
    assert outcome(scene.hello("a", identity="another"))["replies"] == ["welcome"]
    assert scene.state.nodes["a"].identity == "another"


def test_a_name_of_a_disconnected_agent_is_not_taken_over_while_its_work_may_run() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    scene.part("a")
    (reply,) = outcome(scene.hello("a", identity="another"))["replies"]
    assert reply.startswith("409 already_exists: node: the last node named a may still be running work")
    scene.wait("5s")
    done = scene.hello("a", identity="another")
    assert outcome(done)["replies"] == ["welcome"]
    assert outcome(done)["orders"] == ["a: whole: run web.0 attempt 2"]


def test_a_stranger_that_takes_a_name_over_does_not_inherit_what_was_kept_there() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web", when_lost="pin", fenced=False))
    scene.running("web.0")
    run = scene.as_ordered("web.0")
    scene.wait("5s", silent="a")
    assert (scene.states("web.0"), scene.state.nodes["a"].status) == (["running"], "lost")
    done = scene.hello("a", run, identity="another", cpu=1)
    assert outcome(done)["orders"] == ["a: whole: nothing", "b: run web.0 attempt 2"]
    assert scene.used("a") == 1_000, "the stranger still runs the old attempt, which takes room until it is gone"


def test_a_name_is_not_given_to_a_stranger_while_what_must_not_run_twice_is_kept_there() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web", when_lost="pin"))
    scene.running("web.0")
    scene.wait("5s", silent="a")
    done = scene.hello("a", identity="another", cpu=1)
    assert outcome(done) == {
        "replies": [
            "409 already_exists: node: the last node named a may still be running default/web.0; cancel that first"
        ]
    }
    scene.cancel("web")
    assert outcome(scene.hello("a", identity="another", cpu=1))["replies"] == ["welcome"]


def test_a_hello_that_was_overtaken_by_a_later_one_is_to_be_sent_again() -> None:
    scene = Scene()
    scene.hello("a", sent_ms=200)
    scene.submit(job("web"))
    scene.running("web.0")
    (reply,) = outcome(scene.hello("a", sent_ms=199))["replies"]
    assert reply.startswith("503 stale_hello: stale registration of node a")
    assert scene.states("web.0") == ["running"]
    scene.hello("a", identity="machine-a/2", sent_ms=1)
    assert scene.state.liveness["a"].connected, "its machine has started again"


# reports that count


def test_the_life_of_an_instance() -> None:
    scene = Scene("a")
    assert outcome(scene.submit(job("web"))) == {
        "changes": ["workload web", "instance web.0 placed"],
        "orders": ["a: run web.0 attempt 1"],
        "replies": ["web"],
    }
    token = scene.instance("web.0").token
    assert outcome(scene.report("a", Report(token, "starting"))) == {"changes": ["instance web.0 starting"]}
    assert outcome(scene.running("web.0")) == {"changes": ["instance web.0 running"]}
    assert outcome(scene.ended("web.0")) == {
        "changes": ["instance web.0 succeeded", "workload web"],
        "orders": ["a: drop"],
    }
    assert [move.state for move in scene.instance("web.0").story] == [
        "queued", "placed", "starting", "running", "succeeded",
    ]  # fmt: skip
    assert scene.used("a") == 0


@pytest.mark.parametrize(
    ("report", "state", "reason"),
    [
        (Report(0, "ended", cause="exited", code=0), "succeeded", ExitCode(0)),
        (Report(0, "ended", cause="exited", code=1), "failed", ExitCode(1)),
        (Report(0, "ended", cause="exited", signal=9), "failed", KilledBySignal(9)),
        (Report(0, "ended", cause="exited", signal=9, error="too much"), "failed", KilledBySignal(9, 0, "too much")),
        (Report(0, "ended", cause="timed_out", signal=9), "timed_out", TimeoutExceeded(10_000)),
        (Report(0, "ended", cause="error", error="no such program"), "failed", StartFailed("no such program")),
        (Report(0, "ended", cause="error", inputs_failed=MISSING), "failed", InputsFailed(MISSING)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["placed", "running"])
def test_how_it_ended_is_how_it_is_reported(report: Report, state: str, reason: Reason, before: str) -> None:
    scene = Scene("a")
    scene.submit(job("web", timeout="10s"))
    if before == "running":
        scene.running("web.0")
    token = scene.instance("web.0").token
    done = scene.report("a", msgspec.structs.replace(report, token=token))
    assert outcome(done) == {"changes": [f"instance web.0 {state}", "workload web"], "orders": ["a: drop"]}
    ended = scene.instance("web.0")
    assert (ended.reason, ended.exit_code, ended.signal) == (reason, report.code, report.signal)
    assert scene.used("a") == 0


def test_the_step_that_failed_is_reported_with_its_code() -> None:
    scene = Scene("a")
    scene.submit({"name": "ci", "steps": [{"run": "true"}, {"run": "exit 3"}, {"run": "true"}]})
    scene.running("ci.0")
    assert outcome(scene.running("ci.0", step=1)) == {"changes": ["instance ci.0 running"]}
    scene.ended("ci.0", code=3, step=1)
    failed = scene.instance("ci.0")
    assert (failed.state, failed.step, failed.exit_code, failed.reason) == ("failed", 1, 3, ExitCode(3, 1))


def test_times_are_those_of_the_run_not_of_the_report() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    placed = scene.now
    scene.wait("2s")
    scene.ended("web.0", started_ago_ms=1_500, ended_ago_ms=500)
    instance = scene.instance("web.0")
    assert (instance.started_ms, instance.finished_ms) == (placed + 500, placed + 1_500)


def test_a_run_cannot_have_started_before_it_was_placed_nor_ended_before_it_started() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.ended("web.0", started_ago_ms=99_999, ended_ago_ms=999_999)
    instance = scene.instance("web.0")
    assert (instance.started_ms, instance.finished_ms) == (scene.now, scene.now)


# reports that do not count


def test_a_report_that_says_queued_is_refused() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    token = scene.instance("web.0").token
    assert outcome(scene.report("a", Report(token, "queued"))) == {
        "ignored": [f"a: unknown_state {token}"],
    }
    assert scene.states("web.0") == ["placed"]


def test_a_report_of_an_instance_on_another_node_is_ignored_and_reported() -> None:
    scene = Scene("a", "b")
    scene.submit(job("web"))
    token = scene.instance("web.0").token
    assert outcome(scene.report("b", Report(token, "ended", cause="exited", code=0))) == {
        "ignored": [f"b: not_its_attempt {token}"],
        "orders": ["b: drop"],
    }
    assert (scene.states("web.0"), scene.where("web.0")) == (["placed"], ["a"])


def test_a_report_of_an_older_attempt_is_ignored_and_the_live_attempt_is_untouched() -> None:
    scene = Scene("a")
    scene.submit(job("web", retries={"max": 1, "on": ["failed"]}))
    old = scene.instance("web.0").token
    scene.ended("web.0", code=1)
    assert (scene.states("web.0"), scene.instance("web.0").attempt) == (["placed"], 2)
    assert outcome(scene.report("a", Report(old, "ended", cause="exited", code=0))) == {
        "ignored": [f"a: not_its_attempt {old}"],
        "orders": ["a: drop"],
    }
    assert (scene.states("web.0"), scene.used("a")) == (["placed"], 1_000)


def test_an_end_that_is_reported_twice_counts_once() -> None:
    scene = Scene("a")
    scene.submit(job("one"), job("two"))
    report = Report(scene.instance("one.0").token, "ended", cause="exited", code=0)
    assert outcome(scene.report("a", report, report)) == {
        "changes": ["instance one.0 succeeded", "workload one"],
        "ignored": [f"a: not_its_attempt {report.token}"],
        "orders": ["a: drop, drop"],
    }
    scene.report("a", report)
    assert scene.used("a") == 1_000


def test_a_report_from_an_unknown_node_is_ignored() -> None:
    scene = Scene("a")
    assert outcome(scene.report("missing", Report(1, "running"), session=1)) == {"ignored": ["missing: old_session"]}


def test_reports_never_move_an_attempt_back() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    scene.running("web.0")
    token = scene.instance("web.0").token
    assert outcome(scene.report("a", Report(token, "starting"), Report(token, "running"))) == {}
    assert scene.states("web.0") == ["running"]


def test_an_agent_that_lacks_a_delta_gets_the_whole_assignment() -> None:
    scene = Scene("a")
    scene.submit(job("one"))
    scene.submit(job("two"))
    scene.running("two.0")
    scene.cancel("two")
    done = scene.report("a", lacking=True)
    assert outcome(done) == {"orders": ["a: whole: run one.0 attempt 1, run two.0 attempt 1, stop (cancel_requested)"]}


def test_orders_are_numbered_without_gaps_until_the_next_hello() -> None:
    scene = Scene("a")
    numbers = [scene.steps[-1].assignments[0][2:5]]
    for name in ("one", "two"):
        numbers.append(scene.submit(job(name)).assignments[0][2:5])
    assert numbers == [(0, 1, True), (1, 2, False), (2, 3, False)]
    assert scene.hello("a").assignments[0][2:5] == (0, 1, True)


# hello against what the server knows


def test_a_node_that_comes_back_without_its_work_has_lost_it() -> None:
    scene = Scene("a")
    scene.submit(job("one"), job("two"))
    scene.running("one.0")
    done = scene.hello("a")
    assert outcome(done) == {
        "changes": ["instance one.0 placed", "node a ready"],
        "orders": ["a: whole: run two.0 attempt 1, run one.0 attempt 2"],
        "replies": ["welcome"],
    }


def test_a_node_that_comes_back_with_less_than_it_uses_takes_nothing_more() -> None:
    scene = Scene("a", cpu=4)
    scene.honest = False
    scene.submit(job("four", count=4))
    scene.hello("a", "four.0", "four.1", "four.2", "four.3", cpu=2)
    scene.submit(job("more"))
    assert scene.counts("more") == {"queued": 1}
    scene.ended("four.0", "four.1")
    assert scene.counts("more") == {"queued": 1}
    scene.ended("four.2")
    assert scene.counts("more") == {"placed": 1}


def test_what_may_run_twice_starts_elsewhere_at_once_and_its_first_run_takes_room_until_it_ends() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("web", fenced=False))
    scene.running("web.0")
    run, report = scene.as_ordered("web.0")
    assert outcome(scene.part("a")) == {
        "changes": ["node a suspect", "instance web.0 placed"],
        "orders": ["b: run web.0 attempt 2"],
        "nodes": ["a suspect: node_stream_closed"],
    }
    scene.hello("a", (run, report), cpu=1)
    scene.submit(job("next"))
    assert (scene.counts("next"), scene.used("a")) == ({"queued": 1}, 1_000)
    assert outcome(scene.report("a", Report(run.token, "ended", cause="stopped"))) == {
        "changes": ["instance next.0 placed"],
        "orders": ["a: drop, run next.0 attempt 1"],
    }


def test_a_node_whose_agent_was_shut_down_is_stopped_and_not_lost() -> None:
    scene = Scene("a")
    assert outcome(scene.part("a", leaving=True)) == {"changes": ["node a stopped"], "nodes": ["a stopped: node_left"]}
    scene.wait("10s", silent="a")
    scene.restart()
    scene.wait("10s", silent="a")
    assert scene.state.nodes["a"].status == "stopped", "also after its lease, and for another server"
    scene.hello("a")
    assert scene.state.nodes["a"].status == "ready"


def test_a_stopped_node_is_deleted_after_a_day() -> None:
    scene = Scene("a")
    scene.part("a", leaving=True)
    scene.wait("25h", silent="a")
    assert "a" not in scene.state.nodes


def test_goodbye_of_a_node_that_still_holds_work_waits_for_the_lease() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    assert outcome(scene.part("a", leaving=True)) == {
        "changes": ["node a suspect"],
        "nodes": ["a suspect: node_leaving"],
    }
    assert scene.states("web.0") == ["placed"]


def test_a_node_may_tell_anew_what_it_offers() -> None:
    scene = Scene("a")
    scene.submit(job("big", resources={"cpu": 8}))
    assert scene.counts("big") == {"queued": 1}
    scene.hello("a", facts=facts_of(cpu=8))
    assert scene.counts("big") == {"placed": 1}


def test_a_node_that_uses_more_than_it_offers_still_takes_what_needs_nothing_of_that() -> None:
    scene = Scene("a", cpu=4)
    scene.honest = False
    scene.submit(job("four", count=4))
    scene.hello("a", "four.0", "four.1", "four.2", "four.3", cpu=1)
    scene.submit(job("light", resources={"memory": "1GiB"}))
    assert scene.states("light.0") == ["placed"]


def test_a_run_is_as_long_as_its_node_measured_however_late_its_report_is_decided() -> None:
    scene = Scene("a")
    scene.submit(job("short"))
    scene.running("short.0")
    started_ms, instance = scene.instance("short.0").started_ms, scene.instance("short.0")
    received_ms = started_ms + 20_000
    scene.now = started_ms + 45_000  # the store was away
    report = Report(instance.token, "ended", 20_000, 0, "exited", 0)
    scene.step(ReportsReceived("a", scene.state.nodes["a"].session, 2, (report,), received_ms=received_ms))
    assert (instance.state, instance.finished_ms - instance.started_ms) == ("succeeded", 20_000)


def test_a_hello_that_is_decided_late_keeps_the_times_of_its_runs() -> None:
    scene = Scene("a")
    scene.submit(job("short"))
    run, _ = scene.as_ordered("short.0")
    scene.now += 60_000
    report = Report(run.token, "ended", 25_000, 5_000, "exited", 0)
    hello = Hello("a", "machine-a", facts_of(), 1, ((run, report),))
    scene.step(NodeConnected(1, hello, received_ms=scene.now - 10_000))
    instance = scene.instance("short.0")
    assert (scene.now - instance.started_ms, scene.now - instance.finished_ms) == (35_000, 15_000)
