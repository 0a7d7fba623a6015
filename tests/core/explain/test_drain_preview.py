"""A drain that is only tried: where everything would go, and nothing has happened."""

import msgspec
import pytest

from roost.core.explain.drain_preview import DrainPreview, drain_preview
from roost.core.invariants import FACETS
from roost.model.errors import NotFound
from roost.model.events import Maintain, MarkPool
from roost.schema.reason_text import render_text
from tests.core.scene import Scene, job, service


def tried(scene: Scene, node: str, deadline_ms: int = 0) -> DrainPreview:
    """The plan; the state is as it was."""
    before = {name: repr(facet(scene.state)) for name, facet in FACETS.items()}
    plan = drain_preview(scene.state, node, deadline_ms)
    assert before == {name: repr(facet(scene.state)) for name, facet in FACETS.items()}
    assert not scene.state.dirty
    return plan


def where(plan: DrainPreview) -> dict[str, str]:
    return {instance_move.instance.removeprefix("default/"): instance_move.node for instance_move in plan.moves}


def test_everything_has_a_place_and_each_sees_the_ones_before_it() -> None:
    scene = Scene("a", "b", "c", cpu=2)
    scene.drain("b")
    scene.drain("c")
    scene.submit(job("one"), service("two"))
    scene.running("one.0", "two.0")
    scene.uncordon("b")
    scene.uncordon("c")
    plan = tried(scene, "a")
    assert where(plan) == {"one.0": "b", "two.0": "c"}
    assert {instance_move.strategy for instance_move in plan.moves} == {"least_loaded"}
    assert plan.is_whole
    scene.drain("a")
    scene.stopped("one.0", "two.0")
    assert dict(zip(("one.0", "two.0"), scene.where("one.0", "two.0"), strict=True)) == where(plan), (
        "as it was reported"
    )


def test_what_has_no_place_has_a_reason() -> None:
    scene = Scene("a", "b", cpu=2)
    scene.submit(job("fill", placement={"require": ["name == 'b'"]}))
    scene.submit(job("small", count=2, placement={"require": ["name in ['a', 'b']"], "strategy": "first_fit"}))
    scene.submit(job("tied", placement={"require": ["name == 'a'"]}))
    scene.running("small.0")
    plan = tried(scene, "a")
    assert where(plan) == {"small.0": "b", "small.1": ""}
    second = plan.moves[1]
    assert (second.code, plan.is_whole) == ("insufficient_resources", False)
    assert "at most 0 cpu free" in render_text(second.text)


def test_what_is_tied_to_the_node_cannot_leave() -> None:
    scene = Scene("a", "b")
    scene.submit(job("tied", placement={"require": ["name == 'a'"]}))
    plan = tried(scene, "a")
    assert where(plan) == {"tied.0": ""}
    assert plan.moves[0].code == "insufficient_resources"
    assert "1 draining" in render_text(plan.moves[0].text)


def test_jobs_may_finish_before_the_deadline_and_services_go_at_once() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("work", placement={"require": ["name == 'a'"]}), service("web", placement={"pool": "default"}))
    scene.running("work.0")
    plan = tried(scene, "a", 600_000)
    reported = {instance_move.instance: instance_move for instance_move in plan.moves}
    assert reported["default/work.0"].may_finish
    assert plan.is_whole, "it has time"
    assert not tried(scene, "a", 0).is_whole


def test_no_instance_is_stopped_to_make_room() -> None:
    scene = Scene("a", "b", cpu=1)
    scene.submit(job("high", priority=99, placement={"strategy": "first_fit"}), job("low", priority=1))
    scene.running("high.0", "low.0")
    assert where(tried(scene, "a")) == {"high.0": ""}


def test_a_gang_leaves_whole() -> None:
    scene = Scene("a", "b", "c", cpu=1)
    scene.submit(job("pair", count=2, gang=True))
    scene.running("pair.0", "pair.1")
    node = scene.where("pair.0")[0]
    plan = tried(scene, node)
    assert plan.is_whole
    assert where(plan)["pair.0"] not in ("", node)


def test_what_is_being_cancelled_goes_nowhere_and_maintenance_is_looked_past() -> None:
    scene = Scene("a", "b")
    scene.drain("b")
    scene.submit(job("ends"), job("stays"))
    scene.running("ends.0", "stays.0")
    scene.cancel("ends")
    scene.uncordon("b")
    scene.step(Maintain(1, True, "care"))
    assert where(tried(scene, "a")) == {"stays.0": "b"}


def test_pools_that_have_failed_take_nothing() -> None:
    scene = Scene("a")
    scene.submit(job("work"))
    scene.hello("b", pool="broken")
    scene.step(MarkPool(1, "broken", "failed", "fire"))
    plan = tried(scene, "a")
    assert "node b is in pool broken, which has failed: fire" in render_text(plan.moves[0].text)


def test_an_empty_node_and_an_unknown_one() -> None:
    scene = Scene("a")
    assert tried(scene, "a") == DrainPreview("a", ())
    with pytest.raises(NotFound):
        drain_preview(scene.state, "x", 0)


def test_a_plan_is_plain_data() -> None:
    scene = Scene("a", "b")
    scene.submit(job("work"))
    plan = tried(scene, scene.where("work.0")[0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=DrainPreview) == plan
