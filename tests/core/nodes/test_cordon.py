"""Cordon and maintenance: what stands still, what goes on, and what happens when it is over."""

import pytest

from roost.core.explain.advice import advise
from roost.core.explain.why import why
from roost.core.state.outcome import Step
from roost.core.state.state import in_maintenance
from roost.core.step import make_plan
from roost.core.timers import TIMERS_SPARE
from roost.model.events import Cancel, Cordon, Maintain, Reserve, Submit
from roost.model.records.project import Reservation
from roost.schema.reason_text import message_of, render_text
from tests.core.scene import Scene, job, outcome, service, wanted

LEASE: dict[str, int] = {"lease_ms": 4_000, "lease_margin_ms": 400}


def cordon(scene: Scene, node: str) -> Step:
    return scene.step(Cordon(1, node))


def begin(scene: Scene, reason: str = "new switches", for_ms: int = 0) -> Step:
    return scene.step(Maintain(1, True, reason, for_ms))


def end(scene: Scene) -> Step:
    return scene.step(Maintain(1, False))


# cordon


def test_nothing_new_comes_to_a_cordoned_node_and_what_runs_there_stays() -> None:
    scene = Scene("a", "b")
    scene.submit(job("old", count=2))
    scene.running("old.0", "old.1")
    done = cordon(scene, "a")
    assert outcome(done) == {
        "changes": ["node a cordoned"], "replies": ["a"], "nodes": ["a cordoned: cordon_requested"],
    }  # fmt: skip
    scene.submit(job("new", count=4))
    assert scene.where("new.0", "new.1", "new.2") == ["b", "b", "b"]
    assert scene.counts("new") == {"placed": 3, "queued": 1}
    assert scene.states("old.0", "old.1") == ["running", "running"]


def test_cordoning_twice_is_fine_and_an_unknown_node_is_not_found() -> None:
    scene = Scene("a")
    cordon(scene, "a")
    assert outcome(cordon(scene, "a")) == {"replies": ["a"]}
    assert outcome(cordon(scene, "x")) == {"replies": ["404 not_found: there is no node x"]}


def test_uncordon_ends_a_cordon() -> None:
    scene = Scene("a")
    cordon(scene, "a")
    scene.submit(job("waits"))
    assert scene.counts("waits") == {"queued": 1}
    scene.uncordon("a")
    assert scene.where("waits.0") == ["a"]
    assert not scene.state.nodes["a"].cordoned


def test_a_cordon_survives_a_restart_and_a_new_stream() -> None:
    scene = Scene("a")
    cordon(scene, "a")
    scene.restart()
    scene.hello("a")
    assert scene.state.nodes["a"].status == "cordoned"
    scene.part("a")
    assert scene.state.nodes["a"].status == "suspect"
    scene.hello("a")
    assert scene.state.nodes["a"].status == "cordoned"
    scene.part("a")
    scene.wait("5s")
    assert scene.state.nodes["a"].status == "lost"
    scene.hello("a")
    assert scene.state.nodes["a"].status == "cordoned"


def test_a_cordoned_node_can_be_drained() -> None:
    scene = Scene("a", "b")
    scene.submit(job("old"))
    scene.running("old.0")
    node = scene.where("old.0")[0]
    cordon(scene, node)
    scene.drain(node)
    assert scene.state.nodes[node].status == "draining"
    scene.stopped("old.0")
    assert scene.state.nodes[node].status == "drained"
    assert scene.where("old.0") != [node]
    scene.uncordon(node)
    assert scene.state.nodes[node].status == "ready"


def test_why_names_the_cordoned_node() -> None:
    scene = Scene("n1")
    cordon(scene, "n1")
    scene.submit(job("waits"))
    reported = why(scene.state, "default/waits")
    assert reported.code == "insufficient_resources"
    assert "node n1 is cordoned" in render_text(reported.text)
    two = Scene("n1", "n2")
    cordon(two, "n1")
    cordon(two, "n2")
    two.submit(job("waits"))
    assert "2 cordoned" in render_text(why(two.state, "default/waits").text)


# maintenance: what stands still


def test_nothing_is_placed_while_there_is_maintenance() -> None:
    scene = Scene("a")
    done = begin(scene)
    assert outcome(done) == {"changes": ["meta meta"], "replies": ["on"]}
    assert in_maintenance(scene.state)
    scene.submit(job("waits"))
    assert scene.counts("waits") == {"queued": 1}
    assert scene.steps[-1].wake_at_ms != scene.now, "nothing is to be looked at again at once"
    done = end(scene)
    assert outcome(done)["orders"] == ["a: run waits.0 attempt 1"]
    assert not in_maintenance(scene.state)


def test_to_end_what_is_not_there_is_fine_and_to_begin_again_changes_the_reason() -> None:
    scene = Scene("a")
    assert outcome(end(scene)) == {"replies": ["off"]}
    begin(scene, "one")
    since = scene.state.meta.maintenance_since_ms
    scene.wait("1m")
    begin(scene, "two", 60_000)
    assert (scene.state.meta.maintenance, scene.state.meta.maintenance_since_ms) == ("two", since)
    assert scene.state.meta.maintenance_until_ms == scene.now + 60_000


def test_without_a_reason_it_says_so() -> None:
    scene = Scene("a")
    begin(scene, "")
    assert scene.state.meta.maintenance == "no reason was given"


def test_maintenance_ends_by_itself_also_after_a_restart() -> None:
    scene = Scene("a")
    begin(scene, for_ms=3_600_000)
    scene.submit(job("waits"))
    scene.wait("30m")
    scene.restart()
    scene.hello("a")
    assert in_maintenance(scene.state)
    scene.wait("29m")
    assert in_maintenance(scene.state)
    scene.wait("1m")
    assert not in_maintenance(scene.state)
    assert scene.where("waits.0") == ["a"]


def test_an_end_that_was_put_off_does_not_come_early() -> None:
    scene = Scene("a")
    begin(scene, for_ms=60_000)
    begin(scene, for_ms=0)
    scene.wait("2m")
    assert in_maintenance(scene.state)


@pytest.mark.parametrize("is_silent", [False, True], ids=["stream broke", "fell silent"])
def test_a_node_out_of_touch_is_suspect_but_not_lost(is_silent: bool) -> None:
    scene = Scene("a", "b", **LEASE)
    scene.submit(job("work"))
    scene.running("work.0")
    node = scene.where("work.0")[0]
    begin(scene)
    if not is_silent:
        scene.part(node)
    for _ in range(5):
        scene.wait("1m", silent=node)
    assert scene.state.nodes[node].status == "suspect"
    assert scene.states("work.0") == ["running"]
    end(scene)
    scene.wait("4s", silent=node)  # less than a lease and its margin since the end
    assert scene.states("work.0") == ["running"]
    scene.wait("401ms", silent=node)
    assert scene.state.nodes[node].status == "lost"
    assert scene.where("work.0") != [node]


def test_a_silent_node_that_is_heard_again_is_in_service_again() -> None:
    scene = Scene("a", **LEASE)
    begin(scene)
    scene.wait("5s", silent="a")
    assert scene.state.nodes["a"].status == "suspect"
    assert not scene.state.fleet.open[0]
    done = scene.wait("1s")
    assert outcome(done)["nodes"] == ["a ready: heartbeats_resumed"]
    scene.wait("5s", silent="a")
    assert scene.state.nodes["a"].status == "suspect", "and it may fall silent again"
    scene.wait("1s")
    end(scene)
    scene.submit(job("work"))
    assert scene.where("work.0") == ["a"]


def test_a_node_lost_in_a_change_of_leader_is_not_given_up_either() -> None:
    scene = Scene("a", "b", **LEASE)
    scene.submit(job("work"))
    scene.running("work.0")
    node = scene.where("work.0")[0]
    begin(scene)
    scene.restart()
    scene.hello("b" if node == "a" else "a")
    scene.wait("1m")
    assert scene.states("work.0") == ["running"]
    assert scene.state.nodes[node].status == "suspect"


def test_work_that_may_run_twice_is_not_started_elsewhere_until_a_lease_after_the_end() -> None:
    scene = Scene("a", "b", **LEASE)
    scene.submit(job("work", fenced=False))
    scene.running("work.0")
    node = scene.where("work.0")[0]
    begin(scene)
    scene.part(node)
    assert scene.states("work.0") == ["running"]
    end(scene)
    assert scene.where("work.0") == [node]
    scene.wait("4401ms")
    assert scene.where("work.0") != [node]


def test_a_drain_waits_for_the_end() -> None:
    scene = Scene("a", "b")
    scene.submit(job("work"), service("web"))
    scene.running("work.0", "web.0")
    begin(scene)
    scene.drain("a")
    scene.drain("b", "10m")
    scene.wait("11m")
    assert scene.states("work.0", "web.0") == ["running", "running"]
    end(scene)
    assert scene.states("work.0", "web.0") == ["stopping", "stopping"]


def test_limits_on_waiting_are_held_up_and_an_instance_that_fits_afterwards_starts() -> None:
    scene = Scene("a", cpu=1)
    begin(scene)
    scene.submit(job("first", queue_timeout="1m"), job("second", queue_timeout="1m"))
    scene.wait("1h")
    assert [scene.counts(name) for name in ("first", "second")] == [{"queued": 1}, {"queued": 1}]
    end(scene)
    assert scene.states("first.0") == ["placed"]
    assert scene.counts("second") == {"queued": 1}
    scene.wait("5s")
    assert scene.counts("second") == {"expired": 1}


def test_ticks_of_a_schedule_wait_and_are_caught_up_with_by_its_own_rule() -> None:
    scene = Scene("a")
    scene.submit(job("minutely", schedule={"cron": "* * * * *", "catch_up": 2, "overlap": "allow"}))
    begin(scene)
    scene.wait("10m")
    assert list(scene.state.workloads) == ["default/minutely"]
    end(scene)
    runs = [workload for workload in scene.state.workloads.values() if workload.parent]
    assert len(runs) == 3, "two that are made up for, and one that is on time"


def test_timers_of_what_has_gone_do_not_pile_up() -> None:
    scene = Scene()
    scene.checked = False
    begin(scene)
    for number in range(200):
        scene.submit(*[job(f"w{number}-{index}", queue_timeout=1, retention=0) for index in range(100)])
        scene.step(*[Cancel(1, f"default/w{number}-{index}") for index in range(100)])
        scene.wait("2s")
    assert len(scene.state.workloads) < 200
    assert len(scene.state.timers) + len(scene.state.postponed) < 2 * TIMERS_SPARE


def test_no_instance_is_preempted_and_a_reservation_moves_no_instance() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("low", priority=1))
    scene.running("low.0")
    begin(scene)
    scene.submit(job("high", priority=90))
    scene.step(Reserve(1, Reservation("r", "other", ("a",), 0)))
    scene.wait("1m")
    assert scene.states("low.0") == ["running"]
    end(scene)
    assert scene.states("low.0") == ["stopping"]


def test_of_a_gang_no_instance_is_stopped_until_the_end() -> None:
    scene = Scene("a", "b")
    scene.submit(job("pair", count=2, gang=True, retries={"max": 3, "on": ["failed", "lost"]}))
    scene.running("pair.0", "pair.1")
    begin(scene)
    scene.ended("pair.0", code=1)
    assert scene.states("pair.0", "pair.1") == ["queued", "running"]
    end(scene)
    assert scene.states("pair.0", "pair.1") == ["queued", "stopping"]
    scene.stopped("pair.1")
    assert scene.states("pair.0", "pair.1") == ["placed", "placed"]


def test_an_instance_that_does_not_want_to_wait_is_turned_away_with_the_reason() -> None:
    scene = Scene("a")
    begin(scene)
    scene.submit(job("now", when_full="reject"))
    assert scene.counts("now") == {"rejected": 1}
    assert message_of(scene.state.workloads["default/now"].reason) == (
        "maintenance: maintenance since 0ms: new switches"
    )


# maintenance: what goes on


def test_reports_ends_and_cancels_go_on_and_what_ended_starts_again_afterwards() -> None:
    scene = Scene("a")
    scene.submit(job("done"), job("gone"), service("web"))
    scene.running("done.0", "gone.0", "web.0")
    begin(scene)
    scene.ended("done.0")
    scene.cancel("gone")
    scene.stopped("gone.0")
    scene.ended("web.0", code=1)
    assert scene.states("done.0", "gone.0", "web.0") == ["succeeded", "cancelled", "queued"]
    scene.wait("1m")
    assert scene.states("web.0") == ["queued"]
    end(scene)
    assert scene.states("web.0") == ["placed"]


def test_what_an_agent_stopped_at_the_end_of_its_lease_waits_and_runs_afterwards() -> None:
    scene = Scene("a")
    scene.submit(job("work"))
    scene.running("work.0")
    begin(scene)
    scene.ended("work.0", cause="lease", code=None, signal=9)
    assert scene.states("work.0") == ["queued"]
    end(scene)
    assert scene.states("work.0") == ["placed"]


def test_new_nodes_come_and_are_used_afterwards() -> None:
    scene = Scene()
    begin(scene)
    scene.hello("a")
    scene.submit(job("work"))
    assert scene.counts("work") == {"queued": 1}
    end(scene)
    assert scene.where("work.0") == ["a"]


def test_why_says_since_when_and_what_for_and_gives_no_useless_advice() -> None:
    scene = Scene("a")
    begin(scene)
    scene.submit(job("waits"))
    scene.wait("12m")
    reported, advice = advise(scene.state, "default/waits")
    assert reported.code == "maintenance"
    assert render_text(reported.text).endswith("waits until it is over: maintenance since 12m: new switches")
    assert not advice.suggestions


def test_a_standby_knows_of_it() -> None:
    scene = Scene("a")
    begin(scene)
    assert in_maintenance(scene.standby)


def test_a_plan_that_was_made_before_does_not_hold() -> None:
    """To apply a plan is all or nothing, also while nothing is placed."""
    scene = Scene("a")
    submit = Submit(1, (wanted(job("work")),))
    plan = make_plan(scene.state, submit, scene.now)
    begin(scene)
    done = scene.step(Submit(1, submit.specs, expected=plan))
    assert "plan_stale" in outcome(done)["replies"][0]
    assert "default/work" not in scene.state.workloads
