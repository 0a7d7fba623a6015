"""OIDC: an identity of the right issuer, for us, for now, signed with its key. Everything else is no identity."""

import base64
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from joserfc import jwk, jwt

from roost.model.errors import Invalid
from roost.server.auth import oidc
from roost.server.auth.oidc import Issuer, check_private_url
from tests.security.issuer import CLIENT, KINDS, LocalIssuer, local_issuer
from tests.server.inprocess_server import InprocessServer, inprocess_server

MEMBER = "/v1/projects/web/members/ann@example.com"
KEYS = "/keys"


@pytest.fixture(scope="module")
def signing() -> Iterator[LocalIssuer]:
    with local_issuer() as server:
        yield server


@pytest.fixture
async def made(signing: LocalIssuer) -> AsyncIterator[InprocessServer]:
    signing.odd.clear()
    signing.asked.clear()
    async with inprocess_server() as status:
        believe(status, signing)
        yield status


def believe(made: InprocessServer, signing: LocalIssuer, claim: str = "email") -> None:
    made.auth.issuer = Issuer(signing.url, CLIENT, claim, made.engine.clock.now_ms)


async def shown(made: InprocessServer, token: str, path: str = "/v1/whoami") -> httpx.Response:
    return await made.client.get(path, headers={"authorization": f"Bearer {token}"})


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", KINDS)
async def test_a_person_comes_in_with_the_roles_of_its_memberships(
    made: InprocessServer, signing: LocalIssuer, algorithm: str
) -> None:  # fmt: skip
    token = signing.sign(algorithm)
    answer = (await shown(made, token)).json()
    assert (answer["name"], answer["roles"]) == ("user:ann@example.com", {})
    assert (await shown(made, token, "/v1/workloads")).status_code == 403
    assert (await made.client.put(MEMBER, json={"role": "viewer"})).status_code == 200
    assert (await shown(made, token)).json()["roles"] == {"web": "viewer"}
    assert (await shown(made, token, "/v1/workloads")).status_code == 200
    assert (await made.client.delete(MEMBER)).status_code == 204
    assert (await shown(made, token, "/v1/workloads")).status_code == 403


async def test_roles_everywhere_are_of_the_project_star(made: InprocessServer, signing: LocalIssuer) -> None:
    await made.client.put("/v1/projects/*/members/ANN@example.com", json={"role": "operator"})
    token = signing.sign()
    assert (await shown(made, token)).json()["roles"] == {"*": "operator"}
    assert (await shown(made, token, "/v1/audit")).json()["items"][0]["target"] == "member */ann@example.com"


async def test_what_a_person_does_is_in_the_audit_log(made: InprocessServer, signing: LocalIssuer) -> None:
    await made.client.put(MEMBER, json={"role": "submitter"})
    headers = {"authorization": f"Bearer {signing.sign()}"}
    document = {"name": "job", "project": "web", "command": "true"}
    assert (await made.client.post("/v1/workloads", json=document, headers=headers)).status_code == 201
    assert [item["what"] for item in (await made.get("/v1/audit", who="ann@example.com"))["items"]] == ["submit"]


async def test_another_claim_than_the_address(made: InprocessServer, signing: LocalIssuer) -> None:
    believe(made, signing, "sub")
    token = signing.sign(email=None, email_verified=None)
    assert (await shown(made, token)).json()["name"] == "user:u-1"


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": None},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"iss": "https://issuer.example.com"},
        {"iss": None},
        {"exp": 1},
        {"exp": None},
        {"exp": "9999999999"},
        {"exp": True},
        {"iat": None},
        {"iat": 9_999_999_999},
        {"nbf": 9_999_999_999},
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email": None},
        {"email": ""},
        {"email": 5},
        {"email": "a b@example.com"},
        {"email": "*/ann@example.com"},
        {"email": "\u0430nn@example.com"},
        {"email": "a" * 300},
    ],
    ids=str,
)
async def test_an_identity_that_is_not_for_us_or_not_for_now(
    made: InprocessServer, signing: LocalIssuer, claims: dict[str, Any]
) -> None:  # fmt: skip
    answer = await shown(made, signing.sign(**claims))
    assert (answer.status_code, answer.json()["code"]) == (401, "refused")


def signed_with(secret: bytes, claims: dict[str, Any]) -> str:
    """A token whose secret is something public; libraries refuse to make one."""
    text = f"{encoded({'alg': 'HS256', 'kid': 'RS256'})}.{encoded(claims)}"
    return f"{text}.{base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), 'sha256')).rstrip(b'=').decode()}"


def forged(signing: LocalIssuer) -> dict[str, str]:
    """Identities not signed with the right key."""
    good = signing.sign()
    head, body, signature = good.split(".")
    other = jwk.generate_key("RSA", 2048)
    claims = signing.claims()
    public = other.as_dict(private=False)
    return {
        "alg none": f"{encoded({'alg': 'none'})}.{encoded(claims)}.",
        "alg none with a kid": f"{encoded({'alg': 'none', 'kid': 'RS256'})}.{body}.{signature}",
        "alg None": f"{encoded({'alg': 'None', 'kid': 'RS256'})}.{body}.",
        "HS256 with the public key": signed_with(signing.public_pem("RS256"), claims),
        "RS512": jwt.encode({"alg": "RS512", "kid": "RS256"}, claims, signing.keys["RS256"], ["RS512"]),
        "another key of the same name": signing.sign(key=other),
        "a key that is not known": jwt.encode({"alg": "RS256", "kid": "new"}, claims, other, ["RS256"]),
        "no name of a key among several": jwt.encode({"alg": "RS256"}, claims, signing.keys["RS256"], ["RS256"]),
        "brings its own key": jwt.encode({"alg": "RS256", "jwk": public}, claims, other, ["RS256"]),
        "the wrong kind of key": f"{encoded({'alg': 'RS256', 'kid': 'ES256'})}.{body}.{signature}",
        "another body": f"{head}.{encoded({**claims, 'email': 'root@example.com'})}.{signature}",
        "half a signature": f"{head}.{body}.{signature[:-20]}",
        "no signature": f"{head}.{body}.",
        "critical": f"{encoded({'alg': 'RS256', 'kid': 'RS256', 'crit': ['b64'], 'b64': False})}.{body}.{signature}",
        "no JSON": f"{base64.urlsafe_b64encode(b'{{').decode()}.{body}.{signature}",
        "a list": f"{encoded([1])}.{body}.{signature}",
        "a number as the name of a key": f"{encoded({'alg': 'RS256', 'kid': 5})}.{body}.{signature}",
        "dots": "..",
        "a bit flipped": f"{head}.{body}.{signature[:50]}{'A' if signature[50] != 'A' else 'B'}{signature[51:]}",
    }


async def test_tokens_not_signed_with_the_right_key_are_refused(made: InprocessServer, signing: LocalIssuer) -> None:
    await made.client.put(MEMBER, json={"role": "admin"})
    assert (await shown(made, signing.sign())).status_code == 200
    before = made.snapshot()
    for what, token in forged(signing).items():
        answer = await shown(made, token)
        assert (answer.status_code, answer.json()["code"]) == (401, "refused"), what
    assert made.snapshot() == before


async def test_keys_are_fetched_once_and_for_unknown_names_once_a_minute(
    made: InprocessServer, signing: LocalIssuer
) -> None:
    for _ in range(5):
        assert (await shown(made, signing.sign())).status_code == 200
    assert signing.asked.count(KEYS) == 1
    signing.add_key("unheard-of")
    try:
        for _ in range(5):
            assert (await shown(made, signing.sign(kid="unheard-of"))).status_code == 401
        assert signing.asked.count(KEYS) == 1
        assert made.auth.issuer is not None
        made.auth.issuer._again_s = 0  # a minute later
        assert (await shown(made, signing.sign(kid="unheard-of"))).status_code == 200
        assert signing.asked.count(KEYS) == 2
    finally:
        del signing.keys["unheard-of"]


async def test_a_key_that_is_withdrawn_is_not_believed_for_long(
    made: InprocessServer, signing: LocalIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    signing.add_key("old")
    token = signing.sign(kid="old")
    assert (await shown(made, token)).status_code == 200
    del signing.keys["old"]
    assert (await shown(made, token)).status_code == 200
    monkeypatch.setattr(oidc, "FRESH_S", 0.0)
    assert made.auth.issuer is not None
    made.auth.issuer._again_s = 0
    assert (await shown(made, token)).status_code == 401


async def test_without_its_issuer_persons_wait_and_all_others_come_in(made: InprocessServer) -> None:
    with local_issuer() as gone:
        believe(made, gone)
        token = gone.sign()
    robot = (await made.post("/v1/tokens", {"name": "robot", "role": "viewer", "projects": ["web"]}, 201))["token"]
    answer = await shown(made, token)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")
    assert (await shown(made, robot)).status_code == 200
    await made.get("/v1/whoami")


async def test_known_keys_are_good_for_a_while_without_the_issuer(
    made: InprocessServer, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with local_issuer() as gone:
        believe(made, gone)
        token, other = gone.sign(), gone.sign("ES256")
        assert (await shown(made, token)).status_code == 200
    monkeypatch.setattr(oidc, "FRESH_S", 0.0)
    assert made.auth.issuer is not None
    made.auth.issuer._again_s = 0
    assert (await shown(made, other)).status_code == 200
    monkeypatch.setattr(oidc, "STALE_S_MAX", 0.0)
    assert (await shown(made, token)).status_code == 503


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (KEYS, (302, {"Location": "http://127.0.0.1:1/keys"}, b"")),
        (KEYS, (200, {}, b"x" * (oidc.ANSWER_BYTES_MAX + 1))),
        (KEYS, (200, {}, b"[]")),
        (KEYS, (200, {}, b'{"keys": 5}')),
        (KEYS, (200, {}, json.dumps({"keys": [{}] * 65}).encode())),
        (KEYS, (500, {}, b"{}")),
        ("/.well-known/openid-configuration", (200, {}, b'{"issuer": "https://another.example.com"}')),
        ("/.well-known/openid-configuration", (404, {}, b"")),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_odd_answers_of_the_issuer_let_no_caller_in(
    made: InprocessServer, signing: LocalIssuer, path: str, answer: Any
) -> None:  # fmt: skip
    signing.odd[path] = answer
    assert (await shown(made, signing.sign())).status_code == 503


async def test_keys_of_no_use_are_passed_over(made: InprocessServer, signing: LocalIssuer) -> None:
    secret = {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"}
    private = jwk.generate_key("RSA", 2048)
    for_encryption = {**private.as_dict(private=False), "kid": "enc", "use": "enc"}
    good = signing.keys["RS256"].as_dict(private=False)
    keys = [secret, for_encryption, {"kty": "RSA", "kid": "broken"}, 5, good]
    signing.odd[KEYS] = (200, {}, json.dumps({"keys": keys}).encode())
    assert (await shown(made, signing.sign())).status_code == 200
    shared = jwt.encode({"alg": "HS256", "kid": "shared"}, signing.claims(), jwk.import_key(secret), ["HS256"])
    for token in (shared, signing.sign(kid="enc", key=private)):
        assert (await shown(made, token)).status_code == 401


async def test_where_to_log_in_is_open_to_all(made: InprocessServer, signing: LocalIssuer) -> None:
    del made.client.headers["authorization"]
    assert await made.get("/v1/login") == {"issuer": signing.url, "client_id": CLIENT}
    made.auth.issuer = None
    assert "token" in (await made.get("/v1/login", expect=404))["message"]


@pytest.mark.parametrize(
    "url",
    [
        "", "issuer", "http://issuer.example.com", "ftp://issuer.example.com", "https://", "https://a:b@example.com",
        "https://example.com/#x", "http://127.0.0.1.example.com", "https://[::1", "http://0.0.0.0",
    ],
)  # fmt: skip
def test_issuers_that_are_not_safe_to_ask(url: str) -> None:
    with pytest.raises(Invalid):
        check_private_url(url, "oidc_issuer")


@pytest.mark.parametrize("url", ["https://issuer.example.com/realm", "http://127.0.0.1:80", "http://[::1]:8080/x"])
def test_issuers_that_are(url: str) -> None:
    check_private_url(url, "oidc_issuer")
