"""Virtual machines from a saved state: a keeper's against plain QEMU with the same flags, in turns."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import roost.keeper
from roost_lab.bench.figure import Figure, figure
from roost_lab.components.etcd import dies_with_us, memory_folder
from roost_lab.components.guest import MEMORY, guest
from roost_lab.components.plain_qemu import PlainQemu

SCRIPT = "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.02; done"
SAVED_AT = b"tick 20\n"
BOUND = 1.3  # the project's own aim
OUTPUT_S = 120.0  # 1 s on a machine at rest
PAUSE_S = 0.004
TINY = {"rounds": 1, "clones": 2}


def measure(rounds: int = 15, clones: int = 10) -> list[Figure]:
    """Rounds alternate, because the machine is shared."""
    with tempfile.TemporaryDirectory(prefix="roost-vms-", dir=memory_folder()) as folder:
        os.chmod(folder, 0o755)  # QEMU of a keeper that is root has another user
        machine = _saved(folder)
        with BenchKeeper(Path(folder, "keeper")) as keeper:
            plain, ours = [], []
            for number in range(rounds):
                plain.append(_plain_s(machine))
                ours.append(_took_s(keeper, [keeper.order(machine, f"one-{number}")]))
            many = _took_s(keeper, [keeper.order(machine, f"many-{number}") for number in range(clones)])
    base, value = statistics.median(plain), statistics.median(ours)
    detail: dict[str, Any] = {"plain_s": round(base, 3), "keeper_s": round(value, 3), "rounds": rounds}
    return [
        figure("vm_from_state_over_plain_qemu", value / base, "times", bound=BOUND, **detail),
        figure("vm_clones_s", many, "s", clones=clones),
    ]


def _saved(folder: str) -> dict[str, Any]:
    """A machine as in an order, with the state to go on from."""
    found, state = guest(), f"{folder}/state"
    parts = {"kernel": found.kernel, "initrd": found.initrd, "cmdline": found.cmdline(SCRIPT)}
    machine: dict[str, Any] = {"dir": f"{folder}/plain", "program": found.program, "memory": MEMORY} | parts
    with PlainQemu(machine) as qemu:
        qemu.until(SAVED_AT)
        qemu.save(state)
    return machine | {"state": state}


def _plain_s(machine: dict[str, Any]) -> float:
    began = time.perf_counter()
    with PlainQemu(machine) as qemu:
        qemu.until(b"tick")
        return time.perf_counter() - began


def _took_s(keeper: "BenchKeeper", orders: list[dict[str, Any]]) -> float:
    """From the orders to the first output of all of them; then they are ended."""
    began = time.perf_counter()
    keeper.send(*orders)
    logs = [Path(order["log"]) for order in orders]
    _until(lambda: all(log.exists() and b"tick" in log.read_bytes() for log in logs))
    took = time.perf_counter() - began
    keeper.send(*({"do": "stop", "id": order["id"], "grace_ms": 0} for order in orders))
    for _ in orders:
        keeper.ended()
    return took


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + OUTPUT_S
    while not condition():
        assert time.monotonic() < deadline, f"no output of a guest within {OUTPUT_S} s"
        time.sleep(PAUSE_S)


class BenchKeeper:
    """A keeper, and a connection as its agent has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        main = Path(roost.keeper.__file__).parent / "__main__.py"
        argv = [*dies_with_us(), sys.executable, "-I", "-S", str(main), "--dir", str(folder), "--", "sleep", "3600"]
        self._process = subprocess.Popen(argv)
        self._socket = socket.socket(socket.AF_UNIX)
        _until(self._connects)
        self._lines = self._socket.makefile("rb")

    def _connects(self) -> bool:
        try:
            self._socket.connect(str(self._folder / "keeper.sock"))
        except OSError:
            return False
        return True

    def order(self, machine: dict[str, Any], id: str) -> dict[str, Any]:
        work = f"{self._folder}/{id}"
        return {
            "do": "start", "id": id, "steps": [{"argv": ["vm"]}], "env": {}, "dir": work, "log": f"{work}.log",
            "machine": machine | {"dir": f"{self._folder}/machines/{id}"},
        }  # fmt: skip

    def send(self, *orders: dict[str, Any]) -> None:
        self._socket.sendall(b"".join(json.dumps(order).encode() + b"\n" for order in orders))

    def ended(self) -> None:
        while json.loads(self._lines.readline())["event"] != "ended":
            pass

    def __enter__(self) -> "BenchKeeper":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
