"""Plans: they say what would happen, touch nothing, and are carried out exactly or not at all."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.state.state import overlay
from roost.core.step import make_plan, step
from roost.model.errors import Conflict, Invalid, RoostError
from roost.model.events import Submit
from roost.model.reasons.attempts import Preempted, UpdatedToVersion
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.plan import Plan, differences
from roost.schema.reason_text import render_text
from tests.core.random_clusters import ACTION_LISTS, DOCUMENTS, apply_actions, reported, small_cluster
from tests.core.scene import Scene, job, outcome, service, wanted


def submit(*documents: dict[str, Any]) -> Submit:
    return Submit(1, tuple(map(wanted, documents)), same_ok=True)


def planned(scene: Scene, *documents: dict[str, Any]) -> Plan:
    return make_plan(scene.state, submit(*documents), scene.now)


def applied(scene: Scene, plan: Plan, *documents: dict[str, Any], first: Any = (), then: Any = ()) -> Any:
    return scene.step(*first, msgspec.structs.replace(submit(*documents), expected=plan), *then)


def test_a_plan_says_which_instance_goes_where_and_touches_nothing() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("known"))
    known = reported(scene.state)
    plan = planned(scene, job("known"), job("new", count=4, ports={"http": 0}))
    assert (plan.created, plan.unchanged) == (("default/new",), ("default/known",))
    assert [(placing.instance, placing.node, placing.ports) for placing in plan.placed] == [
        ("default/new.0", "b", (20_000,)),
        ("default/new.1", "a", (20_000,)),
        ("default/new.2", "b", (20_001,)),
    ]
    (waits,) = plan.pending
    assert (waits.workload, waits.count, waits.code) == ("default/new", 1, "insufficient_resources")
    assert [reason.code for reason in waits.blockers] == ["no_room"]
    assert reported(scene.state) == known
    assert outcome(scene.step()) == {}


def test_a_plan_says_which_devices() -> None:
    scene = Scene()
    scene.hello("a", more={"gpu": 4_000})
    assert planned(scene, job("train", resources={"gpu": 2})).placed[0].devices == (0, 1)


def test_a_plan_says_which_instance_would_be_stopped() -> None:
    scene = Scene("a", cpu=2)
    scene.submit(job("low", priority=10, resources={"cpu": 2}))
    plan = planned(scene, job("high", priority=90, resources={"cpu": 2}))
    assert [(stopping.instance, stopping.node) for stopping in plan.stopped] == [("default/low.0", "a")]
    assert plan.stopped[0].reason == Preempted(InstanceRef("default", "high", 0), 90, 10)


def test_a_plan_says_which_instance_would_be_rejected() -> None:
    scene = Scene("a", cpu=2)
    (one,) = planned(scene, job("big", when_full="reject", resources={"cpu": 3})).pending
    assert (one.code, render_text(one.text).partition(":")[0]) == ("rejected", "unsatisfiable")
    (one,) = planned(scene, job("big", when_full="reject", retention=0, resources={"cpu": 3})).pending
    assert one.code == "rejected"


def test_what_would_be_refused_is_refused_now() -> None:
    scene = Scene("a")
    scene.submit(job("web"))
    with pytest.raises(Conflict, match="cancel it first"):
        planned(scene, service("web"))
    with pytest.raises(Invalid, match="no strategy"):
        planned(scene, job("other", placement={"strategy": "nobody"}))


def test_a_plan_is_carried_out_exactly() -> None:
    scene = Scene("a", "b", cpu=2)
    documents = (job("one", count=3), job("two", resources={"cpu": 2}))
    plan = planned(scene, *documents)
    done = applied(scene, plan, *documents)
    assert outcome(done)["replies"] == ["one two"]
    assert [(item.instance, item.node) for item in done.placed] == [
        (placing.instance, placing.node) for placing in plan.placed
    ]


def test_a_plan_that_no_longer_holds_is_refused_with_the_difference() -> None:
    scene = Scene("a", "b", cpu=2)
    document = job("web", resources={"cpu": 2})
    plan = planned(scene, document)
    scene.submit(job("other", resources={"cpu": 2}))
    assert outcome(applied(scene, plan, document)) == {
        "replies": [
            "409 plan_stale: the plan is stale: default/web.0: planned on a by least_loaded, now on b by least_loaded"
        ]
    }
    assert list(scene.state.workloads) == ["default/other"]


def test_a_name_that_was_taken_meanwhile_is_a_difference() -> None:
    scene = Scene("a")
    plan = planned(scene, job("web"))
    scene.submit(job("web", command="false"))
    (shown_,) = outcome(applied(scene, plan, job("web")))["replies"]
    assert shown_.startswith("409 plan_stale: the plan is stale: workload default/web: planned created")


def test_a_plan_says_what_becomes_a_new_version_and_which_instance_is_stopped_for_it() -> None:
    scene = Scene("a")
    scene.submit(service("web", count=2))
    scene.running("web.0", "web.1")
    scene.wait("2s")
    plan = planned(scene, service("web", count=2, command="sleep 1"))
    assert (plan.created, plan.changed, plan.unchanged) == ((), ("default/web",), ())
    assert [(stopping.instance, stopping.reason) for stopping in plan.stopped] == [
        ("default/web.0", UpdatedToVersion(2))
    ]


def test_what_comes_in_the_same_step_does_not_come_between() -> None:
    """The instance that matters more is in the same batch, after the plan; it would have had the node."""
    scene = Scene("a", cpu=2)
    document = job("web", resources={"cpu": 2})
    plan = planned(scene, document)
    rival = Submit(2, (wanted(job("rival", priority=60, resources={"cpu": 2})),))
    applied(scene, plan, document, then=(rival,))
    assert scene.where("web.0") == ["a"]
    assert "default/rival.0" not in scene.state.instances


def test_what_comes_before_it_in_the_same_step_is_a_difference() -> None:
    scene = Scene("a", cpu=2)
    document = job("web", resources={"cpu": 2})
    plan = planned(scene, document)
    rival = Submit(2, (wanted(job("rival", resources={"cpu": 2})),))
    done = applied(scene, plan, document, first=(rival,))
    assert outcome(done)["replies"][0] == "rival"
    assert outcome(done)["replies"][1].startswith("409 plan_stale")
    assert "default/web" not in scene.state.workloads


def test_a_plan_may_take_more_than_one_pass() -> None:
    scene = Scene("a", cpu=8, placements_max=3)
    plan = planned(scene, job("array", count=8))
    assert len(plan.placed) == 8 and not plan.pending
    assert len(applied(scene, plan, job("array", count=8)).placed) == 8


def test_what_no_pass_of_the_plan_comes_to_is_placed_later() -> None:
    scene = Scene("a", cpu=8, placements_max=1)
    plan = planned(scene, job("array", count=8))
    assert (
        len(plan.placed),
        [(pending_workload.count, pending_workload.code) for pending_workload in plan.pending],
    ) == (5, [(3, "later")])


def test_words_and_their_numbers_may_differ() -> None:
    scene = Scene("a")
    document = job("web", resources={"cpu": 4}, priority=40)
    scene.submit(job("busy"))
    before = planned(scene, document)
    scene.submit(job("small"))
    assert before != planned(scene, document)
    assert differences(before, planned(scene, document)) == []


@settings(max_examples=150, deadline=None)
@given(
    actions=ACTION_LISTS,
    documents=st.lists(DOCUMENTS, min_size=1, max_size=3, unique_by=lambda document: document["name"]),
)
def test_what_is_planned_is_what_happens(actions: Any, documents: list[dict[str, Any]]) -> None:
    state = small_cluster()
    apply_actions(state, actions)
    try:
        event = submit(*documents)
        known = reported(state)
        plan = make_plan(state, event, state.now_ms)
    except RoostError:
        return
    assert reported(state) == known
    copy = overlay(state)
    step(copy, (), copy.now_ms)
    done = step(copy, (msgspec.structs.replace(event, expected=plan),), copy.now_ms)
    assert not [reply for reply in done.replies if isinstance(reply.value, RoostError)]
    own = frozenset((*plan.created, *plan.changed))
    placed = {(placed.instance, placed.node) for placed in done.placed if placed.instance.rpartition(".")[0] in own}
    assert placed == {(placing.instance, placing.node) for placing in plan.placed}
    for stopping in plan.stopped:
        after = copy.instances.get(stopping.instance)
        assert after is None or after.state not in ("placed", "starting", "running")
