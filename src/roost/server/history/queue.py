"""What the engine hands over to the history's writer, and the counters that they share."""

from queue import SimpleQueue
from typing import NamedTuple

from roost.core.state.state import State
from roost.server.history.projection import HistoryCommit


class Begin(NamedTuple):
    """A state was loaded, or is followed from here on. `records`: all of it, where that is little."""

    state: State
    life: int
    since: int  # the revision before what is handed over next
    revision: int  # of the state, and of `records`
    at_ms: int
    serials: dict[str, int]
    records: dict[str, dict[str, bytes]] | None


class Mark(NamedTuple):
    """Between two steps: nothing in the state is not in a commit up to this one."""

    scan: int  # the one that wanted it
    number: int  # of the last commit that was handed over
    revision: int
    at_ms: int


class Lost(NamedTuple):
    """From here on commits were not queued: there were too many."""


class HistoryReset(NamedTuple):
    """The state was thrown away."""


class StopWriter(NamedTuple):
    """The end."""


Item = Begin | HistoryCommit | Mark | Lost | HistoryReset | StopWriter


class Front:
    """What the writer and the engine's side share. Plain attributes: each is written by one side only, or is a flag."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Item] = SimpleQueue()
        self.written_changes = 0
        self.written_bytes = 0
        self.refuses = False  # commits need not be queued: a scan will follow
        self.scans = 0  # how many were begun: each wants a mark of its own
        self.failed = ""  # why nothing is written: a message
        self.gaps = 0
        self.revision = 0  # the newest that is written
        self.at_ms = 0
        self.bytes = 0
