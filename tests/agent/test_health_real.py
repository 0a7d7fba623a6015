"""Health under real conditions: a real keeper, its agent as a process of its own, and a web server that turns bad."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roost.agent.health_probe import CHECK_MARK
from roost.agent.identity import Identity
from roost.agent.keeper_proc import MARK, environment, find
from roost.cli.keepers import agent_argv, keeper_argv
from roost.model.frames import Beat, Report
from roost.server import gateway
from tests.agent.desk import until
from tests.certified import node_bundle
from tests.server.stage import stage

pytestmark = pytest.mark.serial

WEB = """
import http.server, os
class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists(os.environ["ILL"]) else 200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT_WEB"])), Web).serve_forever()
"""


@contextmanager
def node(home: Path, port: int) -> Iterator[int]:
    """A keeper with its agent; the keeper's pid."""
    home.mkdir()
    Identity(str(home)).write(node_bundle("n1"))
    argv = keeper_argv(home, agent_argv("--server", f"127.0.0.1:{port}", "--name", "n1", "--dir", str(home)))
    keeper = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        yield keeper.pid
    finally:
        keeper.terminate()
        keeper.wait(20)


def agent_of(keeper: int) -> int:
    found = subprocess.run(["pgrep", "-P", str(keeper), "-f", "roost.agent"], capture_output=True, text=True)
    return int(found.stdout.split()[0]) if found.stdout.strip() else 0


def checks_of(home: Path) -> list[int]:
    """Commands that look at somebody's health on this node."""
    found = [(int(name), environment(int(name))) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid, environ in found if find(environ, MARK) == str(home) and find(environ, CHECK_MARK) is not None]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """All that the node says."""
    heard: list[Report] = []
    check = gateway.check_beat

    def remember(beat: Beat) -> None:
        heard.extend(beat.reports)
        check(beat)

    monkeypatch.setattr(gateway, "check_beat", remember)
    return heard


async def test_a_web_server_that_turns_bad_is_ended_as_unhealthy(tmp_path: Path, reports: list[Report]) -> None:
    ill = tmp_path / "ill"
    async with stage() as server:
        with node(tmp_path / "n1", server.port):
            await server.submit(
                name="web", kind="service", command=[sys.executable, "-I", "-c", WEB], ports={"web": 0},
                env={"ILL": str(ill)}, restart={"when": "never"}, retries=0,
                health={"http": "/healthz", "port": "web", "interval": "100ms", "timeout": "10s", "start": "60s"},
            )  # fmt: skip
            await until(lambda: reports and reports[-1].ready, "ready")
            assert {report.ready for report in reports[:-1]} == {False}
            (facts,) = [each.facts for each in server.engine.state.nodes.values()]
            assert facts.address == "127.0.0.1"
            ill.touch()
            await until(lambda: reports[-1].state == "ended", "its end")
            last = reports[-1]
            assert (last.cause, last.error, last.signal, last.ready) == (
                "unhealthy", "http /healthz: 503", signal.SIGTERM, False
            )  # fmt: skip


async def test_a_check_that_hangs_is_ended_by_the_next_agent_and_looked_at_anew(
    tmp_path: Path, reports: list[Report]
) -> None:
    home, go = tmp_path / "n1", tmp_path / "go"
    async with stage(lease_ms=30_000) as server:
        with node(home, server.port) as keeper:
            await server.submit(
                name="web", kind="service", command="sleep 300",
                health={"command": f"test -e {go} || sleep 300", "interval": "100ms", "timeout": "60s"},
            )  # fmt: skip
            (first, *_) = await until(lambda: checks_of(home), "the check to hang")
            agent = agent_of(keeper)
            os.kill(agent, signal.SIGKILL)
            await until(lambda: agent_of(keeper) not in (0, agent), "another agent")
            await until(lambda: first not in checks_of(home), "the check that the dead one has left")
            await until(lambda: checks_of(home), "a check of the new one")
            assert not any(report.ready for report in reports)
            assert server.engine.state.instances["default/web.0"].attempt == 1
        assert not checks_of(home), "nothing is left of a node that has ended"
