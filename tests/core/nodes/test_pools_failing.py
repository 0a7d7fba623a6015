"""Pools that fail or are emptied: what becomes of work, who is reported, and when they are well again."""

from roost.core.explain.why import why
from roost.model.events import Maintain, Unset
from roost.model.reasons.attempts import PoolFailed
from roost.model.reasons.reason import MovedToQueue
from roost.model.records.project import Pool
from roost.schema.reason_text import message_of, render_text
from tests.core.pool_scene import CI, mark, pool_scene, set_pool
from tests.core.scene import Scene, job, outcome, service

# a pool that fails


def test_a_failed_pool_moves_what_runs_there_each_with_the_reason() -> None:
    scene = pool_scene(ci=("a",), spare=("b",))
    scene.submit(job("work", placement={"pool": ["ci"]}), service("web"))
    scene.running("work.0")
    set_pool(scene, "ci", fallback="spare")
    done = mark(scene, "ci", "failed", "power is out")
    assert "a: stop (pool_failed)" in outcome(done)["orders"]
    scene.stopped("work.0")
    assert scene.where("work.0") == ["b"]
    moved = MovedToQueue(PoolFailed("ci", "moved", "power is out"))
    assert moved in [line.reason for line in scene.instance("work.0").story]


def test_without_a_fallback_it_waits_and_says_why() -> None:
    scene = pool_scene(ci=("a",), spare=("b",))
    scene.submit(job("work", **CI), job("any"))
    scene.running("work.0", *(["any.0"] if scene.where("any.0") == ["a"] else []))
    mark(scene, "ci", "failed", "power is out")
    scene.stopped("work.0")
    assert scene.states("work.0") == ["queued"]
    reported = why(scene.state, "default/work")
    assert reported.code == "insufficient_resources"
    assert "pool: ci has failed (power is out); no fallback pool is ready" in render_text(reported.text)
    assert [blocker.code for blocker in reported.blockers if blocker.code == "pool_failed"] == ["pool_failed"]
    mark(scene, "ci", "ready")
    assert scene.where("work.0") == ["a"]


def test_an_instance_that_waits_for_it_goes_to_the_fallback() -> None:
    scene = Scene()
    scene.hello("a", pool="ci", cpu=1)
    scene.hello("b", pool="spare")
    scene.submit(job("first", **CI), job("second", **CI))
    scene.running("first.0")
    assert scene.counts("second") == {"queued": 1}
    set_pool(scene, "ci", fallback="spare")
    mark(scene, "ci", "failed", "fire")
    assert scene.where("second.0") == ["b"]
    scene.stopped("first.0")
    assert scene.where("first.0") == ["b"]


def test_a_fallback_that_has_failed_has_its_own() -> None:
    scene = pool_scene(one=("a",), two=("b",), three=("c",), four=("d",))
    set_pool(scene, "two", fallback="three")
    set_pool(scene, "one", fallback="two")
    mark(scene, "one", "failed")
    mark(scene, "two", "failed")
    scene.submit(job("work", placement={"pool": "one"}))
    assert scene.where("work.0") == ["c"]
    scene.submit(job("large", resources={"cpu": 4}, placement={"pool": "one"}))
    assert "pool: not in one, nor in two or three in its place" in render_text(why(scene.state, "default/large").text)
    mark(scene, "three", "failed")
    message = "pool: one has failed, two has failed, three has failed; no fallback pool is ready"
    assert message in render_text(why(scene.state, "default/large").text)


def test_a_failed_pool_cancels_by_policy_each_with_the_reason() -> None:
    scene = Scene()
    scene.hello("a", pool="ci", cpu=2)
    scene.hello("b", pool="other")
    set_pool(scene, "ci", when_failed="cancel")
    scene.submit(job("runs", count=3, **CI), job("waits", **CI), service("web", count=2, **CI), job("free"))
    scene.running("runs.0", "runs.1")
    mark(scene, "ci", "failed", "sold")
    assert scene.counts("runs") == {"stopping": 2, "cancelled": 1}
    assert scene.counts("waits") == {"cancelled": 1}
    assert scene.counts("web") == {"cancelled": 2}
    assert scene.state.workloads["default/web"].finished_ms
    scene.stopped("runs.0", "runs.1")
    assert scene.counts("runs") == {"cancelled": 3}
    reason = PoolFailed("ci", "cancelled", "sold")
    assert [scene.instance(f"runs.{index}").reason for index in (0, 1)] == [reason, reason]
    assert scene.state.workloads["default/waits"].reason == reason
    assert scene.states("free.0") == ["placed"]


def test_a_service_of_which_some_run_elsewhere_loses_only_what_ran_there() -> None:
    scene = pool_scene(ci=("a",), other=("b",))
    set_pool(scene, "ci", when_failed="cancel")
    scene.submit(service("web", count=2, placement={"spread": {"by": "node"}}))
    scene.running("web.0", "web.1")
    mark(scene, "ci", "failed", "sold")
    scene.stopped(*[name for name in ("web.0", "web.1") if scene.where(name) == ["a"]])
    assert scene.counts("web") == {"running": 1, "cancelled": 1}
    web = scene.state.workloads["default/web"]
    assert (web.finished_ms, web.unstarted_end_state) == (0, None)


def test_a_service_that_ran_only_there_is_over() -> None:
    scene = pool_scene(ci=("a",))
    set_pool(scene, "ci", when_failed="cancel")
    scene.submit(service("web", count=2))
    scene.running("web.0", "web.1")
    mark(scene, "ci", "failed", "sold")
    scene.stopped("web.0", "web.1")
    assert scene.state.workloads["default/web"].finished_ms


def test_fenced_work_on_a_node_out_of_touch_is_not_started_before_its_lease_has_ended() -> None:
    scene = pool_scene(ci=("a",), spare=("b",))
    set_pool(scene, "ci", fallback="spare")
    scene.submit(job("work", **CI))
    scene.running("work.0")
    scene.part("a")
    mark(scene, "ci", "failed", "no word")
    assert scene.states("work.0") == ["stopping"]
    scene.wait("4s")
    assert scene.where("work.0") == ["a"]
    scene.wait("1s")
    assert scene.where("work.0") == ["b"]


def test_what_comes_back_with_a_node_of_a_failed_pool_has_to_go() -> None:
    scene = pool_scene(ci=("a",), spare=("b",))
    scene.submit(service("kept", when_lost="pin", **CI))
    scene.running("kept.0")
    scene.part("a")
    scene.wait("5s")
    assert scene.state.nodes["a"].status == "lost"
    mark(scene, "ci", "failed", "fire")
    assert scene.states("kept.0") == ["running"], "it may run, and no report says otherwise"
    scene.hello("a", "kept.0", pool="ci")
    assert scene.states("kept.0") == ["stopping"]


def test_new_work_for_a_failed_pool_waits_or_is_turned_away() -> None:
    scene = pool_scene(ci=("a",), other=("b",))
    mark(scene, "ci", "failed", "fire")
    scene.submit(job("waits", **CI), job("hurry", when_full="reject", **CI), job("any"))
    assert scene.counts("waits") == {"queued": 1}
    assert scene.counts("hurry") == {"rejected": 1}
    assert "ci has failed (fire)" in message_of(scene.state.workloads["default/hurry"].reason)
    assert scene.where("any.0") == ["b"]


def test_a_failed_pool_stays_failed_over_a_restart_and_new_settings() -> None:
    scene = pool_scene(ci=("a",), other=("b",))
    set_pool(scene, "ci", fallback="other")
    mark(scene, "ci", "failed", "fire")
    set_pool(scene, "ci", strategy="best_fit", fallback="other")
    assert (scene.state.pools["ci"].status, scene.state.pools["ci"].reason) == ("failed", "fire")
    scene.restart()
    scene.hello("a", pool="ci")
    scene.hello("b", pool="other")
    scene.submit(job("work", **CI))
    assert scene.where("work.0") == ["b"]
    scene.step(Unset(1, "pool", "ci"))
    scene.submit(job("more", **CI))
    assert scene.where("more.0") == ["a"]


def test_while_there_is_maintenance_nothing_leaves_a_failed_pool() -> None:
    scene = pool_scene(ci=("a",), spare=("b",))
    scene.submit(job("work", **CI))
    scene.running("work.0")
    scene.step(Maintain(1, True, "care"))
    mark(scene, "ci", "failed", "fire")
    assert scene.states("work.0") == ["running"]
    scene.step(Maintain(1, False))
    assert scene.states("work.0") == ["stopping"]


# a pool that is emptied


def test_a_draining_pool_takes_nothing_new_lets_jobs_finish_and_moves_services() -> None:
    scene = pool_scene(old=("a",), new=("b",))
    scene.drain("b")
    scene.submit(job("work"), service("web"))
    scene.running("work.0", "web.0")
    scene.uncordon("b")
    done = mark(scene, "old", "draining", "to be sold")
    assert scene.states("work.0", "web.0") == ["running", "stopping"]
    assert "a: stop (pool_draining)" in outcome(done)["orders"]
    scene.submit(job("new"))
    assert scene.where("new.0") == ["b"]
    scene.stopped("web.0")
    assert scene.where("web.0") == ["b"]
    scene.ended("work.0")
    assert scene.states("work.0") == ["succeeded"]


def test_an_instance_that_was_about_to_leave_a_pool_that_is_well_again_stays_and_no_surge_replica_stays() -> None:
    scene = pool_scene(old=("a",), new=("b",))
    scene.drain("b")
    scene.submit(service("web", count=2, update={"max_unavailable": 0, "max_surge": 1}))
    scene.running("web.0", "web.1")
    scene.uncordon("b")
    mark(scene, "old", "draining", "to be sold")
    assert scene.where("web.2") == ["b"], "one stands in before the first leaves"
    mark(scene, "old", "ready")
    assert scene.states("web.0", "web.1") == ["running", "running"]
    assert scene.states("web.2") == ["stopping"]
    scene.stopped("web.2")
    assert scene.counts("web") == {"running": 2}


def test_why_tells_which_pool_keeps_a_node_closed() -> None:
    scene = pool_scene(old=("a",))
    mark(scene, "old", "draining", "to be sold")
    scene.submit(job("waits"))
    assert "node a is in pool old, which is draining: to be sold" in render_text(why(scene.state, "default/waits").text)


# silence


def test_a_pool_without_a_node_in_touch_for_too_long_has_failed() -> None:
    scene = pool_scene(ci=("a", "b"), spare=("c",))
    set_pool(scene, "ci", fail_after_ms=300_000, fallback="spare")
    scene.submit(job("work", **CI))
    scene.running("work.0")
    scene.part("a")
    scene.wait("10m")
    assert scene.state.pools["ci"].status == "ready", "one of two is still there"
    scene.part("b")
    scene.wait("4m")
    assert scene.counts("work") == {"queued": 1}
    assert scene.state.pools["ci"].status == "ready"
    scene.wait("61s")
    pool = scene.state.pools["ci"]
    assert (pool.status, pool.failed_by) == ("failed", "silence")
    assert pool.reason == "no node of it was in touch for 5m"
    assert scene.where("work.0") == ["c"]


def test_a_node_that_is_back_ends_what_silence_began_but_not_what_an_operator_ordered() -> None:
    scene = pool_scene(ci=("a",))
    set_pool(scene, "ci", fail_after_ms=60_000)
    scene.part("a")
    scene.wait("2m")
    assert scene.state.pools["ci"].status == "failed"
    scene.hello("a", pool="ci")
    assert scene.state.pools["ci"] == Pool("ci", fail_after_ms=60_000)
    scene.submit(job("work", **CI))
    assert scene.where("work.0") == ["a"]
    mark(scene, "ci", "failed", "fire")
    scene.part("a")
    scene.hello("a", "work.0", pool="ci")
    assert scene.state.pools["ci"].status == "failed"


def test_silence_is_counted_anew_by_a_server_that_takes_over() -> None:
    scene = pool_scene(ci=("a",))
    set_pool(scene, "ci", fail_after_ms=60_000)
    scene.part("a")
    scene.wait("50s")
    scene.restart()
    scene.wait("50s")
    assert scene.state.pools["ci"].status == "ready"
    scene.wait("11s")
    assert scene.state.pools["ci"].status == "failed"


def test_silence_while_there_is_maintenance_fails_nothing() -> None:
    scene = pool_scene(ci=("a",))
    set_pool(scene, "ci", fail_after_ms=60_000)
    scene.step(Maintain(1, True, "care"))
    scene.part("a")
    scene.wait("1h")
    assert scene.state.pools["ci"].status == "ready"
    scene.hello("a", pool="ci")
    scene.step(Maintain(1, False))
    assert scene.state.pools["ci"].status == "ready"
