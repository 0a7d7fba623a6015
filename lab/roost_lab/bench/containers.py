"""Containers: a short one against `docker run` of the same image, and a node full of them after its agent was killed.

Both run on a dockerd of our own. It is loaded with nothing else, and images are on the node.
"""

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from roost.model.states import InstanceState
from roost_lab.bench.figure import Figure, figure
from roost_lab.bench.product import Product
from roost_lab.components.docker import IMAGE, EngineServer

NODE = "node-1"
LIMITS = ("--ulimit", "nofile=1024:4096")  # as in all containers of this group: some machines allow no more
START_S_MAX = 600.0  # for all of them: five starts a second on a slow machine
BACK_S_MAX = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
TINY = {"rounds": 2, "adopted": 3}


def measure(rounds: int = 30, adopted: int = 200) -> list[Figure]:
    with EngineServer() as engine, _product(engine) as product:
        _ours(product, "warm"), _plain(engine)
        plain, ours = [], []
        for number in range(rounds):  # in turns: machines are shared
            plain.append(_plain(engine))
            ours.append(_ours(product, f"job-{number}"))
        ratio = statistics.median(ours) / statistics.median(plain)
        detail: dict[str, Any] = {"rounds": rounds, "plain_s": round(statistics.median(plain), 3)}
        empty_s, full_s = _back(product, 0), _adopted(product, adopted)
        return [
            figure("container_s", statistics.median(ours), "s", **detail),
            figure("container_over_docker_run", ratio, "times", bound=1.15, **detail),
            figure("containers_adopted_s", full_s, "s", bound=1.0, containers=adopted, empty_s=empty_s),
        ]


@contextmanager
def _product(engine: EngineServer) -> Iterator[Product]:
    with patch.dict(os.environ, {"ROOST_AGENT_DOCKER": f"unix://{engine.socket}"}), Product(agents=1, cpu="8") as made:
        yield made


def _plain(engine: EngineServer) -> float:
    command = ["docker", "run", "--rm", "--network=none", *LIMITS, IMAGE, "/bin/busybox", "true"]
    environment = os.environ | {"DOCKER_HOST": f"unix://{engine.socket}"}
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def _ours(product: Product, name: str) -> float:
    began = time.perf_counter()
    product.client.workloads.submit(_document(name, "true"))
    product.client.workloads.wait([("default", name)])
    took = time.perf_counter() - began
    state = product.client.instances.get("default", name, 0).state
    assert state == InstanceState.SUCCEEDED, state
    return took


def _document(name: str, *command: str, **fields: Any) -> dict[str, Any]:
    program = ["/bin/busybox", *command]
    return {"name": name, "image": IMAGE, "command": program, "container": {"network": "none"}, **fields}


def _adopted(product: Product, count: int) -> float:
    product.client.workloads.submit(_document("many", "sleep", "100000", count=count, resources={"cpu": "10m"}))
    product.wait_until(lambda: _running(product) == count, look_s=0.5, within_s=START_S_MAX)
    took = _back(product, count)
    product.client.workloads.cancel("default", "many")
    product.client.workloads.wait([("default", "many")])
    return took


def _back(product: Product, count: int) -> float:
    """Seconds from the birth of the next agent until the server has it, with all containers."""
    keeper, before = product.pids[-1], _came_ms(product)
    agent = _agent_of(keeper)
    os.kill(agent, signal.SIGKILL)
    product.wait_until(lambda: _agent_of(keeper) not in (0, agent), within_s=BACK_S_MAX)
    born_ms = _born_ms(_agent_of(keeper))
    product.wait_until(lambda: _came_ms(product) > before, within_s=BACK_S_MAX)
    assert _running(product) == count
    return (_came_ms(product) - born_ms) / 1_000


def _running(product: Product) -> int:
    return product.client.status().instances.get(InstanceState.RUNNING, 0)


def _came_ms(product: Product) -> int:
    """When the node registered last."""
    lines = product.client.nodes.get(NODE).story
    return max(line.at_ms for line in lines if line.reason is not None and line.reason.code == "node_registered")


def _agent_of(keeper: int) -> int:
    for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
        try:
            if b"roost.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        except OSError:
            continue
    return 0


def _born_ms(pid: int) -> int:
    """By the wall clock, as the server's times are."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / TICKS
    return int((time.time() - age_s) * 1_000)
