"""Logs of ten runs on one agent at 50 MB/s: nothing is lost, and what the server spends for each MB."""

import hashlib
import inspect
import random
import re
import sys
import time
import urllib.request
from collections.abc import Iterator

from roost.server.logs.codec import encode
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import Product

BLOCK_BYTES = 1 << 20
SEED = 7
ROUNDS = 50  # of the compression alone
TURN_S = 0.02  # between two writes of a run
END_S_MAX = 600.0  # far beyond any machine: something hangs
LOOK_S = 0.5  # each look also costs the server some CPU
MB = 1e6
TINY = {"runs": 2, "mb_per_s": 2, "seconds": 1}

# Writes the first bytes of an endless repetition of a block, at a steady rate.
SCRIPT = """
import random, sys, time
{source}
block, total, rate = make_block({seed}, {size}), {total}, {rate}
out, at, began = sys.stdout.buffer, 0, time.monotonic()
while at < total:
    due = min(total, int((time.monotonic() - began + {turn}) * rate))
    while at < due:
        start = at % len(block)
        piece = block[start : start + due - at]
        out.write(piece)
        at += len(piece)
    out.flush()
    time.sleep({turn})
"""


def make_block(seed: int, size: int) -> bytes:
    """Lines of a log, which compress as such lines do."""
    chance = random.Random(seed)
    tokens = [format(chance.getrandbits(40), "x") for _ in range(2_000)]
    lines = []
    for number in range(size // 40):
        first, second, took = chance.choice(tokens), chance.choice(tokens), chance.randrange(999)
        lines.append(f"2026-11-18T15:00:{number % 60:02} INFO request {first} of {second} took {took} ms\n")
    return "".join(lines).encode()[:size]


def measure(runs: int = 10, mb_per_s: int = 50, seconds: int = 60) -> list[Figure]:
    rate = int(mb_per_s * MB / runs)
    total = rate * seconds
    megabytes = runs * total / MB
    source = inspect.getsource(make_block)
    script = SCRIPT.format(source=source, seed=SEED, size=BLOCK_BYTES, total=total, rate=rate, turn=TURN_S)
    document = {
        "name": "writers", "command": [sys.executable, "-c", script], "count": runs, "resources": {"cpu": "100m"},
    }  # fmt: skip
    with Product(agents=1, cpu="8", options=("--log-limit", "4GiB")) as product:
        with Spent(product.pid) as spent:
            product.client.workloads.submit(document)
            product.client.workloads.wait([("default", "writers")], timeout_s=END_S_MAX)
            product.wait_until(lambda: not _metric(product, "roost_log_local_bytes"), look_s=LOOK_S, within_s=END_S_MAX)
        seal_s = _metric(product, "roost_log_seal_cpu_seconds_total")
        expected = _digest(total)
        lost = sum(total for index in range(runs) if _served(product, index) != expected)
    return [
        figure("logs_lost_bytes", lost, "bytes", bound=0.0, bytes=runs * total, runs=runs),
        figure("logs_server_cpu_ms_per_mb", spent.cpu_s / megabytes * 1e3, "ms", bound=6.0,
               mb_per_s=round(megabytes / spent.wall_s, 1), wall_s=round(spent.wall_s, 1)),
        figure("logs_segments_cpu_ms_per_mb", seal_s / megabytes * 1e3, "ms", bound=2.5,
               compression_alone_ms=round(_compression_s() * 1e3, 2)),
    ]  # fmt: skip


def _compression_s() -> float:
    """CPU for each MB of the compression alone, on this machine as it is now."""
    block = make_block(SEED, BLOCK_BYTES)
    began_s = time.thread_time()
    for _ in range(ROUNDS):
        encode(block, ())
    return (time.thread_time() - began_s) * MB / (ROUNDS * BLOCK_BYTES)


def _metric(product: Product, name: str) -> float:
    request = urllib.request.Request(f"http://127.0.0.1:{product.api_port}/metrics")
    request.add_header("authorization", f"Bearer {product.admin_token}")
    with urllib.request.urlopen(request) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def _served(product: Product, index: int) -> bytes:
    hasher = hashlib.sha256()
    for piece in product.client.logs.pieces("default", "writers", index):
        hasher.update(piece)
    return hasher.digest()


def _digest(total: int) -> bytes:
    hasher = hashlib.sha256()
    for piece in _pieces(total):
        hasher.update(piece)
    return hasher.digest()


def _pieces(total: int) -> Iterator[bytes]:
    block = make_block(SEED, BLOCK_BYTES)
    for start in range(0, total, len(block)):
        yield block[: total - start]
