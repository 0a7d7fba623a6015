"""Services on the command line: how they stand in one word, and where they are."""

from typing import Any

import pytest

from roost.cli.common.exit_codes import FAILED, USAGE
from roost.cli.work.services import _address_row, _lines, _row
from roost.cli.work.show import format_state, format_update
from roost.schema.rollouts import RolloutView
from roost.schema.services import AddressView, ServiceView
from roost.schema.work import WorkloadView
from tests.cli.conftest import Type


def web(state: str = "running", rollout: RolloutView | None = None, **fields: Any) -> WorkloadView:
    given = {"ready": 10, "looping": 0, "version": 3} | fields
    return WorkloadView(
        project="default", name="web", kind="service", state=state, count=10, counts={}, priority=50, submitted_ms=1,
        rollout=rollout, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (web(), "running"),
        (web(ready=None), "running"),
        (web(ready=9), "running 9/10 ready"),
        (web(rollout=RolloutView(state="rolling", done=4)), "rolling 4/10 to version 3"),
        (web(ready=0, version=1, rollout=RolloutView(state="rolling", done=0)), "running 0/10 ready"),
        (web(rollout=RolloutView(state="waiting", done=1)), "canary 1/10 of version 3"),
        (web(rollout=RolloutView(state="failed"), ready=9), "running 9/10 ready"),
        (web(looping=2, rollout=RolloutView(state="rolling")), "crash loop 2/10"),
        (web("queued", looping=1), "crash loop 1/10"),
        (web("cancelled", looping=1), "cancelled"),
    ],
)
def test_how_a_service_stands(workload: WorkloadView, message: str) -> None:
    assert format_state(workload) == message


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (RolloutView(state="rolling", done=4, failures=2), "rolling, 4 of 10 available, ended 2 times by themselves"),
        (
            RolloutView(state="waiting", done=1),
            "1 of 10 available; the others wait for `roost promote` or `roost rollback`",
        ),
        (RolloutView(state="failed", message="version 3 failed: so"), "failed: version 3 failed: so"),
        (RolloutView(state="done"), "done"),
    ],
)
def test_how_an_update_goes(rollout: RolloutView, message: str) -> None:
    assert format_update(web(rollout=rollout)) == message


def address(index: int, *, ready: bool = True, host: str = "10.0.0.4") -> AddressView:
    return AddressView(index=index, node="n1", host=host, ports={"http": 20_000 + index}, ready=ready)


def test_addresses_in_short_are_those_of_ready_replicas() -> None:
    addresses = [address(0), address(1, ready=False), address(2, host="fe80::1"), address(3), address(4)]
    service = ServiceView(project="web", name="api", count=5, ready=4, version=2, ports=["http"], addresses=addresses)
    assert _row(service) == ("web/api", "4/5", "2", "10.0.0.4:20000, [fe80::1]:20002, 10.0.0.4:20003 and 1 more")
    assert _address_row(service, addresses[1]) == ("web/api.1", "n1", "10.0.0.4", "http 20001", "no", "1")
    assert _lines(service, "")[:2] == ["10.0.0.4:20000", "[fe80::1]:20002"]
    assert _lines(service, "none") == []


def test_what_is_not_there(typed: Type) -> None:
    found = typed("services", "nobody")
    assert (found.exit_code, found.stderr) == (FAILED, "roost: there is no service default/nobody\n")
    assert typed("services", "--plain", "-p", "empty").exit_code == FAILED
    found = typed("services", "-p", "empty")
    assert (found.exit_code, found.stdout) == (0, "") and "there is no service" in found.stderr
    assert typed("services", "--port", "http").exit_code == USAGE


def test_a_pending_service_has_no_addresses_and_says_what_to_ask(typed: Type) -> None:
    document = b"{name: waiting, project: cli, kind: service, command: serve}"
    assert typed("apply", "-f", "-", stdin=document).exit_code == 4  # there is no node
    found = typed("services", "waiting", "-p", "cli")
    assert (found.exit_code, found.stdout) == (0, "") and "`roost why cli/waiting` shows why" in found.stderr
    found = typed("services", "-p", "cli")
    assert found.stdout.splitlines()[1].split() == ["cli/waiting", "0/1", "1", "-"]


def test_a_wait_has_an_end(typed: Type) -> None:
    document = b"{name: never, project: cli, kind: service, command: serve}"
    found = typed("apply", "-f", "-", "--wait", "--timeout", "200ms", stdin=document)
    assert found.exit_code == 124
    assert "0 of 1 available; 1 waiting" in found.stderr
    assert typed("apply", "-f", "-", "--timeout", "1s", stdin=document).exit_code == USAGE
    found = typed("apply", "-f", "-", stdin=document.replace(b"serve", b"other"))
    assert found.stdout.splitlines()[1].split()[:3] == ["cli/never", "version", "2"]
    found = typed("rollback", "cli/never")
    assert (found.exit_code, found.stderr) == (
        0,
        "roost: cli/never: rolled back to version 1 by root, which is version 3 now\n",
    )
    scheduled = b"{name: nightly, project: cli, command: 'true', schedule: '0 3 * * *'}"
    assert typed("apply", "-f", "-", "--wait", stdin=scheduled).exit_code == 0  # it does not wait for the night
