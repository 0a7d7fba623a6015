"""The history's writer: one thread that writes in batches what the engine queued. It never stops a server.

Commits that were not written or not queued are a gap. A scan closes it: the records of the current state are encoded
here while the engine goes on changing them, and then corrected by all commits that came meanwhile, up to a mark that
the engine sets between two steps. A record that no commit touched is as it was; others are replaced.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from queue import Empty

import apsw
from msgspec.structs import replace

from roost.model.records.opaque import Audit
from roost.ports.store import StoreError
from roost.server.history import database
from roost.server.history.as_of import apply_changes, records_at
from roost.server.history.database import NotOurs, Records, Stretch
from roost.server.history.pages import FORMAT, PageContent, SnapshotRow, StretchRow, rows_of, snapshot_pages
from roost.server.history.projection import EventRow, HistoryCommit, HistoryReader, HistoryRows
from roost.server.history.queue import Begin, Front, Item, Mark, Scan, Signal, scan
from roost.server.history.retention import HistoryRetention
from roost.server.history.storage import FileStorage, HistoryStorage
from roost.server.observability import logging

LINGER_S = 0.02  # a batch gathers for so long: a busy server has fifty transactions a second, not five hundred
BATCH_CHANGES_MAX = 2_000  # per row and transaction: some ten milliseconds, and the unit that a reader decodes
SNAPSHOT_CHANGES_MIN = 50_000  # a tenth of a second to read
SNAPSHOTS_MIN = 16  # in a history of the largest size: retention deletes from snapshot to snapshot
SNAPSHOT_SHARE = 1  # changes per record until the next snapshot: reading back costs at most twice the state
ROOM_EVERY_S = 10.0  # how often old rows are deleted
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0  # after a failure
LOOK_S = 1.0  # how often to check that the file was not deleted

#: What writing may raise: the disk is full or gone, the file is damaged or not ours.
FAILURES = (apsw.Error, OSError, StoreError, NotOurs)

log = logging.logger("history")


class HistoryWriter(threading.Thread):
    """The thread. `on_written` is called after each transaction with events."""

    def __init__(
        self, path: Path, retention_ms: int, bytes_max: int, front: Front, on_written: Callable[[], None],
        storage: HistoryStorage | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name="history", daemon=True)
        self._storage = storage or FileStorage()
        self._path, self._retention_ms, self._bytes_max = path, retention_ms, bytes_max
        self._front, self._on_written = front, on_written
        self._database: apsw.Connection | None = None
        self._inode = 0
        self._looked_s = self._room_s = self._retry_s = 0.0
        self._pause_s = RETRY_S_MIN
        self._stretch: Stretch | None = None
        self._begin: Begin | None = None  # the last one; None: no state is loaded
        self._scan: Scan | None = None
        self._reader = HistoryReader({}, 0)
        self._room = HistoryRetention()
        self._wants_room = True
        self._told_large = False

    def run(self) -> None:
        """Nothing but the end of the server ends the thread: a defect costs a gap, not the history."""
        while not self._front.stopping:
            try:
                self._write_until_stopped()
            except BaseException as error:
                log.error("the history's writer is started again", exc_info=True)
                self._front.failed = f"the writer failed and is started again: {error!r:.200}"
                self._remember(())
                self._close()
                time.sleep(RETRY_S_MIN)
        self._close()

    def _write_until_stopped(self) -> None:
        items: list[Item] = []
        while Signal.STOP not in items:
            items = self._gather()
            if self._is_early(items):
                self._front.written_notes += sum(isinstance(item, Audit) for item in items)
                continue
            self._turn(items)

    def _is_early(self, items: Sequence[Item]) -> bool:
        """No state was read yet: a file of another release must stay as it is."""
        return self._database is None and self._begin is None and not any(isinstance(item, Begin) for item in items)

    def _turn(self, items: list[Item]) -> None:
        try:
            if not self._ready():
                self._remember(items)
                return
            self._take(items)
            self._make_room()
        except FAILURES as error:
            self._fail(error, items)
        except Exception as error:
            log.error("the history's writer failed", exc_info=True)
            self._fail(error, items)

    # items

    def _idle_s(self) -> float:
        if self._front.failed:
            return self._pause_s
        return LINGER_S if self._wants_room else ROOM_EVERY_S

    def _life(self) -> int:
        assert self._begin is not None
        return self._begin.life or 0

    def _gather(self) -> list[Item]:
        """Wait for an item, and take those that come within a moment. None: it is time to check the file."""
        queue = self._front.queue
        items: list[Item] = []
        changes = 0
        with suppress(Empty):
            items.append(queue.get(timeout=self._idle_s()))
            if queue.empty() and items[0] is not Signal.STOP:
                time.sleep(LINGER_S)
            while changes < BATCH_CHANGES_MAX and items[-1] is not Signal.STOP:
                if isinstance(items[-1], HistoryCommit):
                    changes += len(items[-1].changes)
                items.append(queue.get_nowait())
        for item in items:
            if isinstance(item, HistoryCommit):
                self._front.written_changes += len(item.changes)
                self._front.written_bytes += item.size
        return items

    def _take(self, items: Sequence[Item]) -> None:
        commits: list[HistoryCommit] = []
        for item in items:
            if isinstance(item, HistoryCommit):
                (self._scan.commits if self._scan else commits).append(item)
                continue
            self._write(commits)
            commits = []
            match item:
                case Begin():
                    self._take_begin(item)
                case Audit():
                    self._write_audit(item)
                case Mark() if self._scan is not None and self._scan.number == item.scan:
                    self._finish_scan(self._scan, item)
                case Signal.LOST:
                    self._start_scan("the writer fell behind")
                case Signal.RESET:
                    self._scan = self._begin = None
        self._write(commits)

    def _take_begin(self, begin: Begin) -> None:
        self._begin, self._scan = begin, None
        self._reader = HistoryReader(begin.serials, begin.since)
        stretch = self._stretch
        if stretch is not None and (stretch.life, stretch.revision) == (begin.life, begin.since):
            self._front.refuses = False
            return
        reason = "" if stretch is None else "no history was kept then"
        if begin.records is None:
            self._start_scan(reason)
        else:
            self._front.refuses = False
            self._finish_scan(Scan(0, begin.records, reason), Mark(0, 0, begin.revision, begin.at_ms))

    # rows

    @property
    def _file(self) -> apsw.Connection:
        assert self._database is not None, "items are taken only while the file is open"
        return self._database

    def _write(self, commits: Sequence[HistoryCommit]) -> None:
        if not commits or self._stretch is None or self._begin is None:
            return
        commits = [commit for commit in commits if commit.revision > self._stretch.revision]  # some come twice
        if not commits:
            return
        stretch, last = self._stretch, commits[-1]
        rows = HistoryRows()
        revision, serials = self._reader.revision, self._reader.serials_of(commits)
        try:
            for commit in commits:
                self._reader.read(commit, rows)
            found = [(commit.revision, commit.at_ms, list(commit.changes)) for commit in commits]
            size = self._put(PageContent(FORMAT, within=stretch.id, commits=found), rows)
        except BaseException:
            self._reader.go_back(revision, serials)
            raise
        stretch.revision, stretch.at_ms = last.revision, last.at_ms
        stretch.changes += sum(len(commit.changes) for commit in commits)
        stretch.bytes += size + rows.size
        self._reported(stretch, bool(rows.events))
        many = stretch.changes > max(SNAPSHOT_CHANGES_MIN, SNAPSHOT_SHARE * stretch.records)
        if many or stretch.bytes > max(self._bytes_max // SNAPSHOTS_MIN, 2 * stretch.size):
            self._take_snapshot(stretch)

    def _put(self, page: PageContent, rows: HistoryRows) -> int:
        numbers = self._storage.numbers(self._file)
        return self._storage.write(self._file, [replace(page, rows=rows_of(rows, numbers.event, numbers.audit))])

    def _write_audit(self, entry: Audit) -> None:
        """Of what no commit has: refused requests and backups."""
        rows = HistoryRows()
        rows.audit(entry)
        self._put(PageContent(FORMAT), rows)
        self._front.written_notes += 1
        self._on_written()

    def _take_snapshot(self, stretch: Stretch) -> None:
        """The current state, from the last snapshot and the commits written since, without the engine."""
        query = "SELECT life, revision, at_ms, gap FROM stretches WHERE id = ?"
        life, revision, at_ms, gap = self._file.execute(query, (stretch.id,)).get
        row = StretchRow(stretch.id, life, revision, at_ms, gap)
        self._write_snapshot(stretch, row, records_at(self._file, stretch.id, stretch.revision), HistoryRows())

    def _write_snapshot(self, stretch: Stretch, row: StretchRow, records: Records, rows: HistoryRows) -> None:
        """The page that completes it repeats the stretch: the pages before a snapshot may be deleted."""
        total = sum(map(len, records.values()))
        numbers = self._storage.numbers(self._file)
        taken = SnapshotRow(stretch.id, stretch.revision, stretch.at_ms, total)
        kept = rows_of(rows, numbers.event, numbers.audit)
        last = PageContent(FORMAT, stretch=row, snapshot=numbers.snapshot, taken=taken, rows=kept)
        pages = snapshot_pages(numbers.snapshot, stretch, records)
        stretch.size = self._storage.write(self._file, chain(pages, [last]))
        stretch.records, stretch.changes, stretch.bytes = total, 0, 0

    # gaps

    def _start_scan(self, reason: str) -> None:
        """Encode all records of the current state. Commits are queued (again) from before that on."""
        if self._begin is None:
            return
        self._front.refuses = False
        self._scan = Scan(self._front.scans + 1, scan(self._begin.state), reason)
        self._front.scans += 1

    def _finish_scan(self, found: Scan, mark: Mark) -> None:
        """A new stretch: the state as of the mark, and the missed transitions that are in its stories."""
        assert self._begin is not None
        before, life = self._stretch, self._life()
        same = before is not None and before.life == life
        since, since_ms = (before.revision, before.at_ms) if before is not None and same else (0, 0)
        commits = found.until(mark)
        base = commits[0].revision - 1 if commits else mark.revision
        reader = HistoryReader({}, base)
        existing = {row[0] for row in self._file.execute("SELECT serial FROM workloads")}
        rows = reader.read_records(found.records, since, since_ms, base, existing)
        for commit in commits:
            reader.read(commit, rows)
            apply_changes(found.records, commit.changes)
        if found.reason:
            message = f"commits {since + 1} to {base} may be missing: {found.reason}"
            rows.events.append(EventRow(mark.at_ms, mark.revision, "history", what="gap", message=message))
        row = StretchRow(self._storage.numbers(self._file).stretch, life, mark.revision, mark.at_ms, found.reason)
        stretch = Stretch(row.id, life, mark.revision, mark.at_ms)
        self._write_snapshot(stretch, row, found.records, rows)
        self._stretch, self._scan, self._reader = stretch, None, reader
        reader.revision = mark.revision
        if found.reason:
            self._front.gaps += 1
            log.info("a gap in the history", reason=found.reason, since_revision=since, until_revision=mark.revision)
        self._reported(stretch, bool(rows.events))

    # the file

    def _ready(self) -> bool:
        """Open the file, again if it was deleted or failed; a scan then closes the gap. False: it is too early."""
        now = time.monotonic()
        if self._database is not None and now - self._looked_s >= LOOK_S:
            self._looked_s = now
            if not self._path.exists() or self._path.stat().st_ino != self._inode:
                log.warning("the history was deleted; a new one is begun", file=str(self._path))
                self._close()
                self._open()
                self._start_scan("the file was deleted")
        elif self._database is None and now >= self._retry_s:
            was_failed = bool(self._front.failed)
            self._open()
            if was_failed:
                self._pause_s = RETRY_S_MIN
                log.info("history is written again", file=str(self._path))
                self._front.failed = ""
                self._start_scan("the history could not be written")
        return self._database is not None

    def _open(self) -> None:
        try:
            self._database = database.open_for_writing(self._path)
        except (apsw.CorruptError, apsw.NotADBError, NotOurs) as error:
            aside = database.put_aside(self._path)
            message = "the history cannot be read and was put aside; a new one is begun"
            log.error(message, file=str(aside), why=str(error))
            self._database = database.open_for_writing(self._path)
        self._inode = self._path.stat().st_ino
        self._stretch = database.last_stretch(self._database)

    def _remember(self, items: Sequence[Item]) -> None:
        """Nothing can be written: a scan of the last state that was loaded will close the gap."""
        self._scan = None
        self._front.refuses = True
        for item in items:
            if isinstance(item, Begin):
                self._begin = item
            elif item is Signal.RESET:
                self._begin = None
            elif isinstance(item, Audit):
                self._front.written_notes += 1

    def _fail(self, error: Exception, items: Sequence[Item]) -> None:
        self._remember(items)
        if not self._front.failed:
            log.error("history cannot be written; the server goes on without", file=str(self._path), error=str(error))
        self._front.failed = f"{self._path} cannot be written: {error}"
        self._retry_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)
        self._close()
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            database.put_aside(self._path)

    def _close(self) -> None:
        opened, self._database = self._database, None
        if opened is not None:
            with suppress(apsw.Error):  # closing a broken file may fail
                opened.close()

    def _make_room(self) -> None:
        now = time.monotonic()
        if (now - self._room_s < ROOM_EVERY_S and not self._wants_room) or self._database is None:
            return
        self._room_s = now
        cutoff_ms = int(time.time() * 1_000) - self._retention_ms
        verdict = self._room.make(self._database, cutoff_ms, self._bytes_max, self._reader.serials)
        self._front.bytes = database.used_bytes(self._database)
        self._wants_room = verdict == "more"
        if verdict == "snapshot" and self._stretch is not None and self._stretch.changes and self._scan is None:
            self._take_snapshot(self._stretch)
            self._wants_room = True
        elif verdict == "full" and not self._told_large:
            self._told_large = True
            log.warning("the state alone is larger than the history may be", bytes_max=self._bytes_max)

    def _reported(self, stretch: Stretch, update: bool) -> None:
        self._front.revision, self._front.at_ms = stretch.revision, stretch.at_ms
        if update:
            self._on_written()
