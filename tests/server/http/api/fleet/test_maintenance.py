"""Maintenance over the API: begun with a reason, reported to clients that wait, ended."""

from typing import Any

import pytest

from tests.server.api_requests import put, refused
from tests.server.inprocess_server import inprocess_server


async def test_begun_reported_and_ended() -> None:
    async with inprocess_server() as made:
        await made.agent()
        assert await made.get("/v1/maintenance") == {"on": False, "reason": "", "since_ms": None, "until_ms": None}
        begun = await put(made, "/v1/maintenance", {"reason": "new switches", "for": "2h"})
        assert (begun["on"], begun["reason"]) == (True, "new switches")
        assert begun["until_ms"] - begun["since_ms"] == 7_200_000
        await made.submit()
        assert (await made.get("/v1/workloads/default/job"))["state"] == "queued"
        answer = await made.get("/v1/workloads/default/job/why")
        assert answer["code"] == "maintenance" and "new switches" in answer["message"]
        assert (await made.get("/v1/status"))["maintenance"] == begun
        assert "roost_maintenance 1.0" in (await made.client.get("/metrics")).text
        ended = await made.client.delete("/v1/maintenance")
        assert (ended.status_code, ended.json()["on"]) == (200, False)
        assert (await made.get("/v1/workloads/default/job"))["state"] == "running"
        assert (await made.client.delete("/v1/maintenance")).status_code == 200
        assert "roost_maintenance 0.0" in (await made.client.get("/metrics")).text
        done = [item["what"] for item in (await made.get("/v1/audit"))["items"] if item["what"] == "maintain"]
        assert len(done) == 3, "who began and ended it is noted"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "two\nlines"}, "reason"),
        ({"reason": "x" * 300}, "reason"),
        ({"reason": 5}, "reason"),
        ({"reason": "x", "for": "soon"}, "for"),
        ({"reason": "x", "for": 0}, "for"),
        ({"reason": "x", "for": -1}, "for"),
        ({"reason": "x", "for": 10**30}, "for"),
        ({"reason": "x", "until": "2h"}, "until"),
    ],
)
async def test_odd_bodies_are_refused_by_name(body: Any, path: str) -> None:
    async with inprocess_server() as made:
        status, answer = await refused(made, "PUT", "/v1/maintenance", body)
        assert (status, answer["path"]) == (422, path)
        assert (await made.get("/v1/maintenance"))["on"] is False
