"""The agent as a child: one that is slow to start gets more time, one that hangs later does not."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.keeper.agent_process import START_MS_MAX, AgentProcess

SILENCE_MS = 10_000


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(["sleep", "600"], str(tmp_path), str(tmp_path / "socket"), "", SILENCE_MS)
    yield made
    if made.pid:
        made.signal(signal.SIGKILL)
        os.waitpid(made.pid, 0)
    os.close(made.cwd_fd)


def start(agent: AgentProcess, now: int) -> None:
    agent.start_at = now
    home = os.open(".", os.O_RDONLY)
    agent.tick(now, home)
    os.close(home)
    assert agent.pid and agent.started_at == now


def killed_after(agent: AgentProcess, now: int) -> int:
    """How long it may be silent from now on. It is killed then, and waited for."""
    until = agent.next_at()
    agent.tick(until - 1, -1)
    assert not agent.killed_at
    agent.tick(until, -1)
    assert agent.killed_at == until
    _, status = os.waitpid(agent.pid, 0)
    agent.ended(status, until)
    return until - now


def test_an_agent_that_is_not_heard_has_twice_as_long_the_next_time(agent: AgentProcess) -> None:
    given = []
    for now in range(0, 8_000_000, 1_000_000):
        start(agent, now)
        given.append(killed_after(agent, now))
    assert given[:5] == [SILENCE_MS << turn for turn in range(5)]
    assert given[-1] == START_MS_MAX


def test_an_agent_that_was_heard_and_hangs_is_killed_as_soon_as_ever(agent: AgentProcess) -> None:
    start(agent, 0)
    killed_after(agent, 0)
    start(agent, 100_000)
    agent.heard_at = 115_000
    assert killed_after(agent, 115_000) == SILENCE_MS
    start(agent, 200_000)
    assert killed_after(agent, 200_000) == SILENCE_MS, "and the next one begins anew"
