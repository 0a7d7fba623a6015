"""What the engine hands over to the history's writer, and the counters that they share."""

from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from typing import NamedTuple

from roost.core.state.state import State
from roost.model.records.opaque import Audit
from roost.server.engine.recording import records_of
from roost.server.history.database import Records
from roost.server.history.projection import HistoryCommit


class Begin(NamedTuple):
    """A state was loaded, or is followed from here on. `records`: all of a small state."""

    state: State
    life: int
    since: int  # the revision before the next commit that is handed over
    revision: int  # of the state, and of `records`
    at_ms: int
    serials: dict[str, int]
    records: Records | None


class Mark(NamedTuple):
    """Between two steps: everything in the state is in a commit up to this one."""

    scan: int  # the scan that asked for it
    number: int  # of the last commit that was handed over
    revision: int
    at_ms: int


class Signal(Enum):
    LOST = "commits after this one were not queued: there were too many"
    RESET = "the state was discarded"
    STOP = "end after this item"


Item = Begin | HistoryCommit | Mark | Audit | Signal


@dataclass
class Front:
    """What the writer and the engine's side share. Each attribute is written by one side only, or is a flag."""

    queue: SimpleQueue[Item] = field(default_factory=SimpleQueue)
    written_changes: int = 0
    written_bytes: int = 0
    stopping: bool = False
    notes: int = 0  # entries of the audit log that were queued, and those that were written or given up
    written_notes: int = 0
    refuses: bool = False  # commits need not be queued: a scan will follow
    scans: int = 0  # how many were begun: each needs a mark of its own
    failed: str = ""  # why nothing is written: a message
    gaps: int = 0
    revision: int = 0  # the newest that is written
    at_ms: int = 0
    bytes: int = 0
    held: int = 0  # changes that wait for a shared place
    known: int = 0  # the newest revision that was handed over
    is_read: bool = False  # all shared pages were read, once


@dataclass
class Scan:
    """The records of a whole state, and the commits since."""

    number: int
    records: Records
    reason: str
    commits: list[HistoryCommit] = field(default_factory=list)

    def until(self, mark: Mark) -> list[HistoryCommit]:
        """The commits up to a mark, without a hole: the records include all commits before a hole."""
        wanted, found = mark.number, list[HistoryCommit]()
        for commit in reversed(self.commits):
            if commit.number != wanted:
                break
            found.append(commit)
            wanted -= 1
        return found[::-1]


def scan(state: State) -> Records:
    """All records of a state that may be changing."""
    found: Records = {}
    for record in records_of(state):
        assert record.value is not None
        found.setdefault(record.kind, {})[record.key] = record.value
    return found
