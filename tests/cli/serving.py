"""Real Roosts for tests: a server without nodes, or a whole `roost up`, each in a directory and on ports of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from roost.cli.start.local_nodes import pids_of, running_keeper
from roost.client import Client
from roost.client.config import read_config

DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine
ROOST = [sys.executable, "-P", "-m", "roost"]


class Served:
    """A running Roost, and how to talk to it."""

    def __init__(self, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.home = home
        self.process = process
        self.config = home / "client.toml"
        self.env = {**os.environ, "ROOST_CONFIG": str(self.config)}

    def client(self) -> Client:
        """A client of its own."""
        return Client(*read_config(self.config))

    def roost(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """A command, as it is typed."""
        return subprocess.run([*ROOST, *arguments], env=self.env, input=stdin, capture_output=True, timeout=DEADLINE_S)

    def output(self) -> str:
        """Its output so far."""
        return (self.home / "output").read_text()


@contextmanager
def serving(home: Path, *arguments: str, prefix: Sequence[str] = ()) -> Iterator[Served]:
    """A server (`roost server ...`, `roost up ...`) that is ready, and ended in the end. `prefix`: what starts it."""
    (home / "client.toml").unlink(missing_ok=True)
    with open(home / "output", "wb") as output:
        argv = [*prefix, *ROOST, arguments[0], "--data", str(home), "--listen", "127.0.0.1:0", *arguments[1:]]
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    served = Served(home, process)
    try:
        wait_until(lambda: served.config.exists() or process.poll() is not None)
        assert process.poll() is None, served.output()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            end_all(home)


def end_all(home: Path) -> None:
    """Nothing of a test that failed may stay: keepers outlive a server that was killed."""
    for node in (home / "nodes").glob("*"):
        for pid in [running_keeper(node), *pids_of(node)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL) if pid else None


@contextmanager
def up(home: Path, *arguments: str, agents: int = 1) -> Iterator[Served]:
    """`roost up` with all its nodes connected. Unless a lease is given, no node is lost because the machine is slow."""
    lease = () if "--lease" in arguments else ("--lease", "60000")
    with serving(home, "up", "--agents", str(agents), *lease, *arguments) as served, served.client() as client:
        wait_until(lambda: sum(node.status == "ready" for node in client.nodes.list()) >= agents)
        yield served


def wait_until(happened: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait for something that has no event."""
    end = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < end, "it has not happened in time"
        time.sleep(0.01)
