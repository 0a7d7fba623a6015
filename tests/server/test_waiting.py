"""Waiting in asyncio: how work of one kind shares the turns of the loop with others."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from roost.server.waiting import RESTS, SLICE_S, Gathering, LoopShare, TurnBudget

Turn = Callable[[], Awaitable[None]]


AT_ONCE = 6  # pieces of unknown cost in one turn


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def done_per_turn(turn: Turn, pieces: int, seconds: float) -> list[int]:
    """How many pieces of work each turn of the loop had; they were done in order."""
    done: list[int] = []

    async def work(number: int) -> None:
        await turn()
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
    assert max(await done_per_turn(LoopShare().turn, 20, 2 * SLICE_S)) == 1


async def test_the_turns_after_a_long_piece_of_work_are_for_others() -> None:
    turns = await done_per_turn(LoopShare().turn, 20, 2 * SLICE_S)
    worked = [at for at, pieces in enumerate(turns) if pieces]
    rests = {later - at - 1 for at, later in zip(worked, worked[1:], strict=False)}
    assert min(rests) == RESTS and max(rests) <= RESTS + 1  # the first piece did not have to wait


async def test_work_that_comes_in_the_turn_for_others_waits() -> None:
    share, loop = LoopShare(), asyncio.get_running_loop()
    await share.turn()
    order: list[str] = []
    loop.call_soon(lambda: loop.call_soon(order.append, "a turn later"))
    await asyncio.sleep(0)
    await share.turn()
    order.append("worked")
    assert order == ["a turn later", "worked"]


async def test_some_short_pieces_of_work_share_a_turn() -> None:
    turns = await done_per_turn(LoopShare().turn, 20, 0.0)
    assert max(turns) == AT_ONCE


async def test_pieces_whose_work_comes_later_do_not_meet_in_one_turn() -> None:
    share = LoopShare()

    async def turn() -> None:
        await share.turn()
        await asyncio.sleep(0)  # as a request whose body is read first

    assert max(await done_per_turn(turn, 20, 0.0)) <= AT_ONCE


async def test_one_that_is_cancelled_while_it_waits_takes_no_turn() -> None:
    share = LoopShare()
    await share.turn()
    burn(2 * SLICE_S)
    await _cancel_the_first_that_waits(share.turn)


async def test_work_of_others_takes_nothing_from_a_budget_of_turns() -> None:
    turns = await done_per_turn(TurnBudget(20).turn, 20, 2 * SLICE_S)
    assert max(turns) == 20


async def test_work_beyond_the_budget_of_a_turn_has_the_next_ones_in_order() -> None:
    turns = await done_per_turn(TurnBudget(4).turn, 20, 0.0)
    assert [turn for turn in turns if turn] == [4] * 5
    assert len(turns) <= 7  # one after the other


async def test_large_work_counts_as_much_of_the_budget_as_it_says() -> None:
    budget = TurnBudget(4)
    assert max(await done_per_turn(lambda: budget.turn(3), 20, 0.0)) == 2
    assert max(await done_per_turn(lambda: budget.turn(100), 20, 0.0)) == 1


async def test_one_that_is_cancelled_takes_nothing_from_the_budget() -> None:
    budget = TurnBudget(1)
    await budget.turn()
    await _cancel_the_first_that_waits(budget.turn)


async def test_callers_that_gather_go_on_together_and_later_ones_wait_anew() -> None:
    gathering, order = Gathering(), []

    async def come(name: str, pause_s: float) -> None:
        await gathering.wait(pause_s)
        order.append(name)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(come("first", 0.01))
        group.create_task(come("second", 60.0))  # the pause of the first one counts
        cancelled = group.create_task(come("cancelled", 0.0))
        await asyncio.sleep(0)
        assert order == []
        cancelled.cancel()
    assert order == ["first", "second"]
    third = asyncio.create_task(come("third", 0.01))
    await asyncio.sleep(0)
    assert order == ["first", "second"], "a later one waits anew"
    await asyncio.wait_for(third, 10)


async def _cancel_the_first_that_waits(turn: Turn) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
    tasks = [asyncio.ensure_future(turn()) for _ in range(4)]
    await asyncio.sleep(0)
    cancelled, *others = [task for task in tasks if not task.done()]
    cancelled.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*others)
    assert cancelled.cancelled() and len(others) >= 2 and not errors
