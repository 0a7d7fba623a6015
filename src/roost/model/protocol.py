"""Messages between a server and an agent. The wire form is protobuf (wire/codec.py).

Deltas carry the generation they build on. Repeats and reordering are harmless: orders and reports carry the token of
their attempt, and a report can only move an attempt forward.
"""

from enum import StrEnum

import msgspec

from roost import __version__
from roost.model.records.files import InputFailure, Outputs, RunInput
from roost.model.records.node import Facts
from roost.model.records.result import Result
from roost.model.records.secret import Handed
from roost.model.records.usage import RunUsage
from roost.model.states import AttemptState, EndCause, PowerAction

PROTOCOL = 1  # grows with every change that the other side has to understand; each side refuses another number


def version_refusal(protocol: int, software: str, *, mine: str, other: str) -> str:
    """Why this side does not talk to the other one; nothing: it does."""
    if protocol == PROTOCOL:
        return ""
    theirs = f"the {other} (roost {software or 'of an older release'}) speaks agent protocol {protocol}"
    return f"{theirs}, this {mine} (roost {__version__}) speaks {PROTOCOL}; install the same release on both"


class Run(msgspec.Struct, frozen=True, gc=False):
    token: int
    workload: str
    index: int
    attempt: int
    document: bytes
    timeout_ms: int = 0
    grace_ms: int = 0
    leased: bool = True  # must be stopped when the lease ends
    submitted_ms: int = 0
    serial: int = 0
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    version: int = 1  # of the workload
    env: tuple[tuple[str, str], ...] = ()  # more variables: of this element, and addresses of services it waited for
    after: int = 0  # begin when this attempt has ended, in its room; 0: at once
    inputs: tuple[RunInput, ...] = ()  # files that are in its work directory before it begins
    power: str = ""  # of a virtual machine: `stopped` if it is to begin so; empty: it boots
    secrets: Handed | None = None  # only on the way from the server's door to the process

    def bare(self) -> "Run":
        """The order without secrets, as it may be kept and sent on."""
        return self if self.secrets is None else msgspec.structs.replace(self, secrets=None)


class Stop(msgspec.Struct, frozen=True, gc=False):
    """TERM, grace, KILL; then report how it ended."""

    token: int
    grace_ms: int
    cause: str


class Drop(msgspec.Struct, frozen=True, gc=False):
    """This attempt is obsolete: stop it if it runs, then forget it."""

    token: int


class PowerOrder(msgspec.Struct, frozen=True, gc=False):
    """A command for a virtual machine. A node carries out each serial once, and none after a larger one."""

    token: int
    serial: int
    action: PowerAction
    grace_ms: int = 0  # of a stop: how long its guest may take to shut down


Order = Run | Stop | Drop | PowerOrder


class Report(msgspec.Struct, frozen=True, gc=False):
    """How an attempt stands. Times are ages at sending, because clocks of two hosts differ."""

    token: int
    state: AttemptState
    started_ago_ms: int = 0
    ended_ago_ms: int = 0  # of a running one: its process has ended, and its outputs are being collected; 0: it has not
    cause: EndCause = EndCause.NONE
    code: int | None = None
    signal: int | None = None
    step: int = 0
    error: str = ""  # why it could not be started, or the message of its health check
    ready: bool = True  # of a run with a health check: whether it is ready to be used
    log_size: int = 0  # of an end: how many bytes its log has in the end; nothing follows a log that has them
    stderr_size: int | None = None  # of an end: likewise of the log of its stderr; None: it has none
    result: Result | None = None  # of an end: what its process left in the file ROOST_RESULT
    inputs_failed: InputFailure | None = None  # of an end by `error`: which inputs did not come, and why
    image: str = ""  # of a container: the digest of what it runs, once the node has it
    outputs: Outputs | None = None  # of an end: the files that were collected; None: none were asked for
    power: str = ""  # of a virtual machine that runs
    power_serial: int = 0  # the last command that its node has carried out, or has failed to
    power_problem: str = ""  # why that failed
    usage: RunUsage | None = None  # of an end: what it used, without its time; None: nothing was measured
    pulled_ms: int = 0  # of a container: for how long its image was fetched; 0: the node had it


class Hello(msgspec.Struct, frozen=True):
    node: str
    identity: str
    facts: Facts
    sent_ms: int
    runs: tuple[tuple[Run, Report], ...] = ()
    protocol: int = PROTOCOL
    software: str = __version__


class Welcome(msgspec.Struct, frozen=True):
    session: int
    echo_ms: int
    lease_ms: int
    generation: int
    orders: tuple[Order, ...] = ()
    protocol: int = PROTOCOL
    software: str = __version__


class Usage(msgspec.Struct, frozen=True):
    cpu_milli: int = 0
    memory: int = 0
    disk: int = 0
    at_ms: int = 0  # when the server received it, by its clock
    task_restarts: dict[str, int] = {}  # background tasks of the agent that ended and were restarted, and how often
    logs_stuck_ms: int = 0  # for how long no log could be sent to the server although there is something to send
    pulling: dict[int, int] = {}  # attempts whose images are being fetched, and how many percent have come
    images: tuple[int, ...] = ()  # that the node has, by their keys (see `image_key`); those used last come first


class Beat(msgspec.Struct, frozen=True):
    session: int
    sequence: int
    sent_ms: int
    generation: int
    reports: tuple[Report, ...] = ()
    usage: Usage | None = None
    lacking: bool = False  # deltas do not follow: send the whole set
    leaving: bool = False  # the node is going out of service: no new work, and goodbye once nothing runs


class Answer(msgspec.Struct, frozen=True):
    session: int
    echo_ms: int = 0
    acknowledged: int = 0  # reports of beats up to this sequence are durable
    base: int = 0
    generation: int = 0  # 0: no orders in this one
    whole: bool = False
    orders: tuple[Order, ...] = ()
    lease_ms: int = 0  # the lease from this answer on, if it has changed; 0: as before


class CopyOrder(msgspec.Struct, frozen=True):
    """A copy into a run that goes on (with a digest), or out of it. Servers and agents of files know of it."""

    id: str
    token: int
    path: str  # below the work directory; with a slash at the end: a folder
    digest: str = ""  # of the manifest of what comes
    name: str = ""  # of what comes, where the path is a folder; "" is its content
    bytes_max: int = 0
    is_file: bool = False  # what comes is one file, not a folder


class CopyProblem(StrEnum):
    """Why nothing was copied."""

    NOT_FOUND = "not_found"
    REFUSED = "refused"  # the path leads out of the work directory, or is no place for this
    TOO_LARGE = "too_large"
    NOT_RUNNING = "not_running"  # the attempt has ended, or is not of this node
    FAILED = "failed"


class CopyReport(msgspec.Struct, frozen=True):
    """The outcome of a copy."""

    id: str
    token: int
    problem: CopyProblem | None = None
    message: str = ""
    outputs: Outputs | None = None  # out of the run
    is_file: bool = False
    place: str = ""  # where it was put
    grown: tuple[str, ...] = ()  # files that grew while they were read: they have the size of the beginning


class LogChunk(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a log from an offset on. Without bytes it asks how far the server has the log."""

    log: str
    offset: int
    data: bytes = b""
