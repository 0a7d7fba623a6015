"""Coming back: a server that holds 100,000 instances after kill -9, and the first task of a cold `roost up`."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from roost.bench.figure import Figure, figure
from roost.bench.product import ROOST, Product, free_ports
from roost.client import Client
from roost.client.config import read_config
from roost.core.effects import Step
from roost.core.state import Settings, State
from roost.model.document import check_document, encode_document, read_document
from roost.model.events import Joined, Submit, Wanted
from roost.model.frames import Hello
from roost.model.node import Facts
from roost.ports.store import Change, Store
from roost.server.engine import Clock, Engine
from roost.stores.sqlite import SqliteStore

INSTANCES = 100_000
NODES = 100
BATCH = 5_000  # workloads submitted at once
UP_S_MAX = 20.0


def measure() -> list[Figure]:
    """Two times: ready again, and first task done."""
    return [_restart(), _cold_up()]


def _restart() -> Figure:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        asyncio.run(_fill(Path(directory) / "server"))
        with Product(agents=0, data=Path(directory)) as product:
            product.kill_server()
            took = product.start_server()
            held = sum(product.client.status().instances.values())
    return figure("ready_after_kill_s", took, "s", bound=3.0, instances=held)


class _Nobody:
    """Nobody acts: the orders stay unsent, as after a crash right behind the commit."""

    def act(self, state: State, done: Step) -> None:
        pass

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        raise AssertionError("nobody else leads")

    def reset(self) -> None:
        raise AssertionError("the store failed")


async def _fill(data: Path) -> None:
    data.mkdir(parents=True)
    store = SqliteStore(data)
    await fill(store)
    await store.close()


async def fill(store: Store, workloads: int = 1) -> None:
    """As many placed instances, of one array or of many workloads, made by the engine itself."""
    engine = Engine(store, Settings(lease_ms=600_000), _Nobody(), Clock())
    await engine.open("bench")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run())
        facts = Facts({"cpu": INSTANCES // NODES * 1_000, "memory": 1 << 40, "disk": 1 << 44})
        for number in range(NODES):
            hello = Hello(f"node-{number:03}", f"id-{number}", facts, 0)
            await engine.ask(lambda request, hello=hello: Joined(request, hello))  # type: ignore[misc]
        for start in range(0, workloads, BATCH):
            some = tuple(_wanted(number, INSTANCES // workloads) for number in range(start, workloads)[:BATCH])
            await engine.ask(lambda request, some=some: Submit(request, some))  # type: ignore[misc]
        while len(engine.state.instances) < INSTANCES:
            await asyncio.sleep(0.01)
        engine.stop()


def _wanted(number: int, count: int) -> Wanted:
    document = read_document({"name": f"many-{number}", "command": ["/bin/sleep", "1000"], "count": count})
    return Wanted("default", f"many-{number}", count, check_document(document), encode_document(document))


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
                client.run_to_end({"name": "first", "command": ["/bin/true"]}, timeout_s=UP_S_MAX)
            took = time.perf_counter() - began
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(UP_S_MAX)
    return figure("first_task_of_cold_up_s", took, "s", bound=1.5, goal=0.5)
