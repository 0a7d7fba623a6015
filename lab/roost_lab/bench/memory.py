"""Memory: what waiting costs. Each case has a process of its own; how much that grows is the figure."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from roost_lab.bench.figure import Figure, figure

BATCH = 1_000
MEGABYTE = 1_000_000
TINY = {"instances": 2_000}


def measure(instances: int = 100_000) -> list[Figure]:
    """Bytes of a pending array, and of as many different pending jobs."""
    array, jobs = _in_a_process("array", instances), _in_a_process("jobs", instances)
    return [
        figure("array_100k_waiting_mb", array / MEGABYTE, "MB", bound=1.0, instances=instances),
        figure("jobs_100k_waiting_mb", jobs / MEGABYTE, "MB", bound=80.0, goal=50.0, jobs=instances),
    ]


def _in_a_process(case: str, count: int) -> int:
    command = [sys.executable, "-m", "roost_lab.bench.memory", case, str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)


def _array(count: int) -> list[list[dict[str, Any]]]:
    return [[{"name": "array", "command": ["/bin/true"], "count": count}]]


def _jobs(count: int) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, count, BATCH):
        numbers = range(start, start + BATCH)
        yield [{"name": f"job-{number:06}", "command": ["/usr/bin/env", f"task={number}"]} for number in numbers]


def _growth(batches: Iterable[list[dict[str, Any]]]) -> int:
    from roost.core.replica import load
    from roost.core.step import step
    from roost.model.events import Submit
    from roost.model.spec.submission import spec_of_document
    from roost.ports.store import Snapshot

    state = load(Snapshot(0, []), 1_000)
    step(state, [Submit(0, (spec_of_document({"name": "warm", "command": "true"}),))], 1_000)
    gc.collect()
    before = _resident()
    for batch in batches:
        step(state, [Submit(0, tuple(map(spec_of_document, batch)))], 1_000)
    gc.collect()
    return _resident() - before


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(_growth({"array": _array, "jobs": _jobs}[sys.argv[1]](int(sys.argv[2]))))
