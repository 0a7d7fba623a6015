"""roost join-tokens and roost agent --join, as they are typed; and a server that is spoken to over TLS."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roost.agent.connection.identity import NodeIdentity
from roost.cli.start.local_nodes import pids_of, running_keeper
from tests.cli.conftest import Type
from tests.cli.serving import DEADLINE_S, ROOST, Served, serving, wait_until

# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_listed_and_revoked(typed: Type) -> None:
    made = typed("join-tokens", "create", "--pool", "ci", "--uses", "unlimited", "--expires", "2h")
    assert made.exit_code == 0
    assert made.stdout.startswith("roost-join-") and made.stdout.count("\n") == 1
    (row,) = [line.split() for line in typed("join-tokens").stdout.splitlines()[1:] if " ci " in line]
    assert row[1:3] == ["ci", "unlimited"]
    listed = json.loads(typed("join-tokens", "list", "--json").stdout)
    assert [item["id"] for item in listed if item["pool"] == "ci"] == [row[0]]
    assert typed("join-tokens", "revoke", row[0]).exit_code == 0
    assert typed("join-tokens", "revoke", row[0]).exit_code == 1
    assert row[0] not in typed("join-tokens").stdout


def test_a_token_for_programs(typed: Type) -> None:
    made = json.loads(typed("join-tokens", "create", "--json").stdout)
    assert made["about"]["uses"] == 1 and made["token"].startswith("roost-join-")
    assert typed("join-tokens", "revoke", made["about"]["id"]).exit_code == 0


@pytest.mark.parametrize("message", [("--uses", "some"), ("--uses", "0"), ("--expires", "soon"), ("--pool", "a/b")])
def test_what_makes_no_sense_is_wrong_usage(typed: Type, message: tuple[str, str]) -> None:
    assert typed("join-tokens", "create", *message).exit_code == 2


# --- a server over TLS, and a machine that joins it -------------------------------------------------------------------


@contextmanager
def node(home: Path, *message: str, env: dict[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A machine's agent, until the end of the block."""
    with open(f"{home}.out", "ab") as output:
        argv = [*ROOST, "agent", "--name", "n1", "--dir", str(home), *message]
        process = subprocess.Popen(argv, stderr=output, env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Served]:
    home = tmp_path / "server"
    home.mkdir()
    with serving(home, "server", "--tls", "on") as served:
        yield served


def test_a_machine_joins_over_tls_and_keeps_its_identity(secured: Served, tmp_path: Path) -> None:
    assert 'url = "https://' in secured.config.read_text() and "BEGIN CERTIFICATE" in secured.config.read_text()
    home = tmp_path / "node"
    token = secured.roost("join-tokens", "create").stdout.decode().strip()
    with secured.client() as client:
        with node(home, env={"ROOST_JOIN": token}) as process:
            wait_until(lambda: [node.status for node in client.nodes.list()] == ["ready"])
            assert secured.roost("run", "--", "echo", "hello").stdout == b"hello\n"  # its output is a stream over TLS
            joined = NodeIdentity(str(home)).read()
            assert token.encode() not in b"".join(_environments(home, process.pid))
            (agent,) = [pid for pid in pids_of(home) if pid != running_keeper(home) and _is_agent(pid)]
            os.kill(agent, signal.SIGKILL)
            wait_until(lambda: (tmp_path / "node.out").read_text().count("connected to") >= 2)
            wait_until(lambda: client.nodes.get("n1").status == "ready")
            assert NodeIdentity(str(home)).read() == joined
        wait_until(lambda: client.nodes.get("n1").status == "stopped")
        with node(home, "--join", token):  # used up, and no longer needed
            wait_until(lambda: client.nodes.get("n1").status == "ready")
            assert NodeIdentity(str(home)).read() == joined


def test_a_removed_node_has_to_join_again(secured: Served, tmp_path: Path) -> None:
    home = tmp_path / "node"
    with secured.client() as client:
        with node(home, "--join", client.join_tokens.create().token):
            wait_until(lambda: [node.status for node in client.nodes.list()] == ["ready"])
        wait_until(lambda: client.nodes.get("n1").status == "stopped")
        assert secured.roost("nodes", "remove", "n1").returncode == 0
        with node(home):
            wait_until(lambda: "does not take our certificate" in (tmp_path / "node.out").read_text())
            assert client.nodes.list() == []


def test_a_token_that_is_used_up_is_reported(secured: Served, tmp_path: Path) -> None:
    token = secured.roost("join-tokens", "create").stdout.decode().strip()
    (tmp_path / "token").write_text(token)
    with secured.client() as client:
        with node(tmp_path / "node", "--join", f"@{tmp_path / 'token'}"):
            wait_until(lambda: [node.status for node in client.nodes.list()] == ["ready"])
            arguments = ["agent", "--join", token, "--name", "n2", "--dir", str(tmp_path / "other")]
            done = subprocess.run([*ROOST, *arguments], capture_output=True, timeout=DEADLINE_S)
            assert done.returncode == 1
            assert b"not joined: this join token is not known here" in done.stderr


def test_a_client_that_does_not_know_the_ca_gets_the_next_step(secured: Served) -> None:
    url = secured.config.read_text().split('"')[1]
    environment = {**os.environ, "ROOST_URL": url, "ROOST_TOKEN": (secured.home / "admin.token").read_text().strip()}
    environment.pop("ROOST_CONFIG", None)
    done = subprocess.run([*ROOST, "status"], env=environment, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 255
    assert b"not to be trusted" in done.stderr and b"ROOST_CA" in done.stderr
    environment["ROOST_CA"] = str(secured.home / "ca.pem")
    assert subprocess.run([*ROOST, "status"], env=environment, timeout=DEADLINE_S).returncode == 0


def test_a_server_without_the_key_of_its_ca_does_not_start(tmp_path: Path) -> None:
    with serving(tmp_path, "server"):
        pass
    (tmp_path / "seal.key").write_text("00" * 32)
    argv = [*ROOST, "server", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    done = subprocess.run(argv, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert b"the CA's key cannot be opened" in done.stderr and b"Traceback" not in done.stderr
    with serving(tmp_path, "server", "--new-authority") as served:
        assert served.roost("status").returncode == 0


def _environments(home: Path, keeper: int) -> list[bytes]:
    return [Path(f"/proc/{pid}/environ").read_bytes() for pid in [keeper, *pids_of(home)]]


def _is_agent(pid: int) -> bool:
    return b"roost.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
