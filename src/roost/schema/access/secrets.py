"""Secrets: names and sizes, never values."""

import msgspec

from roost.schema.page import Page


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as it is shown: never its value. `readable`: the server's keys open it; `newest_key`: the first does."""

    project: str
    name: str
    size: int
    changed_ms: int
    changed_by: str
    readable: bool
    newest_key: bool


class SecretPage(Page[SecretView, str], frozen=True):
    """Secrets by name, without their values. There are more as long as `next` is given, which goes into `after`."""


class SecretValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a secret: a text as `value`, or any bytes as `base64`."""

    value: str | None = None
    base64: str | None = None

    def __repr__(self) -> str:
        return "<the value of a secret>"


class Resealed(msgspec.Struct, frozen=True):
    """How many secrets were sealed again with the newest key, and which cannot be: no key here opens them."""

    resealed: int
    unreadable: list[str]
