"""A page of the history: what one transaction writes into the file, as data. Servers that share a history share these.

A page is projected once, by the leader. Rows have their final numbers, so that every file that has the same pages gives
the same answers, also one that was made again from the pages that are left.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import apsw
import msgspec

from roost.ports.store import Change
from roost.server.history.database import AUDIT_COLUMNS, Records, Stretch, insert, pack, pieces_of
from roost.server.history.projection import EventRow, HistoryRows

FORMAT = 1  # grows with every change that an earlier release cannot apply
DIGEST_BYTES = 16

#: In the file of a server that shares its history: up to where it has come.
POSITION = """
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER, digest BLOB, event INTEGER, audit INTEGER,
    floor_ms INTEGER
);
INSERT OR IGNORE INTO position VALUES (1, 0, x'', 0, 0, 0);
"""


class PagePosition(msgspec.Struct, frozen=True):
    """The last page of a file, and the numbers of its last event and audit entry."""

    number: int = 0
    digest: bytes = b""
    event: int = 0
    audit: int = 0
    floor_ms: int = 0  # what is older was deleted


class StretchRow(msgspec.Struct, frozen=True, array_like=True):
    id: int
    life: int
    revision: int
    at_ms: int
    gap: str


class SnapshotRow(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot whose pieces are all written."""

    stretch: int
    revision: int
    at_ms: int
    records: int


class PageRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of the tables, see `HistoryRows`. The first event and the first audit entry have these numbers."""

    event: int = 0
    audit: int = 0
    events: list[tuple[Any, ...]] = []
    audits: list[tuple[Any, ...]] = []
    workloads: list[tuple[Any, ...]] = []
    instances: list[tuple[Any, ...]] = []
    reopened: list[int] = []


class PageContent(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    before: bytes = b""  # the digest of the page before
    stretch: StretchRow | None = None  # begins with this page
    within: int = 0  # the stretch of the commits
    commits: list[tuple[int, int, list[Change]]] = []
    snapshot: int = 0  # the number of the snapshot of the pieces
    pieces: list[tuple[str, dict[str, bytes]]] = []
    taken: SnapshotRow | None = None
    rows: PageRows = PageRows()
    floor_ms: int = 0


class UnreadablePage(Exception):
    """The page is damaged, or of a newer release."""


def rows_of(rows: HistoryRows, event: int = 0, audit: int = 0) -> PageRows:
    """The rows of a page; their numbers follow these."""
    return PageRows(
        event + 1, audit + 1, [tuple(row) for row in rows.events], rows.audits, rows.workloads, rows.instances,
        rows.reopened,
    )  # fmt: skip


def snapshot_pages(snapshot: int, stretch: Stretch, records: Records) -> Iterator[PageContent]:
    """The pieces of a snapshot. The page that completes it comes after them."""
    for piece in pieces_of(records):
        yield PageContent(FORMAT, within=stretch.id, snapshot=snapshot, pieces=[piece])


def encode(page: PageContent) -> bytes:
    return _ENCODER.encode(page)


def decode(content: bytes) -> PageContent:
    """Raises UnreadablePage."""
    try:
        found = _FORMAT.decode(content).format
        if found != FORMAT:
            raise UnreadablePage(f"it has format {found}, this release reads {FORMAT}; install the newest release")
        return _PAGE.decode(content)
    except msgspec.MsgspecError as error:
        raise UnreadablePage(str(error)) from None


def digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def apply(database: apsw.Connection, page: PageContent, number: int | None = None) -> int:
    """Write a page within a transaction; how many bytes its commits take. `number`: None in a file of its own."""
    size = 0
    if page.stretch is not None:
        row = (page.stretch.id, *msgspec.structs.astuple(page.stretch)[1:])
        insert(database, "stretches", len(row), [row])
    if page.commits:
        content = pack(_ENCODER.encode(page.commits))
        size = len(content)
        first, last = page.commits[0], page.commits[-1]
        changes = sum(len(commit[2]) for commit in page.commits)
        insert(database, "batches", 8, [(number, page.within, first[0], last[0], first[1], last[1], changes, content)])
    pieces = [(page.snapshot, kind, pack(_ENCODER.encode(piece))) for kind, piece in page.pieces]
    insert(database, "pieces (snapshot, kind, packed)", 3, pieces)
    size += sum(len(piece[2]) for piece in pieces)
    if page.taken is not None:
        taken = page.taken
        database.execute(
            "INSERT INTO snapshots (id, stretch, revision, at_ms, records, batch)"
            " VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(id), 0) FROM batches))",
            (page.snapshot, taken.stretch, taken.revision, taken.at_ms, taken.records),
        )
    _insert_rows(database, page.rows, numbered=number is not None)
    return size


def read_position(database: apsw.Connection) -> PagePosition:
    found: Any = database.execute("SELECT number, digest, event, audit, floor_ms FROM position").get
    return PagePosition(*found)


def next_id(database: apsw.Connection, table: str) -> int:
    found: int | None = database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).get
    return (found or 0) + 1


def _insert_rows(database: apsw.Connection, rows: PageRows, *, numbered: bool) -> None:
    if rows.reopened:
        database.execute(f"DELETE FROM workloads WHERE serial IN ({', '.join(map(str, rows.reopened))})")
    insert(database, "workloads", 11, rows.workloads)
    insert(database, "instances", 8, rows.instances)
    for table, columns, first, found in (
        ("audits", AUDIT_COLUMNS, rows.audit, rows.audits),
        ("events", EventRow._fields, rows.event, rows.events),
    ):
        ids = range(first, first + len(found)) if numbered else [None] * len(found)
        items = [(number, *row) for number, row in zip(ids, found, strict=True)]
        insert(database, f"{table} (id, {', '.join(columns)})", len(columns) + 1, items)


class _Format(msgspec.Struct):
    format: int


_ENCODER = msgspec.msgpack.Encoder()
_FORMAT = msgspec.msgpack.Decoder(_Format)
_PAGE = msgspec.msgpack.Decoder(PageContent)
