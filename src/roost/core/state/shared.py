"""A mapping that shares its values with another one until they are read."""

from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Shared(dict[K, V]):
    """A mapping that begins as another one. Each value is copied when it is first looked at, so both stay apart."""

    __slots__ = ("_copy", "_own")

    def __init__(self, origin: dict[K, V], copied: Callable[[V], V]) -> None:
        super().__init__(origin)
        self._copy = copied
        self._own: set[K] = set()  # only ever asked for members

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
