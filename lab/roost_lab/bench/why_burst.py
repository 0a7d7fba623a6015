"""How much longer heartbeats wait for their answers, under two loads.

200 `why` questions while 2,000 jobs flow; and 50 readers of long lists while hostile bodies come in.

`python -m roost_lab.bench.why_burst HOST:PORT JOIN-TOKEN` is one agent without room for work that sends a heartbeat
every few milliseconds. For name line that it reads it prints the waits since the last line, as JSON.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from roost.client import Client
from roost_lab.bench.figure import Figure, figure
from roost_lab.bench.loop import read_lists
from roost_lab.bench.product import LONG_LEASE, Product, helper_process, next_line

PAUSE_S = 0.005
BURNERS = 4  # processes that only burn: twice the cores of a small machine
BURN = "import time; until = time.monotonic() + {}\nwhile time.monotonic() < until: pass"
BATCH = 20
BOUND_MS = 20.0
SHARE = 0.99
TINY = {"agents": 4, "jobs": 40, "questions": 4, "askers": 2, "readers": 2, "seconds": 0.5}


def measure(
    agents: int = 100, jobs: int = 2_000, questions: int = 200, askers: int = 20, readers: int = 50,
    seconds: float = 10.0,
) -> list[Figure]:  # fmt: skip
    """The p99 of heartbeat answers with the load, less the same without it."""

    def flow_and_ask() -> None:
        with ThreadPoolExecutor(askers) as threads:
            asking = threads.map(lambda _: _ask(product, questions // askers), range(askers))
            _flow(product, "asked", jobs)
            list(asking)

    with Product(agents=0, options=LONG_LEASE) as product, product.pretenders(agents):
        token = product.client.join_tokens.create().token
        with helper_process("why_burst", product.agents_address, token) as probe:
            product.client.workloads.submit({"name": "huge", "command": "true", "resources": {"cpu": 10_000}})
            alone = _waits(probe, lambda: _flow(product, "alone", jobs))
            asked = _waits(probe, flow_and_ask)
            quiet = _waits(probe, lambda: _burn(readers, seconds))
            read = _waits(probe, lambda: read_lists(product, readers, seconds))
    return [
        _added("why_burst_beat_p99_ms", alone, asked, questions=questions, jobs=jobs),
        _added("readers_beat_p99_ms", quiet, read, readers=readers),
    ]


def _added(name: str, alone: list[float], loaded: list[float], **detail: Any) -> Figure:
    before, after = _percentile(alone), _percentile(loaded)
    detail |= {
        "alone_p99_ms": round(before, 2), "loaded_p99_ms": round(after, 2), "alone_max_ms": round(max(alone), 2),
        "loaded_max_ms": round(max(loaded), 2), "beats": len(loaded),
    }  # fmt: skip
    return figure(name, after - before, "ms", bound=BOUND_MS, **detail)


def _burn(processes: int, seconds: float) -> None:
    """As many processes want a core as with readers: what the machine itself adds is not the server's."""
    burning = [subprocess.Popen([sys.executable, "-c", BURN.format(seconds)]) for _ in range(min(processes, BURNERS))]
    for process in burning:
        process.wait()


def _flow(product: Product, name: str, jobs: int) -> None:
    batches = [[f"{name}-{at + offset}" for offset in range(BATCH)] for at in range(0, jobs, BATCH)]
    for before, batch in zip([[], *batches], [*batches, []], strict=True):
        if batch:
            resources = {"cpu": "100m"}
            product.client.workloads.submit_batch(
                [{"name": job, "command": "x", "resources": resources} for job in batch]
            )
        for job in before:
            product.client.workloads.cancel("default", job)


def _ask(product: Product, questions: int) -> None:
    with Client(product.client.url, product.admin_token) as client:
        for _ in range(questions):
            client.workloads.why("default", "huge")


def _waits(probe: "subprocess.Popen[str]", during: Callable[[], None]) -> list[float]:
    """How long heartbeats waited while something was done, in milliseconds."""
    assert probe.stdin is not None
    print(file=probe.stdin, flush=True)
    next_line(probe)
    during()
    print(file=probe.stdin, flush=True)
    return msgspec.json.decode(next_line(probe), type=list[float])


def _percentile(waits: list[float]) -> float:
    return sorted(waits)[int(len(waits) * SHARE)]


async def _probe(address: str, token: str) -> None:
    from roost.model.records.enrolment import read_token
    from roost.wire.codec import pack_agent, unpack_server
    from roost_lab.bench.pretenders import join_all, now_ms, welcomed

    (bundle,) = await join_all(read_token(token), ["probe"])
    waits: list[float] = []
    async with welcomed(address, bundle, {}) as (actor, stream):
        print("connected", flush=True)
        telling = asyncio.ensure_future(asyncio.to_thread(_print_waits, waits))
        while not telling.done():
            began = time.perf_counter()
            await stream.write(pack_agent(actor.beat(now_ms())))
            actor.answered(unpack_server(await stream.read()), now_ms())  # type: ignore[arg-type]
            waits.append((time.perf_counter() - began) * 1_000)
            await asyncio.sleep(PAUSE_S)


def _print_waits(waits: list[float]) -> None:
    for _ in sys.stdin:
        found = waits[:]
        del waits[: len(found)]
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(_probe(sys.argv[1], sys.argv[2]))
