"""The roles of a server: what its engine does at the moment."""

import msgspec


class Role(msgspec.Struct, frozen=True):
    """What this server does at the moment. `trouble`: why it does not decide."""

    trouble: str = ""


class Starting(Role, frozen=True):
    """Nothing is loaded: not yet, or not since the only server of this store was fenced."""


class Following(Role, frozen=True):
    """Another server leads, and this one mirrors what it commits. With trouble the mirror may be old."""


class Leading(Role, frozen=True):
    """This server decides."""


class Holding(Role, frozen=True):
    """It led until its store failed. Until another server leads, the sessions of its agents are kept alive."""

    sessions: dict[str, int] = {}


class Stopped(Role, frozen=True):
    """It decides nothing ever again."""
