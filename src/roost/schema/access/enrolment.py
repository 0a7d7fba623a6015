"""Join tokens and the certificate authority."""

import msgspec

from roost.schema.page import Page


class JoinTokenView(msgspec.Struct, frozen=True):
    """A token as it is shown: never its secret."""

    id: str
    pool: str
    uses: int | None  # left; null: any number
    created_ms: int
    expires_ms: int


class JoinTokenMade(msgspec.Struct, frozen=True):
    """A new token. It is shown once."""

    token: str
    about: JoinTokenView


class JoinTokenPage(Page[JoinTokenView, str], frozen=True):
    """All join tokens that can be used, by id."""


class Inviting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pool the machine will belong to (nothing: as its agent says), how often the token can be used (a number,
    or `unlimited`), and for how long, like `1h`."""

    pool: str = ""
    uses: int | str = 1
    expires: int | float | str | None = None


class AuthorityView(msgspec.Struct, frozen=True):
    """The CA's certificate, in PEM. A machine that has its fingerprint from elsewhere can trust it."""

    certificate: str
    fingerprint: str
