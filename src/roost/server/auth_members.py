"""Members: persons with roles in projects. Kept by project and subject; found here by subject."""

import msgspec

from roost.core.state import State
from roost.model.access import Member
from roost.server.auth_principal import NOTHING, Access
from roost.server.engine import Engine


class Members:
    """The roles of persons, by subject. Made anew when what is kept differs, which is looked at once per commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state: State | None = None
        self._revision = -1
        self._seen: dict[str, bytes] = {}
        self._access: dict[str, Access] = {}

    def access(self, subject: str) -> Access:
        """What a person may do; somebody without any role may do nothing."""
        state = self._engine.state
        if state is not self._state or state.revision != self._revision:
            kept = state.kept.get("member", {})
            # Equal records are the same object: ten thousand are compared in a fraction of a millisecond.
            if kept != self._seen:
                self._gather(kept)
            self._state, self._revision = state, state.revision
        return self._access.get(subject, NOTHING)

    def _gather(self, kept: dict[str, bytes]) -> None:
        roles: dict[str, dict[str, str]] = {}
        for key, value in kept.items():
            project, _, subject = key.partition("/")
            roles.setdefault(subject, {})[project] = decode_member(value).role
        self._access = {subject: Access(each) for subject, each in roles.items()}
        self._seen = dict(kept)


def encode_member(member: Member) -> bytes:
    """As it is kept."""
    return _ENCODER.encode(member)


def decode_member(kept: bytes) -> Member:
    """As it was kept."""
    return _DECODER.decode(kept)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Member)
