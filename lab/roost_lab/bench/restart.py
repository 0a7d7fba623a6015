"""Coming back: a server that holds 100,000 instances after kill -9, one with 3,000 agents, and a cold `roost up`."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from roost.client import Client
from roost.client.config import read_config
from roost.core.replica import load
from roost.core.state.records import Settings
from roost.core.step import step
from roost.model.events import NodeConnected, Submit
from roost.model.protocol import Hello
from roost.model.records.node import Facts
from roost.model.spec.submission import spec_of_document
from roost.model.states import NodeStatus
from roost.ports.store import Change, Snapshot, require
from roost.server.engine.engine import Clock
from roost.stores.sqlite.store import SqliteStore
from roost_lab.bench.bare import LEASE_MS
from roost_lab.bench.figure import Figure, Spent, figure, tree_cpu_seconds
from roost_lab.bench.product import ROOST, Product, helper_process, next_line
from roost_lab.components.ports import free_port

NODES = 100
UP_S_MAX = 60.0
RETURN_S_MAX = 120.0
RETURN_LOOK_S = 0.5  # each look also costs the server some CPU
SETTLE_S = 5.0  # after the last agent has returned: a lease that ran out would be noticed
TINY = {"instances": 200, "agents": 4, "settle_s": 0.1}


def measure(instances: int = 100_000, agents: int = 3_000, settle_s: float = SETTLE_S) -> list[Figure]:
    return [_restart(instances), *_return(agents, settle_s), _cold_up()]


def _restart(instances: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        data = Path(directory, "server")
        data.mkdir()
        asyncio.run(_store(SqliteStore(data), placed(instances)))
        with Product(agents=0, data=Path(directory)) as product:
            product.kill_server()
            took = product.start_server()
            allocated = sum(product.client.status().instances.values())
    return figure("ready_after_kill_s", took, "s", bound=3.0, instances=allocated)


async def _store(store: SqliteStore, records: list[Change]) -> None:
    require(await store.commit(require(await store.lead("bench")).epoch, records))
    await store.close()


def placed(instances: int, workloads: int = 1) -> list[Change]:
    """Placed instances, of one array or of many workloads: all records that the core makes of them."""
    now = Clock().now_ms()
    state = load(Snapshot(0, []), now, Settings(placements_max=instances))
    facts = Facts({"cpu": instances // NODES * 1_000, "memory": 1 << 40, "disk": 1 << 44})
    hellos = [Hello(f"node-{number:03}", f"id-{number}", facts, 0) for number in range(NODES)]
    document = {"command": ["/bin/sleep", "1000"], "count": instances // workloads}
    wanted = tuple(spec_of_document({"name": f"many-{number}", **document}) for number in range(workloads))
    done = step(state, [*(NodeConnected(0, hello) for hello in hellos), Submit(0, wanted)], now)
    assert len(state.instances) == instances
    return done.changes


def _return(agents: int, settle_s: float) -> list[Figure]:
    """Agents over real gRPC return to a server that was killed: none may be lost, and each costs it some CPU.

    The CPU is that of a second return, with a lease so long that there are no heartbeats meanwhile.
    """
    with Product(agents=0) as product, product.pretenders(agents, beat_s=0):
        product.kill_server()
        waited, _ = _return_once(product, agents)
        time.sleep(settle_s)
        lost = product.client.status().nodes.get(NodeStatus.LOST, 0)
        product.kill_server()
        with helper_process("bare", product.data / "server", product.agents_address, agents) as bare:
            bare_s = float(next_line(bare))
        _, cpu_s = _return_once(product, agents, "--lease", str(LEASE_MS))
    detail: dict[str, Any] = {"agents": agents, "returned_s": round(waited.wall_s, 2)}
    bare_ms = round(bare_s * 1_000 / agents, 3)
    return [
        figure("nodes_lost_by_restart", lost, "nodes", bound=0, **detail),
        figure("return_cpu_ms_per_agent", cpu_s * 1_000 / agents, "ms", bound=1.0, bare_ms=bare_ms, agents=agents),
        figure("return_cpu_over_bare", cpu_s / bare_s, "times", bound=2.0, agents=agents),
    ]


def _return_once(product: Product, agents: int, *options: str) -> tuple[Spent, float]:
    """Start the server and wait for all agents. Returns how long that took, and the CPU seconds."""
    with Spent() as waited:
        product.start_server(*options)
        cpu_s = -tree_cpu_seconds(product.pid)
        product.wait_until(lambda: _returned(product) == agents, look_s=RETURN_LOOK_S, within_s=RETURN_S_MAX)
    return waited, cpu_s + tree_cpu_seconds(product.pid)


def _returned(product: Product) -> int:
    return product.client.status().agents_connected


def _cold_up() -> Figure:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        began = time.perf_counter()
        command = [*ROOST, "up", "--data", directory, "--listen", f"127.0.0.1:{free_port()}"]
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
