"""The writer of a history that servers share: the leader appends pages, every server applies them to its own file.

Each server holds the commits that are in no page yet. A new leader reads the pages of the ones before, and goes on
after the last revision in them: with the commits that it holds, with those that the store has, or else with a gap.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from roost.model.errors import NotFound
from roost.model.records.opaque import Audit
from roost.server.history import database
from roost.server.history.as_of import records_at
from roost.server.history.pages import FORMAT, PageContent
from roost.server.history.projection import HistoryCommit, HistoryReader, HistoryRows
from roost.server.history.queue import Begin, Front, Item, Mark, Scan, Signal
from roost.server.history.retention import size_floor_ms
from roost.server.history.storage import PagesAway, PagesChanged, PagesDiffer, SharedStorage
from roost.server.history.writer import (
    BATCH_CHANGES_MAX,
    FAILURES,
    RETRY_S_MAX,
    RETRY_S_MIN,
    ROOM_EVERY_S,
    HistoryWriter,
    log,
)

HELD_BYTES_MAX = 256 << 20  # of commits in memory while the shared place is away: hours of a common server
NOTES_HELD_MAX = 1_000
POLL_S_MIN, POLL_S_MAX = 0.1, 2.0  # between two looks of a standby that is behind
CHECK_S = 10.0  # a standby that is behind for so long looks whether it reads the right pages
FLOOR_STEP_MS = 60_000  # how often the leader moves the floor: deleting is a page like others
FLOOR_MARGIN_MS = 600_000  # pages are kept for longer than their rows: clocks of nodes may be ahead

Missed = Callable[[int, int], list[HistoryCommit] | str]


class SharedWriter(HistoryWriter):
    """`missed`: the commits after a revision and up to another from the store, or why it does not have them."""

    def __init__(
        self, path: Path, retention_ms: int, bytes_max: int, front: Front, on_written: Callable[[], None],
        storage: SharedStorage, lead: Callable[[], int], missed: Missed, every_s: float,
    ) -> None:  # fmt: skip
        super().__init__(path, retention_ms, bytes_max, front, on_written, storage)
        self._shared = storage
        self._lead = lead
        self._missed = missed
        self._every_s = every_s  # between two appends: each may be an object
        self._held: deque[HistoryCommit] = deque()
        self._held_bytes = 0
        self._base: int | None = None  # the revision before the first one that is held; None: not known
        self._notes: deque[Audit] = deque(maxlen=NOTES_HELD_MAX)
        self._mark: Mark | None = None
        self._leads = 0  # the epoch in which everything of earlier leaders was read
        self._append_s = self._poll_s = self._behind_s = 0.0
        self._wait_s = POLL_S_MIN
        self._why = ""  # there are no pages

    def run(self) -> None:
        super().run()
        self._shared.close()

    def _life(self) -> int:
        """The leader of a new store gives it after the state was loaded."""
        assert self._begin is not None
        return self._begin.state.meta.first_serial

    def _idle_s(self) -> float:
        is_behind = self._held or self._notes or self._front.revision < self._front.known
        return min(self._every_s, POLL_S_MIN) if is_behind or self._lead() != self._leads else 1.0

    def _turn(self, items: list[Item]) -> None:
        for item in items:
            self._hold(item)
        now = time.monotonic()
        if now < self._retry_s:
            return
        try:
            if self._database is None or not self._path.exists():
                self._reopen()
            self._share(now, is_last=Signal.STOP in items)
            self._make_room()
            self._recovered()
        except PagesAway as error:
            self._leads = 0
            self._away(f"the shared history cannot be used: {error}")
        except FAILURES as error:
            self._leads = 0
            self._away(f"{self._path} cannot be written: {error}")
            self._close()
        except PagesDiffer:
            self._leads = 0
            self._make_again()
        except PagesChanged:
            self._leads = 0
        except Exception:
            log.error("the history's writer failed", exc_info=True)
            self._release()
            self._away("the writer failed; its log has the reason")
        finally:
            self._front.held = sum(len(commit.changes) for commit in self._held)

    # items

    def _is_early(self, items: Sequence[Item]) -> bool:
        """It needs no state to read pages."""
        return False

    def _hold(self, item: Item) -> None:
        match item:
            case HistoryCommit():
                if self._base is None:  # what is missing before it is not known
                    self._base = item.revision
                    return
                self._held.append(item)
                self._held_bytes += item.size
                while self._held_bytes > HELD_BYTES_MAX:
                    self._drop_first()
            case Begin():
                self._release()
                self._begin, self._base = item, item.since
                self._reader = HistoryReader(item.serials, item.since)
                self._front.refuses = False
            case Signal.RESET | Signal.LOST:
                self._release()
                self._front.refuses = False
                if item is Signal.RESET:
                    self._begin = None
            case Audit():
                self._notes.append(item)
            case Mark():
                self._mark = item

    def _remember(self, items: Sequence[Item]) -> None:
        self._release()

    def _release(self) -> None:
        self._held.clear()
        self._held_bytes, self._base, self._scan, self._leads = 0, None, None, 0

    def _drop_first(self) -> None:
        commit = self._held.popleft()
        self._held_bytes -= commit.size
        self._base = commit.revision

    def _drop_written(self, revision: int) -> None:
        while self._held and self._held[0].revision <= revision:
            self._reader.skip(self._held[0])
            self._drop_first()

    # leading and following

    def _share(self, now: float, *, is_last: bool) -> None:
        epoch = self._lead()
        if not epoch or self._begin is None:
            self._leads = 0
            self._follow(now)
            return
        if epoch != self._leads:
            while self._read():
                pass
            self._stretch = database.last_stretch(self._file)
            self._leads = epoch
        if now - self._append_s < self._every_s and not is_last:
            return
        self._append_s = now
        self._continue()

    def _follow(self, now: float) -> None:
        if self._front.revision >= self._front.known:
            self._behind_s = now
        if now < self._poll_s:
            return
        found = self._read()
        self._wait_s = POLL_S_MIN if found else min(2 * self._wait_s, POLL_S_MAX)
        self._poll_s = now + (0 if found else self._wait_s)
        self._drop_written(self._front.revision)
        if not found and now - self._behind_s > CHECK_S:
            self._behind_s = now
            self._shared.check()

    def _read(self) -> bool:
        pages = self._shared.read(self._file)
        for page in pages:
            if page.commits:
                self._front.revision, self._front.at_ms = page.commits[-1][:2]
            elif page.taken is not None:
                self._front.revision, self._front.at_ms = page.taken.revision, page.taken.at_ms
        written = {tuple(entry) for page in pages for entry in page.rows.audits}
        if self._notes and written:
            left = [entry for entry in self._notes if msgspec.structs.astuple(entry)[1:] not in written]
            self._notes = deque(left, NOTES_HELD_MAX)
        floor_ms = max((page.floor_ms for page in pages), default=0)
        if floor_ms:
            self._room.make_shared(self._file, floor_ms)
        if any(page.rows.events for page in pages):
            self._on_written()
        self._front.is_read = self._front.is_read or not pages
        return bool(pages)

    def _continue(self) -> None:
        """Append what is held, after the last page of whichever leader."""
        assert self._begin is not None
        if self._scan is None:
            reason = self._gap()
            if reason is not None:
                self._look_again(reason)
        if self._scan is not None:
            mark = self._mark
            if mark is None or mark.scan != self._scan.number:
                return
            self._scan.commits = [commit for commit in self._held if commit.number <= mark.number]
            self._finish_scan(self._scan, mark)
        assert self._stretch is not None
        self._drop_written(self._stretch.revision)
        self._why = ""
        while self._held:
            commits: list[HistoryCommit] = []
            changes = 0
            for commit in self._held:
                commits.append(commit)
                changes += len(commit.changes)
                if changes >= BATCH_CHANGES_MAX:
                    break
            self._write(commits)
            for _ in commits:
                self._drop_first()
        while self._notes:
            self._write_audit(self._notes[0])
            self._notes.popleft()

    def _gap(self) -> str | None:
        """Why the state has to be read; None: the commits since the last page are held, or were got from the store."""
        stretch = self._stretch
        if stretch is None:
            return self._why
        if stretch.life != self._life():
            return "the pages before are of another store"
        if self._front.known < stretch.revision:
            return (
                f"the store has revision {self._front.known}, the history {stretch.revision}: was the store restored?"
            )
        self._drop_written(stretch.revision)
        if self._held and self._base is not None and self._base < stretch.revision:
            self._drop_first()  # it is several commits in one, and some of them are written
        base = self._front.known if self._base is None else self._base
        if base <= stretch.revision:
            return None
        missed = self._missed(stretch.revision, base)
        if isinstance(missed, str):
            return f"no server has them, and not the store: {missed}"
        try:
            records = records_at(self._file, stretch.id, stretch.revision)
        except NotFound as error:
            return error.message
        serials = {key: _SERIALS.decode(value).serial for key, value in records.get("workload", {}).items()}
        self._reader = HistoryReader(serials, stretch.revision)
        self._write(missed)
        return self._gap()  # some that are held may be among them

    def _look_again(self, reason: str) -> None:
        begin = self._begin
        assert begin is not None
        if begin.records is not None and self._base == begin.since:
            self._scan = Scan(self._front.scans + 1, begin.records, reason)
            self._front.scans += 1
            self._mark = Mark(self._front.scans, 0, begin.revision, begin.at_ms)
        else:
            self._start_scan(reason)

    # the file and the place

    def _reopen(self) -> None:
        self._close()
        self._open()
        self._shared.open(self._file)
        self._leads = 0
        if self._stretch is not None:
            self._front.revision, self._front.at_ms = self._stretch.revision, self._stretch.at_ms

    def _make_again(self) -> None:
        """The file has pages that are not in the shared place: of a leader that was overtaken, or of another place."""
        aside = database.put_aside(self._path)
        log.warning("the file of the history is made again from the shared pages", aside=str(aside))
        self._close()
        self._front.revision = self._front.at_ms = 0
        self._front.is_read = False
        self._why = "the shared history was lost or replaced"

    def _away(self, reason: str) -> None:
        if not self._front.failed:
            log.error("history cannot be written; commits are held", error=reason)
        self._front.failed = reason
        self._retry_s = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, RETRY_S_MAX)

    def _recovered(self) -> None:
        if self._front.failed:
            log.info("history is written again")
            self._front.failed = ""
        self._pause_s = RETRY_S_MIN

    def _make_room(self) -> None:
        now = time.monotonic()
        if now - self._room_s < ROOM_EVERY_S or self._database is None:
            return
        self._room_s = now
        self._front.bytes = database.used_bytes(self._file)
        if not self._leads or self._scan is not None or self._stretch is None:
            return
        floor_ms = int(time.time() * 1_000) - self._retention_ms
        if self._front.bytes > self._bytes_max:
            floor_ms = max(floor_ms, size_floor_ms(self._file) or 0)
        if floor_ms - self._shared.position.floor_ms < FLOOR_STEP_MS:
            return
        oldest = self._file.execute("SELECT min(at_ms) FROM events").get
        if oldest is None or oldest >= floor_ms:
            return
        self._put(PageContent(FORMAT, floor_ms=floor_ms), HistoryRows())
        self._room.make_shared(self._file, floor_ms)
        query = "SELECT id FROM snapshots WHERE at_ms <= ? ORDER BY at_ms DESC, id DESC LIMIT 1"
        base = self._file.execute(query, (floor_ms - FLOOR_MARGIN_MS,)).get
        if base is not None:
            self._shared.forget(base)


class _Serial(msgspec.Struct, gc=False):
    serial: int


_SERIALS = msgspec.msgpack.Decoder(_Serial)
