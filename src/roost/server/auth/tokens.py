"""API tokens: made, admitted, and the time of their last use; and members, the persons with roles in projects.

A token is `roost_NAME_SECRET`: the name it is stored under, and 32 random bytes. Only its SHA-256 is stored. A slow
hash is for passwords, which can be guessed; 256 bits cannot, and every request would pay for a slow one.
"""

from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from typing import NamedTuple

import msgspec

from roost.core.state.state import State
from roost.model.events import PutRecords
from roost.model.records.access import Member, Token
from roost.model.records.opaque import OpaqueRecord
from roost.server.auth.principal import NOTHING, Access
from roost.server.engine.engine import Engine

PREFIX = "roost_"
SECRET_BYTES = 32
USED_EVERY_MS = 3_600_000  # how often a use is stored: reading must not become a commit per request
TRIED_EVERY_MS = 60_000  # how often that is tried: a commit may take long, or fail
REMEMBERED_MAX = 20_000  # twice as many as can be stored: deleted ones are dropped then
ANONYMOUS = bytes(32)  # compared with an unknown token, so that it takes as long


class CachedToken(NamedTuple):
    stored: bytes
    token: Token
    access: Access


class Tokens:
    """The tokens of the state. Each is decoded once, and again when its record changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, CachedToken] = {}
        self._used_ms: dict[str, int] = {}  # since the server started
        self._tried_ms: dict[str, int] = {}

    def find(self, name: str) -> CachedToken | None:
        stored = self._engine.state.opaque_records.get("token", {}).get(name)
        if stored is None:
            self._known.pop(name, None)
            return None
        cached = self._known.get(name)
        if cached is None or cached.stored is not stored:
            token = decode_token(stored)
            cached = CachedToken(stored, token, Access(dict.fromkeys(token.projects, token.role)))
            self._known[name] = cached
        return cached

    def admit(self, text: str) -> tuple[str, CachedToken] | None:
        """The token of a request, if it is valid now."""
        name, _, secret = text.removeprefix(PREFIX).rpartition("_")
        cached = self.find(name) if secret else None
        now, digest = self._engine.clock.now_ms(), digest_of(text)
        token = cached.token if cached is not None else None
        is_new = compare_digest(digest, token.digest if token else ANONYMOUS)
        is_old = compare_digest(digest, (token.old_digest if token else ANONYMOUS) or ANONYMOUS)
        if cached is None or token is None or (token.expires_ms and now >= token.expires_ms):
            return None
        if not (is_new or (is_old and now < token.old_until_ms)):
            return None
        self._note_use(name, cached, now)
        return name, cached

    def used_ms(self, name: str, token: Token) -> int:
        """When it was last used, as far as this server knows; 0: never."""
        return max(token.used_ms, self._used_ms.get(name, 0))

    def _note_use(self, name: str, existing: CachedToken, now: int) -> None:
        """Stored at most once an hour, by the leader; if the token changes meanwhile, after its next use."""
        if len(self._used_ms) >= REMEMBERED_MAX:
            there = self._engine.state.opaque_records.get("token", {})
            for remembered in (self._known, self._used_ms, self._tried_ms):
                for gone in remembered.keys() - there.keys():
                    del remembered[gone]
        self._used_ms[name] = now
        if now - existing.token.used_ms < USED_EVERY_MS or now - self._tried_ms.get(name, 0) < TRIED_EVERY_MS:
            return
        if self._engine.ready:
            self._tried_ms[name] = now
            value = encode_token(msgspec.structs.replace(existing.token, used_ms=now))
            self._engine.tell(PutRecords(0, (OpaqueRecord("token", name, value, was=existing.stored),)))


def make_secret(name: str) -> tuple[str, bytes]:
    """A new token of this name, and its digest."""
    text = f"{PREFIX}{name}_{token_hex(SECRET_BYTES)}"
    return text, digest_of(text)


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


encode_token = msgspec.msgpack.Encoder().encode
decode_token = msgspec.msgpack.Decoder(Token).decode


class Members:
    """The roles of persons, by subject. Compiled again when the records differ, which is checked once per commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state: State | None = None
        self._revision = -1
        self._seen: dict[str, bytes] = {}
        self._access: dict[str, Access] = {}

    def access(self, subject: str) -> Access:
        state = self._engine.state
        if state is not self._state or state.revision != self._revision:
            stored = state.opaque_records.get("member", {})
            # Equal records are the same object: ten thousand are compared in a fraction of a millisecond.
            if stored != self._seen:
                self._compile(stored)
            self._state, self._revision = state, state.revision
        return self._access.get(subject, NOTHING)

    def _compile(self, stored: dict[str, bytes]) -> None:
        roles: dict[str, dict[str, str]] = {}
        for key, value in stored.items():
            project, _, subject = key.partition("/")
            roles.setdefault(subject, {})[project] = decode_member(value).role
        self._access = {subject: Access(role) for subject, role in roles.items()}
        self._seen = dict(stored)


encode_member = msgspec.msgpack.Encoder().encode
decode_member = msgspec.msgpack.Decoder(Member).decode
