"""A transition: one line of the story of an instance or a node. What happened is read from here and nowhere else."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from roost.model.reasons.reason import Reason
from roost.model.reasons.subjects import NodeName
from roost.model.records.usage import RunUsage
from roost.model.states import InstanceState, NodeStatus


class InstanceTransition(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """When, from which state to which, why, in which commit, which attempt, and how it ended.

    The state may be the same as before: then something else is worth a line.
    """

    at_ms: int
    before: InstanceState | None  # None: it is new
    state: InstanceState
    reason: Reason
    revision: int
    attempt: int = 0
    node: NodeName = ""
    exit_code: int | None = None
    signal: int | None = None
    version: int = 0  # of the workload, as this attempt runs it
    log_size: int | None = None  # bytes in the log of an attempt that has ended, as its node reported
    stderr_size: int | None = None  # likewise of the log of its stderr, if it has one
    step: int = 0  # of its commands, at that moment
    usage: RunUsage | None = None  # of an attempt that has ended, as its node reported


class NodeTransition(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    at_ms: int
    before: NodeStatus | None
    state: NodeStatus
    reason: Reason
    revision: int


InstanceStory = tuple[InstanceTransition, ...]
NodeStory = tuple[NodeTransition, ...]
Line = TypeVar("Line", InstanceTransition, NodeTransition)


class InstanceTransitioned(msgspec.Struct, frozen=True, gc=False):
    key: str
    transition: InstanceTransition
    record: bytes | None = None  # its last one, if the same commit removes it: no store has it


class NodeTransitioned(msgspec.Struct, frozen=True, gc=False):
    key: str
    transition: NodeTransition


class WorkloadRemoved(NamedTuple):
    """A workload that changed and was removed in the same commit, with the record that no store has."""

    key: str
    record: bytes
    placed_count: int
    counts: dict[InstanceState, int]


Transitioned = InstanceTransitioned | NodeTransitioned | WorkloadRemoved


def lines_between(story: Sequence[Line], since: int, until: int) -> list[Line]:
    if not story or story[-1].revision <= since:
        return []
    return [line for line in story if since < line.revision <= until]
