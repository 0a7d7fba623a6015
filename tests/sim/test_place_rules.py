"""`roost sim place` with every rule about nodes, company, GPUs and ports: golden cases through the command itself."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from roost.cli.tools.sim import sim

FLEET = [
    {"name": "a1", "cpu": 8, "zone": "a", "rack": "r1", "region": "eu", "gpu": 2, "gpu_model": "T4", "taints": ["gpu"]},
    {"name": "a2", "cpu": 8, "zone": "a", "rack": "r2", "region": "eu", "labels": {"disk": "nvme"}},
    {"name": "b1", "cpu": 8, "zone": "b", "rack": "r3", "region": "eu", "taints": ["spot:soft"]},
    {"name": "c1", "cpu": 8, "zone": "c", "rack": "r4", "region": "us", "pool": "far", "resources": {"licence": 1}},
]


def outcome(tmp_path: Path, *workloads: dict[str, Any], nodes: list[dict] | None = None, **more: Any) -> dict[str, Any]:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"nodes": nodes or FLEET, "workloads": workloads, "strategy": "first_fit"} | more))
    result = CliRunner().invoke(sim, ["place", str(path), "--json"])
    assert result.exit_code in (0, 4), result.output
    return json.loads(result.stdout)


def nodes_of(done: dict[str, Any]) -> dict[str, str]:
    return {placement["instance"]: placement["node"] for placement in done["placements"]}


def reasons(done: dict[str, Any]) -> dict[str, list[str]]:
    return {item["instance"]: [blocker["reason"] for blocker in item["blockers"]] for item in done["pending"]}


def test_rules_about_nodes(tmp_path: Path) -> None:
    done = outcome(
        tmp_path,
        {"name": "gpu", "resources": {"cpu": 1, "gpu": 1}, "placement": {"tolerate": ["gpu"], "gpu_model": "T4"}},
        {"name": "plain"},
        {"name": "spot", "placement": {"require": ["zone == 'b'"]}},
        {"name": "far", "placement": {"region": "us"}},
        {"name": "pool", "placement": {"pool": "far"}},
        {"name": "licensed", "resources": {"licence": 1}},
        {"name": "wish", "placement": {"prefer": [{"that": "zone == 'c'", "weight": 80}]}},
        {"name": "full", "placement": {"require": ["free.cpu >= 8000"], "tolerate": ["*"]}, "resources": {"cpu": 8}},
    )
    assert nodes_of(done) == {
        "gpu.0": "a1",
        "plain.0": "a2",
        "spot.0": "b1",
        "far.0": "c1",
        "pool.0": "c1",
        "licensed.0": "c1",
        "wish.0": "c1",
    }
    assert "require: free.cpu >= 8000 does not hold now" in reasons(done)["full.0"]


def test_rules_about_company(tmp_path: Path) -> None:
    done = outcome(
        tmp_path,
        {"name": "cache", "placement": {"require": ["zone == 'b'"]}},
        {"name": "web", "count": 2, "placement": {"near": [{"workload": "cache", "by": "zone"}]}},
        {"name": "db", "count": 3, "placement": {"apart": [{"workload": "db", "by": "zone"}]}},
        {"name": "even", "count": 4, "placement": {"spread": {"by": "region"}}},
        {"name": "few", "count": 4, "placement": {"per_node": 1}},
        {"name": "quiet", "placement": {"avoid": [{"workload": "db", "weight": 60}], "tolerate": ["gpu"]}},
    )
    went = nodes_of(done)
    assert (went["web.0"], went["web.1"]) == ("b1", "b1")
    assert sorted(went[f"db.{number}"] for number in range(3)) == ["a2", "b1", "c1"]
    assert sorted(went[f"even.{number}"] for number in range(4)).count("c1") == 2
    assert sorted(went[f"few.{number}"] for number in range(3)) == ["a2", "b1", "c1"]
    assert went["quiet.0"] == "a1"
    assert list(reasons(done)) == ["few.3"]
    assert "per_node: has 1 of it already" in reasons(done)["few.3"]


def test_devices_and_ports_are_reported(tmp_path: Path) -> None:
    nodes = [{"name": "n1", "cpu": 16, "gpu": 4, "used": {"gpu": 1.5}}]
    done = outcome(
        tmp_path,
        {"name": "half", "resources": {"gpu": 0.5}},
        {"name": "two", "resources": {"gpu": 2}, "ports": {"http": 80, "any": 0}},
        {"name": "more", "resources": {"gpu": 1}},
        {"name": "again", "ports": {"http": 80}},
        nodes=nodes,
    )
    given = {
        placement["instance"]: (placement.get("devices"), placement.get("ports")) for placement in done["placements"]
    }
    assert given == {"half.0": ([1], None), "two.0": ([2, 3], {"http": 80, "any": 20_000})}
    assert reasons(done) == {
        "more.0": ["resources: needs 1 gpu, at most 0 gpu free", "gpu: needs 1 whole, at most 0 wholly free"],
        "again.0": ["ports: 80 taken"],
    }


def test_the_table_shows_devices_and_ports_where_there_are_some(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    workloads = [{"name": "x", "resources": {"gpu": 2}, "ports": {"http": 80}}, {"name": "y"}]
    path.write_text(json.dumps({"nodes": [{"name": "n1", "cpu": 4, "gpu": 2}], "workloads": workloads}))
    result = CliRunner().invoke(sim, ["place", str(path)])
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][-2:] == ["GPUS", "PORTS"]
    assert lines[1][-4:] == ["0,", "1", "http", "80"]
    path.write_text(json.dumps({"nodes": [{"name": "n1", "cpu": 4}], "workloads": workloads[1:]}))
    assert "GPUS" not in CliRunner().invoke(sim, ["place", str(path)]).stdout


def test_least_used_looks_at_what_was_measured(tmp_path: Path) -> None:
    nodes = [
        {"name": "a", "cpu": 8, "memory": "8GiB", "measured": {"cpu": 6, "memory": "1GiB"}},
        {"name": "b", "cpu": 8, "memory": "8GiB", "used": {"cpu": 4}, "measured": {"cpu": 1}},
    ]
    assert nodes_of(outcome(tmp_path, {"name": "x"}, nodes=nodes, strategy="least_used")) == {"x.0": "b"}
    assert nodes_of(outcome(tmp_path, {"name": "x"}, nodes=nodes, strategy="least_loaded")) == {"x.0": "a"}


def test_what_is_wrong_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    for file, place in (
        ({"nodes": [{"name": "a", "taints": ["=x"]}]}, "nodes[0].taints[0]"),
        ({"nodes": [{"name": "a", "measured": {"cpu": "much"}}]}, "nodes[0].measured.cpu"),
        ({"nodes": [{"name": "a", "measured": {"gpu": 1}}]}, "nodes[0].measured.gpu"),
        ({"nodes": [{"name": "a", "gpu_model": "x\ny"}]}, "nodes[0].gpu_model"),
        ({"workloads": [{"name": "x", "placement": {"near": [{}]}}]}, "workloads[0].placement.near[0]"),
    ):
        path.write_text(json.dumps(file))
        result = CliRunner().invoke(sim, ["place", str(path), "--json"])
        assert (result.exit_code, json.loads(result.stdout)["error"]["path"]) == (2, place)
