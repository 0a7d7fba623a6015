"""Isolated runs against plain ones: the CPU of a start, that of a whole task, and the latency of a rested node."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roost.agent.isolation import PROBE_USER, chosen_level
from roost.cli.start.local_nodes import KEEPER
from roost.model.states import IsolationLevel
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import Product
from roost_lab.bench.tasks import run_all
from roost_lab.components import Missing

REST_S = 0.15  # a node is rested after this: caches of the processor are cold, timers of the kernel have passed
LISTENS_S_MAX = 30.0
ISOLATION = "ROOST_AGENT_ISOLATION"
TINY = {"starts": 72, "tasks": 30, "rounds": 1, "latencies": 3}


def measure(starts: int = 2_160, tasks: int = 1_000, rounds: int = 2, latencies: int = 40) -> list[Figure]:
    if chosen_level("")[0] != IsolationLevel.SANDBOX:
        raise Missing("this machine offers no sandboxes")
    spawned, isolated = _starts(starts)
    plain_task, isolated_task = _tasks(tasks, rounds)
    plain_ms, isolated_ms = _latencies(latencies)
    spawn_us, task_us, rested_ms = round(spawned * 1e6), round(plain_task * 1e6), round(plain_ms, 2)
    return [
        figure("isolated_start_over_spawn", isolated / spawned, "times", bound=1.35, spawn_us=spawn_us),
        figure("isolated_task_over_plain", isolated_task / plain_task, "times", bound=1.2, task_us=task_us),
        figure("isolated_rested_over_plain", isolated_ms / plain_ms, "times", bound=1.5, plain_ms=rested_ms),
    ]


def _starts(count: int) -> tuple[float, float]:
    """CPU seconds of a plain and of an isolated start of /bin/true, from a process that is as small as a keeper."""
    argv = [sys.executable, "-m", "roost_lab.bench.isolated_starts", str(count)]
    plain, isolated = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    return plain, isolated


def _tasks(count: int, rounds: int) -> tuple[float, float]:
    """CPU seconds of a whole task, plain and isolated. Each round has a Roost of its own for both."""
    used: dict[str, list[float]] = {"none": [], "sandbox": []}
    before = os.environ.get(ISOLATION)
    try:
        for level in [*used] * rounds:
            os.environ[ISOLATION] = level
            with _directory() as home, Product(agents=1, cpu="2", data=Path(home)) as product:
                run_all(product.client, "warm", count // 10)
                with Spent(*product.pids) as spent:
                    run_all(product.client, "task", count)
            used[level].append(spent.cpu_s / count)
    finally:
        os.environ.pop(ISOLATION)
        if before is not None:
            os.environ[ISOLATION] = before
    return statistics.mean(used["none"]), statistics.mean(used["sandbox"])


def _latencies(count: int) -> tuple[float, float]:
    """Median milliseconds from the order to the end of /bin/true at a rested keeper, plain and isolated in turn."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with _directory() as home:
        os.chmod(home, 0o711)
        with _keeper(Path(home)) as link:
            for number in range(2 * count + 2):
                time.sleep(REST_S)
                is_isolated = bool(number % 2)
                order = _order(home, str(number), is_isolated=is_isolated)
                began = time.perf_counter()
                link.sendall(order)
                _wait_for_end(link)
                found[is_isolated].append((time.perf_counter() - began) * 1e3)
    return statistics.median(found[False][1:]), statistics.median(found[True][1:])  # without making the slot


def _directory() -> tempfile.TemporaryDirectory[str]:
    """Not in /tmp, where an installation would not be: slots clear what runs leave there."""
    return tempfile.TemporaryDirectory(prefix="roost-bench-", dir=Path.home())


def _order(home: str, run: str, *, is_isolated: bool) -> bytes:
    order: dict[str, Any] = {
        "do": "start", "id": run, "steps": [{"argv": ["/bin/true"]}], "dir": f"{home}/work/{run}",
        "log": f"{home}/logs/{run}",
    }  # fmt: skip
    if is_isolated:
        ids = {"user": PROBE_USER, "group": PROBE_USER} if os.geteuid() == 0 else {}
        order["isolation"] = {"level": "sandbox", "project": "bench", **ids}
    return json.dumps(order).encode() + b"\n"


@contextmanager
def _keeper(home: Path) -> Iterator[socket.socket]:
    """A keeper without a real agent: this process takes its place."""
    (home / "logs").mkdir()
    argv = [sys.executable, "-I", "-S", str(KEEPER), "--dir", str(home / "keeper"), "--", "sleep", "3600"]
    keeper = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    path, deadline = home / "keeper" / "keeper.sock", time.monotonic() + LISTENS_S_MAX
    try:
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            yield link
    finally:
        keeper.terminate()
        keeper.wait()


def _wait_for_end(link: socket.socket) -> None:
    data = b""
    while b'"event":"ended"' not in data:
        received = link.recv(1 << 16)
        if not received:
            raise RuntimeError("the keeper has closed the connection")
        data += received
    if b'"cause":"exited"' not in data:
        raise RuntimeError(data.decode())
