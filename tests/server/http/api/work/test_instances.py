"""Instances over the API: those that run, those that ended, and those that never ran."""

from tests.server.inprocess_server import inprocess_server


async def test_an_instance_has_its_story_and_the_decision_that_placed_it() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.agent("n2", cpu=1_000)
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        await agent.ends(run, 7)
        detail = await made.get("/v1/workloads/default/job/instances/0")
        assert (detail["state"], detail["exit_code"], detail["attempt"], detail["node"]) == ("failed", 7, 1, "n1")
        assert [line["state"] for line in detail["story"]] == ["queued", "placed", "running", "failed"]
        assert detail["decision"]["strategy"] == "least_loaded"
        assert [candidate["node"] for candidate in detail["decision"]["candidates"]] == ["n1", "n2"]
        assert detail["started_ms"] <= detail["finished_ms"]
        assert "exit code 7" in detail["message"]


async def test_instances_that_never_ran_are_shown_too() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=1_000)
        await made.submit(count=4)
        page = await made.get("/v1/workloads/default/job/instances")
        assert [(item["index"], item["state"]) for item in page["items"]] == [
            (0, "placed"), (1, "queued"), (2, "queued"), (3, "queued")
        ]  # fmt: skip
        waiting = await made.get("/v1/workloads/default/job/instances/3")
        assert (waiting["state"], waiting["attempt"], waiting["story"]) == ("queued", 0, [])
        await made.post("/v1/workloads/default/job/cancel")
        waiting = await made.get("/v1/workloads/default/job/instances/3")
        assert (waiting["state"], waiting["message"]) == ("cancelled", "cancelled by root")


async def test_instances_come_in_pages_and_by_state() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=3_000)
        await made.submit(count=10)
        seen: list[int] = []
        after = -1
        while after is not None:
            page = await made.get("/v1/workloads/default/job/instances", limit=3, after=after)
            seen += [item["index"] for item in page["items"]]
            after = page["next"]
        assert seen == list(range(10))
        page = await made.get("/v1/workloads/default/job/instances", state="placed")
        assert [item["index"] for item in page["items"]] == [0, 1, 2] and page["next"] is None


async def test_a_page_of_a_huge_array_costs_a_bounded_amount() -> None:
    async with inprocess_server() as made:
        await made.submit(count=1_000_000)
        page = await made.get("/v1/workloads/default/job/instances", state="running")
        assert page["items"] == [] and 0 < page["next"] < 100_000
        page = await made.get("/v1/workloads/default/job/instances", after=999_998)
        assert [item["index"] for item in page["items"]] == [999_999] and page["next"] is None
