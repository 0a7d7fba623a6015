"""Taking over: a standby that mirrors 100,000 placed jobs, from the moment its leader is killed to its first answer.

Two real servers on a real PostgreSQL, and apart from them the one function that the new leader cannot answer before.
"""

import asyncio
import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from roost.bench.durable_postgres import SCHEMA, clean, postgres_server
from roost.bench.figure import Figure, figure, tree_cpu_seconds
from roost.bench.product import ROOST, free_ports
from roost.bench.restart import INSTANCES, fill
from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost.core.load import mirror, take_over
from roost.core.state import Settings
from roost.ports.store import Change, Snapshot
from roost.server.engine import Clock
from roost.stores.memory import Memory, MemoryStore
from roost.stores.postgres import PostgresStore

TRIES = 3  # of what is measured without servers; the best counts, because machines are shared
KILLS = 3  # each of a leader that holds everything
COMMIT_RECORDS = 5_000  # some megabytes
WAIT_S_MAX = 60.0
LOOK_S = 0.002


def measure() -> list[Figure]:
    """How long nobody leads, what that costs the standby, and how much of it is the core's."""
    array, jobs = asyncio.run(_snapshot(1)), asyncio.run(_snapshot(INSTANCES))
    array_s, jobs_s = _take_over_s(array), _take_over_s(jobs)
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder, postgres_server() as url:
        asyncio.run(_store(url, jobs.records))
        try:
            took = _kill_leaders(Path(folder), f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}")
        finally:
            asyncio.run(_wipe(url))
    walls, cpus = sorted(wall_s for wall_s, _ in took), sorted(cpu_s for _, cpu_s in took)
    return [
        figure("takeover_s", walls[-1], "s", bound=3.0, goal=1.0, instances=INSTANCES, all=walls),
        figure("takeover_cpu_s", cpus[-1], "s", goal=1.0, instances=INSTANCES, all=cpus),
        figure("takeover_core_s", jobs_s, "s", bound=1.0, instances=INSTANCES, workloads=INSTANCES),
        figure("takeover_core_array_s", array_s, "s", bound=1.0, instances=INSTANCES, workloads=1),
    ]


async def _snapshot(workloads: int) -> Snapshot:
    memory = Memory()
    await fill(MemoryStore(memory), workloads)
    return memory.snapshot()


def _take_over_s(snapshot: Snapshot) -> float:
    """CPU seconds of beginning to decide with a warm mirror."""
    took = []
    for _ in range(TRIES):
        state, now = mirror(snapshot, Settings()), Clock().now_ms()
        assert len(state.instances) == INSTANCES
        began = time.process_time()
        take_over(state, now, sudden=True)
        took.append(time.process_time() - began)
    return min(took)


async def _store(url: str, records: Sequence[Change]) -> None:
    await _wipe(url)
    store = PostgresStore(url, SCHEMA)
    epoch = await store.lead("bench")
    for start in range(0, len(records), COMMIT_RECORDS):
        await store.commit(epoch, records[start : start + COMMIT_RECORDS])
    await store.close()


async def _wipe(url: str) -> None:
    async with clean(url):
        pass


def _kill_leaders(folder: Path, url: str) -> list[tuple[float, float]]:
    """Two servers; whoever leads is killed and comes back as the standby, again and again."""
    (folder / "cluster.key").write_text(secrets.token_hex(32))
    token = secrets.token_urlsafe(16)
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(_Server(folder, name, url, token)) for name in ("s1", "s2")]
        took = []
        for number in range(KILLS):
            _until(lambda: _is_warm(pair), "one leads and the other mirrors it")
            leader, standby = sorted(pair, key=lambda each: not each.is_ready())
            took.append(_kill(leader, standby, f"first-{number}"))
            leader.start()
    return took


class _Server:
    """One of two."""

    def __init__(self, folder: Path, name: str, store: str, token: str) -> None:
        api, agents = free_ports(2)
        self._environment = {**os.environ, "ROOST_TOKEN": token}
        self._words = [*ROOST, "server", "--store", store, "--name", name, "--data", str(folder / name)]
        self._words += ["--listen", f"127.0.0.1:{api}", "--agents-listen", f"127.0.0.1:{agents}"]
        self._words += ["--key-file", str(folder / "cluster.key"), "--log-level", "error"]
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(f"http://127.0.0.1:{api}", token)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, env=self._environment, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Without letting go of anything."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_S_MAX)

    def is_ready(self) -> bool:
        """Whether it leads."""
        return self.client.status().ready


def _is_warm(pair: list[_Server]) -> bool:
    """Both hold everything, and have come equally far."""
    if sum(each.is_ready() for each in pair) != 1:
        return False
    if any(sum(each.client.status().instances.values()) < INSTANCES for each in pair):
        return False
    shown = pair[0].client.servers().items
    return len(shown) == len(pair) and len({each.revision for each in shown}) == 1


def _kill(leader: _Server, standby: _Server, name: str) -> tuple[float, float]:
    """Wall and CPU seconds from its end until the other one has taken a job in, durably."""
    cpu_s, began = tree_cpu_seconds(standby.pid), time.perf_counter()
    leader.kill()
    document = {"name": name, "command": ["/bin/true"]}
    _until(lambda: standby.client.submit(document, same_ok=True), "the standby takes a job in")
    return round(time.perf_counter() - began, 3), round(tree_cpu_seconds(standby.pid) - cpu_s, 3)


def _until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        with contextlib.suppress(ApiError, Unreachable):
            if holds():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S_MAX} s: {what}")
        time.sleep(LOOK_S)
