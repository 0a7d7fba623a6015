"""Logging in: an identity from an OpenID issuer by way of the user's browser, kept in a client.toml and renewed.

Authorization code with PKCE: the browser is sent to the issuer and back to a port of this machine with a code, which
is worth nothing without the secret that only we know.
"""

import fcntl
import json
import os
import time
import tomllib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from roost.client.config import Config, write_private
from roost.client.errors import ClientError, Unreachable

ANSWER_BYTES_MAX = 1 << 20
ANSWER_S = 15.0
WAIT_S = 300.0  # time to find a password
RENEW_BEFORE_S = 60.0  # what ends within a minute may end on its way
SCOPE = "openid email profile offline_access"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class LoginIdentity(NamedTuple):
    """An ID token of the issuer, its expiry, and the token that renews it."""

    issuer: str
    client_id: str
    id_token: str
    refresh_token: str
    expires: int  # in seconds since 1970


def log_in(issuer: str, client_id: str, show: Callable[[str], None], wait_s: float = WAIT_S) -> LoginIdentity:
    """Log in: `show` gets the URL for the browser. Raises ClientError."""
    found = _discover(issuer)
    verifier, state, nonce = token_urlsafe(48), token_urlsafe(24), token_urlsafe(24)
    with _Returning(("127.0.0.1", 0), _Page) as server:
        back = f"http://127.0.0.1:{server.server_port}/"
        asked = {
            "response_type": "code", "client_id": client_id, "redirect_uri": back, "scope": SCOPE, "state": state,
            "nonce": nonce, "code_challenge": challenge_of(verifier), "code_challenge_method": "S256",
        }  # fmt: skip
        joint = "&" if "?" in found["authorization_endpoint"] else "?"
        show(f"{found['authorization_endpoint']}{joint}{urlencode(asked)}")
        answer = server.wait(state, wait_s)
    if "code" not in answer:
        message = answer.get("error_description") or answer.get("error") or "no code came back"
        raise ClientError(f"the issuer has not logged you in: {message[:200]}")
    form = {
        "grant_type": "authorization_code", "code": answer["code"], "redirect_uri": back,
        "client_id": client_id, "code_verifier": verifier,
    }  # fmt: skip
    return _identity(issuer, client_id, _ask(found["token_endpoint"], form), "", nonce)


def renew(old: LoginIdentity) -> LoginIdentity:
    if not old.refresh_token:
        raise ClientError("your login has ended", "log in again: `roost login`")
    found = _discover(old.issuer)
    asked = {"grant_type": "refresh_token", "refresh_token": old.refresh_token, "client_id": old.client_id}
    return _identity(old.issuer, old.client_id, _ask(found["token_endpoint"], asked), old.refresh_token, "")


def renewed(path: Path, url: str, stored: Mapping[str, Any], ca: str = "") -> Config:
    """The login of a client.toml, renewed where it is about to end. Raises ClientError."""
    identity = _kept(stored)
    if _is_ending(identity):
        # Of several commands one renews: many issuers take a refresh token once, and suspect theft the second time.
        with open(path.with_name(f".{path.name}.lock"), "w", opener=partial(os.open, mode=0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            identity = _kept(tomllib.loads(path.read_text(encoding="utf-8")).get("login", {}))
            if _is_ending(identity):
                identity = renew(identity)
                write_login(path, url, identity, ca)
    return Config(url, identity.id_token, ca)


def write_login(path: Path, url: str, identity: LoginIdentity, ca: str = "") -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, {"url": url} | ({"ca": ca} if ca else {}), login=identity._asdict())


def forget_login(path: Path) -> bool:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if "login" not in content:
        return False
    path.unlink()
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
    return True


def challenge_of(verifier: str) -> str:
    """The challenge of a code verifier (RFC 7636)."""
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _kept(stored: Mapping[str, Any]) -> LoginIdentity:
    texts = {name: str(stored.get(name, "")) for name in ("issuer", "client_id", "id_token", "refresh_token")}
    expires = stored.get("expires", 0)
    return LoginIdentity(**texts, expires=expires if isinstance(expires, int) else 0)


def _is_ending(identity: LoginIdentity) -> bool:
    return identity.expires - time.time() < RENEW_BEFORE_S


def _identity(issuer: str, client_id: str, given: Mapping[str, Any], refresh_token: str, nonce: str) -> LoginIdentity:
    """The tokens of the issuer. They are not verified here: they came from the issuer, and the server verifies them."""
    token = given.get("id_token")
    if not isinstance(token, str):
        raise ClientError("the issuer has given no ID token", "the client has to be allowed the scope `openid`")
    try:
        claims = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        expires = int(claims["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ClientError("the issuer has given an ID token that cannot be read") from None
    if nonce and claims.get("nonce") != nonce:
        raise ClientError("the answer of the issuer belongs to another login; log in again")
    return LoginIdentity(issuer, client_id, token, str(given.get("refresh_token") or refresh_token), expires)


class _Returning(HTTPServer):
    timeout = 1.0
    state = ""
    answer: dict[str, str] | None = None

    def wait(self, state: str, wait_s: float) -> dict[str, str]:
        """The query with which the browser returns; one without our `state` belongs to another login."""
        self.state = state
        until = time.monotonic() + wait_s
        while self.answer is None:
            if time.monotonic() > until:
                raise ClientError(f"no login within {wait_s:.0f} s", "`roost login` tries again")
            self.handle_request()
        return self.answer


class _Page(BaseHTTPRequestHandler):
    server: _Returning
    timeout = 5.0  # a connection without a request must not hold up the one that counts

    def do_GET(self) -> None:
        brought = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        is_ours = brought.get("state") == self.server.state
        if is_ours:
            self.server.answer = brought
        message = b"You can close this page and go back to your terminal.\n"
        if not is_ours:
            message = b"This is not known here.\n"
        self.send_response(200 if is_ours else 404)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(message)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(message)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal free for the login."""


def _discover(issuer: str) -> dict[str, Any]:
    found = _ask(f"{issuer.rstrip('/')}/.well-known/openid-configuration", None)
    if found.get("issuer") != issuer:
        raise ClientError(f"the issuer at {issuer} calls itself {found.get('issuer')!r:.100}")
    for name in ("authorization_endpoint", "token_endpoint"):
        if not isinstance(found.get(name), str):
            raise ClientError(f"the issuer at {issuer} has no {name}")
        _checked(found[name])
    return found


def _ask(url: str, form: Mapping[str, str] | None) -> dict[str, Any]:
    """A JSON object from the issuer; with a form, in answer to it. Nothing is followed."""
    secure, host, port, target = _checked(url)
    connection = (HTTPSConnection if secure else HTTPConnection)(host, port, timeout=ANSWER_S)
    headers = {"Accept": "application/json"}
    if form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        body = urlencode(form).encode() if form is not None else None
        connection.request("GET" if form is None else "POST", target, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read(ANSWER_BYTES_MAX))
    except (OSError, HTTPException) as error:
        raise Unreachable(f"no issuer at {url}: {error}") from None
    except ValueError:
        raise ClientError(f"{url} has answered with something else than JSON (status {response.status})") from None
    finally:
        connection.close()
    if not isinstance(answer, dict) or response.status != 200:
        report = answer if isinstance(answer, dict) else {}
        message = str(report.get("error_description") or report.get("error") or f"status {response.status}")[:200]
        raise ClientError(f"the issuer has refused: {message}", "log in again: `roost login`")
    return answer


def _checked(url: str) -> tuple[bool, str, int | None, str]:
    """The parts of a URL to which secrets may be sent: https, or this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOOPBACK):
        raise ClientError(f"{url[:200]} is not safe to log in at: it has to begin with https://")
    return parts.scheme == "https", host, parts.port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
