"""Waiting in asyncio: how work of one kind shares the turns of the loop with others."""

import asyncio
import time

from roost.server.waiting import SLICE_S, LoopShare


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def done_per_turn(share: LoopShare, pieces: int, seconds: float) -> list[int]:
    """How many pieces of work each turn of the loop had, and in which order they were done."""
    done: list[int] = []

    async def work(number: int) -> None:
        await share.turn()
        burn(seconds)
        done.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(pieces)]
    turns: list[int] = []
    while not all(task.done() for task in tasks):
        before = len(done)
        await asyncio.sleep(0)
        turns.append(len(done) - before)
    assert done == list(range(pieces))
    return turns


async def test_long_pieces_of_work_that_are_due_at_once_have_a_turn_each() -> None:
    assert max(await done_per_turn(LoopShare(), 20, 2 * SLICE_S)) == 1


async def test_short_pieces_of_work_share_a_turn() -> None:
    turns = await done_per_turn(LoopShare(), 20, 0.0)
    assert max(turns) == 20


async def test_one_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    share = LoopShare()
    await share.turn()
    burn(2 * SLICE_S)
    waiting = [asyncio.create_task(share.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting[1:])
