"""roost vm: the table, a command with and without --wait, and how failures are shown."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from roost.cli import root
from roost.cli.common.exit_codes import FAILED, USAGE
from roost.cli.work.vm import _standing, format_power
from roost.model.protocol import PowerOrder, Report, Stop
from roost.schema.work import PowerView
from tests.server.inprocess_server import TOKEN, Played, inprocess_server, over_http

VM: dict[str, Any] = {
    "command": "", "kind": "vm", "vm": {"image": "debian"}, "resources": {"cpu": 1, "memory": "128MiB"},
}  # fmt: skip
Typed = Callable[..., Coroutine[Any, Any, Result]]


@asynccontextmanager
async def machine() -> AsyncIterator[tuple[Typed, Played]]:
    """A server with the virtual machine `db`, which runs on a node that is played by hand."""
    async with inprocess_server() as made, over_http(made) as http:
        env = {"ROOST_URL": str(http.base_url), "ROOST_TOKEN": TOKEN, "ROOST_PROJECT": None}

        async def typed(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner(env=env).invoke, root, arguments, catch_exceptions=False)

        agent = await made.agent(drivers=("qemu",), vm=("image/debian",))
        await made.submit("db", **VM)
        await agent.says(Report(agent.orders()[0].token, "running", power="running"))
        yield typed, agent


async def test_a_machine_is_stopped_and_listed() -> None:
    async with machine() as (typed, agent):
        found = await typed("vm", "stop", "db", "--grace", "5s")
        assert (found.exit_code, found.stdout) == (0, "")
        assert found.stderr == "roost: db.0 is running; stop requested, `roost vm` shows when it is done\n"
        (order,) = agent.orders(PowerOrder)
        assert order.grace_ms == 5_000
        header, row = (await typed("vm")).stdout.splitlines()
        assert header.split() == ["VM", "STATE", "POWER", "NODE", "CPU", "MEMORY", "SINCE"]
        assert row.startswith("db.0  running  running, stop pending  n1    1    128MiB")
        await agent.says(Report(order.token, "running", power="stopped", power_serial=order.serial))
        found = await typed("vm", "stop", "db.0")
        assert found.stderr == "roost: db.0 is stopped\n"
        assert len(agent.orders(PowerOrder)) == 1
        assert (await typed("vm", "list", "--power", "running")).stdout == ""
        shown = (await typed("show", "db")).stdout
        assert "Power:      stopped for" in shown and "by root" in shown


async def test_a_command_waits_until_it_is_done_or_has_failed() -> None:
    async with machine() as (typed, agent):
        waiting = asyncio.create_task(typed("vm", "reboot", "db", "--wait"))
        await agent.server.until(lambda: agent.orders(PowerOrder))
        (order,) = agent.orders(PowerOrder)
        await agent.says(Report(order.token, "running", power="running", power_serial=order.serial))
        found = await waiting
        assert (found.exit_code, found.stderr) == (0, "roost: db.0 is running\n")
        waiting = asyncio.create_task(typed("vm", "pause", "db", "--wait", "--json"))
        await agent.server.until(lambda: len(agent.orders(PowerOrder)) == 2)
        last = agent.orders(PowerOrder)[-1]
        report = Report(last.token, "running", power="running", power_serial=last.serial, power_problem="no answer")
        await agent.says(report)
        found = await waiting
        assert found.exit_code == FAILED
        assert '"problem": "no answer"' in found.stdout
        assert (await typed("vm", "reset", "db", "--wait", "--timeout", "10ms")).exit_code == 124


async def test_a_machine_that_begins_anew_with_another_size_is_waited_for() -> None:
    async with machine() as (typed, agent):
        await agent.server.client.post(
            "/v1/workloads?same_ok=true",
            json=VM | {"name": "db", "resources": {"cpu": 2, "memory": "128MiB"}},
        )
        waiting = asyncio.create_task(typed("vm", "reboot", "db", "--wait"))
        await agent.server.until(lambda: agent.orders(Stop))
        await agent.stops(agent.orders(Stop)[0])
        await agent.server.until(lambda: len(agent.orders()) == 2)
        await agent.says(Report(agent.orders()[1].token, "running", power="running"))
        found = await waiting
        assert (found.exit_code, found.stderr) == (0, "roost: db.0 is running\n")
        assert "2    128MiB" in (await typed("vm")).stdout


async def test_what_cannot_be_done_is_refused() -> None:
    async with machine() as (typed, agent):
        found = await typed("vm", "resume", "nobody")
        assert (found.exit_code, found.stderr) == (FAILED, "roost: there is no workload default/nobody\n")
        assert (await typed("vm", "stop", "db", "--timeout", "1s")).exit_code == USAGE
        assert (await typed("vm", "pause", "db", "--grace", "1s")).exit_code == USAGE
        assert agent.orders(PowerOrder) == []


def power(**fields: Any) -> PowerView:
    return PowerView(**{"state": "stopped", "wanted": "stopped"} | fields)


def test_power_in_a_table_and_in_a_line() -> None:
    assert _standing(None) == "-"
    assert (_standing(power()), format_power(power())) == ("stopped", "stopped")
    pending = power(pending=True, action="start", by="ann")
    assert _standing(pending) == "stopped, start pending"
    assert format_power(pending) == "stopped; start requested - by ann, pending"
    failed = power(action="start", problem="no answer")
    assert _standing(failed) == "stopped, start failed"
    assert format_power(failed) == "stopped; start requested - failed: no answer"
