"""Members: persons with roles in projects. Stored by project and subject; found here by subject."""

import msgspec

from roost.core.state.state import State
from roost.model.records.access import Member
from roost.server.auth.principal import NOTHING, Access
from roost.server.engine.engine import Engine


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
