"""SQLite store: one file, one writer thread; the commits that wait for it become one transaction and one fsync."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, cast
from zlib import crc32

import apsw

from roost.ports import store as port
from roost.stores.collector import collector_paused
from roost.stores.group_commit import Outcome, ThreadGroupCommit, Weight, committed, in_doubt, load_first
from roost.stores.migrations import numbered
from roost.stores.sqlite import file
from roost.stores.sqlite.mark import HighWaterMark

# One transaction takes at most this many changes (and always at least one commit): 10,000 random rows are 40 MB of log
# and 0.2 s, the longest that a small commit waits behind a crowd.
GROUP_CHANGES_MAX = 10_000

# The log is written back into the file after this many pages (16 MB): at 4 MB random updates cost 15 % more, and a log
# of this size is read back in less than 0.1 s after a crash.
CHECKPOINT_PAGES = 4_000

# Rows per statement, largest first. A statement lets go of the interpreter lock once, not once per row: while the event
# loop is busy, getting it back may take 5 ms.
CHUNKS = (64, 32, 16, 8, 4, 2, 1)

# What a caller can get wrong: no bytes, text that is not UTF-8, a value beyond SQLite's 1 GB.
MISTAKES = (TypeError, ValueError, apsw.TooBigError, apsw.ConstraintError)

Row = tuple[str, str, int, int, bytes]


class SqliteStore:
    """The Store port on `<directory>/roost.db`. For one event loop; nothing is touched before the first call."""

    def __init__(self, directory: Path) -> None:
        file.require_library()
        self._writer = _Writer(directory)
        self._jobs = ThreadGroupCommit(self._writer, Weight(GROUP_CHANGES_MAX))
        self._ended: asyncio.Future[port.LoadFailure | None] | None = None

    async def lead(self, identity: str, seen: port.Lead | None = None) -> port.LeadResult:
        """The holder of the file's lock is alone with it, so what was seen of other servers does not matter."""
        return await self._jobs.call(partial(self._writer.lead, identity))

    async def load(self) -> port.LoadResult:
        return await self._jobs.call(self._writer.load)

    async def commit(self, epoch: int, changes: Sequence[port.Change]) -> port.CommitResult:
        return await self._jobs.commit(epoch, changes)

    async def raise_revision(self, epoch: int, revision: int) -> port.LoadFailure | None:
        return await self._jobs.call(partial(self._writer.raise_revision, revision))

    async def close(self) -> None:
        if self._jobs.is_running and self._ended is None:
            self._ended = self._jobs.call(self._writer.close)
        self._jobs.closed = True
        if self._ended is not None:
            await asyncio.shield(self._ended)


class _Writer:
    """What the writer thread does. Opens on first use, and again after a failure."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / file.FILE_NAME
        self._lock: int | None = None  # a descriptor
        self._database: apsw.Connection | None = None
        self._mark: HighWaterMark | None = None
        self._revision = self._epoch = 0
        self._failure: Exception | None = None  # no commit until the caller has loaded what is really there
        self.closed = False

    def weigh(self, changes: Sequence[port.Change]) -> Weight:
        return Weight(len(changes))

    def perform(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except port.StoreError as error:
            return error
        except Exception as error:
            return self._fail(error)

    def lead(self, identity: str) -> port.LeadTaken:
        database = self._open()
        assert self._lock is not None
        file.sign_lock(self._lock, identity)
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE meta SET epoch = epoch + 1")
        epoch = cast(int, database.execute("SELECT epoch FROM meta").get)
        database.execute("COMMIT")
        self._epoch = epoch
        self._acknowledge()
        return port.LeadTaken(epoch)

    def load(self) -> port.Snapshot:
        rows = self._open().execute("SELECT kind, key, revision, checksum, value FROM records")
        with collector_paused():
            records = [
                port.Change(kind, key, value)
                for kind, key, revision, checksum, value in cast("Iterator[Row]", rows)
                if checksum == crc32(value, revision) or self._altered(kind, key)
            ]
        self._failure = None
        return port.Snapshot(self._revision, records)

    def commit(self, epoch: int, group: Sequence[Sequence[port.Change]]) -> Sequence[Outcome]:
        if self._failure is not None:
            return [load_first(self._failure)] * len(group)
        try:
            database = self._open()
        except Exception as error:
            return [self._fail(error)] * len(group)
        try:
            return self._transact(database, epoch, group)
        except MISTAKES as mistake:
            self._roll_back()
            # One caller's mistake, not its neighbours': each goes alone.
            return [mistake] if len(group) == 1 else [self.commit(epoch, [changes])[0] for changes in group]
        except Exception as error:  # its last page may be in the log all the same
            return [in_doubt(self._fail(error))] * len(group)

    def raise_revision(self, revision: int) -> None:
        self._open().execute("UPDATE meta SET revision = ?", (revision,))
        self._revision = revision
        self._acknowledge()

    def tidy(self) -> None:
        """Write the log back into the file when it has grown, so that it starts over instead of growing on."""
        if self._database is None or self._database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0] < CHECKPOINT_PAGES:
            return
        try:
            self._database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)
            self._database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            assert self._mark is not None
            self._mark.sync()
        except apsw.FullError:
            pass  # the log can go on for a while; the commit that finds no room for itself will say so
        except (apsw.Error, OSError) as error:
            self._fail(error)

    def close(self) -> None:
        self.closed = True
        self._let_go()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> apsw.Connection:
        if self._database is None:
            if self._lock is None:
                self._lock = file.take_lock(self._directory)
            try:
                self._database = file.open_database(self._path, numbered("sqlite"))
            except port.StoreError:
                os.close(self._lock)
                self._lock = None
                raise
            found = file.acknowledged(self._database)
            assert found is not None
            self._revision, self._epoch = found.revision, found.epoch
            self._mark = HighWaterMark(self._directory, found)
        return self._database

    def _acknowledge(self) -> None:
        """What is durable now must be there at the next start."""
        assert self._mark is not None
        self._mark.write(self._revision, self._epoch)

    def _transact(
        self, database: apsw.Connection, epoch: int, group: Sequence[Sequence[port.Change]]
    ) -> Sequence[Outcome]:
        database.execute("BEGIN IMMEDIATE")
        leads = cast(int, database.execute("SELECT epoch FROM meta").get)
        if epoch != leads or epoch < 1:
            database.execute("ROLLBACK")
            return [port.Fenced(f"epoch {epoch} may not commit: epoch {leads} leads {self._path}")] * len(group)
        merged: dict[tuple[str, str], Row | None] = {}
        carried = True  # is there a row that carries the last revision?
        for revision, changes in enumerate(group, start=self._revision + 1):
            rows: dict[tuple[str, str], Row | None] = {
                change.record: _row(change.record, revision, change.value) for change in changes
            }
            merged.update(rows)
            carried = any(row is not None for row in rows.values())
        _write(database, UPSERT, [row for row in merged.values() if row is not None])
        _write(database, DELETE, [key for key, row in merged.items() if row is None])
        if not carried:
            database.execute("UPDATE meta SET revision = ?", (revision,))
        database.execute("COMMIT")
        self._revision = revision
        self._acknowledge()
        return committed(revision + 1 - len(group), len(group))

    def _fail(self, error: Exception) -> Exception:
        """Close the file: what is in memory and what is on disk may differ. Only a load makes them one again."""
        self._failure = file.explain(error, self._path)
        self._let_go()
        return self._failure

    def _let_go(self) -> None:
        if self._database is not None:
            self._roll_back()
            with contextlib.suppress(apsw.Error):  # closing writes the log back if it can; opening again will, if not
                self._database.close()
            self._database = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def _roll_back(self) -> None:
        assert self._database is not None
        with contextlib.suppress(apsw.Error):  # without its end mark in the log, a transaction is gone anyway
            if not self._database.get_autocommit():
                self._database.execute("ROLLBACK")

    def _altered(self, kind: str, key: str) -> NoReturn:
        self._failure = file.damaged(self._path, f"record {kind} {key} is not what was written")
        raise self._failure


def _row(record: tuple[str, str], revision: int, value: bytes | None) -> Row | None:
    return None if value is None else (*record, revision, crc32(value, revision), value)


def _write(database: apsw.Connection, statements: dict[int, str], rows: Sequence[tuple[object, ...]]) -> None:
    start = 0
    for size in CHUNKS:
        while len(rows) - start >= size:
            database.execute(statements[size], [field for row in rows[start : start + size] for field in row])
            start += size


# OR FAIL: undoing a statement half-way would need a copy of every page it touches; we undo the transaction instead.
UPSERT = {
    size: f"""INSERT OR FAIL INTO records (kind, key, revision, checksum, value)
        VALUES {", ".join(["(?, ?, ?, ?, ?)"] * size)} ON CONFLICT (kind, key)
        DO UPDATE SET revision = excluded.revision, checksum = excluded.checksum, value = excluded.value"""
    for size in CHUNKS
}
DELETE = {size: f"DELETE FROM records WHERE (kind, key) IN (VALUES {', '.join(['(?, ?)'] * size)})" for size in CHUNKS}
