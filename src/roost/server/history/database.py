"""The file of the history: its tables, and how they are opened and written. Without it only the past is lost.

A stretch is a run of commits without a gap. It begins with a snapshot (the whole state, in pieces), followed by batches
of commits and occasional snapshots. Finished workloads and events have tables of their own, to be searched.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import compress, decompress

import apsw

from roost.server.private_files import keep_private
from roost.stores.batches import in_batches
from roost.stores.sqlite.file import require_library

FILE_NAME = "history.db"
APPLICATION_ID = 0x52737448  # "RstH": a wrong path must not make us write into another program's file
VERSION = 2
LOG_SUFFIXES = ("-wal", "-shm")  # of SQLite's own files beside it

# Many rows per statement: a statement releases the interpreter lock once, not once per row, and getting it back may
# take 5 ms while the engine is busy.
CHUNKS = (64, 16, 4, 1)

PIECE_BYTES = 1 << 19  # of a snapshot: small enough to be packed and read without delaying the engine
PACK_BYTES_MIN = 512  # smaller content does not compress
PACK_LEVEL = 1  # 100 MB/s, without the interpreter lock; level 6 is a fifth smaller and four times as slow
BUSY_MS = 5_000  # a checkpoint or a backup may hold the file for some seconds

# NORMAL: a power cut may cost the last commits; the next start restores them as far as the state has them.
# 16 MB of cache; a log that one snapshot made large is cut back to 64 MB. Freed pages can be returned to the system.
PRAGMAS = (
    "auto_vacuum = incremental",
    "journal_mode = wal",
    "synchronous = normal",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
    "cache_size = -16384",
    "temp_store = memory",
)

# AUTOINCREMENT never reuses a number: a snapshot refers to its batches, and a follower to its last event, by number.
SCHEMA = """
CREATE TABLE stretches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, life INTEGER, revision INTEGER, at_ms INTEGER,
    gap TEXT  -- why the commits before it are missing; empty: none are
);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT, stretch INTEGER, revision INTEGER, at_ms INTEGER, records INTEGER,
    batch INTEGER  -- the last batch that it covers
);
CREATE INDEX snapshots_at ON snapshots (at_ms);
CREATE TABLE pieces (
    id INTEGER PRIMARY KEY, snapshot INTEGER, kind TEXT, packed BLOB
);
CREATE INDEX pieces_of ON pieces (snapshot);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, stretch INTEGER, first_revision INTEGER, revision INTEGER,
    first_ms INTEGER, at_ms INTEGER, changes INTEGER, packed BLOB
);
CREATE INDEX batches_at ON batches (first_ms);
CREATE INDEX batches_of ON batches (stretch, first_revision);
CREATE TABLE workloads (
    serial INTEGER PRIMARY KEY, project TEXT, name TEXT, kind TEXT, state TEXT, count INTEGER, begun INTEGER,
    submitted_ms INTEGER, finished_ms INTEGER, counts BLOB, record BLOB
);
CREATE INDEX workloads_at ON workloads (finished_ms, serial, project, name, state);
CREATE INDEX workloads_named ON workloads (project, name, serial);
CREATE TABLE instances (
    serial INTEGER, number INTEGER, state TEXT, node TEXT, started_ms INTEGER, finished_ms INTEGER, exit_code INTEGER,
    record BLOB, PRIMARY KEY (serial, number)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER, revision INTEGER, kind TEXT, project TEXT,
    workload TEXT, number INTEGER, node TEXT, what TEXT, message TEXT, who TEXT
);
CREATE INDEX events_at ON events (at_ms);
CREATE TABLE audits (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER, revision INTEGER, who TEXT, place TEXT, what TEXT, target TEXT,
    detail TEXT, refused INTEGER
);
CREATE INDEX audits_at ON audits (at_ms);
CREATE INDEX events_of_workload ON events (project, workload, at_ms) WHERE workload <> '';
CREATE INDEX events_of_node ON events (node, at_ms) WHERE node <> '';
"""

#: The fields of an `Audit` without its number, which is the id of the row; `where` is a word of SQL.
AUDIT_COLUMNS = ("at_ms", "who", "place", "what", "target", "revision", "detail", "refused")

Records = dict[str, dict[str, bytes]]  # by kind and key


class NotOurs(Exception):
    """A file that this release cannot continue; it is put aside and a new one is made."""


@dataclass
class Stretch:
    """The last stretch of a file."""

    id: int
    life: int
    revision: int
    at_ms: int
    changes: int = 0  # since the last snapshot
    bytes: int = 0  # of these changes
    records: int = 0  # of the last snapshot
    size: int = 0  # of the last snapshot, packed


def open_for_writing(path: Path) -> apsw.Connection:
    """The file, made if it is missing. Raises apsw.Error, OSError, NotOurs."""
    require_library()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # documents may hold secrets: only for its owner
    keep_private(path, *(path.with_name(path.name + suffix) for suffix in LOG_SUFFIXES))
    database = apsw.Connection(str(path))
    try:
        database.set_busy_timeout(BUSY_MS)
        is_new = not database.execute("SELECT count(*) FROM sqlite_schema").get
        if not is_new:
            _recognise(database)
        for pragma in PRAGMAS:
            database.execute(f"PRAGMA {pragma}").fetchall()
        if is_new:
            with transaction(database):
                database.execute(SCHEMA).fetchall()
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        database.close()
        raise
    return database


def open_for_reading(path: Path) -> apsw.Connection:
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    database.set_busy_timeout(BUSY_MS)
    return database


def put_aside(path: Path) -> Path:
    """Rename an unusable file and its log, over the one that was put aside before."""
    aside = path.with_name(path.name + ".aside")
    for suffix in ("", *LOG_SUFFIXES):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


@contextmanager
def transaction(database: apsw.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):  # on a full disk SQLite has rolled back already
            if not database.get_autocommit():
                database.execute("ROLLBACK")
        raise


def insert(database: apsw.Connection, into: str, columns: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, many at a time. `into`: the table, with its columns if some are left out."""
    start = 0
    for size in CHUNKS:
        if len(rows) - start < size:
            continue
        row = f"({', '.join('?' * columns)})"
        statement = f"INSERT OR REPLACE INTO {into} VALUES {', '.join([row] * size)}"
        while len(rows) - start >= size:
            database.execute(statement, [field for row in rows[start : start + size] for field in row])
            start += size


def pack(content: bytes) -> bytes:
    """Compress what is worth it. The first byte says whether it is compressed."""
    return b"\0" + content if len(content) < PACK_BYTES_MIN else b"\1" + compress(content, PACK_LEVEL)


def unpack(packed: bytes) -> bytes:
    return decompress(memoryview(packed)[1:]) if packed[0] else packed[1:]


def used_bytes(database: apsw.Connection) -> int:
    """How much of the file is in use, without its free pages."""
    pages: int = database.execute("PRAGMA page_count").get - database.execute("PRAGMA freelist_count").get
    return pages * int(database.execute("PRAGMA page_size").get)


def last_stretch(database: apsw.Connection) -> Stretch | None:
    found = database.execute("SELECT id, life, revision, at_ms FROM stretches ORDER BY id DESC LIMIT 1").get
    if found is None:
        return None
    stretch = Stretch(*found)
    query = "SELECT revision, at_ms FROM batches WHERE stretch = ? ORDER BY first_revision DESC LIMIT 1"
    last = database.execute(query, (stretch.id,)).get
    if last is not None:
        stretch.revision, stretch.at_ms = last
    query = "SELECT id, records, batch FROM snapshots WHERE stretch = ? ORDER BY id DESC LIMIT 1"
    snapshot, stretch.records, batch = database.execute(query, (stretch.id,)).get or (0, 0, 0)
    query = "SELECT coalesce(sum(length(packed)), 0) FROM pieces WHERE snapshot = ?"
    stretch.size = database.execute(query, (snapshot,)).get
    query = "SELECT coalesce(sum(changes), 0), coalesce(sum(length(packed)), 0) FROM batches WHERE id > ?"
    stretch.changes, stretch.bytes = database.execute(query, (batch,)).get
    return stretch


def pieces_of(records: Records) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A whole state in pieces of about PIECE_BYTES, each of one kind."""
    for kind, things in records.items():
        for piece in in_batches(things.items(), lambda item: len(item[0]) + len(item[1]), PIECE_BYTES):
            yield kind, dict(piece)


def _recognise(database: apsw.Connection) -> None:
    if database.execute("PRAGMA application_id").get != APPLICATION_ID:
        raise NotOurs("it is a database, but no history of Roost")
    version = database.execute("PRAGMA user_version").get
    if version != VERSION:
        raise NotOurs(f"it has version {version}, this release of Roost writes version {VERSION}")
