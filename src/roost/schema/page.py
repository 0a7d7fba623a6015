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


class HistoryBehind(msgspec.Struct, frozen=True):
    """The server that answers has not all pages of a shared history yet: it has those up to this commit."""

    revision: int
    at_ms: int
    reason: str = ""


class HistoryPage(msgspec.Struct, Generic[Item, Next], frozen=True):
    """Items of the past, which has no revision."""

    items: list[Item]
    next: Next | None = None
    behind: HistoryBehind | None = None  # None: it has what this server knows
