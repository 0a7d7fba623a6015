"""Rules about company: near, apart, spread, avoid, per_node; by node, rack, zone and region; workloads and labels."""

import pytest

from roost.core.placement.strategies import STRATEGIES
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import Scene, job

EVERY_STRATEGY = sorted(STRATEGIES)
PLACES = ("node", "rack", "zone", "region")


def town(strategy: str = "first_fit") -> FleetBuilder:
    """Two regions, three zones, four racks, six nodes, and one with an unknown place."""
    builder = FleetBuilder(strategy=strategy)
    for name, rack, zone, region in (
        ("a1", "r1", "za", "eu"),
        ("a2", "r1", "za", "eu"),
        ("a3", "r2", "za", "eu"),
        ("b1", "r3", "zb", "eu"),
        ("c1", "r4", "zc", "us"),
        ("c2", "r4", "zc", "us"),
    ):
        builder.node(name, rack=rack, zone=zone, region=region)
    builder.node("lost")
    return builder


def only(name: str) -> list[str]:
    return [f"name == '{name}'"]


# near


@pytest.mark.parametrize(
    ("by", "others"), [("node", "a2"), ("rack", "a1 a2"), ("zone", "a1 a2 a3"), ("region", "a1 a2 a3 b1")]
)
def test_near_is_in_the_same_place(by: str, others: str) -> None:
    builder = town()
    near = [{"workload": "cache", "by": by}]
    assert builder.place("web", near=near) == ""
    assert builder.blockers("web", near=near) == {"near: no instance of default/cache runs anywhere": 7}
    builder.place("cache", require=only("a2"))
    assert " ".join(builder.scores("web", near=near)) == others
    left = 7 - len(others.split())
    assert builder.blockers("web", near=near) == {f"near: no instance of default/cache is in this {by}": left}
    builder.end("cache")
    assert builder.scores("web", near=near) == {}


def test_near_a_label_is_near_any_workload_that_has_it() -> None:
    builder = town()
    builder.place("one", require=only("b1"), labels={"tier": "cache"})
    builder.place("two", require=only("c2"), labels={"tier": "cache"})
    builder.place("three", require=only("a1"), labels={"tier": "web"})
    assert list(builder.scores("x", near=[{"label": "tier=cache"}])) == ["b1", "c2"]
    assert list(builder.scores("x", near=[{"label": "tier"}])) == ["a1", "b1", "c2"]
    assert list(builder.scores("x", near=[{"label": "tier=db"}])) == []


def test_a_label_is_one_of_the_own_project_and_a_workload_may_be_anothers() -> None:
    builder = town()
    builder.place("cache", require=only("b1"), labels={"tier": "cache"})
    assert list(builder.scores("x", project="other", near=[{"label": "tier"}])) == []
    assert list(builder.scores("x", project="other", near=[{"workload": "cache"}])) == []
    assert list(builder.scores("x", project="other", near=[{"workload": "default/cache"}])) == ["b1"]


@pytest.mark.parametrize("by", PLACES)
def test_an_instance_that_is_near_its_own_kind_begins_anywhere_and_the_others_follow(by: str) -> None:
    builder = town("round_robin")
    place_of = {"node": "name", "rack": "rack", "zone": "zone", "region": "region"}[by]
    builder.last = 2
    went = builder.places("pack", 4, near=[{"workload": "pack", "by": by}], resources={"cpu": 1})
    where = {name if by == "node" else getattr(builder.fleet.facts[builder.fleet.row(name)], place_of) for name in went}
    assert len(where) == 1 and "" not in where


def test_the_first_of_a_kind_that_stays_together_does_not_begin_where_no_instance_can_follow() -> None:
    builder = FleetBuilder("lost")
    assert builder.place("pack", near=[{"label": "pack", "by": "zone"}], labels={"pack": ""}) == ""
    assert builder.blockers("pack", near=[{"label": "pack", "by": "zone"}], labels={"pack": ""}) == {
        "near: it is not known in which zone it is": 1,
    }
    assert builder.place("pack", near=[{"label": "pack"}], labels={"pack": ""}) == "lost"


# apart


@pytest.mark.parametrize(
    ("by", "others"),
    [("node", "a1 a3 b1 c1 c2 lost"), ("rack", "a3 b1 c1 c2"), ("zone", "b1 c1 c2"), ("region", "c1 c2")],
)
def test_apart_is_in_another_place(by: str, others: str) -> None:
    builder = town()
    apart = [{"workload": "db", "by": by}]
    builder.place("db", require=only("a2"))
    assert " ".join(builder.scores("web", apart=apart)) == others
    builder.end("db")
    assert len(builder.scores("web", apart=apart)) == (7 if by == "node" else 6)


def test_anti_affinity_says_which_instance_is_there_and_where_it_is_not_known() -> None:
    builder = town()
    builder.place("db", require=only("a2"))
    assert builder.blockers("web", apart=[{"workload": "db", "by": "zone"}]) == {
        "apart: default/db is in this zone": 4,
    }
    assert builder.place("web", require=only("lost"), apart=[{"workload": "db", "by": "zone"}]) == ""


@pytest.mark.parametrize("by", PLACES)
def test_apart_works_both_ways(by: str) -> None:
    builder = town()
    builder.place("db", require=only("a2"), apart=[{"workload": "noisy", "by": by}])
    there = {"node": "a2", "rack": "a1 a2", "zone": "a1 a2 a3", "region": "a1 a2 a3 b1"}[by].split()
    assert [name for name in builder.fleet.names if name not in builder.scores("noisy")] == there
    assert builder.blockers("noisy") == {f"apart: a workload apart from default/noisy is in this {by}": len(there)}
    assert len(builder.scores("quiet")) == 7
    builder.end("db")
    assert len(builder.scores("noisy")) == 7
    assert builder.fleet.topology.anti_affinity == {} and builder.fleet.topology.members == {}


def test_apart_from_a_label_works_both_ways() -> None:
    builder = town()
    builder.place("db", require=only("a1"), apart=[{"label": "noisy=very"}])
    builder.place("drums", require=only("b1"), labels={"noisy": "very"})
    assert "b1" not in builder.scores("other", apart=[{"label": "noisy"}])
    assert "a1" not in builder.scores("bells", labels={"noisy": "very"})
    assert "a1" in builder.scores("bells", labels={"noisy": "little"})


def test_apart_from_oneself_is_one_in_each_place() -> None:
    builder = town()
    assert builder.places("db", 5, apart=[{"workload": "db", "by": "zone"}]) == ["a1", "b1", "c1", "", ""]
    builder.end("db")
    assert builder.place("db", apart=[{"workload": "db", "by": "zone"}]) == "a1"


# spread


def test_spread_keeps_places_even() -> None:
    builder = town()
    went = builder.places("web", 7, spread={"by": "zone", "max_skew": 1})
    assert went == ["a1", "b1", "c1", "a1", "b1", "c1", "a1"]
    assert builder.blockers("web", spread={"by": "zone"}) == {
        "spread: its zone has 1 more than another already; it is not known in which zone it is": 4,
    }


def test_max_skew_is_how_many_more_one_place_may_have() -> None:
    builder = town()
    went = builder.places("web", 8, spread={"by": "zone", "max_skew": 3})
    assert went == ["a1", "a1", "a1", "b1", "b1", "b1", "c1", "a1"]


def test_only_places_count_that_could_take_it_and_are_in_service() -> None:
    builder = town()
    far = ["zone != 'zc'"]
    assert builder.places("web", 4, spread={"by": "zone"}, require=far) == ["a1", "b1", "a1", "b1"]
    builder.fleet.set_open("b1", is_open=False, is_online=True)
    assert builder.places("web", 2, spread={"by": "zone"}, require=far) == ["a1", "a1"], "za is all there is"
    builder.fleet.set_open("b1", is_open=True, is_online=True)
    assert builder.places("web", 4, spread={"by": "zone"}, require=far) == ["b1", "b1", "a2", ""], "b1 is full"


def test_a_place_that_is_full_makes_others_wait() -> None:
    builder = town()
    builder.place("big", require=only("b1"), resources={"cpu": 4})
    assert builder.places("web", 3, spread={"by": "zone"}) == ["a1", "c1", ""]
    builder.end("big")
    assert builder.place("web", spread={"by": "zone"}) == "b1"


def test_spread_by_several_kinds_of_place() -> None:
    builder = town()
    went = builder.places("web", 4, spread=[{"by": "region"}, {"by": "node"}])
    assert went == ["a1", "c1", "a2", "c2"]


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_spread_with_a_weight_is_even_as_far_as_it_can_be(strategy: str) -> None:
    builder = FleetBuilder(strategy=strategy)
    builder.node("a", zone="za", cpu=8)
    builder.node("b", zone="zb", cpu=2)
    went = builder.places("web", 4, spread={"by": "zone", "weight": 100}, resources={"cpu": 1})
    assert sorted(went) == ["a", "a", "b", "b"]
    assert builder.place("web", spread={"by": "zone", "weight": 100}) == "a", "a wish is no condition"


# wishes about company


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
@pytest.mark.parametrize("drawn", range(3))
def test_near_with_a_weight_is_a_wish(strategy: str, drawn: int) -> None:
    builder = FleetBuilder("a", "b", "c", cpu=2, strategy=strategy)
    near = [{"workload": "cache", "weight": 100}]
    assert builder.place("early", near=near, drawn=drawn) in ("a", "b", "c")
    builder.end("early")
    builder.place("cache", require=only("b"))
    assert builder.place("web", near=near, drawn=drawn) == "b"
    assert builder.place("web", near=near, drawn=drawn) in ("a", "c")


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
@pytest.mark.parametrize("rule", ["apart", "avoid"])
def test_apart_with_a_weight_and_avoid_are_wishes(strategy: str, rule: str) -> None:
    for drawn in range(3):
        builder = FleetBuilder("a", "b", cpu=2, strategy=strategy)
        builder.place("drums", require=only("a"), labels={"noisy": "yes"})
        wish = {rule: [{"label": "noisy", "weight": 100}]}
        assert builder.places("web", 2, drawn=drawn, **wish) == ["b", "b"]
        assert builder.place("web", drawn=drawn, **wish) == "a"
        assert builder.place("noisy-too", labels={"noisy": "no"}) in ("a", "")


def test_avoid_without_a_weight_is_a_small_wish() -> None:
    builder = FleetBuilder("a", "b", cpu=10, memory=0, disk=0)
    builder.place("drums", require=only("a"), labels={"noisy": "yes"}, resources={"cpu": "1m"})
    builder.place("load", require=only("b"), resources={"cpu": 2})
    assert builder.place("web", avoid=[{"label": "noisy"}], resources={"cpu": "1m"}) == "b", "8 % busier, 10 % quieter"
    builder.place("load", require=only("b"), resources={"cpu": 2})
    assert builder.place("web", avoid=[{"label": "noisy"}], resources={"cpu": "1m"}) == "a"


def test_wishes_about_nodes_and_company_are_weighed_together() -> None:
    builder = FleetBuilder(cpu=10)
    builder.node("a", cpu=10, zone="za")
    builder.node("b", cpu=10, zone="zb")
    builder.place("cache", require=only("a"), resources={"cpu": "1m"})
    wishes = {"near": [{"workload": "cache", "weight": 30}], "prefer": [{"that": "zone == 'zb'", "weight": 40}]}
    assert builder.scores("web", **wishes) == {"a": 764, "b": 823}  # (100 + 30) / 170, (100 + 40) / 170
    wishes["near"][0]["weight"] = 50
    assert builder.scores("web", **wishes) == {"a": 789, "b": 736}


# per_node


def test_per_node_limits_how_many_share_a_node() -> None:
    builder = FleetBuilder("a", "b", cpu=8, strategy="first_fit")
    assert builder.places("web", 5, per_node=2) == ["a", "a", "b", "b", ""]
    assert builder.blockers("web", per_node=2) == {"per_node: has 2 of it already": 2}
    assert builder.place("other", per_node=1) == "a", "others do not count"
    builder.end("web")
    assert builder.place("web", per_node=2) == "a"


# through the whole core


def test_company_is_kept_through_ends_losses_and_restarts() -> None:
    scene = Scene("a", "b", "c", cpu=4)
    apart = {"apart": [{"workload": "db"}]}
    scene.submit(job("db", count=3, placement=apart))
    assert sorted(scene.where("db.0", "db.1", "db.2")) == ["a", "b", "c"]
    scene.submit(job("web", placement={"near": [{"workload": "db"}], "apart": [{"workload": "web"}]}, count=3))
    assert sorted(scene.where("web.0", "web.1", "web.2")) == ["a", "b", "c"]
    scene.submit(job("more", placement=apart))
    assert scene.counts("more") == {"queued": 1}
    scene.restart()
    for name in ("a", "b", "c"):
        scene.hello(name, *[item for item in ("db.0", "db.1", "db.2", "web.0", "web.1", "web.2")
                            if scene.instance(item).node == name])  # fmt: skip
    assert scene.counts("more") == {"queued": 1}
    scene.running("db.1")
    scene.ended("db.1")
    assert scene.where("more.0") == scene.where("db.1")


def test_an_instance_that_waited_for_affinity_starts_when_it_comes() -> None:
    scene = Scene("a", "b", cpu=4)
    scene.submit(job("web", placement={"near": [{"workload": "cache"}]}))
    assert scene.counts("web") == {"queued": 1}
    done = scene.submit(job("cache", placement={"require": ["name == 'b'"]}))
    assert done.wake_at_ms == scene.now
    scene.step()
    assert scene.where("cache.0", "web.0") == ["b", "b"]
