"""roost agent and roost server apart: another machine joins, works and leaves."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from roost.agent.host.fingerprint import user_name
from roost.cli.start.local_nodes import pids_of, running_keeper
from tests.cli.serving import DEADLINE_S, ROOST, serving, wait_until

FACTS = (
    "--name gpu-1 --zone a --rack r7 --pool mine --cpu 3 --memory 1GiB --disk 2GiB --resource licence=4 "
    "--label disk=nvme --gpu 2 --gpu-model T4 --taint old:soft"
).split()


def test_a_node_joins_works_and_leaves(tmp_path: Path) -> None:
    home, node = tmp_path / "server", tmp_path / "node"
    home.mkdir()
    with serving(home, "server") as served, served.client() as client:
        token = served.roost("join-tokens", "create", "--pool", "ci").stdout.decode().strip()
        arguments = ["agent", "--join", "-"]
        with open(tmp_path / "agent.out", "wb") as output:
            agent = subprocess.Popen(
                [*ROOST, *arguments, "--dir", str(node), *FACTS], stderr=output, stdin=subprocess.PIPE
            )
        assert agent.stdin is not None
        agent.stdin.write(token.encode())
        agent.stdin.close()
        try:
            wait_until(lambda: [node.status for node in client.nodes.list()] == ["ready"])
            assert agent.pid == running_keeper(node)  # the command became the keeper
            wait_until(lambda: "connected to 127.0.0.1:" in (tmp_path / "agent.out").read_text())
            output_text = (tmp_path / "agent.out").read_text()
            assert f"Runs have the user {user_name()} and are not isolated (--isolation none)." in output_text
            assert "process list" not in output_text
            existing = client.nodes.get("gpu-1")
            assert existing.user == user_name()
            assert (existing.zone, existing.rack, existing.pool, existing.labels["disk"]) == ("a", "r7", "ci", "nvme")
            totals = {name: room.total for name, room in existing.resources.items()}
            assert totals == {"cpu_milli": 3_000, "memory": 1 << 30, "disk": 2 << 30, "licence": 4, "gpu_milli": 2_000}
            assert (existing.gpu_model, existing.taints, existing.devices) == ("T4", ["old:soft"], [1_000, 1_000])
            done = served.roost(
                "run", "--pool", "ci", "--require", "labels.disk == 'nvme'", "--", "sh", "-c", "echo $ROOST_NODE"
            )
            assert (done.returncode, done.stdout) == (0, b"gpu-1\n")
        finally:
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(DEADLINE_S) == 0
        assert pids_of(node) == []
        wait_until(lambda: client.nodes.get("gpu-1").status == "stopped")
        assert served.roost("nodes", "remove", "gpu-1").returncode == 0
        assert client.nodes.list() == []


def test_a_machine_that_has_not_joined_gets_the_next_step(tmp_path: Path) -> None:
    done = subprocess.run([*ROOST, "agent", "--dir", str(tmp_path / "node")], capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert b"has not joined" in done.stderr and b"roost join-tokens create" in done.stderr
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize("token", ["nonsense", "roost-join-xyz", "roost-join-W10", "@/nowhere/token"])
def test_what_is_no_join_token_is_reported_at_once(tmp_path: Path, token: str) -> None:
    arguments = ["agent", "--join", token, "--dir", str(tmp_path / "node")]
    done = subprocess.run([*ROOST, *arguments], capture_output=True, timeout=DEADLINE_S)
    assert done.returncode in (1, 2)
    assert b"join" in done.stderr
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    "message", [("--cpu", "many"), ("--name", "a b"), ("--label", "x"), ("--taint", "=x"), ("--gpu", "no")]
)
def test_what_an_agent_cannot_be_is_reported_at_once(tmp_path: Path, message: tuple[str, str]) -> None:
    given = ["agent", "--join", "roost-join-any", "--dir", str(tmp_path / "node")]
    done = subprocess.run([*ROOST, *given, *message], capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert message[0].encode() in done.stderr
    assert not (tmp_path / "node").exists()


def test_a_join_token_on_the_command_line_is_warned_about(tmp_path: Path) -> None:
    given = ["agent", "--dir", str(tmp_path / "node"), "--join"]
    for token, is_seen in (("roost-join-xyz", True), ("@/nowhere", False)):
        done = subprocess.run([*ROOST, *given, token], capture_output=True, timeout=DEADLINE_S)
        assert (b"can read the join token in the process list" in done.stderr) == is_seen
    done = subprocess.run(
        [*ROOST, *given[:-1]], capture_output=True, timeout=DEADLINE_S, env={**os.environ, "ROOST_JOIN": "roost-join-x"}
    )
    assert b"process list" not in done.stderr


def test_a_server_says_what_is_wrong_with_its_settings(tmp_path: Path) -> None:
    for arguments in (("--strategy", "psychic"), ("--lease", "5"), ("--seed", "-1")):
        done = subprocess.run([*ROOST, "server", "--data", str(tmp_path), *arguments], capture_output=True)
        assert done.returncode == 2
        assert arguments[0].removeprefix("--").encode() in done.stderr
