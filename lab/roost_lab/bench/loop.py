"""How long the server's loop is held at worst, and by what: the CPU of the loop's thread within the longest hold.

The watchdog of the server logs every hold of more than 50 ms with its cause. Where it logged none, the figure is the
longest lateness that it measured: that may also be of other processes on this machine.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost.model.states import InstanceState, WorkloadState
from roost_lab.bench.figure import Figure, figure
from roost_lab.bench.product import INSTANCES_S_MAX, LONG_LEASE, Product

BOUND_MS = 50.0
BATCH = 1_000
URGENT = 100
GANG = 64
LISTED = 1_000  # workloads in one page, the most there can be
HOSTILE_PER_S = 20
HOSTILE = b"{a: " * 40_000  # unclosed flow mappings, 160 KB
TINY = {"classes": 20, "pending": 40, "askers": 2, "batch": 20, "array": 40, "agents": 4, "hostile_s": 0.5}


def measure(
    classes: int = 10_000, pending: int = 100_000, askers: int = 50, batch: int = 10_000, array: int = 100_000,
    agents: int = 300, hostile_s: float = 10.0,
) -> list[Figure]:  # fmt: skip
    return [
        _held("loop_questions_ms", 1, lambda product: _ask(product, classes, pending, askers)),
        _held("loop_batch_ms", 1, lambda product: product.client.workloads.submit_batch(_jobs("many", batch))),
        _held("loop_cancel_ms", max(2, agents // 3), lambda product: _cancel(product, array)),
        _held("loop_retry_ms", max(2, agents // 3), lambda product: _retry(product, array)),
        _held("loop_preempt_ms", agents, lambda product: _preempt(product, agents)),
        _held("loop_gang_ms", agents, lambda product: _preempt_for_gang(product, agents)),
        _held("loop_readers_ms", 1, lambda product: _read_lists(product, batch, askers, hostile_s)),
        _held("loop_hostile_ms", 1, lambda product: send_hostile(product, hostile_s, token=False)),
        _held("loop_hostile_with_token_ms", 1, lambda product: send_hostile(product, hostile_s, token=True)),
    ]


class _Hold(msgspec.Struct):
    event: str = ""
    ms: int = 0
    cpu_ms: int = 0
    by: str = ""


def _held(name: str, agents: int, scenario: Callable[[Product], object]) -> Figure:
    """With the default log level, because lines also take time on the loop."""
    with Product(agents=0, options=(*LONG_LEASE, "--log-level", "info")) as product, product.pretenders(agents):
        before = len(_holds(product))
        scenario(product)
        holds = _holds(product)[before:]
        worst = max(holds, key=lambda hold: hold.cpu_ms, default=None)
        late_ms = _longest_ms(product)
    wall_ms = round(late_ms, 1)
    if worst is None:
        return figure(name, min(late_ms, BOUND_MS), "ms", bound=BOUND_MS, wall_ms=wall_ms, holds=0)
    return figure(name, worst.cpu_ms, "ms", bound=BOUND_MS, by=worst.by, wall_ms=wall_ms, holds=len(holds))


def _holds(product: Product) -> list[_Hold]:
    lines = (product.data / "server.log").read_bytes().splitlines()
    found = [msgspec.json.decode(line, type=_Hold) for line in lines if line.startswith(b"{")]
    return [hold for hold in found if hold.event == "the loop was held"]


def _longest_ms(product: Product) -> float:
    headers = {"Authorization": f"Bearer {product.admin_token}"}
    page = httpx.get(f"{product.client.url}/metrics", headers=headers).text
    values = [line.split()[-1] for line in page.splitlines() if line.startswith("roost_loop_held_max_seconds ")]
    return float(values[0]) * 1_000


def _jobs(name: str, number: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"{name}-{index}", "command": "x", **fields} for index in range(number)]


def _submit(product: Product, jobs: list[dict[str, Any]]) -> None:
    for first in range(0, len(jobs), BATCH):
        product.client.workloads.submit_batch(jobs[first : first + BATCH])


def _ask(product: Product, classes: int, pending: int, askers: int) -> None:
    """Pending work of many classes, and questions about it at the same time."""
    large = {"resources": {"cpu": 100}, "count": pending // classes}
    _submit(product, [{**job, **large, "timeout": f"{100 + at}s"} for at, job in enumerate(_jobs("wait", classes))])

    def ask(number: int) -> None:
        with (
            Client(product.client.url, product.admin_token) as client,
            suppress(ApiError, Unreachable),
        ):  # too busy is an answer
            client.workloads.why("default", f"wait-{number % classes}")
            client.workloads.plan([{"name": f"planned-{number}", "command": "x"}])
            client.status()

    with ThreadPoolExecutor(askers) as threads:
        list(threads.map(ask, range(2 * askers)))


def _cancel(product: Product, count: int) -> None:
    small = {"cpu": "1m", "memory": 1, "disk": 1}
    product.client.workloads.submit({"name": "array", "command": "x", "count": count, "resources": small})
    product.wait_for_instances(InstanceState.RUNNING, count)
    product.client.workloads.cancel("default", "array")
    product.wait_for_instances(InstanceState.CANCELLED, count)


def _retry(product: Product, count: int) -> None:
    """One commit with a change for each instance of a cancelled array."""
    _cancel(product, count)
    product.client.workloads.retry("default", "array")
    product.wait_for_instances(InstanceState.RUNNING, count)


def _fill(product: Product, agents: int) -> None:
    product.client.workloads.submit({"name": "low", "command": "x", "count": 16 * agents, "resources": {"cpu": 1}})
    product.wait_for_instances(InstanceState.RUNNING, 16 * agents)


def _preempt_for_gang(product: Product, agents: int) -> None:
    """The largest gang that preempts, with 8 attempts to stop for each member."""
    _fill(product, agents)
    gang = {"name": "urgent", "command": "x", "count": min(GANG, agents), "gang": True, "priority": 100}
    product.client.workloads.submit({**gang, "resources": {"cpu": 8}})
    product.wait_until(lambda: _running(product) == 2, within_s=INSTANCES_S_MAX)


def _running(product: Product) -> int:
    return product.client.status().workloads.get(WorkloadState.RUNNING, 0)


def _preempt(product: Product, agents: int) -> None:
    _fill(product, agents)
    urgent = min(URGENT, agents)
    _submit(product, _jobs("urgent", urgent, priority=100, resources={"cpu": 2}))
    product.wait_until(lambda: _running(product) == urgent + 1, within_s=INSTANCES_S_MAX)


def _read_lists(product: Product, jobs: int, readers: int, seconds: float) -> None:
    _submit(product, _jobs("listed", jobs))
    read_lists(product, readers, seconds)


def read_lists(product: Product, readers: int, seconds: float) -> None:
    """Every reader reads one long list after the other, while bodies come in that are slow to parse."""
    until_s = time.monotonic() + seconds

    def read(_: int) -> None:
        with Client(product.client.url, product.admin_token) as client, suppress(ApiError, Unreachable):
            while time.monotonic() < until_s:
                client.workloads.list(limit=LISTED)

    with ThreadPoolExecutor(readers) as threads:
        reading = threads.map(read, range(readers))
        send_hostile(product, seconds, token=True)
        list(reading)


def send_hostile(product: Product, seconds: float, *, token: bool) -> None:
    path = "/v1/workloads" if token else "/v1/join"
    headers = {"Content-Type": "application/yaml"}
    headers |= {"Authorization": f"Bearer {product.admin_token}"} if token else {}

    def send(number: int) -> None:
        with suppress(httpx.HTTPError):
            httpx.post(f"{product.client.url}{path}", content=HOSTILE, headers=headers, timeout=60)

    with ThreadPoolExecutor(HOSTILE_PER_S) as threads:
        for number in range(int(seconds * HOSTILE_PER_S)):
            threads.submit(send, number)
            time.sleep(1 / HOSTILE_PER_S)
