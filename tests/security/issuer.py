"""An OpenID issuer on loopback with real keys: discovery, keys, codes with PKCE, refresh tokens."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwk, jwt

from roost.client.login import challenge_of

CLIENT = "roost"
PERSON = "Ann@example.com"
KINDS = {"RS256": ("RSA", 2048), "ES256": ("EC", "P-256"), "EdDSA": ("OKP", "Ed25519")}


class LocalIssuer(ThreadingHTTPServer):
    """Signs for any caller that asks in a test; over HTTP only for the caller that has a code."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.keys: dict[str, Any] = {}
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        self.refresh = ["refresh-0"]  # the last one is good, once
        self.lifetime_s = 3_600
        self.odd: dict[str, Any] = {}  # path -> (status, headers, body) in place of the right answer
        for algorithm in KINDS:
            self.add_key(algorithm, algorithm)

    def add_key(self, kid: str, algorithm: str = "RS256") -> None:
        """One more key."""
        kind, size = KINDS[algorithm]
        self.keys[kid] = jwk.generate_key(kind, size, parameters={"kid": kid, "use": "sig"})  # type: ignore[arg-type]

    def public_pem(self, kid: str) -> bytes:
        """A public key as it can be downloaded."""
        return self.keys[kid].as_pem(private=False)

    def claims(self, **more: Any) -> dict[str, Any]:
        """A good identity, and what a test makes of it; None: without."""
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": CLIENT, "sub": "u-1", "email": PERSON, "email_verified": True, "iat": now,
            "exp": now + self.lifetime_s, **more,
        }  # fmt: skip
        return {name: value for name, value in claims.items() if value is not None}

    def sign(self, algorithm: str = "RS256", kid: str = "", key: Any = None, **more: Any) -> str:
        """An ID token."""
        kid = kid or algorithm
        header = {"alg": algorithm, "kid": kid}
        return jwt.encode(header, self.claims(**more), key or self.keys[kid], algorithms=[algorithm])

    def answer(self, path: str, query: dict[str, str], form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """What is at a path."""
        self.asked.append(path)
        if path in self.odd:
            return self.odd[path]
        if path == "/.well-known/openid-configuration":
            report = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
            report |= {"authorization_endpoint": f"{self.url}/authorize", "token_endpoint": f"{self.url}/token"}
            return 200, {}, json.dumps(report).encode()
        if path == "/keys":
            keys = [key.as_dict(private=False) for key in self.keys.values()]
            return 200, {}, json.dumps({"keys": keys}).encode()
        if path == "/authorize":
            return self._authorize(query)
        return self._token(form) if path == "/token" else (404, {}, b"{}")

    def _authorize(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256" and "openid" in query["scope"]
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        back = urlencode({"code": code, "state": query["state"]})
        return 302, {"Location": f"{query['redirect_uri']}?{back}"}, b""

    def _token(self, form: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        nonce = None
        if form["grant_type"] == "authorization_code":
            asked = self.codes.pop(form["code"], None)
            if asked is None or challenge_of(form["code_verifier"]) != asked["code_challenge"]:
                return 400, {}, b'{"error": "invalid_grant", "error_description": "this code is not known"}'
            nonce = asked["nonce"]
        elif form["refresh_token"] != self.refresh[-1]:
            return 400, {}, b'{"error": "invalid_grant", "error_description": "this refresh token was used"}'
        self.refresh.append(f"refresh-{len(self.refresh)}")
        given = {"id_token": self.sign(nonce=nonce), "refresh_token": self.refresh[-1], "token_type": "Bearer"}
        return 200, {}, json.dumps(given).encode()


class _Answer(BaseHTTPRequestHandler):
    server: LocalIssuer

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer({name: values[0] for name, values in parse_qs(body).items()})

    def _answer(self, form: dict[str, str]) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        status, headers, body = self.server.answer(parts.path, query, form)
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at `asked`."""


@contextmanager
def local_issuer() -> Iterator[LocalIssuer]:
    """An issuer that answers as long as the block."""
    server = LocalIssuer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
