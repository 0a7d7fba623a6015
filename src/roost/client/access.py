"""What the server answers about who may do what: tokens, members, the audit log. Names as in types.py."""

import msgspec


class Whoami(msgspec.Struct, frozen=True, kw_only=True):
    """Who the server takes you for, and your roles by project; `*`: everywhere."""

    name: str
    where: str
    roles: dict[str, str]
    expires_ms: int | None = None


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenID issuer that the server believes, and the client that its identities have to be for."""

    issuer: str
    client_id: str


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An API token. Its secret (`token`) is there only when it was just made."""

    name: str
    role: str
    projects: list[str]
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    expired: bool
    rotated_ms: int | None = None
    overlap_until_ms: int | None = None
    used_ms: int | None = None


class NewToken(Token, frozen=True, kw_only=True):
    """A token that was just made or rotated: the only time that its secret is told."""

    token: str


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person with a role in a project; project `*`: everywhere."""

    project: str
    subject: str
    role: str
    set_ms: int
    set_by: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """One change that somebody asked for and that was made."""

    number: int
    at_ms: int
    who: str
    where: str
    what: str
    target: str
    revision: int


class TokenPage(msgspec.Struct, frozen=True):
    """Tokens as of a revision."""

    revision: int
    items: list[Token]
    next: str | None = None


class MemberPage(msgspec.Struct, frozen=True):
    """Members as of a revision."""

    revision: int
    items: list[Member]
    next: str | None = None


class AuditPage(msgspec.Struct, frozen=True):
    """Changes, newest first."""

    revision: int
    items: list[Audit]
    next: int | None = None
