"""Concurrency groups: newer work cancels the unfinished older work of its group, in the same commit."""

from collections.abc import Collection

from roost.core.lifecycle.stop import cancel_all
from roost.core.state.outcome import Paced, Step
from roost.core.state.state import State
from roost.model.reasons.attempts import Superseded
from roost.model.reasons.subjects import WorkloadRef


def supersede(state: State, out: Step, new: Collection[str], now: int) -> Paced[None]:
    """Cancel the others of the groups of workloads that were just taken in. Those of one request stay together."""
    groups: dict[str, str] = {}
    for key in new:
        groups.setdefault(state.workloads[key].policy.concurrency_group, key)
    groups.pop("", None)
    for group, first in groups.items():
        members = list(state.concurrency_groups.get(group, ()))
        for key in reversed(members):  # dependents first, so that each has this reason
            workload = state.workloads[key]
            if key not in new and not workload.unstarted_end_state:
                cancel_all(state, out, workload, Superseded(WorkloadRef.of(first)), now)
            yield 1
