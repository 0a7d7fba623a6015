"""The file of the history: opened, recognised, written row by row. Without it nothing is lost but the past.

A stretch is a run of commits without a gap. It begins with a snapshot (the whole state, in pieces), then come batches
of commits, and now and then another snapshot. What is finished and what happened is kept beside that, to be searched.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import compress, decompress

import apsw

from roost.stores.sqlite.file import require_library

FILE_NAME = "history.db"
APPLICATION_ID = 0x52737448  # "RstH": a wrong path must not make us write into another program's file
VERSION = 1

# Many rows per statement: a statement lets go of the interpreter lock once, not once per row, and getting it back may
# take 5 ms while the engine is busy.
CHUNKS = (64, 16, 4, 1)

PACK_BYTES_MIN = 512  # what is smaller gets no smaller
PACK_LEVEL = 1  # 100 MB/s, without the interpreter lock; level 6 is a fifth smaller and four times as slow
BUSY_MS = 5_000  # a checkpoint or a backup may hold the file for some seconds

# NORMAL: a power cut may cost the last moments, which the next start makes good as far as the state knows them.
# 16 MB of cache; a log that one snapshot made large is cut back to 64 MB. Freed pages can be given back to the system.
PRAGMAS = (
    "auto_vacuum = incremental",
    "journal_mode = wal",
    "synchronous = normal",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
    "cache_size = -16384",
    "temp_store = memory",
)

# Numbers are never given again: a snapshot knows its batches, and a follower of events knows the last one, by them.
SCHEMA = """
CREATE TABLE stretches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, life INTEGER, revision INTEGER, at_ms INTEGER,
    gap TEXT  -- why what was before is missing; empty: nothing is
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
CREATE INDEX events_of_workload ON events (project, workload, at_ms) WHERE workload <> '';
CREATE INDEX events_of_node ON events (node, at_ms) WHERE node <> '';
"""


class NotOurs(Exception):
    """A file that this release cannot go on with; it is put aside and a new one is begun."""


def open_for_writing(path: Path) -> apsw.Connection:
    """The file, made if need be. Raises apsw.Error, OSError, NotOurs."""
    require_library()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # documents may hold secrets: only for its owner
    database = apsw.Connection(str(path))
    try:
        database.set_busy_timeout(BUSY_MS)
        is_new = not _number(database, "SELECT count(*) FROM sqlite_schema")
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
    """The file beside its writer. Raises apsw.Error."""
    database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    database.set_busy_timeout(BUSY_MS)
    return database


def put_aside(path: Path) -> Path:
    """Rename a file that cannot be used, with its log; the one that was put aside before goes."""
    aside = path.with_name(path.name + ".aside")
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")
    return aside


@contextmanager
def transaction(database: apsw.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):  # a full disk has rolled back already
            if not database.get_autocommit():
                database.execute("ROLLBACK")
        raise


def insert(database: apsw.Connection, into: str, columns: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """Put rows in, many at a time. `into`: the table, with its columns if not all of them are given."""
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
    """Smaller, if that is worth it. The first byte says which."""
    return b"\0" + content if len(content) < PACK_BYTES_MIN else b"\1" + compress(content, PACK_LEVEL)


def unpack(packed: bytes) -> bytes:
    """What was packed."""
    return decompress(memoryview(packed)[1:]) if packed[0] else packed[1:]


def used_bytes(database: apsw.Connection) -> int:
    """How much of the file is in use; what was freed is used again first."""
    pages = _number(database, "PRAGMA page_count") - _number(database, "PRAGMA freelist_count")
    return pages * _number(database, "PRAGMA page_size")


def first_row(found: Iterable[Any]) -> tuple[Any, ...] | None:
    """The first of what a query finds."""
    return next(iter(found), None)


def _recognise(database: apsw.Connection) -> None:
    if _number(database, "PRAGMA application_id") != APPLICATION_ID:
        raise NotOurs("it is a database, but no history of Roost")
    version = _number(database, "PRAGMA user_version")
    if version != VERSION:
        raise NotOurs(f"it has version {version}, this release of Roost writes version {VERSION}")


def _number(database: apsw.Connection, query: str) -> int:
    value = database.execute(query).get
    assert isinstance(value, int)
    return value
