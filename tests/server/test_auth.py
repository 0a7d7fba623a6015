"""Auth: nothing is told to whoever has no token, and every path is closed."""

import pytest
from litestar.routes import HTTPRoute

from roost.server.auth import OPEN_PATHS
from tests.server.house import TOKEN, house


async def test_every_route_is_closed_but_the_probes() -> None:
    async with house() as made:
        del made.client.headers["authorization"]
        routes = [route for route in made.api.routes if isinstance(route, HTTPRoute)]
        assert len(routes) > 15
        for route in routes:
            path = route.path_format.replace("{index}", "0").replace("{", "").replace("}", "")
            for method in sorted(route.methods):
                if path in OPEN_PATHS:
                    continue
                answer = await made.client.request(method, path)
                assert answer.status_code == 401, (method, path)
                assert answer.json()["code"] == "refused" and answer.headers["www-authenticate"].startswith("Bearer")
        assert (await made.client.get("/nowhere")).status_code == 401


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Bearer  {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("", 401),
        ("Bearer \xff\xfe", 401),
        ("Bearer " + "x" * 60_000, 401),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_only_the_token_opens(said: str, status: int) -> None:
    async with house() as made:
        answer = await made.client.get("/v1/status", headers={"authorization": said.encode("latin-1")})
        assert answer.status_code == status
        assert TOKEN not in answer.text


async def test_a_refused_request_changes_nothing() -> None:
    async with house() as made:
        before = made.snapshot()
        answer = await made.client.post(
            "/v1/workloads", json={"name": "x", "command": "y"}, headers={"authorization": "no"}
        )
        assert answer.status_code == 401
        assert made.snapshot() == before
