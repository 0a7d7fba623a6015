"""Several servers on one store, and agents: real processes, each of which can be killed, stopped and started again."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from roost_lab.components.ports import free_port

from roost.client import Client
from roost.client.errors import ApiError, Unreachable

TOKEN = "root-token-of-the-failover-tests"
DEADLINE_S = 60.0
PACE_S = 0.01


class Process:
    """A program of Roost that is run for the test."""

    def __init__(self, message: list[str], log: Path, prefix: list[str], **environment: str) -> None:
        self._message = [*prefix, sys.executable, "-m", "roost", *message]
        self._log = log
        self._environment = {**os.environ, "ROOST_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", **environment}
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                self._message, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def use(self, source: Path) -> None:
        """From the next start on it is the Roost of this source, and so is what it starts."""
        self._environment["PYTHONPATH"] = str(source)

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        assert self._running is not None
        code = self._running.wait(DEADLINE_S)
        self._running = None
        return code

    def send(self, what: signal.Signals) -> None:
        assert self._running is not None
        self._running.send_signal(what)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Nothing happens if it does not run."""
        if self._running is not None:
            self._running.send_signal(signal.SIGCONT)
            self._running.send_signal(how)
            self._running.wait(DEADLINE_S)
            self._running = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:]


class Server(Process):
    """One of several."""

    def __init__(self, folder: Path, name: str, store: str, host: str, prefix: list[str], options: list[str]) -> None:
        self.name = name
        api, agents = free_port(), free_port()
        self.url = f"https://{host}:{api}" if host != "127.0.0.1" else f"http://{host}:{api}"
        self.ca = folder / name / "ca.pem"
        arguments = ["server", "--store", store, "--data", str(folder / name), "--name", name]
        arguments += [
            "--listen",
            f"{host}:{api}",
            "--agents-listen",
            f"{host}:{agents}",
            "--log-format",
            "json",
            "--log-level",
            "warning",
        ]
        arguments += ["--key-file", str(folder / "cluster.key"), *options]
        super().__init__(arguments, folder / f"{name}.log", prefix)

    def client(self) -> Client:
        return Client(self.url, TOKEN, self.ca.read_text() if self.url.startswith("https") else "")

    def leads(self) -> bool:
        try:
            with self.client() as client:
                client._transport.call("GET", "/leader")
                return True
        except (ApiError, Unreachable, FileNotFoundError):
            return False


class Cluster:
    """Servers on one store. Agents join through the leader."""

    def __init__(self, store: str, *, servers: int = 3, hosts: list[tuple[str, list[str]]] | None = None,
                 options: tuple[str, ...] = ()) -> None:  # fmt: skip
        self.folder = Path(tempfile.mkdtemp(prefix="roost-failover-"))
        (self.folder / "cluster.key").write_text(os.urandom(32).hex())
        self.hosts = hosts or [("127.0.0.1", [])] * servers
        self.servers = [
            Server(self.folder, f"s{number}", store, host, prefix, list(options))
            for number, (host, prefix) in enumerate(self.hosts)
        ]
        self.agents: list[Process] = []

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.start()
            self.until(lambda: any(server.leads() for server in self.servers), "a server leads")
            self.until(lambda: len(self.client().servers.list().items) == len(self.servers), "all stand by")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.agents, *self.servers]:
            process.end(signal.SIGTERM if process in self.agents else signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def leader(self) -> Server:
        """The leader."""
        found: list[Server] = []
        self.until(lambda: bool(found.extend(server for server in self.servers if server.leads()) or found), "a leader")
        return found[0]

    def standbys(self) -> list[Server]:
        leader = self.leader
        return [server for server in self.servers if server is not leader]

    def client(self, *, first: Server | None = None) -> Client:
        """Of all servers, beginning with one of them."""
        ordered = sorted(self.servers, key=lambda server: server is not first)
        ca = next((server.ca.read_text() for server in ordered if server.ca.exists()), "")
        return Client(",".join(server.url for server in ordered), TOKEN, ca)

    def add_agent(self, name: str, *, cpu: str = "4", prefix: list[str] | None = None) -> Process:
        """A node that has joined and is ready."""
        process = self.make_agent(name, cpu=cpu, prefix=prefix)
        process.start()
        self.until(lambda: self.is_ready(name), f"{name} is ready")
        return process

    def make_agent(self, name: str, *, cpu: str = "4", prefix: list[str] | None = None) -> Process:
        """A node that joins when it is started."""
        with self.client() as client:
            token = client.join_tokens.create(uses=1).token
        arguments = ["agent", "--join", token, "--name", name, "--dir", str(self.folder / name), "--cpu", cpu]
        process = Process(arguments, self.folder / f"{name}.log", prefix or [])
        self.agents.append(process)
        return process

    def is_ready(self, name: str) -> bool:
        with self.client() as client:
            return any(node.name == name and node.status == "ready" for node in client.nodes.list())

    def until(self, holds: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait; on failure the logs of all are shown."""
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                if holds():
                    return
            except (ApiError, Unreachable):
                pass
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"== {process._log.name}\n{process.log()}" for process in [*self.servers, *self.agents]
                )
                raise AssertionError(f"not within {deadline_s} s: {what}\n{logs}")
            time.sleep(PACE_S)
