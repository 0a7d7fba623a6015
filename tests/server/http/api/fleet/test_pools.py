"""Pools over the API: what their nodes have and give away, a strategy of their own, promises beyond what there is."""

from typing import Any

import pytest

from tests.security.callers import caller, quiet_server
from tests.server.api_requests import put, refused
from tests.server.inprocess_server import Stop, inprocess_server


async def test_a_pool_is_known_by_its_nodes_or_by_its_settings() -> None:
    async with inprocess_server() as made:
        await made.agent("n1", cpu=4_000)
        await made.agent("n2", cpu=2_000, pool="ci")
        gone = await made.agent("n3", cpu=2_000, pool="ci")
        await gone.parts()
        await put(made, "/v1/pools/later", {"strategy": "best_fit"})
        await made.submit("job", resources={"cpu": 1, "memory": "1MiB"}, placement={"pool": "ci"})
        pools = {item["name"]: item for item in (await made.get("/v1/pools"))["items"]}
        assert list(pools) == ["ci", "default", "later"]
        assert (pools["ci"]["nodes"], pools["ci"]["ready"], pools["ci"]["is_set"]) == (2, 1, False)
        assert (pools["later"]["nodes"], pools["later"]["resources"], pools["later"]["strategy"]) == (0, {}, "best_fit")
        assert pools["default"]["resources"]["cpu_milli"] == {"used": 0, "total": 4_000, "limit": 4_000}
        assert pools["ci"]["resources"]["memory"] == {"used": 1 << 20, "total": 1 << 30, "limit": 1 << 30}, (
            "one is gone"
        )
        await made.get("/v1/pools/nowhere", expect=404)


async def test_overcommit_lets_more_run_and_is_shown_beside_what_there_is() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=2_000)
        await made.submit("many", count=4)
        assert (await made.get("/v1/workloads/default/many"))["counts"] == {"placed": 2, "queued": 2}
        pool = await put(made, "/v1/pools/default", {"overcommit": {"cpu": 1.5, "memory": 2}})
        assert pool["overcommit"] == {"cpu": 1.5, "memory": 2.0}
        assert pool["resources"]["cpu_milli"] == {"used": 3_000, "total": 2_000, "limit": 3_000}
        assert (await made.get("/v1/workloads/default/many"))["counts"] == {"placed": 3, "queued": 1}
        assert (await made.client.delete("/v1/pools/default")).status_code == 204
        pool = await made.get("/v1/pools/default")
        assert (pool["is_set"], pool["overcommit"]) == (False, {})
        assert pool["resources"]["cpu_milli"] == {"used": 3_000, "total": 2_000, "limit": 2_000}, "what runs stays"
        assert (await made.client.delete("/v1/pools/default")).status_code == 404


async def test_a_pool_has_a_strategy_of_its_own() -> None:
    async with inprocess_server() as made:
        for name in ("n1", "n2"):
            await made.agent(name, cpu=4_000)
        await put(made, "/v1/pools/default", {"strategy": "best_fit"})
        await made.submit("many", count=3, placement={"pool": "default"})
        placed = (await made.get("/v1/workloads/default/many/instances"))["items"]
        assert [item["node"] for item in placed] == ["n1", "n1", "n1"]
        assert "best_fit" in placed[0]["message"]


async def test_pools_come_in_pages() -> None:
    async with inprocess_server() as made:
        for name in ("c", "a", "b"):
            await put(made, f"/v1/pools/{name}", {})
        page = await made.get("/v1/pools", limit=2)
        assert ([item["name"] for item in page["items"]], page["next"]) == (["a", "b"], "b")
        page = await made.get("/v1/pools", limit=2, after="b")
        assert ([item["name"] for item in page["items"]], page["next"]) == (["c"], None)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"strategy": "cleverest"}, "strategy"),
        ({"strategy": 1}, "strategy"),
        ({"overcommit": {"cpu": 0.9}}, "overcommit.cpu"),
        ({"overcommit": {"cpu": 10.01}}, "overcommit.cpu"),
        ({"overcommit": {"cpu": -1}}, "overcommit.cpu"),
        ({"overcommit": {"cpu": 10**300}}, "overcommit.cpu"),
        ({"overcommit": {"cpu": 1.005}}, "overcommit.cpu"),
        ({"overcommit": {"memory": 1, "cpu": "1.5"}}, "overcommit.cpu"),
        ({"overcommit": {"disk": 2}}, "overcommit.disk"),
        ({"overcommit": 2}, "overcommit"),
        ({"nodes": 2}, "nodes"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_wrong_value_is_named_and_nothing_is_kept(body: Any, path: str) -> None:
    async with inprocess_server() as made:
        status, answer = await refused(made, "PUT", "/v1/pools/ci", body)
        assert (status, answer["path"]) == (422, path)


async def test_a_ratio_that_is_no_number_is_refused() -> None:
    async with inprocess_server() as made:
        answer = await made.client.put(
            "/v1/pools/ci", content="overcommit: {cpu: .nan}", headers={"content-type": "application/yaml"}
        )
        assert (answer.status_code, answer.json()["path"]) == (422, "overcommit.cpu")


async def test_a_name_that_no_pool_can_have_is_refused() -> None:
    async with inprocess_server() as made:
        status, answer = await refused(made, "PUT", "/v1/pools/a.b", {})
        assert (status, answer["path"]) == (422, "name")


async def test_a_setting_without_a_body_changes_nothing() -> None:
    async with inprocess_server() as made:
        answer = await made.client.put("/v1/pools/ci")
        assert (answer.status_code, made.engine.state.pools) == (400, {})


async def test_what_a_pool_says_for_its_nodes_is_shown_with_them() -> None:
    async with inprocess_server() as made:
        await made.agent(labels={"disk": "hdd"}, zone="z9", taints=("own",))
        pool = await put(
            made,
            "/v1/pools/default",
            {"labels": {"disk": "nvme", "arch": "arm"}, "taints": ["slow:soft"], "zone": "z1", "rack": "r1"},
        )
        assert (pool["labels"], pool["taints"], pool["zone"]) == ({"disk": "nvme", "arch": "arm"}, ["slow:soft"], "z1")
        node = await made.get("/v1/nodes/n1")
        assert node["labels"] == {"disk": "hdd", "arch": "arm"}
        assert (node["taints"], node["zone"], node["rack"]) == (["own", "slow:soft"], "z9", "r1")


async def test_a_pool_fails_is_emptied_and_is_well_again() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1", pool="ci")
        await made.agent("n2", pool="spare")
        await put(made, "/v1/pools/ci", {"when_failed": "move", "fallback": "spare", "fail_after": "5m"})
        await made.submit(placement={"pool": "ci"})
        await agent.starts(agent.orders()[0])
        pool = await put(made, "/v1/pools/ci/status", {"status": "failed", "reason": "power is out"})
        assert (pool["status"], pool["reason"], pool["failed_by"]) == ("failed", "power is out", "operator")
        assert pool["fail_after_ms"] == 300_000
        (stop,) = agent.orders(Stop)
        await agent.stops(stop)
        instance = await made.get("/v1/workloads/default/job/instances/0")
        assert instance["node"] == "n2"
        assert any("pool ci failed: power is out; moved" in line["message"] for line in instance["story"])
        assert 'roost_pool_unwell{pool="ci",status="failed"} 1.0' in (await made.client.get("/metrics")).text
        pool = await put(made, "/v1/pools/ci", {"fallback": "spare"})
        assert pool["status"] == "failed", "settings do not heal"
        assert (await put(made, "/v1/pools/ci/status", {"status": "draining"}))["status"] == "draining"
        pool = await put(made, "/v1/pools/ci/status", {"status": "ready"})
        assert (pool["status"], pool["reason"], pool["failed_by"]) == ("ready", "", "")
        noted = [item["target"] for item in (await made.get("/v1/audit"))["items"] if item["what"] == "markpool"]
        assert noted == ["pool ci ready", "pool ci draining", "pool ci failed"]


async def test_the_projects_of_a_pool_show_only_to_members_of_these_projects() -> None:
    async with quiet_server() as made:
        await made.agent(pool="gpu")
        await put(made, "/v1/pools/gpu", {"projects": ["ml", "vision", "ml"]})
        assert (await made.get("/v1/pools/gpu"))["projects"] == ["ml", "vision"]
        principal = await caller(made, "submitter", "vision")
        for seen in (
            (await principal("GET", "/v1/pools/gpu")).json(),
            (await principal("GET", "/v1/pools")).json()["items"][0],
        ):
            assert (seen["projects"], seen["restricted"]) == (["vision"], True)
        other = await caller(made, "submitter", "web")
        assert (await other("GET", "/v1/pools/gpu")).json()["projects"] == []
        submitted = await other("POST", "/v1/workloads", {"name": "job", "project": "web", "command": "true"})
        assert submitted.status_code == 201
        message = (await other("GET", "/v1/workloads/web/job/why")).json()["message"]
        assert "gpu is for another project" in message
        assert "ml" not in message and "vision" not in message


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/pools/p", {"when_failed": "panic"}, "when_failed"),
        ("/v1/pools/p", {"fallback": "nowhere"}, "fallback"),
        ("/v1/pools/p", {"fallback": "p"}, "fallback"),
        ("/v1/pools/p", {"fail_after": "soon"}, "fail_after"),
        ("/v1/pools/p", {"fail_after": "10ms"}, "fail_after"),
        ("/v1/pools/p", {"fail_after": 10**12}, "fail_after"),
        ("/v1/pools/p", {"labels": {"k": 5}}, "labels.k"),
        ("/v1/pools/p", {"labels": {"k": "two\nlines"}}, "labels.k"),
        ("/v1/pools/p", {"taints": [":soft"]}, "taints[0]"),
        ("/v1/pools/p", {"projects": ["a b"]}, "projects[0]"),
        ("/v1/pools/p", {"zone": "x" * 300}, "zone"),
        ("/v1/pools/p", {"status": "failed"}, "status"),
        ("/v1/pools/default/status", {}, "status"),
        ("/v1/pools/default/status", {"status": "gone"}, "status"),
        ("/v1/pools/default/status", {"status": "failed"}, "reason"),
        ("/v1/pools/default/status", {"status": "failed", "reason": "two\nlines"}, "reason"),
    ],
)
async def test_odd_settings_and_statuses_are_refused_by_name(path: str, body: Any, field: str) -> None:
    async with inprocess_server() as made:
        await made.agent()
        status, answer = await refused(made, "PUT", path, body)
        assert (status, answer["path"]) == (422, field)


async def test_pools_that_stand_in_for_each_other_and_unknown_ones_are_refused() -> None:
    async with inprocess_server() as made:
        for name in ("one", "two"):
            await put(made, f"/v1/pools/{name}", {})
        await put(made, "/v1/pools/one", {"fallback": "two"})
        status, answer = await refused(made, "PUT", "/v1/pools/two", {"fallback": "one"})
        assert (status, answer["code"], answer["path"]) == (422, "fallback_cycle", "fallback")
        assert (await refused(made, "PUT", "/v1/pools/nowhere/status", {"status": "draining"}))[0] == 404
