"""Where the pages of a history are kept: in the file of one server, or in a place that servers share."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import apsw
from msgspec.structs import replace

from roost.ports.history import HistoryPages, PagesMoved, PagesUnavailable, StoredPage
from roost.server.history.database import transaction
from roost.server.history.pages import (
    POSITION,
    PageContent,
    PagePosition,
    UnreadablePage,
    apply,
    decode,
    digest,
    encode,
    next_id,
    read_position,
)  # fmt: skip
from roost.stores.batches import in_batches

APPEND_BYTES_MAX = 8 << 20  # of pages, in memory at once; a page may be larger
READ_BYTES_MAX = 8 << 20


class PagesAway(Exception):
    """The shared place cannot be used now: pages wait."""


class PagesChanged(Exception):
    """Another server has written pages: read them first."""


class PagesDiffer(Exception):
    """The file has other pages than the shared place: it has to be made again from those."""


class Numbers(NamedTuple):
    """Of the next stretch and snapshot; of the last event and audit entry."""

    stretch: int
    snapshot: int
    event: int = 0
    audit: int = 0


class HistoryStorage(Protocol):
    def numbers(self, database: apsw.Connection) -> Numbers: ...

    def write(self, database: apsw.Connection, pages: Iterable[PageContent]) -> int:
        """Keep pages, and bring them into the file; how many bytes it takes."""


class FileStorage:
    """The file of one server: all pages or none."""

    def numbers(self, database: apsw.Connection) -> Numbers:
        return Numbers(next_id(database, "stretches"), next_id(database, "snapshots"))

    def write(self, database: apsw.Connection, pages: Iterable[PageContent]) -> int:
        with transaction(database):
            return sum(apply(database, page) for page in pages)


class SharedStorage:
    """A shared place, whose pages every server applies to its file in order. `lead`: the epoch; 0: another leads."""

    def __init__(self, pages: HistoryPages, lead: Callable[[], int]) -> None:
        self._pages = pages
        self._lead = lead
        self.position = PagePosition()

    def open(self, database: apsw.Connection) -> None:
        database.execute(POSITION).fetchall()
        self.position = read_position(database)

    def numbers(self, database: apsw.Connection) -> Numbers:
        following = self.position.number + 1
        return Numbers(following, following, self.position.event, self.position.audit)

    def write(self, database: apsw.Connection, pages: Iterable[PageContent]) -> int:
        """Raises PagesAway, PagesChanged: some of the first pages may be kept then."""
        size = 0
        for batch in in_batches(self._numbered(pages), lambda item: len(item[0].content), APPEND_BYTES_MAX):
            epoch = self._lead()
            if not epoch:
                raise PagesChanged  # another server leads, or may by now
            outcome = self._pages.append(epoch, [page for page, _, _ in batch])
            if isinstance(outcome, PagesMoved):
                raise PagesDiffer if outcome.newest < self.position.number else PagesChanged
            if isinstance(outcome, PagesUnavailable):
                raise PagesAway(outcome.reason)
            size += self._apply(database, batch)
        return size

    def read(self, database: apsw.Connection) -> list[PageContent]:
        """Apply the next pages that others have written. Raises PagesAway, PagesDiffer."""
        found = self._pages.read(self.position.number, READ_BYTES_MAX)
        if isinstance(found, PagesUnavailable):
            raise PagesAway(found.reason)
        batch = []
        position = self.position
        for page in found:
            try:
                content = decode(page.content)
            except UnreadablePage as error:
                raise PagesAway(f"page {page.number} cannot be read: {error}") from None
            if position.number and (page.number != position.number + 1 or content.before != position.digest):
                raise PagesDiffer
            position = _after(position, page, content)
            batch.append((page, content, position))
        self._apply(database, batch)
        return [content for _, content, _ in batch]

    def check(self) -> None:
        """Whether the last page of the file is in the shared place. Raises PagesAway, PagesDiffer."""
        if not self.position.number:
            return
        found = self._pages.read(self.position.number - 1, 1)
        if isinstance(found, PagesUnavailable):
            raise PagesAway(found.reason)
        if not found or found[0].number != self.position.number or digest(found[0].content) != self.position.digest:
            raise PagesDiffer

    def forget(self, before: int) -> None:
        """Raises PagesAway."""
        outcome = self._pages.forget(self._lead(), before)
        if isinstance(outcome, PagesUnavailable):
            raise PagesAway(outcome.reason)

    def close(self) -> None:
        self._pages.close()

    def _numbered(self, pages: Iterable[PageContent]) -> Iterator[tuple[StoredPage, PageContent, PagePosition]]:
        position = self.position
        for page in pages:
            content = replace(page, before=position.digest)
            made = StoredPage(position.number + 1, encode(content))
            position = _after(position, made, content)
            yield made, content, position

    def _apply(self, database: apsw.Connection, batch: list[tuple[StoredPage, PageContent, PagePosition]]) -> int:
        if not batch:
            return 0
        position = batch[-1][2]
        with transaction(database):
            size = sum(apply(database, content, page.number) for page, content, _ in batch)
            row = (position.number, position.digest, position.event, position.audit, position.floor_ms)
            database.execute("UPDATE position SET number = ?, digest = ?, event = ?, audit = ?, floor_ms = ?", row)
        self.position = position
        return size


def _after(position: PagePosition, page: StoredPage, content: PageContent) -> PagePosition:
    rows = content.rows
    return PagePosition(
        page.number,
        digest(page.content),
        rows.event + len(rows.events) - 1 if rows.event else position.event,
        rows.audit + len(rows.audits) - 1 if rows.audit else position.audit,
        max(position.floor_ms, content.floor_ms),
    )
