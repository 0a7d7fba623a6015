"""Authentication: the root token of the server's configuration, API tokens, and persons that an issuer vouches for.

`operations/permit.py` decides what they may do. Only the probes, login and joining need no token.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from typing import Any

from roost.model.errors import NoService, Refused, RoostError, TooOften
from roost.server.attempts import WrongAttempts
from roost.server.auth.oidc import Issuer, Person
from roost.server.auth.principal import ALL, PRINCIPAL, Principal
from roost.server.auth.tokens import PREFIX, Members, Tokens
from roost.server.engine.engine import Engine
from roost.server.http.api.errors import RETRY_AFTER_S, encode_error
from roost.server.http.connections import CONNECTION
from roost.server.observability import logging
from roost.server.waiting import LoopShare

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

OPEN_PATHS = frozenset({"/livez", "/readyz", "/leader", "/v1/login", "/v1/join"})
ROOT = "root"
REALM = b'Bearer realm="roost"'
SAID_BYTES_MAX = 16 << 10  # of a bearer: identities with many groups have 8 KiB
GUESSES_MAX = 10  # of the root token, per address and minute; API tokens cannot be guessed
UNKNOWN = "this token is not known here, or no longer valid"  # never which of the two: that would help to guess


class Auth:
    def __init__(self, engine: Engine, root_token: str, issuer: Issuer | None = None) -> None:
        self._root = root_token.encode()
        self._engine = engine
        self.tokens = Tokens(engine)
        self.members = Members(engine)
        self.issuer = issuer
        self._guesses = WrongAttempts(GUESSES_MAX)

    async def admit(self, shown: bytes, where: str) -> Principal:
        """The principal of a bearer. Raises Refused, TooOften; NoService if its issuer does not answer."""
        is_slowed = self._guesses.are_too_many(where)
        if not is_slowed and compare_digest(shown, self._root):
            return Principal(ROOT, where, ALL, still=lambda: True)
        if len(shown) > SAID_BYTES_MAX or not shown.isascii():
            raise Refused(UNKNOWN)
        text = shown.decode()
        if text.startswith(PREFIX):
            return self._admit_token(text, where)
        if self.issuer is not None and text.count(".") == 2:
            return self._admit_person(await self.issuer.vouch(text), where)
        # It can only have been meant as the root token, which an operator may have chosen.
        self._guesses.note(where)
        if is_slowed:
            raise TooOften(f"more than {GUESSES_MAX} wrong tokens from {where or 'there'}; wait a minute")
        raise Refused(UNKNOWN)

    def _admit_token(self, text: str, where: str) -> Principal:
        found = self.tokens.admit(text)
        if found is None and not self._engine.readable:
            raise NoService(self._engine.failed or "the server is starting")  # no token is loaded yet
        if found is None:
            raise Refused(UNKNOWN)
        name, cached = found

        def still() -> bool:
            again = self.tokens.admit(text)
            return again is not None and again[1].access.roles() == cached.access.roles()

        return Principal(f"token:{name}", where, cached.access, cached.token.expires_ms, still, (name,))

    def _admit_person(self, person: Person, where: str) -> Principal:
        if not self._engine.readable:
            raise NoService(self._engine.failed or "the server is starting")
        access = self.members.access(person.subject)

        def still() -> bool:
            now = self._engine.clock.now_ms()
            return now < person.expires_ms and self.members.access(person.subject).roles() == access.roles()

        records = tuple(f"{project}/{person.subject}" for project in access.roles())
        return Principal(f"user:{person.subject}", where, access, person.expires_ms, still, records)


class AuthMiddleware:
    """The outermost layer: a request of an unknown caller learns nothing, not even which paths exist."""

    def __init__(self, app: App, auth: Auth) -> None:
        self._app = app
        self._auth = auth
        self._log = logging.RateLimitedLogger("auth")
        self._share = LoopShare()  # many readers of long lists must not delay agents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if not is_http and scope["type"] != "websocket":
            return
        if not is_http or scope["path"] not in OPEN_PATHS or scope["method"] == "OPTIONS":
            client = scope.get("client")
            where = client[0] if client else ""
            try:
                scope[PRINCIPAL] = principal = await self._auth.admit(bearer_of(scope["headers"]), where)
                if CONNECTION in scope:
                    scope[CONNECTION].admit(principal)
            except RoostError as error:
                # Never the bearer: it may be a valid token with a letter too many.
                self._log.warning("request refused", where=where, path=scope["path"][:200], why=error.message)
                await (_answer if is_http else answer_websocket)(error, send)
                return
        await self._share.turn()
        await self._app(scope, receive, send)


def bearer_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """Raises Refused."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() != b"bearer" or not token.strip():
                raise Refused(UNKNOWN)
            return token.strip()
    raise Refused("a token is needed here")


async def answer_websocket(error: RoostError, send: Send) -> None:
    """In place of a WebSocket that is refused."""
    await _answer(error, send, "websocket.")


async def _answer(error: RoostError, send: Send, kind: str = "") -> None:
    body = encode_error(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    is_retry = isinstance(error, NoService | TooOften)
    headers.append((b"retry-after", RETRY_AFTER_S.encode()) if is_retry else (b"www-authenticate", REALM))
    await send({"type": f"{kind}http.response.start", "status": error.status, "headers": headers})
    await send({"type": f"{kind}http.response.body", "body": body})
