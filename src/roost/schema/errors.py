"""Errors: one shape for every refusal."""

from typing import Any

import msgspec


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: a stable code, a sentence, the field, the facts as data, and what to do about it."""

    code: str
    message: str
    path: str = ""
    params: dict[str, Any] = {}
    hint: str | msgspec.UnsetType = msgspec.UNSET
