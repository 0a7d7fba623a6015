"""Updates for real: web servers with a health check, changed, broken and rolled back with the commands a user types."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.cli.common.exit_codes import FAILED, TIMED_OUT, USAGE
from tests.cli.serving import Served, up

# One story over one server, whose nodes take the first ports of their range as another server's nodes would.
pytestmark = pytest.mark.serial

DOCUMENT = (Path(__file__).parent.parent.parent / "examples" / "rolling.yaml").read_text()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("rolling")) as served:
        yield served


def applied(one: Served, old: str = "", new: str = "", *message: str) -> tuple[int, str, str]:
    document = DOCUMENT.replace(old, new) if old else DOCUMENT
    assert document != DOCUMENT or not old
    done = one.roost("apply", "-f", "-", "--wait", *message, stdin=document.encode())
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def reported(one: Served, *message: str) -> Any:
    done = one.roost(*message, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def greetings(one: Served) -> list[str]:
    """What each replica that is ready answers, over its own address."""
    lines = one.roost("services", "web", "--plain").stdout.decode().split()
    return [urllib.request.urlopen(f"http://{line}/", timeout=10).read().decode().strip() for line in lines]


def test_a_service_is_changed_breaks_and_goes_back(one: Served) -> None:
    code, output, progress = applied(one)
    assert code == 0 and "created" in output, progress
    assert progress.splitlines()[-1] == "roost: web: 3 of 3 ready"
    assert greetings(one) == ["hello, this is version 1"] * 3
    assert applied(one)[1].split()[4] == "unchanged"

    code, output, progress = applied(one, "hello", "good morning")
    assert code == 0 and "version 2" in output, progress
    assert "roost: web: 2 of 3 of version 2 available" in progress
    assert progress.splitlines()[-1] == "roost: web: 3 of 3 ready, version 2"
    assert greetings(one) == ["good morning, this is version 2"] * 3
    workload = reported(one, "show", "web")
    assert {(instance["attempt"], instance["version"], instance["ready"]) for instance in workload["instances"]} == {
        (2, 2, True)
    }

    code, output, progress = applied(one, "exec python3", "exit 3; python3")  # it ends at once
    assert code == FAILED and "version 3" in output
    message = "rolled back to version 2: version 3 failed: its instances ended 2 times, the last: exit code 3"
    assert progress.splitlines()[-1] == f"roost: web: {message}"
    assert "going back: " in progress
    back = ["good morning, this is version 2"] * 2 + ["good morning, this is version 4"]  # two had not been touched
    assert sorted(greetings(one)) == back

    done = one.roost("rollback", "web", "--wait")
    assert done.returncode == 0, done.stderr.decode()
    assert (
        done.stderr.decode().splitlines()[0] == "roost: web: rolled back to version 1 by root, which is version 5 now"
    )
    assert greetings(one) == ["hello, this is version 5"] * 3


def test_versions_and_what_each_changed(one: Served) -> None:
    versions = reported(one, "versions", "web")
    assert [version["version"] for version in versions] == [5, 4, 3, 2, 1]
    assert [version["rollout"] and version["rollout"]["state"] for version in versions] == [
        "done",
        "done",
        "failed",
        "done",
        "done",
    ]
    assert [version["instances"] for version in versions] == [3, 0, 0, 0, 0]
    assert not [version for version in versions if "document" in version or "diff" in version]
    text = one.roost("versions", "web", "--diff").stdout.decode()
    assert "-  GREETING: hello\n+  GREETING: good morning\n" in text
    assert one.roost("versions", "web").stdout.decode().splitlines()[1].startswith("5*")
    assert one.roost("versions", "web.1").returncode == USAGE
    assert one.roost("history", "web", "--diff").returncode == USAGE
    done = one.roost("versions", "nobody")
    assert (done.returncode, done.stderr) == (FAILED, b"roost: there is no workload default/nobody\n")
    assert one.roost("rollback", "web", "77").returncode == FAILED
    assert one.roost("rollback", "web.1").returncode == USAGE
    assert b"no canaries that wait" in one.roost("promote", "web").stderr


def test_a_version_that_does_not_answer_goes_back_and_canaries_wait(one: Served) -> None:
    canary = ("max_unavailable: 1,", "max_unavailable: 1, canary: 1,")
    code, _, progress = applied(one, *canary)
    assert code == 0, progress  # nothing but words has changed: without a wait
    document = DOCUMENT.replace(*canary).replace("hello", "hi")
    done = one.roost("apply", "-f", "-", "--wait", stdin=document.encode())
    assert done.returncode == 0
    assert b"1 canary of version 7 available; `roost promote` lets the others follow" in done.stderr
    assert sorted(greetings(one)) == ["hello, this is version 5"] * 2 + ["hi, this is version 7"]
    assert "canary 1/3 of version 7" in one.roost("ps").stdout.decode()
    why = one.roost("why", "web.2").stdout.decode()
    assert "it stays at version 6 until the canaries of version 7 are promoted" in why
    done = one.roost("promote", "web", "--wait", "--timeout", "60s")
    assert done.returncode == 0, done.stderr.decode()
    assert greetings(one) == ["hi, this is version 7"] * 3

    silent = DOCUMENT.replace("/index.html, port", "/nothing-here, port")
    for _ in range(2):  # the second one changes nothing, and waits for the same version
        done = one.roost("apply", "-f", "-", "--wait", "--timeout", "1s", stdin=silent.encode())
        assert done.returncode == TIMED_OUT
    (answer,) = json.loads(one.roost("apply", "-f", "-", "--json", stdin=silent.encode()).stdout)
    assert (answer["result"], answer["version"]) == ("unchanged", 8)
    hasty = silent.replace("deadline: 1m", "deadline: 3s")
    done = one.roost("apply", "-f", "-", "--wait", "--json", stdin=hasty.encode())
    assert done.returncode == FAILED
    (answer,) = json.loads(done.stdout)
    assert (answer["result"], answer["version"], answer["well"]) == ("changed", 9, False)
    assert answer["message"] == (
        "rolled back to version 7: version 9 failed: no instance became available within 3s; "
        "its health check: http /nothing-here: 404"
    )
    assert len(greetings(one)) == 3


def test_where_a_service_is(one: Served) -> None:
    service = reported(one, "services", "web")
    assert (service["count"], service["ready"], len(service["addresses"])) == (3, 3, 3)
    assert [item["name"] for item in reported(one, "services")] == ["web"]
    assert "3/3" in one.roost("services").stdout.decode()
    lines = one.roost("services", "web", "--plain", "--port", "http").stdout.decode().split()
    assert lines == [f"{address['host']}:{address['ports']['http']}" for address in service["addresses"]]
    done = one.roost("services", "web", "--plain", "--port", "none")
    assert (done.returncode, done.stdout) == (FAILED, b"")
    assert one.roost("services", "nobody").returncode == FAILED
    assert one.roost("services", "web", "--port", "http").returncode == USAGE


def test_a_first_version_that_keeps_ending_is_not_waited_for_forever(one: Served) -> None:
    document = "{name: broken, kind: service, command: exit 1, restart: {pause: 200ms}}"
    done = one.roost("apply", "-f", "-", "--wait", stdin=document.encode())
    assert done.returncode == FAILED
    assert b"version 1 failed: its instances ended 3 times, the last: exit code 1" in done.stderr
    assert b"failed: version 1 failed" in one.roost("show", "broken").stdout
    assert one.roost("cancel", "broken").returncode == 0
    done = one.roost("apply", "-f", "-", "--wait", stdin=b"{name: job, command: exit 4}")
    assert done.returncode == FAILED and b"failed" in done.stderr
