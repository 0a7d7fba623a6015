"""A real keeper in a directory of its own, and a client that speaks to it as an agent would."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from roost.model.records.usage import RunUsage

KEEPER = Path(__file__).parents[2] / "src" / "roost" / "keeper" / "__main__.py"
DEADLINE_S = 60.0  # for what takes milliseconds: the machine may be busy

Event = dict[str, Any]
T = TypeVar("T")

EXITING = 0x4  # PF_EXITING, of the flags of a process


def until(condition: Callable[[], T], what: str, seconds: float = DEADLINE_S) -> T:
    """Wait for something to come true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.003)
    return found


def alive(pid: int) -> bool:
    """Whether a process is there, neither merely waited for nor about to end."""
    try:
        state, *_, flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:7]
        return state not in "ZX" and not int(flags) & EXITING
    except (FileNotFoundError, ProcessLookupError):
        return False


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Client:
    """One connection. Events that a test did not ask for are kept, so that it can say that nothing else came."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        fd = os.open(directory, os.O_RDONLY)
        self.socket.connect(f"/proc/self/fd/{fd}/keeper.sock")
        os.close(fd)
        self.buffer = b""
        self.waiting: list[Event] = []
        self.runs = self.next("runs")

    def send(self, *orders: Event) -> None:
        self.raw(b"".join(json.dumps(order).encode() + b"\n" for order in orders))

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self, event: str, id: str | None = None) -> Event:
        """The next event of this kind (and run); others stay for later."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for index, found in enumerate(self.waiting):
                if found["event"] == event and id in (None, found.get("id")):
                    return self.waiting.pop(index)
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                self.receive()
            except TimeoutError as error:
                raise AssertionError(f"no {event} of {id}; only {self.waiting}") from error

    def receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the keeper closed the connection")
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        self.waiting += [json.loads(line) for line in lines]

    def others(self) -> list[Event]:
        """What else has come by now: an order that is refused marks the place."""
        self.send({"do": "stop", "id": "nobody"})
        self.next("refused", "nobody")
        return self.waiting

    def ended(self, id: str) -> Event:
        return self.next("ended", id)


class KeeperHarness:
    """Starts keepers in one directory, and leaves nothing running."""

    def __init__(self, tmp_path: Path, directory: Path | None = None) -> None:
        self.dir = directory or tmp_path / "keeper"
        self.work = tmp_path / "work"
        self.errors = tmp_path / "keeper.err"
        self.keepers: list[subprocess.Popen[bytes]] = []
        self.python = sys.executable
        self.prefix: tuple[str, ...] = ()  # before the command line of each keeper
        self.isolation: Event | None = None  # of every order that does not say

    def keeper(
        self, *options: str, agent: tuple[str, ...] = ("sleep", "3600"), prefix: tuple[str, ...] = (), **popen: Any
    ) -> subprocess.Popen[bytes]:
        """Start a keeper and wait until it listens."""
        lock = self.dir / "keeper.lock"
        argv = [*self.prefix, *prefix, self.python, "-I", "-S", KEEPER, "--dir", self.dir, *options, "--", *agent]
        with self.errors.open("ab") as errors:
            keeper = subprocess.Popen(argv, stderr=errors, **popen)
        self.keepers.append(keeper)

        def listens() -> bool:
            assert keeper.poll() is None, self.errors.read_text()
            allocated = lock.exists() and lock.read_text().strip() == str(keeper.pid)
            return allocated and bool(children(keeper.pid))

        until(listens, "the keeper to have started its agent")
        return keeper

    def client(self) -> Client:
        return Client(self.dir)

    def order(self, id: str, *scripts: str | list[str], **more: Any) -> Event:
        """An order to start a run; a string is a script for the shell."""
        argvs = [script if isinstance(script, list) else ["/bin/sh", "-c", script] for script in scripts]
        return {
            "do": "start",
            "id": id,
            "steps": [{"argv": argv} for argv in argvs],
            "env": {},
            "dir": str(self.work / id),
            "log": str(self.work / f"{id}.log"),
            "leased": False,
            "isolation": self.isolation,
        } | more

    def log(self, id: str) -> bytes:
        path = self.work / f"{id}.log"
        return path.read_bytes() if path.exists() else b""

    def pids(self, id: str, count: int) -> list[int]:
        """Pids that a run wrote into its log, one a line."""
        return until(
            lambda: [int(word) for word in self.log(id).split()] if self.log(id).count(b"\n") == count else [],
            f"{count} pids of {id}",
        )

    def close(self) -> None:
        for keeper in self.keepers:
            if keeper.poll() is None:
                keeper.send_signal(signal.SIGCONT)
                keeper.terminate()
                keeper.terminate()
        for keeper in self.keepers:
            try:
                keeper.wait(timeout=10)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
        for pid in marked(self.dir):
            os.kill(pid, signal.SIGKILL)


def usage_of(ended: Event) -> RunUsage:
    return msgspec.convert(ended["usage"], RunUsage)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def marked(directory: Path) -> list[int]:
    """Processes that were started by a keeper of this directory."""
    mark = b"\0ROOST_KEEPER=" + os.fsencode(directory.resolve()) + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in b"\0" + path.read_bytes():
                found.append(int(path.parent.name))
        except (OSError, ValueError):
            continue
    return found
