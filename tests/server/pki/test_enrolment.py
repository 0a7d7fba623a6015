"""Joining: tokens that are made, listed, used up and revoked; and a machine that comes with one."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from roost.agent.connection.identity import make_request
from roost.model.errors import Invalid
from roost.model.records.enrolment import JoinToken, read_token
from roost.server import attempts
from roost.server.pki import enrolment as joining_module
from roost.server.pki.certificates import Certificates
from tests.certified import authority
from tests.server.inprocess_server import InprocessServer, inprocess_server

URLS = ("https://roost.example:8420", "https://10.0.0.1:8420")


@asynccontextmanager
async def inviting(**settings: Any) -> AsyncIterator[InprocessServer]:
    """A server that machines can join."""
    async with inprocess_server(**settings) as made:
        certificates = Certificates(made.engine, authority(), ("roost.example:8421",))
        made.context.joining.begin(certificates, URLS)
        yield made


async def made_token(at: InprocessServer, **asked: Any) -> JoinToken:
    answer = await at.client.post("/v1/join-tokens", json=asked)
    assert answer.status_code == 201, answer.text
    return read_token(answer.json()["token"])


async def joins(at: InprocessServer, token: JoinToken, node: str = "n1", **altered: Any) -> httpx.Response:
    """A machine asks, with nothing but what the token says."""
    body = {"id": token.id, "secret": token.secret, "node": node, "request": make_request("n1")[1], **altered}
    transport = httpx.ASGITransport(app=at.door)
    async with httpx.AsyncClient(transport=transport, base_url="http://roost") as stranger:
        return await stranger.post("/v1/join", json=body)


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_has_the_server_the_ca_and_the_secret() -> None:
    async with inviting() as at:
        token = await made_token(at)
        assert (token.urls, token.authority) == (URLS, authority().fingerprint)
        assert len(token.secret) >= 32


async def test_tokens_are_listed_without_their_secrets() -> None:
    async with inviting() as at:
        one = await made_token(at, pool="ci", uses=3, expires="1d")
        two = await made_token(at, uses="unlimited")
        answer = await at.client.get("/v1/join-tokens")
        assert one.secret not in answer.text and two.secret not in answer.text
        listed = {item["id"]: item for item in answer.json()["items"]}
        assert (listed[one.id]["pool"], listed[one.id]["uses"]) == ("ci", 3)
        assert (listed[two.id]["pool"], listed[two.id]["uses"]) == ("", None)
        assert listed[one.id]["expires_ms"] - listed[one.id]["created_ms"] == 86_400_000


async def test_a_secret_is_stored_as_a_hash() -> None:
    async with inviting() as at:
        token = await made_token(at)
        assert token.secret.encode() not in at.engine.state.opaque_records["join"][token.id]


@pytest.mark.parametrize(
    "asked, path",
    [
        ({"uses": 0}, "uses"),
        ({"uses": "many"}, "uses"),
        ({"uses": -1}, "uses"),
        ({"pool": "a/b"}, "pool"),
        ({"expires": "0s"}, "expires"),
        ({"expires": "400d"}, "expires"),
        ({"expires": "soon"}, "expires"),
        ({"for": "ever"}, "for"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_field(asked: dict[str, Any], path: str) -> None:
    async with inviting() as at:
        before = at.snapshot()
        answer = await at.client.post("/v1/join-tokens", json=asked)
        assert (answer.status_code, answer.json()["path"]) == (422, path)
        assert at.snapshot() == before


async def test_a_revoked_token_is_worth_nothing_and_a_node_that_joined_with_it_stays() -> None:
    async with inviting() as at:
        token = await made_token(at, uses=2)
        assert (await joins(at, token)).status_code == 201
        assert (await at.client.delete(f"/v1/join-tokens/{token.id}")).status_code == 204
        assert (await joins(at, token, "n2")).status_code == 401
        assert "n1" in at.engine.state.opaque_records["certificate"]
        assert (await at.client.delete(f"/v1/join-tokens/{token.id}")).status_code == 404


async def test_tokens_whose_time_is_over_go_when_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inviting() as at:
        old = await made_token(at, expires="1s")
        later = joining_module.now_ms() + 2_000
        monkeypatch.setattr(joining_module, "now_ms", lambda: later)
        assert (await at.get("/v1/join-tokens"))["items"] == []
        new = await made_token(at)
        assert list(at.engine.state.opaque_records["join"]) == [new.id] != [old.id]


# --- joining ----------------------------------------------------------------------------------------------------------


async def test_a_machine_joins_with_nothing_but_the_token() -> None:
    async with inviting() as at:
        answer = await joins(at, await made_token(at, pool="ci"))
        assert answer.status_code == 201
        given = answer.json()
        assert given["authority"] == authority().certificate
        assert (given["pool"], given["servers"]) == ("ci", ["roost.example:8421"])
        assert given["expires_ms"] - given["issued_ms"] == 30 * 86_400_000
        assert (await at.get("/v1/join-tokens"))["items"] == []


async def test_all_clients_may_have_the_certificate_of_the_ca() -> None:
    async with inviting() as at:
        transport = httpx.ASGITransport(app=at.door)
        async with httpx.AsyncClient(transport=transport, base_url="http://roost") as stranger:
            answer = (await stranger.get("/v1/join")).json()
            assert answer == {"certificate": authority().certificate, "fingerprint": authority().fingerprint}
            assert (await stranger.get("/v1/join-tokens")).status_code == 401
            assert (await stranger.options("/v1/join")).status_code == 401


async def test_a_token_for_one_is_refused_the_second_time() -> None:
    async with inviting() as at:
        token = await made_token(at)
        assert (await joins(at, token)).status_code == 201
        answer = await joins(at, token, "n2")
        assert (answer.status_code, answer.json()["code"]) == (401, "join_refused")
        assert list(at.engine.state.opaque_records["certificate"]) == ["n1"]


async def test_of_many_that_use_a_token_for_one_at_once_one_joins() -> None:
    async with inviting() as at:
        token = await made_token(at)
        answers = await asyncio.gather(*(joins(at, token, f"n{number}") for number in range(8)))
        assert sorted(answer.status_code for answer in answers) == [201] + [401] * 7
        assert len(at.engine.state.opaque_records["certificate"]) == 1


async def test_of_many_that_use_a_token_for_three_at_once_three_join() -> None:
    async with inviting() as at:
        token = await made_token(at, uses=3)
        answers = await asyncio.gather(*(joins(at, token, f"n{number}") for number in range(8)))
        assert sorted(answer.status_code for answer in answers) == [201] * 3 + [401] * 5


async def test_a_token_without_a_count_is_not_used_up() -> None:
    async with inviting() as at:
        token = await made_token(at, uses="unlimited")
        answers = await asyncio.gather(*(joins(at, token, f"n{number}") for number in range(8)))
        assert [answer.status_code for answer in answers] == [201] * 8


async def test_a_token_whose_time_is_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inviting() as at:
        token = await made_token(at, expires="1s")
        later = joining_module.now_ms() + 2_000
        monkeypatch.setattr(joining_module, "now_ms", lambda: later)
        answer = await joins(at, token)
        assert answer.status_code == 401
        assert "time of this join token is over" in answer.json()["message"]


@pytest.mark.parametrize("altered", [{"id": "0000000000"}, {"secret": "guessed"}, {"secret": ""}, {"id": ""}])
async def test_an_unknown_or_altered_token_is_refused(altered: dict[str, str]) -> None:
    async with inviting() as at:
        token = await made_token(at)
        answer = await joins(at, token, **altered)
        assert (answer.status_code, answer.json()["code"]) == (401, "join_refused")
        assert (await joins(at, token)).status_code == 201  # and the real one has not suffered


@pytest.mark.parametrize(
    "altered, path",
    [({"node": "a b"}, "node"), ({"node": ""}, "node"), ({"request": "none"}, "request"), ({"root": True}, "root")],
)
async def test_a_request_that_makes_no_sense_uses_nothing_up(altered: dict[str, Any], path: str) -> None:
    async with inviting() as at:
        token = await made_token(at)
        answer = await joins(at, token, **altered)
        assert (answer.status_code, answer.json()["path"]) == (422, path)
        assert (await joins(at, token)).status_code == 201


async def test_requests_without_a_token_are_small() -> None:
    async with inviting() as at:
        answer = await joins(at, await made_token(at), secret="x" * 20_000)
        assert answer.status_code == 413


async def test_an_unknown_sender_is_read_as_json_only() -> None:
    transport, headers = httpx.ASGITransport, {"content-type": "application/yaml"}
    async with inviting() as at, httpx.AsyncClient(transport=transport(app=at.door), base_url="http://roost") as sender:
        answer = await sender.post("/v1/join", content=b"{a: " * 4_000, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_type")


async def test_a_caller_that_guesses_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inviting() as at:
        token = await made_token(at)
        for _ in range(joining_module.BAD_MAX):
            assert (await joins(at, token, secret="guessed")).status_code == 401
        assert (await joins(at, token)).status_code == 429
        assert (await joins(at, await made_token(at), node="n2")).status_code == 201, "others behind the same proxy"
        monkeypatch.setattr(attempts, "WINDOW_S", 0.0)
        assert (await joins(at, token)).status_code == 201


async def test_guessing_many_tokens_from_one_address_is_bounded_too() -> None:
    async with inviting() as at:
        token = await made_token(at)
        for number in range(joining_module.ADDRESS_BAD_MAX):
            assert (await joins(at, token, id=f"{number:010}", secret="guessed")).status_code == 401
        assert (await joins(at, token)).status_code == 429


async def test_unreadable_requests_of_strangers_are_counted_and_then_refused_unread() -> None:
    transport = httpx.ASGITransport
    async with inviting() as at, httpx.AsyncClient(transport=transport(app=at.door), base_url="http://roost") as sender:
        for _ in range(joining_module.ADDRESS_BAD_MAX):
            assert (await sender.post("/v1/join", content=b"{")).status_code == 400

        async def unread() -> AsyncIterator[bytes]:
            raise AssertionError("the body was read")
            yield b""

        answer = await sender.post("/v1/join", content=unread())
        assert (answer.status_code, answer.json()["code"]) == (429, "too_often")


async def test_a_name_that_another_machine_has_is_refused_and_the_token_is_not_used_up() -> None:
    async with inviting() as at:
        assert (await joins(at, await made_token(at))).status_code == 201
        await at.agent("n1")
        token = await made_token(at)
        answer = await joins(at, token)
        assert (answer.status_code, answer.json()["code"]) == (409, "node_exists")
        assert "roost nodes remove n1" in answer.json()["message"]
        assert (await joins(at, token, "n2")).status_code == 201


async def test_the_name_of_a_node_that_is_lost_is_free_again() -> None:
    async with inviting(lease_ms=50, lease_margin_ms=5) as at:
        assert (await joins(at, await made_token(at))).status_code == 201
        await at.agent("n1")
        await at.until(lambda: at.engine.state.nodes["n1"].status == "lost")
        before = at.engine.state.opaque_records["certificate"]["n1"]
        assert (await joins(at, await made_token(at))).status_code == 201
        assert at.engine.state.opaque_records["certificate"]["n1"] != before


async def test_a_machine_that_joined_and_never_came_can_be_removed() -> None:
    async with inviting() as at:
        assert (await joins(at, await made_token(at))).status_code == 201
        assert (await joins(at, await made_token(at))).status_code == 409
        assert (await at.client.delete("/v1/nodes/n1")).status_code == 204
        assert (await joins(at, await made_token(at))).status_code == 201


async def test_every_join_is_audited_with_its_token() -> None:
    async with inviting() as at:
        token = await made_token(at)
        await joins(at, token)
        answer = await at.get("/v1/audit")
        assert [item["who"] for item in answer["items"]][:2] == [f"join-token:{token.id}", "root"]
        assert token.secret not in str(answer)


# --- the token as text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "roost-join-",
        "roost-join-!!!",
        "roost-join-" + base64.urlsafe_b64encode(b"[[],1]").decode(),
        "roost-join-" + base64.urlsafe_b64encode(b'[[],"a","b","c"]').decode(),
        "roost-join-" + base64.urlsafe_b64encode(b'[["ftp://x"],"a","b","c"]').decode(),
        "roost-join-" + "A" * 10_000,
        JoinToken(URLS, "f", "i", "s").text()[:-8],
    ],
)
def test_what_is_not_a_token_is_reported(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_token(text)
    assert refused.value.path == "join"


def test_a_token_is_one_word_that_survives_being_copied() -> None:
    token = JoinToken(URLS, "f" * 64, "0123456789", "secret")
    assert read_token(f"  {token.text()}\n") == token
    assert token.text().isascii() and " " not in token.text()
