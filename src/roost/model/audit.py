"""The audit log: who changed what, from where."""

import msgspec


class By(msgspec.Struct, frozen=True, array_like=True):
    """Who asks, and from where."""

    who: str
    where: str = ""


class Audit(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change that somebody asked for and that was made."""

    number: int
    at_ms: int
    who: str
    where: str
    what: str  # the name of the request, as `submit`
    target: str  # what it was about, as PROJECT/NAME; never a value that may be secret
    revision: int
