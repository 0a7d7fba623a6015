"""Nodes over the API: what they offer and use, out of service and back, forgotten."""

import pytest

from roost.model.frames import Usage
from tests.server.house import Stop, house


async def test_a_node_tells_what_it_offers_uses_and_runs() -> None:
    async with house() as made:
        agent = await made.agent(labels={"disk": "nvme"}, zone="a", arch="amd64")
        await made.submit(resources={"cpu": 1.5, "memory": "1MiB"})
        made.engine.heard("n1", agent.session, Usage(700, 5_000, 6_000))
        await made.submit("second", resources={"cpu": 0.5})
        node = await made.get("/v1/nodes/n1")
        assert (node["status"], node["connected"], node["pool"], node["zone"]) == ("ready", True, "default", "a")
        assert node["resources"]["cpu_milli"] == {"used": 2_000, "total": 4_000}
        assert node["resources"]["memory"] == {"used": 1 << 20, "total": 1 << 30}
        assert node["usage"] == {"cpu_milli": 700, "memory": 5_000, "disk": 6_000}
        assert [each["name"] for each in node["instances"]] == ["job", "second"] and node["running"] == 2
        assert [line["state"] for line in node["story"]] == ["ready"]
        assert node["lease_until_ms"] > node["joined_ms"] and node["labels"] == {"disk": "nvme"}


async def test_devices_ports_and_taints_are_shown_where_they_are() -> None:
    async with house() as made:
        await made.agent(resources={"cpu": 4_000, "gpu": 2_000}, gpu_model="T4", taints=("gpu",))
        placement = {"tolerate": ["gpu"]}
        await made.submit(resources={"cpu": 1, "gpu": 0.25}, ports={"http": 80, "any": 0}, placement=placement)
        node = await made.get("/v1/nodes/n1")
        assert (node["gpu_model"], node["taints"], node["devices"]) == ("T4", ["gpu"], [750, 1_000])
        assert node["ports"] == [80, 20_000]
        instance = await made.get("/v1/workloads/default/job/instances/0")
        assert (instance["devices"], instance["ports"]) == ([0], {"http": 80, "any": 20_000})
        (listed,) = (await made.get("/v1/nodes"))["items"]
        assert (listed["gpu_model"], listed["taints"]) == ("T4", ["gpu"])


async def test_nodes_are_listed_by_name_in_pages() -> None:
    async with house() as made:
        for name in ("n3", "n1", "n2"):
            await made.agent(name)
        page = await made.get("/v1/nodes", limit=2)
        assert [each["name"] for each in page["items"]] == ["n1", "n2"]
        page = await made.get("/v1/nodes", limit=2, after=page["next"])
        assert [each["name"] for each in page["items"]] == ["n3"] and page["next"] is None
        assert (await made.get("/v1/nodes", status="lost"))["items"] == []


async def test_a_drained_node_takes_nothing_new_until_it_is_resumed() -> None:
    async with house() as made:
        agent = await made.agent()
        await made.submit()
        view = await made.post("/v1/nodes/n1/drain", {"deadline": "10m"})
        assert (view["status"], view["draining"]) == ("draining", True) and view["drain_until_ms"]
        assert agent.orders(Stop) == []
        view = await made.post("/v1/nodes/n1/drain")
        (stop,) = agent.orders(Stop)
        await agent.stops(stop)
        assert (await made.get("/v1/nodes/n1"))["status"] == "drained"
        assert (await made.get("/v1/workloads/default/job"))["state"] == "queued"
        view = await made.post("/v1/nodes/n1/resume")
        assert (view["status"], view["draining"]) == ("ready", False)
        assert (await made.get("/v1/workloads/default/job"))["state"] == "running"


@pytest.mark.parametrize("deadline", ["soon", -1, "1e9", [1], True, 10**30])
async def test_an_odd_deadline_is_refused(deadline: object) -> None:
    async with house() as made:
        await made.agent()
        told = await made.post("/v1/nodes/n1/drain", {"deadline": deadline}, expect=422)
        assert told["path"] == "deadline"
        assert (await made.get("/v1/nodes/n1"))["draining"] is False


async def test_only_a_node_that_is_out_of_touch_can_be_forgotten() -> None:
    async with house() as made:
        agent = await made.agent()
        answer = await made.client.delete("/v1/nodes/n1")
        assert answer.status_code == 409 and "connected" in answer.json()["message"]
        await agent.parts()
        answer = await made.client.delete("/v1/nodes/n1")
        assert (answer.status_code, answer.content) == (204, b"")
        assert made.streams.closed == ["n1"]
        await made.get("/v1/nodes/n1", expect=404)
