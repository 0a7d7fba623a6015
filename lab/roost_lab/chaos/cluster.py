"""The system under chaos: a store, servers and agents as processes, with a proxy wherever a connection can be cut."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost_lab.chaos.plan import SERVERS
from roost_lab.chaos.proxy import Proxy
from roost_lab.components import etcd, postgres
from roost_lab.components.ports import free_ports

READY_S_MAX = 120.0  # a loaded machine needs some seconds for each process
LOOK_S = 0.05
LOOPBACK = "127.0.0.1"
LOG_CHARACTERS_SHOWN = 2_000


class Setup(NamedTuple):
    """What a cluster has. `disk_mib`: of the small disk of each server, which can be filled; 0: a plain folder."""

    agents: int
    disk_mib: int = 0
    options: Sequence[str] = ()  # of servers
    environment: Mapping[str, str] = {}  # of servers
    agent_environment: Mapping[str, str] = {}


class Program:
    """A command of Roost as a process that can be killed, stopped and started again."""

    def __init__(self, name: str, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = [*etcd.dies_with_us(), sys.executable, "-m", "roost", *arguments]
        self._log = log
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, **environment: str) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**self._environment, **environment}, start_new_session=True
            )

    def send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:] if self._log.exists() else ""

    def ended_by_itself(self) -> bool:
        return self._process is not None and self._process.poll() is not None


class Server(Program):
    """One server. Agents and other servers reach it through proxies at an address of its own."""

    def __init__(self, folder: Path, number: int, store: "Store", token: str, setup: Setup) -> None:
        name, seen_as = f"s{number}", f"127.0.0.{number + 2}"
        api, agents = free_ports(2)
        self.disk = Disk(folder / name)
        self.url = f"http://{LOOPBACK}:{api}"
        self.proxies = [Proxy((seen_as, port), (LOOPBACK, port)) for port in (api, agents)]
        self.store_proxies, url = store.proxied()
        arguments = ["server", "--data", str(self.disk.path), "--store", url, "--name", name, "--advertise", seen_as]
        arguments += ["--listen", f"{LOOPBACK}:{api}", "--agents-listen", f"{LOOPBACK}:{agents}", "--no-controllers"]
        arguments += ["--key-file", str(folder / "cluster.key"), "--log-level", "warning", "--log-format", "json"]
        environment = {"ROOST_TOKEN": token, **setup.environment}
        super().__init__(name, [*arguments, *setup.options], folder / f"{name}.log", environment)


class Disk:
    """The data directory of a server: a small disk of its own where this process may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cannot = ""
        path.mkdir()

    def mount(self, mib: int) -> None:
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(self.path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            self.cannot = done.stderr.strip() if done.returncode else ""
        except FileNotFoundError:
            self.cannot = "there is no `mount`"

    def unmount(self) -> None:
        if os.path.ismount(self.path):
            subprocess.run(["umount", "--lazy", str(self.path)], check=False)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        filler = self.path / "filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            yield
        finally:
            filler.unlink(missing_ok=True)


class Store:
    """The store of the servers. SQLite is a file of its server: nothing runs, and nothing can be cut. So is memory."""

    def __init__(self, url: str = "") -> None:
        self._url = url

    def proxied(self) -> tuple[list[Proxy], str]:
        """Proxies for one server, and the URL that leads through them."""
        return [], self._url

    @contextlib.contextmanager
    def outage(self, target: int) -> Iterator[None]:
        yield

    def close(self) -> None:
        return


class PostgresUnderChaos(Store):
    def __init__(self, folder: Path) -> None:
        self._server = postgres.Postgres(folder)
        self._server.create()
        self._server.start()

    def proxied(self) -> tuple[list[Proxy], str]:
        (port,) = free_ports(1)
        proxy = Proxy((LOOPBACK, port), (LOOPBACK, self._server.port))
        return [proxy], f"postgresql://postgres@{LOOPBACK}:{port}/postgres"

    @contextlib.contextmanager
    def outage(self, target: int) -> Iterator[None]:
        """It hangs, or crashes and is started again."""
        if target % 2:
            with self._server.frozen():
                yield
            return
        self._server.stop()
        try:
            yield
        finally:
            self._server.start()

    def close(self) -> None:
        self._server.stop()


class EtcdUnderChaos(Store):
    def __init__(self) -> None:
        self._members = etcd.Cluster().start()

    def proxied(self) -> tuple[list[Proxy], str]:
        ports = free_ports(len(self._members.endpoints))
        targets = [endpoint.rpartition(":") for endpoint in self._members.endpoints]
        proxies = [
            Proxy((LOOPBACK, port), (host, int(target))) for port, (host, _, target) in zip(ports, targets, strict=True)
        ]
        return proxies, f"etcd://{','.join(f'{LOOPBACK}:{port}' for port in ports)}/chaos"

    @contextlib.contextmanager
    def outage(self, target: int) -> Iterator[None]:
        """One member is gone, or two of three, and come back with what they had."""
        count = len(self._members.endpoints)
        gone = [(target + other) % count for other in range(1 + target % 2)]
        for number in gone:
            self._members.kill(number)
        try:
            yield
        finally:
            for number in gone:
                self._members.start_member(number)

    def close(self) -> None:
        self._members.stop()


def open_store(name: str, folder: Path) -> Store:
    """Raises Missing."""
    if name == "postgres":
        home = folder / "postgres"
        home.mkdir()
        folder.chmod(0o755)  # PostgreSQL does not run as root, and has to get there
        return PostgresUnderChaos(home)
    return EtcdUnderChaos() if name == "etcd" else Store(name)


class Cluster:
    """`with Cluster(...) as cluster:` everything runs, and every node is ready."""

    def __init__(self, folder: Path, store: str, setup: Setup) -> None:
        self.folder = folder
        self.token = secrets.token_urlsafe(16)
        self.agents: list[Program] = []
        self._setup = setup
        key = folder / "cluster.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        self.store = open_store(store, folder)
        self.servers = [Server(folder, number, self.store, self.token, setup) for number in range(SERVERS[store])]
        for server in self.servers:
            if setup.disk_mib:
                server.disk.mount(setup.disk_mib)

    def __enter__(self) -> "Cluster":
        try:
            for server in self.servers:
                server.start()
            self.wait_until(self._servers_up, "all servers are up")
            for number in range(self._setup.agents):
                self.agents.append(self._agent(f"n{number}"))
            self.wait_until(self._nodes_ready, "all nodes are ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            agent.end(signal.SIGTERM)
        for server in self.servers:
            server.end()
            for proxy in (*server.proxies, *server.store_proxies):
                proxy.close()
            if os.path.ismount(server.disk.path):
                kept = self.folder / f"{server.name}.data"
                shutil.copytree(server.disk.path, kept, ignore=shutil.ignore_patterns("filler"))
            server.disk.unmount()
        self.store.close()

    def client(self) -> Client:
        return Client(",".join(server.url for server in self.servers), self.token)

    def heal(self) -> None:
        """Every fault has ended: what was cut flows, what was stopped goes on."""
        for server in self.servers:
            for proxy in (*server.proxies, *server.store_proxies):
                proxy.heal()
        self.wait_until(self._nodes_ready, "all nodes are ready after the faults")

    def wait_until(self, holds: Callable[[], object], what: str, within_s: float = READY_S_MAX) -> None:
        deadline = time.monotonic() + within_s
        refused = ""
        while True:
            try:
                if holds():
                    return
                refused = ""
            except (ApiError, Unreachable) as error:
                refused = f": {error}"
            if time.monotonic() > deadline:
                dead = [program for program in (*self.servers, *self.agents) if program.ended_by_itself()]
                logs = "".join(f"\n{program.name} has ended: {program.log_end()}" for program in dead)
                raise TimeoutError(f"not within {within_s:.0f} s: {what}{refused}{logs}")
            time.sleep(LOOK_S)

    def _agent(self, name: str) -> Program:
        with self.client() as client:
            token = client.join_tokens.create().token
        arguments = ["agent", "--join", token, "--name", name, "--dir", str(self.folder / name), "--cpu", "4"]
        arguments += ["--memory", "4GiB", "--disk", "1GiB"]
        agent = Program(name, arguments, self.folder / f"{name}.log", self._setup.agent_environment)
        agent.start()
        return agent

    def _servers_up(self) -> bool:
        with self.client() as client:
            return client.status().ready and len(client.servers.list().items) == len(self.servers)

    def _nodes_ready(self) -> bool:
        with self.client() as client:
            return [node.status for node in client.nodes.list()] == ["ready"] * self._setup.agents
