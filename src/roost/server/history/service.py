"""History: finished workloads, events, and the state as it was. In a file of its own, which may be deleted.

The engine hands over each commit and goes on; one thread writes (`writer.py`), others read, each with a connection of
its own. Nothing waits for the history, and its failures are logged and change nothing else.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw

from roost.core.state.outcome import Forgotten
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService, NotFound
from roost.model.records.transition import Transitioned
from roost.ports.store import Change
from roost.schema.servers import HistoryStatus
from roost.server.history.as_of import Moment, find_moment, state_at
from roost.server.history.database import FILE_NAME, open_for_reading
from roost.server.history.projection import HistoryCommit
from roost.server.history.queue import Begin, Front, Mark, Signal, scan
from roost.server.history.writer import HistoryWriter
from roost.server.views.work import progress_of

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
PAST_S = 60.0  # how long a state of the past is kept in memory for the next request
CLOSE_S = 10.0  # for the writer to write its queue; a slower disk does not delay the end of the server
FOLLOW_PAUSE_S = 0.05  # between two reads of a follower: twenty a second are as good as at once

P = ParamSpec("P")
T = TypeVar("T")


class History:
    """The engine's side and the readers' side. The executor calls `begin`, `take` and `reset`, in order."""

    def __init__(
        self, folder: Path, settings: Settings, *, retention_ms: int = RETENTION_MS, bytes_max: int = BYTES_MAX
    ) -> None:
        self.path = folder / FILE_NAME
        self._settings = settings
        self._front = Front()
        self._writer = HistoryWriter(self.path, retention_ms, bytes_max, self._front, self._wake_from_thread)
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

    def start(self) -> None:
        """Begin to write. The writer opens the file: a slow disk does not delay the start of the server."""
        self._loop = asyncio.get_running_loop()
        self._writer.start()

    async def close(self) -> None:
        self.leave()
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
        self._front.queue.put(begin)

    def take(
        self, state: State, changes: Sequence[Change], transitions: Sequence[Transitioned] = (),
        forgotten: Sequence[Forgotten] = (),
    ) -> None:  # fmt: skip
        """A commit is durable. Costs some microseconds; nothing is decoded here."""
        front = self._front
        if changes:
            self._number += 1
        if changes and not front.refuses:
            size = sum(len(value) for _, _, value in changes if value is not None)
            waiting = self._queued_changes + len(changes) - front.written_changes
            if waiting > QUEUE_CHANGES_MAX or self._queued_bytes + size - front.written_bytes > QUEUE_BYTES_MAX:
                front.refuses = True
                front.queue.put(Signal.LOST)
            else:
                self._queued_changes += len(changes)
                self._queued_bytes += size
                progress = {
                    key: progress_of(state, key) for kind, key, value in changes if kind == "workload" and value
                }
                at_ms, number, revision = _time_of(state), self._number, state.revision
                commit = HistoryCommit(number, revision, at_ms, changes, size, progress, transitions, forgotten)
                front.queue.put(commit)
        if front.scans != self._marked and state is self._state:
            self._marked = front.scans
            front.queue.put(Mark(self._marked, self._number, state.revision, _time_of(state)))

    def reset(self) -> None:
        self._state = None
        self._front.queue.put(Signal.RESET)

    def standing(self) -> HistoryStatus:
        front = self._front
        waiting = self._queued_changes - front.written_changes
        return HistoryStatus(front.revision, front.at_ms, waiting, front.bytes, front.gaps, front.failed)

    # the readers' side

    async def read(self, query: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query in a thread. Raises NoService without a readable file, or while too many queries wait."""
        if self._reading >= WAITING_MAX:
            raise NoService("too many questions about the past at once; try again in a moment", code="busy")
        self._reading += 1

        def ask() -> T:
            try:
                with closing(open_for_reading(self.path)) as database:
                    return query(database, *args, **kwargs)
            except apsw.Error as error:
                raise NoService(f"the history cannot be read: {error}") from None

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        finally:
            self._reading -= 1

    async def moment(self, at: str, now_ms: int) -> Moment:
        return await self.read(find_moment, at, now_ms)

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
