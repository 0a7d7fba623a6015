"""API tokens: shown once, good until they end, and the caller that shows a bad one learns nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from roost.server.auth.middleware import GUESSES_MAX
from roost.server.auth.tokens import USED_EVERY_MS, decode_token
from roost.stores.memory import Memory, MemoryStore
from tests.security.callers import caller, quiet_server
from tests.server.inprocess_server import TOKEN, Events, InprocessServer, over_http

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Later:
    """A clock that can be put forward."""

    def __init__(self, made: InprocessServer) -> None:
        self._clock = made.engine.clock
        self.ahead_ms = 0
        made.engine.clock = self  # type: ignore[assignment]

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms


@pytest.fixture
async def made() -> AsyncIterator[InprocessServer]:
    async with quiet_server() as server:
        yield server


async def create(made: InprocessServer, **fields: Any) -> dict[str, Any]:
    body = {"name": "robot", "role": "submitter", "projects": ["web"], **fields}
    return await made.post("/v1/tokens", body, expect=201)


async def shown(made: InprocessServer, token: str) -> httpx.Response:
    return await made.client.get("/v1/workloads", headers={"authorization": f"Bearer {token}"})


async def test_a_token_is_reported_once_and_only_a_digest_is_kept(made: InprocessServer) -> None:
    token = await create(made)
    assert token["token"].startswith("roost_robot_") and len(token["token"]) == 64 + len("roost_robot_")
    secret = token["token"].rpartition("_")[2]
    listed = (await made.client.get("/v1/tokens")).text + (await made.client.get("/v1/tokens/robot")).text
    assert "robot" in listed and secret not in listed and "digest" not in listed
    stored = b"".join(made.engine.state.opaque_records["token"].values()) + b"".join(
        made.engine.state.opaque_records["audit"].values()
    )
    assert secret.encode() not in stored and bytes.fromhex(secret) not in stored


async def test_it_lasts_90_days_by_default(made: InprocessServer) -> None:
    token = await create(made)
    assert token["expires_ms"] - token["created_ms"] == 90 * DAY_MS
    assert (token["created_by"], token["expired"]) == ("root", False)


async def test_an_expired_token_opens_nothing(made: InprocessServer) -> None:
    clock = Later(made)
    token = await create(made, expires="30d")
    assert (await shown(made, token["token"])).status_code == 200
    clock.ahead_ms = 30 * DAY_MS
    answer = await shown(made, token["token"])
    assert (answer.status_code, answer.json()["code"]) == (401, "refused")
    assert (await made.get("/v1/tokens/robot"))["expired"] is True


async def test_a_revoked_token_opens_nothing_and_a_new_one_of_its_name_is_another(made: InprocessServer) -> None:
    old = (await create(made))["token"]
    assert (await made.client.delete("/v1/tokens/robot")).status_code == 204
    assert (await shown(made, old)).status_code == 401
    assert (await made.client.delete("/v1/tokens/robot")).status_code == 404
    new = (await create(made))["token"]
    assert [(await shown(made, item)).status_code for item in (old, new)] == [401, 200]


async def test_a_forged_token_is_refused_in_the_same_words_as_any_other(made: InprocessServer) -> None:
    token = (await create(made))["token"]
    last = "0" if token[-1] != "0" else "1"
    forged = [
        token[:-1] + last,
        token[:-1],
        token + "0",
        token.upper(),
        token.replace("robot", "nobody"),
        "roost_robot_",
        "roost_robot",
        "roost_",
        "roost__",
        "roost_robot_" + "00" * 32,
        "roost_../etc_" + "00" * 32,
        "a.b.c",
    ]
    before = made.snapshot()
    answers = [await shown(made, item) for item in forged]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert made.snapshot() == before


async def test_a_flipped_bit_anywhere_in_the_secret_is_noticed(made: InprocessServer) -> None:
    token = (await create(made))["token"]
    start = len("roost_robot_")
    for at in range(start, len(token), 7):
        other = format(int(token[at], 16) ^ 1, "x")
        assert (await shown(made, token[:at] + other + token[at + 1 :])).status_code == 401
    assert (await shown(made, token)).status_code == 200


async def test_both_secrets_are_good_while_they_overlap(made: InprocessServer) -> None:
    clock = Later(made)
    old = (await create(made))["token"]
    assert (await shown(made, old)).status_code == 200
    made_new = await made.post("/v1/tokens/robot/rotate", {"overlap": "1h"})
    new = made_new["token"]
    assert new != old and made_new["overlap_until_ms"] - made_new["rotated_ms"] == HOUR_MS
    assert [(await shown(made, item)).status_code for item in (old, new)] == [200, 200]
    clock.ahead_ms = HOUR_MS
    assert [(await shown(made, item)).status_code for item in (old, new)] == [401, 200]
    await made.post("/v1/tokens/robot/rotate", {"overlap": 0})
    assert [(await shown(made, item)).status_code for item in (old, new)] == [401, 401]


async def test_a_rotated_token_lasts_as_long_again_and_its_old_secret_no_longer_than_before(
    made: InprocessServer,
) -> None:
    clock = Later(made)
    old = (await create(made, expires="2h"))["token"]
    clock.ahead_ms = HOUR_MS + HOUR_MS // 2
    rotated = await made.post("/v1/tokens/robot/rotate", {"overlap": "1d"})
    assert rotated["expires_ms"] - rotated["rotated_ms"] == 2 * HOUR_MS
    clock.ahead_ms = 2 * HOUR_MS
    assert [(await shown(made, item)).status_code for item in (old, rotated["token"])] == [401, 200]


async def test_a_rotation_is_not_lost_to_a_use_that_is_written_meanwhile(made: InprocessServer) -> None:
    old = (await create(made))["token"]
    ask, uses = made.engine.ask, []

    async def meanwhile(make: Any, by: Any = None) -> Any:
        if not uses:
            uses.append(await shown(made, old))
            await made.until(lambda: decode_token(made.engine.state.opaque_records["token"]["robot"]).used_ms)
        return await ask(make, by)

    made.engine.ask = meanwhile  # type: ignore[method-assign]
    new = (await made.post("/v1/tokens/robot/rotate", {"overlap": 0}))["token"]
    assert len(uses) == 1
    assert [(await shown(made, item)).status_code for item in (old, new)] == [401, 200]


@pytest.mark.parametrize(
    ("fields", "status", "path"),
    [
        ({"name": "a_b.c"}, 422, "name"),
        ({"name": ""}, 422, "name"),
        ({"role": "king"}, 422, "role"),
        ({"projects": []}, 422, "projects"),
        ({"projects": ["*", "web"]}, 422, "projects"),
        ({"projects": ["web", "web"]}, 422, "projects[1]"),
        ({"projects": ["a/b"]}, 422, "projects[0]"),
        ({"projects": [f"p{number}" for number in range(101)]}, 422, "projects"),
        ({"expires": "400d"}, 422, "expires"),
        ({"expires": 0}, 422, "expires"),
        ({"expires": "soon"}, 422, "expires"),
        ({"secret": "mine"}, 422, "secret"),
    ],
    ids=str,
)
async def test_wrong_fields_are_named_and_make_nothing(
    made: InprocessServer, fields: dict[str, Any], status: int, path: str
) -> None:  # fmt: skip
    before = made.snapshot()
    body = {"name": "robot", "role": "viewer", "projects": ["web"], **fields}
    answer = await made.post("/v1/tokens", body, expect=status)
    assert answer["path"] == path
    assert made.snapshot() == before


async def test_a_name_in_use_is_a_conflict(made: InprocessServer) -> None:
    token = (await create(made))["token"]
    assert (await made.post("/v1/tokens", {"name": "robot", "role": "admin", "projects": ["*"]}, expect=409))[
        "code"
    ] == "name_in_use"
    assert (await shown(made, token)).status_code == 200


async def test_admins_of_a_project_give_away_what_they_have_and_no_more(made: InprocessServer) -> None:
    principal = await caller(made, "admin", "web", "shop")
    assert (
        await principal("POST", "/v1/tokens", {"name": "a", "role": "admin", "projects": ["shop"]})
    ).status_code == 201
    for projects in (["*"], ["other"], ["web", "other"]):
        answer = await principal("POST", "/v1/tokens", {"name": "b", "role": "viewer", "projects": projects})
        assert answer.status_code == 403 and projects[-1] in answer.json()["message"]
    never = {"name": "c", "role": "viewer", "projects": ["web"], "expires": "never"}
    assert (await principal("POST", "/v1/tokens", never)).json()["path"] == "expires"
    await made.post("/v1/tokens", never, expect=201)  # an admin of everything may
    assert (await principal("POST", "/v1/tokens/c/rotate", {})).status_code == 403  # and only one gives it another life
    assert (await principal("POST", "/v1/tokens/c/rotate", {"expires": "1d"})).status_code == 200


async def test_tokens_that_reach_further_are_not_to_be_seen(made: InprocessServer) -> None:
    principal = await caller(made, "admin", "web")
    await create(made, name="wide", projects=["web", "other"])
    await create(made, name="all", projects=["*"])
    await create(made, name="near", projects=["web"])
    assert {item["name"] for item in (await principal.get("/v1/tokens"))["items"]} == {principal.name, "near"}
    for name in ("wide", "all"):
        assert (await principal("DELETE", f"/v1/tokens/{name}")).status_code == 404
        assert (await principal("POST", f"/v1/tokens/{name}/rotate", {})).status_code == 404


async def test_the_token_of_a_project_that_is_gone_sees_nothing_and_nothing_else(made: InprocessServer) -> None:
    await made.client.put("/v1/projects/web", json={"weight": 2})
    await made.submit("other", project="other")
    principal = await caller(made, "submitter", "web")
    assert (await made.client.delete("/v1/projects/web")).status_code == 204
    assert (await principal.get("/v1/workloads"))["items"] == [] and (await principal.get("/v1/projects"))[
        "items"
    ] == []
    await principal.get("/v1/projects/web", expect=404)
    await principal.get("/v1/workloads/other/other", expect=404)


@pytest.mark.parametrize("size", [17_000, 1_000_000])
async def test_a_huge_header_is_refused_quickly(made: InprocessServer, size: int) -> None:
    for text in ("roost_" + "x" * size, "e" * size, "a." * size, "roost_robot_" + "\u0661" * 64):
        answer = await made.client.get("/v1/status", headers={"authorization": f"Bearer {text}".encode()})
        assert answer.status_code == 401


async def test_uses_are_remembered_and_written_once_an_hour(made: InprocessServer) -> None:
    clock = Later(made)
    token = (await create(made))["token"]
    assert (await made.get("/v1/tokens/robot"))["used_ms"] is None
    await shown(made, token)

    def written() -> int:
        return decode_token(made.engine.state.opaque_records["token"]["robot"]).used_ms

    first = await made.until(written)
    await made.engine.settled()
    revision = made.engine.state.revision
    clock.ahead_ms = USED_EVERY_MS - 1_000
    for _ in range(20):
        await shown(made, token)
    assert (made.engine.state.revision, written()) == (revision, first)
    assert (await made.get("/v1/tokens/robot"))["used_ms"] >= first + USED_EVERY_MS - 1_000
    clock.ahead_ms = USED_EVERY_MS + 1_000
    await asyncio.gather(*(shown(made, token) for _ in range(20)))
    await made.until(lambda: written() > first)
    assert made.engine.state.revision == revision + 1


async def test_tokens_outlive_the_server() -> None:
    memory = Memory()
    async with quiet_server_on(memory) as made:
        token = (await create(made))["token"]
        gone = (await create(made, name="gone"))["token"]
        await made.client.delete("/v1/tokens/gone")
    async with quiet_server_on(memory) as made:
        assert [(await shown(made, item)).status_code for item in (token, gone)] == [200, 401]


def quiet_server_on(memory: Memory) -> Any:
    return quiet_server(store=MemoryStore(memory))


async def test_every_change_is_in_the_audit_log_with_principal_and_address(made: InprocessServer) -> None:
    principal = await caller(made, "admin", "*")
    await principal("POST", "/v1/workloads", {"name": "job", "project": "web", "command": "true"})
    await principal("POST", "/v1/workloads/web/job/cancel", {})
    await principal("PUT", "/v1/projects/web", {"weight": 2})
    await principal("PUT", "/v1/pools/ci", {"strategy": "best_fit"})
    await principal("PUT", "/v1/projects/web/members/ann@example.com", {"role": "viewer"})
    await principal("POST", "/v1/tokens", {"name": "robot", "role": "viewer", "projects": ["web"]})
    await principal("DELETE", "/v1/tokens/robot")
    await principal("DELETE", "/v1/tokens/robot")  # refused: not in the log
    found = (await principal.get("/v1/audit", who=principal.name))["items"]
    assert [(item["what"], item["target"]) for item in reversed(found)] == [
        ("submit", "web/job"),
        ("cancel", "web/job"),
        ("setproject", "project web"),
        ("setpool", "pool ci"),
        ("putrecords", "member web/ann@example.com"),
        ("putrecords", "token robot"),
        ("putrecords", "token robot (gone)"),
    ]
    assert {(item["who"], item["where"]) for item in found} == {(f"token:{principal.name}", "127.0.0.1")}


async def test_the_audit_log_is_read_page_by_page_newest_first(made: InprocessServer) -> None:
    for number in range(5):
        await made.submit(f"job{number}")
    first = await made.get("/v1/audit", limit=2)
    second = await made.get("/v1/audit", limit=2, after=first["next"])
    targets = [item["target"] for item in first["items"] + second["items"]]
    assert targets == ["default/job4", "default/job3", "default/job2", "default/job1"]
    assert (await made.get("/v1/audit", what="drain"))["items"] == []
    assert len((await made.get("/v1/audit", who="root", what="submit"))["items"]) == 5
    assert (await made.get("/v1/audit", after=second["next"]))["next"] is None


async def test_whoami(made: InprocessServer) -> None:
    principal = await caller(made, "submitter", "web", "shop", expires="1d")
    answer = await principal.get("/v1/whoami")
    assert answer["name"] == f"token:{principal.name}"
    assert answer["roles"] == {"shop": "submitter", "web": "submitter"} and answer["expires_ms"]
    assert await made.get("/v1/whoami") == {
        "name": "root", "where": "127.0.0.1", "roles": {"*": "admin"}, "expires_ms": None,
    }  # fmt: skip


AT_ONCE_S = 5.0  # a third of the time between two comments on a silent stream


@pytest.mark.parametrize("path", ["/v1/changes", "/v1/workloads/web/job/instances/0/log/follow"])
async def test_a_revoked_token_ends_its_silent_streams_at_once(made: InprocessServer, path: str) -> None:
    await made.submit("job", project="web")
    subject = await caller(made, "viewer", "web")
    async with over_http(made) as client, client.stream("GET", path, headers=subject.headers) as answer:
        events = Events(answer)
        await events.next(marks=True)
        async with asyncio.timeout(AT_ONCE_S):
            assert (await made.client.delete(f"/v1/tokens/{subject.name}")).status_code == 204
            event = await events.next()
        assert event["event"] == "stopping" and "token" in event["data"]


async def test_guesses_of_the_root_token_are_slowed_by_address(made: InprocessServer) -> None:
    token = (await create(made))["token"]
    for number in range(GUESSES_MAX):
        assert (await shown(made, f"a-guess-of-the-root-token-{number}")).status_code == 401
    answer = await shown(made, "another-guess-of-the-root-token")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_often")
    assert int(answer.headers["retry-after"]) > 0
    assert (await shown(made, TOKEN)).status_code == 429, "the right one is not reported from a wrong one"
    assert (await shown(made, token)).status_code == 200, "tokens that cannot be guessed go on"
    elsewhere = httpx.ASGITransport(app=made.door, client=("192.0.2.9", 1))
    async with httpx.AsyncClient(transport=elsewhere, base_url="http://roost") as client:
        right = await client.get("/v1/workloads", headers={"authorization": f"Bearer {TOKEN}"})
    assert right.status_code == 200
