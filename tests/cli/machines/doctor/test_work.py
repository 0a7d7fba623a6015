"""roost doctor on the work itself: maintenance, failed, flaky, looping, skipped or not taken, and what to do."""

import json
from typing import Any

import pytest

from roost.cli.common.exit_codes import DONE
from roost.cli.machines.doctor.command import DoctorCheck
from roost.cli.machines.doctor.work import look_at_work
from roost.schema.nodes import NodeView
from tests.cli.conftest import Type
from tests.cli.machines.doctor.test_command import NODE, answering, asked, now_ms, reported, seen, status
from tests.cli.serving import Served

POOL = {"name": "ci", "is_set": True, "strategy": "", "overcommit": {}, "nodes": 1, "ready": 1, "resources": {}}
SERVICE = {"project": "default", "name": "web", "count": 2, "ready": 2}
SCHEDULE = {
    "project": "default", "name": "nightly", "cron": "0 2 * * *", "zone": "UTC", "overlap": "skip", "catch_up": 1,
    "history_limit": 10, "ended": False,
}  # fmt: skip
HOOK = {
    "project": "web", "name": "chat", "url": "https://h.example", "command": False, "events": [], "workload": "",
    "enabled": True, "signed": True, "changed_ms": 1, "changed_by": "root",
}  # fmt: skip


def page(*items: dict[str, Any]) -> dict[str, Any]:
    return {"revision": 1, "items": list(items)}


def ok(**answers: Any) -> list[str]:
    """What is declared well."""
    with answering(**answers) as url:
        lines = json.loads(asked(url, "--json").stdout)["lines"]
    return [line["message"] for line in lines if line["about"] in ("pools", "services", "schedules", "hooks")]


# one real server


def test_a_real_server_tells_of_maintenance_and_of_its_pools(typed: Type, server: Served) -> None:
    assert typed("pools", "set", "ward", "--strategy", "best_fit").exit_code == DONE
    assert typed("pools", "mark", "ward", "failed", "--reason", "flooded").exit_code == DONE
    assert typed("maintenance", "on", "--reason", "new switches").exit_code == DONE
    try:
        result = typed("doctor", "--json")
    finally:
        assert typed("maintenance", "off").exit_code == DONE
        assert typed("pools", "unset", "ward").exit_code == DONE
    assert result.exit_code == DONE, "worth a look, but not broken"
    found = seen(result)
    assert ("warn", "ward has failed: flooded") in found
    (allocated,) = [message for _, message in found if message.startswith("maintenance since ")]
    assert allocated.endswith(": new switches")
    assert not [
        message for _, message in seen(typed("doctor", "--json")) if "maintenance" in message or "ward" in message
    ]


# troubles


def test_maintenance_says_since_when_until_when_and_why() -> None:
    allocated = {"on": True, "reason": "new disks", "since_ms": now_ms() - 7_200_500, "until_ms": now_ms() + 60_000}
    ((level, message),) = reported(status=lambda: status(maintenance=allocated))
    assert level == "warn"
    assert message.startswith("maintenance since 2h ago, until ") and message.endswith(": new disks")


def test_nodes_are_flaky_only_for_a_while() -> None:
    nodes = [NODE, {**NODE, "name": "b", "flaky_until_ms": now_ms() + 60_000}]
    nodes += [{**NODE, "name": "c", "flaky_until_ms": now_ms() - 60_000}]
    assert reported(nodes=page(*nodes)) == [("warn", "flaky, and avoided for a while: b")]


def test_agents_whose_tasks_fail_or_whose_logs_are_stuck_are_named() -> None:
    usage = {"cpu_milli": 0, "memory": 0, "disk": 0, "measured_ms": 1}
    nodes = [
        {**NODE, "usage": usage | {"logs_stuck_ms": 5_000}},
        {**NODE, "name": "b", "usage": usage | {"task_restarts": {"logs": 3, "health": 1}}},
        {**NODE, "name": "c", "usage": usage | {"logs_stuck_ms": 61_000}},
    ]
    assert reported(nodes=page(*nodes)) == [
        ("warn", "restarting a task of their agent: b (health 1 times, logs 3 times)"),
        ("warn", "not sending the logs that they have: c"),
    ]


def test_nodes_that_run_work_as_root_or_enforce_less_are_named() -> None:
    nodes = [NODE, {**NODE, "name": "b", "user": "root"}, {**NODE, "name": "c", "user": "ci", "enforces": ["cpu"]}]
    assert reported(nodes=page(*nodes)) == [
        ("warn", "running work as root, so that a submitter can do anything there: b"),
        ("warn", "not enforcing all limits: c (memory, pids, cleanup)"),
    ]


def test_nodes_that_emulate_processors_are_named_if_they_have_images() -> None:
    offers = (["accel/tcg"], ["accel/tcg", "image/debian"], ["accel/kvm", "accel/tcg", "image/debian"])
    nodes = [{**NODE, "name": name, "vm": vm} for name, vm in zip("abc", offers, strict=True)]
    assert reported(nodes=page(*nodes)) == [("warn", "without KVM, so that virtual machines are slow there: b")]


def test_pools_that_are_not_well_say_why() -> None:
    failed = {**POOL, "status": "failed", "reason": "no node in touch for 5m", "failed_by": "silence"}
    draining = {**POOL, "name": "old", "status": "draining"}
    assert reported(pools=page(POOL | {"name": "fine"}, failed, draining)) == [
        ("warn", "ci has failed: no node in touch for 5m"),
        ("warn", "old is draining"),
    ]


def test_services_that_loop_failed_or_wait_for_a_word_are_named() -> None:
    loops = [{**SERVICE, "name": f"loop-{number}", "looping": 1, "ready": 1} for number in range(6)]
    failed, waits = {**SERVICE, "rollout": "failed"}, {**SERVICE, "project": "db", "name": "x", "rollout": "waiting"}
    fine = {**SERVICE, "name": "fine", "rollout": "done", "version": 3}
    assert reported(services=page(*loops, failed, waits, fine)) == [
        ("warn", "in a crash loop: loop-0, loop-1, loop-2, loop-3, loop-4 and 1 more"),
        ("warn", "the change to a new version failed: web"),
        ("warn", "canaries wait for promotion: db/x"),
    ]


def test_schedules_that_could_not_do_what_they_should_say_what() -> None:
    skipped = "2030-01-01 02:00 UTC was skipped: the run before is not over"
    behind = [{**SCHEDULE, "name": f"s{number}", "message": skipped} for number in range(7)]
    ended = {**SCHEDULE, "name": "over", "ended": True, "message": "asked for"}
    found = reported(schedules=page(*behind, ended, SCHEDULE))
    assert found[:5] == [("warn", f"s{number}: {skipped}") for number in range(5)]
    assert found[5:] == [("warn", "also behind: s5, s6")]


def test_hooks_with_dead_receivers_and_lost_events_are_named() -> None:
    dead = {**HOOK, "waiting": 1_200, "last_error": "no connection: refused"}
    recovered = {**HOOK, "name": "recovered", "last_error": "503"}
    lost = {**HOOK, "project": "*", "name": "audit", "given_up": 3}
    disabled = {**dead, "name": "off", "enabled": False}
    assert reported(hooks=page(dead, recovered, lost, disabled)) == [
        ("warn", "web/chat is not taken: no connection: refused; 1,200 events wait"),
        ("warn", "events were given up or dropped: audit"),
    ]


def test_what_is_well_is_counted_and_what_is_not_there_is_not_mentioned() -> None:
    assert ok() == []
    answers = {"pools": page(POOL), "services": page(SERVICE, {**SERVICE, "ready": 1})}
    assert ok(**answers, schedules=page(SCHEDULE, SCHEDULE), hooks=page(HOOK)) == [
        "the only one is ready",
        "1 of 2 have all their replicas ready",
        "all 2 are on time",
        "the only one is taken",
    ]


def test_what_our_role_does_not_show_is_left_out_and_a_server_that_fails_is_not(typed: Type, server: Served) -> None:
    made = typed("tokens", "create", "looker", "--role", "viewer", "--project", "web")
    assert made.exit_code == DONE, made.output
    with server.client() as root, type(root)(root.url, made.stdout.strip().splitlines()[-1]) as client:
        lines: list[DoctorCheck] = list(look_at_work(client, client.status(), list[NodeView]()))
    assert not [line for line in lines if line.about == "hooks"]
    typed("tokens", "revoke", "looker")


@pytest.mark.parametrize("answer", [b"nonsense", b""])
def test_an_answer_that_makes_no_sense_hides_nothing_else(answer: bytes) -> None:
    found = reported(pools=answer, nodes=page({**NODE, "flaky_until_ms": now_ms() + 60_000}))
    assert found[0] == ("warn", "flaky, and avoided for a while: a")
    assert [level for level, _ in found[1:]] == ["bad"]
