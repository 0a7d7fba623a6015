"""Driver: what starts and stops runs on a node, and tells how they went. All times are this host's monotonic ms."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from roost.model.secret import Hidden


class Step(msgspec.Struct, frozen=True):
    """One process of a run; the next begins when it has ended well, or its failure is to be ignored."""

    argv: list[str]
    ignore_failure: bool = False


class Limits(msgspec.Struct, frozen=True):
    """What a run may use; 0 is no limit."""

    cpu_m: int = 0
    memory: int = 0


class Run(msgspec.Struct, frozen=True, tag_field="do", tag="start"):
    """What to run. `note` is kept with it and given back to whoever comes after us.

    `dir` and `log` are this run's own: what is missing is made, and what is still empty is taken away again within a
    tenth of a second after `forget`. To its environment come PATH and HOME if absent, ROOST_KEEPER and ROOST_RUN.
    """

    id: str
    steps: list[Step]
    env: dict[str, str]
    dir: str
    log: str
    timeout_ms: int = 0  # from the start of the run; 0: none
    grace_ms: int = 10_000  # between TERM and KILL
    limits: Limits | None = None
    leased: bool = True  # ends, at once, with the lease
    note: str = ""
    after: str = ""  # begin when this run has ended; one that is not there has
    secrets: Hidden = msgspec.field(default_factory=Hidden)  # more of `env`, in base64; kept in memory alone


class Started(msgspec.Struct, frozen=True, tag_field="event", tag="started"):
    """A run's first process is there."""

    id: str
    pid: int
    at: int
    limits: str = ""  # why what was asked for could not be enforced


class StepBegan(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """A run of several steps came to this one; `before` is the code of the one before, negative for a signal."""

    id: str
    step: int
    at: int
    log_offset: int = 0
    before: int | None = None
    pid: int = 0


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="ended"):
    """A run is over, and nothing of it is left."""

    id: str
    cause: str  # exited | timed_out | stopped | lease | error
    at: int
    code: int | None = None
    signal: int | None = None
    step: int = 0
    oom: bool = False
    error: str = ""  # why it could not be started, naming the program
    why: str = ""  # what `stop` was told
    codes: list[int] = []  # of each step, where there was more than one or a failure was ignored; negative: a signal
    cpu_ms: float = 0
    rss_max: int = 0  # bytes; 0: too little to be told from the keeper's own
    log_size: int = 0


class Known(msgspec.Struct, frozen=True):
    """A run as it stands, told to whoever connects."""

    id: str
    note: str
    state: str  # waiting | running | stopping | ended
    started_at: int  # 0 while it waits
    step: int = 0
    pid: int = 0
    leased: bool = False
    limits: str = ""
    ended: Ended | None = None
    after: str = ""  # the run it waits for, which may be another than it was told: that one may be gone


class Runs(msgspec.Struct, frozen=True, tag_field="event", tag="runs"):
    """The first word on a connection: everything there is."""

    at: int
    lease: int
    runs: list[Known] = []


class Refused(msgspec.Struct, frozen=True, tag_field="event", tag="refused"):
    """An order that could not be followed; a run that was to be started does not exist."""

    error: str
    id: str | None = None
    do: str | None = None
    at: int = 0


Event = Runs | Started | StepBegan | Ended | Refused
Tell = Callable[[Event], None]


class Driver(Protocol):
    """Four orders; none waits. What happens is told through the callback the driver was made with."""

    def start(self, run: Run) -> None:
        """Begin a run; an id that is known is not begun again."""

    def stop(self, id: str, grace_ms: int, why: str) -> None:
        """TERM, grace, KILL. Asked again, the shorter grace holds."""

    def forget(self, id: str) -> None:
        """Drop what is known of a run that has ended."""

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then. The last word counts."""
