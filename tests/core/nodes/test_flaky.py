"""Flaky nodes: what makes one, what does not, and how long others are preferred."""

from typing import Any

from roost.core.explain.why import why
from roost.core.nodes.flaky import ENDS_MAX, FAILING_MAX, FIRST_MS, WINDOW_MS
from roost.model.reasons.nodes import NodeFlaky
from roost.model.records.files import InputFailure, InputProblem
from roost.model.records.node import FLAKY
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, service

GONE = InputFailure(InputProblem.NOT_FOUND, "data", is_final=True)


def fail(scene: Scene, *names: str, node: str = "a", **fields: Any) -> None:
    """Jobs that are only for one node start there and are killed at once."""
    for name in names:
        scene.submit(job(name, placement={"require": [f"name == '{node}'"]}))
        scene.ended(f"{name}.0", **({"code": None, "signal": 9} | fields))


def is_flaky(scene: Scene, node: str = "a") -> bool:
    return bool(scene.state.nodes[node].flaky_until_ms)


def test_three_workloads_that_fail_in_a_row_make_a_node_flaky() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two")
    assert not is_flaky(scene)
    fail(scene, "three")
    assert is_flaky(scene)
    assert scene.state.nodes["a"].story[-1].reason == NodeFlaky(3, 3, WINDOW_MS, FIRST_MS)
    scene.submit(job("next", count=5))
    assert [scene.where(f"next.{index}")[0] for index in range(5)] == ["b", "b", "b", "b", "a"], "only if need be"


def test_ordinary_exit_codes_of_jobs_make_no_node_flaky() -> None:
    scene = Scene("a", "b")
    fail(scene, *(f"test-{number}" for number in range(10)), code=1, signal=None)
    assert not is_flaky(scene)


def test_work_that_fails_there_and_then_succeeds_elsewhere_makes_a_node_flaky() -> None:
    scene = Scene("a", "b")
    for name in ("one", "two", "three"):
        assert not is_flaky(scene)
        scene.submit(job(name, count=2, retries={"max": 0}, placement={"spread": {"by": "node"}}))
        there, elsewhere = sorted((f"{name}.0", f"{name}.1"), key=scene.where)
        scene.ended(there, code=1)
        assert not is_flaky(scene)
        scene.ended(elsewhere)
    assert is_flaky(scene)


def test_runs_that_could_not_be_started_count() -> None:
    scene = Scene("a", "b")
    for name in ("one", "two", "three"):
        scene.submit(job(name, placement={"require": ["name == 'a'"]}))
        scene.ended(f"{name}.0", cause="error", code=None, error="no such image")
    assert is_flaky(scene)


def test_inputs_that_a_node_could_not_fetch_count_unless_no_node_can() -> None:
    for failure, counts in ((InputFailure(InputProblem.DISK_FULL), True), (GONE, False)):
        scene = Scene("a", "b")
        fail(scene, "one", "two", "three", cause="error", signal=None, inputs_failed=failure)
        assert is_flaky(scene) is counts


def test_it_is_avoided_even_if_it_is_empty_and_all_others_are_nearly_full() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two", "three")
    scene.submit(job("fill", resources={"cpu": 3, "memory": "14GiB", "disk": "90GiB"}))
    scene.submit(job("next"))
    assert scene.where("fill.0", "next.0") == ["b", "b"]


def test_strategies_that_go_by_order_avoid_it_too() -> None:
    scene = Scene("a", "b", strategy="first_fit")
    fail(scene, "one", "two", "three")
    scene.submit(job("next"))
    assert scene.where("next.0") == ["b"]


def test_a_workload_that_crashes_everywhere_makes_no_node_flaky() -> None:
    scene = Scene("a", "b")
    scene.submit(service("web", count=2, placement={"spread": {"by": "node"}}))
    for _ in range(8):
        scene.ended("web.0", "web.1", code=None, signal=11)
        scene.wait("1m")
    assert not is_flaky(scene, "a")
    assert not is_flaky(scene, "b")


def test_several_that_crash_everywhere_make_no_node_flaky_either() -> None:
    scene = Scene("a", "b")
    for name in ("one", "two", "three", "four"):
        scene.submit(job(name, count=2, placement={"spread": {"by": "node"}}))
        scene.ended(f"{name}.0", f"{name}.1", code=None, signal=11)
    assert not is_flaky(scene, "a")
    assert not is_flaky(scene, "b")


def test_a_workload_that_crashes_alone_makes_no_node_flaky() -> None:
    scene = Scene("a", "b")
    scene.submit(service("web", placement={"require": ["name == 'a'"]}, restart={"pause": "1s", "pause_max": "1s"}))
    for _ in range(8):
        scene.ended("web.0", code=None, signal=11)
        scene.wait("2s")
    assert not is_flaky(scene)


def test_one_that_crashes_only_there_and_runs_well_elsewhere_does() -> None:
    scene = Scene("a", "b")
    scene.submit(job("array", count=8, retries={"max": 0}))
    on_a = [f"array.{index}" for index in range(8) if scene.where(f"array.{index}") == ["a"]]
    on_b = [f"array.{index}" for index in range(8) if scene.where(f"array.{index}") == ["b"]]
    scene.running(*on_b)
    scene.ended(on_b[0])
    scene.ended(*on_a, code=1)
    assert not is_flaky(scene), "four are not enough"
    fail(scene, "other")
    assert is_flaky(scene)


def test_a_good_run_in_between_shows_that_the_node_is_well() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two")
    scene.submit(job("good", placement={"require": ["name == 'a'"]}))
    scene.ended("good.0")
    fail(scene, "three", "four")
    assert not is_flaky(scene)


def test_runs_that_fail_late_and_failures_long_ago_do_not_count() -> None:
    scene = Scene("a", "b")
    for name in ("one", "two", "three"):
        scene.submit(job(name, placement={"require": ["name == 'a'"]}))
        scene.running(f"{name}.0")
        scene.wait("11s")
        scene.ended(f"{name}.0", code=None, signal=9, started_ago_ms=11_000)
    assert not is_flaky(scene)
    fail(scene, "four", "five")
    scene.wait("6m")
    fail(scene, "six")
    assert not is_flaky(scene)


def test_no_more_than_half_of_the_nodes_are_flaky() -> None:
    scene = Scene("a")
    fail(scene, "one", "two", "three")
    assert not is_flaky(scene), "there is no other instance"
    scene = Scene("a", "b")
    fail(scene, "one", "two", "three", node="a")
    fail(scene, "four", "five", "six", node="b")
    assert [is_flaky(scene, "a"), is_flaky(scene, "b")] == [True, False]


def test_after_a_while_it_gets_another_chance_and_the_next_time_is_longer() -> None:
    scene = Scene("a", "b")
    names = iter(f"bad-{number}" for number in range(100))
    for minutes in (10, 20, 40, 60, 60):
        fail(scene, *(next(names) for _ in range(3)))
        assert scene.state.nodes["a"].flaky_until_ms - scene.now == minutes * 60_000
        scene.wait(f"{minutes}m")
        assert not is_flaky(scene)
        assert FLAKY not in scene.state.fleet.facts[0].taints
    scene.submit(job("good", placement={"require": ["name == 'a'"]}))
    scene.ended("good.0")
    fail(scene, *(next(names) for _ in range(3)))
    assert scene.state.nodes["a"].flaky_until_ms - scene.now == 10 * 60_000, "a good run makes it new"


def test_the_verdict_survives_a_restart_and_ends_in_time() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two", "three")
    scene.restart()
    scene.hello("a")
    scene.hello("b")
    scene.submit(job("next"))
    assert scene.where("next.0") == ["b"]
    scene.wait("10m")
    assert not is_flaky(scene)


def test_uncordon_clears_it() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two", "three")
    scene.uncordon("a")
    assert not is_flaky(scene)
    assert FLAKY not in scene.state.fleet.facts[0].taints
    fail(scene, "four")
    assert not is_flaky(scene), "what was before counts no more"


def test_a_flaky_node_is_used_if_nothing_else_is_there() -> None:
    scene = Scene("a", "b")
    fail(scene, "one", "two", "three")
    scene.part("b")
    scene.submit(job("next"))
    assert scene.where("next.0") == ["a"]
    assert "flaky" not in render_text(why(scene.state, "default/next").text)


def test_memory_of_failures_is_bounded() -> None:
    scene = Scene("a", cpu=1)
    scene.checked = False
    scene.submit(job("bad", count=FAILING_MAX // 100, retries={"max": 0}))
    for index in range(FAILING_MAX // 100):
        scene.ended(f"bad.{index}", code=None, signal=9)
    assert len(scene.state.node_failures["a"].ends) == ENDS_MAX
    assert list(scene.state.recent_failures) == ["default/bad"]
    scene.state.recent_failures.update({f"x{number}": {} for number in range(FAILING_MAX)})
    fail(scene, "one", "two")
    assert len(scene.state.recent_failures) <= FAILING_MAX + 1
