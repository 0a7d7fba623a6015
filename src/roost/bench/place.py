"""Placement speed: dependent placements per CPU second over all nodes, through the real step."""

import time
from typing import Any

from roost.bench.figure import Figure, figure
from roost.core.state import Settings, load
from roost.core.step import step
from roost.model.document import check_document, encode_document, read_document
from roost.model.events import Joined, Submit, Wanted
from roost.model.frames import Hello
from roost.model.node import Facts
from roost.ports.store import Snapshot


def measure(nodes: int = 5_000, count: int = 10_000, shapes: int = 20) -> list[Figure]:
    """One figure: placements per CPU second."""
    state = load(Snapshot(0, []), 1_000, Settings(placements_max=count))
    facts = Facts({"cpu": 64_000, "memory": 1 << 38, "disk": 1 << 42})
    hellos = [Hello(f"node-{number:06}", f"id-{number}", facts, 0) for number in range(nodes)]
    step(state, [Joined(0, hello) for hello in hellos], 1_000)
    wanted = tuple(_wanted(shape, max(1, count // shapes)) for shape in range(shapes))
    began = time.process_time()
    done = step(state, [Submit(0, wanted)], 1_001)
    took = time.process_time() - began
    rate = len(done.placed) / took
    return [
        figure("placements_per_cpu_s", rate, "1/s", better="higher", nodes=nodes, count=len(done.placed), shapes=shapes)
    ]


def _wanted(shape: int, count: int) -> Wanted:
    resources: dict[str, Any] = {"cpu": f"{250 * (1 + shape % 8)}m", "memory": (1 + shape) << 28, "disk": 1 << 30}
    document = read_document({"name": f"shape-{shape}", "command": "true", "count": count, "resources": resources})
    return Wanted("default", document.name, count, check_document(document), encode_document(document))
