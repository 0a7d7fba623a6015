"""Usage: with the instance that it is of, and summed up by project, workload and day."""

from typing import Any

from roost.model.records.usage import RunUsage
from tests.server.inprocess_server import InprocessServer, Played, inprocess_server

USED = RunUsage(1_500, 64 << 20, io_read=0, io_written=4_096)
NEEDS = {"cpu": 2, "memory": "128MiB"}


async def ran(made: InprocessServer, agent: Played, **fields: Any) -> None:
    """A job that ran for ten seconds."""
    await made.submit(**{"resources": NEEDS, **fields})
    run = agent.orders()[-1]
    await agent.starts(run)
    await agent.ends(run, usage=USED, started_ago_ms=10_000)


async def test_usage_is_shown_with_its_instance_and_in_its_story() -> None:
    async with inprocess_server() as made:
        await ran(made, await made.agent())
        shown = await made.get("/v1/workloads/default/job/instances/0")
        expected = {"wall_ms": 10_000, "cpu_ms": 1_500, "memory_max": 64 << 20, "memory_is_bound": False,
                    "io_read": 0, "io_written": 4_096, "unmeasured": []}  # fmt: skip
        assert shown["usage"] == expected
        assert [line["usage"] for line in shown["story"]] == [None, None, None, expected]


async def test_usage_is_summed_up_and_paged() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        for name in ("train-0a1b2c", "train-3d4e5f", "web"):
            await ran(made, agent, name=name)
        await made.submit(name="late", resources=NEEDS)
        await agent.starts(agent.orders()[-1])
        (row,) = (await made.get("/v1/usage"))["items"]
        assert (row["project"], row["attempts"], row["running"]) == ("default", 3, 1)
        assert row["cpu_measured_ms"] == 60_000 <= row["cpu_ms"] and row["cpu_used_ms"] == 4_500
        assert row["memory_measured_kib_s"] == 3 * 1_280 * 1_024 and row["memory_used_kib_s"] == 3 * 640 * 1_024
        first = await made.get("/v1/usage", by="workload", limit=2)
        rest = await made.get("/v1/usage", by="workload", after=first["next"])
        found = [(item["workload"], item["attempts"], item["running"]) for item in first["items"] + rest["items"]]
        assert found == [("late", 0, 1), ("train", 2, 0), ("web", 1, 0)] and rest["next"] is None


async def test_usage_of_days_and_of_another_project() -> None:
    async with inprocess_server() as made:
        await ran(made, await made.agent())
        page = await made.get("/v1/usage", by="day", since="30d")
        assert sum(row["attempts"] for row in page["items"]) == 1 and page["items"][-1]["day"] <= page["last_day"]
        assert (await made.get("/v1/usage", until="30d"))["items"] == []
        assert (await made.get("/v1/usage", project="other"))["items"] == []
        assert (await made.get("/v1/usage", 422, by="node"))["path"] == "by"


async def test_why_and_a_plan_note_a_request_far_above_use() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        for number in range(5):
            await ran(made, agent, name=f"job-00000{number}", resources={"memory": "1GiB"})
        reason = {"code": "request_above_use",
                  "params": {"resource": "memory", "asked": 1 << 30, "used_max": 64 << 20, "runs": 5}}  # fmt: skip
        message = "asks for 1GiB of memory, its last 5 runs used at most 64MiB"
        found = (await made.get("/v1/workloads/default/job-000001/why"))["notes"]
        assert found == [{"workload": "default/job-000001", "message": message, "reason": reason}]
        document = {"name": "job", "command": "true", "resources": {"memory": "1GiB"}}
        plan = await made.post("/v1/plans", [document])
        assert plan["notes"] == [{"workload": "default/job", "message": message, "reason": reason}]
