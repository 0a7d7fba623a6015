"""What would help: every suggestion, carried out as a user would, starts the instance; and nothing smaller does."""

from itertools import combinations
from typing import Any

import msgspec
from hypothesis import given, settings

from roost.core.explain.suggestions import Suggestion, suggestions
from roost.core.explain.trial import Subject, subject_of
from roost.core.state.state import State, overlay
from roost.core.step import step
from roost.model.errors import RoostError
from roost.model.events import Cancel, Event, NodeConnected, ReportsReceived, SetProject, Submit, Uncordon
from roost.model.protocol import Hello, Report
from roost.model.records.node import Facts
from roost.model.records.project import Project
from roost.model.spec.document import decode_document
from roost.model.states import ALLOCATED
from roost.schema.reason_text import render_text
from tests.core.random_clusters import ACTION_LISTS, apply_actions, reported, small_cluster
from tests.core.scene import Scene, job, wanted

GPU = 1_000


def helpful(scene: Scene, name: str, index: int = 0) -> list[str]:
    workload = scene.state.workloads[f"default/{name}"]
    found = suggestions(scene.state, subject_of(scene.state, workload, index))
    return [render_text(suggestion.message) for suggestion in found]


def test_less_of_one_resource_by_exactly_what_is_missing() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("big", count=2, resources={"cpu": 3}))
    scene.submit(job("web", resources={"cpu": 2, "memory": "1GiB"}))
    assert helpful(scene, "web") == [
        "ask for 1 cpu instead of 2 cpu",
        "the end of default/big.1 on b",
        "one more node with 2 cpu, 1GiB memory",
    ]


def test_less_of_several_only_where_one_is_not_enough() -> None:
    scene = Scene()
    scene.hello("a", cpu=4, memory="4GiB")
    scene.submit(job("web", resources={"cpu": 5, "memory": "5GiB"}))
    assert helpful(scene, "web") == ["ask for 4 cpu, 4GiB memory", "one more node with 5 cpu, 5GiB memory"]


def test_whole_devices_first_then_a_share_of_one() -> None:
    scene = Scene()
    scene.hello("a", more={"gpu": 2_000})
    scene.submit(job("web", resources={"gpu": 4}))
    assert helpful(scene, "web")[0] == "ask for 2 gpu instead of 4 gpu"
    scene.submit(job("taken", resources={"gpu": 1}), job("share", resources={"gpu": 0.25}))
    assert helpful(scene, "web")[0] == "ask for 0.75 gpu instead of 4 gpu"


def test_one_rule_dropped() -> None:
    scene = Scene("a")
    scene.hello("b", taints=("team=red",), zone="x")
    placements: dict[str, Any] = {
        "pool": {"pool": "far"},
        "region": {"region": "moon"},
        "model": {"gpu_model": "H100"},
        "rule": {"require": ["name != 'z'", "zone == 'x'"]},
        "now": {"require": ["used.cpu > 99000"]},
        "near": {"near": [{"workload": "nobody"}]},
        "apart": {"apart": [{"workload": "busy"}]},
    }
    scene.submit(
        job("busy", resources={"cpu": 1}), *[job(name, placement=placement) for name, placement in placements.items()]
    )
    found = {name: [item for item in helpful(scene, name) if item.startswith("without")] for name in placements}
    assert {name: item[0] for name, item in found.items()} == {
        "pool": "without the pool (far)",
        "region": "without the region (moon)",
        "model": "without the GPU model (H100)",
        "rule": "without the rule zone == 'x'",
        "now": "without the rule used.cpu > 99000",
        "near": "without having to be near to default/nobody by node",
        "apart": "without having to be apart from default/busy by node",
    }
    assert "tolerating the taint team=red" in helpful(scene, "rule")


def test_a_port_that_is_taken_may_be_any() -> None:
    scene = Scene("a")
    scene.submit(job("one", ports={"http": 8080}), job("two", ports={"http": 8080}))
    assert helpful(scene, "two")[:2] == ["with any port for http instead of 8080", "the end of default/one.0 on a"]


def test_limits_per_node_and_evenness_may_be_dropped() -> None:
    scene = Scene()
    scene.hello("a", zone="x")
    scene.submit(job("one", count=2, placement={"per_node": 1}))
    assert helpful(scene, "one", 1)[0] == "without the limit of 1 on a node"
    scene.hello("b", zone="y", cpu=1)
    scene.submit(job("fill", resources={"cpu": 1}, placement={"require": ["zone == 'y'"]}))
    scene.submit(job("even", count=2, placement={"spread": {"by": "zone"}}))
    assert "without the spread by zone" in helpful(scene, "even", 1)


def test_a_node_like_those_that_would_do() -> None:
    scene = Scene()
    scene.hello("a", cpu=1, labels={"disk": "nvme"}, pool="fast")
    scene.submit(job("web", resources={"cpu": 8}, placement={"pool": "fast", "require": ["labels.disk == 'nvme'"]}))
    assert "one more node with 8 cpu and pool fast, labels.disk nvme" in helpful(scene, "web")


def test_a_suggested_node_has_only_what_is_asked_for() -> None:
    scene = Scene()
    scene.hello("a", cpu=1, labels={"hostname": "vm", "kernel": "6.1"})
    scene.submit(job("web", resources={"cpu": 8}))
    assert "one more node with 8 cpu" in helpful(scene, "web")


def test_a_node_for_a_fleet_that_has_none() -> None:
    scene = Scene()
    scene.submit(job("web", placement={"pool": "arm", "require": ["arch == 'arm64'"]}))
    assert helpful(scene, "web") == ["one more node with 1 cpu and pool arm, arch arm64"]


def test_a_drained_node_back_in_service() -> None:
    scene = Scene("a")
    scene.drain("a")
    scene.submit(job("web"))
    assert helpful(scene, "web")[0] == "put a back into service"


def test_a_quota_by_exactly_what_is_missing() -> None:
    scene = Scene("a", cpu=8)
    scene.step(SetProject(1, Project("default", quota={"cpu": 3_000})))
    scene.submit(job("one", resources={"cpu": 2}))
    scene.submit(job("two", resources={"cpu": 2}))
    assert helpful(scene, "two") == ["ask for 1 cpu instead of 2 cpu", "a quota of 4 cpu for project default"]


def test_three_have_to_end_and_which() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("small", count=4))
    scene.submit(job("web", resources={"cpu": 3}))
    ends = "the end of default/small.1, default/small.2, default/small.3 on a"
    assert ends in helpful(scene, "web")


def test_one_that_is_large_rather_than_three_that_are_young() -> None:
    scene = Scene("a", cpu=6)
    scene.submit(job("large", resources={"cpu": 3}))
    scene.submit(job("young", count=3))
    scene.submit(job("web", resources={"cpu": 3}))
    assert "the end of default/large.0 on a" in helpful(scene, "web")


def test_more_than_three_have_to_end() -> None:
    scene = Scene("a", cpu=8)
    scene.submit(job("small", count=7, resources={"cpu": 1}), job("huge", resources={"cpu": 8}))
    (ends,) = [name for name in helpful(scene, "huge") if name.startswith("the end")]
    assert ends.count("default/small") == 7


def test_the_place_that_is_kept_for_it_does_not_keep_it_out() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("busy", resources={"cpu": 3}, expected="1h"))
    scene.submit(job("web", resources={"cpu": 4}))
    scene.wait("40s")
    assert [hold.instance for hold in scene.state.backfill_reservations.values()] == ["default/web.0"]
    assert helpful(scene, "web")[0] == "ask for 1 cpu instead of 4 cpu"


def test_room_that_instances_ahead_would_take_is_not_suggested() -> None:
    scene = Scene("a", cpu=4)
    scene.submit(job("busy", resources={"cpu": 4}))
    scene.submit(job("first", priority=60, resources={"cpu": 4}))
    scene.submit(job("second", resources={"cpu": 4}))
    assert "the end of default/busy.0 on a" in helpful(scene, "first")
    assert "the end of default/busy.0 on a" not in helpful(scene, "second")


# as a user would do it


@settings(max_examples=150, deadline=None)
@given(actions=ACTION_LISTS)
def test_each_suggestion_starts_the_instance_and_nothing_smaller_does(actions: Any) -> None:
    state = small_cluster()
    apply_actions(state, actions)
    step(state, (), state.now_ms)
    known = reported(state)
    for key, workload in state.workloads.items():
        if (
            workload.finished_ms
            or workload.unstarted_end_state
            or not state.has_unstarted(workload)
            or workload.policy.gang
        ):
            continue
        subject = subject_of(state, workload, 0)
        if state.placed_count(workload):
            continue  # the instance that has run before cannot be submitted anew without stopping the others
        if subject.key in state.pending_preemptions or any(
            reservation.instance == subject.key for reservation in state.backfill_reservations.values()
        ):
            continue  # a place that is kept for it would be lost with its name
        for suggestion in suggestions(state, subject):
            assert starts(state, subject, suggestion), f"{key}: {suggestion}"
            for less in smaller(state, suggestion):
                assert not starts(state, subject, less), f"{key}: {less} would do instead of {suggestion}"
    assert reported(state) == known


def starts(state: State, subject: Subject, suggestion: Suggestion) -> bool:
    """Whether an instance runs once the suggestion is followed."""
    copy = overlay(state)
    if suggestion.kind in ("less", "rule"):
        document = changed(subject, suggestion)
        done = step(copy, (Cancel(1, subject.workload.key), Submit(2, (wanted(document),))), copy.now_ms)
        if any(isinstance(reply.value, RoostError) for reply in done.replies):
            return False  # more than the quota of its project: not even taken in
    else:
        step(copy, (event_of(state, suggestion),), copy.now_ms)
    instance = copy.instances.get(subject.key)
    return instance is not None and instance.state in ALLOCATED


def changed(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    document = msgspec.to_builtins(decode_document(subject.workload.document))
    for name, amount in suggestion.amounts.items():
        document["resources"][name] = amount / 1_000 if name in ("cpu", "gpu") else amount
    if suggestion.kind == "rule":
        block, _, field = suggestion.path.partition(".")
        name, _, index = field.partition("[")
        if block == "ports":
            document["ports"][name] = 0
        elif name == "tolerate":
            document["placement"].setdefault("tolerate", []).append(render_text(suggestion.message).rpartition(" ")[2])
        elif index and isinstance(document["placement"][name], list):
            del document["placement"][name][int(index.rstrip("]"))]
        else:
            del document["placement"][name]
    return document


def event_of(state: State, suggestion: Suggestion) -> Event:
    if suggestion.kind == "quota":
        project = state.projects["default"]
        return SetProject(1, msgspec.structs.replace(project, quota=project.quota | suggestion.amounts))
    if suggestion.kind == "uncordon":
        return Uncordon(1, render_text(suggestion.message).split()[1])
    if suggestion.kind == "node":
        facts = Facts(suggestion.amounts, **suggestion.facts)
        return NodeConnected(1, Hello("another", "another", facts, 0, ()))
    assert suggestion.kind == "end"
    ending = [state.instances[key] for key in suggestion.instances]
    node = ending[0].node if ending else "a"
    reports = tuple(Report(instance.token, "ended", cause="exited", code=0) for instance in ending)
    return ReportsReceived(node, state.nodes[node].session, 1, reports)


def smaller(state: State, suggestion: Suggestion) -> list[Suggestion]:
    """The next smaller changes of a kind: one unit less is given up, one instance fewer ends."""
    if suggestion.kind == "end":
        parts = combinations(suggestion.instances, len(suggestion.instances) - 1)
        return [msgspec.structs.replace(suggestion, instances=part) for part in parts]
    step_of = {"gpu": lambda amount: amount + GPU if amount >= GPU else amount + 1}
    sign = {"less": 1, "quota": -1, "node": -1}.get(suggestion.kind, 0)
    found = []
    for name, amount in suggestion.amounts.items() if sign else ():
        if name == "gpu" and suggestion.kind == "node":
            continue
        other = step_of.get(name, lambda amount: amount + sign)(amount)
        found.append(msgspec.structs.replace(suggestion, amounts=suggestion.amounts | {name: other}))
    return found
