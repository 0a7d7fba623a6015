"""Joining: how a machine becomes a node. A token goes to a server that it vouches for; a certificate comes back."""

import base64
import hashlib
import json
import re
import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from roost.agent.connection.identity import NodeIdentity, bundle_of, make_request
from roost.model.records.enrolment import Bundle, Credential, JoinToken

JOIN_S_MAX = 10.0  # of one request
JOIN_TRIES_S = 60.0  # a server that is being started at the same time is waited for
PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
ANSWER_BYTES_MAX = 64 << 10

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+)-----END CERTIFICATE-----")


class EnrolmentRefused(Exception):
    """Why this machine has not become a node."""


class EnrolmentUnreachable(Exception):
    """No server of the token could be spoken to."""


def join(identity: NodeIdentity, token: JoinToken, node: str, patience_s: float = JOIN_TRIES_S) -> Bundle:
    """Become a node with a token: at the first of its servers that answers. Raises Refused, Unreachable."""
    key, request = make_request(node)
    deadline, pause_s = time.monotonic() + patience_s, PAUSE_S_MIN
    while True:
        unreachable = []
        for url in token.urls:
            try:
                given = _ask_one(url, token, node, request)
            except EnrolmentUnreachable as error:
                unreachable.append(str(error))
                continue
            bundle = bundle_of(node, key, given)
            identity.write(bundle)
            return bundle
        if time.monotonic() > deadline:
            raise EnrolmentUnreachable("; ".join(unreachable))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _ask_one(url: str, token: JoinToken, node: str, request: str) -> Credential:
    """First the CA, for which only the token's fingerprint vouches; then the secret, over a line the CA vouches for."""
    authority = _pinned(str(_call(url, None, "GET").get("certificate", "")), token.authority)
    if authority is None:
        message = f"the server at {url} has another CA than this token was made for"
        raise EnrolmentRefused(f"{message}: it is not the one that made the token, or its CA was replaced since")
    body = {"id": token.id, "secret": token.secret, "node": node, "request": request}
    answer = _call(url, authority, "POST", body)
    try:
        given = msgspec.convert(answer, Credential)
    except msgspec.ValidationError as error:
        raise EnrolmentRefused(f"the server at {url} answers with something else than a certificate: {error}") from None
    if _pinned(given.authority, token.authority) != authority:
        raise EnrolmentRefused(f"the server at {url} answers with a certificate of another CA")
    return msgspec.structs.replace(given, authority=authority)


def _call(url: str, authority: str | None, method: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(host, parts.port, timeout=JOIN_S_MAX, context=_context(authority))
    else:
        connection = HTTPConnection(host, parts.port, timeout=JOIN_S_MAX)
    try:
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, "/v1/join", data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
        content = response.read(ANSWER_BYTES_MAX)
    except (OSError, HTTPException) as error:
        raise EnrolmentUnreachable(f"no server at {url}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EnrolmentUnreachable(f"at {url} is no Roost server; it answers with status {response.status}")
    if response.status in (500, 502, 503, 504):
        raise EnrolmentUnreachable(f"the server at {url} cannot accept new nodes now: {answer.get('message', '')}")
    if response.status >= 400:
        raise EnrolmentRefused(str(answer.get("message", f"the server answers with status {response.status}")))
    return answer


def _context(authority: str | None) -> ssl.SSLContext:
    """Without a CA nothing is verified: what is read over such a line is worth only what its fingerprint is."""
    context = ssl.create_default_context()  # an operator's own certificate may be of a CA that this system knows
    if authority is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=authority)
    return context


def _pinned(text: str, fingerprint: str) -> str | None:
    """The one certificate of a text if it has this fingerprint, written anew: nothing else in the text is trusted."""
    found = _CERTIFICATE.fullmatch(text.strip())
    try:
        der = base64.b64decode(found.group(1)) if found is not None else b""
    except ValueError:
        return None
    return ssl.DER_cert_to_PEM_cert(der) if hashlib.sha256(der).hexdigest() == fingerprint else None
