"""A burst: many instances at once onto a thousand agents over real gRPC, every transition durable."""

import time

from roost.bench.figure import Figure, figure, tree_cpu_seconds
from roost.bench.product import LOOK_S, Product

AGENTS = 1_000
INSTANCES = 10_000
SHAPES = 20
BOUND = 2_000
WAIT_S_MAX = 120.0


def measure() -> list[Figure]:
    """Instances submitted in one request and running everywhere, per second of the server's CPU."""
    each = INSTANCES // SHAPES
    documents = [
        {
            "name": f"burst-{shape}",
            "kind": "service",
            "count": each,
            "command": "serve",
            "resources": {"cpu": f"{100 + shape}m"},
        }
        for shape in range(SHAPES)
    ]
    with Product(agents=0) as product, product.pretenders(AGENTS):
        before, began = tree_cpu_seconds(product.pid), time.monotonic()
        product.client.submit_batch(documents)
        while product.client.status().instances.get("running", 0) < INSTANCES:
            if time.monotonic() - began > WAIT_S_MAX:
                raise TimeoutError(f"not all of {INSTANCES:,} instances run after {WAIT_S_MAX} s")
            time.sleep(LOOK_S * 20)
        used, took = tree_cpu_seconds(product.pid) - before, time.monotonic() - began
    rate = INSTANCES / used
    return [figure("burst_per_cpu_s", rate, "1/s", bound=BOUND, better="higher", agents=AGENTS, seconds=round(took, 2))]
