"""Order and repetition by chance: random graphs of workloads with random ends, and schedules with random clocks.

What must hold is watched from outside: nothing starts before what it waits for, no instance waits forever; a tick runs
once, and two runs of a schedule are never there at a time where it does not allow that.
"""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from roost.model.events import Approve, RunNow
from roost.model.records.access import OPERATOR
from roost.model.records.workload import After, Workload
from roost.model.states import ALLOCATED, FINISHED
from tests.core.lifecycle.test_schedules import moment
from tests.core.scene import Scene, job, service

STEPS_MAX = 400  # until everything is over: more than the largest graph needs
MINUTE_MS = 60_000


class Watcher:
    """Remembers what became of workloads and their elements, also after it changed again."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, str]] = set()  # workload, index or -1, and what it has been
        self.starts: set[tuple[str, int]] = set()  # serial and index of those that began

    def observe(self, scene: Scene) -> None:
        for instance in scene.state.instances.values():
            key, index = instance.workload, instance.index
            if instance.ready_since_ms or (instance.story and any(move.state == "running" for move in instance.story)):
                self.seen |= {(key, index, "started"), (key, -1, "started")}
            if instance.state in FINISHED:
                self.seen |= {(key, index, "finished"), (key, index, instance.state)}
        for key, workload in scene.state.workloads.items():
            if workload.finished_ms:
                counts = scene.counts(workload.name)
                self.seen |= {
                    (key, -1, "finished"),
                    (key, -1, "succeeded" if counts.keys() == {"succeeded"} else "bad"),
                }
                for index in range(scene.state.placed_count(workload), workload.count):
                    self.seen |= {(key, index, "finished")}
        for instance in scene.state.instances.values():
            if instance.attempt and (instance.workload, instance.index) not in self.starts:
                self.starts.add((instance.workload, instance.index))
                self._check(scene, scene.state.workloads[instance.workload], instance.index)

    def _check(self, scene: Scene, workload: Workload, index: int) -> None:
        for condition in workload.policy.after:
            when = condition.when or (
                "started" if scene.state.workloads[condition.workload].policy.kind != "job" else "succeeded"
            )
            fact = (condition.workload, index if condition.each else -1, when)
            assert fact in self.seen, f"{workload.key}.{index} began before {fact}"


GATES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {},
        {"approve": {}},
        {"if": "needs.all(name, needs[name].state == 'succeeded')"},
        {"if": "false"},
        {"if": "needs.none.state == 'x'"},
        {"approve": {}, "if": "true"},
        {"concurrency": {"group": "g", "cancel": True}},
    ]
)


@st.composite
def graphs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Workloads of which each waits for some of those before it."""
    documents: list[dict[str, Any]] = []
    for number in range(draw(st.integers(2, 7))):
        is_service = draw(st.sampled_from([False, False, False, True]))
        count = draw(st.integers(1, 3))
        after = []
        for other in documents:
            if not draw(st.sampled_from([True, False, False])):
                continue
            if other.get("kind") == "service":
                after.append({"workload": other["name"]})
                continue
            when = draw(st.sampled_from(["succeeded", "succeeded", "finished", "started"]))
            item = not is_service and other.get("count", 1) == count and draw(st.booleans())
            after.append({"workload": other["name"], "when": when, "each": item})
        made = service if is_service else job
        extra = draw(st.sampled_from([{}, {}, {"queue_timeout": "20s"}, {"deadline": "3m"}, {"when_full": "reject"}]))
        gate = draw(GATES) if not is_service and not any(item.get("each") for item in after) else {}
        owners = [other["name"] for other in documents if other.get("kind") != "service"] if is_service else []
        until = {"until": draw(st.sampled_from(owners))} if owners and draw(st.booleans()) else {}
        documents.append(made(f"w{number}", count=count, after=after, retries=0, **extra, **gate, **until))
    return documents


ACTIONS = st.tuples(
    st.sampled_from(
        [
            "run",
            "run",
            "end",
            "end",
            "end",
            "fail",
            "cancel",
            "retry",
            "one",
            "wait",
            "restart",
            "lose",
            "approve",
            "approve",
        ]
    ),
    st.integers(0, 30),
)


@settings(max_examples=60)
@given(graphs(), st.booleans(), st.integers(1, 6), st.lists(ACTIONS, max_size=25))
def test_nothing_starts_too_early_and_no_instance_waits_forever(
    documents: list[dict[str, Any]], at_once: bool, cpu: int, actions: list[tuple[str, int]]
) -> None:
    scene, watcher = Scene("a", "b", cpu=cpu, prefill_max=0), Watcher()
    for batch in [documents] if at_once else [[document] for document in documents]:
        scene.submit(*batch)
        watcher.observe(scene)
    for action, number in actions:
        _act(scene, action, number)
        watcher.observe(scene)
    _finish_all(scene, watcher)
    for key, workload in scene.state.workloads.items():
        if workload.policy.kind == "job":
            assert workload.finished_ms, f"{key} is stuck: {scene.counts(workload.name)} {workload.pending_conditions}"
        if workload.policy.until:
            assert workload.unstarted_end_state, f"{key} lives, and its owner has finished"
    waiting = {key for members in scene.state.dependents.values() for key in members}
    assert not [key for key in waiting if scene.state.workloads[key].policy.kind == "job"]
    assert not scene.state.dependency_changes
    assert not scene.state.concurrency_groups
    assert not scene.state.ended_owners


def _act(scene: Scene, action: str, number: int) -> None:
    """Let something happen, to the instance that the number picks."""
    allocated = sorted(
        (instance for instance in scene.state.instances.values() if instance.state in ALLOCATED),
        key=lambda instance: instance.key,
    )
    workloads = sorted(scene.state.workloads)
    name = workloads[number % len(workloads)].removeprefix("default/")
    chosen = allocated[number % len(allocated)].key if allocated else ""
    if action in ("run", "end", "fail") and chosen:
        if scene.instance(chosen).state == "stopping":
            scene.stopped(chosen)
        elif action == "run":
            scene.running(chosen)
        else:
            scene.ended(chosen, code=int(action == "fail"))
    elif action == "cancel":
        scene.cancel(name)
    elif action == "one":
        index = number % scene.state.workloads[f"default/{name}"].count
        scene.cancel(f"{name}.{index}")
    elif action == "retry":
        scene.retry(name)
    elif action == "approve":
        scene.step(Approve(1, f"default/{name}", OPERATOR))
    elif action == "wait":
        scene.wait(f"{number}s")
    elif action == "restart":
        scene.restart()
        _hello(scene, "a", "b")
    elif action == "lose":
        scene.wait("5s", silent="a")
        _hello(scene, "a")
    scene.step()


def _hello(scene: Scene, *nodes: str) -> None:
    for node in nodes:
        allocated = [instance.key for instance in scene.state.allocated[node].values()]
        facts = scene.state.nodes[node].facts
        scene.hello(node, *allocated, facts=facts, sent_ms=scene.now)


def _finish_all(scene: Scene, watcher: Watcher) -> None:
    """Let everything that runs end well; services run on, and are ready."""
    for _ in range(STEPS_MAX):
        for key, workload in list(scene.state.workloads.items()):
            if any(condition.workload == key for condition in workload.pending_conditions):
                scene.step(Approve(1, key, OPERATOR))
        allocated = [instance for instance in scene.state.instances.values() if instance.state in ALLOCATED]
        busy = [instance for instance in allocated if not instance.ready_since_ms]
        over = all(workload.finished_ms for workload in scene.state.workloads.values() if workload.policy.kind == "job")
        if not busy and over:
            return
        if not busy:
            services = [workload for workload in scene.state.workloads.values() if workload.policy.kind == "service"]
            live = [workload for workload in services if not workload.finished_ms]
            if not live:
                scene.wait("1m")
            elif not any(instance.ready_since_ms for instance in allocated):
                scene.wait("1m")
            else:
                scene.cancel(
                    next(workload.name for workload in live if _holds(scene, workload))
                )  # room for those who wait
        for instance in busy:
            if instance.state == "stopping":
                scene.stopped(instance.key)
            elif scene.state.workloads[instance.workload].policy.kind == "service":
                scene.running(instance.key)
            else:
                scene.ended(instance.key)
            watcher.observe(scene)


def _holds(scene: Scene, workload: Workload) -> bool:
    return any(
        instance.state in ALLOCATED for instance in scene.state.instances.values() if instance.workload == workload.key
    )


@settings(max_examples=60)
@given(
    st.sampled_from(["skip", "allow", "wait", "replace"]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0, 2]),
    st.sampled_from(["*/5 * * * *", "7 * * * *", "*/20 2 * * *"]),
    st.lists(
        st.tuples(
            st.sampled_from(["pass", "pass", "pass", "outage", "back", "end", "end", "fail", "cancel", "now"]),
            st.integers(1, 90),
        ),
        max_size=25,
    ),
)
def test_a_tick_is_run_once_and_runs_do_not_meet(
    overlap: str, catch_up: int, history_limit: int, cron: str, actions: list[tuple[str, int]]
) -> None:
    scene = Scene()
    scene.now = moment("2026-10-24T23:30Z")  # before the long night in Berlin
    scene.step()
    scene.hello("a")
    block = {
        "cron": cron,
        "zone": "Europe/Berlin",
        "overlap": overlap,
        "catch_up": catch_up,
        "history_limit": history_limit,
    }
    scene.submit(job("nightly", schedule=block, retries=0))
    existing: dict[int, tuple[int, bool]] = {}  # serial of a run -> its tick, and whether it was asked for
    for action, number in actions:
        before = set(existing)
        _pass(scene, action, number)
        runs = [workload for workload in scene.state.workloads.values() if workload.parent]
        for run in runs:
            existing.setdefault(run.serial, (run.tick_ms, action == "now" and run.serial not in before))
        ticks = [tick for tick, asked in existing.values() if not asked]
        assert len(ticks) == len(set(ticks)), "a tick was run twice"
        live = [workload for workload in runs if _holds(scene, workload)]
        assert overlap == "allow" or len(live) <= 1, f"{[workload.key for workload in live]} run at the same time"
        assert sum(bool(workload.finished_ms) for workload in runs) <= history_limit


def _pass(scene: Scene, action: str, number: int) -> None:
    allocated = sorted(
        (instance for instance in scene.state.instances.values() if instance.state in ALLOCATED),
        key=lambda instance: instance.key,
    )
    if action == "pass":
        for _ in range(number // 5):
            scene.wait("5m")
    elif action in ("outage", "back"):
        scene.now += number * MINUTE_MS * (1 if action == "outage" else -1)
        scene.restart()
        _hello(scene, "a")
    elif action == "now":
        scene.step(RunNow(1, "default/nightly"))
    elif allocated:
        chosen = allocated[number % len(allocated)]
        if chosen.state == "stopping":
            scene.stopped(chosen.key)
        elif action == "cancel":
            scene.cancel(chosen.workload.removeprefix("default/"))
        else:
            scene.ended(chosen.key, code=int(action == "fail"))
    scene.step()


def test_the_watcher_would_notice() -> None:
    """A dependant that begins too early is seen: the condition is put in afterwards."""
    scene, watcher = Scene("a"), Watcher()
    scene.submit(job("one"), job("two"))
    two = scene.state.workloads["default/two"]
    two.policy = type(two.policy)(two.policy.kind, two.policy.ask, after=(After("default/one"),))
    try:
        watcher.observe(scene)
    except AssertionError as error:
        assert "default/two.0 began before ('default/one', -1, <Milestone.SUCCEEDED: 'succeeded'>)" in str(error)
    else:
        raise AssertionError("nothing was noticed")
