"""Large work is done over several steps: what is left over stays in the state, and survives a crash."""

from roost.core.state.outcome import Step
from tests.core.scene import Scene, job, outcome

STEPS_MAX = 1_000
UNITS = 10  # of work per step: ten timers, ten cancelled instances, five lost ones


def until_quiet(scene: Scene, first: Step) -> list[Step]:
    """The steps that follow at once, with the first of them."""
    steps = [first]
    while steps[-1].wake_at_ms is not None and steps[-1].wake_at_ms <= scene.now:
        steps.append(scene.step())
        assert len(steps) <= STEPS_MAX, "it is never quiet"
    return steps


def full_scene(count: int, **fields: object) -> Scene:
    scene = Scene("a", "b", cpu=count, step_units=UNITS)
    until_quiet(scene, scene.submit(job("many", count=count, **fields)))
    scene.running(*(f"many.{index}" for index in range(count)))
    return scene


def test_timers_that_are_due_at_once_fire_over_several_steps() -> None:
    scene = Scene("a", cpu=1, step_units=UNITS)
    for number in range(35):
        scene.submit(job(f"j{number}", resources={"cpu": 4}, queue_timeout="10s"))
    steps = until_quiet(scene, scene.wait("10s"))
    expired = [sum(change.startswith("workload") for change in outcome(step)["changes"]) for step in steps]
    assert sum(expired) == 35
    assert max(expired) <= UNITS
    assert not scene.state.timers or scene.state.timers[0][0] > scene.now


def test_a_large_array_is_cancelled_over_several_steps_and_nothing_of_it_starts() -> None:
    scene = full_scene(40)
    first = scene.cancel("many")
    assert outcome(first)["replies"] == ["many"], "the request is durable, and answered at once"
    steps = until_quiet(scene, first)
    stops = [sum(len(orders.orders) for orders in step.assignments) for step in steps]
    assert sum(stops) == 40
    assert max(stops) <= UNITS
    scene.stopped(*(f"many.{index}" for index in range(40)))
    assert scene.counts("many") == {"cancelled": 40}
    workload = scene.state.workloads["default/many"]
    assert (workload.finished_ms, workload.cancelling, scene.state.cancelling) == (scene.now, None, {})


def test_a_requeued_instance_of_a_workload_that_is_being_cancelled_is_not_placed() -> None:
    scene = full_scene(40, retries={"max": 3, "on": ["failed"]})
    scene.cancel("many")
    assert scene.states("many.39") == ["running"], "its turn has not come"
    done = scene.ended("many.39", code=1)
    assert scene.states("many.39") == ["queued"]
    assert "run many.39" not in str(outcome(done).get("orders"))
    until_quiet(scene, done)
    assert scene.states("many.39") == ["cancelled"]


def test_a_cancellation_goes_on_after_a_crash_where_it_was() -> None:
    scene = full_scene(40)
    scene.cancel("many")
    stopping = scene.counts("many")["stopping"]
    assert 0 < stopping < 40
    assert scene.state.workloads["default/many"].cancelled_below == stopping
    scene.restart()
    until_quiet(scene, scene.step())
    assert scene.counts("many") == {"stopping": 40}


def test_a_retry_waits_until_the_cancellation_is_complete() -> None:
    scene = full_scene(40)
    first = scene.cancel("many")
    assert outcome(scene.retry("many"))["replies"] == [
        "409 being_cancelled: default/many is being cancelled; try again in a moment"
    ]
    until_quiet(scene, first)


def test_the_attempts_of_a_lost_node_are_lost_over_several_steps() -> None:
    scene = full_scene(40)
    lost = scene.state.nodes["a"]
    first = scene.wait("5s", silent="a")
    assert lost.status == "lost"
    steps = until_quiet(scene, first)
    assert max(sum(item.transition.state == "lost" for item in step.transitions) for step in steps) <= UNITS // 2
    assert not scene.state.allocated["a"]
    assert scene.state.losing == {}
    assert scene.counts("many").get("queued", 0) + len(scene.state.allocated["b"]) == 40


def test_losses_go_on_after_a_crash() -> None:
    scene = full_scene(40)
    scene.wait("5s", silent="a")
    assert scene.state.allocated["a"], "some are still to be lost"
    scene.restart()
    until_quiet(scene, scene.step())
    assert not scene.state.allocated["a"]


def test_a_node_that_returns_in_between_keeps_what_it_still_runs() -> None:
    scene = full_scene(40)
    scene.wait("5s", silent="a")
    left = sorted(instance.key.removeprefix("default/") for instance in scene.state.allocated["a"].values())
    until_quiet(scene, scene.hello("a", *left, cpu=40))
    assert set(scene.states(*left)) == {"running"}
    assert scene.where(*left) == ["a"] * len(left)
