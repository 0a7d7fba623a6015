"""Taking over: a standby that mirrors 100,000 placed jobs, from the moment its leader is killed to its first answer.

Two real servers on a real PostgreSQL, and apart from them the one function that the new leader cannot answer before.
"""

import asyncio
import secrets
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from roost.core.replica import mirror, take_over
from roost.core.state.records import Settings
from roost.ports.store import Change, Snapshot, require
from roost.server.engine.engine import Clock
from roost.stores.postgres.store import PostgresStore
from roost_lab.bench.durable_postgres import SCHEMA, clean, commit_all, postgres_server
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import Product
from roost_lab.bench.restart import placed

LOOK_S = 0.002
START_S_MAX = 300.0  # a server needs 4 s of CPU to load 100,000 jobs; on a loaded machine that can take minutes
TINY = {"instances": 200, "tries": 1, "kills": 1}


def measure(instances: int = 100_000, tries: int = 3, kills: int = 3) -> list[Figure]:
    """The core is measured without servers; the best of several tries counts, because machines are shared."""
    array, jobs = placed(instances), placed(instances, instances)
    array_s, jobs_s = (min(_take_over_s(records) for _ in range(tries)) for records in (array, jobs))
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder, postgres_server() as url:
        asyncio.run(_store(url, jobs))
        try:
            took = _kill_leaders(Path(folder), f"{url}{'&' if '?' in url else '?'}schema={SCHEMA}", kills)
        finally:
            asyncio.run(_wipe(url))
    walls, cpus = sorted(round(spent.wall_s, 3) for spent in took), sorted(round(spent.cpu_s, 3) for spent in took)
    return [
        figure("takeover_s", walls[-1], "s", bound=3.0, goal=1.0, instances=instances, all=walls),
        figure("takeover_cpu_s", cpus[-1], "s", goal=1.0, instances=instances, all=cpus),
        figure("takeover_core_s", jobs_s, "s", bound=1.0, instances=instances, workloads=instances),
        figure("takeover_core_array_s", array_s, "s", bound=1.0, instances=instances, workloads=1),
    ]


def _take_over_s(records: list[Change]) -> float:
    state, now = mirror(Snapshot(1, records), Settings()), Clock().now_ms()
    began = time.process_time()
    take_over(state, now, unclean=True)
    return time.process_time() - began


async def _store(url: str, records: list[Change]) -> None:
    await _wipe(url)
    store = PostgresStore(url, SCHEMA)
    await commit_all(store, require(await store.lead("bench")).epoch, records)
    await store.close()


async def _wipe(url: str) -> None:
    async with clean(url):
        pass


def _kill_leaders(folder: Path, url: str, kills: int) -> list[Spent]:
    key, token = folder / "cluster.key", secrets.token_urlsafe(16)
    key.write_text(secrets.token_hex(32))
    took = []
    with ExitStack() as stack:
        pair: dict[str, Product] = {}
        roles: dict[str, str] = {}
        for name in ("s1", "s2"):
            options = ("--store", url, "--name", name, "--key-file", str(key))
            server = Product(agents=0, data=folder / name, token=token, options=options, start_s_max=START_S_MAX)
            pair[name] = stack.enter_context(server)
        for number in range(kills):
            if number:
                pair[roles["leader"]].start_server()
            pair["s1"].wait_until(lambda: _is_warm(pair["s1"]), within_s=START_S_MAX)
            roles = {server.role: server.name for server in pair["s1"].client.servers.list().items}
            took.append(_kill(pair[roles["leader"]], pair[roles["standby"]], f"first-{number}"))
    return took


def _is_warm(server: Product) -> bool:
    shown = server.client.servers.list().items
    roles = sorted(server.role for server in shown)
    return roles == ["leader", "standby"] and len({server.revision for server in shown}) == 1


def _kill(leader: Product, standby: Product, name: str) -> Spent:
    """What the standby spends from the end of the leader until it has committed a submission."""
    with Spent(standby.pid) as spent:
        leader.kill_server()
        document = {"name": name, "command": ["/bin/true"]}
        standby.wait_until(lambda: standby.client.workloads.submit(document, same_ok=True), look_s=LOOK_S)
    return spent
