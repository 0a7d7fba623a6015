"""Auth: a caller without a token learns nothing, and every path is closed."""

import asyncio
import time

import msgspec
import pytest
from litestar.routes import HTTPRoute

from roost.core.state.state import State
from roost.model.errors import Invalid
from roost.model.records.access import ADMIN, VIEWER, subject_of
from roost.server.auth.middleware import OPEN_PATHS, AuthMiddleware
from roost.server.auth.principal import Access
from roost.server.auth.tokens import decode_token, encode_token
from roost.server.engine.role import Starting
from roost.server.observability.logging import LINES_MAX
from roost.server.waiting import SLICE_S
from tests.server.inprocess_server import TOKEN, in_role, inprocess_server


async def test_every_route_is_closed_but_the_probes() -> None:
    async with inprocess_server() as made:
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
        for path in OPEN_PATHS:
            assert (await made.client.options(path)).status_code == 401
        assert (await made.client.delete("/livez")).status_code == 405


@pytest.mark.parametrize(
    ("text", "status"),
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
async def test_only_the_token_opens(text: str, status: int) -> None:
    async with inprocess_server() as made:
        answer = await made.client.get("/v1/status", headers={"authorization": text.encode("latin-1")})
        assert answer.status_code == status
        assert TOKEN not in answer.text


async def test_a_refused_request_changes_nothing() -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        answer = await made.client.post(
            "/v1/workloads", json={"name": "x", "command": "y"}, headers={"authorization": "no"}
        )
        assert answer.status_code == 401
        assert made.snapshot() == before


async def test_refusals_are_reported_to_the_operator_without_what_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async with inprocess_server() as made:
        token = (await made.post("/v1/tokens", {"name": "robot", "role": "viewer", "projects": ["web"]}, 201))["token"]
        capsys.readouterr()
        for _ in range(3 * LINES_MAX):
            answer = await made.client.get("/v1/status", headers={"authorization": f"Bearer {token}0"})
            assert answer.status_code == 401
        report = capsys.readouterr().out
        lines = [line for line in report.splitlines() if "request refused" in line]
        assert len(lines) == LINES_MAX
        assert "127.0.0.1" in lines[0] and "/v1/status" in lines[0]
        assert token not in report and token.rpartition("_")[2] not in report


async def test_a_server_that_has_not_loaded_its_tokens_refuses_no_caller() -> None:
    async with inprocess_server() as made:
        token = (await made.post("/v1/tokens", {"name": "robot", "role": "viewer", "projects": ["web"]}, 201))["token"]
        headers = {"authorization": f"Bearer {token}"}
        state, made.engine.machine.state = made.engine.state, State(made.engine.state.settings)
        with in_role(made.engine, Starting()):
            answer = await made.client.get("/v1/status", headers=headers)
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
        made.engine.machine.state = state
        assert (await made.client.get("/v1/status", headers=headers)).status_code == 200


async def test_a_token_that_a_later_version_wrote_gives_nothing_that_is_not_known_here() -> None:
    async with inprocess_server() as made:
        token = (await made.post("/v1/tokens", {"name": "robot", "role": "viewer", "projects": ["web"]}, 201))["token"]
        stored = made.engine.state.opaque_records["token"]
        stored["robot"] = encode_token(msgspec.structs.replace(decode_token(stored["robot"]), role="emperor"))
        headers = {"authorization": f"Bearer {token}"}
        assert (await made.client.get("/v1/whoami", headers=headers)).json()["roles"] == {}
        assert (await made.client.get("/v1/status", headers=headers)).status_code == 403


def test_roles_in_projects_and_everywhere() -> None:
    access = Access({"*": "viewer", "web": "admin"})
    assert [access.rank_in(project) for project in ("web", "shop")] == [ADMIN, VIEWER]
    assert access.sees_all and access.roles() == {"*": "viewer", "web": "admin"}
    assert access.covers(("web",), ADMIN) and not access.covers(("web", "shop"), ADMIN)
    assert not access.covers(("*",), ADMIN) and access.covers(("*", "shop"), VIEWER)
    anonymous = Access({})
    assert (anonymous.highest, anonymous.sees("web"), anonymous.sees_all, anonymous.covers(("web",), VIEWER)) == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize("subject", ["", "a b", "a/b", "\u00e4@example.com", "a\nb", "a" * 256])
def test_subjects_that_cannot_be(subject: str) -> None:
    with pytest.raises(Invalid):
        subject_of(subject, "subject")


def test_an_address_is_the_same_in_capitals_and_a_subject_is_not() -> None:
    assert subject_of("Ann@Example.com", "subject") == "ann@example.com"
    assert subject_of("auth0|Ann", "subject") == "auth0|Ann"


async def test_members_are_named_as_they_can_be() -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        for path in ("/v1/projects/a.b/members/ann@example.com", "/v1/projects/web/members/a%20b"):
            assert (await made.client.put(path, json={"role": "viewer"})).status_code == 422
        answer = await made.client.put("/v1/projects/web/members/ann@example.com", json={"role": "king"})
        assert (answer.status_code, answer.json()["path"]) == (422, "role")
        assert made.snapshot() == before


async def test_requests_that_are_due_at_once_do_not_hold_the_loop_together() -> None:
    handled = 0

    async def long_list(*_: object) -> None:
        nonlocal handled
        until_s = time.thread_time() + 2 * SLICE_S
        while time.thread_time() < until_s:
            pass
        handled += 1

    async with inprocess_server() as made:
        door = AuthMiddleware(long_list, made.auth)
        scope = {"type": "http", "path": "/livez", "method": "GET", "headers": []}
        requests = [asyncio.create_task(door(dict(scope), None, None)) for _ in range(10)]  # type: ignore[arg-type]
        while handled < len(requests):
            before = handled
            await asyncio.sleep(0)
            assert handled - before <= 1
        await asyncio.gather(*requests)
