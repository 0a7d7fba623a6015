"""SQLite store: one file, one writer thread; the commits that wait for it become one transaction and one fsync."""

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, NoReturn, TypeVar, cast
from zlib import crc32

import apsw

from roost.ports.store import Change, Fenced, Lead, Snapshot, StoreError, Unavailable
from roost.stores import sqlite_file
from roost.stores.migrations import numbered

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

Outcome = int | Exception
Row = tuple[str, str, int, int, bytes]
T = TypeVar("T")


class _Commit(NamedTuple):
    future: "asyncio.Future[int]"
    epoch: int
    changes: Sequence[Change]


class _Call(NamedTuple):
    future: "asyncio.Future[object]"
    work: Callable[[], object]


class SqliteStore:
    """The Store port on `<directory>/roost.db`. For one event loop; nothing is touched before the first call."""

    def __init__(self, directory: Path) -> None:
        sqlite_file.require_library()
        self._queue: SimpleQueue[_Commit | _Call] = SimpleQueue()
        self._writer = _Writer(directory)
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._closed = False

    async def lead(self, identity: str, seen: Lead | None = None) -> int:
        """Whoever has the file's lock is alone with it, so what was seen of others does not matter."""
        return await self._call(partial(self._writer.lead, identity))

    async def load(self) -> Snapshot:
        return await self._call(self._writer.load)

    async def commit(self, epoch: int, changes: Sequence[Change]) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Commit(future, epoch, changes))
        return await future

    async def backup(self, target: Path) -> None:
        """Write a consistent copy to a new file while the store is in use (it is locked to other programs)."""
        await self._call(partial(self._writer.backup, target))

    async def close(self) -> None:
        if self._thread is not None:
            if self._ended is None:
                self._ended = self._call(self._writer.close)
            self._closed = True
            await asyncio.shield(self._ended)
        self._closed = True

    def _call(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(_Call(cast("asyncio.Future[object]", future), work))
        return future

    def _put(self, job: _Commit | _Call) -> None:
        if self._closed:
            raise Unavailable("the store is closed")
        if self._thread is None:
            # A daemon: a server that dies without closing must not hang on its way out.
            self._thread = threading.Thread(target=_serve, args=(self._queue, self._writer), name="store", daemon=True)
            self._thread.start()
        self._queue.put(job)


def _serve(queue: "SimpleQueue[_Commit | _Call]", writer: "_Writer") -> None:
    """The writer thread: everything that touches the file happens here, in the order it was asked for."""
    while not writer.closed:
        group, call = _drain(queue)
        if group:
            _tell(group, writer.commit(group))
            writer.checkpoint()  # after the callers know: it is not theirs to wait for
        if call is not None:
            _tell([call], [writer.perform(call.work)])


def _drain(queue: "SimpleQueue[_Commit | _Call]") -> tuple[list[_Commit], _Call | None]:
    """Wait for a job, then take the commits that are there, up to the first other job."""
    group: list[_Commit] = []
    changes = 0
    job = queue.get()
    while isinstance(job, _Commit):
        group.append(job)
        changes += len(job.changes)
        if changes >= GROUP_CHANGES_MAX or queue.empty():
            return group, None
        job = queue.get()
    return group, job


def _tell(jobs: Sequence[_Commit | _Call], outcomes: Sequence[object]) -> None:
    """Wake the event loop once for all. There is one, except where an earlier one ended with commits under way."""
    for loop in {job.future.get_loop() for job in jobs}:
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(_resolve, loop, jobs, outcomes)


def _resolve(loop: asyncio.AbstractEventLoop, jobs: Sequence[_Commit | _Call], outcomes: Sequence[object]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        future = cast("asyncio.Future[object]", job.future)
        if future.done() or future.get_loop() is not loop:
            continue  # a caller that was cancelled does not take its commit back
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class _Writer:
    """What the writer thread does. Opens on first use, and again after a failure."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / sqlite_file.FILE_NAME
        self._lock: sqlite_file.Lock | None = None
        self._database: apsw.Connection | None = None
        self._revision = 0
        self._failure: Exception | None = None  # no commit until the caller has loaded what is really there
        self.closed = False

    def perform(self, work: Callable[[], object]) -> object:
        """Do it, or return what went wrong."""
        try:
            return work()
        except StoreError as error:
            return error
        except Exception as error:
            return self._fail(error)

    def lead(self, identity: str) -> int:
        database = self._open()
        assert self._lock is not None
        self._lock.sign(identity)
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE meta SET epoch = epoch + 1")
        epoch = cast(int, database.execute("SELECT epoch FROM meta").get)
        database.execute("COMMIT")
        return epoch

    def load(self) -> Snapshot:
        rows = self._open().execute("SELECT kind, key, revision, checksum, value FROM records")
        # tuple.__new__ is a third of the cost of Change(), which counts with 100,000 records.
        new = tuple.__new__
        with _collector_paused():
            records = [
                new(Change, (kind, key, value))
                for kind, key, revision, checksum, value in cast("Iterator[Row]", rows)
                if checksum == crc32(value, revision) or self._altered(kind, key)
            ]
        self._failure = None
        return Snapshot(self._revision, records)

    def commit(self, group: Sequence[_Commit]) -> Sequence[Outcome]:
        """One transaction; each commit's revision, or why it was refused."""
        if self._failure is not None:
            return [Unavailable(f"the last commit failed, load first: {self._failure}")] * len(group)
        try:
            return self._transact(self._open(), group)
        except MISTAKES as mistake:
            self._roll_back()
            # One caller's mistake, not its neighbours': each goes alone.
            return [mistake] if len(group) == 1 else [self.commit([commit])[0] for commit in group]
        except Exception as error:
            return [self._fail(error)] * len(group)

    def checkpoint(self) -> None:
        """Write the log back into the file when it has grown, so that it starts over instead of growing on."""
        if self._database is None or self._database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0] < CHECKPOINT_PAGES:
            return
        try:
            self._database.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)
            self._database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.FullError:
            pass  # the log can go on for a while; the commit that finds no room for itself will say so
        except apsw.Error as error:
            self._fail(error)

    def backup(self, target: Path) -> None:
        try:
            self._open().execute("VACUUM INTO ?", (str(target),))
            with target.open("rb") as copy:
                os.fsync(copy.fileno())
        except (apsw.Error, OSError) as error:
            raise Unavailable(f"no backup was made at {target}: {error}") from error

    def close(self) -> None:
        self.closed = True
        self._let_go()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _open(self) -> apsw.Connection:
        if self._database is None:
            self._lock = self._lock or sqlite_file.take_lock(self._directory)
            try:
                self._database = sqlite_file.open_database(self._path, numbered("sqlite"))
            except StoreError:
                self._lock.release()
                self._lock = None
                raise
            newest = "SELECT max(revision, coalesce((SELECT max(revision) FROM records), 0)) FROM meta"
            self._revision = cast(int, self._database.execute(newest).get)
        return self._database

    def _transact(self, database: apsw.Connection, group: Sequence[_Commit]) -> list[Outcome]:
        database.execute("BEGIN IMMEDIATE")
        epoch = cast(int, database.execute("SELECT epoch FROM meta").get)
        revision = self._revision
        merged: dict[tuple[str, str], Row | None] = {}
        carried = True  # is there a row that carries the last revision?
        outcomes: list[Outcome] = []
        for commit in group:
            if commit.epoch != epoch or epoch < 1:
                outcomes.append(Fenced(f"epoch {commit.epoch} may not commit: epoch {epoch} leads {self._path}"))
                continue
            revision += 1
            outcomes.append(revision)
            rows = {change[:2]: _row(revision, change) for change in commit.changes}
            merged.update(rows)
            carried = any(row is not None for row in rows.values())
        _write(database, UPSERT, [row for row in merged.values() if row is not None])
        _write(database, DELETE, [key for key, row in merged.items() if row is None])
        if not carried:
            database.execute("UPDATE meta SET revision = ?", (revision,))
        database.execute("COMMIT")
        self._revision = revision
        return outcomes

    def _fail(self, error: Exception) -> Exception:
        """Close the file: what is in memory and what is on disk may differ. Only a load makes them one again."""
        self._failure = sqlite_file.explain(error, self._path)
        self._let_go()
        return self._failure

    def _let_go(self) -> None:
        if self._database is not None:
            self._roll_back()
            with contextlib.suppress(apsw.Error):  # closing writes the log back if it can; opening again will, if not
                self._database.close()
            self._database = None

    def _roll_back(self) -> None:
        assert self._database is not None
        with contextlib.suppress(apsw.Error):  # without its end mark in the log, a transaction is gone anyway
            if not self._database.get_autocommit():
                self._database.execute("ROLLBACK")

    def _altered(self, kind: str, key: str) -> NoReturn:
        self._failure = sqlite_file.damaged(self._path, f"record {kind} {key} is not what was written")
        raise self._failure


def _row(revision: int, change: Change) -> Row | None:
    kind, key, value = change
    return None if value is None else (kind, key, revision, crc32(value, revision), value)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A fifth of the time to build 100,000 records goes into looking for garbage that cannot be there."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


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
