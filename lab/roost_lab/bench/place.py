"""Placement speed: dependent placements per CPU second over all nodes, through the real step, all filters active."""

import gc
import time
from statistics import median
from typing import Any

from roost.core.replica import load
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.model.events import NodeConnected, SetProject, Submit, WorkloadSpec
from roost.model.protocol import Hello
from roost.model.records.node import Facts
from roost.model.records.project import Project
from roost.model.spec.submission import spec_of_document
from roost.ports.store import Snapshot
from roost_lab.bench.figure import Figure, figure

BOUND = 8_000  # kube-scheduler's core, on the same kind of machine: 46 over all nodes, 350 to 440 with a sample of 10 %
BOUND_RULES = 2_000
BOUND_GROWTH = 1.5  # what a placement may cost on 10,000 nodes, in what it costs on 1,000
PAIRS = 3  # of rates whose median is the growth: one pair is off by a fifth on a busy machine
TINY = {"nodes": 200, "placements": 200, "few_nodes": 100, "many_nodes": 200}


def measure(
    nodes: int = 5_000, placements: int = 10_000, shapes: int = 20, few_nodes: int = 1_000, many_nodes: int = 10_000
) -> list[Figure]:
    count = placements
    plain = rate(nodes, count, shapes)
    rules = rate(nodes, count, shapes, rules=True)
    never = rate(nodes, count, shapes, placeable=False)
    growth = median(rate(few_nodes, count, shapes) / rate(many_nodes, count, shapes) for _ in range(PAIRS))
    detail: dict[str, Any] = {"nodes": nodes, "count": count, "shapes": shapes}
    return [
        figure("placements_per_cpu_s", plain, "1/s", bound=BOUND, better="higher", **detail),
        figure("placements_with_rules_per_cpu_s", rules, "1/s", bound=BOUND_RULES, better="higher", **detail),
        figure("unplaceable_cost", plain / never, "times", bound=1.0, **detail),
        figure("placement_cost_growth", growth, "times", bound=BOUND_GROWTH, nodes=f"{few_nodes} to {many_nodes}"),
    ]


def rate(nodes: int, count: int, shapes: int, *, rules: bool = False, placeable: bool = True) -> float:
    """How many asks are placed, or found to fit nowhere, per CPU second."""
    state = fleet(nodes, count)
    item = max(1, count // shapes)
    wanted = tuple(_wanted(shape, item, nodes, rules=rules, placeable=placeable) for shape in range(shapes))
    gc.collect()  # what earlier fleets have left behind is not part of this one's cost
    began = time.process_time()
    done = step(state, [Submit(0, wanted)], 1_001)
    took = time.process_time() - began
    if placeable:
        assert len(done.placed) == item * shapes, f"{len(done.placed)} of {item * shapes} were placed"
        return len(done.placed) / took
    assert not done.placed
    return item * shapes / took


def fleet(nodes: int, count: int) -> State:
    """Nodes of several kinds: zones and racks, labels, taints, GPUs; and a project with a quota."""
    state = load(Snapshot(0, []), 1_000, Settings(placements_max=count))
    hellos = [Hello(f"node-{number:06}", f"id-{number}", _facts(number), 0) for number in range(nodes)]
    step(state, [NodeConnected(0, hello) for hello in hellos], 1_000)
    step(state, [SetProject(0, Project("default", 2, {"instances": 10 * count}))], 1_000)
    return state


def _facts(number: int) -> Facts:
    gpus = {"gpu": 8_000} if number % 4 == 0 else {}
    return Facts(
        {"cpu": 64_000, "memory": 1 << 38, "disk": 1 << 42, "licence": 100} | gpus,
        labels={"disk": "nvme" if number % 2 else "hdd", "hostname": f"host-{number}"},
        zone=f"zone-{number % 10}",
        rack=f"rack-{number % 200}",
        region=f"region-{number % 2}",
        arch="amd64",
        gpu_model=("A100" if number % 8 else "T4") if gpus else "",
        taints=("dedicated=batch",) if number % 10 == 9 else (),
    )


def _wanted(shape: int, count: int, nodes: int, *, rules: bool, placeable: bool) -> WorkloadSpec:
    resources: dict[str, Any] = {"cpu": f"{250 * (1 + shape % 8)}m", "memory": (1 + shape) << 28, "disk": 1 << 30}
    placement: dict[str, Any] = {}
    document = {"name": f"shape-{shape}", "command": "true", "count": count, "labels": {"tier": f"t{shape % 4}"}}
    if shape % 4 == 1:
        placement["require"] = ["labels.disk == 'nvme'", "arch == 'amd64'"]
    if shape % 4 == 2:
        placement["prefer"] = [{"that": "zone == 'zone-3'", "weight": 20}]
    if shape % 5 == 3:
        placement["tolerate"] = ["dedicated"]
    if shape % 5 == 4:
        resources["licence"] = 1
    if shape % 10 == 7:
        document["ports"] = {"http": 0}
    if shape % 10 == 8 and nodes >= 1_000:
        resources["gpu"] = "500m"
    if rules and shape % 2:
        placement |= _affinity(shape)
    if not placeable:
        resources["cpu"] = 128 + shape
    return spec_of_document(document | {"resources": resources, "placement": placement})


def _affinity(shape: int) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"spread": {"by": "zone", "max_skew": 2}},
        {"spread": {"by": "rack", "weight": 20}, "per_node": 4},
        {"apart": [{"label": "tier=t0", "by": "node"}]},
        {"near": [{"label": f"tier=t{shape % 4}", "by": "zone", "weight": 30}], "avoid": [{"label": "tier=t2"}]},
        {"near": [{"workload": f"shape-{shape}", "by": "zone"}]},
    )
    return kinds[shape // 2 % len(kinds)]
