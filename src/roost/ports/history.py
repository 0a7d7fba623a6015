"""History pages: the history of finished work in one order, in a place that several servers share.

Only the leader writes; every server reads all pages and makes the same answers from them. What is in a page is the
server's business (server/history/pages.py).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec


class StoredPage(NamedTuple):
    number: int  # 1, 2, 3, ... without a gap
    content: bytes


class PagesUnavailable(msgspec.Struct, frozen=True):
    """Pages cannot be written or read now; `reason` says what an operator can do."""

    reason: str


class PagesMoved(msgspec.Struct, frozen=True):
    """There are other pages than the writer knows: read them first. Nothing was written."""

    newest: int


class HistoryPages(Protocol):
    """Four promises (tests/server/history/pages_contract.py), for one thread: each may wait for a disk or a network."""

    def append(self, epoch: int, pages: Sequence[StoredPage]) -> PagesMoved | PagesUnavailable | None:
        """Keep pages that follow the newest one. After this they survive the loss of any server.

        A leader of an older epoch cannot replace a page, and none of its pages comes between those of a newer one.
        After PagesUnavailable it is not known whether they were kept: read, and append what is missing.
        """

    def read(self, after: int, bytes_max: int) -> list[StoredPage] | PagesUnavailable:
        """The pages after a number, in order and about so many bytes of them; none: there are no more.

        They begin later than after + 1 if older ones were forgotten.
        """

    def forget(self, epoch: int, before: int) -> PagesUnavailable | None:
        """Delete pages before a number, perhaps not the last of them."""

    def close(self) -> None:
        """Let go of connections."""
