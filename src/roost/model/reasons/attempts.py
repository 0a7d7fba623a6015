"""Reasons of instances and workloads that stand for themselves."""

import msgspec

from roost.model.reasons.subjects import (
    BaseReason,
    HealthEvidence,
    InstanceRef,
    OnNode,
    PoolName,
    Principal,
    ProjectRef,
    Requested,
    WorkloadRef,
)
from roost.model.records.files import InputFailure, OutputGap, Outputs
from roost.model.records.result import Result, ResultProblem

GAPS_SHOWN = 3  # in a reason, which stories repeat; the outputs of the attempt have all of them


class Submitted(BaseReason, frozen=True):
    """It was submitted."""


class RecoveredFromAgent(BaseReason, frozen=True):
    """A server without memory learnt of it from its agent; it was submitted to an earlier server."""


class NotReported(BaseReason, frozen=True):
    """A server without memory makes it again, because no agent reported it."""


class ScaledUp(BaseReason, frozen=True):
    """More replicas are wanted than before."""


class SurgeReplica(BaseReason, frozen=True):
    """An additional replica while others are replaced."""


class WaitingForDependencies(BaseReason, frozen=True):
    """Its dependencies have not come so far."""


class DependenciesMet(BaseReason, frozen=True):
    """All its dependencies have come."""


class NeedsApproval(BaseReason, frozen=True):
    """It has to be approved before it may start, by a user with this role in its project."""

    role: str


class Approved(Requested, frozen=True):
    """A user with the role that it asks for approved it."""


class ConditionFalse(BaseReason, frozen=True):
    """Its `if` was false when its dependencies were over."""

    condition: str


class ConditionUnclear(BaseReason, frozen=True):
    """Its `if` could not be evaluated: it speaks of something that is not there."""

    condition: str
    error: str


class Superseded(BaseReason, frozen=True):
    """A newer workload of its concurrency group was submitted."""

    superseded_by: WorkloadRef | None


class OwnerEnded(BaseReason, frozen=True):
    """The workload that it lives as long as has finished."""

    owner: WorkloadRef | None


class PlacedOnNode(OnNode, frozen=True):
    """The scheduler chose a node for it."""

    strategy: str


class PlacedWithImage(OnNode, frozen=True):
    """The scheduler chose a node for it, which has the image of its container already."""

    strategy: str


class Prefilled(OnNode, frozen=True):
    """It is on a node behind another attempt, whose allocation it gets."""

    behind: InstanceRef | None  # None: the reader may not see it


class AcceptedByAgent(BaseReason, frozen=True):
    """The agent has the order."""


class ImagePulled(BaseReason, frozen=True):
    """The agent has the order, and has fetched the image of its container."""

    pull_ms: int


class ProcessStarted(BaseReason, frozen=True):
    """It runs."""


class AdoptedFromAgent(BaseReason, frozen=True):
    """A server without memory took over what its agent runs."""


class UpdatedInPlace(BaseReason, frozen=True):
    """It counts as the new version without a restart."""

    version: int


class ExitCode(BaseReason, frozen=True):
    """The process ended by itself."""

    exit_code: int
    step: int = 0


class KilledBySignal(BaseReason, frozen=True):
    """The process was ended by a signal."""

    signal: int
    step: int = 0
    detail: str = ""


class TimeoutExceeded(BaseReason, frozen=True):
    """It ran longer than its timeout."""

    limit_ms: int
    step: int = 0


class StartFailed(BaseReason, frozen=True):
    """The agent could not start it."""

    error: str
    step: int = 0


class InputsFailed(BaseReason, frozen=True):
    """Its inputs did not come into its work directory, so it never began."""

    failure: InputFailure


class HealthCheckFailed(BaseReason, frozen=True):
    """Its health check failed too often."""

    evidence: HealthEvidence
    step: int = 0


class ResultReported(BaseReason, frozen=True):
    """A client reported how it ended."""

    exit_code: int
    note: str = ""
    by: Principal = ""


class ResultNotKept(BaseReason, frozen=True):
    """It wrote a result that was not kept. How the attempt ended does not depend on it."""

    problem: ResultProblem
    size: int  # bytes that it wrote; 0: unknown


class OutputsMissing(BaseReason, frozen=True):
    """Its process ended well, but required outputs are not there."""

    gaps: tuple[OutputGap, ...]  # the first of them
    more: int = 0  # gaps beside these


class OutputsNotKept(BaseReason, frozen=True):
    """Outputs that are not required are not there. How the attempt ended does not depend on it."""

    gaps: tuple[OutputGap, ...]  # the first of them
    more: int = 0  # gaps beside these


class LeaseExpired(OnNode, frozen=True):
    """Its node stopped it because the node's lease ended."""


class StoppedByNode(OnNode, frozen=True):
    """Its node stopped it without an order."""


class StreamClosed(OnNode, frozen=True):
    """The stream of its node closed, and another attempt may overlap this one."""


class MissingOnNode(OnNode, frozen=True):
    """Its node came back without it."""


class PinnedToLostNode(OnNode, frozen=True):
    """Its node is lost, and `when_lost: pin` keeps it there. It may run or not."""

    since_ms: int


class NodeReturned(OnNode, frozen=True):
    """Its node is back and still runs it."""


class CancelRequested(Requested, frozen=True):
    """A user cancelled it."""


class RetryRequested(Requested, frozen=True):
    """A user wants it to run again."""


class RunReplaced(BaseReason, frozen=True):
    """The next run of its schedule took its place."""

    by: WorkloadRef | None


class Preempted(BaseReason, frozen=True):
    """It had to make room for a more important workload, or for one that is entitled to the quota."""

    by: InstanceRef | None
    priority: int
    own_priority: int
    over_quota: ProjectRef | None = None  # the project that used more than its quota


class NodeReserved(OnNode, frozen=True):
    """Its node is reserved for another project."""

    project: ProjectRef | None


class GangRestart(BaseReason, frozen=True):
    """Another member of its gang has to start again, and a gang starts together."""

    member: InstanceRef | None


class NodeDraining(OnNode, frozen=True):
    """Its node is being drained."""


class PoolDraining(BaseReason, frozen=True):
    """The pool of its node is being drained."""

    pool: PoolName
    note: str = ""


class PoolFailed(BaseReason, frozen=True):
    """Its pool failed: by an operator's word, or because no node of it was in contact."""

    pool: PoolName
    outcome: str  # moved | cancelled | fallback | waiting
    note: str = ""
    silent_ms: int = 0
    fallback: PoolName = ""


class PrefillTimeout(BaseReason, frozen=True):
    """The attempt that it was prefilled behind takes too long."""


class UpdatedToVersion(BaseReason, frozen=True):
    """It is replaced by the new version."""

    version: int


class ScaledDown(BaseReason, frozen=True):
    """Fewer replicas are wanted."""

    count: int


class DeadlinePassed(BaseReason, frozen=True):
    """Its deadline has passed."""


class DeadlineUnreachable(BaseReason, frozen=True):
    """It takes longer than the time that is left before its deadline."""

    expected_ms: int
    left_ms: int


class QueueTimeout(BaseReason, frozen=True):
    """It was pending for longer than its queue timeout."""

    limit_ms: int


class DependencyUnknown(BaseReason, frozen=True):
    """The result of a dependency is unknown: it was deleted, or a part is missing."""

    dependency: WorkloadRef | None
    element: int | None = None
    is_partial: bool = False


class DependencyWithoutOutputs(BaseReason, frozen=True):
    """A dependency whose outputs are its inputs has none, or they were not kept."""

    dependency: WorkloadRef | None
    element: int | None = None


class TickSkipped(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    tick_ms: int
    why: str  # run_active | runs_active | name_in_use | minute_used | refused
    workload: WorkloadRef | None = None
    count: int = 0
    error: str = ""


class TicksSkipped(BaseReason, frozen=True):
    """Ticks of a schedule that made no run: missed during an outage, or skipped."""

    zone: str
    missed_until_ms: int = 0
    is_one: bool = False  # only that one was missed
    skipped: tuple[TickSkipped, ...] = ()


def not_kept(result: Result | None) -> ResultNotKept | None:
    """Why there is no result although one was written; None: there is one, or nothing was written."""
    return ResultNotKept(result.problem, result.size) if result is not None and result.problem is not None else None


def outputs_missing(outputs: Outputs) -> OutputsMissing | None:
    """Why an attempt that ended well has failed; None: it has not."""
    gaps = outputs.required_gaps
    more = len(gaps[GAPS_SHOWN:]) + (outputs.more_gaps if len(gaps) == len(outputs.gaps) else 0)  # the worst come first
    return OutputsMissing(gaps[:GAPS_SHOWN], more) if gaps else None


def outputs_not_kept(outputs: Outputs | None) -> OutputsNotKept | None:
    """What an attempt was to leave and is not kept, beside required outputs; None: everything is."""
    gaps = [gap for gap in outputs.gaps if not gap.required] if outputs is not None else []
    if outputs is None or not gaps:
        return None
    return OutputsNotKept(tuple(gaps[:GAPS_SHOWN]), len(gaps[GAPS_SHOWN:]) + outputs.more_gaps)


SUBMITTED = Submitted()
PROCESS_STARTED = ProcessStarted()
ACCEPTED_BY_AGENT = AcceptedByAgent()

AttemptReason = (
    Submitted | RecoveredFromAgent | NotReported | ScaledUp | SurgeReplica | WaitingForDependencies | DependenciesMet
    | NeedsApproval | Approved | ConditionFalse | ConditionUnclear | Superseded | OwnerEnded
    | PlacedOnNode | PlacedWithImage | Prefilled | AcceptedByAgent | ImagePulled | ProcessStarted
    | AdoptedFromAgent | UpdatedInPlace | ExitCode
    | KilledBySignal | TimeoutExceeded | StartFailed | InputsFailed | HealthCheckFailed | ResultReported | ResultNotKept
    | OutputsMissing | OutputsNotKept | LeaseExpired | StoppedByNode | StreamClosed | MissingOnNode
    | PinnedToLostNode | NodeReturned
    | CancelRequested | RetryRequested | RunReplaced
    | Preempted | NodeReserved | GangRestart | NodeDraining | PoolDraining | PoolFailed | PrefillTimeout
    | UpdatedToVersion | ScaledDown | DeadlinePassed | DeadlineUnreachable | QueueTimeout
    | DependencyUnknown | DependencyWithoutOutputs | TicksSkipped
)  # fmt: skip
