"""Background tasks of an agent: none ends unnoticed. Each kind is broken once, and goes on or ends the agent."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roost import supervisor
from roost.agent import service as agent_service
from roost.agent.connection import machine as link_machine
from roost.agent.connection.stream import AgentStream
from roost.agent.containers import EngineWatch
from roost.agent.files.copies import Copies
from roost.agent.files.transfers import Transfers
from roost.agent.health.runner import Checks
from roost.agent.logs.spool import Spool
from roost.agent.machines import MachineWatch
from roost.agent.service import Service, agent_tasks
from roost.agent.tunnels.tunnels import NodeTunnels
from roost.drivers.fake import at_once
from roost.model.records.node import Facts
from tests.agent.agent_harness import PacedDriver, agent, until
from tests.server.gateway_server import gateway_server

Run = Callable[..., Awaitable[None]]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S_MIN", 0.0)
    monkeypatch.setattr(link_machine, "USAGE_MS", 10)


async def _returns() -> None:
    """A task that is over too early."""


async def _fails() -> None:
    raise ValueError("a defect")


async def _is_cancelled_from_inside() -> None:
    raise asyncio.CancelledError


ENDS = [(_returns, "it returned"), (_fails, "ValueError: a defect"), (_is_cancelled_from_inside, "from inside")]


@pytest.mark.parametrize("end, message", ENDS, ids=["returns", "fails", "cancelled"])
async def test_a_task_that_ends_is_restarted_counted_and_logged(
    end: Run, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, starts, goes_on = agent_tasks(), [], asyncio.Event()

    async def work() -> None:
        starts.append(1)
        if len(starts) < 3:
            await end()
        else:
            goes_on.set()
            await asyncio.Event().wait()

    keeping = asyncio.ensure_future(tasks.keep("work", work))
    await goes_on.wait()
    assert tasks.restarts == {"work": 2}
    assert message in capsys.readouterr().err
    keeping.cancel()
    await asyncio.wait((keeping,))
    assert keeping.cancelled() and len(starts) == 3


@pytest.mark.parametrize("end, message", ENDS, ids=["returns", "fails", "cancelled"])
async def test_a_needed_task_that_ends_too_early_is_fatal(end: Run, message: str) -> None:
    tasks = agent_tasks()
    with pytest.raises(RuntimeError, match=message):
        await tasks.need("work", end, lambda: False)
    await tasks.need("work", end, lambda: True)
    assert not tasks.restarts


def broken_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """A method that fails the first time it is called; its calls."""
    method, calls = getattr(owner, name), list[int]()

    async def run(*args: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a defect")
        await method(*args)

    monkeypatch.setattr(owner, name, run)
    return calls


KINDS = {
    "logs": (Spool, "run"), "health": (Checks, "run"), "sweep": (Service, "_sweep"),
    "renewal": (agent_service, "keep_renewed"), "files": (Transfers, "run"), "engine": (EngineWatch, "run"),
    "copies": (Copies, "run"), "machines": (MachineWatch, "run"), "tunnels": (NodeTunnels, "run"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_task_is_restarted_and_the_server_knows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = broken_once(monkeypatch, *KINDS[kind])
    async with gateway_server() as server, agent(server.port, tmp_path) as (service, _):
        assert set(service._works()) == set(KINDS), "a new kind of task has a line in KINDS"

        def reported() -> dict[str, int]:
            usage = server.engine.state.liveness["n1"].usage if "n1" in server.engine.state.liveness else None
            server.engine._wake.set()
            return usage.task_restarts if usage is not None else {}

        await until(lambda: reported() == {kind: 1})
        await until(lambda: len(calls) == 2)
        await server.submit()
        await server.until(lambda: server.states() == ["succeeded"])
        assert service.tasks.restarts == {kind: 1}


async def test_the_connection_ends_the_agent_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_once(monkeypatch, AgentStream, "run")
    service = Service(str(tmp_path), "n1", "machine", Facts({"cpu": 4_000}), "127.0.0.1:1", lambda: None)
    service.driver = driver = PacedDriver(at_once)
    driver.attach(service.reported)
    with pytest.raises(BaseExceptionGroup) as raised:
        await service.run()
    (error,) = raised.value.exceptions
    assert str(error) == "the task connection has ended (ValueError: a defect), and there is no agent without it"
