"""Small tasks, end to end: their CPU against a bare posix_spawn and wait, and the time of one at idle."""

import os
import resource
import statistics
import time

from roost.client import Client
from roost.model.states import WorkloadState
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import Product

BARE_ROUNDS = 3
TINY = {"tasks": 30, "warm": 4, "latency_tasks": 3}


def measure(tasks: int = 3_000, warm: int = 200, latency_tasks: int = 200) -> list[Figure]:
    bare = [_bare(tasks // BARE_ROUNDS)]
    with Product(agents=1, cpu="2") as product:
        run_all(product.client, "warm", warm)
        with Spent(os.getpid()) as spent:
            run_all(product.client, "task", tasks)
        bare += [_bare(tasks // BARE_ROUNDS) for _ in range(BARE_ROUNDS - 1)]
        latency = sorted(_latency(product.client, number) for number in range(latency_tasks))
    plain, used = statistics.mean(bare), spent.cpu_s / tasks
    p50, p95 = (round(latency[len(latency) * share // 100] * 1e3, 2) for share in (50, 95))
    return [
        figure("bare_spawn_us", plain * 1e6, "us of CPU", tasks=tasks),
        figure("task_us", used * 1e6, "us of CPU", tasks=tasks, slots=2, tasks_per_s=round(tasks / spent.wall_s)),
        figure("task_over_bare_spawn", used / plain, "times", bound=2.5, goal=1.6),
        figure("idle_task_ms_p50", p50, "ms", bound=10.0, goal=3.0, p95=p95),
    ]


def _bare(count: int) -> float:
    """CPU seconds of one posix_spawn and wait of /bin/true."""
    before = _own_and_children()
    for _ in range(count):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, setsid=True), 0)
    return (_own_and_children() - before) / count


def _own_and_children() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def run_all(client: Client, name: str, count: int) -> None:
    """Separate jobs in one request. When the last ones have ended, most others have: few are asked for one by one."""
    documents = [{"name": f"{name}-{number}", "command": ["/bin/true"]} for number in range(count)]
    client.workloads.submit_batch(documents)
    client.workloads.wait([("default", f"{name}-{count - 1}")])
    client.workloads.wait([("default", str(document["name"])) for document in documents[-4:]])
    if client.status().workloads.get(WorkloadState.SUCCEEDED, 0) < count:
        client.workloads.wait([("default", str(document["name"])) for document in documents])
    states = client.status().workloads
    assert states.get(WorkloadState.SUCCEEDED, 0) >= count, states


def _latency(client: Client, number: int) -> float:
    name = f"idle-{number}"
    began = time.perf_counter()
    client.workloads.submit({"name": name, "command": ["/bin/true"]})
    client.workloads.wait([("default", name)])
    return time.perf_counter() - began
