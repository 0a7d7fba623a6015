"""roost wait --for ready: services whose health check says so, at their present version, or never."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.cli.common.exit_codes import DONE, FAILED, TIMED_OUT, USAGE
from roost.client import Client
from tests.cli.serving import DEADLINE_S, ROOST, Served, up, wait_until


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("ready")) as served:
        yield served


@pytest.fixture(scope="module")
def client(one: Served) -> Iterator[Client]:
    with one.client() as client:
        yield client


def service(client: Client, name: str, flag: Path, command: str = "exec sleep 60", count: int = 2) -> None:
    """A service that is ready as long as a file is there. Its second version fails at its first end, and stays so."""
    health = {"command": f"test -e {flag}", "interval": "100ms"}
    update = {"failures": 1, "rollback": False, "healthy_after": "0s", "max_unavailable": 1}
    document = {
        "name": name, "kind": "service", "count": count, "command": command, "resources": {"cpu": "10m"},
        "health": health, "update": update, "restart": {"pause": "100ms"}, "grace": "1s",
    }  # fmt: skip
    client.workloads.submit(document, same_ok=True)


def waiting(one: Served, *message: str) -> "subprocess.Popen[bytes]":
    argv = [*ROOST, "wait", *message, "--for", "ready", "--timeout", f"{DEADLINE_S:g}s"]
    return subprocess.Popen(argv, env=one.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(waiter: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    output, message = waiter.communicate(timeout=DEADLINE_S)
    return waiter.returncode, output.decode(), message.decode()


def followed(client: Client) -> int:
    """How many follow changes at this moment."""
    page = client._transport.call("GET", "/metrics").body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("roost_watchers ")]
    return int(float(line.split()[1]))


def test_it_waits_until_all_replicas_are_ready_and_not_only_run(one: Served, client: Client, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    service(client, "web", flag)
    assert one.roost("wait", "web", "--for", "running", "--timeout", "20s").returncode == DONE
    late = one.roost("wait", "web", "--for", "ready", "--timeout", "300ms")
    assert (late.returncode, late.stderr) == (TIMED_OUT, b"roost: not ready in time: web\n")
    waiter = waiting(one, "web", "--json")
    wait_until(lambda: followed(client) == 1)
    assert waiter.poll() is None
    flag.touch()
    code, output, message = ended(waiter)
    assert (code, message) == (DONE, "")
    assert [(load["name"], load["ready"]) for load in json.loads(output)] == [("web", 2)]
    assert one.roost("wait", "web", "--for", "ready").returncode == DONE, "it is already"


def test_a_change_that_failed_and_a_service_that_ended_are_not_waited_for(
    one: Served, client: Client, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    service(client, "fails", flag)
    assert ended(waiting(one, "fails"))[0] == DONE
    service(client, "fails", flag, command="exit 3")
    code, _, message = ended(waiting(one, "fails"))
    assert code == FAILED
    assert message.startswith("roost: fails is not ready: version 2 failed: its instances ended 1 time"), message
    flag.unlink()
    service(client, "ends", flag, count=1)
    waiter = waiting(one, "ends")
    wait_until(lambda: followed(client) == 1)
    client.workloads.cancel("default", "ends")
    assert ended(waiter) == (FAILED, "", "roost: ends is not ready: cancelled: cancelled by root\n")
    client.workloads.cancel("default", "fails")


def test_any_of_several_is_enough_and_only_services_become_ready(one: Served, client: Client, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    service(client, "slow", first, count=1)
    service(client, "quick", second, count=1)
    waiter = waiting(one, "slow", "quick", "--any")
    wait_until(lambda: followed(client) == 1)
    second.touch()
    assert ended(waiter) == (DONE, "quick\n", "")
    client.workloads.submit({"name": "job", "command": "true"})
    refused = one.roost("wait", "slow", "job", "--for", "ready")
    assert refused.returncode == USAGE
    assert b"default/job is a job; only a service becomes ready" in refused.stderr
