"""Logs as a state machine: which bytes are kept, when a log is complete, and what a reader gets to know.

No clock, and no I/O but the blobs: hub.py wakes followers around it, the fault simulator drives it with blobs in
memory. All times are milliseconds of a monotonic clock.

When is a log complete? The report of an attempt's end has the size of its log, and the size is part of the state. So a
caller passes what the state says of the end (`LogEnd`), and a log is complete when it has these bytes, on any server
and after any restart. An attempt that printed nothing has size 0 and never sends a chunk.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from roost.model.errors import NoService
from roost.model.limits import BYTES_MAX
from roost.ports.logs import Logs, LogsUnavailable

LOG_BYTES_MAX = 1 << 30  # per attempt; more than is ever read, little enough that one run does not fill the disk
ENTRIES_MAX = 20_000  # logs remembered beside their blobs; as many as may be open in a large cluster
SETTLE_MS = 5_000  # of quiet, after which no more is expected of an attempt that was lost with its node
STALL_MS = 10_000  # of quiet, after which bytes that a node has reported and not sent are called missing
ENOUGH = BYTES_MAX  # instead of a size when nothing more of a log is wanted

T = TypeVar("T")


class LogEnd(NamedTuple):
    """What the state says of the end of an attempt. `size`: of its log, as its node reported; None: it did not."""

    over: bool = False
    size: int | None = None


LIVE = LogEnd()


class LogStatus(NamedTuple):
    """What a reader gets to know of a log."""

    size: int  # so many bytes are here
    finished: bool  # nothing will follow
    missing: int  # bytes that the node has reported and not sent so far


class LogEntry(msgspec.Struct, eq=False, weakref=True):
    changed_ms: int  # when the last bytes came in this life of the server
    awaited_ms: int | None = None  # when a reader first found it shorter than its node had reported
    readers: int = 0


class LogMachine:
    """A log is PROJECT/NAME/SERIAL/INDEX.ATTEMPT. Reading raises NoService while the disk refuses to."""

    def __init__(
        self,
        blobs: Logs,
        now: int,
        size_max: int = LOG_BYTES_MAX,
        settle_ms: int = SETTLE_MS,
        stall_ms: int = STALL_MS,
    ) -> None:
        self.blobs = blobs
        self.size_max = size_max
        self.entries: OrderedDict[str, LogEntry] = OrderedDict()  # the one touched last is at the end
        self._settle_ms = settle_ms
        self._stall_ms = stall_ms
        self._began_ms = now

    def append(self, name: str, offset: int, data: bytes, now: int) -> int | LogsUnavailable:
        """Keep a chunk and return the size: where the agent is to go on."""
        end = offset + len(data)
        if end > self.size_max:
            size = self._append_last(name, offset, data)
        elif data:
            size = self.blobs.append(name, offset, data)
        else:
            size = self.blobs.size(name) or 0
        self.entry(name).changed_ms = now
        return size

    def size(self, name: str) -> int | None:
        """How many bytes are there; None: no log, or nothing in it yet."""
        return _readable(name, self.blobs.size(name))

    @property
    def stored_max(self) -> int:
        """The size of a log that was cut, with the line that says so."""
        return self.size_max + len(_cut_mark(self.size_max))

    def read(self, name: str, offset: int, limit: int) -> bytes:
        return _readable(name, self.blobs.read(name, offset, limit))

    def status(self, name: str, end: LogEnd, now: int) -> LogStatus:
        return LogStatus(self.size(name) or 0, self.finished(name, end, now), self.missing(name, end))

    def missing(self, name: str, end: LogEnd) -> int:
        """How many bytes the node has reported that are not here."""
        if not end.over or end.size is None:
            return 0
        return max(0, min(end.size, self.size_max) - (self.size(name) or 0))

    def finished(self, name: str, end: LogEnd, now: int) -> bool:
        """Whether nothing will follow: all is here, or the node has been quiet for too long."""
        if not end.over:
            return False
        if end.size is None:
            entry = self.entries.get(name)
            return now - (entry.changed_ms if entry is not None else self._began_ms) >= self._settle_ms
        if not self.missing(name, end):
            return True
        entry = self.entry(name)
        if entry.awaited_ms is None:
            entry.awaited_ms = now
        return now - max(entry.awaited_ms, entry.changed_ms) >= self._stall_ms

    def wanted(self, name: str, end: LogEnd) -> int:
        """Up to which size a log is to be fetched from other servers before it is read here; 0: not at all."""
        if not end.over:
            return 0
        if end.size is None:
            return ENOUGH  # lost with its node: a server that led before may have more of it
        return end.size if self.missing(name, end) else 0

    def dropped(self, prefix: str) -> None:
        """The logs of a workload (PROJECT/NAME/SERIAL) are forgotten."""
        for name in [name for name in self.entries if name.startswith(f"{prefix}/")]:
            if not self.entries[name].readers:
                del self.entries[name]

    def entry(self, name: str) -> LogEntry:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = LogEntry(self._began_ms)
            self._forget_oldest()
        else:
            self.entries.move_to_end(name)
        return entry

    def _append_last(self, name: str, offset: int, data: bytes) -> int | LogsUnavailable:
        """The chunk that reaches the limit: what fits, and a line that tells where the log was cut."""
        size = self.blobs.size(name) or 0
        if isinstance(size, int) and size < self.size_max and offset < self.size_max:
            size = self.blobs.append(name, offset, data[: self.size_max - offset])
        if size == self.size_max:
            size = self.blobs.append(name, size, _cut_mark(self.size_max))
        return ENOUGH if isinstance(size, int) and size >= self.size_max else size

    def _forget_oldest(self) -> None:
        """Remember no more than the limit, beside those that are followed."""
        for name in list(self.entries) if len(self.entries) > ENTRIES_MAX else ():
            if not self.entries[name].readers:
                del self.entries[name]
            if len(self.entries) <= ENTRIES_MAX * 9 // 10:
                break


class LogSizes(Protocol):
    def size(self, name: str) -> int | None: ...


def sources(logs: LogSizes, name: str, size: int, peers: Iterable[T]) -> Iterator[tuple[T, int]]:
    """The servers to ask for the rest of a log, each from where it ends here, until it has this size."""
    for peer in peers:
        kept = logs.size(name) or 0
        if kept >= size:
            return
        yield peer, kept


def _readable(name: str, outcome: T | LogsUnavailable) -> T:
    if isinstance(outcome, LogsUnavailable):
        raise NoService(f"the log {name} cannot be read here: {outcome.reason}")
    return outcome


def _cut_mark(size: int) -> bytes:
    return f"\n[roost: this log was cut here, after {size} bytes (--log-limit); the rest was not kept]\n".encode()
