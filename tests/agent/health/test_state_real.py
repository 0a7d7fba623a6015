"""Health under real conditions: a real keeper, its agent as a process of its own, and a web server that turns bad.

Three interpreters have to start before anything is ready, which takes as long as the machine's other load lets it. So
no wait here counts seconds: each ends when it can no longer succeed (`Node.until`), and the lease outlasts any pause.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roost.agent.connection.identity import NodeIdentity
from roost.agent.health.probe import CHECK_MARK
from roost.cli.start.local_nodes import agent_argv, keeper_argv
from roost.keeper.processes import MARK, environment, find
from roost.model.protocol import Beat, Report
from roost.server.agents import gateway
from tests.certified import node_bundle
from tests.server.gateway_server import gateway_server

LEASE_MS = 600_000  # longer than any test may take: a node that is slow is not lost

WEB = """
import http.server, os
class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists(os.environ["ILL"]) else 200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT_WEB"])), Web).serve_forever()
"""


class Node:
    """A keeper with its agent."""

    def __init__(self, keeper: "subprocess.Popen[bytes]") -> None:
        self.keeper = keeper

    def agent(self) -> int:
        """The pid of its agent; 0 while there is none."""
        argv = ["pgrep", "-P", str(self.keeper.pid), "-f", "roost.agent"]
        found = subprocess.run(argv, capture_output=True, text=True)
        return int(found.stdout.split()[0]) if found.stdout.strip() else 0

    async def until(self, holds: Callable[[], Any], what: str, failed: Callable[[], Any] = lambda: None) -> Any:
        """Wait until something holds, however slow the machine is, unless it can no longer happen."""
        while not (found := holds()):
            assert self.keeper.poll() is None, f"the keeper ended before {what}"
            assert not (why := failed()), f"{why} before {what}"
            await asyncio.sleep(0.003)
        return found


@asynccontextmanager
async def node(home: Path, port: int) -> AsyncIterator[Node]:
    """A node as long as the block."""
    home.mkdir()
    NodeIdentity(str(home)).write(node_bundle("n1"))
    argv = keeper_argv(home, agent_argv("--server", f"127.0.0.1:{port}", "--name", "n1", "--dir", str(home)))
    keeper = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        yield Node(keeper)
    finally:
        keeper.terminate()
        # In a thread: the agent's last reports are answered by the server of this very loop.
        await asyncio.to_thread(keeper.wait)


def checks_of(home: Path) -> list[int]:
    """Commands that check the health of a run on this node."""
    found = [(int(name), environment(int(name))) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid, environ in found if find(environ, MARK) == str(home) and find(environ, CHECK_MARK) is not None]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """All that the node says."""
    received: list[Report] = []
    check = gateway.check_beat

    def remember(beat: Beat) -> None:
        received.extend(beat.reports)
        check(beat)

    monkeypatch.setattr(gateway, "check_beat", remember)
    return received


async def test_a_web_server_that_turns_bad_is_ended_as_unhealthy(tmp_path: Path, reports: list[Report]) -> None:
    ill = tmp_path / "ill"

    def ended() -> Report | None:
        return reports[-1] if reports and reports[-1].state == "ended" else None

    async with gateway_server(lease_ms=LEASE_MS) as server, node(tmp_path / "n1", server.port) as n1:
        await server.submit(
            name="web", kind="service", command=[sys.executable, "-I", "-c", WEB], ports={"web": 0},
            env={"ILL": str(ill)}, restart={"when": "never"}, retries=0,
            health={"http": "/healthz", "port": "web", "interval": "100ms", "timeout": "60s", "start": "10m"},
        )  # fmt: skip
        await n1.until(lambda: reports and reports[-1].ready, "it is ready", ended)
        assert not any(report.ready for report in reports[:-1])
        (facts,) = [node.facts for node in server.engine.state.nodes.values()]
        assert facts.address == "127.0.0.1"
        ill.touch()
        last = await n1.until(ended, "its end")
        assert (last.cause, last.error, last.signal, last.ready) == (
            "unhealthy", "503", signal.SIGTERM, False
        )  # fmt: skip


async def test_a_check_that_hangs_is_ended_by_the_next_agent_and_looked_at_anew(
    tmp_path: Path, reports: list[Report]
) -> None:
    home, go = tmp_path / "n1", tmp_path / "go"
    async with gateway_server(lease_ms=LEASE_MS) as server:
        async with node(home, server.port) as n1:
            await server.submit(
                name="web", kind="service", command="sleep 300",
                health={"command": f"test -e {go} || sleep 300", "interval": "100ms", "timeout": "60s"},
            )  # fmt: skip
            (first, *_) = await n1.until(lambda: checks_of(home), "the check hangs")
            agent = n1.agent()
            os.kill(agent, signal.SIGKILL)
            await n1.until(lambda: n1.agent() not in (0, agent), "another agent")
            await n1.until(lambda: first not in checks_of(home), "the end of the check that the dead one has left")
            await n1.until(lambda: checks_of(home), "a check of the new one")
            assert not any(report.ready for report in reports)
            assert server.engine.state.instances["default/web.0"].attempt == 1
        assert not checks_of(home), "nothing is left of a node that has ended"
