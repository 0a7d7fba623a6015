"""Reasons of nodes."""

from roost.model.reasons.subjects import BaseReason, Requested


class NodeRegistered(BaseReason, frozen=True):
    """Its agent connected."""


class NodeStreamClosed(BaseReason, frozen=True):
    """The stream of its agent closed."""


class NodeLeaving(BaseReason, frozen=True):
    """Its agent is shutting down and still runs something."""


class NodeLeft(BaseReason, frozen=True):
    """Its agent shut down."""


class HeartbeatsMissing(BaseReason, frozen=True):
    """No heartbeat came for a whole lease. During maintenance nothing is given up."""

    lease_ms: int
    in_maintenance: bool = False


class HeartbeatsResumed(BaseReason, frozen=True):
    """Heartbeats come again."""


class DrainRequested(Requested, frozen=True):
    """An operator drains it."""


class DrainCompleted(BaseReason, frozen=True):
    """Nothing runs on it."""


class CordonRequested(Requested, frozen=True):
    """An operator cordoned it."""


class UncordonRequested(Requested, frozen=True):
    """An operator put it back into service."""


class NodeRemoved(Requested, frozen=True):
    """It was removed: by an operator, or because it was lost for too long."""


class NodeFlaky(BaseReason, frozen=True):
    """Runs fail on it that do not fail elsewhere, so other nodes are preferred for a while."""

    failures: int
    workloads: int
    window_ms: int
    avoided_ms: int


class NodeFlakyEnded(BaseReason, frozen=True):
    """It is used like the others again."""


NodeReason = (
    NodeRegistered | NodeStreamClosed | NodeLeaving | NodeLeft | HeartbeatsMissing | HeartbeatsResumed | DrainRequested
    | DrainCompleted | CordonRequested | UncordonRequested | NodeRemoved | NodeFlaky | NodeFlakyEnded
)  # fmt: skip
