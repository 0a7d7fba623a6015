"""The watchdog of the loop: what held it is measured, named in the log, and never counts as silence of agents."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from roost.server.observability import watchdog
from roost.server.observability.watchdog import HELD_S, LoopWatchdog
from roost.server.waiting import cancel

DEADLINE_S = 10.0


@asynccontextmanager
async def watched() -> AsyncIterator[LoopWatchdog]:
    dog = LoopWatchdog()
    running = asyncio.ensure_future(dog.run())
    try:
        await asyncio.sleep(0)
        yield dog
    finally:
        await cancel(running)


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def until_pulse(dog: LoopWatchdog, pulses: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while sum(dog.held.counts) < pulses:
            await asyncio.sleep(0.001)


async def test_a_hold_is_measured_and_its_cause_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "described", lambda frame: frame.f_code.co_name)
    async with watched() as dog:
        busy(4 * HELD_S)
        await until_pulse(dog, 1)
    assert dog.worst_s >= 3 * HELD_S
    out = capsys.readouterr().out
    assert "the loop was held" in out and "busy" in out


async def test_time_that_was_not_read_is_reported_once_also_before_the_pulse() -> None:
    async with watched() as dog:
        busy(4 * HELD_S)
        reported_ms = dog.unread_ms()
        assert reported_ms >= 3_000 * HELD_S
        await until_pulse(dog, 1)
        assert dog.unread_ms() < reported_ms / 2, "the rest of that hold, not all of it again"


async def test_a_loop_that_is_free_has_read_all_the_time() -> None:
    dog = LoopWatchdog()
    assert dog.unread_ms() == 0, "it does not run yet"


def test_functions_of_roost_are_named_the_innermost_first() -> None:
    import sys

    frame = sys._getframe()
    assert watchdog.described(frame) == "", "tests are no part of Roost"
    assert watchdog.described(None) == ""
