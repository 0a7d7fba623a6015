"""`roost sim place`: every row of the table of strategies and eligibility, through the command itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from roost.cli.tools.sim import sim

MB = 1_000_000
TOTAL = (8, 16_000, 100_000)
FREE = (6, 12_000, 80_000)


def node(name: str, free: tuple[int, int, int] = FREE, total: tuple[int, int, int] = TOTAL, **more: Any) -> dict:
    """A node in cores and megabytes, by what it has and what is free."""
    used = [all_of_it - left for all_of_it, left in zip(total, free, strict=True)]
    resources = {"cpu": total[0], "memory": total[1] * MB, "disk": total[2] * MB}
    taken = {"cpu": used[0], "memory": used[1] * MB, "disk": used[2] * MB}
    return {"name": name, **resources, "used": taken, **more}


def ask(name: str, cpu: int, memory: int = 0, disk: int = 0, **more: Any) -> dict:
    return {"name": name, "resources": {"cpu": cpu, "memory": memory * MB, "disk": disk * MB}, **more}


def run(tmp_path: Path, file: dict | str, *options: str) -> Result:
    path = tmp_path / "fleet.yaml"
    path.write_text(file if isinstance(file, str) else json.dumps(file))
    return CliRunner().invoke(sim, ["place", str(path), *options])


def placed(tmp_path: Path, nodes: list[dict], workloads: list[dict], **more: Any) -> dict[str, str]:
    """Where each instance went; everything has to have a place."""
    result = run(tmp_path, {"nodes": nodes, "workloads": workloads, **more}, "--json")
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert outcome["pending"] == []
    return {placement["instance"]: placement["node"] for placement in outcome["placements"]}


def waiting(tmp_path: Path, nodes: list[dict], workloads: list[dict], **more: Any) -> list[dict]:
    """Pending work and why; nothing may have a place."""
    result = run(tmp_path, {"nodes": nodes, "workloads": workloads, **more}, "--json")
    assert result.exit_code == 4, result.output
    outcome = json.loads(result.stdout)
    assert outcome["placements"] == []
    return outcome["pending"]


def refused(tmp_path: Path, file: dict | str) -> dict[str, str]:
    result = run(tmp_path, file, "--json")
    assert result.exit_code == 2, result.output
    error = json.loads(result.stdout)["error"]
    assert error["path"] in result.stderr and error["message"] in result.stderr
    return error


# strategies


def test_least_loaded_takes_the_lowest_utilisation(tmp_path: Path) -> None:
    nodes = [node("n1", (2, 12_000, 80_000)), node("n2", (6, 12_000, 80_000)), node("n3", (4, 12_000, 80_000))]
    file = {"strategy": "least_loaded", "nodes": nodes, "workloads": [ask("x", 2, 2_000, 10_000)]}
    result = run(tmp_path, file, "--json")
    (placement,) = json.loads(result.stdout)["placements"]
    assert placement["node"] == "n2"
    assert placement["strategy"] == "least_loaded"
    assert placement["scores"] == {
        "n2": pytest.approx(1 - 0.24, abs=0.001),
        "n3": pytest.approx(1 - 0.34, abs=0.001),
        "n1": pytest.approx(1 - 0.44, abs=0.001),
    }


def test_without_a_name_the_strategy_is_least_loaded(tmp_path: Path) -> None:
    nodes = [node("n1", (6, 4_000, 80_000)), node("n2", (6, 14_000, 80_000))]
    assert placed(tmp_path, nodes, [ask("x", 1, 2_000, 10_000)]) == {"x.0": "n2"}


def test_best_fit_leaves_the_least_over(tmp_path: Path) -> None:
    nodes = [node("n1", (6, 12_000, 80_000)), node("n2", (2, 4_000, 20_000)), node("n3", (4, 8_000, 50_000))]
    assert placed(tmp_path, nodes, [ask("x", 1, 2_000, 10_000)], strategy="best_fit") == {"x.0": "n2"}


def test_a_workload_may_name_its_own_strategy(tmp_path: Path) -> None:
    nodes = [node("n1", (6, 12_000, 80_000)), node("n2", (2, 4_000, 20_000))]
    workloads = [ask("x", 1, placement={"strategy": "best_fit"}), ask("y", 1)]
    assert placed(tmp_path, nodes, workloads, strategy="worst_fit") == {"x.0": "n2", "y.0": "n1"}


def test_round_robin_goes_round(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    workloads = [ask(name, 1) for name in "abcd"]
    went = placed(tmp_path, nodes, workloads, strategy="round_robin")
    assert went == {"a.0": "n1", "b.0": "n2", "c.0": "n3", "d.0": "n1"}


def test_random_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2")]
    went = [placed(tmp_path, nodes, [ask("x", 1)], strategy="random", seed=seed)["x.0"] for seed in range(20)]
    again = [placed(tmp_path, nodes, [ask("x", 1)], strategy="random", seed=seed)["x.0"] for seed in range(20)]
    assert went == again
    assert set(went) == {"n1", "n2"}


def test_ties_go_to_the_first_by_name(tmp_path: Path) -> None:
    assert placed(tmp_path, [node("b"), node("c"), node("a")], [ask("x", 1)]) == {"x.0": "a"}


# who is eligible


@pytest.mark.parametrize("status", ["offline", "lost", "suspect", "cordoned", "draining", "drained", "terminating"])
def test_a_node_out_of_service_is_never_chosen(tmp_path: Path, status: str) -> None:
    nodes = [node("n1", TOTAL, status=status), node("n2", (1, 1_000, 10_000), status="ready")]
    workloads = [ask(name, 1, 100) for name in "ab"]
    result = run(tmp_path, {"nodes": nodes, "workloads": workloads}, "--json")
    assert result.exit_code == 4
    outcome = json.loads(result.stdout)
    assert [placement["node"] for placement in outcome["placements"]] == ["n2"]
    assert [item["code"] for item in outcome["pending"]] == ["insufficient_resources"]


@pytest.mark.parametrize(
    ("tight", "roomy", "need"),
    [
        ((1, 12_000, 80_000), (4, 12_000, 80_000), (2, 0, 0)),
        ((6, 1_000, 80_000), (6, 10_000, 80_000), (1, 5_000, 0)),
        ((6, 12_000, 5_000), (6, 12_000, 50_000), (1, 0, 20_000)),
    ],
    ids=["cpu", "memory", "disk"],
)
def test_a_node_without_room_is_passed_over(tmp_path: Path, tight: Any, roomy: Any, need: Any) -> None:
    for strategy in ("best_fit", "least_loaded", "first_fit", "round_robin", "random"):
        nodes = [node("n1", tight), node("n2", roomy)]
        assert placed(tmp_path, nodes, [ask("x", *need)], strategy=strategy) == {"x.0": "n2"}


@pytest.mark.parametrize("nodes", [[], [node("n1", status="offline"), node("n2", status="lost")]])
def test_without_a_node_online_the_code_is_no_nodes(tmp_path: Path, nodes: list[dict]) -> None:
    (pending,) = waiting(tmp_path, nodes, [ask("x", 1)])
    assert (pending["instance"], pending["code"], pending["online"]) == ("x.0", "no_nodes", 0)
    assert pending["message"] == "no node is online"


def test_what_no_node_could_ever_hold_is_unsatisfiable(tmp_path: Path) -> None:
    small = node("n1", (1, 500, 5_000), (2, 4_000, 20_000))
    (pending,) = waiting(tmp_path, [small], [ask("x", 4, 8_000, 50_000)])
    assert pending["code"] == "unsatisfiable"
    assert [blocker["nodes"] for blocker in pending["blockers"]] == [1]
    assert "needs 4 cpu, the largest has 2 cpu" in pending["blockers"][0]["reason"]


def test_what_an_empty_node_could_hold_waits_for_room(tmp_path: Path) -> None:
    (pending,) = waiting(tmp_path, [node("n1", (1, 500, 5_000))], [ask("x", 4, 8_000, 50_000)])
    assert pending["code"] == "insufficient_resources"
    assert pending["blockers"] == [
        {
            "reason": "resources: needs 4 cpu, at most 1 cpu free; needs 46.56GiB disk, at most 4.65GiB disk free; "
            "needs 7.45GiB memory, at most 476.83MiB memory free",
            "nodes": 1,
        }
    ]


def test_a_node_without_cpu_divides_nothing_by_zero(tmp_path: Path) -> None:
    for strategy in ("least_loaded", "best_fit", "worst_fit"):
        nodes = [node("n1", (0, 12_000, 80_000), (0, 16_000, 100_000)), node("n2")]
        assert placed(tmp_path, nodes, [ask("x", 1, 100)], strategy=strategy) == {"x.0": "n2"}


def test_two_asks_and_room_for_one(tmp_path: Path) -> None:
    workloads = [ask("x", 4), ask("y", 4)]
    result = run(tmp_path, {"nodes": [node("n1", (6, 12_000, 80_000))], "workloads": workloads}, "--json")
    assert result.exit_code == 4
    outcome = json.loads(result.stdout)
    assert [placement["instance"] for placement in outcome["placements"]] == ["x.0"]
    assert [item["instance"] for item in outcome["pending"]] == ["y.0"]
    assert placed(tmp_path, [node("n1"), node("n2")], workloads) == {"x.0": "n1", "y.0": "n2"}


def test_a_driver_is_worth_more_than_room(tmp_path: Path) -> None:
    roomy = node("n1", TOTAL, drivers=["process"])
    tight = node("n2", (1, 1_000, 10_000), drivers=["process", "container"])
    boxed = ask("x", 1, 100, image="python:3.12")
    assert placed(tmp_path, [roomy, tight], [boxed]) == {"x.0": "n2"}
    (pending,) = waiting(tmp_path, [roomy, node("n3", drivers=["process"])], [boxed])
    assert (pending["code"], pending["online"]) == ("unsatisfiable", 2)
    assert pending["blockers"] == [{"reason": "driver: offers no containers", "nodes": 2}]


@pytest.mark.parametrize(
    ("rule", "existing"),
    [("arch == 'amd64'", {"arch": "amd64"}), ("labels.arch == 'amd64'", {"labels": {"arch": "amd64"}})],
)
def test_an_unknown_architecture_is_not_the_wanted_one(tmp_path: Path, rule: str, existing: dict) -> None:
    wants = ask("x", 1, placement={"require": [rule]})
    assert placed(tmp_path, [node("n1"), node("n2", (1, 100, 100), **existing)], [wants]) == {"x.0": "n2"}
    (pending,) = waiting(tmp_path, [node("n1")], [wants])
    assert pending["code"] == "unsatisfiable"
    assert rule in pending["blockers"][0]["reason"]


def test_only_the_member_of_a_required_zone(tmp_path: Path) -> None:
    nodes = [node("n1", zone="b"), node("n2"), node("n3", (1, 100, 100), zone="a")]
    assert placed(tmp_path, nodes, [ask("x", 1, placement={"require": ["zone == 'a'"]})]) == {"x.0": "n3"}
    labelled = [node("n1", labels={"site": "b"}), node("n2"), node("n3", (1, 100, 100), labels={"site": "a"})]
    assert placed(tmp_path, labelled, [ask("x", 1, placement={"require": ["labels.site == 'a'"]})]) == {"x.0": "n3"}


def test_only_the_pool_that_is_asked_for(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2", pool="ci")]
    assert placed(tmp_path, nodes, [ask("x", 1, placement={"pool": "ci"})]) == {"x.0": "n2"}


def test_every_resource_counts_not_only_the_first(tmp_path: Path) -> None:
    nodes = [node("n1", (1, 100, 0)), node("n2", (2, 10, 0))]
    for strategy in ("best_fit", "least_loaded", "first_fit"):
        assert placed(tmp_path, nodes, [ask("x", 1, 50)], strategy=strategy) == {"x.0": "n1"}


def test_resources_of_any_name_are_counted(tmp_path: Path) -> None:
    nodes = [
        {"name": "n1", "cpu": 4, "gpu": 1, "resources": {"licence": 1}},
        {"name": "n2", "cpu": 4, "gpu": 2, "resources": {"licence": 2}, "used": {"licence": 1}},
    ]
    wants = {"name": "x", "count": 2, "resources": {"cpu": 1, "licence": 1}}
    assert placed(tmp_path, nodes, [wants]) == {"x.0": "n1", "x.1": "n2"}
    assert placed(tmp_path, nodes, [{"name": "y", "resources": {"gpu": 2}}]) == {"y.0": "n2"}


def test_every_instance_of_an_array_is_listed(tmp_path: Path) -> None:
    file = {"nodes": [node("n1", (3, 100, 100))], "workloads": [ask("x", 1, count=5)]}
    outcome = json.loads(run(tmp_path, file, "--json").stdout)
    assert [placement["instance"] for placement in outcome["placements"]] == ["x.0", "x.1", "x.2"]
    assert [item["instance"] for item in outcome["pending"]] == ["x.3", "x.4"]


def test_a_higher_priority_goes_first(tmp_path: Path) -> None:
    file = {"nodes": [node("n1", (2, 100, 100))], "workloads": [ask("x", 2), ask("y", 2, priority=90)]}
    outcome = json.loads(run(tmp_path, file, "--json").stdout)
    assert [placement["instance"] for placement in outcome["placements"]] == ["y.0"]


def test_more_than_one_pass_may_place(tmp_path: Path) -> None:
    nodes = [{"name": "n1", "cpu": 3_000}]
    assert len(placed(tmp_path, nodes, [ask("x", 1, count=2_500)])) == 2_500


# what is refused


def test_an_unknown_strategy_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    for file, path in (
        ({"strategy": "cleverest", "nodes": [node("n1")], "workloads": [ask("x", 1)]}, "strategy"),
        (
            {"nodes": [], "workloads": [ask("x", 1), ask("y", 1, placement={"strategy": "cleverest"})]},
            "workloads[1].placement.strategy",
        ),
    ):
        error = refused(tmp_path, file)
        assert (error["code"], error["path"]) == ("invalid_strategy", path)
        assert "best_fit" in error["message"] and "least_loaded" in error["message"]


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ({"nodes": [node("a"), {"name": "b", "cpu": -1}]}, "nodes[1].cpu"),
        ({"nodes": [node("a"), {"name": "b", "cpu": [1]}]}, "nodes[1].cpu"),
        ({"nodes": [{"name": "b", "memory": "4 apples"}]}, "nodes[0].memory"),
        ({"nodes": [{"name": "b", "cpu": 1, "used": {"cpu": 2}}]}, "nodes[0].used.cpu"),
        ({"nodes": [{"name": "b", "cpu": 1, "used": {"cpu": None}}]}, "nodes[0].used.cpu"),
        ({"nodes": [{"name": "b", "cpu": 1, "resources": {"cpu": 2}}]}, "nodes[0].resources.cpu"),
        ({"nodes": [{"name": "b", "status": "onlin"}]}, "nodes[0].status"),
        ({"nodes": [{"cpu": 1}]}, "nodes[0].name"),
        ({"nodes": [node("a"), node("a")]}, "nodes[1].name"),
        ({"nodes": [{"name": "a", "cpus": 1}]}, "nodes[0].cpus"),
        ({"nodes": 3}, "nodes"),
        ({"fleet": []}, "fleet"),
        ({"seed": "x"}, "seed"),
        ({"workloads": [{"resources": {}}]}, "workloads[0].name"),
        ({"workloads": [{"name": "x", "resources": {"cpu": -1}}]}, "workloads[0].resources.cpu"),
        ({"workloads": [{"name": "x", "placement": {"require": ["zone =="]}}]}, "workloads[0].placement.require[0]"),
        ({"workloads": [ask("x", 1), ask("x", 1)]}, "workloads[1].name"),
        ({"workloads": ["x"]}, "workloads[0]"),
        ("- 1", "$"),
        ("nodes: [", "$"),
        ("seed: 1\nseed: 2", "$"),
        ("", "$"),
    ],
)
def test_a_wrong_file_is_refused_with_the_path_of_the_field(tmp_path: Path, file: dict | str, path: str) -> None:
    assert refused(tmp_path, file)["path"] == path


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(sim, ["place", str(tmp_path / "none.yaml")]).exit_code == 2


# for people


def test_people_get_a_table_and_words(tmp_path: Path) -> None:
    file = """
    strategy: best_fit
    nodes:
      - {name: n1, cpu: 8, memory: 16GiB, used: {cpu: 2}}
      - {name: n2, cpu: 4, memory: 16GiB}
    workloads:
      - {name: x, count: 2, resources: {cpu: 3, memory: 1GiB}}
      - {name: y, resources: {cpu: 16}}
    """
    result = run(tmp_path, file)
    assert result.exit_code == 4
    assert result.output.splitlines() == [
        "INSTANCE  NODE  STRATEGY  SCORE  OVER",
        "x.0       n2    best_fit  0.525  n1 0.475",
        "x.1       n1    best_fit  0.475",
        "y.0 is pending (unsatisfiable): capacity: needs 16 cpu, the largest has 8 cpu (2 nodes)",
        "2 of 3 placed",
    ]
