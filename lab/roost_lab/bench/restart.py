"""Coming back: a server that holds 100,000 instances after kill -9, and the first task of a cold `roost up`."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from roost.client import Client
from roost.client.config import read_config
from roost.model.events import Submit, WorkloadSpec
from roost.model.spec.submission import spec_of_document
from roost.ports.store import Store
from roost.stores.sqlite.store import SqliteStore
from roost_lab.bench.durable import NoAgents, running_engine
from roost_lab.bench.figure import Figure, figure
from roost_lab.bench.product import ROOST, Product, free_ports

NODES = 100
BATCH = 5_000  # workloads submitted at once
UP_S_MAX = 60.0
TINY = {"instances": 200}


def measure(instances: int = 100_000) -> list[Figure]:
    return [_restart(instances), _cold_up()]


def _restart(instances: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        data = Path(directory, "server")
        data.mkdir()
        asyncio.run(fill(SqliteStore(data), instances))
        with Product(agents=0, data=Path(directory)) as product:
            product.kill_server()
            took = product.start_server()
            allocated = sum(product.client.status().instances.values())
    return figure("ready_after_kill_s", took, "s", bound=3.0, instances=allocated)


async def fill(store: Store, instances: int, workloads: int = 1) -> None:
    """Placed instances, of one array or of many workloads, made by the engine itself."""
    async with running_engine(store, NoAgents(), NODES, instances // NODES) as engine:
        for start in range(0, workloads, BATCH):
            some = tuple(_wanted(number, instances // workloads) for number in range(start, workloads)[:BATCH])
            await engine.ask(lambda request, some=some: Submit(request, some))  # type: ignore[misc]
        while len(engine.state.instances) < instances:
            await asyncio.sleep(0.01)
    await store.close()


def _wanted(number: int, count: int) -> WorkloadSpec:
    return spec_of_document({"name": f"many-{number}", "command": ["/bin/sleep", "1000"], "count": count})


def _cold_up() -> Figure:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        ports = free_ports(1)
        began = time.perf_counter()
        command = [*ROOST, "up", "--data", directory, "--listen", f"127.0.0.1:{ports[0]}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            config = Path(directory) / "client.toml"
            while not config.exists() and time.perf_counter() - began < UP_S_MAX:
                time.sleep(0.002)
            found = read_config(config)
            with Client(found.url, found.token) as client:
                client.workloads.run_to_end({"name": "first", "command": ["/bin/true"]}, timeout_s=UP_S_MAX)
            took = time.perf_counter() - began
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(UP_S_MAX)
    return figure("first_task_of_cold_up_s", took, "s", bound=1.5, goal=0.5)
