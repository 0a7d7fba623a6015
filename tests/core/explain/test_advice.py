"""The long answer to why: codes, the verdict, what cannot be met together, the place in the queue, and when."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.explain.advice import Advice, advise
from roost.core.explain.blockers import CODES
from roost.core.explain.relaxations import _shrunk, _smallest, unsat_core
from roost.core.explain.start_estimate import RuntimeSamples
from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC
from roost.core.placement.score_cache import fits_when_empty
from roost.model.events import Reserve, SetProject
from roost.model.records.project import Project, Reservation
from tests.core.random_clusters import ACTION_LISTS, DOCUMENTS, apply_actions, reported, small_cluster
from tests.core.scene import Scene, job, service


def advice(scene: Scene, name: str, index: int | None = None) -> Advice:
    return advise(scene.state, f"default/{name}", index)[1]


def codes(scene: Scene, name: str) -> tuple[str, list[str]]:
    found = advise(scene.state, f"default/{name}")[0]
    return found.code, [blocker.code for blocker in found.blockers]


def test_every_filter_has_a_code() -> None:
    names = {item.name for item in (*STATIC, *DYNAMIC, *AFFINITY)}
    others = {
        "quota",
        "gang",
        "home",
        "kept",
        "after",
        "approval",
        "schedule",
        "project",
        "pool_failed",
        "maintenance",
        "agents",
    }
    assert names | others == CODES.keys()
    assert len(set(CODES.values())) == len(CODES)


def test_reasons_that_are_not_about_nodes_have_codes_too() -> None:
    scene = Scene("a", "b")
    scene.step(SetProject(1, Project("default", quota={"cpu": 1_000})))
    scene.submit(job("one"), job("two"))
    assert codes(scene, "two") == ("quota_exceeded", ["quota_exceeded"])
    scene.step(Reserve(1, Reservation("mine", "other", ("a", "b"), 0, 0)))
    scene.submit(job("kept", project="third"))
    found = advise(scene.state, "third/kept")[0]
    assert (found.code, [blocker.code for blocker in found.blockers]) == ("insufficient_resources", ["kept_for_others"])
    scene.submit(job("gang", project="other", count=4, gang=True, resources={"cpu": 2}))
    found = advise(scene.state, "other/gang")[0]
    assert (found.code, found.blockers[0].code) == ("insufficient_resources", "gang_waits")


def test_the_verdict_is_never_only_if_no_known_node_could() -> None:
    scene = Scene("a")
    scene.submit(job("huge", resources={"cpu": 40}), job("full", resources={"cpu": 4}), job("wait"))
    assert advice(scene, "huge").verdict == "never"
    assert advice(scene, "wait").verdict == "wait"
    scene.hello("big", cpu=64)
    scene.drain("big")
    scene.submit(job("later", resources={"cpu": 40}))
    assert advice(scene, "later").verdict == "wait"


def test_running_instances_get_no_advice() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    assert advice(scene, "web") == Advice()


def test_the_fewest_needs_that_contradict_each_other() -> None:
    scene = Scene()
    scene.hello("small", cpu=2, labels={"disk": "nvme"}, zone="x")
    scene.hello("large", cpu=64, zone="x")
    rules = ["zone == 'x'", "labels.disk == 'nvme'"]
    scene.submit(job("both", resources={"cpu": 8, "memory": "1GiB"}, placement={"require": rules}))
    found = advice(scene, "both")
    assert found.verdict == "never"
    assert [(need.path, need.nodes) for need in found.contradiction] == [
        ("placement.require[1]", 1),
        ("resources.cpu", 1),
    ]
    assert found.estimate is not None and found.estimate.likely_ms is None
    scene.submit(job("pool", placement={"pool": "far", "require": rules}))
    assert [need.path for need in advice(scene, "pool").contradiction] == ["placement.pool"]


@settings(max_examples=200, deadline=None)
@given(sets=st.lists(st.integers(0, 63), min_size=1, max_size=9))
def test_a_contradiction_is_one_and_nothing_can_be_left_out(sets: list[int]) -> None:
    def common(chosen: tuple[int, ...]) -> int:
        left = -1
        for item in chosen:
            left &= sets[item]
        return left

    if common(tuple(range(len(sets)))):
        assert _smallest(sets) == ()
        return
    for found in (_smallest(sets), _shrunk(sets)):
        assert common(found) == 0
        assert all(common(tuple(other for other in found if other != item)) for item in found)
    assert len(_smallest(sets)) <= len(_shrunk(sets))


@settings(max_examples=100, deadline=None)
@given(document=DOCUMENTS)
def test_what_contradicts_itself_is_what_could_fit_nowhere(document: dict[str, object]) -> None:
    state = small_cluster()
    apply_actions(state, [("submit", document | {"when_full": "queue"})])
    workload = state.workloads.get(f"default/{document['name']}")
    if workload is not None:
        fits = bool(fits_when_empty(state.fleet, workload.policy.ask).any())
        assert bool(unsat_core(state.fleet, workload)) is not fits


def test_position_goes_by_priority_then_age_and_counts_arrays() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("runs"))
    scene.submit(job("array", count=20))
    scene.submit(job("late"), job("first", priority=60))
    assert advice(scene, "first").position == 1
    assert (advice(scene, "array").position, advice(scene, "array").queued_before) == (2, ("default/first.0",))
    assert advice(scene, "array", 7).position == 9
    late = advice(scene, "late")
    assert (late.position, len(late.queued_before)) == (22, 10)
    assert late.queued_before[:3] == ("default/first.0", "default/array.0", "default/array.1")


def test_no_instance_is_counted_ahead_twice() -> None:
    scene = Scene()
    scene.submit(job("array", count=3), job("late"))
    scene.cancel("array.1")
    scene.retry("array.1")
    scene.cancel("array.1")
    scene.retry("array.1")
    late = advice(scene, "late")
    assert (late.position, late.queued_before) == (4, ("default/array.0", "default/array.1", "default/array.2"))


def test_an_instance_that_has_the_smaller_share_is_ahead() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("hog", count=8, project="many"))
    scene.submit(job("one", project="few"))
    assert advise(scene.state, "few/one")[1].position == 1


def test_a_run_that_has_outlived_others_is_like_those_that_lasted_longer() -> None:
    length = RuntimeSamples((10, 20, 30, 40), "ask")
    assert [length.at(percent) for percent in (25, 50, 90)] == [20, 30, 40]
    assert [length.at(percent, 25) for percent in (25, 50, 90)] == [30, 40, 40]
    assert [length.at(percent, 100) for percent in (25, 50, 90)] == [125, 150, 190]


def test_an_estimate_from_past_runs_of_the_same_ask() -> None:
    scene = Scene("a", cpu=1, prefill_max=0)
    for number, seconds in enumerate((10, 20, 30, 40)):
        scene.submit(job(f"past{number}"))
        scene.running(f"past{number}.0")
        scene.wait(f"{seconds}s")
        scene.ended(f"past{number}.0")
    scene.submit(job("runs"))
    scene.running("runs.0")
    scene.submit(job("next"))
    found = advice(scene, "next").estimate
    assert found is not None and found.message == "from past runs that asked for the same"
    starts = [found.earliest_ms, found.likely_ms, found.latest_ms]
    assert [start - scene.now for start in starts if start is not None] == [20_000, 30_000, 40_000]


def test_an_estimate_from_past_runs_of_the_same_workload() -> None:
    scene = Scene("a", cpu=1, prefill_max=0)
    scene.submit(job("array", count=3, timeout="1h"))
    scene.running("array.0")
    scene.wait("60s")
    scene.ended("array.0")
    scene.running("array.1")
    scene.wait("20s")
    found = advice(scene, "array", 2).estimate
    assert found is not None and found.message == "from past runs of the same workloads"
    assert found.earliest_ms == found.latest_ms == scene.now + 40_000


def test_an_estimate_from_what_users_say() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("runs", expected="5m"))
    scene.submit(job("next", timeout="1m"))
    scene.submit(job("third"))
    first, then = advice(scene, "next").estimate, advice(scene, "third").estimate
    assert first is not None and then is not None
    assert (first.likely_ms, first.message) == (scene.now + 300_000, "from what users expect")
    assert (then.likely_ms, then.message) == (scene.now + 360_000, "from what users expect, timeouts")


def test_a_missing_estimate_is_shown_as_missing() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(service("web"))
    scene.submit(job("next"), job("short", queue_timeout="1m"))
    found = advice(scene, "next").estimate
    assert found is not None and found.earliest_ms is None
    assert found.message == "not known: what holds room has no known end (no past runs, no `expected`, no `timeout`)"


def test_a_queue_timeout_before_the_estimated_start_is_reported() -> None:
    scene = Scene("a", cpu=1)
    scene.submit(job("runs", expected="1h"))
    scene.submit(job("short", queue_timeout="1m"))
    found = advice(scene, "short").estimate
    assert found is not None and found.message == "it would be expired before it starts"


def test_a_pause_before_the_next_attempt_ends_by_itself() -> None:
    scene = Scene("a")
    scene.submit(service("web"))
    scene.ended("web.0", code=1)
    found = advice(scene, "web")
    assert (found.verdict, found.suggestions) == ("wait", ())
    assert found.estimate is not None and found.estimate.likely_ms == scene.now + 1_000


@settings(max_examples=60, deadline=None)
@given(actions=ACTION_LISTS)
def test_asking_changes_nothing_and_is_the_same_twice(actions: list[object]) -> None:
    state = small_cluster()
    apply_actions(state, actions)
    existing = reported(state)
    answers = [advise(state, key) for key in state.workloads]
    assert reported(state) == existing
    assert [advise(state, key) for key in state.workloads] == answers
    assert all(msgspec.json.encode(answer) for answer in answers)
