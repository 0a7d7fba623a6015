"""Everything that can happen to the core. Plain data, so that a batch can be journalled and replayed."""

from typing import Literal, NamedTuple

import msgspec

from roost.model.keys import WorkloadKey, workload_key
from roost.model.protocol import Hello, Report, Usage
from roost.model.records.cache import CacheProblem
from roost.model.records.files import FileSet, InputFiles
from roost.model.records.opaque import By, OpaqueRecord
from roost.model.records.plan import Plan
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.result import Result
from roost.model.records.workload import Policy
from roost.model.states import PoolStatus, PowerAction


class WorkloadSpec(msgspec.Struct, frozen=True):
    project: str
    name: str
    count: int
    policy: Policy
    document: bytes
    values: tuple[tuple[tuple[str, str], ...], ...] = ()  # variables of each element of an array
    input_files: tuple[InputFiles, ...] = ()  # of a version that comes back: those it had

    @property
    def key(self) -> WorkloadKey:
        return workload_key(self.project, self.name)


class BaseRequest(msgspec.Struct, frozen=True, tag=True):
    request: int  # by which the reply finds its request


class BaseWorkloadRequest(BaseRequest, frozen=True):
    workload: str


class BaseNodeRequest(BaseRequest, frozen=True):
    node: str


class Submit(BaseRequest, frozen=True):
    """Submit workloads: all are accepted, or none."""

    specs: tuple[WorkloadSpec, ...]
    same_ok: bool = False  # apply: the same document again changes nothing, another one makes a new version
    expected: Plan | None = None  # do exactly this, or nothing
    must_exist: bool = False  # only change what lives: an unknown or finished name is not_found, nothing is made
    rerun: bool = False  # with same_ok: a job that is finished and unchanged runs again


SubmitResult = Literal["created", "changed", "unchanged"]


class SubmitReply(NamedTuple):
    key: str
    result: SubmitResult


class Cancel(BaseWorkloadRequest, frozen=True):
    index: int | None = None


class Retry(BaseWorkloadRequest, frozen=True):
    """Run again what did not succeed: a workload's instances, or one of them."""

    index: int | None = None
    failed: bool = False  # only what failed or ran out of time, not what was cancelled or expired


class Delete(BaseWorkloadRequest, frozen=True):
    """Forget a finished workload before its retention ends, with its logs and results."""


class Approve(BaseWorkloadRequest, frozen=True):
    """Let a workload start that waits for approval."""

    rank: int  # of the role that the principal has in its project


class ResultPosted(BaseWorkloadRequest, frozen=True):
    """The result of an attempt, known outside of its agent."""

    index: int
    token: int  # of the attempt
    code: int | None  # with which it ended; None: it goes on
    cause: str = ""
    result: Result | None = None


class RunNow(BaseWorkloadRequest, frozen=True):
    """Make one run of a schedule besides its ticks."""


class Promote(BaseWorkloadRequest, frozen=True):
    """The canaries of a rollout are good: all others follow."""


class Rollback(BaseWorkloadRequest, frozen=True):
    version: int = 0  # 0: the one before


class SetPower(BaseWorkloadRequest, frozen=True):
    """A command for a virtual machine: for one instance of a workload, or for all of them."""

    action: PowerAction
    index: int | None = None
    grace_ms: int | None = None  # how long its guest may take to shut down; None: as its document says


class Cordon(BaseNodeRequest, frozen=True):
    """Nothing new comes to a node; what runs there stays. Uncordon ends it."""


class Maintain(BaseRequest, frozen=True):
    on: bool
    reason: str = ""
    for_ms: int = 0  # 0: until it is ended


class MarkPool(BaseRequest, frozen=True):
    pool: str
    status: PoolStatus
    reason: str = ""


class Drain(BaseNodeRequest, frozen=True):
    deadline_ms: int | None = None  # how long jobs may go on; None: until they end, 0: they are moved at once


class Uncordon(BaseNodeRequest, frozen=True):
    """Put a drained or draining node back into service."""


class Remove(BaseNodeRequest, frozen=True):
    """Forget a node that is lost or drained."""


class SetProject(BaseRequest, frozen=True):
    project: Project


class SetPool(BaseRequest, frozen=True):
    pool: Pool


class Reserve(BaseRequest, frozen=True):
    """Set nodes aside for a project; without names, `count` nodes of a pool are chosen."""

    reservation: Reservation
    count: int = 0
    pool: str = ""


class Unset(BaseRequest, frozen=True):
    kind: str  # project | pool | reservation
    name: str


class PutRecords(BaseRequest, frozen=True):
    """All of them, or none."""

    records: tuple[OpaqueRecord, ...]
    detail: str = ""  # for the audit log: what they say, without what may be secret


class DeleteCaches(BaseRequest, frozen=True):
    """Forget entries of the cache of a project: these keys, or without any all of them."""

    project: str
    keys: tuple[str, ...] = ()


WorkloadRequest = (
    Submit | Cancel | Retry | Approve | Delete | ResultPosted | RunNow | Promote | Rollback | SetPower
)  # fmt: skip
OperatorRequest = (
    Drain | Cordon | Uncordon | Remove | Maintain | SetProject | SetPool | MarkPool | Reserve | Unset | PutRecords
    | DeleteCaches
)  # fmt: skip
Request = WorkloadRequest | OperatorRequest


class AttributedRequest(msgspec.Struct, frozen=True, tag=True):
    by: By
    event: Request


class NodeConnected(BaseRequest, frozen=True):
    hello: Hello
    received_ms: int = 0  # when it was read, which may be long before it is decided; 0: just now


class RestoreCache(BaseRequest, frozen=True):
    """An attempt looks for files in the cache of its project: of a key, else the newest of the first prefix."""

    node: str
    token: int
    key: str
    prefixes: tuple[str, ...] = ()


class SaveCache(BaseRequest, frozen=True):
    """An attempt has stored files for the cache of its project; or a problem says why its cache was of no use."""

    node: str
    token: int
    key: str
    files: FileSet | None = None
    problem: CacheProblem | None = None
    detail: str = ""  # a path, or what the store says


class ReportsReceived(msgspec.Struct, frozen=True, tag=True):
    node: str
    session: int
    sequence: int
    reports: tuple[Report, ...] = ()
    delta_missing: bool = False
    received_ms: int = 0  # when they were read, which may be long before they are decided; 0: just now


class NodeDisconnected(msgspec.Struct, frozen=True, tag=True):
    """An agent's stream broke; `leaving`: its node is going out of service, and is gone once nothing runs there."""

    node: str
    session: int
    leaving: bool = False


class HeartbeatsReceived(msgspec.Struct, frozen=True, tag=True):
    """Signs of life since the last batch: (node, session, when)."""

    heartbeats: tuple[tuple[str, int, int], ...]
    usage: tuple[tuple[str, Usage], ...] = ()


class ReadingPaused(msgspec.Struct, frozen=True, tag=True):
    """The server read nothing for so long: no agent was silent meanwhile."""

    for_ms: int


Event = (
    Request | AttributedRequest | NodeConnected | RestoreCache | SaveCache | ReportsReceived | NodeDisconnected
    | HeartbeatsReceived | ReadingPaused
)  # fmt: skip


def inner(event: Event) -> Event:
    """The event without its attribution."""
    return event.event if isinstance(event, AttributedRequest) else event
