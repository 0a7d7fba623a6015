"""Files through a real server and back, against `cp`: one large file, many small ones. Everything is in memory.

As a module: the client of one transfer, in a process of its own, which prints what it took as one JSON line.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec

from roost.client import Client
from roost_lab.bench.figure import Figure, Spent, figure
from roost_lab.bench.product import Product
from roost_lab.components.etcd import memory_folder

ROUNDS = 3
PIECE, GIB = 1 << 20, 1 << 30
MB = 1_000_000


class Took(msgspec.Struct):
    """One transfer: seconds, bytes that the client sent, its memory above that of an idle client, and the set."""

    wall_s: float
    sent_bytes: int
    memory_mb: float
    digest: str


class Cost(msgspec.Struct):
    took: Took
    server_cpu_s: float
    server_mb: float


def through_server(files: int, large_bytes: int) -> list[Figure]:
    rounds = ROUNDS if large_bytes >= GIB else 1
    with tempfile.TemporaryDirectory(prefix="roost-transfers-", dir=memory_folder()) as folder:
        room = Path(folder)
        make_small(room / "small", files)
        with Product(agents=0, data=room / "product") as product:
            figures = [*_small(product, room, rounds)]
            make_large(room / "large", large_bytes)
            figures += _large(product, room, rounds, "", large_bytes)
            product.kill_server()
            authority = (product.data / "server" / "ca.pem").read_text()
            product.client = Client(f"https://127.0.0.1:{product.api_port}", product.admin_token, authority)
            product.start_server("--tls", "on")
            figures += _large(product, room, rounds, "tls_", large_bytes)
        return figures


def _small(product: Product, room: Path, rounds: int) -> Iterator[Figure]:
    source, got = room / "small", room / "got"
    files, size = sum(1 for path in source.rglob("*") if path.is_file()), _size(source)
    cp, first, again, get = [], [], [], []
    for number in range(rounds):  # alternating, because the machine is shared
        cp.append(_cp(source, room / "cp"))
        first.append(_transfer(product, "send", f"small-{number}", source))
        again.append(_transfer(product, "send", f"small-{number}", source))
        get.append(_transfer(product, "get", f"small-{number}", got, first[-1].took.digest))
        shutil.rmtree(got)
    for name, found, bound in (("sent", first, 3.0), ("sent_again", again, 1.3), ("fetched", get, 1.5)):
        ratio = _ratio(found, cp)
        yield figure(f"transfer_small_{name}_over_cp", ratio, "", bound=bound, files=files, cp_s=statistics.median(cp))
    share = max(cost.took.sent_bytes for cost in again) / size
    yield figure("transfer_small_sent_again_share", share, "", bound=0.01 if files > 1_000 else 1.0, files=files)


def _large(product: Product, room: Path, rounds: int, name: str, size: int) -> Iterator[Figure]:
    source, got = room / "large", room / "got"
    cp, send, get = [], [], []
    for number in range(rounds):
        project = f"{name.replace('_', '-')}large-{number}"
        cp.append(_cp(source, room / "cp"))
        send.append(_transfer(product, "send", project, source))
        get.append(_transfer(product, "get", project, got, send[-1].took.digest))
        shutil.rmtree(got)
        shutil.rmtree(product.data / "server" / "blobs" / project)  # there is no room for all rounds
    gib, seconds = size / GIB, statistics.median(cp)
    bounds = {"send": (8.0, 5.0), "get": (5.0, 3.0)}
    for verb, found in (("send", send), ("get", get)):
        word = {"send": "sent", "get": "fetched"}[verb]
        bound = bounds[verb][0 if name else 1]
        ratio = _ratio(found, cp)
        yield figure(f"transfer_{name}large_{word}_over_cp", ratio, "", bound=bound, bytes=size, cp_s=seconds)
        if not name:
            cpu = statistics.median(cost.server_cpu_s for cost in found) / gib
            limit = {"send": 2.5, "get": 0.6}[verb]
            yield figure(f"transfer_large_{word}_server_cpu_s_per_gib", cpu, "s", bound=limit, bytes=size)
    both = [*send, *get]
    yield figure(f"transfer_{name}server_mb", max(cost.server_mb for cost in both), "MB", bound=100.0, bytes=size)
    yield figure(f"transfer_{name}client_mb", max(cost.took.memory_mb for cost in both), "MB", bound=100.0, bytes=size)


def _ratio(found: list[Cost], cp: list[float]) -> float:
    return statistics.median(cost.took.wall_s for cost in found) / max(statistics.median(cp), 0.001)


def _cp(source: Path, target: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def _transfer(product: Product, verb: str, project: str, path: Path, digest: str = "") -> Cost:
    Path(f"/proc/{product.pid}/clear_refs").write_text("5")  # the highest memory use is counted from now on
    before = _memory_mb(product.pid)
    argv = [sys.executable, "-m", __name__, product.client.url, project, verb, str(path), digest]
    secret = {"ROOST_TOKEN": product.admin_token, "ROOST_CA": str(product.data / "server" / "ca.pem")}
    with Spent(product.pid) as spent:
        done = subprocess.run(argv, env=os.environ | secret, stdout=subprocess.PIPE, check=True)
    return Cost(msgspec.json.decode(done.stdout, type=Took), spent.cpu_s, _memory_mb(product.pid) - before)


def _memory_mb(pid: int) -> float:
    """The highest memory use."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1_024 / MB


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def make_large(folder: Path, size: int) -> None:
    folder.mkdir()
    with (folder / "file").open("wb") as file:
        for start in range(0, size, PIECE):
            file.write(os.urandom(min(PIECE, size - start)))


def make_small(folder: Path, count: int) -> None:
    chance = random.Random(1)
    for number in range(count):
        path = folder / f"{number % 100:02}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(256) + bytes(768))


def _client(url: str, project: str, verb: str, path: str, digest: str) -> Took:
    sent = 0
    real: Callable[[HTTPConnection, bytes], None] = HTTPConnection.send

    def counted(connection: HTTPConnection, data: bytes) -> None:
        nonlocal sent
        sent += len(data)
        real(connection, data)

    HTTPConnection.send = counted  # type: ignore[assignment,method-assign]
    with Client(url, os.environ["ROOST_TOKEN"], Path(os.environ["ROOST_CA"]).read_text()) as client:
        client.status()
        sent, before = 0, _memory_mb(os.getpid())
        began = time.perf_counter()
        if verb == "send":
            digest = client.files.send(path, project).digest
        else:
            client.files.get(digest, path, (), project)
        seconds = time.perf_counter() - began
    return Took(seconds, sent, _memory_mb(os.getpid()) - before, digest)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_client(*sys.argv[1:])))
