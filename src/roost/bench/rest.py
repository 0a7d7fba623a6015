"""A fleet at rest: a thousand connected agents over real gRPC, and what they cost the server."""

import time

from roost.bench.figure import Figure, figure, tree_cpu_seconds
from roost.bench.product import Product

AGENTS = 1_000
SETTLE_S = 3.0
WATCH_S = 10.0


def measure() -> list[Figure]:
    """CPU of the server process while a thousand agents have nothing to say but that they live."""
    with Product(agents=0) as product, product.pretenders(AGENTS):
        time.sleep(SETTLE_S)
        before, began = tree_cpu_seconds(product.pid), time.monotonic()
        time.sleep(WATCH_S)
        used = tree_cpu_seconds(product.pid) - before
        share_of_core = used / (time.monotonic() - began)
        connected = product.client.status().agents_connected
    return [figure("agents_at_rest_core", share_of_core, "cores", bound=0.20, agents=connected)]
