"""Members: persons with roles in projects. Kept by project and subject; found here by subject."""

import msgspec

from roost.core.state.state import State
from roost.model.records.access import Member
from roost.server.auth.principal import NOTHING, Access
from roost.server.engine.engine import Engine


class Members:
    """The roles of persons, by subject. Made anew when what is kept differs, which is looked at once per commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state: State | None = None
        self._revision = -1
        self._seen: dict[str, bytes] = {}
        self._access: dict[str, Access] = {}

    def access(self, subject: str) -> Access:
        """What a person may do; without any role, nothing."""
        state = self._engine.state
        if state is not self._state or state.revision != self._revision:
            stored = state.opaque_records.get("member", {})
            # Equal records are the same object: ten thousand are compared in a fraction of a millisecond.
            if stored != self._seen:
                self._gather(stored)
            self._state, self._revision = state, state.revision
        return self._access.get(subject, NOTHING)

    def _gather(self, stored: dict[str, bytes]) -> None:
        roles: dict[str, dict[str, str]] = {}
        for key, value in stored.items():
            project, _, subject = key.partition("/")
            roles.setdefault(subject, {})[project] = decode_member(value).role
        self._access = {subject: Access(role) for subject, role in roles.items()}
        self._seen = dict(stored)


def encode_member(member: Member) -> bytes:
    """As it is kept."""
    return _ENCODER.encode(member)


def decode_member(stored: bytes) -> Member:
    """As it was kept."""
    return _DECODER.decode(stored)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Member)
