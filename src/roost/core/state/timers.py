"""The heap of timers, and their kinds. The table in `core/timers.py` has what each kind does."""

from enum import StrEnum
from heapq import heappush


class TimerKind(StrEnum):
    LEASE = "lease"
    QUEUE = "queue"
    READY = "ready"
    DRAIN = "drain"
    SWEEP = "sweep"
    GONE = "gone"
    ADOPTED = "adopted"
    SHORTER = "shorter"
    RECONCILE = "reconcile"
    AFTER = "after"
    CRON = "cron"
    CHECK_QUEUE = "check_queue"
    RETRACT = "retract"
    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"
    POOL = "pool"
    FLAKY = "flaky"


TimerEntry = tuple[int, TimerKind, str]  # when, what is due, and the key of what it is about


class Timers:
    """A heap of timers. A timer that has lost its meaning does nothing when it fires."""

    def __init__(self) -> None:
        self.timers: list[TimerEntry] = []
        self.postponed: list[TimerEntry] = []  # timers that came due while there is maintenance
        self.timers_limit = 0  # more than this, and timers of what no longer exists are dropped
        self.lease_timers: set[str] = set()  # nodes that have a lease timer; never iterated
        self.retract_timers: set[str] = set()  # nodes that have a timer for prefilled attempts; never iterated
        self.cancelling: dict[str, None] = {}  # workloads with instances still to be cancelled
        self.losing: dict[str, None] = {}  # lost nodes with attempts still to be declared lost

    def at(self, when_ms: int, kind: TimerKind, key: str) -> None:
        heappush(self.timers, (when_ms, kind, key))
