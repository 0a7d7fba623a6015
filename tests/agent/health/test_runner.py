"""Health checks of many runs: each in its turn, never two of one run, so many at a time, and none of what is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from roost.agent.health import runner as agent_checks
from roost.agent.health.probe import ProbeTarget
from roost.agent.health.runner import PROBES_MAX, Checks
from roost.model.spec.service import Check
from tests.agent.agent_harness import until

SOON_MS = 1


class World:
    """What the checks of this test look at: each look waits until the test says what it finds."""

    def __init__(self) -> None:
        self.looking: dict[int, asyncio.Future[str]] = {}
        self.most = 0  # at a time
        self.reported: list[tuple[int, str]] = []
        self.pauses: dict[int, int | None] = {}
        self.checks = Checks(self.hear)

    async def probe(self, target: ProbeTarget) -> str:
        assert target.port not in self.looking, "two looks at one run"
        found = self.looking[target.port] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.looking))
        try:
            return await found
        finally:
            del self.looking[target.port]

    def hear(self, token: int, message: str) -> None:
        self.reported.append((token, message))
        pause_ms = self.pauses.get(token, SOON_MS)
        if pause_ms is not None:
            self.checks.begin(token, pause_ms)

    def watch(self, *tokens: int) -> None:
        for token in tokens:
            self.checks.watch(token, ProbeTarget(Check(), token))
            self.checks.begin(token, 0)

    def find(self, token: int, message: str = "") -> None:
        self.looking[token].set_result(message)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with living(monkeypatch) as made:
        yield made


@asynccontextmanager
async def living(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()
    monkeypatch.setattr(agent_checks, "probe", made.probe)
    task = asyncio.ensure_future(made.checks.run())
    yield made
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() and not made.looking, "nothing goes on after the end"


async def test_looks_follow_each_other_and_are_reported(world: World) -> None:
    world.watch(7)
    for number in range(3):
        await until(lambda: 7 in world.looking)
        world.find(7, f"look {number}")
        await until(lambda number=number: len(world.reported) == number + 1)
    assert world.reported == [(7, "look 0"), (7, "look 1"), (7, "look 2")]


async def test_no_pause_means_no_further_look(world: World) -> None:
    world.pauses[7] = None
    world.watch(7)
    await until(lambda: 7 in world.looking)
    world.find(7)
    await until(lambda: world.reported)
    assert not world.checks._timers and not world.checks._due


async def test_so_many_at_a_time_and_the_others_in_their_turn(world: World) -> None:
    tokens = range(1, 3 * PROBES_MAX)
    world.pauses = dict.fromkeys(tokens)
    world.watch(*tokens)
    for index in range(len(tokens)):
        await until(lambda: world.looking)
        world.find(next(iter(world.looking)))
        await until(lambda received=index: len(world.reported) > received)
    assert world.most == PROBES_MAX
    assert sorted(token for token, _ in world.reported) == list(tokens)


async def test_one_that_hangs_delays_only_itself(world: World) -> None:
    world.watch(1, 2)
    await until(lambda: {1, 2} <= world.looking.keys())
    for number in range(5):
        await until(lambda: 2 in world.looking)
        world.find(2)
        await until(lambda number=number: len(world.reported) == number + 1)
    assert 1 in world.looking and {token for token, _ in world.reported} == {2}


async def test_what_is_left_is_broken_off_and_not_reported(world: World) -> None:
    world.watch(1, 2)
    await until(lambda: {1, 2} <= world.looking.keys())
    world.checks.leave(1)
    await until(lambda: 1 not in world.looking)
    world.find(2)
    await until(lambda: world.reported)
    assert world.reported == [(2, "")]


async def test_one_that_was_left_before_its_turn_is_not_looked_at(world: World) -> None:
    world.watch(*range(1, PROBES_MAX + 2))
    await until(lambda: len(world.looking) == PROBES_MAX)
    late = PROBES_MAX + 1
    await until(lambda: late in world.checks._due)
    world.checks.leave(late)
    world.checks.watch(99, ProbeTarget(Check(), 99))
    world.checks.leave(99)
    world.checks.begin(99, 0)
    world.checks.leave(100)
    assert not world.checks._due and 99 not in world.checks._timers
    world.find(1)
    await until(lambda: world.reported)
    assert late not in world.looking


async def test_one_that_is_only_watched_waits_for_its_run_to_begin(world: World) -> None:
    world.checks.watch(1, ProbeTarget(Check(), 1))
    world.watch(2)
    await until(lambda: 2 in world.looking)
    assert 1 not in world.looking
    world.checks.begin(1, 0)
    world.checks.begin(1, 0)
    await until(lambda: 1 in world.looking)


async def test_checks_that_are_restarted_begin_with_those_that_were_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(agent_checks, "probe", world.probe)
    failing = asyncio.ensure_future(world.checks.run())
    world.watch(1, 2)
    await until(lambda: set(world.looking) == {1, 2})
    world.looking[1].set_exception(ValueError("a defect"))
    await asyncio.wait((failing,))
    assert isinstance(failing.exception(), BaseExceptionGroup) and not world.checks._looks
    again = asyncio.ensure_future(world.checks.run())
    await until(lambda: set(world.looking) == {1, 2})
    world.find(1)
    await until(lambda: world.reported == [(1, "")])
    again.cancel()
    await asyncio.wait((again,))
