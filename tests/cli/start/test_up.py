"""roost up itself: what it starts, keeps, refuses, survives, and leaves behind (nothing)."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from roost_lab.components.ports import free_ports

from roost.cli.common.exit_codes import Failure
from roost.cli.start.local_nodes import pids_of, running_keeper
from roost.cli.start.options import LISTEN, ListenAddress
from roost.cli.start.up import _check_free
from roost.server.app import EXIT_AT_ONCE
from roost.server.config import API_PORT
from tests.cli.serving import DEADLINE_S, ROOST, Served, end_all, serving, up, wait_until

FOUR_PORTS = b"name: web\nkind: service\ncount: 4\ncommand: sleep 60\nresources: {cpu: 10m}\nports: {http: 0}\n"
DEAF = "trap '' TERM; echo deaf; while true; do sleep 0.1; done"
FIRST_TASK_CPU_S_MAX = 3.0  # of server, keeper, agent and client together, start and stop; 1.5 s are usual


def node_dirs(home: Path) -> list[Path]:
    return sorted((home / "nodes").iterdir())


def left_behind(home: Path) -> list[int]:
    """Processes of any node of a directory."""
    return [pid for node in node_dirs(home) for pid in [running_keeper(node), *pids_of(node)] if pid]


def addresses() -> tuple[str, str]:
    one, two = free_ports(2)
    return f"127.0.0.1:{one}", f"127.0.0.1:{two}"


def test_the_port_in_the_help_is_the_servers_own() -> None:
    assert LISTEN == f"127.0.0.1:{API_PORT}"


def test_the_first_task_costs_little(tmp_path: Path) -> None:
    before = _cpu_of_children_s()
    with serving(tmp_path, "up") as served:
        assert served.roost("run", "--", "true").returncode == 0
    assert _cpu_of_children_s() - before < FIRST_TASK_CPU_S_MAX


def _cpu_of_children_s() -> float:
    """CPU time, not wall time: the machine may be shared."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_and_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path, agents=2) as served:
        assert served.roost("run", "-d", "--name", "left", "--", "sleep", "300").returncode == 0
        assert served.roost("wait", "left", "--for", "running", "--timeout", "20s").returncode == 0
        assert len(left_behind(tmp_path)) == 5  # two keepers, two agents, one sleep
        served.process.send_signal(number)
        assert served.process.wait(DEADLINE_S) == 0
        assert left_behind(tmp_path) == []
        assert "Traceback" not in served.output()


def test_tokens_and_certificates_are_secret_and_kept_and_work_runs_again_after_a_restart(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "node-1" / "certificate.pem"
    stored = [tmp_path / name for name in ("admin.token", "ca.pem", "seal.key", "server.pem")] + [node]
    with up(tmp_path) as served:
        assert [path.stat().st_mode & 0o777 for path in (*stored, tmp_path / "client.toml")] == [0o600] * 6
        before = [path.read_text() for path in stored]
        assert served.roost("run", "-d", "--name", "again", "--", "sh", "-c", "sleep $((ROOST_ATTEMPT == 1 ? 300 : 0))")
        assert served.roost("wait", "again", "--for", "running", "--timeout", "20s").returncode == 0
    with up(tmp_path) as served:
        assert [path.read_text() for path in stored] == before
        assert served.roost("wait", "again", "--timeout", "20s").returncode == 0
        with served.client() as client:
            assert client.instances.get("default", "again").attempt == 2


def test_several_nodes_share_the_machine(tmp_path: Path) -> None:
    with up(tmp_path, agents=3) as served, served.client() as client:
        nodes = client.nodes.list()
        assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert sum(node.resources["memory"].total for node in nodes) <= memory
        assert served.roost("run", "--", "echo", "hello").stdout == b"hello\n"


def test_services_of_two_clusters_on_one_machine_get_different_ports(tmp_path: Path) -> None:
    given: list[int] = []
    with ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            served = stack.enter_context(up(tmp_path / name, agents=2))
            document = (
                b"name: web\nkind: service\ncount: 4\ncommand: sleep 60\nresources: {cpu: 10m}\nports: {http: 0}\n"
            )
            assert served.roost("apply", "-f", "-", "--wait", stdin=document).returncode == 0
            (service,) = json.loads(served.roost("services", "--json").stdout)
            given += [address["ports"]["http"] for address in service["addresses"]]
    assert len(set(given)) == len(given) == 8


def test_the_same_directory_twice_is_refused(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        second = subprocess.run([*ROOST, "up", "--data", str(tmp_path), "--listen", "127.0.0.1:0"], capture_output=True)
        assert second.returncode == 1
        assert f"another server (pid {served.process.pid}) uses {tmp_path}".encode() in second.stderr


def test_a_port_in_use_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--listen", "--agents-listen"):
            arguments = ["up", "--data", str(tmp_path), "--listen", "127.0.0.1:0", option, address]
            done = subprocess.run([*ROOST, *arguments], capture_output=True)
            assert done.returncode == 1
            assert f"cannot listen on {address}".encode() in done.stderr
            assert option.encode() in done.stderr
    assert not (tmp_path / "nodes").exists()


def test_wrong_settings_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    arguments = ["up", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--strategy", "psychic"]
    done = subprocess.run([*ROOST, *arguments], capture_output=True)
    assert done.returncode == 1
    assert b"psychic" in done.stderr
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    "options, says",
    [
        (["--vm-image", "one"], b"--vm-image: this is like NAME=VALUE"),
        (["--volume", "data=/absent"], b"--volume: '/absent' is not a directory"),
        (["--docker", "/run/docker.sock"], b"--docker: this is unix:///PATH, auto or none"),
        (["--uid-range", "5"], b"--uid-range: a range is like"),
    ],
)
def test_what_nodes_cannot_offer_is_refused_before_any_is_started(
    tmp_path: Path, options: list[str], says: bytes
) -> None:
    done = subprocess.run([*ROOST, "up", "--data", str(tmp_path), *options], capture_output=True)
    assert done.returncode != 0 and says in done.stderr, done.stderr
    assert not (tmp_path / "nodes").exists()


def test_options_about_runs_reach_each_node(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"x")
    images = ("--vm-image", f"one={os.path.relpath(tmp_path / 'disk')}", "--vm-image", "two=/absent")
    with up(tmp_path, *images, "--docker", "none", "--qemu", "none", agents=2):
        absent = b"not offered until it is there: image two: /absent: No such file or directory"
        assert absent in (tmp_path / "output").read_bytes(), "and the nodes are there"
        for name in ("node-1", "node-2"):
            argv = json.loads((tmp_path / "nodes" / name / "started.json").read_text())
            line = " ".join(argv)
            assert f"--vm-image one={tmp_path}/disk" in line, "wherever the agent is started"
            assert "--docker none" in line and "--qemu none" in line


@pytest.mark.parametrize("who", ["keeper", "agent"])
def test_a_node_whose_keeper_or_agent_is_killed_comes_back(tmp_path: Path, who: str) -> None:
    with up(tmp_path) as served, served.client() as client:
        assert served.roost("run", "-d", "--name", "stays", "--", "sleep", "300").returncode == 0
        client.workloads.wait([("default", "stays")], "running", DEADLINE_S)
        node = tmp_path / "nodes" / "node-1"
        keeper = running_keeper(node)
        (agent,) = [pid for pid in pids_of(node) if b"roost.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(keeper if who == "keeper" else agent, signal.SIGKILL)
        assert served.roost("run", "--", "true").returncode == 0
        client.workloads.wait([("default", "stays")], "running", DEADLINE_S)
        found = client.instances.get("default", "stays")
        if who == "agent":
            assert (running_keeper(node), found.attempt) == (keeper, 1)
        else:
            wait_until(lambda: client.instances.get("default", "stays").attempt == 2)
            assert running_keeper(node) not in (0, keeper)
            assert "the keeper of node-1 has ended by signal 9" in served.output()
            assert "node-1 is started again in 0.5 s" in served.output()
    assert left_behind(tmp_path) == []


@pytest.mark.serial  # with a lease of one second, a node is lost that is slow
def test_a_keeper_that_dies_is_reported_and_its_work_moves(tmp_path: Path) -> None:
    with up(tmp_path, "--lease", "1000", "--no-restart-nodes", agents=2) as served, served.client() as client:
        assert served.roost("run", "-d", "--name", "moves", "--", "sleep", "300").returncode == 0
        client.workloads.wait([("default", "moves")], "running", DEADLINE_S)
        first = client.instances.get("default", "moves").node
        os.kill(running_keeper(tmp_path / "nodes" / first), signal.SIGKILL)
        wait_until(lambda: f"the keeper of {first} has ended by signal 9" in served.output())
        wait_until(lambda: client.instances.get("default", "moves").node not in ("", first))
        assert client.instances.get("default", "moves").attempt == 2
    assert left_behind(tmp_path) == []


def test_work_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    listen, agents = addresses()
    arguments = ("--listen", listen, "--agents-listen", agents, "--lease", "60000")
    with up(tmp_path, *arguments) as served, served.client() as client:
        assert served.roost("run", "-d", "--name", "stays", "--", "sleep", "300").returncode == 0
        client.workloads.wait([("default", "stays")], "running", DEADLINE_S)
        before = left_behind(tmp_path)
        served.process.kill()
        served.process.wait()
        assert left_behind(tmp_path) == before
        with up(tmp_path, *arguments) as again:
            assert again.roost("wait", "stays", "--for", "running", "--timeout", "20s").returncode == 0
            assert client.instances.get("default", "stays").attempt == 1
            assert left_behind(tmp_path) == before
        assert left_behind(tmp_path) == []


def test_nodes_that_are_no_longer_wanted_are_ended(tmp_path: Path) -> None:
    listen, agents = addresses()
    arguments = ("--listen", listen, "--agents-listen", agents)
    with up(tmp_path, *arguments, agents=2) as served:
        served.process.kill()
        served.process.wait()
        assert len(left_behind(tmp_path)) == 4
        with up(tmp_path, *arguments, agents=1):
            assert len(left_behind(tmp_path)) == 2
        assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionError(13, "Permission denied"), "ports below 1024 need root; choose a higher port with --listen"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "is another `roost up` running?"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "this machine has no such address"),
    ],
)
def test_an_address_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch, error: OSError, hint: str) -> None:
    """The kernel's answer is given here: whether a low port is refused depends on the machine."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("socket.socket.bind", refuse)
    with pytest.raises(Failure) as refused:
        _check_free(ListenAddress("127.0.0.1", 80), "--listen")
    assert hint in refused.value.hint


def test_ctrl_c_says_what_is_stopped(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        served.process.send_signal(signal.SIGINT)
        served.process.wait(DEADLINE_S)
        assert "roost: stopping node-1 and what runs there; Ctrl-C ends it at once\n" in served.output()


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGHUP, signal.SIGTERM),  # a terminal is closed
        (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ],
)
def test_signals_at_once_leave_nothing_running(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    with up(tmp_path, agents=2) as served:
        assert served.roost("run", "-d", "--name", "left", "--", "sleep", "300").returncode == 0
        assert served.roost("wait", "left", "--for", "running", "--timeout", "20s").returncode == 0
        for number in numbers:
            served.process.send_signal(number)
        assert served.process.wait(DEADLINE_S) in (0, EXIT_AT_ONCE)
        assert left_behind(tmp_path) == []
        assert "Traceback" not in served.output()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_signals_at_once_while_it_starts_leave_nothing_running(tmp_path: Path, second: signal.Signals) -> None:
    with starting(tmp_path, "--agents", "2") as process:
        wait_until(lambda: running_keeper(tmp_path / "nodes" / "node-1") > 0)
        process.send_signal(signal.SIGINT)
        process.send_signal(second)
        assert process.wait(DEADLINE_S) in (0, EXIT_AT_ONCE)
        assert left_behind(tmp_path) == []
        assert "Traceback" not in (tmp_path / "output").read_text()


def test_a_signal_while_nodes_of_an_earlier_server_end_stops_it(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        run_deaf_work(served)
        served.process.kill()
        served.process.wait()
        with starting(tmp_path, "--agents", "0") as process:
            wait_until(lambda: "stopping node-1" in served.output())
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
            assert left_behind(tmp_path) == []


@contextmanager
def starting(home: Path, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`roost up` from its first moment on."""
    with open(home / "output", "wb") as output:
        argv = [*ROOST, "up", "--data", str(home), "--listen", "127.0.0.1:0", *arguments]
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        end_all(home)


def run_deaf_work(served: Served) -> None:
    """It ignores SIGTERM, so its node ends when its grace is over, or with a second signal."""
    assert served.roost("run", "-d", "--name", "deaf", "--", "sh", "-c", DEAF).returncode == 0
    wait_until(lambda: b"deaf\n" in served.roost("logs", "deaf").stdout)


def test_a_signal_while_nodes_end_kills_their_work_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        run_deaf_work(served)
        served.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping node-1" in served.output())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            served.process.send_signal(number)
        assert served.process.wait(DEADLINE_S) == 0
        assert left_behind(tmp_path) == []
        assert "Traceback" not in served.output()
