"""Death and silence: agents that die, hang or stop, leases that end, keepers that are asked to end or are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import KEEPER, Client, KeeperHarness, alive, children, marked, now_ms, until

# Writes down its pid, connects (the test may take its place), and sleeps: an agent as far as the keeper can tell.
AGENT = (
    sys.executable,
    "-c",
    "import os, time; open(os.environ['AGENTS'], 'a').write(f'{os.getpid()}\\n'); time.sleep(3600)",
)


class RestartHarness(KeeperHarness):
    """A harness whose agent records when it was started."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path)
        self.starts_file = tmp_path / "agents"

    def start_keeper(self, *options: str) -> subprocess.Popen[bytes]:
        keeper = self.keeper(*options, agent=AGENT, env={**os.environ, "AGENTS": str(self.starts_file)})
        self.agents(1)
        return keeper

    def agents(self, count: int) -> list[int]:
        """The pids of the agents so far, when there were so many."""
        return until(lambda: pids if len(pids := self.lines()) >= count else [], f"{count} agents")

    def lines(self) -> list[int]:
        return [int(line) for line in self.starts_file.read_text().split()] if self.starts_file.exists() else []


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RestartHarness]:
    harness = RestartHarness(tmp_path)
    yield harness
    harness.close()


def lease(client: Client, ms: int) -> int:
    until_ms = now_ms() + ms
    client.send({"do": "lease", "until": until_ms})
    return until_ms


def test_an_agent_that_is_killed_stops_nothing_and_its_successor_gets_everything(harness: RestartHarness) -> None:
    harness.start_keeper()
    (agent,) = harness.agents(1)
    client = harness.client()
    wait = "echo $$; while [ ! -e go ]; do sleep 0.01; done; exit 42"
    client.send(harness.order("a", wait, note="mine"), harness.order("b", "exit 3"), {"do": "lease", "until": 12345})
    pid = client.next("started", "a")["pid"]
    client.ended("b")
    os.kill(agent, signal.SIGKILL)
    client.socket.close()
    assert len(harness.agents(2)) == 2

    successor = harness.client()
    assert successor.runs["lease"] == 12345
    a, b = successor.runs["runs"]
    assert (a["id"], a["state"], a["note"], a["pid"], a["step"], a["ended"]) == ("a", "running", "mine", pid, 0, None)
    assert (b["id"], b["state"], b["ended"]["code"]) == ("b", "ended", 3)
    successor.socket.close()
    (harness.work / "a" / "go").touch()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the run to end, and the keeper to notice, without an agent")

    third = harness.client()
    a, b = third.runs["runs"]
    assert (a["state"], a["ended"]["cause"], a["ended"]["code"]) == ("ended", "exited", 42)
    assert third.others() == []


def test_an_agent_that_keeps_dying_is_started_ever_more_slowly(harness: RestartHarness) -> None:
    script = "date +%s%N >> $AGENTS; exit 1"
    harness.keeper(agent=("/bin/sh", "-c", script), env={**os.environ, "AGENTS": str(harness.starts_file)})
    times = harness.agents(5)
    gaps = [(later - earlier) / 1e6 for earlier, later in zip(times, times[1:], strict=False)]
    assert gaps[1] >= 50 and gaps[2] >= 100 and gaps[3] >= 200
    assert "the agent has ended (exit code 1)" in harness.errors.read_text()


@pytest.mark.serial
def test_a_silent_agent_is_replaced_and_one_that_speaks_is_not(harness: RestartHarness) -> None:
    harness.start_keeper("--agent-silence-ms", "1000")
    first, second = harness.agents(2)[:2]
    assert not alive(first)
    client = harness.client()
    for _ in range(15):
        client.send({"do": "ping"}, harness.order("tick", "exec sleep 0.1"))
        client.ended("tick")
        client.send({"do": "forget", "id": "tick"})
    assert harness.lines() == [first, second] and alive(second)
    os.kill(second, signal.SIGSTOP)
    assert harness.agents(3)[2] != second
    assert not alive(second)


def test_the_end_of_the_lease_ends_what_is_leased_even_when_the_agent_is_stopped(harness: RestartHarness) -> None:
    harness.start_keeper()
    (agent,) = harness.agents(1)
    client = harness.client()
    until_ms = lease(client, 400)
    deaf = "trap '' TERM; echo $$; sh -c 'echo $$; sleep 100; true'; true"
    client.send(harness.order("a", deaf, leased=True), harness.order("b", "exec sleep 100"))
    pids = harness.pids("a", 2)
    other = client.next("started", "b")["pid"]
    os.kill(agent, signal.SIGSTOP)
    ended = client.ended("a")
    assert (ended["cause"], ended["signal"]) == ("lease", signal.SIGKILL)
    assert until_ms <= ended["at"] < until_ms + 5_000
    assert [pid for pid in pids if alive(pid)] == []
    assert alive(other)
    client.send({"do": "stop", "id": "b"})
    assert client.ended("b")["cause"] == "stopped"


def test_the_end_of_the_lease_is_kept_when_there_is_no_agent_at_all(harness: RestartHarness) -> None:
    harness.start_keeper()
    client = harness.client()
    lease(client, 300)
    client.send(harness.order("a", "exec sleep 100", leased=True))
    pid = client.next("started")["pid"]
    client.socket.close()
    until(lambda: not alive(pid), "the leased run to end")
    until(lambda: (harness.client().runs["runs"][0]["ended"] or {}).get("cause") == "lease", "the end to be known")


def test_a_lease_that_is_renewed_ends_nothing(harness: RestartHarness) -> None:
    harness.start_keeper()
    client = harness.client()
    lease(client, 2_000)
    client.send(harness.order("a", "sleep 2.6; exit 6", leased=True))
    pid = client.next("started")["pid"]
    while alive(pid):
        lease(client, 2_000)
        client.send(harness.order("tick", "exec sleep 0.05"))
        client.ended("tick")
        client.send({"do": "forget", "id": "tick"})
    assert (ended := client.ended("a"))["cause"] == "exited" and ended["code"] == 6


def test_a_leased_run_without_a_lease_is_not_started(harness: RestartHarness) -> None:
    harness.start_keeper()
    client = harness.client()
    client.send(harness.order("never", "echo x", leased=True))
    assert client.ended("never")["cause"] == "lease"
    client.send(harness.order("late", "echo x", leased=True, until=now_ms() - 1))
    assert (late := client.ended("late"))["cause"] == "lease" and late["code"] is late["signal"] is None
    client.send(harness.order("good", "exit 6", leased=True, until=now_ms() + 60_000))
    assert client.ended("good")["code"] == 6
    assert [event["id"] for event in client.others()] == ["good"]
    assert sorted(path.name for path in harness.work.iterdir()) == ["good", "good.log"]


def test_a_lease_that_is_taken_back_ends_what_is_leased_at_once(harness: RestartHarness) -> None:
    harness.start_keeper()
    client = harness.client()
    lease(client, 60_000)
    client.send(harness.order("a", "trap '' TERM; echo $$; while :; do sleep 1; done", leased=True))
    harness.pids("a", 1)
    client.send({"do": "stop", "id": "a", "grace_ms": 60_000, "why": "drained"}, {"do": "lease", "until": 0})
    ended = client.ended("a")
    assert (ended["cause"], ended["why"], ended["signal"]) == ("stopped", "drained", signal.SIGKILL)


def test_a_keeper_that_is_killed_leaves_nothing_to_the_next_one(harness: RestartHarness) -> None:
    keeper = harness.start_keeper()
    client = harness.client()
    script = "setsid sh -c 'echo $$; exec sleep 100' & echo $$; exec sleep 100"
    client.send(harness.order("a", script))
    left = [*harness.pids("a", 2), *harness.agents(1)]
    keeper.kill()
    keeper.wait()
    assert [pid for pid in left if alive(pid)] == left
    harness.start_keeper()
    assert [pid for pid in left if alive(pid)] == []
    assert harness.client().runs["runs"] == []
    assert "3 processes of an earlier keeper were killed" in harness.errors.read_text()


def test_there_is_one_keeper_for_a_directory(harness: RestartHarness) -> None:
    first = harness.keeper()
    second = subprocess.run(
        [sys.executable, "-I", "-S", KEEPER, "--dir", harness.dir, "--", "true"], capture_output=True
    )
    assert second.returncode == 2
    assert f"another keeper (pid {first.pid}) holds {harness.dir}".encode() in second.stderr
    assert harness.client().runs["runs"] == []


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_a_keeper_that_is_asked_to_end_stops_everything_and_tells(harness: RestartHarness, how: str) -> None:
    keeper = harness.start_keeper("--grace-ms", "3000")
    (agent,) = harness.agents(1)
    client = harness.client()
    polite = "trap 'exit 9' TERM; echo $$; while :; do sleep 0.01; done"
    client.send(
        harness.order("polite", polite), harness.order("deaf", "trap '' TERM; echo $$; while :; do sleep 1; done")
    )
    pids = [*harness.pids("polite", 1), *harness.pids("deaf", 1)]
    keeper.send_signal(getattr(signal, how))
    ended = client.ended("polite")
    assert (ended["cause"], ended["code"], ended["why"]) == ("stopped", 9, "shutdown")
    client.send(harness.order("late", "true"))
    assert client.next("refused", "late")["error"] == "the keeper is shutting down"
    assert client.ended("deaf")["signal"] == signal.SIGKILL
    assert keeper.wait(timeout=20) == 0
    assert [pid for pid in (*pids, agent) if alive(pid)] == []
    assert sorted(path.name for path in harness.dir.iterdir()) == ["keeper.lock", "spare"]


def test_asked_twice_there_is_no_more_grace(harness: RestartHarness) -> None:
    keeper = harness.start_keeper("--grace-ms", "60000")
    client = harness.client()
    client.send(
        harness.order("deaf", "trap '' TERM; echo $$; while :; do sleep 1; done"), harness.order("a", "exec sleep 100")
    )
    harness.pids("deaf", 1)
    keeper.terminate()
    assert client.ended("a")["signal"] == signal.SIGTERM
    keeper.terminate()
    assert client.ended("deaf")["signal"] == signal.SIGKILL
    assert keeper.wait(timeout=20) == 0


def test_an_agent_that_does_not_end_is_killed(harness: RestartHarness) -> None:
    deaf = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    keeper = harness.keeper("--agent-silence-ms", "3600000", agent=deaf)
    client = harness.client()
    client.send(harness.order("a", "setsid sh -c 'echo $$; exec sleep 100' & echo $$; exec sleep 100"))
    harness.pids("a", 2)
    keeper.terminate()
    assert keeper.wait(timeout=20) == 0
    until(lambda: not marked(harness.dir), "everything to be gone")


def test_a_directory_may_have_a_long_name(tmp_path: Path) -> None:
    harness = KeeperHarness(tmp_path, tmp_path / "/".join(["a-directory-with-a-name-of-some-length"] * 8))
    try:
        harness.keeper()
        client = harness.client()
        client.send(harness.order("a", "exit 4"))
        assert client.ended("a")["code"] == 4
    finally:
        harness.close()


def test_the_keeper_is_small_and_uses_the_standard_library_only(harness: RestartHarness) -> None:
    keeper = harness.keeper()
    client = harness.client()
    client.send(*(harness.order(f"r{number}", "true") for number in range(50)))
    for number in range(50):
        client.ended(f"r{number}")
    status = Path(f"/proc/{keeper.pid}/status").read_text()
    assert int(status.split("VmHWM:")[1].split()[0]) < 15_000
    assert int(status.split("Threads:")[1].split()[0]) <= 2, "and one that moves it between cgroups now and then"
    probe = "import sys; sys.path.append(sys.argv[1]); import roost.keeper.loop; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-I", "-S", "-c", probe, KEEPER.parents[2]], capture_output=True, text=True)
    foreign = {name.split(".")[0] for name in found.stdout.split()} - sys.stdlib_module_names - {"__main__", "roost"}
    assert foreign == set()
    assert not {"asyncio", "logging", "typing", "threading"} & set(found.stdout.split())
    assert children(keeper.pid) != []
