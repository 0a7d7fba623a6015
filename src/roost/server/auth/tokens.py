"""API tokens: made, known again, and remembered when they were used.

A token is `roost_NAME_SECRET`: the name it is kept under, and 32 random bytes. Only a SHA-256 of it is kept. A slow
hash is for passwords, which can be guessed; 256 bits cannot, and a slow one would be paid with every request.
"""

from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from typing import NamedTuple

import msgspec

from roost.model.events import PutRecords
from roost.model.records.access import Token
from roost.model.records.opaque import OpaqueRecord
from roost.server.auth.principal import Access
from roost.server.engine.engine import Engine

PREFIX = "roost_"
SECRET_BYTES = 32
USED_EVERY_MS = 3_600_000  # so often a use is written down: reading must not become a commit per request
TRIED_EVERY_MS = 60_000  # and so often that is tried: a commit may take its time, or fail
REMEMBERED_MAX = 20_000  # twice as many as are kept: those that are gone are dropped then
ANONYMOUS = bytes(32)  # what a token that is not known is compared with, so that it takes as long


class CachedToken(NamedTuple):
    """A token as it is kept, decoded, and what it may do."""

    stored: bytes
    token: Token
    access: Access


class Tokens:
    """The tokens that the state keeps. Each is decoded once, and again when the kept bytes are others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, CachedToken] = {}
        self._used_ms: dict[str, int] = {}  # since the server started
        self._tried_ms: dict[str, int] = {}

    def find(self, name: str) -> CachedToken | None:
        """A token by its name."""
        stored = self._engine.state.opaque_records.get("token", {}).get(name)
        if stored is None:
            self._known.pop(name, None)
            return None
        known_run = self._known.get(name)
        if known_run is None or known_run.stored is not stored:
            token = decode_token(stored)
            known_run = self._known[name] = CachedToken(
                stored, token, Access(dict.fromkeys(token.projects, token.role))
            )
        return known_run

    def admit(self, text: str) -> tuple[str, CachedToken] | None:
        """The token of a request, if it is valid now."""
        name, _, secret = text.removeprefix(PREFIX).rpartition("_")
        known_run = self.find(name) if secret else None
        now, digest = self._engine.clock.now_ms(), digest_of(text)
        token = known_run.token if known_run is not None else None
        is_new = compare_digest(digest, token.digest if token else ANONYMOUS)
        is_old = compare_digest(digest, (token.old_digest if token else ANONYMOUS) or ANONYMOUS)
        if known_run is None or token is None or (token.expires_ms and now >= token.expires_ms):
            return None
        if not (is_new or (is_old and now < token.old_until_ms)):
            return None
        self._note_use(name, known_run, now)
        return name, known_run

    def used_ms(self, name: str, token: Token) -> int:
        """When it was last used, as far as this server knows; 0: never."""
        return max(token.used_ms, self._used_ms.get(name, 0))

    def _note_use(self, name: str, existing: CachedToken, now: int) -> None:
        """Written at most once an hour, by the leader; if the token is changed meanwhile, after its next use."""
        if len(self._used_ms) >= REMEMBERED_MAX:
            self._forget()
        self._used_ms[name] = now
        if now - existing.token.used_ms < USED_EVERY_MS or now - self._tried_ms.get(name, 0) < TRIED_EVERY_MS:
            return
        if self._engine.ready:
            self._tried_ms[name] = now
            value = encode_token(msgspec.structs.replace(existing.token, used_ms=now))
            self._engine.tell(PutRecords(0, (OpaqueRecord("token", name, value, was=existing.stored),)))

    def _forget(self) -> None:
        there = self._engine.state.opaque_records.get("token", {})
        for remembered in (self._known, self._used_ms, self._tried_ms):
            for name in [name for name in remembered if name not in there]:
                del remembered[name]


def make_secret(name: str) -> tuple[str, bytes]:
    """A new token of this name, and the digest that is kept of it."""
    text = f"{PREFIX}{name}_{token_hex(SECRET_BYTES)}"
    return text, digest_of(text)


def digest_of(text: str) -> bytes:
    """What is kept of a token."""
    return sha256(text.encode()).digest()


def encode_token(token: Token) -> bytes:
    """As it is kept."""
    return _ENCODER.encode(token)


def decode_token(stored: bytes) -> Token:
    """As it was kept."""
    return _DECODER.decode(stored)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Token)
