"""Strategies and eligibility: which node is taken, and which never is. Nodes are given as total and free."""

from typing import Any

import pytest

from roost.core.explain.why import why
from roost.core.placement.scorers import SCORE_MAX, idleness
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.allocation import Allocation
from roost.model.records.node import Facts
from roost.model.records.workload import Ask
from tests.core.scene import MEGABYTE, Scene, job

DEFAULT = {"cpu": (8, 6), "memory": (16_000, 12_000), "disk": (100_000, 80_000)}


def scene_of(*nodes: dict[str, tuple[float, float]], **settings: Any) -> Scene:
    """Nodes n1, n2, ... with {resource: (total, free)} in cores and megabytes, else as the default node."""
    scene = Scene(**settings)
    scene.checked = False  # what is in use here is not held by an instance
    for number, given in enumerate(nodes, start=1):
        node = DEFAULT | given
        total, free = ({name: in_units(name, pair[side]) for name, pair in node.items()} for side in (0, 1))
        scene.hello(f"n{number}", facts=Facts(total))
        scene.state.fleet.take(f"n{number}", Allocation(tuple((name, total[name] - free[name]) for name in total)))
    return scene


def in_units(resource: str, amount: float) -> int:
    return round(amount * (1_000 if resource == "cpu" else MEGABYTE))


def ask(cpu: float = 0, memory: float = 0, disk: float = 0, **fields: Any) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": int(memory * MEGABYTE), "disk": int(disk * MEGABYTE)}
    return {"name": "ask", "command": "true", "resources": resources} | fields


def chosen(scene: Scene, document: dict[str, Any]) -> str:
    """Where it goes; the code of the reason where it goes nowhere."""
    scene.submit(document)
    instance = scene.state.instances.get(f"default/{document['name']}.0")
    return instance.node if instance else why(scene.state, f"default/{document['name']}").code


def test_utilisation_of_the_default_node() -> None:
    scene = scene_of({})
    overall = 1 - idleness.score(scene.state.fleet, Ask())[0] / SCORE_MAX
    assert overall == pytest.approx(0.24, abs=0.001)


def test_least_loaded_takes_the_lowest_utilisation() -> None:
    scene = scene_of({"cpu": (8, 2)}, {"cpu": (8, 6)}, {"cpu": (8, 4)})
    utilisation = [1 - score / SCORE_MAX for score in idleness.score(scene.state.fleet, Ask())]
    assert utilisation == pytest.approx([0.44, 0.24, 0.34], abs=0.001)
    assert chosen(scene, ask(2, 2_000, 10_000, placement={"strategy": "least_loaded"})) == "n2"


def test_without_a_strategy_the_least_loaded_is_taken() -> None:
    scene = scene_of({"memory": (16_000, 4_000)}, {"memory": (16_000, 14_000)})
    assert chosen(scene, ask(1, 2_000, 10_000)) == "n2"


def test_best_fit_leaves_the_least() -> None:
    nodes = [
        {"cpu": (8, cpu), "memory": (16_000, memory), "disk": (100_000, disk)}
        for cpu, memory, disk in ((6, 12_000, 80_000), (2, 4_000, 20_000), (4, 8_000, 50_000))
    ]
    assert chosen(scene_of(*nodes), ask(1, 2_000, 10_000, placement={"strategy": "best_fit"})) == "n2"
    assert chosen(scene_of(*nodes), ask(1, 2_000, 10_000, placement={"strategy": "worst_fit"})) == "n1"


def test_best_fit_counts_each_resource_as_a_share_of_its_own_total() -> None:
    large_disk = {"cpu": (8, 8), "memory": (16_000, 16_000), "disk": (9_000_000, 20_000)}
    full_disk = {"cpu": (8, 8), "memory": (16_000, 16_000), "disk": (20_000, 20_000)}
    assert chosen(scene_of(full_disk, large_disk), ask(1, 1_000, placement={"strategy": "best_fit"})) == "n2"


def test_a_servers_own_strategy_holds_where_the_workload_says_nothing() -> None:
    tight, roomy = {"cpu": (8, 2)}, {"cpu": (8, 6)}
    assert chosen(scene_of(roomy, tight, strategy="best_fit"), ask(1)) == "n2"
    assert chosen(scene_of(roomy, tight, strategy="best_fit"), ask(1, placement={"strategy": "worst_fit"})) == "n1"


def places(scene: Scene, number: int, strategy: str, *, restart_after: int = -1) -> list[str]:
    """Asks come one at a time; optionally the server starts again after some of them."""
    found = []
    for index in range(number):
        found.append(chosen(scene, job(f"job-{index}", placement={"strategy": strategy})))
        if index == restart_after:
            scene.restart()
            for name, node in list(scene.state.nodes.items()):
                running = [key.removeprefix("default/") for key, i in scene.state.instances.items() if i.node == name]
                scene.hello(name, *running, facts=node.facts)
    return found


def test_round_robin_goes_round() -> None:
    assert places(Scene("n1", "n2", "n3"), 4, "round_robin") == ["n1", "n2", "n3", "n1"]


def test_round_robin_goes_round_within_one_request() -> None:
    scene = Scene("n1", "n2", "n3")
    scene.submit(*[job(f"job-{number}", placement={"strategy": "round_robin"}) for number in range(4)])
    assert scene.where("job-0.0", "job-1.0", "job-2.0", "job-3.0") == ["n1", "n2", "n3", "n1"]


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_round_robin_remembers_its_position_over_a_restart(after: int) -> None:
    assert places(Scene("n1", "n2", "n3"), 5, "round_robin", restart_after=after) == ["n1", "n2", "n3", "n1", "n2"]


def test_round_robin_skips_nodes_that_are_full_or_have_left() -> None:
    scene = Scene("n1", "n2", "n3", "n4")
    assert places(scene, 2, "round_robin") == ["n1", "n2"]
    scene.ended("job-1.0")
    scene.part("n2")
    scene.remove("n2")
    scene.drain("n3")
    scene.submit(*[job(name, placement={"strategy": "round_robin"}) for name in ("next", "after")])
    assert scene.where("next.0", "after.0") == ["n4", "n1"]


def test_next_fit_stays_until_it_is_full_and_first_fit_looks_from_the_front() -> None:
    scene = Scene("n1", "n2", cpu=2)
    assert places(scene, 3, "next_fit") == ["n1", "n1", "n2"]
    scene.ended("job-0.0")
    assert chosen(scene, job("stays", placement={"strategy": "next_fit"})) == "n2"
    assert chosen(scene, job("front", placement={"strategy": "first_fit"})) == "n1"


def test_random_takes_one_of_them_and_the_same_seed_takes_the_same() -> None:
    taken = [places(Scene("n1", "n2", cpu=99, seed=seed), 20, "random") for seed in (1, 1, 2)]
    assert taken[0] == taken[1]
    assert taken[0] != taken[2]
    assert set(taken[0]) == {"n1", "n2"}


def test_random_is_uniform_over_the_eligible() -> None:
    scene = Scene("n1", "n2", "n3", cpu=1_000, seed=3, placements_max=900)
    scene.hello("n0", cpu=0.5)
    scene.submit(job("array", count=900, placement={"strategy": "random"}))
    where = scene.where(*[f"array.{index}" for index in range(900)])
    assert [where.count(f"n{number}") > 240 for number in range(4)] == [False, True, True, True]


@pytest.mark.parametrize("strategy", ["least_loaded", "best_fit", "worst_fit", "first_fit", "round_robin", "next_fit"])
def test_of_equal_nodes_the_first_by_name_is_taken(strategy: str) -> None:
    scene = Scene("n3", "n1", "n2")
    assert chosen(scene, job("web", placement={"strategy": strategy})) == "n1"


# eligibility, under every strategy

EVERY = pytest.mark.parametrize("strategy", sorted(STRATEGIES))


@EVERY
def test_an_offline_node_is_never_chosen(strategy: str) -> None:
    scene = Scene("n1", "n2", strategy=strategy)
    scene.part("n1")
    assert {chosen(scene, job(f"job-{number}")) for number in range(4)} == {"n2"}


@EVERY
@pytest.mark.parametrize(
    ("free", "need"),
    [
        ({"cpu": ((8, 1), (8, 4))}, ask(cpu=2)),
        ({"memory": ((16_000, 1_000), (16_000, 10_000))}, ask(memory=5_000)),
        ({"disk": ((100_000, 5_000), (100_000, 50_000))}, ask(disk=20_000)),
    ],
    ids=["cpu", "memory", "disk"],
)
def test_a_node_without_room_is_never_chosen(strategy: str, free: dict[str, Any], need: dict[str, Any]) -> None:
    ((resource, pairs),) = free.items()
    assert chosen(scene_of(*({resource: pair} for pair in pairs), strategy=strategy), need) == "n2"


@EVERY
def test_no_nodes_and_no_nodes_online(strategy: str) -> None:
    assert chosen(Scene(strategy=strategy), ask(1)) == "no_nodes"
    scene = Scene("n1", strategy=strategy)
    scene.part("n1")
    assert chosen(scene, ask(1)) == "no_nodes"


@EVERY
def test_one_node_that_could_never_hold_it_and_one_that_could(strategy: str) -> None:
    free = {"cpu": 1, "memory": 500, "disk": 5_000}
    small = scene_of({name: (amount, amount) for name, amount in free.items()}, strategy=strategy)
    large = scene_of({name: (DEFAULT[name][0], amount) for name, amount in free.items()}, strategy=strategy)
    assert chosen(small, ask(4, 8_000, 50_000)) == "unsatisfiable"
    assert chosen(large, ask(4, 8_000, 50_000)) == "insufficient_resources"


@EVERY
def test_a_node_without_any_cpu_beside_a_normal_one(strategy: str) -> None:
    assert chosen(scene_of({"cpu": (0, 0)}, {}, strategy=strategy), ask(1)) == "n2"


@pytest.mark.parametrize("strategy", ["least_loaded", "best_fit", "worst_fit"])
def test_totals_of_zero_everywhere_divide_by_nothing(strategy: str) -> None:
    nothing = {"cpu": (0, 0), "memory": (0, 0), "disk": (0, 0)}
    assert chosen(scene_of(nothing, strategy=strategy), ask(0)) == "n1"


@EVERY
def test_a_tight_node_with_the_driver_before_a_roomy_one_without(strategy: str) -> None:
    scene = Scene(strategy=strategy)
    scene.hello("n1", cpu=64)
    scene.hello("n2", cpu=1, drivers=("process", "container"))
    assert chosen(scene, job("web", image="python:3.12")) == "n2"


@EVERY
@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("arch == 'arm64'", {"arch": "arm64"}),
        ("zone in ['a', 'b']", {"zone": "b"}),
        ("labels.site == 'here'", {"labels": {"site": "here"}}),
        ("'gpu' in capacity && capacity.gpu >= 1000", {"more": {"gpu": 1_000}}),
    ],
)
def test_rules_take_the_member_only_not_the_other_and_not_one_without_the_label(
    strategy: str, rule: str, fields: dict[str, Any]
) -> None:
    scene = Scene(strategy=strategy)
    scene.hello("n1", arch="amd64", zone="x", labels={"site": "there"})
    scene.hello("n2")
    scene.hello("n3", cpu=1, **fields)
    assert chosen(scene, job("web", placement={"require": [rule]})) == "n3"
    assert chosen(scene, job("too", placement={"require": [rule]})) == "insufficient_resources"


@EVERY
def test_pools_hold(strategy: str) -> None:
    scene = Scene(strategy=strategy)
    scene.hello("n1", cpu=64)
    scene.hello("n2", cpu=1, pool="ci")
    assert chosen(scene, job("web", placement={"pool": ["ci", "other"]})) == "n2"


@EVERY
def test_enough_of_one_resource_does_not_hide_too_little_of_another(strategy: str) -> None:
    first, second = {"cpu": (8, 1), "memory": (16_000, 100)}, {"cpu": (8, 2), "memory": (16_000, 10)}
    assert chosen(scene_of(first, second, strategy=strategy), ask(1, 50)) == "n1"


def test_pebibytes_are_counted_exactly() -> None:
    scene = Scene()
    scene.hello("n1", facts=Facts({"cpu": 1_000, "memory": 1 << 53, "disk": 1 << 53}))
    scene.hello("n2", facts=Facts({"cpu": 1_000, "memory": (1 << 53) - 1, "disk": 1 << 53}))
    assert chosen(scene, job("exact", resources={"memory": str(1 << 53)})) == "n1"
    assert chosen(scene, job("next", resources={"memory": str(1 << 53)})) == "insufficient_resources"
