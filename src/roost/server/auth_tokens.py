"""API tokens: made, known again, and remembered when they were used.

A token is `roost_NAME_SECRET`: the name it is kept under, and 32 random bytes. Only a SHA-256 of it is kept. A slow
hash is for passwords, which can be guessed; nobody guesses 256 bits, and a slow one would be paid with every request.
"""

from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from typing import NamedTuple

import msgspec

from roost.model.access import Token
from roost.model.events import Keep
from roost.model.kept import Kept
from roost.server.auth_principal import Access
from roost.server.engine import Engine

PREFIX = "roost_"
SECRET_BYTES = 32
USED_EVERY_MS = 3_600_000  # so often a use is written down: reading must not become a commit per request
TRIED_EVERY_MS = 60_000  # and so often that is tried: a commit may take its time, or fail
REMEMBERED_MAX = 20_000  # twice as many as are kept: those that are gone are dropped then
NOBODY = bytes(32)  # what a token that is not known is compared with, so that it takes as long


class Known(NamedTuple):
    """A token as it is kept, decoded, and what it may do."""

    kept: bytes
    token: Token
    access: Access


class Tokens:
    """The tokens that the state keeps. Each is decoded once, and again when the kept bytes are others."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, Known] = {}
        self._used_ms: dict[str, int] = {}  # since the server started
        self._tried_ms: dict[str, int] = {}

    def find(self, name: str) -> Known | None:
        """A token by its name."""
        kept = self._engine.state.kept.get("token", {}).get(name)
        if kept is None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known.kept is not kept:
            token = decode_token(kept)
            known = self._known[name] = Known(kept, token, Access(dict.fromkeys(token.projects, token.role)))
        return known

    def admit(self, said: str) -> tuple[str, Known] | None:
        """The token that somebody shows, if it is good now."""
        name, _, secret = said.removeprefix(PREFIX).rpartition("_")
        known = self.find(name) if secret else None
        now, digest = self._engine.clock.now_ms(), digest_of(said)
        token = known.token if known is not None else None
        is_new = compare_digest(digest, token.digest if token else NOBODY)
        is_old = compare_digest(digest, (token.old_digest if token else NOBODY) or NOBODY)
        if known is None or token is None or (token.expires_ms and now >= token.expires_ms):
            return None
        if not (is_new or (is_old and now < token.old_until_ms)):
            return None
        self._note_use(name, known, now)
        return name, known

    def used_ms(self, name: str, token: Token) -> int:
        """When it was last used, as far as this server knows; 0: never."""
        return max(token.used_ms, self._used_ms.get(name, 0))

    def _note_use(self, name: str, known: Known, now: int) -> None:
        """Written at most once an hour, by whoever decides; if the token is changed meanwhile, after its next use."""
        if len(self._used_ms) >= REMEMBERED_MAX:
            self._forget()
        self._used_ms[name] = now
        if now - known.token.used_ms < USED_EVERY_MS or now - self._tried_ms.get(name, 0) < TRIED_EVERY_MS:
            return
        if self._engine.ready:
            self._tried_ms[name] = now
            value = encode_token(msgspec.structs.replace(known.token, used_ms=now))
            self._engine.tell(Keep(0, (Kept("token", name, value, was=known.kept),)))

    def _forget(self) -> None:
        there = self._engine.state.kept.get("token", {})
        for remembered in (self._known, self._used_ms, self._tried_ms):
            for name in [each for each in remembered if each not in there]:
                del remembered[name]


def make_secret(name: str) -> tuple[str, bytes]:
    """A new token of this name, and the digest that is kept of it."""
    said = f"{PREFIX}{name}_{token_hex(SECRET_BYTES)}"
    return said, digest_of(said)


def digest_of(said: str) -> bytes:
    """What is kept of a token."""
    return sha256(said.encode()).digest()


def encode_token(token: Token) -> bytes:
    """As it is kept."""
    return _ENCODER.encode(token)


def decode_token(kept: bytes) -> Token:
    """As it was kept."""
    return _DECODER.decode(kept)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Token)
