"""Durable transitions: the engine on a full-sync SQLite, against SQLite alone writing the same rows by the hundred."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from roost.bench.figure import Figure, figure
from roost.core.effects import Step
from roost.core.state import Settings, State
from roost.model.document import check_document, encode_document, read_document
from roost.model.events import Event, Joined, Reported, Submit, Wanted
from roost.model.frames import Hello, Report, Run
from roost.model.node import Facts
from roost.ports.store import Change
from roost.server.engine import Clock, Engine
from roost.stores.sqlite import SqliteStore

NODES = 20
SLOTS = 50
INSTANCES = 20_000
GROUP = 100


def measure() -> list[Figure]:
    """Transitions per second of the engine, rows per second of SQLite, and the ratio."""
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        ours_s, transitions, rows = asyncio.run(_engine(Path(directory)))
        raw_s = _raw(Path(directory) / "raw.db", rows)
    ours, raw = transitions / ours_s, len(rows) / raw_s
    return [
        figure("durable_transitions_per_s", ours, "1/s", better="higher", instances=INSTANCES, transitions=transitions),
        figure("sqlite_rows_per_s", raw, "1/s", better="higher", rows=len(rows), group=GROUP),
        figure("durable_transitions_ratio", ours / raw, "of SQLite", better="higher", bound=0.30, goal=0.50),
    ]


class _Agents:
    """Agents that report every start in one message and every end in the next: each transition is a row of its own."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.rows: list[Change] = []
        self.begun: list[tuple[str, int, tuple[int, ...]]] = []
        self.done = asyncio.Event()

    def act(self, state: State, done: Step) -> None:
        assert self.engine is not None
        self.rows.extend(done.changes)
        begun, self.begun = self.begun, []
        for node, session, runs in begun:  # their start is durable now
            self.engine.tell(_reported(node, session, runs, "ended"))
        for orders in done.assignments:
            runs = tuple(order.token for order in orders.orders if isinstance(order, Run))
            if runs:
                self.engine.tell(_reported(orders.node, orders.session, runs, "running"))
                self.begun.append((orders.node, orders.session, runs))
        bench = state.workloads.get("default/bench")
        if bench is not None and bench.finished_ms:
            self.done.set()

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        raise AssertionError("nobody else leads")

    def reset(self) -> None:
        raise AssertionError("the store failed")


def _reported(node: str, session: int, tokens: tuple[int, ...], state: str) -> Event:
    cause, code = ("exited", 0) if state == "ended" else ("", None)
    return Reported(node, session, 1, tuple(Report(token, state, 1, 0, cause, code) for token in tokens))


async def _engine(directory: Path) -> tuple[float, int, list[Change]]:
    agents = _Agents()
    store = SqliteStore(directory)
    engine = agents.engine = Engine(store, Settings(lease_ms=600_000), agents, Clock())
    await engine.open("bench")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run())
        facts = Facts({"cpu": SLOTS * 1_000, "memory": 1 << 36, "disk": 1 << 40})
        for number in range(NODES):
            hello = Hello(f"node-{number:02}", f"id-{number}", facts, 0)
            await engine.ask(lambda request, hello=hello: Joined(request, hello))  # type: ignore[misc]
        agents.rows.clear()
        document = read_document({"name": "bench", "command": ["/bin/true"], "count": INSTANCES})
        wanted = Wanted("default", "bench", INSTANCES, check_document(document), encode_document(document))
        began = time.perf_counter()
        await engine.ask(lambda request: Submit(request, (wanted,)))
        await agents.done.wait()
        took = time.perf_counter() - began
        engine.stop()
    await store.close()
    counted = sum(len(each.story) - 1 for each in engine.state.instances.values())
    return took, counted, [row for row in agents.rows if row.kind == "instance"]


def _raw(path: Path, rows: list[Change]) -> float:
    """The same rows, written as fast as SQLite does it durably in groups."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", 2)
    connection.execute("CREATE TABLE records(kind TEXT, key TEXT, value BLOB, PRIMARY KEY(kind, key)) WITHOUT ROWID")
    began = time.perf_counter()
    for start in range(0, len(rows), GROUP):
        with connection:
            connection.executemany("INSERT OR REPLACE INTO records VALUES(?, ?, ?)", rows[start : start + GROUP])
    took = time.perf_counter() - began
    connection.close()
    return took
