"""Who goes where and in which order: priority, age, room; what does not fit never blocks what does."""

import pytest

from roost.core.placement.strategies import STRATEGIES
from roost.model.events import NodeConnected
from roost.model.protocol import Hello
from tests.core.scene import Scene, facts_of, job, outcome


def placed(scene: Scene) -> list[str]:
    """Instances in the order in which they were placed."""
    return [placed.instance.removeprefix("default/") for done in scene.steps for placed in done.placed]


def test_no_agents_then_two_come_and_the_jobs_spread() -> None:
    scene = Scene()
    scene.submit(job("one"), job("two"), job("three"))
    assert [scene.counts(name) for name in ("one", "two", "three")] == [{"queued": 1}] * 3
    hellos = [scene.hello("a", cpu=2), scene.hello("b", cpu=2)]
    assert [len(done.placed) for done in hellos] == [2, 1]
    assert sorted(scene.where("one.0", "two.0", "three.0")) == ["a", "a", "b"]


def test_two_that_come_at_once_share_the_jobs_however_large_they_are() -> None:
    scene = Scene()
    scene.submit(job("one"), job("two"), job("three"))
    done = scene.step(*[NodeConnected(1, Hello(name, name, facts_of(cpu=64), 0)) for name in ("a", "b")])
    assert outcome(done)["orders"] == [
        "a: whole: run one.0 attempt 1, run three.0 attempt 1",
        "b: whole: run two.0 attempt 1",
    ]


def test_three_jobs_on_two_equal_nodes_spread_two_and_one() -> None:
    scene = Scene("a", "b")
    done = scene.submit(job("one"), job("two"), job("three"))
    assert outcome(done)["orders"] == ["a: run one.0 attempt 1, run three.0 attempt 1", "b: run two.0 attempt 1"]


def test_more_jobs_than_room_all_run_in_the_end_by_priority_and_age() -> None:
    scene = Scene("a", cpu=2, preempt_margin=0)
    scene.submit(job("first"), job("second"))
    scene.submit(job("low", priority=10), job("high", priority=90), job("middle-1"), job("middle-2"))
    scene.submit(job("highest", priority=100, count=2))
    while live := [name for name in placed(scene) if scene.states(name) == ["placed"]]:
        scene.ended(live[0])
    assert placed(scene) == [
        "first.0", "second.0", "highest.0", "highest.1", "high.0", "middle-1.0", "middle-2.0", "low.0",
    ]  # fmt: skip


def test_two_asks_at_once_with_room_for_one() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("one"), job("two"))
    assert (scene.counts("one"), scene.counts("two")) == ({"placed": 1}, {"queued": 1})


def test_two_asks_at_once_land_on_different_nodes() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("one"), job("two"))
    assert scene.where("one.0", "two.0") == ["a", "b"]


def test_what_does_not_fit_does_not_block_others_of_lower_priority() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("huge", resources={"cpu": 8}, priority=100), job("large", resources={"cpu": 4}, priority=90))
    scene.submit(job("small", count=9, resources={"cpu": 1}, priority=1))
    assert (scene.counts("huge"), scene.counts("small")) == ({"queued": 1}, {"queued": 9})
    scene.ended("large.0")
    assert (scene.counts("huge"), scene.counts("small")) == ({"queued": 1}, {"placed": 4, "queued": 5})


def test_what_comes_back_keeps_its_age() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("old", retries={"max": 1, "on": ["failed"]}))
    scene.submit(job("young"))
    scene.ended("old.0", code=1)
    assert scene.states("old.0") == ["placed"]


def test_an_array_stays_one_record_until_it_runs() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("array", count=100_000))
    assert (len(scene.state.instances), scene.counts("array")) == (2, {"placed": 2, "queued": 99_998})
    scene.restart()
    assert scene.counts("array") == {"placed": 2, "queued": 99_998}


def test_one_pass_places_so_many_and_says_that_there_is_more() -> None:
    scene = Scene("a", cpu=5, placements_max=2)
    done = scene.submit(job("array", count=9))
    assert (len(done.placed), done.wake_at_ms) == (2, scene.now)
    assert len(scene.step().placed) == 2
    done = scene.step()
    assert len(done.placed) == 1
    assert done.wake_at_ms is not None and done.wake_at_ms > scene.now


def test_a_line_that_does_not_fit_is_passed_over_until_something_is_freed() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("one"))
    scene.submit(job("two"))
    (line,) = scene.state.queue.classes.values()
    assert line.blocked_at == scene.state.fleet.freed
    scene.ended("one.0")
    assert scene.states("two.0") == ["placed"]
    assert not scene.state.queue.classes


def test_the_decision_is_kept_with_its_runners_up_best_first() -> None:
    scene = Scene()
    for name, cpu in (("a", 4), ("b", 8), ("c", 16), ("d", 0.5)):
        scene.hello(name, cpu=cpu)
    scene.submit(job("one", resources={"cpu": 2}))
    scene.submit(job("two", resources={"cpu": 2}))
    decision = scene.instance("two.0").decision
    assert decision is not None
    assert (decision.strategy, decision.eligible, decision.considered) == ("least_loaded", 3, 4)
    assert decision.candidates == (("b", 1_000_000), ("c", 1_000_000), ("a", 800_000))


def test_candidates_of_a_large_fleet_are_the_best_and_of_equal_ones_the_first_by_name() -> None:
    scene = Scene(*[f"n-{number:03}" for number in range(100)])
    scene.submit(job("one"))
    decision = scene.instance("one.0").decision
    assert decision is not None
    assert [name for name, _ in decision.candidates] == ["n-000", "n-001", "n-002", "n-003", "n-004"]


def test_the_decision_can_be_logged_with_how_full_the_node_is() -> None:
    scene = Scene("a", cpu=4)
    (one,) = scene.submit(job("web", resources={"cpu": 1.5, "memory": "4GiB"})).placed
    assert one == ("default/web.0", "a", "least_loaded", (
        ("cpu", 1_500, 4_000), ("memory", 4 << 30, 16 << 30), ("disk", 0, 100 << 30),
    ))  # fmt: skip


def test_equal_asks_wait_in_one_line() -> None:
    scene = Scene()
    scene.submit(*[job(f"job-{number}") for number in range(50)], job("other", priority=1))
    assert len(scene.state.queue.classes) == 2


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_same_input_gives_the_same_output(strategy: str) -> None:
    def play() -> list[object]:
        scene = Scene("a", "b", "c", strategy=strategy, seed=7)
        scene.submit(job("array", count=20, retries={"max": 3, "on": ["failed"]}))
        scene.ended("array.0", code=1)
        scene.wait("5s", silent="b")
        return [(done.changes, done.assignments, done.replies, done.placed) for done in scene.steps]

    assert play() == play()
