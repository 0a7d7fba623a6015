"""OIDC: persons that an OpenID issuer vouches for with a signed ID token.

The issuer's keys are fetched on first use, cached, and fetched again when they are old or a token names an unknown one.
Nothing that a token says of itself is followed: not where its key is, not how to check it.
"""

import asyncio
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from roost.model.errors import Invalid, NoService, Refused
from roost.model.records.access import subject_of
from roost.model.records.webhook import check_url
from roost.server.observability import logging

ALGORITHMS = frozenset({"RS256", "ES256", "EdDSA"})  # of private keys only: never `none`, never a shared secret
KEY_KINDS = frozenset({"RSA", "EC", "OKP"})
KEYS_MAX = 64  # issuers have two or three
ANSWER_BYTES_MAX = 256 << 10  # 64 keys with their certificates
ANSWER_S_MAX = 5.0  # both answers; a request waits for them
FRESH_S = 3_600.0  # a key that the issuer has withdrawn is trusted no longer than this, if the issuer answers
STALE_S_MAX = 86_400.0  # and no longer than this, if it does not
AGAIN_S = 60.0  # tokens with invented keys must not cause more requests to the issuer
AGAIN_FAILED_S = 5.0  # without any keys every login fails, so it is tried sooner
LEEWAY_S = 60  # clocks of two machines differ
VOUCHED_MAX = 4_096  # tokens whose signature need not be checked again: a quarter of a megabyte

UNKNOWN = "this identity is not known here, or no longer valid"

log = logging.logger("oidc")


class Person(NamedTuple):
    subject: str
    expires_ms: int


class Issuer:
    def __init__(self, url: str, client_id: str, claim: str, now_ms: Callable[[], int]) -> None:
        self.url = url
        self.client_id = client_id
        self._claim = claim
        self._now_ms = now_ms
        self._keys: dict[str, Any] = {}
        self._fetched_s = float("-inf")
        self._again_s = float("-inf")
        self._failed = ""
        self._fetching = asyncio.Lock()
        self._vouched: dict[bytes, Person] = {}

    async def vouch(self, text: str) -> Person:
        """The person of a signed ID token. Raises Refused, and NoService if the issuer does not answer."""
        digest = sha256(text.encode()).digest()
        fresh = time.monotonic() - self._fetched_s < FRESH_S
        person = self._vouched.get(digest) if fresh else None
        if person is None:
            person = self._person(await self._claims(text))
            if len(self._vouched) >= VOUCHED_MAX:
                self._vouched.clear()
            self._vouched[digest] = person
        if self._now_ms() >= person.expires_ms:
            raise Refused(UNKNOWN)
        return person

    async def _claims(self, text: str) -> Any:
        """The claims of a token that a key of the issuer has signed."""
        from joserfc import errors, jws  # imported here: a server without an issuer starts 30 ms sooner

        try:
            signed = jws.extract_compact(text.encode())
            header = signed.headers()
            if header.get("alg") not in ALGORITHMS or "crit" in header or "b64" in header:
                raise Refused(UNKNOWN)
            kid = header.get("kid", "")
            key = await self._key(kid if isinstance(kid, str) else "")
            registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", errors.SecurityWarning)  # EdDSA has a new name
                is_right = jws.validate_compact(signed, key, registry=registry)
            if not is_right:
                raise Refused(UNKNOWN)
            return msgspec.json.decode(signed.payload)
        except (errors.JoseError, ValueError):  # a ValueError: its parts are no base64, JSON or text
            raise Refused(UNKNOWN) from None

    def _person(self, claims: Any) -> Person:
        """The person of claims that are for us and valid now."""
        if not isinstance(claims, dict) or claims.get("iss") != self.url:
            raise Refused(UNKNOWN)
        audience = claims.get("aud")
        if self.client_id not in (audience if isinstance(audience, list) else [audience]):
            raise Refused(UNKNOWN)
        if claims.get("azp", self.client_id) != self.client_id:
            raise Refused(UNKNOWN)
        now = self._now_ms() / 1_000
        expires, issued, begins = (_moment(claims.get(name)) for name in ("exp", "iat", "nbf"))
        if expires is None or issued is None or max(issued, begins or 0) > now + LEEWAY_S:
            raise Refused(UNKNOWN)
        if self._claim == "email" and claims.get("email_verified") is not True:
            raise Refused("the issuer has not verified this e-mail address")
        subject = claims.get(self._claim)
        try:
            answer = subject_of(subject if isinstance(subject, str) else "", self._claim)
        except Invalid:
            raise Refused(UNKNOWN) from None
        return Person(answer, int((expires + LEEWAY_S) * 1_000))

    async def _key(self, kid: str) -> Any:
        """The issuer's key of a name; without a name, its only key."""
        if time.monotonic() - self._fetched_s >= FRESH_S or self._find(kid) is None:
            await self._fetch()
        key = self._find(kid)
        if time.monotonic() - self._fetched_s >= STALE_S_MAX or (key is None and self._failed):
            raise NoService(f"the issuer of identities cannot be asked: {self._failed}")
        if key is None:
            raise Refused(UNKNOWN)
        return key

    def _find(self, kid: str) -> Any:
        if not kid and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def _fetch(self) -> None:
        """Fetch the issuer's keys, unless that was done recently. Concurrent callers share one request."""
        async with self._fetching:
            if time.monotonic() < self._again_s:
                return
            try:
                self._keys = await asyncio.to_thread(fetch_keys, self.url)
                self._fetched_s = time.monotonic()
                self._failed = ""
                self._vouched.clear()
            except (OSError, HTTPException, ValueError, Invalid) as error:
                self._failed = str(error)[:200] or type(error).__name__
                log.warning("issuer cannot be asked", issuer=self.url, error=self._failed)
            self._again_s = time.monotonic() + (AGAIN_S if self._keys else AGAIN_FAILED_S)


def check_private_url(url: str, path: str) -> None:
    """Refuse URLs whose answers could be read or changed in transit: only https, and http on this machine."""
    check_url(url, path)
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise Invalid(path, f"{url!r:.200} must begin with https:// (http:// only on this machine)")


def fetch_keys(issuer: str) -> dict[str, Any]:
    """The issuer's keys for signatures, by name. Blocks; raises OSError, HTTPException, ValueError, Invalid."""
    from joserfc import errors, jwk

    until = time.monotonic() + ANSWER_S_MAX
    found = fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration", until)
    if found.get("issuer") != issuer:
        raise ValueError(f"it calls itself {found.get('issuer')!r:.100}")
    keys = fetch(str(found.get("jwks_uri")), until).get("keys")
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ValueError(f"it has no list of at most {KEYS_MAX} keys")
    usable: dict[str, Any] = {}
    for key in keys:
        if not isinstance(key, dict) or key.get("kty") not in KEY_KINDS or key.get("use", "sig") != "sig":
            continue
        try:
            usable[str(key.get("kid", ""))] = jwk.import_key(key)
        except (errors.JoseError, ValueError, TypeError, KeyError):
            continue  # of an unknown kind; tokens with it are refused
    return usable


def fetch(url: str, until: float) -> dict[str, Any]:
    """A JSON object from a URL, of bounded size, in bounded time, without redirects."""
    check_private_url(url, "url")
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    timeout_s = max(0.1, until - time.monotonic())
    with closing(kind(parts.hostname or "", parts.port, timeout=timeout_s)) as connection:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"{url} answers with status {response.status}")
        body = b""
        while piece := response.read1(64 << 10):
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                raise ValueError(f"{url} answers with more than {ANSWER_BYTES_MAX:,} bytes")
            if time.monotonic() > until:
                raise TimeoutError(f"{url} has not answered within {ANSWER_S_MAX:.0f} s")
    answer = msgspec.json.decode(body)  # its errors are ValueErrors
    if not isinstance(answer, dict):
        raise ValueError(f"{url} answers with something else than an object")
    return answer


def _moment(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
