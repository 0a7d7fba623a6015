"""Workloads with their dependents, schedules with their runs, and the services that are to be reconciled."""

from roost.model.records.workload import After, Workload
from roost.model.states import Milestone

ALL = -1  # in place of an index: all of a workload


def link(index: dict[str, dict[str, None]], key: str, member: str) -> None:
    index.setdefault(key, {})[member] = None


def unlink(index: dict[str, dict[str, None]], key: str, member: str) -> None:
    """Remove a member, and its key with the last one."""
    members = index.get(key, {})
    members.pop(member, None)
    if not members:
        index.pop(key, None)


class Dependencies:
    """Indexes over workloads that follow others, and what changed since it was last processed."""

    def __init__(self) -> None:
        self.dependents: dict[str, dict[str, None]] = {}  # workload -> its dependents
        self.instance_dependents: dict[str, dict[str, None]] = {}  # of these, the dependents of single instances
        self.dependency_changes: dict[str, dict[int, None]] = {}  # workload -> instances that came further; ALL
        self.schedules: dict[str, None] = {}  # workloads that run by a schedule
        self.runs: dict[str, dict[str, None]] = {}  # schedule -> its runs
        self.ended_runs: dict[str, None] = {}  # schedules of which a run has ended since the last sweep
        self.concurrency_groups: dict[str, dict[str, None]] = {}  # group -> its unfinished workloads, oldest first
        self.companions: dict[str, dict[str, None]] = {}  # workload -> services that live as long as it
        self.ended_owners: dict[str, None] = {}  # those of these workloads that have finished since the last step
        self.reconciling: dict[str, int] = {}  # services that are not as they are to be -> when that was checked last
        self.dirty_services: dict[str, None] = {}  # those of them that changed since

    def set_pending_conditions(self, workload: Workload, waits: tuple[After, ...]) -> None:
        """Replace the pending conditions of a workload. Nothing else changes the indexes of dependents."""
        key = workload.key
        for condition in workload.pending_conditions:
            unlink(self.dependents, condition.workload, key)
            unlink(self.instance_dependents, condition.workload, key)
        for condition in waits:
            link(self.dependents, condition.workload, key)
            if condition.each or condition.when == Milestone.STARTED:
                link(self.instance_dependents, condition.workload, key)
        workload.pending_conditions = waits

    def notify_dependents(self, key: str, index: int = ALL) -> None:
        """A workload, or one of its instances, came to a state that its dependents may require."""
        if key in (self.dependents if index == ALL else self.instance_dependents):
            self.dependency_changes.setdefault(key, {})[index] = None

    def note_group(self, workload: Workload) -> None:
        """A workload is there, has finished or lives again."""
        group = workload.policy.concurrency_group
        if group:
            (unlink if workload.finished_ms else link)(self.concurrency_groups, group, workload.key)

    def note_owner(self, workload: Workload) -> None:
        """A workload is there. Whether its owner is, is checked in the next step."""
        if workload.policy.until:
            link(self.companions, workload.policy.until, workload.key)
            self.ended_owners[workload.policy.until] = None

    def mark_dirty(self, key: str) -> None:
        """A service is to be reconciled until nothing of it has to be replaced, moved or retired."""
        self.reconciling[key] = 0
        self.dirty_services[key] = None
