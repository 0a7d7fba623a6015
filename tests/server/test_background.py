"""Background tasks of the server: none ends unnoticed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roost import supervisor
from roost.server.background import server_tasks
from roost.server.waiting import cancel
from roost.supervisor import SupervisedTasks, Work
from tests.server.test_app import serving

DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


async def returns() -> None:
    return


async def fails() -> None:
    raise ValueError("a defect")


async def cancelled_inside() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("work", [returns, fails, cancelled_inside])
async def test_a_task_that_ends_is_restarted_and_counted(
    work: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S_MIN", 0.0)
    tasks = server_tasks()
    keeping = asyncio.ensure_future(tasks.keep("webhooks", work))
    async with asyncio.timeout(DEADLINE_S):
        while tasks.restarts["webhooks"] < 2:
            await asyncio.sleep(0)
    await cancel(keeping)
    assert keeping.cancelled()
    assert "a background task has ended and is restarted" in capsys.readouterr().out


@pytest.mark.parametrize("work", [returns, fails, cancelled_inside])
async def test_a_task_that_the_server_needs_ends_the_server(work: Callable[[], Awaitable[None]]) -> None:
    tasks = server_tasks()
    with pytest.raises(RuntimeError, match="there is no server without it"):
        await tasks.need("api", work, lambda: False)
    await tasks.need("api", work, lambda: True)  # the server is stopping: that is no defect
    assert not tasks.restarts


# --- every task of a real server, ended in turn ----------------------------------------------------------------------

RESTARTED = (
    "watchdog",
    "certificates",
    "webhooks",
    "controllers' health",
    "files",
    "blob keys",
    "copies",
    "tunnels",
    "logs",
)
FATAL = ("engine", "api")


class Victim:
    """Ends one task of a server, by its name, after it has begun. All others are left alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, end: Work) -> None:
        self.name, self._end = name, end
        self.supervised: set[str] = set()
        self.starts, self.dies = 0, asyncio.Event()
        monkeypatch.setattr(SupervisedTasks, "keep", self._supervised(SupervisedTasks.keep))
        monkeypatch.setattr(SupervisedTasks, "need", self._supervised(SupervisedTasks.need))

    def _supervised(self, method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def supervised(tasks: SupervisedTasks, name: str, work: Work, *expected: Any) -> None:
            self.supervised.add(name)
            await method(tasks, name, (lambda: self._run(work)) if name == self.name else work, *expected)

        return supervised

    async def _run(self, work: Work) -> None:
        self.starts += 1
        working = asyncio.ensure_future(work())
        if self.starts > 1:
            await working
            return
        try:
            await self.dies.wait()
            await self._end()
        finally:
            await cancel(working)


@pytest.mark.parametrize("end", [returns, fails, cancelled_inside])
@pytest.mark.parametrize("name", RESTARTED)
async def test_each_task_of_a_server_is_restarted_and_counted(
    name: str, end: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S_MIN", 0.0)
    victim = Victim(monkeypatch, name, end)
    async with serving(tmp_path, controller_listen=("127.0.0.1", 0)) as (client, _):
        assert victim.supervised == {*RESTARTED, *FATAL}, "a new task of the server has a name here"
        victim.dies.set()
        async with asyncio.timeout(DEADLINE_S):
            while victim.starts < 2:
                await asyncio.sleep(0.001)
        assert (await client.get("/v1/status")).json()["task_restarts"] == {name: 1}
        assert f'roost_task_restarts_total{{task="{name}"}} 1.0' in (await client.get("/metrics")).text
        answer = await client.post("/v1/workloads", json={"name": "job", "command": "true"})
        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("end", [returns, fails, cancelled_inside])
@pytest.mark.parametrize("name", FATAL)
async def test_a_server_ends_with_the_tasks_that_it_needs(
    name: str, end: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Victim(monkeypatch, name, end)
    with pytest.raises(BaseExceptionGroup) as raised:
        async with asyncio.timeout(DEADLINE_S), serving(tmp_path):
            victim.dies.set()
            await asyncio.Event().wait()  # until the server ends
    assert raised.group_contains(RuntimeError, match=f"the task {name} has ended")
