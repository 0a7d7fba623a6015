"""Runs in containers of a real engine, started through a real keeper as an agent would."""

import asyncio
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roost_lab.components.docker import IMAGE, EngineServer

from roost.drivers.process import ProcessDriver
from roost.ports.driver import Container, Event, KnownRuns, RunRequest, StepCommand
from tests.keeper.keeper_harness import DEADLINE_S, KeeperHarness, children

LIMITS = [{"Name": "nofile", "Soft": 1024, "Hard": 4096}, {"Name": "nproc", "Soft": 4096, "Hard": 4096}]


class ContainerBench:
    """One keeper and a driver. Runs have numbers; their containers are those of a node that no other test has."""

    def __init__(self, engine: EngineServer, harness: KeeperHarness) -> None:
        self.engine = engine
        self.harness = harness
        self.node = secrets.token_hex(6)
        self.events: list[Event] = []
        self.driver = ProcessDriver(self.events.append, lambda: None)

    async def connect(self) -> KnownRuns:
        self.events = []
        self.driver = ProcessDriver(self.events.append, lambda: None)
        await self.driver.connect(f"{self.harness.dir}/keeper.sock")
        await self.until(lambda: self.events)
        first = self.events.pop(0)
        assert isinstance(first, KnownRuns)
        return first

    def name(self, run: str) -> str:
        return f"roost-{self.node}-{run}"

    def request(
        self, run: str, *scripts: str | list[str], config: dict[str, Any] | None = None, **more: Any
    ) -> RunRequest:
        argvs = [["/bin/sh", "-c", script] if isinstance(script, str) else script for script in scripts]
        host = {"NetworkMode": "none", "LogConfig": {"Type": "none"}, "Ulimits": LIMITS, "Mounts": [self.mount(run)]}
        host |= {"Init": self.engine.kind == "docker"} | (config or {})
        labels = {"roost.node": self.node, "roost.run": run}
        create = {"Image": IMAGE, "Labels": labels, "HostConfig": host}
        if len(argvs) == 1:
            create |= {"Entrypoint": argvs[0]}
        return RunRequest(
            run, [StepCommand(argv) for argv in argvs], {}, str(self.harness.work / run),
            str(self.harness.work / f"{run}.log"), container=Container(self.engine.socket, self.name(run), create),
            **({"leased": False} | more),
        )  # fmt: skip

    def mount(self, run: str) -> dict[str, Any]:
        return {"Type": "bind", "Source": str(self.harness.work / run), "Target": "/roost"}

    def start(self, run: str, *scripts: str | list[str], **more: Any) -> None:
        self.driver.start(self.request(run, *scripts, **more))

    async def ended(self, run: str) -> Any:
        kind = lambda event: type(event).__name__ == "Ended" and event.id == run  # noqa: E731
        await self.until(lambda: any(kind(event) for event in self.events))
        return next(event for event in self.events if kind(event))

    async def writes(self, run: str, text: bytes) -> None:
        await self.until(lambda: text in self.harness.log(run))

    async def until(self, holds: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, (self.events, self.harness.errors.read_text())
            await asyncio.sleep(0.01)

    def containers(self) -> list[str]:
        """Those of this node, by name."""
        return [item["Names"][0].lstrip("/") for item in self.engine.containers() if self.node in item["Names"][0]]

    def shim(self) -> int:
        """The pid of the only shim."""
        (found,) = [pid for pid in children(self.harness.keepers[-1].pid) if b"shim.py" in command_of(pid)]
        return found

    def close(self) -> None:
        self.driver.close()
        self.harness.close()


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
