"""Logs as a state machine: which bytes are kept, what is sealed when, when a log is complete, what a reader gets.

No clock, and no I/O but the local ends of logs: hub.py drives it, and so does the fault simulator. All times are
milliseconds of a monotonic clock; only stamps are of the wall clock.

Where are the bytes of a log? They come from agents, and are appended to a local part (`LOG/START`). A part ends where a
segment ends. Then, or when the log is complete, it is sealed: put as an object below the root of logs, which several
servers may share. Then the part is dropped. An agent keeps its file until all of the log is sealed, so a part may be
lost at any time: the next leader begins where the segments end. Sealing twice does no harm, see segments.py.

When is a log complete? The report of an attempt's end has the size of its log, and the size is part of the state. So a
caller passes what the state says of the end (`LogEnd`), and a log is complete when it has these bytes, on any server
and after any restart. An attempt that printed nothing has size 0 and never sends a chunk.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from roost.model.limits import BYTES_MAX
from roost.ports.logs import LocalLog, Logs, LogsUnavailable
from roost.server.logs.parts import LogEntry, LogPart, SealPart, log_and_start, part_key
from roost.server.logs.segments import SEGMENT_BYTES, STAMP_MS, Segment, Stamp, chain, covering

LOG_BYTES_MAX = 1 << 30  # per attempt; more than is ever read, little enough that one run does not fill the disk
ENTRIES_MAX = 20_000  # logs remembered beside their bytes; as many as may be open in a large cluster
SETTLE_MS = 5_000  # of quiet, after which no more is expected of an attempt that was lost with its node
STALL_MS = 10_000  # of quiet, after which bytes that a node has reported and not sent are called missing
ENOUGH = BYTES_MAX  # instead of a size when nothing more of a log is wanted
SEALS_MAX = 4  # at once: hides the disk or the network, and leaves a core
LOCAL_BYTES_MAX = 4 << 30  # in parts, while objects cannot be put: agents keep the rest
RETRY_MS_MIN, RETRY_MS_MAX = 500, 30_000  # after an object could not be put

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
    missing: int  # bytes that the node has reported and that are not here


class LogMachine:
    """A log is PROJECT/NAME/SERIAL/INDEX.ATTEMPT."""

    def __init__(
        self,
        tails: Logs,
        now: int,
        size_max: int = LOG_BYTES_MAX,
        settle_ms: int = SETTLE_MS,
        stall_ms: int = STALL_MS,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.tails = tails
        self.size_max = size_max
        self.entries: OrderedDict[str, LogEntry] = OrderedDict()  # the one touched last is at the end
        self.open: dict[str, LogEntry] = {}  # logs with parts
        self.local_bytes = 0
        self._settle_ms = settle_ms
        self._stall_ms = stall_ms
        self._segment_bytes = segment_bytes
        self._began_ms = now
        self._queue: deque[tuple[str, LogPart]] = deque()  # to be sealed
        self._sealing = 0
        self._pause_ms = RETRY_MS_MIN
        self._resume_ms = 0

    def begin(self, found: Iterable[LocalLog]) -> None:
        """Take up the parts of an earlier life of this server, in the order of their names."""
        for local in sorted(found, key=log_and_start):
            log, start = log_and_start(local)
            if start < 0:
                continue
            entry = self.entry(log)
            if entry.parts and entry.parts[-1].end < start:  # the part before has lost its end with the power
                self.tails.drop(local.key)
                continue
            self._keep_part(log, entry, LogPart(start, start + local.size, [Stamp(start, local.changed_ms)]))
            self.local_bytes += local.size

    # what comes in

    def must_list(self, name: str, offset: int | None = None) -> bool:
        """Whether the objects of a log have to be listed first: to read it, or to append at an offset.

        At the beginning nothing is appended but new logs, or what does no harm when it is sealed twice.
        """
        entry = self.entries.get(name)
        if entry is None:
            return offset != 0
        return not entry.is_listed and (offset is None or not (entry.parts or offset == 0))

    def listed(self, name: str, segments: Iterable[Segment]) -> None:
        entry = self.entry(name)
        entry.known.update(segments)
        entry.is_listed = True
        self._chain(name, entry)

    def append(self, name: str, offset: int, data: bytes, now: int, wall_ms: int = 0) -> int | LogsUnavailable:
        """Keep a chunk and return the size: where the agent is to go on."""
        entry = self.entry(name)
        if data or offset != entry.size:  # otherwise the agent only asks whether all of it is sealed
            entry.changed_ms = now
        if offset + len(data) > self.size_max:
            size = self._append_last(name, entry, offset, data, wall_ms)
        else:
            size = self._append(name, entry, offset, data, wall_ms)
        return size

    def durable(self, name: str) -> int:
        """Up to where a log is sealed. An agent keeps its file until that is all of it."""
        entry = self.entries.get(name)
        sealed = entry.sealed if entry is not None else 0
        return ENOUGH if sealed >= self.stored_max else sealed

    def _append(self, name: str, entry: LogEntry, offset: int, data: bytes, wall_ms: int) -> int | LogsUnavailable:
        size = entry.size
        if offset > size or offset + len(data) <= size:
            return size
        rest = data[size - offset :] if size > offset else data  # most chunks fit as they are, and are not copied
        if self.local_bytes + len(rest) > LOCAL_BYTES_MAX:
            return LogsUnavailable(f"{self.local_bytes:,} bytes are not in the store of logs yet; it takes nothing")
        if entry.has_gap:
            self._drop_parts(name, entry)
        while rest:
            part = entry.parts[-1] if entry.parts else None
            if part is None or part.end < size or not part.end % self._segment_bytes:
                part = LogPart(size, size, [])
                self._keep_part(name, entry, part)
            piece = rest[: self._segment_bytes - size % self._segment_bytes]
            kept = self.tails.append(part_key(name, part.start), size - part.start, piece)
            if isinstance(kept, LogsUnavailable):
                return kept
            if not part.stamps or wall_ms - part.stamps[-1].at_ms >= STAMP_MS:
                part.stamps.append(Stamp(size, wall_ms))
            size += len(piece)
            self.local_bytes += len(piece)
            part.end = size
            rest = rest[len(piece) :]
            if not size % self._segment_bytes:
                self._enqueue(name, part)
        return size

    def _append_last(self, name: str, entry: LogEntry, offset: int, data: bytes, wall_ms: int) -> int | LogsUnavailable:
        """The chunk that reaches the limit: what fits, and a line that tells where the log was cut."""
        size: int | LogsUnavailable = entry.size
        if entry.size < self.size_max and offset < self.size_max:
            size = self._append(name, entry, offset, data[: self.size_max - offset], wall_ms)
        if size == self.size_max:
            size = self._append(name, entry, size, _cut_mark(self.size_max), wall_ms)
        return ENOUGH if isinstance(size, int) and size >= self.size_max else size

    # sealing

    def seals(self, now: int) -> list[SealPart]:
        """What to seal now, in the order in which it came."""
        found: list[SealPart] = []
        while self._queue and self._sealing < SEALS_MAX and now >= self._resume_ms:
            log, part = self._queue.popleft()
            part.is_queued = False
            if part.end > part.sealed and part in self._parts(log):
                stamps = tuple(part.stamps)
                at_ms = stamps[0].at_ms if stamps else 0
                found.append(SealPart(log, Segment(part.start, part.end, at_ms), stamps, self.open[log]))
                self._sealing += 1
        return found

    def sealed(self, seal: SealPart) -> str | None:
        """An object is durable. Returns its key if it is to be deleted: its workload was forgotten meanwhile."""
        self._sealing -= 1
        self._pause_ms, self._resume_ms = RETRY_MS_MIN, 0
        entry = seal.entry
        if entry.is_gone:
            return seal.segment.key(seal.log)
        for part in entry.parts:
            if part.start == seal.segment.start:
                part.sealed = max(part.sealed, seal.segment.end)
        entry.known.add(seal.segment)
        self._chain(seal.log, entry)
        return None

    def not_sealed(self, seal: SealPart, now: int) -> None:
        """The object could not be put. Nothing is tried for a while: the store is away as a whole."""
        self._sealing -= 1
        self._resume_ms = now + self._pause_ms
        self._pause_ms = min(self._pause_ms * 2, RETRY_MS_MAX)
        for part in self._parts(seal.log):
            if part.start == seal.segment.start:
                self._enqueue(seal.log, part)

    def settle(self, name: str, end: LogEnd | None, now: int) -> None:
        """Seal the rest of a log that is complete, or of which nothing more is expected. Cheap; call it now and then.

        The objects of the log must have been listed: another server may have sealed it already. Without an end, its
        workload is forgotten: the parts go.
        """
        entry = self.open.get(name)
        if entry is None or (end is not None and not end.over):
            return
        is_quiet = now - max(entry.changed_ms, self._began_ms) >= self._settle_ms
        is_complete = end is not None and end.size is not None and entry.size >= min(end.size, self.size_max)
        if end is None and is_quiet:
            self._drop_parts(name, entry)
        elif is_quiet or is_complete:
            for part in entry.parts:
                self._enqueue(name, part)

    def _enqueue(self, name: str, part: LogPart) -> None:
        if not part.is_queued and part.end > part.sealed:
            part.is_queued = True
            self._queue.append((name, part))

    def _chain(self, name: str, entry: LogEntry) -> None:
        """Find how far the log is sealed, and drop the parts that are below."""
        entry.segments = chain(entry.known)
        while entry.parts and entry.parts[0].end <= entry.sealed:
            self._drop_part(name, entry, entry.parts[0])

    def _parts(self, name: str) -> list[LogPart]:
        entry = self.open.get(name)
        return entry.parts if entry is not None else []

    def _keep_part(self, name: str, entry: LogEntry, part: LogPart) -> None:
        entry.parts.append(part)
        self.open[name] = entry
        if part.end > part.start and not part.end % self._segment_bytes:
            self._enqueue(name, part)

    def _drop_parts(self, name: str, entry: LogEntry) -> None:
        for part in list(entry.parts):
            self._drop_part(name, entry, part)

    def _drop_part(self, name: str, entry: LogEntry, part: LogPart) -> None:
        self.tails.drop(part_key(name, part.start))
        entry.parts.remove(part)
        self.local_bytes -= part.end - part.start
        if not entry.parts:
            self.open.pop(name, None)

    # what readers get to know

    def locate(self, name: str, offset: int) -> tuple[str, int] | Segment | None:
        """Where a byte is: the key of a part and the offset in it, or a segment. None: not here."""
        entry = self.entries.get(name)
        if entry is None or offset >= entry.size:
            return None
        for part in entry.parts:
            if part.start <= offset < part.end:
                return part_key(name, part.start), offset - part.start
        return covering(entry.segments, offset)

    def segments(self, name: str) -> list[Segment]:
        entry = self.entries.get(name)
        return entry.segments if entry is not None else []

    def stamps(self, name: str) -> list[Stamp]:
        """When the bytes came that are on the local disk only."""
        entry = self.entries.get(name)
        return [stamp for part in entry.parts for stamp in part.stamps] if entry is not None else []

    def size(self, name: str) -> int | None:
        """How many bytes are there; None: no log, or nothing in it yet."""
        entry = self.entries.get(name)
        return (entry.size or None) if entry is not None else None

    @property
    def stored_max(self) -> int:
        """The size of a log that was cut, with the line that says so."""
        return self.size_max + len(_cut_mark(self.size_max))

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
            entry = self.entries[name]
            self.local_bytes -= sum(part.end - part.start for part in entry.parts)
            self.open.pop(name, None)
            entry.is_gone = True
            entry.parts, entry.known, entry.segments = [], set(), []
            if not entry.readers:
                del self.entries[name]

    def entry(self, name: str) -> LogEntry:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = LogEntry(self._began_ms)
            self._forget_oldest()
        else:
            self.entries.move_to_end(name)
        return entry

    def _forget_oldest(self) -> None:
        """Remember no more than the limit, beside those that are followed or have parts."""
        most = ENTRIES_MAX + len(self.open)
        for name in list(self.entries) if len(self.entries) > most else ():
            if not self.entries[name].readers and not self.entries[name].parts:
                del self.entries[name]
            if len(self.entries) <= most - ENTRIES_MAX // 10:
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


def _cut_mark(size: int) -> bytes:
    return f"\n[roost: this log was cut here, after {size} bytes (--log-limit); the rest was not kept]\n".encode()
