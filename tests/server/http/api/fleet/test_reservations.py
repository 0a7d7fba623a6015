"""Reservations over the API: nodes for one project, by name or by number, now or later, and given back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.server.api_requests import refused
from tests.server.inprocess_server import InprocessServer, Stop, inprocess_server

HOUR_MS = 3_600_000


async def nodes(made: InprocessServer, *names: str, **facts: Any) -> None:
    for name in names:
        await made.agent(name, **facts)


async def reserve(made: InprocessServer, name: str = "kept", project: str = "red", **fields: Any) -> Any:
    return await made.post("/v1/reservations", {"name": name, "project": project, **fields}, expect=201)


async def test_only_the_project_uses_nodes_that_are_reserved_for_it() -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1")
        stored = await reserve(made, nodes=["n1"])
        assert (stored["project"], stored["nodes"], stored["active"], stored["end_ms"]) == ("red", ["n1"], True, None)
        await made.submit("other", project="blue")
        await made.submit("own", project="red")
        assert (await made.get("/v1/workloads/blue/other"))["state"] == "queued"
        assert (await made.get("/v1/workloads/red/own"))["state"] == "running"
        answer = await made.client.delete("/v1/reservations/kept")
        assert (answer.status_code, answer.content) == (204, b"")
        assert (await made.get("/v1/workloads/blue/other"))["state"] == "running"
        assert (await made.get("/v1/reservations"))["items"] == []
        assert (await made.client.delete("/v1/reservations/kept")).status_code == 404


async def test_what_others_run_there_moves_when_it_begins() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        await made.submit("other", project="blue")
        await reserve(made, nodes=["n1"])
        (stop,) = await made.until(lambda: agent.orders(Stop))
        await agent.stops(stop)
        assert (await made.get("/v1/workloads/blue/other"))["state"] == "queued"


async def test_a_count_chooses_nodes_of_the_pool_with_the_least_work_of_others() -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1", "n2", "n3", pool="ci")
        await nodes(made, "other")
        await made.submit("busy", project="blue", placement={"require": ["name == 'n1'"]})
        stored = await reserve(made, count=2, pool="ci", start="1h")
        assert stored["nodes"] == ["n2", "n3"]
        answer = await made.post(
            "/v1/reservations", {"name": "b", "project": "red", "count": 2, "pool": "ci"}, expect=409
        )
        assert (answer["code"], answer["path"]) == ("insufficient_resources", "count")


async def test_moments_and_durations_from_now() -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1")
        stored = await reserve(made, nodes=["n1"], start="1h", end="3h")
        assert stored["end_ms"] - stored["start_ms"] == 2 * HOUR_MS and not stored["active"]
        assert abs(stored["start_ms"] - made.engine.clock.now_ms() - HOUR_MS) < 60_000
        day = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        later = await reserve(made, "later", nodes=["n1"], start=day.isoformat(), end=(day + timedelta(1)).isoformat())
        assert later["start_ms"] == int(day.timestamp() * 1_000)
        assert later["end_ms"] - later["start_ms"] == 24 * HOUR_MS
        assert [item["name"] for item in (await made.get("/v1/reservations"))["items"]] == ["kept", "later"]
        assert (await made.get("/v1/reservations/later")) == later


async def test_one_that_is_over_is_forgotten() -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1")
        await reserve(made, nodes=["n1"], end="100ms")
        await made.until(lambda: not made.engine.state.reservations)
        await made.get("/v1/reservations/kept", expect=404)


async def test_two_may_not_have_one_node_at_the_same_time() -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1", "n2")
        await reserve(made, nodes=["n1"], start="1h", end="2h")
        status, answer = await refused(made, "POST", "/v1/reservations", wanted(name="b", start="30m", end="90m"))
        assert (status, answer["code"], answer["path"]) == (409, "reserved", "nodes") and "kept" in answer["message"]
        status, answer = await refused(made, "POST", "/v1/reservations", wanted(name="kept", nodes=["n2"]))
        assert (status, answer["code"], answer["path"]) == (409, "name_in_use", "name")
        await reserve(made, "after", "blue", nodes=["n1"], start="2h")


async def test_reservations_come_in_pages() -> None:
    async with inprocess_server() as made:
        await nodes(made, "a", "b", "c")
        for name in ("c", "a", "b"):
            await reserve(made, name, nodes=[name])
        page = await made.get("/v1/reservations", limit=2)
        assert ([item["name"] for item in page["items"]], page["next"]) == (["a", "b"], "b")
        page = await made.get("/v1/reservations", limit=2, after="b")
        assert ([item["name"] for item in page["items"]], page["next"]) == (["c"], None)


def wanted(**fields: Any) -> dict[str, Any]:
    """A reservation that would be taken, but for these fields; None: without that field."""
    return {
        key: value
        for key, value in ({"name": "x", "project": "red", "nodes": ["n1"]} | fields).items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        (wanted(name="a.b"), 422, "name"),
        (wanted(name=""), 422, "name"),
        (wanted(project="a/b"), 422, "project"),
        (wanted(project=None), 422, "project"),
        (wanted(nodes=None), 422, "nodes"),
        (wanted(nodes=[]), 422, "nodes"),
        (wanted(count=1), 422, "nodes"),
        (wanted(pool="ci"), 422, "pool"),
        (wanted(nodes=["n1", "n1"]), 422, "nodes[1]"),
        (wanted(nodes=["n1", "a b"]), 422, "nodes[1]"),
        (wanted(nodes=["n1", 2]), 422, "nodes[1]"),
        (wanted(nodes=["nobody"]), 404, "nodes"),
        (wanted(nodes=[f"n{number}" for number in range(1_001)]), 422, "nodes"),
        (wanted(nodes=None, count=0), 422, "count"),
        (wanted(nodes=None, count=-1), 422, "count"),
        (wanted(nodes=None, count=10**300), 422, "count"),
        (wanted(nodes=None, count=1.5), 422, "count"),
        (wanted(nodes=None, count=2), 409, "count"),
        (wanted(nodes=None, count=1, pool="nowhere"), 409, "count"),
        (wanted(nodes=None, count=1, pool="a b"), 422, "pool"),
        (wanted(start="soon"), 422, "start"),
        (wanted(start="2030-01-31T18:00"), 422, "start"),
        (wanted(start="2030-02-31T18:00Z"), 422, "start"),
        (wanted(start="2030-01-31"), 422, "start"),
        (wanted(start=-5), 422, "start"),
        (wanted(start="99999w"), 422, "start"),
        (wanted(start=True), 422, "start"),
        (wanted(end=0), 422, "end"),
        (wanted(end="2020-01-01T00:00Z"), 422, "end"),
        (wanted(end="0001-01-01T00:00+14:00"), 422, "end"),
        (wanted(start="2h", end="1h"), 422, "end"),
        (wanted(until="1h"), 422, "until"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_wrong_value_is_named_and_nothing_is_kept(body: Any, status: int, path: str) -> None:
    async with inprocess_server() as made:
        await nodes(made, "n1")
        code, answer = await refused(made, "POST", "/v1/reservations", body)
        assert (code, answer["path"]) == (status, path)
