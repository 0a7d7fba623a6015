"""How parts of the state are copied: at once, or value by value when they are read."""

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def copy_part(target: object, origin: object, part: type) -> None:
    """Copy the attributes of one part of the state. Values inside two levels of containers are shared."""
    for name in vars(part()):
        setattr(target, name, _copied(getattr(origin, name)))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copy(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
    return copy(value) if isinstance(value, list | set) else value


class Shared(dict[K, V]):
    """A copy of a mapping. Each value is copied when it is first read, so that the original never changes."""

    __slots__ = ("_copy", "_own")

    def __init__(self, origin: dict[K, V], copied: Callable[[V], V]) -> None:
        super().__init__(origin)
        self._copy = copied
        self._own: set[K] = set()  # never iterated

    def __getitem__(self, key: K) -> V:
        value = super().__getitem__(key)
        if key not in self._own:
            value = self._copy(value)
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def get(self, key: K, default: Any = None) -> Any:
        return self[key] if key in self else default

    def setdefault(self, key: K, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]
