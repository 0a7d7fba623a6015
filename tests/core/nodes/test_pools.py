"""Pools: what they say for their nodes, who may use them, and what no pool can be."""

from typing import Any

import msgspec
import pytest

from roost.core.explain.advice import advise
from roost.core.explain.why import why
from roost.model.errors import Invalid
from roost.model.limits import DURATION_MS_MAX
from roost.model.records.node import Facts
from roost.model.records.project import Pool, check_pool, facts_in_pool
from roost.schema.reason_text import render_text
from tests.core.pool_scene import mark, pool_scene, set_pool
from tests.core.scene import Scene, job, outcome

# what a pool says for its nodes


def test_what_a_node_says_of_itself_comes_before_what_its_pool_says() -> None:
    facts = Facts({"cpu": 1}, labels={"disk": "nvme"}, zone="z1", taints=("gpu",))
    pool = Pool("p", labels={"disk": "hdd", "arch": "arm"}, zone="z2", rack="r2", taints=("gpu", "slow:soft"))
    reported = facts_in_pool(facts, pool)
    assert (reported.labels, reported.zone, reported.rack, reported.region) == (
        {"disk": "nvme", "arch": "arm"},
        "z1",
        "r2",
        "",
    )
    assert reported.taints == ("gpu", "slow:soft")


def test_rules_see_the_labels_and_the_zone_of_a_pool() -> None:
    scene = pool_scene(fast=("a",), slow=("b",))
    set_pool(scene, "fast", labels={"disk": "nvme"}, zone="z1")
    scene.submit(job("one", placement={"require": ["labels.disk == 'nvme'", "zone == 'z1'"]}))
    assert scene.where("one.0") == ["a"]
    set_pool(scene, "fast", labels={})
    scene.submit(job("two", placement={"require": ["'disk' in labels"]}))
    assert scene.counts("two") == {"queued": 1}


def test_taints_of_a_pool_keep_out_instances_that_do_not_tolerate_them() -> None:
    scene = pool_scene(gpu=("a",))
    set_pool(scene, "gpu", taints=("gpu",))
    scene.submit(job("plain"), job("fit", placement={"tolerate": ["gpu"]}))
    assert scene.counts("plain") == {"queued": 1}
    assert scene.where("fit.0") == ["a"]


def test_a_node_that_comes_later_and_a_server_that_starts_later_see_it_too() -> None:
    scene = Scene()
    scene.hello("x", pool="other")
    set_pool(scene, "late", labels={"k": "v"})
    scene.hello("a", pool="late")
    assert scene.state.fleet.facts[0].labels == {"k": "v"}
    scene.restart()
    assert scene.state.fleet.facts[0].labels == {"k": "v"}
    assert scene.state.nodes["a"].facts.labels == {}, "what the node itself says is stored"


# for which it is


def test_a_pool_of_another_project_is_never_considered() -> None:
    scene = pool_scene(gpu=("a",), plain=("b",))
    set_pool(scene, "gpu", projects=("ml",))
    scene.submit(job("mine", count=5), job("theirs", project="ml", placement={"pool": "gpu"}))
    assert scene.counts("mine") == {"placed": 4, "queued": 1}
    assert {scene.where(f"mine.{index}")[0] for index in range(4)} == {"b"}
    assert scene.instance("ml/theirs.0").node == "a"
    decision = scene.instance("mine.0").decision
    assert decision is not None
    assert [name for name, _ in decision.candidates] == ["b"]
    reported = why(scene.state, "default/mine", 4)
    assert "pool: gpu is for project ml (1 node)" in render_text(reported.text)


def test_an_instance_that_names_only_a_foreign_pool_can_never_run_and_says_so() -> None:
    scene = pool_scene(gpu=("a",), plain=("b",))
    set_pool(scene, "gpu", projects=("ml", "vision"))
    scene.submit(job("mine", placement={"pool": "gpu"}))
    reported, advice = advise(scene.state, "default/mine")
    assert (reported.code, advice.verdict) == ("unsatisfiable", "never")
    assert "pool: gpu is for project ml and project vision" in render_text(reported.text)


def test_a_gang_and_an_instance_that_would_preempt_stay_out_of_it_too() -> None:
    scene = Scene()
    scene.hello("a", pool="gpu", cpu=1)
    scene.hello("b", pool="plain", cpu=1)
    set_pool(scene, "gpu", projects=("ml",))
    scene.submit(job("low", project="ml", priority=1, placement={"pool": "gpu"}))
    scene.submit(job("gang", count=2, gang=True))
    scene.submit(job("high", priority=99, placement={"pool": "gpu"}))
    scene.wait("10m")
    assert scene.counts("gang") == {"queued": 2}
    assert not scene.state.gang_reservations, "nor are nodes of others kept for it"
    assert scene.counts("high") == {"queued": 1}
    assert scene.instance("ml/low.0").state == "placed"


def test_a_pool_that_is_for_all_projects_again_takes_pending_instances() -> None:
    scene = pool_scene(gpu=("a",))
    set_pool(scene, "gpu", projects=("ml",))
    scene.submit(job("mine"))
    assert scene.counts("mine") == {"queued": 1}
    set_pool(scene, "gpu")
    assert scene.where("mine.0") == ["a"]


# what is wrong


def test_what_no_pool_can_be_is_refused_and_nothing_stays() -> None:
    scene = pool_scene(one=("a",), two=("b",))
    assert outcome(set_pool(scene, "one", fallback="nowhere")) == {
        "replies": ["422 invalid: fallback: there is no pool nowhere: it has neither settings nor nodes"]
    }
    set_pool(scene, "two", fallback="one")
    done = set_pool(scene, "one", fallback="two")
    message = "422 fallback_cycle: fallback: pools would stand in for each other in a circle: one → two → one"
    assert outcome(done) == {"replies": [message]}
    assert "one" not in scene.state.pools
    assert outcome(mark(scene, "nowhere", "failed", "x")) == {
        "replies": ["404 not_found: there is no pool nowhere: it has neither settings nor nodes"]
    }
    assert outcome(set_pool(scene, "one", strategy="psychic"))["replies"][0].startswith(
        "422 invalid_strategy: strategy"
    )


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"when_failed": "panic"}, "when_failed"),
        ({"fallback": "p"}, "fallback"),
        ({"fallback": "no such/name"}, "fallback"),
        ({"fail_after_ms": 10}, "fail_after"),
        ({"fail_after_ms": DURATION_MS_MAX + 1}, "fail_after"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"k": "two\nlines"}}, "labels.k"),
        ({"taints": (":soft",)}, "taints[0]"),
        ({"zone": "x" * 300}, "zone"),
        ({"projects": ("ml", "a b")}, "projects[1]"),
        ({"overcommit": {"disk": 200}}, "overcommit.disk"),
    ],
)
def test_absurd_settings_are_refused_by_name(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_pool(msgspec.structs.replace(Pool("p"), **fields))
    assert refused.value.path == path
