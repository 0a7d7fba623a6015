"""The state machines as tables: which move is legal. A missing pair is the error.

    queued ──► placed ──► starting ──► running ──► succeeded | failed | timed_out
      │  ▲        │          │            │
      │  └────────┴── lost ◄─┴────────────┤          (a new attempt with a new token)
      ▼                                   ▼
    expired | rejected | skipped | cancelled     stopping ──► cancelled | queued (moved off a draining node)

Finished instances may be queued again: by the retry policy (straight from running), or on request.
"""

from enum import StrEnum
from typing import Final


class InstanceState(StrEnum):
    QUEUED = "queued"
    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    SKIPPED = "skipped"


class WorkloadState(StrEnum):
    """One word for a whole workload. `scheduled`: ticks make runs of it; it has no instances and never runs itself."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    SKIPPED = "skipped"


class Power(StrEnum):
    """Of a virtual machine whose instance runs. A stopped one keeps its node, its disks and its allocation."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class PowerAction(StrEnum):
    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    REBOOT = "reboot"  # its operating system shuts down, and starts again
    RESET = "reset"  # at once, as with the button


class NodeStatus(StrEnum):
    READY = "ready"
    SUSPECT = "suspect"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"  # its agent was shut down and ran nothing
    LOST = "lost"
    GONE = "gone"


class PoolStatus(StrEnum):
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class RolloutState(StrEnum):
    """How far the change to a new version is. `waiting`: the canaries are fine; promote or roll back."""

    ROLLING = "rolling"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


class WorkloadKind(StrEnum):
    """What a workload is: it ends by itself, runs until it is cancelled, or is a machine."""

    JOB = "job"
    SERVICE = "service"
    VM = "vm"


class IsolationLevel(StrEnum):
    """How a node keeps runs apart, the weakest first: not at all, by a user for each project, or in sandboxes."""

    NONE = "none"
    USER = "user"
    SANDBOX = "sandbox"

    def offers(self, wanted: str) -> bool:
        """Whether it is at least what is wanted; empty: anything is."""
        levels = list(IsolationLevel)
        return not wanted or levels.index(self) >= levels.index(IsolationLevel(wanted))


class LimitsMode(StrEnum):
    """Whether limits of resources must be enforced where a run is, or only as far as its node can."""

    BEST_EFFORT = "best_effort"
    REQUIRED = "required"


class WhenFull(StrEnum):
    QUEUE = "queue"
    REJECT = "reject"


class WhenLost(StrEnum):
    RESCHEDULE = "reschedule"
    FAIL = "fail"
    PIN = "pin"


class Move(StrEnum):
    """How a virtual machine may leave its node while that lives: without a pause, switched off, or not at all."""

    LIVE = "live"
    COLD = "cold"
    NEVER = "never"


class StderrMode(StrEnum):
    """Where a run's stderr goes: to its one log in the order of writing, or to a second log."""

    MERGE = "merge"
    SEPARATE = "separate"


class LogStream(StrEnum):
    """A log of a run. Without a separate stderr, that of stdout has both."""

    STDOUT = "stdout"
    STDERR = "stderr"


class RestartWhen(StrEnum):
    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    NEVER = "never"


class Milestone(StrEnum):
    """What has to have become of another workload before a dependent one may start."""

    SUCCEEDED = "succeeded"
    FINISHED = "finished"
    STARTED = "started"
    APPROVED = "approved"  # of a workload itself: a user has to approve it


class Overlap(StrEnum):
    """What a schedule does at a tick while its last run has not ended."""

    SKIP = "skip"
    ALLOW = "allow"
    WAIT = "wait"
    REPLACE = "replace"


class AttemptState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class EndCause(StrEnum):
    NONE = ""
    EXITED = "exited"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    LEASE = "lease"
    ERROR = "error"
    UNHEALTHY = "unhealthy"


class AffinityKind(StrEnum):
    NEAR = "near"
    APART = "apart"
    AVOID = "avoid"


class Domain(StrEnum):
    """What counts as one place, from the innermost to the outermost."""

    NODE = "node"
    RACK = "rack"
    ZONE = "zone"
    REGION = "region"


def _instance_moves() -> dict[InstanceState, frozenset[InstanceState]]:
    (
        queued, placed, starting, running, stopping, lost, succeeded, failed, timed_out, cancelled, expired, rejected,
        skipped,
    ) = InstanceState  # fmt: skip
    return {
        queued: frozenset({placed, cancelled, expired, rejected, skipped, failed}),
        placed: frozenset({starting, running, stopping, lost, failed, queued}),
        starting: frozenset({running, stopping, lost, failed, queued}),
        running: frozenset({succeeded, failed, timed_out, stopping, lost, queued}),
        stopping: frozenset({cancelled, lost, queued, succeeded, failed, timed_out}),
        lost: frozenset({queued, failed, cancelled}),
        succeeded: frozenset({queued}),
        failed: frozenset({queued}),
        timed_out: frozenset({queued}),
        cancelled: frozenset({queued}),
        expired: frozenset({queued}),
        rejected: frozenset({queued}),
        skipped: frozenset({queued}),
    }


def _node_moves() -> dict[NodeStatus, frozenset[NodeStatus]]:
    ready, suspect, cordoned, draining, drained, stopped, lost, gone = NodeStatus
    return {
        ready: frozenset({suspect, cordoned, draining, drained, stopped, lost, gone}),
        suspect: frozenset({ready, cordoned, draining, drained, stopped, lost, gone}),
        cordoned: frozenset({ready, suspect, draining, drained, stopped, lost, gone}),
        draining: frozenset({drained, ready, suspect, stopped, lost, gone}),
        drained: frozenset({ready, suspect, draining, stopped, lost, gone}),
        stopped: frozenset({ready, cordoned, draining, drained, gone}),
        lost: frozenset({ready, cordoned, draining, drained, gone}),
        gone: frozenset(),
    }


#: From which power states an action is taken, and to which it leads. From that state, it changes nothing.
POWER_MOVES: Final[dict[PowerAction, tuple[frozenset[Power], Power]]] = {
    PowerAction.START: (frozenset({Power.STOPPED, Power.RUNNING}), Power.RUNNING),
    PowerAction.STOP: (frozenset(Power), Power.STOPPED),
    PowerAction.PAUSE: (frozenset({Power.RUNNING, Power.PAUSED}), Power.PAUSED),
    PowerAction.RESUME: (frozenset({Power.PAUSED, Power.RUNNING}), Power.RUNNING),
    PowerAction.REBOOT: (frozenset({Power.RUNNING}), Power.RUNNING),
    PowerAction.RESET: (frozenset({Power.RUNNING}), Power.RUNNING),
}
#: Actions that happen each time: the state before and after them is the same.
ONE_SHOT: Final = frozenset({PowerAction.REBOOT, PowerAction.RESET})

MOVES: Final = _instance_moves()
NODE_MOVES: Final = _node_moves()

#: Nodes without a session or a lease; only a new registration brings them back.
ABSENT: Final = frozenset({NodeStatus.STOPPED, NodeStatus.LOST})

#: States in which an instance takes room on its node. `lost` does not: the lease has ended there.
ALLOCATED: Final = frozenset(
    {InstanceState.PLACED, InstanceState.STARTING, InstanceState.RUNNING, InstanceState.STOPPING}
)
#: The end state of a workload is that of its instances which comes first here; `succeeded` if none does.
WORST_FIRST: Final = (
    InstanceState.FAILED,
    InstanceState.TIMED_OUT,
    InstanceState.REJECTED,
    InstanceState.EXPIRED,
    InstanceState.CANCELLED,
    InstanceState.SKIPPED,
)
FINISHED: Final = frozenset({InstanceState.SUCCEEDED, *WORST_FIRST})
