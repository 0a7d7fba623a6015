"""Stages: what is known of each action of a run while it is followed, and what came of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from roost.cli.common.exit_codes import FAILED
from roost.cli.common.format import took
from roost.cli.work.run import exit_code_of
from roost.model.spec.pipelines.labels import ACTION
from roost.model.states import FINISHED, InstanceState
from roost.schema.feed import EndingView
from roost.schema.work import InstanceView, WorkloadView

HEADER = ("ACTION", "STATE", "TIME", "EXIT", "NODE", "WHY")
BEGUN = FINISHED | {InstanceState.RUNNING, InstanceState.STOPPING}  # an attempt that may have written something
GOOD = ("succeeded", "skipped")
NEVER_RAN = ("cancelled", "expired", "rejected", "skipped")  # ends that need no beginning


class StageResult(NamedTuple):
    action: str
    state: str
    exit_code: int | None  # of the first element that did not succeed; 0 if all did; None: it has none (yet)
    code: int  # what a command that waits for it ends with
    started_ms: int | None
    finished_ms: int | None
    node: str
    message: str
    elements: int


class Stage:
    def __init__(
        self, workload: WorkloadView, needs: Mapping[str, str], instances: Iterable[InstanceView] = ()
    ) -> None:
        """`needs`: the workloads that it comes after, and how far they must have come."""
        self.workload = workload
        self.needs = [f"{workload.project}/{name}" for name, when in needs.items() if when != "started"]
        self.action = workload.labels.get(ACTION, workload.name)
        self.instances = {instance.index: instance for instance in instances}
        # What was written before it was followed is not printed again; an attempt that comes now is.
        self.attempts = {instance.index: instance.attempt for instance in self.instances.values()}
        self.followed: set[int] = set()
        self.logs_open = 0
        self.gone = False  # it is finished and deleted
        self.reported = workload.is_over  # its end was reported

    @property
    def is_over(self) -> bool:
        return self.gone or self.workload.is_over

    @property
    def is_running(self) -> bool:
        return not self.is_over and self.workload.state != "queued"

    def label(self, index: int) -> str:
        return self.action if self.workload.count == 1 else f"{self.action}.{index}"

    def wants_log(self, instance: InstanceView) -> bool:
        is_new = instance.attempt > self.attempts.get(instance.index, 0)
        return is_new and instance.state in BEGUN and instance.index not in self.followed

    def misses(self) -> bool:
        """Whether it is finished and the ends of some elements are unknown: they ended together, or never ran."""
        if self.gone or not self.workload.is_over or (not self.instances and self.workload.state in NEVER_RAN):
            return False
        return sum(instance.is_over for instance in self.instances.values()) < self.workload.count

    def result(self) -> StageResult:
        result = result_of(self.workload, list(self.instances.values()), self.action)
        if self.gone and result.state not in FINISHED:
            return result._replace(state="gone", code=FAILED, message="it was deleted, and its result is unknown")
        return result


def result_of(workload: WorkloadView, instances: Sequence[InstanceView], action: str = "") -> StageResult:
    ordered = sorted(instances, key=lambda instance: instance.index)
    bad = [instance for instance in ordered if instance.is_over and instance.state != "succeeded"]
    first = bad[0] if bad else ordered[0] if ordered else None
    state = str(workload.state)
    if not workload.is_over and len(ordered) == workload.count and all(instance.is_over for instance in ordered):
        state = bad[0].state if bad else "succeeded"  # it was not kept: its elements are all that is known
    starts = [instance.started_ms for instance in ordered if instance.started_ms]
    ends = [instance.finished_ms for instance in ordered if instance.finished_ms]
    return StageResult(
        action=action or workload.labels.get(ACTION, workload.name),
        state=state,
        exit_code=first.exit_code if first is not None and first.is_over else None,
        code=_code(state, bad[0] if bad else None),
        started_ms=min(starts, default=None),
        finished_ms=workload.finished_ms or (max(ends, default=None) if state in FINISHED else None),
        node=first.node if first is not None else "",
        message=(first.message if first is not None else "") or workload.message,
        elements=workload.count,
    )


def exit_code(results: Sequence[StageResult]) -> int:
    """The code of the action that failed first. Cancelled actions come last: they are a consequence."""
    bad = [result for result in results if result.state not in GOOD]
    bad.sort(key=lambda item: (item.state == "cancelled", item.finished_ms or 0))
    return bad[0].code if bad else 0


def row_of(result: StageResult) -> tuple[str, ...]:
    name = result.action if result.elements == 1 else f"{result.action} ({result.elements})"
    code = "-" if result.exit_code is None else str(result.exit_code)
    message = result.message if result.state != "succeeded" else ""
    return name, result.state, took(result.started_ms, result.finished_ms), code, result.node or "-", message


def needs_of(document: Mapping[str, Any]) -> dict[str, str]:
    blocks = [item if isinstance(item, dict) else {"workload": item} for item in document.get("after", [])]
    return {block["workload"]: block.get("when", "succeeded") for block in blocks}


def _code(state: str, bad: InstanceView | None) -> int:
    if state in GOOD:
        return 0
    if state == "cancelled" or bad is None:
        return FAILED
    return exit_code_of(EndingView(bad.state, bad.attempt, bad.message, bad.exit_code, bad.signal))
