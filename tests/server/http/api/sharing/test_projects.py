"""Projects over the API: weights and quotas set, shown with what is held, and refused with the field's path."""

from typing import Any

import pytest

from roost.stores.memory import Memory, MemoryStore
from tests.server.api_requests import put, refused
from tests.server.inprocess_server import inprocess_server


async def test_a_project_is_known_by_its_settings_or_by_its_workloads() -> None:
    async with inprocess_server() as made:
        assert (await made.get("/v1/projects"))["items"] == []
        await made.submit("a", project="red")
        await put(made, "/v1/projects/blue", {"weight": 3})
        items = (await made.get("/v1/projects"))["items"]
        assert [(item["name"], item["is_set"], item["weight"]) for item in items] == [
            ("blue", True, 3),
            ("red", False, 1),
        ]
        assert (await made.get("/v1/projects/red"))["waiting"] == 1
        await made.get("/v1/projects/green", expect=404)


async def test_what_a_project_holds_and_its_dominant_share() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=4_000)  # and 1 GiB
        await made.submit("a", project="red", count=3, resources={"cpu": 0.5, "memory": "256MiB"})
        await made.submit("b", project="red", resources={"cpu": 8})
        red = await made.get("/v1/projects/red")
        assert red["allocated"] == {"cpu_milli": 1_500, "memory": 3 << 28, "instances": 3}
        assert (red["share"], red["dominant"], red["waiting"]) == (0.75, "memory", 1)


async def test_quotas_are_written_in_the_usual_units() -> None:
    async with inprocess_server() as made:
        quota = {"cpu": "500m", "memory": "4GiB", "disk": 10, "gpu": 1.5, "instances": 5, "licences": "7"}
        set_ = await put(made, "/v1/projects/red", {"quota": quota, "borrow": True, "counted": True})
        assert set_["quota"] == {
            "cpu_milli": 500, "memory": 4 << 30, "disk": 10, "gpu_milli": 1_500, "instances": 5, "licences": 7,
        }  # fmt: skip
        assert (set_["weight"], set_["borrow"], set_["counted"]) == (1, True, True)
        only = await put(made, "/v1/projects/red", {"borrow": True})
        assert (only["borrow"], only["counted"]) == (True, False)
        again = await put(made, "/v1/projects/red", {})
        assert (again["quota"], again["borrow"], again["counted"], again["is_set"]) == ({}, False, False, True)


async def test_a_quota_keeps_work_waiting_until_it_is_raised_or_forgotten() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=4_000)
        await put(made, "/v1/projects/red", {"quota": {"instances": 1}})
        await made.submit("many", project="red", count=3)
        assert (await made.get("/v1/workloads/red/many"))["counts"] == {"placed": 1, "queued": 2}
        await put(made, "/v1/projects/red", {"quota": {"instances": 2}})
        assert (await made.get("/v1/workloads/red/many"))["counts"] == {"placed": 2, "queued": 1}
        answer = await made.client.delete("/v1/projects/red")
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await made.get("/v1/workloads/red/many"))["counts"] == {"placed": 3}
        assert (await made.client.delete("/v1/projects/red")).status_code == 404
        assert (await made.get("/v1/projects/red"))["is_set"] is False


async def test_what_could_never_run_within_the_quota_is_refused_whole() -> None:
    async with inprocess_server() as made:
        await put(made, "/v1/projects/red", {"quota": {"instances": 2}})
        body = {"name": "web", "project": "red", "kind": "service", "command": "true", "count": 3}
        answer = await made.post("/v1/workloads", body, expect=409)
        assert (answer["code"], answer["path"]) == ("quota_exceeded", "count") and "roost projects" in answer["hint"]
        await made.get("/v1/workloads/red/web", expect=404)


async def test_projects_come_in_pages() -> None:
    async with inprocess_server() as made:
        for name in ("c", "a", "b"):
            await put(made, f"/v1/projects/{name}", {})
        page = await made.get("/v1/projects", limit=2)
        assert ([item["name"] for item in page["items"]], page["next"]) == (["a", "b"], "b")
        page = await made.get("/v1/projects", limit=2, after="b")
        assert ([item["name"] for item in page["items"]], page["next"]) == (["c"], None)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 1_001}, "weight"),
        ({"weight": 1.5}, "weight"),
        ({"weight": "2"}, "weight"),
        ({"wieght": 2}, "wieght"),
        ({"quota": {"cpu": -1}}, "quota.cpu"),
        ({"quota": {"instances": 1, "cpu": [1]}}, "quota.cpu"),
        ({"quota": {"cpu": True}}, "quota.cpu"),
        ({"quota": {"cpu": None}}, "quota.cpu"),
        ({"quota": {"memory": "4 Gigs"}}, "quota.memory"),
        ({"quota": {"instances": 1.5}}, "quota.instances"),
        ({"quota": {"instances": 10**30}}, "quota.instances"),
        ({"quota": {"": 1}}, "quota."),
        ({"quota": {"a b": 1}}, "quota.a b"),
        ({"quota": {f"r{number}": 1 for number in range(33)}}, "quota"),
        ({"quota": [1]}, "quota"),
        ({"borrow": "yes"}, "borrow"),
        ([], "$"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_value_is_named_and_nothing_is_kept(body: Any, path: str) -> None:
    async with inprocess_server() as made:
        status, answer = await refused(made, "PUT", "/v1/projects/red", body)
        assert (status, answer["path"]) == (422, path)


@pytest.mark.parametrize("name", ["a.b", "-a", "x" * 64, "%20", "a%00b"])
async def test_a_name_that_no_project_can_have_is_refused(name: str) -> None:
    async with inprocess_server() as made:
        status, answer = await refused(made, "PUT", f"/v1/projects/{name}", {})
        assert (status, answer["path"]) == (422, "name")
        assert (await made.client.delete(f"/v1/projects/{name}")).status_code == 404


async def test_settings_survive_a_restart() -> None:
    memory = Memory()
    async with inprocess_server(MemoryStore(memory)) as made:
        await put(made, "/v1/projects/red", {"weight": 2, "quota": {"cpu": 1}})
    async with inprocess_server(MemoryStore(memory)) as again:
        red = await again.get("/v1/projects/red")
        assert (red["weight"], red["quota"]) == (2, {"cpu_milli": 1_000})


async def test_a_setting_without_a_body_changes_nothing() -> None:
    async with inprocess_server() as made:
        answer = await made.client.put("/v1/projects/red")
        assert (answer.status_code, made.engine.state.projects) == (400, {})
