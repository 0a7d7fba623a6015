"""The product under a benchmark: a server and agents as processes, in a temporary directory."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost.model.states import InstanceState
from roost_lab.components.ports import free_ports

START_S_MAX = 300.0  # far beyond any machine; at a load of 30 on two cores a start has taken a minute
STOP_S_MAX = 60.0
INSTANCES_S_MAX = 180.0  # ten thousand of them start within seconds
LOOK_S = 0.005
LOOK_AT_INSTANCES_S = 0.1
LOG_CHARACTERS_SHOWN = 2_000  # of a process that ended by itself
BEAT_S = 1.0  # of simulated agents whose lease is long: as often as with the default lease
SHAPES = 20  # of services that a fleet is filled with
ROOST = [sys.executable, "-m", "roost"]
LONG_LEASE = ("--lease", "30000")  # many simulated agents share a process, which a loaded machine may stall


class Product:
    """`with Product(agents=1, cpu="2") as product:` starts servers and agents as processes; `pids` are their roots."""

    def __init__(
        self, *, agents: int = 1, cpu: str = "", data: Path | None = None, token: str = "",
        options: Sequence[str] = (), start_s_max: float = START_S_MAX,
    ) -> None:  # fmt: skip
        self._kept = tempfile.TemporaryDirectory(prefix="roost-bench-")
        self.data = data or Path(self._kept.name)
        self._agents = agents
        self._cpu = cpu
        self._options = options  # more of them for the server
        self._start_s_max = start_s_max
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}  # by process id
        self.api_port, self.agents_port = free_ports(2)
        self.agents_address = f"127.0.0.1:{self.agents_port}"
        self.admin_token = token or secrets.token_urlsafe(16)
        self.client = Client(f"http://127.0.0.1:{self.api_port}", self.admin_token)

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    @property
    def pids(self) -> list[int]:
        """The server and the keepers; all other processes are their descendants."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        try:
            self.start_server()
            for number in range(self._agents):
                self.start_agent(f"node-{number + 1}")
            self.wait_until(lambda: self.client.status().agents_connected >= self._agents)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
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

    def start_server(self, *more: str) -> float:
        """Start the server, with more options. Returns the seconds until it was ready."""
        environment = os.environ | {"ROOST_TOKEN": self.admin_token}
        began = time.perf_counter()
        options = ["--data", str(self.data / "server"), "--listen", f"127.0.0.1:{self.api_port}"]
        options += ["--agents-listen", self.agents_address, "--log-level", "warning", *self._options, *more]
        self.data.mkdir(parents=True, exist_ok=True)
        self._processes.insert(0, self._start([*ROOST, "server", *options], self.data / "server.log", environment))
        self.wait_until(lambda: self.client.status().ready, within_s=self._start_s_max)
        return time.perf_counter() - began

    def kill_server(self) -> None:
        self._processes[0].kill()
        self._processes.pop(0).wait()

    def wait_until(self, holds: Callable[[], object], *, look_s: float = LOOK_S, within_s: float = START_S_MAX) -> None:
        deadline = time.monotonic() + within_s
        refused = ""
        while True:
            try:
                if holds():
                    return
            except (ApiError, Unreachable) as error:  # it is not ready, or no server leads
                refused = f": {error}"
            for process in self._processes:
                if process.poll() is not None:
                    text = self._logs[process.pid].read_text(errors="replace")[-LOG_CHARACTERS_SHOWN:]
                    raise RuntimeError(f"{process.args!r} ended with {process.returncode}: {text}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came of it within {within_s} s{refused}")
            time.sleep(look_s)

    def wait_for_instances(self, state: InstanceState, number: int) -> None:
        def are_there() -> bool:
            return self.client.status().instances.get(state, 0) == number

        self.wait_until(are_there, look_s=LOOK_AT_INSTANCES_S, within_s=INSTANCES_S_MAX)

    def start_agent(self, name: str, *, server: str = "") -> int:
        home = self.data / name
        home.mkdir(parents=True)
        options = ["--join", self.client.join_tokens.create().token, "--server", server or self.agents_address]
        options += ["--name", name, "--dir", str(home)]
        options += ["--cpu", self._cpu] if self._cpu else []
        self._processes.append(self._start([*ROOST, "agent", *options], home / "agent.log", dict(os.environ)))
        return self._processes[-1].pid

    @contextmanager
    def pretenders(self, count: int, beat_s: float = BEAT_S) -> Iterator[None]:
        """Simulated agents, all connected: in two processes, so that they do not wait for each other.

        `beat_s`: between two heartbeats; 0: as often as agents do.
        """
        token = self.client.join_tokens.create(uses=count).token
        with ExitStack() as stack:
            for first, some in ((0, count // 2), (count // 2, count - count // 2)):
                stack.enter_context(helper_process("pretenders", self.agents_address, token, first, some, beat_s))
            yield

    def _start(self, command: list[str], log: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        """Logs go to a file: standard output and error are for the figures."""
        with log.open("ab") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self._logs[process.pid] = log
        return process


def services(name: str, instances: int) -> list[dict[str, Any]]:
    return [
        {"name": f"{name}-{shape}", "kind": "service", "count": instances // SHAPES, "command": "serve",
         "resources": {"cpu": f"{100 + shape}m"}}
        for shape in range(SHAPES)
    ]  # fmt: skip


@contextmanager
def helper_process(module: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A module of the benchmarks in a process of its own, once it has printed `connected`; killed at the end."""
    command = [sys.executable, "-m", f"roost_lab.bench.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            next_line(process)
            yield process
        finally:
            process.kill()


def next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended")
    return line
