"""What work usually asks for, learnt now and then from all that is wanted: some strategies keep room useful for it."""

from typing import TYPE_CHECKING

from roost.core.fragments import typical_of, typical_shapes
from roost.model.workload import Ask

if TYPE_CHECKING:
    from roost.core.state import State

OFTEN_MS = 60_000  # while little is known
SELDOM_MS = 3_600_000  # all shortlists are made anew after each time
MANY = 1_000  # instances that are wanted: enough to tell what is typical
SHAPES_MAX = 1_024  # stored: some 50 KB


def learn_typical(state: "State") -> None:
    """Look at all workloads that are not over. What was learnt is stored, so that a restart changes no decision."""
    counts: dict[Ask, int] = {}
    for workload in state.workloads.values():
        if not workload.finished_ms:
            ask = workload.policy.ask
            counts[ask] = counts.get(ask, 0) + workload.count
    typical = typical_of(counts.items())
    pause_ms = SELDOM_MS if sum(counts.values()) >= MANY else OFTEN_MS
    state.meta.typical_due_ms = state.now_ms + pause_ms
    if typical.asked[:SHAPES_MAX] != state.meta.typical:
        state.meta.typical = typical.asked[:SHAPES_MAX]
        expect(state)
    state.touch_meta()


def expect(state: "State") -> None:
    """Tell the fleet what is stored."""
    state.fleet.expect(typical_shapes(dict(state.meta.typical)))
