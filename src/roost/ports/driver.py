"""Driver: what starts and stops runs on a node, and tells how they went. All times are this host's monotonic ms."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from roost.model.records.files import InputFailure, Outputs
from roost.model.records.result import Result
from roost.model.records.secret import Hidden
from roost.model.records.usage import RunUsage
from roost.model.states import Power, PowerAction


class Order(StrEnum):
    START = "start"
    STOP = "stop"
    FORGET = "forget"
    LEASE = "lease"
    PING = "ping"
    SHUTDOWN = "shutdown"
    POWER = "power"


class StopReason(StrEnum):
    """Why a run was stopped. The driver keeps it with the run and gives it back, also to a later agent."""

    ORDERED = "ordered"  # by the server
    DROPPED = "dropped"  # the server knows nothing of it, or no longer wants it
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"  # the run is not of this agent
    SHUTDOWN = "shutdown"  # the driver itself ends


class Refusal(StrEnum):
    INVALID = "invalid"
    CLOSING = "closing"  # the driver ends and starts nothing more
    FULL = "full"
    NO_SUCH_RUN = "no_such_run"
    NOT_ENDED = "not_ended"


class StepCommand(msgspec.Struct, frozen=True):
    """One process of a run; the next begins when it has ended well, or its failure is to be ignored."""

    argv: list[str]
    ignore_failure: bool = False


class Limits(msgspec.Struct, frozen=True):
    """0 is no limit."""

    cpu_m: int = 0
    memory: int = 0
    required: bool = False  # a run whose limits cannot be enforced is not started


class Container(msgspec.Struct, frozen=True):
    """A container in place of processes: all steps of a run happen in it, and it is gone when the run has ended."""

    socket: str  # of its engine
    name: str  # roost-NODE-RUN
    create: dict[str, Any]  # as the engine takes it, without the environment


class MachineDisk(msgspec.Struct, frozen=True):
    """A disk of a virtual machine: empty, or what differs from an image, which stays as it is."""

    name: str
    size: int = 0  # bytes; 0: as large as its image
    base: str = ""  # the file of its image; empty: an empty disk
    content: str = ""  # what tells the content of the image from another; empty: the file's size and time do
    retention_ms: int = 0  # how long it stays on the node after the last run that had it


class MachineNetwork(msgspec.Struct, frozen=True):
    mode: str = "none"  # none | user | bridge
    mac: str = ""
    bridge: str = ""  # the interface on the node
    restrict: bool = False
    forward: list[tuple[int, int]] = []  # (port of the node, port in the machine)


class Machine(msgspec.Struct, frozen=True):
    """A virtual machine in place of processes. The run has one step, which names it and is not executed.

    Files of its cloud-init seed are secrets of the run: `user-data`, `meta-data` and `network-config`.
    """

    dir: str  # of its disks: a later run of the same instance goes on with them
    program: str  # QEMU
    memory: int  # bytes
    processors: int = 1
    accel: str = "tcg"  # kvm | tcg
    firmware: str = ""  # the file of the firmware; empty: the BIOS of QEMU
    kernel: str = ""
    initrd: str = ""
    cmdline: str = ""
    disks: list[MachineDisk] = []
    network: MachineNetwork = MachineNetwork()
    has_console: bool = True
    has_seed: bool = False
    power: Power = Power.RUNNING  # how it begins
    power_serial: int = 0  # commands up to this one are carried out already
    state: str = ""  # a file with the saved state of an equal machine: it goes on from there if all its disks are new


class Isolation(msgspec.Struct, frozen=True):
    """How a run is kept apart: `sandbox`, or `user` where there is only another user. Its files are of that user."""

    level: str
    project: str  # runs of one project may follow each other in one slot
    user: int
    group: int


class RunRequest(msgspec.Struct, frozen=True, tag_field="do", tag="start"):
    """What to run. `note` is kept with it and given back to a later agent.

    `dir`, `log` and `stderr` are this run's own: what is missing is made, and what is still empty is taken away again
    within a tenth of a second after `forget`. To its environment come PATH and HOME if absent, ROOST_KEEPER and
    ROOST_RUN.
    """

    id: str
    steps: list[StepCommand]
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
    stderr: str = ""  # the file of its stderr; empty: `log` has both, in the order of writing
    container: Container | None = None
    isolation: Isolation | None = None  # None: it may do what its driver may
    machine: Machine | None = None

    @property
    def owner(self) -> int | None:
        """The user of its files; None: that of its driver."""
        return None if self.isolation is None else self.isolation.user


class Started(msgspec.Struct, frozen=True, tag_field="event", tag="started"):
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


class PowerChanged(msgspec.Struct, frozen=True, tag_field="event", tag="power"):
    """The power state of a virtual machine, also where its guest has changed it or a command has changed nothing."""

    id: str
    power: Power
    serial: int  # of the last command that was carried out, or could not be
    at: int
    problem: str = ""  # why the command could not be carried out


class Ended(msgspec.Struct, frozen=True, tag_field="event", tag="ended"):
    id: str
    cause: str  # exited | timed_out | stopped | lease | error
    at: int
    code: int | None = None
    signal: int | None = None
    step: int = 0
    oom: bool = False
    error: str = ""  # why it could not be started, naming the program
    why: StopReason | None = None  # as `stop` gave it
    detail: str = ""  # ... as a message
    codes: list[int] = []  # of each step, where there was more than one or a failure was ignored; negative: a signal
    usage: RunUsage | None = None  # None: nothing of it could be measured
    log_size: int = 0
    stderr_size: int | None = None  # None: it has no log of its own
    inputs_failed: InputFailure | None = None  # fetched by the agent
    outputs: Outputs | None = None  # collected by the agent
    result: Result | None = None  # read by the agent from the run's own directory, not by the driver


class KnownRun(msgspec.Struct, frozen=True):
    id: str
    note: str
    state: str  # waiting | running | stopping | ended
    started_at: int  # 0 while it waits
    step: int = 0
    pid: int = 0
    leased: bool = False
    limits: str = ""
    ended: Ended | None = None
    after: str = ""  # the run it waits for, which may be another than ordered: that one may be gone
    power: Power | None = None  # of a virtual machine
    power_serial: int = 0


class KnownRuns(msgspec.Struct, frozen=True, tag_field="event", tag="runs"):
    at: int
    lease: int
    runs: list[KnownRun] = []
    enforces: list[str] = []  # of cpu, memory, pids and cleanup (no process outlives its run)
    protocol: int = 0  # of a keeper: what it understands
    software: str = ""  # its release


class StartRefused(msgspec.Struct, frozen=True, tag_field="event", tag="refused"):
    """An order that could not be followed; a run that was to be started does not exist."""

    error: str
    id: str | None = None
    do: Order | None = None
    at: int = 0
    reason: Refusal = Refusal.INVALID


Event = KnownRuns | Started | StepBegan | PowerChanged | Ended | StartRefused
Tell = Callable[[Event], None]


class Driver(Protocol):
    """Five orders; none waits. Events go to the callback that the driver was made with."""

    def start(self, run: RunRequest) -> None:
        """Begin a run; an id that is known is not begun again."""

    def stop(self, id: str, grace_ms: int, why: StopReason, detail: str = "") -> None:
        """TERM, grace, KILL. Asked again, the shorter grace holds."""

    def power(self, id: str, serial: int, action: PowerAction, grace_ms: int) -> None:
        """Change the power state of a virtual machine; a serial that it has carried out already changes nothing."""

    def forget(self, id: str) -> None:
        """Drop what is known of a run that has ended."""

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then. The last word counts."""
