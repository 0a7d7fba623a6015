"""Order and repetition by chance: random graphs of workloads with random ends, and schedules with random clocks.

What must hold is watched from outside: nothing starts before what it waits for, nobody waits for ever; a tick is run
once, and two runs of a schedule are never there at a time where it does not allow that.
"""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from roost.model.events import RunNow
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import After, Workload
from tests.core.scene import Scene, job, service
from tests.core.test_cron import moment

STEPS_MAX = 400  # until everything is over: more than the largest graph needs
MINUTE_MS = 60_000


class Watcher:
    """Remembers what became of workloads and their elements, also after it changed again."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int, str]] = set()  # workload, index or -1, and what it has been
        self.starts: set[tuple[str, int]] = set()  # serial and index of those that began

    def look(self, scene: Scene) -> None:
        for instance in scene.state.instances.values():
            key, index = instance.workload, instance.index
            if instance.serving_ms or (instance.story and any(each.state == "running" for each in instance.story)):
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
                for index in range(scene.state.begun(workload), workload.count):
                    self.seen |= {(key, index, "finished")}
        for instance in scene.state.instances.values():
            if instance.attempt and (instance.workload, instance.index) not in self.starts:
                self.starts.add((instance.workload, instance.index))
                self._check(scene, scene.state.workloads[instance.workload], instance.index)

    def _check(self, scene: Scene, workload: Workload, index: int) -> None:
        for each in workload.policy.after:
            when = each.when or (
                "started" if scene.state.workloads[each.workload].policy.kind != "job" else "succeeded"
            )
            fact = (each.workload, index if each.each else -1, when)
            assert fact in self.seen, f"{workload.key}.{index} began before {fact}"


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
            each = not is_service and other.get("count", 1) == count and draw(st.booleans())
            after.append({"workload": other["name"], "when": when, "each": each})
        made = service if is_service else job
        extra = draw(st.sampled_from([{}, {}, {"queue_timeout": "20s"}, {"deadline": "3m"}, {"when_full": "reject"}]))
        documents.append(made(f"w{number}", count=count, after=after, retries=0, **extra))
    return documents


ACTIONS = st.tuples(
    st.sampled_from(["run", "run", "end", "end", "end", "fail", "cancel", "retry", "one", "wait", "restart", "lose"]),
    st.integers(0, 30),
)


@settings(max_examples=60)
@given(graphs(), st.booleans(), st.integers(1, 6), st.lists(ACTIONS, max_size=25))
def test_nothing_starts_too_early_and_nobody_waits_for_ever(
    documents: list[dict[str, Any]], at_once: bool, cpu: int, actions: list[tuple[str, int]]
) -> None:
    scene, watcher = Scene("a", "b", cpu=cpu, ahead_max=0), Watcher()
    for batch in [documents] if at_once else [[each] for each in documents]:
        scene.submit(*batch)
        watcher.look(scene)
    for action, number in actions:
        _act(scene, action, number)
        watcher.look(scene)
    _finish_all(scene, watcher)
    for key, workload in scene.state.workloads.items():
        if workload.policy.kind == "job":
            assert workload.finished_ms, f"{key} is stuck: {scene.counts(workload.name)} {workload.waits}"
    assert not scene.state.dependants
    assert not scene.state.news


def _act(scene: Scene, action: str, number: int) -> None:
    """Let something happen, to whoever the number picks."""
    held = sorted((each for each in scene.state.instances.values() if each.state in HOLDING), key=lambda each: each.key)
    workloads = sorted(scene.state.workloads)
    name = workloads[number % len(workloads)].removeprefix("default/")
    chosen = held[number % len(held)].key if held else ""
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
        held = [each.key for each in scene.state.held[node].values()]
        facts = scene.state.nodes[node].facts
        scene.hello(node, *held, facts=facts, sent_ms=scene.now)


def _finish_all(scene: Scene, watcher: Watcher) -> None:
    """Let everything that runs end well; services run on, and are ready."""
    for _ in range(STEPS_MAX):
        held = [each for each in scene.state.instances.values() if each.state in HOLDING]
        busy = [each for each in held if not each.serving_ms]
        over = all(each.finished_ms for each in scene.state.workloads.values() if each.policy.kind == "job")
        if not busy and over:
            return
        if not busy:
            services = [each for each in scene.state.workloads.values() if each.policy.kind == "service"]
            live = [each for each in services if not each.finished_ms]
            if not live:
                scene.wait("1m")
            elif not any(each.serving_ms for each in held):
                scene.wait("1m")
            else:
                scene.cancel(next(each.name for each in live if _holds(scene, each)))  # room for those who wait
        for instance in busy:
            if instance.state == "stopping":
                scene.stopped(instance.key)
            elif scene.state.workloads[instance.workload].policy.kind == "service":
                scene.running(instance.key)
            else:
                scene.ended(instance.key)
            watcher.look(scene)


def _holds(scene: Scene, workload: Workload) -> bool:
    return any(each.state in HOLDING for each in scene.state.instances.values() if each.workload == workload.key)


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
    overlap: str, catch_up: int, keep: int, cron: str, actions: list[tuple[str, int]]
) -> None:
    scene = Scene()
    scene.now = moment("2026-10-24T23:30Z")  # before the long night in Berlin
    scene.step()
    scene.hello("a")
    block = {"cron": cron, "zone": "Europe/Berlin", "overlap": overlap, "catch_up": catch_up, "keep": keep}
    scene.submit(job("nightly", schedule=block, retries=0))
    known: dict[int, tuple[int, bool]] = {}  # serial of a run -> its tick, and whether it was asked for
    for action, number in actions:
        before = set(known)
        _pass(scene, action, number)
        runs = [each for each in scene.state.workloads.values() if each.parent]
        for run in runs:
            known.setdefault(run.serial, (run.tick_ms, action == "now" and run.serial not in before))
        ticks = [tick for tick, asked in known.values() if not asked]
        assert len(ticks) == len(set(ticks)), "a tick was run twice"
        live = [each for each in runs if _holds(scene, each)]
        assert overlap == "allow" or len(live) <= 1, f"{[each.key for each in live]} run at the same time"
        assert sum(bool(each.finished_ms) for each in runs) <= keep


def _pass(scene: Scene, action: str, number: int) -> None:
    held = sorted((each for each in scene.state.instances.values() if each.state in HOLDING), key=lambda each: each.key)
    if action == "pass":
        for _ in range(number // 5):
            scene.wait("5m")
    elif action in ("outage", "back"):
        scene.now += number * MINUTE_MS * (1 if action == "outage" else -1)
        scene.restart()
        _hello(scene, "a")
    elif action == "now":
        scene.step(RunNow(1, "default/nightly"))
    elif held:
        chosen = held[number % len(held)]
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
        watcher.look(scene)
    except AssertionError as error:
        assert "default/two.0 began before ('default/one', -1, 'succeeded')" in str(error)
    else:
        raise AssertionError("nothing was noticed")
