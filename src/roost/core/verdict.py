"""Whether what somebody waits for has come: yes, not yet, or never any more, with words for each."""

from typing import NamedTuple

from roost.core.state import ALL, State
from roost.model.instance import Instance
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.states import FINISHED
from roost.model.workload import After, Workload

WORST_FIRST = ("failed", "timed_out", "rejected", "expired", "cancelled")
LOOKED_AT_MAX = 10_000  # instances among which the one that failed is looked for: some milliseconds
TOLD_MAX = 3  # conditions that are told of somebody who waits for many
ENDED = {
    "succeeded": "it succeeded",
    "failed": "it failed",
    "timed_out": "it ran past its timeout",
    "rejected": "it was rejected",
    "expired": "it expired",
    "cancelled": "it was cancelled",
}
WANTED = {"succeeded": "to succeed", "finished": "to finish", "started": "to start"}


class Verdict(NamedTuple):
    """What is to be said of a condition."""

    holds: bool = False
    never: str = ""  # why it cannot hold any more, in words

    @property
    def is_open(self) -> bool:
        """Whether it is still to be seen."""
        return not self.holds and not self.never


HOLDS = Verdict(holds=True)
OPEN = Verdict()


def judge(state: State, condition: After, indexes: dict[int, None] | None = None) -> Verdict:
    """A condition on all of a workload. `indexes`: the instances of which something is new; None: look at all."""
    other = state.workloads.get(condition.workload)
    if other is None:  # whatever is forgotten was over
        return HOLDS if condition.when == "finished" else Verdict(never="it is not known any more")
    if condition.when == "started":
        if _has_started(state, other, indexes):
            return HOLDS
        return Verdict(never=ending_words(state, other)) if other.finished_ms else OPEN
    if not other.finished_ms:
        return OPEN
    if condition.when == "finished":
        return HOLDS
    if other.adopted and sum(state.progress_of(other).counts.values()) < other.count:
        return Verdict(never="not all of it is known any more")  # nobody spoke of the rest, which may have failed
    return HOLDS if ending_of(state, other) == "succeeded" else Verdict(never=ending_words(state, other))


def judge_element(state: State, condition: After, index: int) -> Verdict:
    """A condition on one element of an array."""
    other = state.workloads.get(condition.workload)
    if other is None:
        return HOLDS if condition.when == "finished" else Verdict(never="it is not known any more")
    instance = state.instances.get(f"{other.key}.{index}")
    if instance is not None:
        now, cause = instance.state, instance.cause
    elif index < state.begun(other):
        now, cause = ("lost" if not other.finished_ms else "failed"), "nothing is known of it any more"
    else:
        now, cause = (other.rest if other.finished_ms else "queued"), other.cause
    if condition.when == "started" and instance is not None and has_run(instance):
        return HOLDS
    if now not in FINISHED:
        return OPEN
    if condition.when == "finished" or (condition.when == "succeeded" and now == "succeeded"):
        return HOLDS
    return Verdict(never=_ended(now, cause))


def has_run(instance: Instance) -> bool:
    """Whether an attempt of it ever began to run."""
    return instance.started_ms > 0 or any(line.state == "running" for line in instance.story)


def ending_of(state: State, workload: Workload) -> str:
    """The state in which a workload ended: the worst of its instances."""
    progress = state.progress.get(workload.key)
    counts = progress.counts if progress is not None else {}
    if workload.rest and (progress is None or progress.begun < workload.count):
        counts = counts | {workload.rest: 1}
    return next((each for each in WORST_FIRST if counts.get(each)), "succeeded")


def ending_words(state: State, workload: Workload) -> str:
    """How a workload ended, and why: `it failed (exit code 1)`."""
    ending = ending_of(state, workload)
    if workload.rest == ending and workload.cause:
        return _ended(ending, workload.cause)
    for index in range(min(state.begun(workload), LOOKED_AT_MAX)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.state == ending:
            return _ended(ending, instance.cause if workload.count == 1 else f"{index}: {instance.cause}")
    return _ended(ending, workload.cause)


def waiting_words(state: State, workload: Workload, index: int | None = None) -> str:
    """What a workload, or one of its elements, waits for: `waits for default/build to succeed (it is running)`."""
    told = [_condition_words(state, each, index) for each in workload.waits if _is_open(state, each, index)]
    return "waits for " + _listed(told) if told else "is about to be released"


def cause_of(workload: Workload) -> str:
    """Why a workload is as it is, without a look at others: of one that waits for them, whom it waits for."""
    if workload.cause or not workload.waits:
        return workload.cause
    return "waits for " + _listed([f"{each.workload} {WANTED[each.when]}" for each in workload.waits])


def never_words(key: str, words: str) -> str:
    """Why somebody does not run: `after default/build: it failed (exit code 1)`."""
    return f"after {key}: {words}"[:TEXT_LENGTH_MAX]


def _has_started(state: State, workload: Workload, indexes: dict[int, None] | None) -> bool:
    """A job: one of its instances began to run, however it ended. Others: one of them is ready to be used."""
    looked_at = range(state.begun(workload)) if indexes is None or ALL in indexes else indexes
    for index in looked_at:
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is None:
            continue
        if has_run(instance) if workload.policy.kind == "job" else instance.serving_ms > 0:
            return True
    return False


def _is_open(state: State, condition: After, index: int | None) -> bool:
    if condition.each and index is not None:
        return judge_element(state, condition, index).is_open
    return judge(state, condition).is_open


def _condition_words(state: State, condition: After, index: int | None) -> str:
    other = state.workloads.get(condition.workload)
    element = f".{index}" if condition.each and index is not None else ""
    what = "to be ready" if _is_service(other) else WANTED[condition.when]
    return f"{condition.workload}{element} {what} ({_now_words(state, other, index if element else None)})"


def _is_service(workload: Workload | None) -> bool:
    return workload is not None and workload.policy.kind != "job"


def _now_words(state: State, other: Workload | None, index: int | None) -> str:
    if other is None:
        return "it is not known any more"
    if index is not None:
        instance = state.instances.get(f"{other.key}.{index}")
        return f"it is {instance.state if instance is not None else 'queued'}"
    counts = state.progress[other.key].counts if other.key in state.progress else {}
    if other.waits:
        return "it waits itself"
    if any(counts.get(each) for each in ("running", "starting", "placed")):
        return "it is running"
    return "it is stopping" if counts.get("stopping") else "it is queued"


def _listed(told: list[str]) -> str:
    more = f" and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
    return ", ".join(told[:TOLD_MAX]) + more


def _ended(ending: str, cause: str) -> str:
    return f"{ENDED[ending]} ({cause})" if cause else ENDED[ending]
