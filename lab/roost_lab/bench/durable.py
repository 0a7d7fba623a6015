"""Durable transitions: the engine on a full-sync SQLite, against SQLite alone writing the same rows by the hundred."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.events import Event, NodeConnected, ReportsReceived, Submit
from roost.model.protocol import Hello, Report, Run
from roost.model.records.node import Facts
from roost.model.spec.submission import spec_of_document
from roost.model.states import AttemptState, EndCause
from roost.ports.store import Change
from roost.server.engine.engine import Clock, Engine
from roost.stores.sqlite.store import SqliteStore
from roost_lab.bench.figure import Figure, figure

NODES = 20
SLOTS = 50
GROUP = 100
TINY = {"instances": 200}


def measure(instances: int = 20_000) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        ours_s, transitions, rows = asyncio.run(_transitions(Path(directory), instances))
        raw_s = _raw(Path(directory) / "raw.db", rows)
    ours, raw = transitions / ours_s, len(rows) / raw_s
    detail = {"instances": instances, "transitions": transitions}
    return [
        figure("durable_transitions_per_s", ours, "1/s", better="higher", **detail),
        figure("sqlite_rows_per_s", raw, "1/s", better="higher", rows=len(rows), group=GROUP),
        figure("durable_transitions_ratio", ours / raw, "of SQLite", better="higher", bound=0.30, goal=0.50),
    ]


class _Agents:
    """Agents that report every start in one message and every end in the next: each transition is a row of its own."""

    engine: Engine

    def __init__(self) -> None:
        self.rows: list[Change] = []
        self.begun: list[tuple[str, int, tuple[int, ...]]] = []
        self.done = asyncio.Event()

    async def act(self, state: State, done: Step) -> None:
        self.rows.extend(done.changes)
        begun, self.begun = self.begun, []
        for node, session, runs in begun:  # their start is durable now
            self.engine.tell(_reported(node, session, runs, AttemptState.ENDED))
        for orders in done.assignments:
            runs = tuple(order.token for order in orders.orders if isinstance(order, Run))
            if runs:
                self.engine.tell(_reported(orders.node, orders.session, runs, AttemptState.RUNNING))
                self.begun.append((orders.node, orders.session, runs))
        bench = state.workloads.get("default/bench")
        if bench is not None and bench.finished_ms:
            self.done.set()

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        raise AssertionError("there is no other server")

    def reset(self) -> None:
        raise AssertionError("the store failed")


def _reported(node: str, session: int, tokens: tuple[int, ...], state: AttemptState) -> Event:
    cause, code = (EndCause.EXITED, 0) if state == AttemptState.ENDED else (EndCause.NONE, None)
    return ReportsReceived(node, session, 1, tuple(Report(token, state, 1, 0, cause, code) for token in tokens))


async def _transitions(directory: Path, instances: int) -> tuple[float, int, list[Change]]:
    agents, store = _Agents(), SqliteStore(directory)
    engine = agents.engine = Engine(store, Settings(lease_ms=600_000), agents, Clock())
    await engine.open("bench")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run())
        facts = Facts({"cpu": SLOTS * 1_000, "memory": 1 << 40, "disk": 1 << 44})
        for number in range(NODES):
            hello = Hello(f"node-{number:03}", f"id-{number}", facts, 0)
            await engine.ask(lambda request, hello=hello: NodeConnected(request, hello))  # type: ignore[misc]
        agents.rows.clear()
        wanted = spec_of_document({"name": "bench", "command": ["/bin/true"], "count": instances})
        began = time.perf_counter()
        await engine.ask(lambda request: Submit(request, (wanted,)))
        await agents.done.wait()
        took = time.perf_counter() - began
        engine.stop()
    await store.close()
    counted = sum(len(instance.story) - 1 for instance in engine.state.instances.values())
    return took, counted, [row for row in agents.rows if row.kind == "instance"]


def _raw(path: Path, changes: list[Change]) -> float:
    rows = [(change.kind, change.key, change.value) for change in changes]
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
