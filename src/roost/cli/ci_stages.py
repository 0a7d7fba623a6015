"""Stages: what is known of each action of a run while it is followed, and what came of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.cli.outcome import FAILED
from roost.cli.output import took
from roost.cli.run import exit_code_of
from roost.client.types import Ending
from roost.model.pipeline import ACTION
from roost.model.states import FINISHED

if TYPE_CHECKING:
    from roost.client.types import Instance, Workload

HEADER = ("ACTION", "STATE", "TIME", "EXIT", "NODE", "WHY")
BEGUN = FINISHED | {"running", "stopping"}  # states of an attempt that may have written something
NEVER_RAN = ("cancelled", "expired", "rejected")  # ends that need no beginning


class Result(NamedTuple):
    """How an action stands, or how it ended."""

    action: str
    state: str
    exit_code: int | None  # of the first element that did not succeed; 0 if all did; None: it has none (yet)
    code: int  # what a command that waits for it ends with
    started_ms: int | None
    finished_ms: int | None
    node: str
    cause: str
    elements: int


class Stage:
    """One action: its workload, its elements, and whose logs are being read."""

    def __init__(self, workload: "Workload", document: Mapping[str, Any], instances: Iterable["Instance"] = ()) -> None:
        self.workload = workload
        self.needs = _needs(workload.project, document)
        self.action = workload.labels.get(ACTION, workload.name)
        self.instances = {each.index: each for each in instances}
        # What was written before it was followed is not printed again; an attempt that comes now is.
        self.attempts = {each.index: each.attempt for each in self.instances.values()}
        self.followed: dict[int, None] = {}
        self.logs_open = 0
        self.gone = False  # it is over and not kept any more
        self.told = workload.is_over  # its end was told, or nobody asked

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will happen any more."""
        return self.gone or self.workload.is_over

    @property
    def is_running(self) -> bool:
        """Whether anything of it has a place."""
        return not self.is_over and self.workload.state != "queued"

    def label(self, index: int) -> str:
        """What stands in front of its lines."""
        return self.action if self.workload.count == 1 else f"{self.action}.{index}"

    def wants_log(self, instance: "Instance") -> bool:
        """Whether an element has begun something that nobody reads yet."""
        is_new = instance.attempt > self.attempts.get(instance.index, 0)
        return is_new and instance.state in BEGUN and instance.index not in self.followed

    def misses(self) -> bool:
        """Whether it is over and some elements are not known to be: they ended in the same moment, or never ran."""
        if self.gone or not self.workload.is_over or (not self.instances and self.workload.state in NEVER_RAN):
            return False
        return sum(each.is_over for each in self.instances.values()) < self.workload.count

    def result(self) -> Result:
        """How it stands."""
        result = result_of(self.workload, list(self.instances.values()), self.action)
        if self.gone and result.state not in FINISHED:
            return result._replace(
                state="gone", code=FAILED, cause="it is not kept any more, and how it ended is not known"
            )
        return result


def result_of(workload: "Workload", instances: Sequence["Instance"], action: str = "") -> Result:
    """How an action stands, by its workload and its elements."""
    ordered = sorted(instances, key=lambda each: each.index)
    bad = [each for each in ordered if each.is_over and each.state != "succeeded"]
    first = bad[0] if bad else ordered[0] if ordered else None
    state = workload.state
    if not workload.is_over and len(ordered) == workload.count and all(each.is_over for each in ordered):
        state = bad[0].state if bad else "succeeded"  # it was not kept: its elements are all that is known
    exit_code = first.exit_code if first is not None and first.is_over else None
    starts = [each.started_ms for each in ordered if each.started_ms]
    ends = [each.finished_ms for each in ordered if each.finished_ms]
    return Result(
        action=action or workload.labels.get(ACTION, workload.name),
        state=state,
        exit_code=exit_code,
        code=_code(state, bad[0] if bad else None),
        started_ms=min(starts, default=None),
        finished_ms=workload.finished_ms or (max(ends, default=None) if state in FINISHED else None),
        node=first.node if first is not None else "",
        cause=(first.cause if first is not None else "") or workload.cause,
        elements=workload.count,
    )


def exit_code(results: Sequence[Result]) -> int:
    """The code of the action that failed first. What was cancelled is the consequence, so it comes last."""
    bad = [each for each in results if each.state != "succeeded"]
    bad.sort(key=lambda each: (each.state == "cancelled", each.finished_ms or 0))
    return bad[0].code if bad else 0


def rows_of(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The table at the end: a line for each action."""
    return [
        (
            each.action if each.elements == 1 else f"{each.action} ({each.elements})",
            each.state,
            took(each.started_ms, each.finished_ms),
            "-" if each.exit_code is None else str(each.exit_code),
            each.node or "-",
            each.cause if each.state != "succeeded" else "",
        )
        for each in results
    ]


def _needs(project: str, document: Mapping[str, Any]) -> list[str]:
    """The workloads that are over before this one starts."""
    blocks = [each if isinstance(each, dict) else {"workload": each} for each in document.get("after", [])]
    return [f"{project}/{each['workload']}" for each in blocks if each.get("when") != "started"]


def _code(state: str, bad: "Instance | None") -> int:
    if state == "succeeded":
        return 0
    if state == "cancelled" or bad is None:
        return FAILED
    return exit_code_of(Ending(bad.state, bad.attempt, bad.cause, bad.exit_code, bad.signal))
