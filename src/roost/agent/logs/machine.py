"""The spool as a state machine: which bytes of which log are read and sent next, and when a file may go.

No I/O, no clock: spool.py feeds it and carries out its effects, and the fault simulator does the same on its heap. Call
`tick` soon after every event and at `next_ms`. All times are milliseconds of this host's monotonic clock.

Logs share one stream fairly: each in turn gives a chunk, and the next batch goes when the last was answered. A stream
belongs to one session with one server. Another session, or trouble on the stream, begins another one, and that begins
with the question how far the server has each log: unanswered bytes are then sent again.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from enum import Enum, auto

import msgspec

from roost.model.protocol import LogChunk

CHUNK_BYTES_MAX = 256 << 10
BATCH_BYTES_MAX = 1 << 20  # per message: four large chunks, or a thousand small ones
BATCH_CHUNKS_MAX = 1_000
RETRY_MS_MIN, RETRY_MS_MAX = 200, 3_000
ANSWER_MS_MAX = 30_000  # a server that keeps a megabyte for longer is not going to
ASK_MS = 1_000  # between two questions whether shipped logs are durable at the server, which seals them in a second
HOLE_BYTES = 64 << 20  # of a log the server wants no more of, so much is given back to the disk at a time


class OpenLogStream(msgspec.Struct, frozen=True):
    """Open a stream to the server of this session; if that is impossible, answer with `broken`."""


class CloseLogStream(msgspec.Struct, frozen=True):
    """Drop the stream; no answer is expected, and no answer that is on its way counts."""


class SendBatch(msgspec.Struct, frozen=True):
    """Send these chunks; answer with `answered` or `broken`. A chunk without bytes asks for the size."""

    chunks: tuple[LogChunk, ...]


class ReadFile(msgspec.Struct, frozen=True):
    """Read a range of a log; answer with `was_read`, before any other event."""

    log: str
    offset: int
    limit: int


class GiveBack(msgspec.Struct, frozen=True):
    """Give a range of a log back to the disk; its size stays."""

    log: str
    start: int
    end: int


class UnlinkFile(msgspec.Struct, frozen=True):
    log: str


Effect = OpenLogStream | CloseLogStream | SendBatch | ReadFile | GiveBack | UnlinkFile


class SpoolPhase(Enum):
    OFF = auto()  # not started: events are noted, nothing is sent
    RESTING = auto()
    READING = auto()  # a range of a file
    AWAITING = auto()  # the answer to a batch
    PAUSING = auto()  # after trouble


class Log(msgspec.Struct, eq=False):
    """One log that has bytes."""

    name: str
    kept: int = 0  # how far the server of this session has it, as far as it has answered
    durable: int = 0  # how far the log would survive the loss of that server
    final: int | None = None  # its size in the end, once the run has ended
    released: bool = False  # nothing here needs the file now
    queued: bool = False
    holed: int = 0

    @property
    def is_shipped(self) -> bool:
        """Whether the server has all there will ever be."""
        return self.final is not None and self.kept >= self.final

    @property
    def is_durable(self) -> bool:
        """Whether the file is not needed for the sake of the server."""
        return self.final is not None and self.durable >= self.final


class SpoolMachine:
    """The logs of one agent. Methods take what happened and return what to carry out, in order."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.logs: dict[str, Log] = {}
        self.phase = SpoolPhase.OFF
        self.is_idle = True  # the server has what there is
        self._chance = chance
        self._queue: deque[Log] = deque()
        self._questions: deque[tuple[LogChunk, ...]] = deque()  # on a new stream, before any bytes
        self._batch: list[LogChunk] = []
        self._batch_room = BATCH_BYTES_MAX
        self._reading: Log | None = None
        self._is_open = False
        self._has_moved = False  # the stream is not to be used again: its answers may never come
        self._progress_ms = 0  # when the server last took something, or there was nothing to send
        self._due_ms = 0  # of an answer, or the end of a pause
        self._shipped: dict[str, Log] = {}  # all of them were sent, and are not durable so far
        self._ask_ms = 0  # when to ask about these again
        self._pause_ms = RETRY_MS_MIN

    def begin(
        self, files: Iterable[tuple[str, int]], live: Container[str], ended: Container[str], now: int
    ) -> list[Effect]:
        """Take up the files of an earlier agent. A log of no live run has ended; `ended`: those not forgotten yet."""
        effects: list[Effect] = []
        for name, size in files:
            if name in live:
                self.grown(name, now)
            elif size:
                self.ended(name, size, now)
                effects += self.release(name) if name not in ended else []
            elif name not in ended:
                effects.append(UnlinkFile(name))
        return effects

    def grown(self, name: str, now: int) -> None:
        self._push(self._log(name), now)

    def ended(self, name: str, size: int, now: int) -> None:
        """A run is over and its log has so many bytes. None: no word about it."""
        if size:
            log = self._log(name)
            log.final = size
            self._push(log, now)
            self._await_durable(log, now)

    def release(self, name: str) -> list[Effect]:
        """The run is forgotten: its file goes as soon as the log is durable at the server."""
        log = self.logs.get(name)
        if log is None:
            return []
        log.released = True
        return self._finish(log)

    def reconnected(self) -> list[Effect]:
        """There is a server again, perhaps another one. The old stream may hang without a word, so it is left.

        This server, or this life of it, may have less than the last one: no file goes before it has answered.
        """
        self._has_moved = True
        for log in self.logs.values():
            log.kept = log.durable = 0
        if self.phase is not SpoolPhase.AWAITING:
            return []
        self.phase = SpoolPhase.RESTING
        return self._close()

    def stuck_ms(self, now: int) -> int:
        """For how long the server has taken nothing although there is something to send."""
        return 0 if self.is_idle else max(0, now - self._progress_ms)

    # time

    def start(self) -> None:
        self.phase = SpoolPhase.RESTING

    def stop(self) -> list[Effect]:
        """Nothing is carried out until the next start; then every log is asked about again."""
        self.phase, self._has_moved = SpoolPhase.OFF, True
        return self._close()

    def next_ms(self) -> int | None:
        if self.phase is SpoolPhase.RESTING and self._shipped:
            return self._ask_ms
        return self._due_ms if self.phase in (SpoolPhase.AWAITING, SpoolPhase.PAUSING) else None

    def tick(self, now: int) -> list[Effect]:
        if self.phase is SpoolPhase.AWAITING and now >= self._due_ms:
            return self.broken(now)
        if self.phase is SpoolPhase.PAUSING and now >= self._due_ms:
            self.phase = SpoolPhase.RESTING
        return self._go_on(now)

    def _go_on(self, now: int) -> list[Effect]:
        """The next thing to do, one at a time."""
        if self.phase is not SpoolPhase.RESTING:
            return []
        if self._has_moved or (self._queue and not self._is_open):
            effects = self._close()
            self._has_moved = False
            if self.logs:  # no stream before there is something to say
                return [*effects, *self._open(now)]
        else:
            effects = []
        if self._shipped and not self._questions and self._is_open and now >= self._ask_ms:
            self._ask_ms = now + ASK_MS
            self._ask(self._shipped.values())
        if self._questions:
            return [*effects, self._send(self._questions.popleft(), now)]
        if (wanted := self._gather()) is not None:
            return [*effects, wanted]
        if self._batch:
            batch, self._batch, self._batch_room = self._batch, [], BATCH_BYTES_MAX
            return [*effects, self._send(tuple(batch), now)]
        self.is_idle = True
        self._pause_ms = RETRY_MS_MIN
        return effects

    # files

    def _gather(self) -> ReadFile | None:
        """The next range for the batch; None: it is full, or there is nothing more."""
        while self._queue and self._batch_room > 0 and len(self._batch) < BATCH_CHUNKS_MAX:
            log = self._queue.popleft()
            log.queued = False
            if log.is_shipped:
                continue
            limit = min(CHUNK_BYTES_MAX, self._batch_room)
            if log.final is not None:
                limit = min(limit, log.final - log.kept)
            self._reading, self.phase = log, SpoolPhase.READING
            return ReadFile(log.name, log.kept, limit)
        return None

    def was_read(self, data: bytes, size: int, now: int) -> list[Effect]:
        """The range, and the size of the whole file; no bytes and 0: there is no file."""
        log, self._reading, self.phase = self._reading, None, SpoolPhase.RESTING
        assert log is not None
        effects: list[Effect] = []
        if data:
            self._batch.append(LogChunk(log.name, log.kept, data))
            self._batch_room -= len(data)
        elif log.final is not None:
            log.final = log.kept  # the file was truncated: this is all there is
            self._await_durable(log, now)
            effects += self._finish(log)
        elif log.kept > size >= log.holed + HOLE_BYTES:
            # The server wants no more of this log: its further bytes must not fill the disk.
            effects.append(GiveBack(log.name, log.holed, size))
            log.holed = size
        elif not size:
            self.logs.pop(log.name, None)  # the last growth of a file that has gone was reported late
            self._shipped.pop(log.name, None)
        return [*effects, *self._go_on(now)]

    # the stream

    def answered(self, sizes: Iterable[tuple[str, int, int]], now: int) -> list[Effect]:
        """How far the server has each log of the last batch, and how far it is durable."""
        if self.phase is not SpoolPhase.AWAITING:
            return []
        self.phase, self._progress_ms = SpoolPhase.RESTING, now
        effects: list[Effect] = []
        for name, size, durable in sizes:
            log = self.logs.get(name)
            if log is not None:
                log.kept, log.durable = size, durable
                self._push(log, now)
                self._await_durable(log, now)
                effects += self._finish(log)
        return [*effects, *self._go_on(now)]

    def broken(self, now: int) -> list[Effect]:
        """The stream broke, or a server refused the batch. The bytes are on disk: they are sent again later."""
        self.phase, self._has_moved = SpoolPhase.PAUSING, True
        self._due_ms = now + round(self._pause_ms * (0.5 + self._chance() / 2))
        self._pause_ms = min(self._pause_ms * 2, RETRY_MS_MAX)
        return self._close()

    def _open(self, now: int) -> list[Effect]:
        self._is_open = True
        self._batch, self._batch_room = [], BATCH_BYTES_MAX
        self._ask(self.logs.values())
        return [OpenLogStream(), self._send(self._questions.popleft(), now)]

    def _ask(self, logs: Iterable[Log]) -> None:
        questions = [LogChunk(log.name, log.kept) for log in logs]
        pages = range(0, len(questions), BATCH_CHUNKS_MAX)
        self._questions = deque(tuple(questions[start : start + BATCH_CHUNKS_MAX]) for start in pages)

    def _send(self, chunks: tuple[LogChunk, ...], now: int) -> SendBatch:
        self.phase, self._due_ms = SpoolPhase.AWAITING, now + ANSWER_MS_MAX
        return SendBatch(chunks)

    def _close(self) -> list[Effect]:
        was_open, self._is_open = self._is_open, False
        self._questions.clear()
        return [CloseLogStream()] if was_open else []

    # logs

    def _push(self, log: Log, now: int) -> None:
        if not log.queued and not log.is_shipped:
            log.queued = True
            self._queue.append(log)
            if self.is_idle:
                self._progress_ms = now
                self.is_idle = False

    def _await_durable(self, log: Log, now: int) -> None:
        """A log that was sent is asked about until it is durable: its file goes only then."""
        if log.is_durable or not log.is_shipped:
            self._shipped.pop(log.name, None)
        elif log.name not in self._shipped:
            if not self._shipped:
                self._ask_ms = now + ASK_MS
            self._shipped[log.name] = log

    def _finish(self, log: Log) -> list[Effect]:
        if not (log.is_durable and log.released):
            return []
        self.logs.pop(log.name, None)
        self._shipped.pop(log.name, None)
        return [UnlinkFile(log.name)]

    def _log(self, name: str) -> Log:
        return self.logs.setdefault(name, Log(name))
