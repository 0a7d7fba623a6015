"""Tokens, members, the audit log, and who the caller is."""

import msgspec

from roost.model.records.opaque import Audit
from roost.schema.page import Page

Duration = int | float | str | None  # seconds, or `30d`, or `never`


class WhoamiView(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, from which address, and its roles by project; `*`: everywhere. Without `expires_ms`: no expiry."""

    name: str
    where: str
    roles: dict[str, str]
    expires_ms: int | None = None


class LoginView(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenID issuer that this server believes, and the client that its identities have to be for."""

    issuer: str
    client_id: str


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret. Without `expires_ms` it does not end; `overlap_until_ms`: the old secret does."""

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


class TokenMade(TokenView, frozen=True, kw_only=True):
    """A token with its secret, which is shown once and never again."""

    token: str


class TokenPage(Page[TokenView, str], frozen=True):
    """Tokens by name. There are more as long as `next` is given, which goes into `after`."""


class Creating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be made: its role, and in which projects (`["*"]`: everywhere).

    `expires` is a duration such as `30d`, 90 days by default, a year at most. `never` is for admins of
    everything.
    """

    name: str
    role: str
    projects: list[str]
    expires: Duration = None


class Rotating(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old secret stays good, such as `1h`, and how long the new one lasts: as long as the old one did."""

    overlap: Duration = None
    expires: Duration = None


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    """A person in a project, and who has given it the role."""

    project: str
    subject: str
    role: str
    set_ms: int
    set_by: str


class MemberPage(Page[MemberView, str], frozen=True):
    """Members by subject. There are more as long as `next` is given, which goes into `after`."""


class Membership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The role of a person: viewer, submitter, operator or admin."""

    role: str


class AuditPage(Page[Audit, int], frozen=True):
    """Changes, newest first. There are more as long as `next` is given, which goes into `after`."""
