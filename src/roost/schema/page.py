"""Pages: how every list is answered."""

from typing import Generic, TypeVar

import msgspec

Item = TypeVar("Item")
Next = TypeVar("Next", str, int)


class Page(msgspec.Struct, Generic[Item, Next], frozen=True):
    """Items as of one revision. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[Item]
    next: Next | None = None


class HistoryPage(msgspec.Struct, Generic[Item, Next], frozen=True):
    """Items of the past, which has no revision."""

    items: list[Item]
    next: Next | None = None
