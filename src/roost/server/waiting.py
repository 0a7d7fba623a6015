"""Waiting in asyncio: for an event with a time limit, and for tasks that are cancelled."""

import asyncio
from contextlib import suppress
from typing import Any


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> None:
    """Return when the event is set or the time is over. None: without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
