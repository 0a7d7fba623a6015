"""Everything that can happen to the core. Plain data, so that a batch can be journalled and replayed."""

from typing import Literal, NamedTuple

import msgspec

from roost.model.protocol import Hello, Report, Usage
from roost.model.records.opaque import By, OpaqueRecord
from roost.model.records.plan import Plan
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.workload import Policy
from roost.model.states import PoolStatus


class WorkloadSpec(msgspec.Struct, frozen=True):
    """One workload that is wanted. The document was checked at the edge."""

    project: str
    name: str
    count: int
    policy: Policy
    document: bytes
    values: tuple[tuple[tuple[str, str], ...], ...] = ()  # variables of each element of an array

    @property
    def key(self) -> str:
        """PROJECT/NAME"""
        return f"{self.project}/{self.name}"


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Submit workloads: all are accepted, or none."""

    request: int
    specs: tuple[WorkloadSpec, ...]
    same_ok: bool = False  # apply: the same document again changes nothing, another one makes a new version
    expected: Plan | None = None  # do exactly this, or nothing
    must_exist: bool = False  # only change what lives: an unknown or finished name is not_found, nothing is made


SubmitResult = Literal["created", "changed", "unchanged"]


class SubmitReply(NamedTuple):
    """The answer to a submission, for each workload: its key, and what became of it."""

    key: str
    result: SubmitResult


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a workload, or one instance of it."""

    request: int
    workload: str
    index: int | None = None


class Retry(msgspec.Struct, frozen=True, tag=True):
    """Run again what ended otherwise than well: a workload's instances, or one of them."""

    request: int
    workload: str
    index: int | None = None
    failed: bool = False  # only what failed or ran out of time, not what was cancelled or expired


class ResultPosted(msgspec.Struct, frozen=True, tag=True):
    """The result of an attempt, known outside of its agent."""

    request: int
    workload: str
    index: int
    token: int  # of the attempt
    code: int
    cause: str = ""


class RunNow(msgspec.Struct, frozen=True, tag=True):
    """A schedule is to run once more, besides its ticks."""

    request: int
    workload: str


class Promote(msgspec.Struct, frozen=True, tag=True):
    """The canaries of an update are good: all others follow."""

    request: int
    workload: str


class Rollback(msgspec.Struct, frozen=True, tag=True):
    """Back to an earlier version, as a new one."""

    request: int
    workload: str
    version: int = 0  # 0: the one before


class Cordon(msgspec.Struct, frozen=True, tag=True):
    """Nothing new comes to a node; what runs there stays. Resume ends it."""

    request: int
    node: str


class Maintain(msgspec.Struct, frozen=True, tag=True):
    """Maintenance: nothing is placed, moved, updated or given up until it ends."""

    request: int
    on: bool
    reason: str = ""
    for_ms: int = 0  # 0: until it is ended


class MarkPool(msgspec.Struct, frozen=True, tag=True):
    """A pool has failed, is to be emptied, or is well again."""

    request: int
    pool: str
    status: PoolStatus
    reason: str = ""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Take a node out of service; what still runs at the deadline is moved."""

    request: int
    node: str
    deadline_ms: int = 0  # a duration; 0: at once


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Put a drained or draining node back into service."""

    request: int
    node: str


class Remove(msgspec.Struct, frozen=True, tag=True):
    """Forget a node that is lost or drained."""

    request: int
    node: str


class SetProject(msgspec.Struct, frozen=True, tag=True):
    """A project gets a weight and a quota."""

    request: int
    project: Project


class SetPool(msgspec.Struct, frozen=True, tag=True):
    """A pool gets a strategy of its own, or is promised more than once."""

    request: int
    pool: Pool


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Set nodes aside for a project; without names, `count` nodes of a pool are chosen."""

    request: int
    reservation: Reservation
    count: int = 0
    pool: str = ""


class Unset(msgspec.Struct, frozen=True, tag=True):
    """Forget a project's, pool's or reservation's settings."""

    request: int
    kind: str  # project | pool | reservation
    name: str


class PutRecords(msgspec.Struct, frozen=True, tag=True):
    """Store or forget records that the core only keeps: all of them, or none."""

    request: int
    records: tuple[OpaqueRecord, ...]


WorkloadRequest = Submit | Cancel | Retry | ResultPosted | RunNow | Promote | Rollback
OperatorRequest = (
    Drain | Cordon | Resume | Remove | Maintain | SetProject | SetPool | MarkPool | Reserve | Unset | PutRecords
)  # fmt: skip
Request = WorkloadRequest | OperatorRequest


class AttributedRequest(msgspec.Struct, frozen=True, tag=True):
    """A request, and who asks: once it was carried out, that is noted."""

    by: By
    event: Request


class NodeConnected(msgspec.Struct, frozen=True, tag=True):
    """An agent registered."""

    request: int
    hello: Hello


class ReportsReceived(msgspec.Struct, frozen=True, tag=True):
    """An agent reports on its attempts, or lacks a delta."""

    node: str
    session: int
    sequence: int
    reports: tuple[Report, ...] = ()
    delta_missing: bool = False


class NodeDisconnected(msgspec.Struct, frozen=True, tag=True):
    """An agent's stream broke; `leaving`: its node is going out of service, and is gone once nothing runs there."""

    node: str
    session: int
    leaving: bool = False


class HeartbeatsReceived(msgspec.Struct, frozen=True, tag=True):
    """Signs of life since the last batch: (node, session, when)."""

    heartbeats: tuple[tuple[str, int, int], ...]
    usage: tuple[tuple[str, Usage], ...] = ()


Event = Request | AttributedRequest | NodeConnected | ReportsReceived | NodeDisconnected | HeartbeatsReceived


def inner(event: Event) -> Event:
    """Everything that can happen, requested or not."""
    return event.event if isinstance(event, AttributedRequest) else event
