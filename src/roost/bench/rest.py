"""A fleet at rest: a thousand connected agents over real gRPC, and what they cost the server."""

import subprocess
import sys
import time

from roost.bench.figure import Figure, figure, tree_cpu_seconds
from roost.bench.product import Product

AGENTS = 1_000
CLIENTS = 2  # processes that pretend to be agents
SETTLE_S = 3.0
WATCH_S = 10.0


def measure() -> list[Figure]:
    """CPU of the server process while a thousand agents have nothing to say but that they live."""
    with Product(agents=0) as product:
        share = AGENTS // CLIENTS
        command = [sys.executable, "-m", "roost.bench.idlers", product.agents_address, product.agent_token]
        clients = [
            subprocess.Popen([*command, str(part * share), str(share)], stdout=subprocess.PIPE)
            for part in range(CLIENTS)
        ]
        try:
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()  # all of its agents are connected
            time.sleep(SETTLE_S)
            before, began = tree_cpu_seconds(product.pid), time.monotonic()
            time.sleep(WATCH_S)
            used = tree_cpu_seconds(product.pid) - before
            share_of_core = used / (time.monotonic() - began)
            connected = product.client.status().agents_connected
        finally:
            for client in clients:
                client.kill()
                client.wait()
    return [figure("agents_at_rest_core", share_of_core, "cores", bound=0.20, agents=connected)]
