"""Which workloads wait for which, the runs of schedules, and the services that are to be reconciled."""

from roost.model.records.workload import After, Workload
from roost.model.states import Milestone

ALL = -1  # in place of an index: all of a workload


class Dependencies:
    """Indexes over workloads that follow others, and what changed since it was last processed."""

    def __init__(self) -> None:
        self.dependents: dict[str, dict[str, None]] = {}  # workload -> those that wait for it
        self.instance_dependents: dict[str, dict[str, None]] = {}  # of these, those that wait for single instances
        self.dependency_changes: dict[str, dict[int, None]] = {}  # workload -> instances that came further; ALL
        self.schedules: dict[str, None] = {}  # workloads that run by a schedule
        self.runs: dict[str, dict[str, None]] = {}  # schedule -> its runs
        self.ended_runs: dict[str, None] = {}  # schedules of which a run has ended since the last sweep
        self.reconciling: dict[str, int] = {}  # services that are not as they are to be -> when that was checked last
        self.dirty_services: dict[str, None] = {}  # those of them that changed since

    def copy_dependencies(self, origin: "Dependencies") -> None:
        """Begin as another."""
        self.dependents = _copied(origin.dependents)
        self.instance_dependents = _copied(origin.instance_dependents)
        self.dependency_changes = {key: dict(indexes) for key, indexes in origin.dependency_changes.items()}
        self.schedules, self.runs = dict(origin.schedules), _copied(origin.runs)
        self.ended_runs = dict(origin.ended_runs)
        self.reconciling, self.dirty_services = dict(origin.reconciling), dict(origin.dirty_services)

    def set_pending_conditions(self, workload: Workload, waits: tuple[After, ...]) -> None:
        """Let a workload wait for these and nothing else: the one place where it is noted who waits for whom."""
        key = workload.key
        for condition in workload.pending_conditions:
            for index in (self.dependents, self.instance_dependents):
                others = index.get(condition.workload, {})
                others.pop(key, None)
                if not others:
                    index.pop(condition.workload, None)
        for condition in waits:
            self.dependents.setdefault(condition.workload, {})[key] = None
            if condition.each or condition.when == Milestone.STARTED:
                self.instance_dependents.setdefault(condition.workload, {})[key] = None
        workload.pending_conditions = waits

    def notify_dependents(self, key: str, index: int = ALL) -> None:
        """Something became of a workload, or of one of its instances, that may matter to those who wait for it."""
        if key in (self.dependents if index == ALL else self.instance_dependents):
            self.dependency_changes.setdefault(key, {})[index] = None

    def mark_dirty(self, key: str) -> None:
        """Something of a service is to be replaced, moved or retired: it is looked at until that is done."""
        self.reconciling[key] = 0
        self.dirty_services[key] = None


def _copied(index: dict[str, dict[str, None]]) -> dict[str, dict[str, None]]:
    return {key: dict(others) for key, others in index.items()}
