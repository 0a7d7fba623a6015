"""A burst: many instances at once onto a thousand agents over real gRPC, every transition durable."""

from roost.model.states import InstanceState
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import LONG_LEASE, Product, services

BOUND = 2_000
TINY = {"agents": 4, "instances": 40}


def measure(agents: int = 1_000, instances: int = 10_000) -> list[Figure]:
    with Product(agents=0, options=LONG_LEASE) as product, product.pretenders(agents):
        with Spent(product.pid) as spent:
            product.client.workloads.submit_batch(services("burst", instances))
            product.wait_for_instances(InstanceState.RUNNING, instances)
    rate, seconds = instances / spent.cpu_s, round(spent.wall_s, 2)
    return [figure("burst_per_cpu_s", rate, "1/s", bound=BOUND, better="higher", agents=agents, seconds=seconds)]
