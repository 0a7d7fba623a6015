"""The fork server: questions that need no state are answered by its children, and it ends with its server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from roost.core.state.state import State
from roost.model.errors import Invalid, NoService
from roost.server.engine import fork_server, questions
from roost.server.engine.fork_server import ForkServer
from roost.server.engine.questions import Questions
from tests.server.inprocess_server import InprocessServer, inprocess_server


@pytest.fixture
async def made() -> AsyncIterator[InprocessServer]:
    async with inprocess_server() as standing:
        yield standing


@pytest.fixture
def forks() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def parent(_: State) -> int:
    return os.getppid()


def sizes(parts: list[bytes], _: State) -> list[int]:
    return [len(part) for part in parts]


def refuse(_: State) -> None:
    raise Invalid("a.b", "wrong", code="odd")


def die(_: State) -> None:
    os.abort()


def die_once(mark: Path, _: State) -> str:
    if not mark.exists():
        mark.touch()
        os.abort()
    return "answered"


def never_end(_: State) -> None:
    while True:
        pass


def stay_in_c(_: State) -> int:
    return sum(range(10**12))  # no signal is handled meanwhile


async def test_children_of_the_fork_server_answer(made: InprocessServer, forks: ForkServer) -> None:
    asked = Questions(made.engine, forks.start)
    assert await asyncio.gather(asked.ask(parent), asked.ask(parent)) == [forks.pid, forks.pid]
    assert forks.pid != os.getpid()


async def test_a_question_may_be_larger_than_a_socket_takes_at_once(made: InprocessServer, forks: ForkServer) -> None:
    parts = [bytes(8 << 20), b"", b"x"]
    assert await Questions(made.engine, forks.start).ask(partial(sizes, parts)) == [8 << 20, 0, 1]


async def test_a_refusal_is_the_same_refusal(made: InprocessServer, forks: ForkServer) -> None:
    with pytest.raises(Invalid) as refused:
        await Questions(made.engine, forks.start).ask(refuse)
    assert (refused.value.code, refused.value.path) == ("odd", "a.b")


async def test_a_child_that_dies_twice_takes_only_its_question_with_it(
    made: InprocessServer, forks: ForkServer, tmp_path: Path
) -> None:
    asked = Questions(made.engine, forks.start)
    first, second = await asyncio.gather(asked.ask(die), asked.ask(parent), return_exceptions=True)
    assert isinstance(first, NoService) and first.code == "answer_failed" and second == forks.pid
    assert await asked.ask(partial(die_once, tmp_path / "died")) == "answered"


async def test_a_child_has_a_budget(made: InprocessServer, forks: ForkServer) -> None:
    asked = Questions(made.engine, forks.start)
    with pytest.raises(NoService) as refused:
        await asked.ask(never_end, budget_s=0.05)
    assert refused.value.code == "too_busy"
    assert await asked.ask(parent) == forks.pid


async def test_a_child_that_is_stuck_in_c_ends_by_its_limit(
    made: InprocessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "CPU_S_MAX", 1)
    monkeypatch.setattr(questions, "NICENESS", 0)  # or a second of CPU is a minute on a busy machine
    forks = ForkServer()
    asked = Questions(made.engine, forks.start)
    try:
        with pytest.raises(NoService) as refused:
            await asked.ask(stay_in_c, budget_s=0.05)
        assert refused.value.code == "answer_failed"
        assert await asked.ask(parent) == forks.pid
    finally:
        forks.close()


async def test_without_a_fork_server_the_server_itself_forks(made: InprocessServer, forks: ForkServer) -> None:
    os.kill(forks.pid, signal.SIGKILL)
    os.waitid(os.P_PID, forks.pid, os.WEXITED | os.WNOWAIT)
    assert await Questions(made.engine, forks.start).ask(parent) == os.getpid()


def test_the_fork_server_ends_with_its_server() -> None:
    forks = ForkServer()
    forks._control.close()
    assert os.waitstatus_to_exitcode(os.waitpid(forks.pid, 0)[1]) == 0
