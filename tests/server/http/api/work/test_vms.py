"""Virtual machines over the API: their list, their power, and what is refused."""

from typing import Any

from roost.model.protocol import PowerOrder, Report
from tests.security.callers import caller, quiet_server
from tests.server.inprocess_server import InprocessServer, Played, inprocess_server

OFFER = {"drivers": ("qemu",), "vm": ("image/debian",)}
VM: dict[str, Any] = {
    "command": "", "kind": "vm", "vm": {"image": "debian"}, "resources": {"cpu": 1, "memory": "128MiB"},
}  # fmt: skip


async def running(made: InprocessServer, name: str = "db", **fields: Any) -> Played:
    """A machine that runs, and its node."""
    agent = await made.agent(**OFFER)
    await made.submit(name, **VM | fields)
    for run in agent.orders():
        await agent.says(Report(run.token, "running", power="running"))
    return agent


async def test_a_machine_is_stopped_and_started() -> None:
    async with inprocess_server() as made:
        agent = await running(made)
        (vm,) = (await made.post("/v1/vms/default/db/power", {"action": "stop", "grace_ms": 5_000}))["items"]
        (order,) = agent.orders(PowerOrder)
        assert (order.action, order.grace_ms) == ("stop", 5_000)
        assert vm["power"] == {
            "state": "running", "wanted": "stopped", "pending": True, "action": "stop", "by": "root", "problem": "",
            "asked_ms": vm["power"]["asked_ms"], "since_ms": vm["power"]["since_ms"], "serial": order.serial,
        }  # fmt: skip
        await agent.says(Report(order.token, "running", power="stopped", power_serial=order.serial))
        (vm,) = (await made.get("/v1/vms/default/db"))["items"]
        assert (vm["state"], vm["power"]["state"], vm["power"]["pending"]) == ("running", "stopped", False)
        instance = await made.get("/v1/workloads/default/db/instances/0")
        assert instance["power"] == vm["power"]
        assert (instance["message"], instance["reason"]["code"]) == ("vm stopped by root", "power_done")
        await made.post("/v1/vms/default/db/power", {"action": "start", "index": 0})
        assert [order.action for order in agent.orders(PowerOrder)] == ["stop", "start"]


async def test_a_command_is_in_the_audit_log_and_one_that_is_refused_is_not() -> None:
    async with inprocess_server() as made:
        await running(made)
        refused = await made.post("/v1/vms/default/db/power", {"action": "resume", "index": 1}, expect=404)
        assert refused["code"] == "not_found"
        refused = await made.post("/v1/vms/default/db/power", {"action": "explode"}, expect=422)
        assert refused["path"] == "action"
        await made.post("/v1/vms/default/db/power", {"action": "pause"})
        entries = (await made.get("/v1/audit"))["items"]
        found = [(entry["what"], entry["target"], entry["detail"]) for entry in entries if entry["what"] != "submit"]
        assert found == [("setpower", "default/db", "pause")]


async def test_machines_are_listed_by_power_and_page_by_page() -> None:
    async with inprocess_server() as made:
        agent = await running(made, count=3)
        await made.submit("job")
        await made.submit("other", project="red", **VM)
        await made.post("/v1/vms/default/db/power", {"action": "stop", "index": 1})
        (order,) = agent.orders(PowerOrder)
        await agent.says(Report(order.token, "running", power="stopped", power_serial=order.serial))
        page = await made.get("/v1/vms", limit=2)
        assert [(vm["project"], vm["name"], vm["index"]) for vm in page["items"]] == [
            ("red", "other", 0), ("default", "db", 0),
        ]  # fmt: skip
        page = await made.get("/v1/vms", limit=2, after=page["next"])
        assert [(vm["index"], vm["power"]["state"]) for vm in page["items"]] == [(1, "stopped"), (2, "running")]
        page = await made.get("/v1/vms", after=page["next"])
        assert (page["items"], page["next"]) == ([], None)
        assert [vm["index"] for vm in (await made.get("/v1/vms", power="stopped"))["items"]] == [1]
        assert [vm["name"] for vm in (await made.get("/v1/vms", project="red"))["items"]] == ["other"]
        await made.get("/v1/vms", after="1:default/db#x", expect=422)


async def test_what_is_no_machine_has_no_power() -> None:
    async with inprocess_server() as made:
        await made.submit("job")
        for answer in (
            await made.get("/v1/vms/default/job", expect=409),
            await made.post("/v1/vms/default/job/power", {"action": "stop"}, expect=409),
        ):
            assert answer["code"] == "not_a_vm"
        await made.get("/v1/vms/default/none", expect=404)
        assert (await made.get("/v1/vms"))["items"] == []


async def test_machines_of_other_projects_are_not_seen() -> None:
    async with quiet_server() as made:
        await made.submit("db", project="red", **VM)
        red, blue = await caller(made, "viewer", "red"), await caller(made, "viewer", "blue")
        assert [vm["name"] for vm in (await red.get("/v1/vms"))["items"]] == ["db"]
        assert (await blue.get("/v1/vms"))["items"] == []
        await blue.get("/v1/vms/red/db", 404)
