"""The invariants notice what is broken: each index of the state bent once."""

from collections.abc import Callable

import pytest

from roost.core.invariants import RULES, check, differences
from roost.core.replica import load
from roost.core.state.allocation import Allocation
from roost.core.state.state import State
from roost.model.events import RunNow
from roost.model.reasons.attempts import UpdatedToVersion
from roost.model.records.files import FileSet
from roost.model.records.workload import After
from tests.core.scene import Scene, job, service


def scene() -> Scene:
    """A node with something of every kind: running, waiting, finished, and a ghost."""
    made = Scene("a", cpu=2, prefill_max=0)
    made.submit(job("done"), service("up"), job("long", count=3, queue_timeout="1h"))
    made.running("done.0", "up.0")
    made.ended("done.0")
    made.hello("b", cpu=1)
    made.drain("b", "1h")
    made.submit(job("next", after=["long"]), job("pair", count=3, after=[{"workload": "long", "each": True}]))
    made.submit(job("nightly", schedule="0 2 * * *"))
    made.step(RunNow(1, "default/nightly"))
    return made


def lose_a_timer(kind: str) -> Callable[[State], None]:
    def bend(state: State) -> None:
        state.timers[:] = [timer for timer in state.timers if timer[1] != kind]

    return bend


def bent(rule: str, bend: Callable[[State], object]) -> object:
    return pytest.param(rule, bend, id=rule)


def set_state(state: State, key: str, to: str) -> None:
    state.instances[f"default/{key}"].state = to


BENT = [
    bent("room_is_what_is_held", lambda state: state.fleet.take("a", Allocation((("cpu", 1),)))),
    bent("room_is_what_is_held", lambda state: state.liveness["a"].orphans.update({1: Allocation((("cpu", 1),))})),
    bent("room_is_what_is_held", lambda state: state.fleet.total["cpu"].fill(7)),
    bent("room_is_what_is_held", lambda state: state.fleet.leave("a")),
    bent("room_is_enough", lambda state: state.fleet.take("a", Allocation((("cpu", 5_000),)))),
    bent("holders_are_held", lambda state: state.allocated["a"].popitem()),
    bent("holders_are_held", lambda state: set_state(state, "up.0", "queued")),
    bent("instances_are_whole", lambda state: set_state(state, "up.0", "lost")),
    bent("instances_are_whole", lambda state: setattr(state.instances["default/done.0"], "finished_ms", 0)),
    bent("instances_are_whole", lambda state: setattr(state.instances["default/up.0"], "token", state.serial + 1)),
    bent("instances_are_whole", lambda state: setattr(state.instances["default/up.0"], "node", "")),
    bent("progress_is_counted", lambda state: state.progress["default/up"].counts.update(running=2)),
    bent("progress_is_counted", lambda state: setattr(state.progress["default/long"], "placed_count", 0)),
    bent("progress_is_counted", lambda state: setattr(state.progress["default/long"], "placed_count", 3)),
    bent("results_are_counted", lambda state: state.result_bytes.update(default=5)),
    bent("results_are_counted", lambda state: setattr(state, "result_bytes_all", 5)),
    bent("named_files_are_counted", lambda state: state.file_sets.update(default={FileSet("sha256:0"): 1})),
    bent("workloads_end_once", lambda state: state.finished.clear()),
    bent("workloads_end_once", lambda state: setattr(state, "finished_instances", 5)),
    bent("workloads_end_once", lambda state: setattr(state.workloads["default/up"], "finished_ms", 5)),
    bent("pending_instances_are_queued", lambda state: state.queue.classes.clear()),
    bent("nothing_waits_forever", lose_a_timer("lease")),
    bent("nothing_waits_forever", lose_a_timer("queue")),
    bent("nothing_waits_forever", lose_a_timer("sweep")),
    bent("nothing_waits_forever", lose_a_timer("drain")),
    bent("nodes_are_as_they_seem", lambda state: setattr(state.nodes["a"], "status", "suspect")),
    bent("nodes_are_as_they_seem", lambda state: state.fleet.set_open("b", is_open=True, is_online=True)),
    bent(
        "nodes_are_as_they_seem",
        lambda state: state.liveness["a"].orphans.update(dict.fromkeys(state.allocated["a"], Allocation())),
    ),
    bent("claims_are_counted", lambda state: state.fleet.take("a", Allocation((), (0,), 500))),
    bent("claims_are_counted", lambda state: state.fleet.take("a", Allocation(ports=(80,)))),
    bent("claims_are_counted", lambda state: state.fleet.topology.members.clear()),
    bent("what_is_held_is_charged", lambda state: state.project_usage["default"].update(cpu=1)),
    bent("what_is_held_is_charged", lambda state: state.priorities.clear()),
    bent("what_is_held_is_charged", lambda state: state.gangs.update({"default/up": {"default/up": None}})),
    bent("who_stands_behind_follows", lambda state: setattr(state.instances["default/long.0"], "prefilled_behind", 1)),
    bent("who_stands_behind_follows", lambda state: state.prefilled.update({1: state.instances["default/long.0"]})),
    bent(
        "nothing_starts_too_early",
        lambda state: setattr(state.instances["default/long.0"], "blocked_on_dependency", True),
    ),
    bent(
        "nothing_starts_too_early",
        lambda state: setattr(state.workloads["default/up"], "pending_conditions", (After("x"),)),
    ),
    bent(
        "no_instance_waits_for_what_has_come", lambda state: setattr(state.workloads["default/long"], "finished_ms", 5)
    ),
    bent("no_instance_waits_for_what_has_come", lambda state: set_state(state, "long.0", "succeeded")),
    bent("waits_are_indexed", lambda state: state.dependents.clear()),
    bent("waits_are_indexed", lambda state: state.instance_dependents.clear()),
    bent("waits_are_indexed", lambda state: state.runs.clear()),
    bent("waits_are_indexed", lambda state: state.schedules.clear()),
    bent("schedules_are_timed", lose_a_timer("cron")),
    bent("usage_is_counted", lambda state: setattr(state, "usage_entries", state.usage_entries + 1)),
    bent("usage_is_counted", lambda state: state.usage.clear()),
    bent("preemption_has_no_cycles", lambda state: setattr(state, "preemption_cycles", 1)),
    bent("serials_only_grow", lambda state: setattr(state, "serial", state.meta.reserved + 1)),
]


@pytest.mark.parametrize(("rule", "bend"), BENT)
def test_what_is_bent_is_noticed(rule: str, bend: Callable[[State], object]) -> None:
    state = scene().state
    assert check(state) == []
    bend(state)
    complaints = check(state)
    assert any(complaint.startswith(f"{rule}: ") for complaint in complaints), complaints


def test_every_rule_is_bent_once() -> None:
    assert {param.values[0] for param in BENT} == {rule.__name__ for rule in RULES}


def test_a_waiting_instance_without_line_and_timer_is_noticed() -> None:
    made = Scene("a", cpu=1)
    made.submit(service("up"))
    made.running("up.0")
    made.ended("up.0")
    assert check(made.state) == []
    lose_a_timer("ready")(made.state)
    assert check(made.state) == ["pending_instances_are_queued: default/up.0 waits in no line and for no moment"]


@pytest.mark.parametrize(
    ("facet", "bend"),
    [
        ("workloads", lambda state: setattr(state.workloads["default/long"], "reason", UpdatedToVersion(9))),
        ("instances", lambda state: setattr(state.instances["default/up.0"], "reason", UpdatedToVersion(9))),
        ("nodes", lambda state: setattr(state.nodes["a"], "session", 1)),
        ("meta", lambda state: setattr(state.meta, "reserved", 1)),
        ("progress", lambda state: state.progress["default/up"].counts.update(running=2)),
        ("allocated", lambda state: state.allocated["a"].popitem()),
        ("used", lambda state: state.fleet.take("a", Allocation((("cpu", 1),)))),
        ("total", lambda state: state.fleet.total["cpu"].fill(7)),
        ("waiting", lambda state: state.queue.classes.clear()),
        ("finished", lambda state: state.finished.clear()),
        ("dependents", lambda state: state.dependents.clear()),
        ("runs", lambda state: state.runs.clear()),
        ("schedules", lambda state: state.schedules.clear()),
    ],
)
def test_states_that_differ_are_distinguished(facet: str, bend: Callable[[State], object]) -> None:
    made = scene()
    stored = load(made.memory.snapshot(), made.now, made.settings)
    assert differences(made.state, stored) == []
    bend(made.state)
    assert facet in [difference.partition(":")[0] for difference in differences(made.state, stored)]
