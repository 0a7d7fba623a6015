"""A fleet at rest: a thousand connected agents over real gRPC, and what they cost the server."""

import time

from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import LONG_LEASE, Product

TINY = {"agents": 4, "settle_s": 0.0, "watch_s": 0.5}


def measure(agents: int = 1_000, settle_s: float = 3.0, watch_s: float = 10.0) -> list[Figure]:
    with Product(agents=0, options=LONG_LEASE) as product, product.pretenders(agents):
        time.sleep(settle_s)
        with Spent(product.pid) as spent:
            time.sleep(watch_s)
        connected = product.client.status().agents_connected
    return [figure("agents_at_rest_core", spent.cpu_s / spent.wall_s, "cores", bound=0.20, agents=connected)]
