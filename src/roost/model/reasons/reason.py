"""Reasons that quote other reasons, and the union of all reasons."""

from collections.abc import Sequence

import msgspec

from roost.model.reasons.attempts import AttemptReason
from roost.model.reasons.caching import CacheReason
from roost.model.reasons.needs import RequestAboveUse
from roost.model.reasons.nodes import NodeReason
from roost.model.reasons.power import PowerReason
from roost.model.reasons.subjects import BaseReason, HealthEvidence, OnNode, Principal, Ref, Requested, WorkloadRef

CAUSES_MAX = 4  # reasons inside each other: a chain of dependencies may be long
SHARED_MAX = 20_000  # equal reasons kept as one object; most stories are made of a few hundred


class Caused(BaseReason, frozen=True):
    cause: "Reason"


class NodeLost(OnNode, frozen=True):
    """Its node was lost, and why."""

    cause: "Reason"


class MovedToQueue(Caused, frozen=True):
    """It was stopped in order to run elsewhere."""


class AttemptRetried(Caused, frozen=True):
    """The attempt ended badly, and there is another one."""

    attempt: int
    attempts_max: int


class ServiceRestarted(Caused, frozen=True):
    """A replica ended and restarts after a delay; in a crash loop after many ends."""

    failures: int
    delay_ms: int
    is_crash_loop: bool = False


class RestartDisabled(Caused, frozen=True):
    """Its restart policy does not start it again."""


class RescheduleDisabled(Caused, frozen=True):
    """It must not run elsewhere after its node was lost."""


class RetriesExhausted(Caused, frozen=True):
    """It was lost more often than its retries allow."""

    retries_max: int


class DependencyEnded(BaseReason, frozen=True):
    """What it depends on ended otherwise than required: in which state, and why."""

    dependency: WorkloadRef | None
    element: int | None = None  # of an array, where elements depend on elements
    state: str = ""
    instance: int | None = None  # the one that ended so
    cause: "Reason | None" = None


class PlacementRejected(BaseReason, frozen=True):
    """It does not queue (`when_full: reject`) and could not be placed."""

    kind: str  # no_nodes | insufficient_resources | ...
    blockers: "tuple[BlockerText, ...]" = ()


class BlockerText(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    code: str
    text: "Text"
    nodes: int = 0


class VersionApplied(Requested, frozen=True):
    """A user applied this version."""


class RolledBack(BaseReason, frozen=True):
    """An earlier version is back: a user asked for it, or the rollout failed."""

    version: int
    by: Principal = ""
    cause: "Reason | None" = None


class RolloutFailures(BaseReason, frozen=True):
    """Too many instances of the new version ended; how the last one did."""

    version: int
    failures: int
    last: "Reason | None" = None


class RolloutStalled(BaseReason, frozen=True):
    """No instance became available in time: its failing health check, or how the last ended."""

    version: int
    limit_ms: int
    health: HealthEvidence | None = None
    last: "Reason | None" = None


Reason = (
    AttemptReason | CacheReason | PowerReason | NodeLost | MovedToQueue | AttemptRetried | ServiceRestarted
    | RestartDisabled | RescheduleDisabled | RetriesExhausted | DependencyEnded | PlacementRejected | NodeReason
    | VersionApplied | RolledBack | RolloutFailures | RolloutStalled | RequestAboveUse
)  # fmt: skip

#: A sentence whose subjects, and the reasons it quotes, are still data.
Text = tuple[str | Ref | HealthEvidence | Reason, ...]

_SHARED: dict[Reason, Reason] = {}


def joined(separator: str, texts: Sequence[Text]) -> Text:
    parts = [part for text in texts for part in (separator, *text)]
    return tuple(parts[1:])


def share(reason: Reason) -> Reason:
    known = _SHARED.get(reason)
    if known is None:
        if len(_SHARED) >= SHARED_MAX:
            _SHARED.clear()
        known = _SHARED[reason] = reason
    return known


def shortened(cause: Reason | None, levels: int = CAUSES_MAX) -> Reason | None:
    """A cause that is to become part of another reason: of a long chain of dependencies only the last links."""
    if not isinstance(cause, DependencyEnded) or cause.cause is None:
        return cause
    inner = shortened(cause.cause, levels - 1) if levels > 1 else None
    return msgspec.structs.replace(cause, cause=inner)
