"""Memory of pending work. Each case runs in its own process; the figure is how much that process grows."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from roost.core.replica import load
from roost.core.step import step
from roost.model.events import Submit
from roost.model.spec.submission import spec_of_document
from roost.ports.store import Snapshot
from roost_lab.bench.figure import Figure, figure

BATCH = 1_000
MEGABYTE = 1_000_000
TINY = {"instances": 2_000}


def measure(instances: int = 100_000) -> list[Figure]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        array, jobs = processes.map(_growth, (_array, _jobs), (instances, instances))
    return [
        figure("array_100k_waiting_mb", array / MEGABYTE, "MB", bound=1.0, instances=instances),
        figure("jobs_100k_waiting_mb", jobs / MEGABYTE, "MB", bound=80.0, goal=50.0, jobs=instances),
    ]


def _array(count: int) -> list[list[dict[str, Any]]]:
    return [[{"name": "array", "command": ["/bin/true"], "count": count}]]


def _jobs(count: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, count, BATCH):
        numbers = range(start, start + BATCH)
        yield [{"name": f"job-{number:06}", "command": ["/usr/bin/env", f"task={number}"]} for number in numbers]


def _growth(batches: Callable[[int], Iterable[list[dict[str, Any]]]], count: int) -> int:
    state = load(Snapshot(0, []), 1_000)
    step(state, [Submit(0, (spec_of_document({"name": "warm", "command": "true"}),))], 1_000)
    gc.collect()
    before = _resident()
    for batch in batches(count):
        step(state, [Submit(0, tuple(map(spec_of_document, batch)))], 1_000)
    gc.collect()
    return _resident() - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
