"""History: finished workloads, events, and the state as it was. In a file of its own, which may be deleted.

The engine hands over each commit and goes on; one thread writes (`writer.py`), others read, each with a connection of
its own. Nothing waits for the history, and its failures are logged and change nothing else.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw
import msgspec

from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService, NotFound
from roost.model.records.opaque import Audit
from roost.model.records.transition import Transitioned
from roost.ports.history import HistoryPages
from roost.ports.store import Change, News, SharedStore
from roost.schema.page import HistoryBehind
from roost.schema.servers import HistoryStatus
from roost.server.history.as_of import Moment, find_moment, state_at
from roost.server.history.database import FILE_NAME, open_for_reading
from roost.server.history.projection import HistoryCommit, transitions_in
from roost.server.history.queue import Begin, Front, Mark, Signal, scan
from roost.server.history.shared import SharedWriter
from roost.server.history.storage import SharedStorage
from roost.server.history.writer import HistoryWriter
from roost.server.views.work import progress_of
from roost.server.waiting import wait_for

SHARED_FILE_NAME = "history-index.db"  # made again from the shared pages whenever it is missing
RETENTION_MS = 90 * 86_400_000
BYTES_MAX = 10 << 30  # some 20 million transitions
BYTES_MIN = 1 << 20

# The queue of the writer: some ten seconds of a very busy server. Beyond that commits are not queued, and the writer
# scans the whole state later.
QUEUE_CHANGES_MAX = 200_000
QUEUE_BYTES_MAX = 128 << 20

SMALL_RECORDS = 500  # a state that the engine's side copies at once, in a millisecond, instead of asking for a scan
READERS_MAX = 2  # threads that read: each takes its share of the interpreter
WAITING_MAX = 32  # requests that wait for one; more are refused
QUERY_S_MAX = 10.0  # for one question: a page takes a tenth of a second, the state of 100,000 instances some seconds
PROGRESS_STEPS = 1_000  # of SQLite's machine between two looks at the clock: some microseconds
PAST_S = 60.0  # how long a state of the past is kept in memory for the next request
CLOSE_S = 10.0  # for the writer to write its queue; a slower disk does not delay the end of the server
CATCH_UP_S_MAX = 2.5  # a writer is a fraction of a second behind; with a blob store, a leader writes every second
MISSED_S_MAX = 30.0  # for the store to give the commits of a server that was killed
NOTES_MAX, NOTES_EVERY_S = 100, 10.0  # refusals that are kept: a client that is refused in a loop fills no disk
FOLLOW_PAUSE_S = 0.05  # between two reads of a follower: twenty a second are as good as at once

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class SharedHistory:
    """The place that servers share, and the store where commits are looked for that no server has seen."""

    pages: HistoryPages
    place: str
    store: SharedStore
    every_s: float  # between two appends of a busy leader
    epoch: Callable[[], int] = lambda: 0  # of this server's lead; 0: another leads, or might

    def lead(self) -> int:
        return self.epoch()


class History:
    """The engine's side and the readers' side. The executor calls `begin`, `take` and `reset`, in order."""

    def __init__(
        self, folder: Path, settings: Settings, *, retention_ms: int = RETENTION_MS, bytes_max: int = BYTES_MAX,
        shared: SharedHistory | None = None, is_apart: bool = False,
    ) -> None:  # fmt: skip
        self.path = folder / (SHARED_FILE_NAME if shared else FILE_NAME)
        self.shared = shared
        self._is_apart = is_apart  # servers share the store, but there is no place for a shared history
        self._settings = settings
        self._front = Front()
        limits = (self.path, retention_ms, bytes_max, self._front, self._wake_from_thread)
        if shared is None:
            self._writer = HistoryWriter(*limits)
        else:
            storage = SharedStorage(shared.pages, shared.lead)
            self._writer = SharedWriter(*limits, storage, shared.lead, self._missed, shared.every_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="history-reader")
        self._reading = 0
        self._state: State | None = None
        self._number = 0  # commits handed over
        self._marked = 0  # the last scan that has its mark
        self._queued_changes = self._queued_bytes = 0
        self._past: tuple[State, Moment] | None = None
        self._past_ends: asyncio.TimerHandle | None = None
        self._rebuilding = asyncio.Lock()
        self.written = asyncio.Event()  # set and cleared at once; stays set when the server stops
        self.closed = False
        self._noted, self._noted_since_s = 0, 0.0

    def start(self) -> None:
        """Begin to write. The writer opens the file: a slow disk does not delay the start of the server."""
        self._loop = asyncio.get_running_loop()
        self._writer.start()

    async def close(self) -> None:
        self.leave()
        self._front.stopping = True
        self._front.queue.put(Signal.STOP)
        if self._writer.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._writer.join, CLOSE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._past_ends is not None:
            self._past_ends.cancel()

    def leave(self) -> None:
        self.closed = True
        self.written.set()

    # the engine's side

    def begin(self, state: State, since: int) -> None:
        """A state was loaded or is followed; commits after `since` are handed over from now on."""
        self._state = state
        small = len(state.instances) + len(state.workloads) + len(state.nodes) <= SMALL_RECORDS
        records = scan(state) if small else None
        serials = {key: workload.serial for key, workload in state.workloads.items()}
        begin = Begin(state, state.meta.first_serial, since, state.revision, _time_of(state), serials, records)
        self._front.known = state.revision
        self._front.queue.put(begin)

    def take(
        self, state: State, changes: Sequence[Change], transitions: Sequence[Transitioned] = ()
    ) -> None:  # fmt: skip
        """A commit is durable. Costs some microseconds; nothing is decoded here."""
        front = self._front
        if changes:
            self._number += 1
            front.known = state.revision
        if changes and not front.refuses:
            size = sum(len(change.value) for change in changes if change.value is not None)
            waiting = self._queued_changes + len(changes) - front.written_changes
            if waiting > QUEUE_CHANGES_MAX or self._queued_bytes + size - front.written_bytes > QUEUE_BYTES_MAX:
                front.refuses = True
                front.queue.put(Signal.LOST)
            else:
                self._queued_changes += len(changes)
                self._queued_bytes += size
                changed = [change.key for change in changes if change.kind == "workload" and change.value]
                progress = {key: progress_of(state, key) for key in changed}
                at_ms, number, revision = _time_of(state), self._number, state.revision
                commit = HistoryCommit(number, revision, at_ms, changes, size, progress, transitions)
                front.queue.put(commit)
        if front.scans != self._marked and state is self._state:
            self._marked = front.scans
            front.queue.put(Mark(self._marked, self._number, state.revision, _time_of(state)))

    def reset(self) -> None:
        self._state = None
        self._front.queue.put(Signal.RESET)

    def note(self, entry: Audit) -> None:
        """An entry of the audit log that is in no commit. Callers without rights can cause many: some are kept."""
        now_s = time.monotonic()
        if now_s - self._noted_since_s >= NOTES_EVERY_S:
            self._noted, self._noted_since_s = 0, now_s
        self._noted += 1
        if self._noted == NOTES_MAX:
            entry = msgspec.structs.replace(
                entry, detail=f"{entry.detail}; more within {NOTES_EVERY_S:.0f} s are not listed"
            )
        if self._noted <= NOTES_MAX:
            self._front.notes += 1
            self._front.queue.put(entry)

    def standing(self) -> HistoryStatus:
        front = self._front
        waiting = self._queued_changes - front.written_changes + front.held
        is_dead = self._loop is not None and not self.closed and not self._writer.is_alive()
        failed = "its thread has ended; restart the server" if is_dead else front.failed
        return HistoryStatus(
            front.revision, front.at_ms, waiting, front.bytes, front.gaps, failed,
            place=self.shared.place if self.shared else "", is_behind=self._is_behind(),
            is_apart=self._is_apart,
        )  # fmt: skip

    def _is_behind(self) -> bool:
        return self.shared is not None and (not self._front.is_read or self._front.revision < self._front.known)

    def _missed(self, since: int, until: int) -> list[HistoryCommit] | str:
        """For the writer's thread: commits that this server has not seen, from the store; or why they are missing."""
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(self._follow(since, until), self._loop).result()
        except (RuntimeError, CancelledError):
            return "the server stops"

    async def _follow(self, since: int, until: int) -> list[HistoryCommit] | str:
        assert self.shared is not None
        changes: list[Change] = []
        size, revision = 0, since
        try:
            async with asyncio.timeout(MISSED_S_MAX):
                async for update in self.shared.store.follow(since):
                    if not isinstance(update, News):
                        return str(update)
                    changes += update.changes
                    size += sum(len(change.value) for change in update.changes if change.value is not None)
                    revision = update.revision
                    if size > QUEUE_BYTES_MAX:
                        return f"they have more than {QUEUE_BYTES_MAX >> 20} MiB"
                    if revision >= until:
                        break
        except TimeoutError:
            return "the store does not answer"
        state = self._state
        if state is None or revision < until:
            return "the store does not have them"
        at_ms = _time_of(state)
        progress = {change.key: progress_of(state, change.key) for change in changes if change.kind == "workload"}
        transitions = transitions_in(changes, since, revision, at_ms)
        return [HistoryCommit(0, revision, at_ms, changes, size, progress, transitions)]

    # the readers' side

    async def behind(self) -> HistoryBehind | None:
        """Wait a while until the pages have what this server knows; then how far they are behind."""
        if self._is_behind():
            await self.catch_up(self._front.known)
        if not self._is_behind():
            return None
        return HistoryBehind(self._front.revision, self._front.at_ms, self.standing().failed)

    async def catch_up(self, revision: int) -> None:
        """Wait until a commit and all notes are written; not for long, and not for a writer that fails."""
        front = self._front
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S_MAX):
                while (
                    front.revision < revision or front.written_notes < front.notes or self._is_behind()
                ) and not self.standing().failed:
                    await wait_for(self.written, FOLLOW_PAUSE_S)

    async def read(self, query: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a thread. Raises NoService without a readable file, or while too many queries wait."""
        if self._reading >= WAITING_MAX:
            raise NoService("too many questions about the past at once; try again in a moment", code="busy")
        self._reading += 1

        def ask() -> T:
            until_s = time.monotonic() + QUERY_S_MAX
            try:
                with closing(open_for_reading(self.path)) as database:
                    database.set_progress_handler(lambda: time.monotonic() > until_s, PROGRESS_STEPS)
                    return query(database, *args, **kwargs)
            except apsw.InterruptError:
                message = f"this question about the past takes more than {QUERY_S_MAX:g} s; ask for a shorter time"
                raise NoService(message, code="busy") from None
            except apsw.Error as error:
                raise NoService(f"the history cannot be read: {error}") from None

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        finally:
            self._reading -= 1

    async def moment(self, at: str, now_ms: int) -> Moment:
        behind = await self.behind()
        found = await self.read(find_moment, at, now_ms)
        if behind is None or found.gap or found.revision < behind.revision:
            return found
        gap = f"later commits are not here yet {behind.reason}".rstrip()
        return msgspec.structs.replace(found, gap=gap)

    async def at(self, at: str, now_ms: int) -> tuple[State, Moment]:
        """The state as it was. One is made at a time, and the last is kept for a while. Raises Invalid, NotFound."""
        moment = await self.moment(at, now_ms)
        async with self._rebuilding:
            if self._past is None or self._past[1].token != moment.token:
                self._past = None  # two of them at once would be twice the memory
                self._past = await self.read(state_at, moment, self._settings), moment
            if self._past_ends is not None:
                self._past_ends.cancel()
            self._past_ends = asyncio.get_running_loop().call_later(PAST_S, setattr, self, "_past", None)
            return self._past[0], moment

    def _wake_from_thread(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.written.set()
        if not self.closed:
            self.written.clear()


def _time_of(state: State) -> int:
    """The time of its last step; of a state that is only followed, the current time."""
    return state.now_ms or time.time_ns() // 1_000_000


def needed(history: History | None) -> History:
    """The history. Raises NotFound if the server keeps none."""
    if history is None:
        raise NotFound("no history is kept here; start the server with `--history on`", code="history_off")
    return history
