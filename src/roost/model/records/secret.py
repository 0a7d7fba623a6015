"""Secrets: how a document refers to one, and how its value travels to a process. No encoder knows the value's type."""

import msgspec


class FromSecret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable whose value is a secret of the workload's project, by its name."""

    secret: str


class Handed:
    """Values of secrets for one run, by name; or why there are none. It can be neither shown nor written down.

    The encoder does not know this type, so a frame that holds one cannot be stored.
    """

    __slots__ = ("refusal", "values")

    def __init__(self, values: dict[str, bytes], refusal: str = "") -> None:
        self.values = values
        self.refusal = refusal

    def __repr__(self) -> str:
        return f"<{len(self.values)} secrets>"

    def __reduce__(self) -> str:
        raise TypeError("secrets are not written down")


class Hidden(dict[str, str]):
    """Values for a process that are written only to the socket of its keeper."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self)} secrets>"
