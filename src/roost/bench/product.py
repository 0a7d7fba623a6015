"""The product as a benchmark meets it: a server and agents as processes of their own, in a directory of their own."""

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from roost.client import Client
from roost.client.errors import Unreachable

START_S_MAX = 30.0
STOP_S_MAX = 20.0
LOOK_S = 0.005


class Product:
    """`with Product(agents=1, cpu="2") as product:`; its client talks to it, its pids are its root processes."""

    def __init__(self, *, agents: int = 1, cpu: str = "", data: Path | None = None) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="roost-bench-")
        self.data = data or Path(self._kept.name)
        self._agents = agents
        self._cpu = cpu
        self._processes: list[subprocess.Popen[bytes]] = []
        self.api_port, self.agents_port = free_ports(2)
        self.admin_token = secrets.token_urlsafe(16)
        self.client = Client(f"http://127.0.0.1:{self.api_port}", self.admin_token)

    @property
    def agents_address(self) -> str:
        """Where agents connect."""
        return f"127.0.0.1:{self.agents_port}"

    @property
    def pid(self) -> int:
        """The server."""
        return self._processes[0].pid

    @property
    def pids(self) -> list[int]:
        """The server and the keepers; everything else is below them."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> "Product":
        try:
            self.start_server()
            for number in range(self._agents):
                self.start_agent(f"node-{number + 1}")
            self.wait_until(lambda: self.client.status().agents_connected >= self._agents)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def start_server(self) -> float:
        """Start the server; how long it took until it was ready."""
        environment = os.environ | {"ROOST_TOKEN": self.admin_token}
        began = time.perf_counter()
        options = ["--data", str(self.data / "server"), "--listen", f"127.0.0.1:{self.api_port}"]
        options += ["--agents-listen", self.agents_address, "--log-level", "warning"]
        process = subprocess.Popen([*ROOST, "server", *options], env=environment, stdout=subprocess.DEVNULL)
        self._processes.insert(0, process)
        self.wait_until(lambda: self.client.status().ready)
        return time.perf_counter() - began

    def kill_server(self) -> None:
        """kill -9."""
        self._processes[0].kill()
        self._processes.pop(0).wait()

    def wait_until(self, holds: Callable[[], object]) -> None:
        """Until something holds of the running product."""
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                if holds():
                    return
            except Unreachable:
                pass
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came of it within {START_S_MAX} s")
            time.sleep(LOOK_S)

    def start_agent(self, name: str, *, server: str = "") -> int:
        """Start an agent's keeper; its process id."""
        home = self.data / name
        home.mkdir(parents=True)
        options = ["--join", self.client.create_join_token().token, "--server", server or self.agents_address]
        options += ["--name", name, "--dir", str(home)]
        options += ["--cpu", self._cpu] if self._cpu else []
        log = (home / "agent.log").open("wb")
        self._processes.append(subprocess.Popen([*ROOST, "agent", *options], stdout=log, stderr=log))
        return self._processes[-1].pid

    @contextmanager
    def pretenders(self, count: int) -> Iterator[None]:
        """Agents that only pretend to run, all connected: in two processes, so that they do not wait for each other."""
        token = self.client.create_join_token(uses=count).token
        command = [sys.executable, "-m", "roost.bench.pretenders", self.agents_address, token]
        parts = [(0, count // 2), (count // 2, count - count // 2)]
        clients = [subprocess.Popen([*command, *map(str, part)], stdout=subprocess.PIPE) for part in parts]
        try:
            for client in clients:
                assert client.stdout is not None
                client.stdout.readline()
            yield
        finally:
            for client in clients:
                client.kill()
                client.wait()

    def _end(self) -> None:
        for process in reversed(self._processes):  # agents first: they say goodbye
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        self.client.close()
        self._kept.cleanup()


ROOST = [sys.executable, "-m", "roost"]


def free_ports(count: int) -> list[int]:
    """Ports nobody uses, below those the kernel gives to connections: they are still free when they are needed."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) and len(found) < count:
                found.append(port)
    return found
