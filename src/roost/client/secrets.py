"""What the server answers about secrets: never their values. Names as in types.py."""

import msgspec


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret of a project. `readable`: the server can open it; `newest_key`: it is sealed with the newest key."""

    project: str
    name: str
    size: int
    changed_ms: int
    changed_by: str
    readable: bool
    newest_key: bool


class SecretPage(msgspec.Struct, frozen=True):
    """Secrets as of a revision."""

    revision: int
    items: list[Secret]
    next: str | None = None


class Resealed(msgspec.Struct, frozen=True):
    """How many secrets were sealed again, and which (PROJECT/NAME) no key of the server opens."""

    resealed: int
    unreadable: list[str]
