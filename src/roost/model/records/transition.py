"""A transition: one line of the story of an instance or a node. What happened is read from here and nowhere else."""

from typing import NamedTuple

import msgspec

from roost.model.reasons.reason import Reason
from roost.model.reasons.subjects import NodeName


class Transition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When, from which state to which, why, and in which commit; of an instance also which attempt, and how it ended.

    The state may be the same as before: then something else is worth a line.
    """

    at_ms: int
    before: str  # "": it is new
    state: str
    reason: Reason
    revision: int
    attempt: int = 0
    node: NodeName = ""
    exit_code: int | None = None
    signal: int | None = None
    version: int = 0  # of the workload, as this attempt runs it
    log_size: int | None = None  # bytes in the log of an attempt that has ended, as its node reported


Story = tuple[Transition, ...]


class Transitioned(NamedTuple):
    kind: str
    key: str
    transition: Transition


def lines_between(story: Story, since: int, until: int) -> list[Transition]:
    if not story or story[-1].revision <= since:
        return []
    return [line for line in story if since < line.revision <= until]
