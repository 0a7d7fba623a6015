"""Background tasks of the server: none ends unnoticed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from roost import supervisor
from roost.server.background import server_tasks
from roost.server.waiting import cancel

DEADLINE_S = 10.0


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
