"""Nodes over the API: what they offer and use, out of service and back, forgotten."""

import pytest

from roost.model.protocol import Report, Usage
from tests.server.inprocess_server import Stop, inprocess_server


async def test_a_node_tells_what_it_offers_uses_and_runs() -> None:
    async with inprocess_server() as made:
        agent = await made.agent(labels={"disk": "nvme"}, zone="a", arch="amd64")
        await made.submit(resources={"cpu": 1.5, "memory": "1MiB"})
        made.engine.heard("n1", agent.session, Usage(700, 5_000, 6_000))
        await made.submit("second", resources={"cpu": 0.5})
        node = await made.get("/v1/nodes/n1")
        assert (node["status"], node["connected"], node["pool"], node["zone"]) == ("ready", True, "default", "a")
        assert node["resources"]["cpu_milli"] == {"used": 2_000, "total": 4_000}
        assert node["resources"]["memory"] == {"used": 1 << 20, "total": 1 << 30}
        assert [node["usage"][name] for name in ("cpu_milli", "memory", "disk")] == [700, 5_000, 6_000]
        assert [instance["name"] for instance in node["instances"]] == ["job", "second"] and node["running"] == 2
        assert [line["state"] for line in node["story"]] == ["ready"]
        assert node["lease_until_ms"] > node["joined_ms"] and node["labels"] == {"disk": "nvme"}


async def test_devices_ports_and_taints_are_shown_where_they_are() -> None:
    async with inprocess_server() as made:
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
    async with inprocess_server() as made:
        for name in ("n3", "n1", "n2"):
            await made.agent(name)
        page = await made.get("/v1/nodes", limit=2)
        assert [item["name"] for item in page["items"]] == ["n1", "n2"]
        page = await made.get("/v1/nodes", limit=2, after=page["next"])
        assert [item["name"] for item in page["items"]] == ["n3"] and page["next"] is None
        assert (await made.get("/v1/nodes", status="lost"))["items"] == []


async def test_a_drained_node_takes_nothing_new_until_it_is_resumed() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        view = await made.post("/v1/nodes/n1/drain", {"deadline": "10m"})
        assert (view["status"], view["draining"]) == ("draining", True) and view["drain_until_ms"]
        assert agent.orders(Stop) == []
        assert (await made.post("/v1/nodes/n1/drain"))["drain_until_ms"] is None
        assert agent.orders(Stop) == [], "a job may finish"
        view = await made.post("/v1/nodes/n1/drain", {"deadline": 0})
        (stop,) = agent.orders(Stop)
        await agent.stops(stop)
        assert (await made.get("/v1/nodes/n1"))["status"] == "drained"
        assert (await made.get("/v1/workloads/default/job"))["state"] == "queued"
        view = await made.post("/v1/nodes/n1/uncordon")
        assert (view["status"], view["draining"]) == ("ready", False)
        assert (await made.get("/v1/workloads/default/job"))["state"] == "running"


async def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        view = await made.post("/v1/nodes/n1/cordon")
        assert (view["status"], view["cordoned"], view["draining"]) == ("cordoned", True, False)
        assert agent.orders(Stop) == []
        await made.submit("second")
        assert (await made.get("/v1/workloads/default/second"))["state"] == "queued"
        assert [item["name"] for item in (await made.get("/v1/nodes", status="cordoned"))["items"]] == ["n1"]
        assert "node n1 is cordoned" in (await made.get("/v1/workloads/default/second/why"))["message"]
        view = await made.post("/v1/nodes/n1/uncordon")
        assert (view["status"], view["cordoned"]) == ("ready", False)
        assert (await made.get("/v1/workloads/default/second"))["state"] == "running"
        await made.post("/v1/nodes/nobody/cordon", expect=404)


async def test_a_drain_can_be_tried_and_changes_nothing() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1", cpu=2_000)
        await made.submit("one")
        await made.submit("two")
        await made.agent("n2", cpu=1_000)
        before = made.engine.state.revision
        plan = await made.post("/v1/nodes/n1/drain?dry_run=true", {"deadline": 0})
        assert (plan["node"], plan["whole"], plan["revision"]) == ("n1", False, before)
        first, second = plan["leaving"]
        assert (first["project"], first["name"], first["index"]) == ("default", "one", 0)
        assert (first["node"], first["strategy"], first["code"]) == ("n2", "least_loaded", "")
        assert (second["name"], second["node"], second["code"]) == ("two", "", "insufficient_resources")
        assert "cpu" in second["message"]
        assert (await made.post("/v1/nodes/n1/drain?dry_run=true", {"deadline": "10m"}))["whole"] is True
        assert (made.engine.state.revision, agent.orders(Stop)) == (before, [])
        assert (await made.get("/v1/nodes/n1"))["draining"] is False
        await made.post("/v1/nodes/nobody/drain?dry_run=true", expect=404)
        assert (await made.post("/v1/nodes/n1/drain?dry_run=maybe", expect=422))["path"] == "dry_run"


async def test_a_node_on_which_runs_are_killed_is_declared_flaky_until_it_is_uncordoned() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        await made.agent("n2")
        for name in ("one", "two", "three"):
            await made.submit(name, placement={"require": ["name == 'n1'"]})
            await agent.says(Report(agent.orders()[-1].token, "ended", cause="exited", signal=9))
        node = await made.get("/v1/nodes/n1")
        assert node["flaky_until_ms"] and "flaky:soft" in node["taints"]
        assert "other nodes are preferred" in node["story"][-1]["message"]
        assert "roost_nodes_flaky 1.0" in (await made.client.get("/metrics")).text
        node = await made.post("/v1/nodes/n1/uncordon")
        assert (node["flaky_until_ms"], node["taints"]) == (None, [])


async def test_failed_tasks_of_an_agent_are_shown_and_counted() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        usage = Usage(1, 2, 3, task_restarts={"logs": 2}, logs_stuck_ms=61_000)
        made.engine.heard("n1", agent.session, usage)
        await made.submit("next")
        node = await made.get("/v1/nodes/n1")
        assert (node["usage"]["task_restarts"], node["usage"]["logs_stuck_ms"]) == ({"logs": 2}, 61_000)
        page = (await made.client.get("/metrics")).text
        assert 'roost_agent_task_restarts_total{node="n1",task="logs"} 2.0' in page
        assert 'roost_agent_logs_stuck_seconds{node="n1"} 61.0' in page


async def test_limits_that_no_node_enforces_are_reported_at_submission_and_with_the_instance() -> None:
    async with inprocess_server() as made:
        await made.agent("n1", user="ci", enforces=("cpu", "pids"), pool="plain")
        node = await made.get("/v1/nodes/n1")
        assert (node["user"], node["enforces"]) == ("ci", ["cpu", "pids"])
        asked = {"resources": {"cpu": 1, "memory": "1MiB"}}
        assert (await made.submit("first", **asked))["unenforced"] == ["memory"]
        assert (await made.submit("nothing"))["unenforced"] == []
        assert (await made.get("/v1/workloads/default/first/instances/0"))["unenforced"] == ["memory"]
        await made.agent("n2", pool="limited")
        assert (await made.submit("second", **asked))["unenforced"] == []
        both = [{"name": name, "command": "true", "placement": {"pool": "plain"}, **asked} for name in ("x", "y")]
        items = (await made.post("/v1/workloads/batch", both, expect=201))["items"]
        assert [item["unenforced"] for item in items] == [["memory"], ["memory"]]


@pytest.mark.parametrize("deadline", ["soon", -1, "1e9", [1], True, 10**30])
async def test_an_odd_deadline_is_refused(deadline: object) -> None:
    async with inprocess_server() as made:
        await made.agent()
        answer = await made.post("/v1/nodes/n1/drain", {"deadline": deadline}, expect=422)
        assert answer["path"] == "deadline"
        assert (await made.get("/v1/nodes/n1"))["draining"] is False


async def test_only_a_node_that_is_out_of_touch_can_be_forgotten() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        answer = await made.client.delete("/v1/nodes/n1")
        assert answer.status_code == 409 and "connected" in answer.json()["message"]
        await agent.parts()
        answer = await made.client.delete("/v1/nodes/n1")
        assert (answer.status_code, answer.content) == (204, b"")
        assert made.streams.closed == ["n1"]
        await made.get("/v1/nodes/n1", expect=404)
