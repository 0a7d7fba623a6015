"""Pipelines, checked from outside: conditions and approval before a start, superseded runs, services of actions."""

import re

from roost.core.state.state import State
from roost.model.reasons.attempts import ConditionFalse
from roost.model.records.workload import Workload
from roost.sim.checks.oracle import Oracle, decoded
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong

CONDITION = re.compile(r"needs\.(\w+)\.(state == 'succeeded'|result != null)")


class PipelineCheckers:
    def __init__(self, truth: Oracle, disk: Records) -> None:
        self._truth = truth
        self._disk = disk
        self._approved: dict[str, bool] = {}  # workloads that a client approved, or tried to
        self._retried: dict[str, bool] = {}  # workloads that a client let run again, or tried to

    def asks_approval(self, key: str) -> None:
        self._approved[key] = True

    def asks_retry(self, key: str) -> None:
        self._retried[key] = True

    def committed(self) -> None:
        for _, placed in self._disk.placed():
            self._may_start(self._disk.now["workload"][placed.workload])
        new = {}
        for key, old, workload in self._disk.written("workload"):
            if (old is None or old.serial != workload.serial) and not workload.adopted:
                new[key] = workload
            if isinstance(workload.reason, ConditionFalse) and _variable_holds(workload):
                raise Wrong(f"{key} was skipped, and {workload.policy.condition} is true")
        self._older_runs_are_cancelled(new)

    def _may_start(self, workload: Workload) -> None:
        key, rule = workload.key, workload.policy.condition
        if workload.policy.approval_role and not workload.adopted:
            if key not in self._approved or workload.approval is None:
                raise Wrong(f"{key} was placed, and is not approved")
        if rule and not self._holds(workload):
            raise Wrong(f"{key} was placed, and {rule} is false")

    def _holds(self, workload: Workload) -> bool:
        """Whether the condition was true at least once; its dependency may run again since."""
        found = CONDITION.fullmatch(workload.policy.condition)
        if found is None:
            return _variable_holds(workload)
        key = f"{workload.project}/{found[1]}"
        tokens = [token for (name, *_), tokens in self._truth.by_slot.items() if name == key for token in tokens]
        if found[2].startswith("state"):
            return any(map(self._truth.succeeded, tokens))
        results = [self._truth.written(token) for token in tokens if token in self._truth.endings]
        return any(result is not None and not result.problem for result in results)

    def _older_runs_are_cancelled(self, new: dict[str, Workload]) -> None:
        """In the commit that has a newer one; those of one request are of one run. A retry in it may come after."""
        groups = {workload.policy.concurrency_group: key for key, workload in new.items()}
        for key, workload in self._disk.now["workload"].items():
            by = groups.get(workload.policy.concurrency_group) if workload.policy.concurrency_group else None
            if by is None or key in new or key in self._retried:
                continue
            if not (workload.unstarted_end_state or workload.finished_ms):
                raise Wrong(f"{key} goes on beside {by}, which supersedes it")


def left_services(state: State) -> list[str]:
    """Services that have outlived the workload that they belong to."""
    left = []
    for key, workload in state.workloads.items():
        owner = state.workloads.get(workload.policy.until)
        is_over = bool(workload.policy.until) and (owner is None or owner.finished_ms > 0)
        if is_over and not workload.finished_ms:
            left.append(f"{key} goes on, and {workload.policy.until} is over")
    return left


def _variable_holds(workload: Workload) -> bool:
    return workload.policy.condition == "env.GO == 'yes'" and decoded(workload.document).env["GO"] == "yes"
