"""History: the time to show a large state as it was a million events ago, and the cost of recording it."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec

from roost.core.replica import mirror
from roost.core.state.records import Meta, Settings
from roost.core.state.state import State
from roost.model.reasons.attempts import PROCESS_STARTED
from roost.model.records.instance import Instance
from roost.model.records.node import Facts, Node
from roost.model.records.transition import InstanceTransition, InstanceTransitioned
from roost.model.records.workload import Ask, Policy, Workload
from roost.model.states import InstanceState, WorkloadKind
from roost.ports.store import Change, Snapshot
from roost.server.history.as_of import state_at
from roost.server.history.search import EventsWanted, search_events
from roost.server.history.service import History
from roost_lab.bench.figure import Figure, figure

ARRAYS = 100
COMMIT_EVENTS = 500  # as many as a busy server decides at once
WAITING_MAX = 50_000  # changes that wait for the writer: it is to write them all, not to fall behind
TRIES = 3  # the best counts, because machines are shared
START_MS = 1_700_000_000_000
RETENTION_MS = 20 * 366 * 86_400_000
TINY = {"nodes": 10, "instances": 1_000, "events": 5_000}


def measure(nodes: int = 1_000, instances: int = 100_000, events: int = 1_000_000) -> list[Figure]:
    """Seconds to show the slowest state, microseconds per commit on the engine's side, bytes per event."""
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
        return asyncio.run(_measure(Path(directory), nodes, instances, events))


async def _measure(directory: Path, nodes: int, instances: int, events: int) -> list[Figure]:
    history = History(directory, Settings(), retention_ms=RETENTION_MS)
    history.start()
    state = mirror(Snapshot(1, _records(nodes, instances)), Settings())
    state.now_ms = START_MS
    history.begin(state, 1)
    await _until(history, state)
    began = time.perf_counter()
    feeding_s = await _feed(history, state, events)
    await _until(history, state)
    written_s = time.perf_counter() - began
    took = {f"@{revision}": await _inspect(history, revision, instances) for revision in await history.read(_slowest)}
    began = time.perf_counter()
    await history.read(search_events, EventsWanted(project="default", workload="array-7", index=7), 100, "")
    searched_s = time.perf_counter() - began
    file_bytes = history.path.stat().st_size
    commits = events // COMMIT_EVENTS
    await history.close()
    return [
        figure("at_million_events_back_s", max(took.values()), "s", bound=2.0, instances=instances, took=took),
        figure("history_feed_us_per_commit", feeding_s / commits * 1e6, "us", bound=250.0, changes=COMMIT_EVENTS),
        figure("history_events_per_s", events / written_s, "1/s", better="higher"),
        figure("history_bytes_per_event", file_bytes / events, "bytes"),
        figure("history_search_s", searched_s, "s", bound=0.5),
    ]


async def _feed(history: History, state: State, events: int) -> float:
    """Commit transitions. Returns the CPU seconds that passing them to the history took."""
    spent_s = 0.0
    records = list(state.instances.values())
    for start in range(0, events, COMMIT_EVENTS):
        state.revision += 1
        state.now_ms += 10
        chosen = [records[at % len(records)] for at in range(start, start + COMMIT_EVENTS)]
        changes = [_changed(instance, state) for instance in chosen]
        transitions = [InstanceTransitioned(instance.key, instance.story[-1]) for instance in chosen]
        began = time.thread_time()
        history.take(state, changes, transitions)
        spent_s += time.thread_time() - began
        while history.standing().waiting > WAITING_MAX:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0)
    return spent_s


def _changed(instance: Instance, state: State) -> Change:
    starting, running = InstanceState.STARTING, InstanceState.RUNNING
    line = InstanceTransition(
        state.now_ms, starting, running, PROCESS_STARTED, state.revision, instance.attempt, instance.node
    )
    instance.story = (*instance.story[-5:], line)
    instance.since_ms = state.now_ms
    return Change("instance", instance.key, _ENCODER.encode(instance))


async def _inspect(history: History, revision: int, instances: int) -> float:
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        state = await history.read(state_at, await history.moment(f"@{revision}", 0), Settings())
        found.append(time.perf_counter() - began)
        assert len(state.instances) == instances and state.revision == revision
        del state
    return round(min(found), 3)


def _slowest(database: apsw.Connection) -> list[int]:
    """The last revisions before the second and the third snapshot, which need most reads; the newest revision if there
    is one snapshot only."""
    found: list[Any] = database.execute("SELECT revision FROM snapshots ORDER BY id LIMIT 3").fetchall()
    if len(found) > 1:
        return [revision - 1 for (revision,) in found[1:]]
    return [revision for (revision,) in database.execute("SELECT max(revision) FROM batches")]


async def _until(history: History, state: State) -> None:
    """Steps without changes, as on an idle server, until everything is written."""
    while history.standing().revision < state.revision:
        assert not history.standing().failed, history.standing().failed
        history.take(state, ())
        await asyncio.sleep(0.005)


def _records(nodes: int, instances: int) -> list[Change]:
    facts = Facts({"cpu": instances // nodes * 1_000, "memory": 1 << 40})
    policy = Policy(WorkloadKind.JOB, Ask(resources=(("cpu", 1_000),)))
    document = _ENCODER.encode({"name": "array", "command": ["/bin/sleep", "60"], "count": instances // ARRAYS})
    records = [Change("meta", "meta", _ENCODER.encode(Meta(first_serial=START_MS * 1_000)))]
    for number in range(nodes):
        name = f"node-{number:04}"
        records.append(Change("node", name, _ENCODER.encode(Node(name, name, facts, joined_ms=START_MS))))
    states = (InstanceState.QUEUED, InstanceState.PLACED, InstanceState.RUNNING)
    story = tuple(InstanceTransition(START_MS, None, state, PROCESS_STARTED, 1) for state in states)
    for number in range(ARRAYS):
        workload = Workload("default", f"array-{number}", policy, document, START_MS, number + 1, instances // ARRAYS)
        records.append(Change("workload", workload.key, _ENCODER.encode(workload)))
        for index in range(workload.count):
            at = number * workload.count + index
            node = f"node-{at % nodes:04}"
            instance = Instance(
                workload.key, index, InstanceState.RUNNING, 1, at + 1, node, START_MS, START_MS, story=story
            )
            records.append(Change("instance", instance.key, _ENCODER.encode(instance)))
    return records


_ENCODER = msgspec.msgpack.Encoder()
