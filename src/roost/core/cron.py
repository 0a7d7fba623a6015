"""Ticks of schedules: each makes a run, a workload of its own that is named by the minute.

A tick is dealt with once: the schedule remembers the last one in the same commit that makes its run. What a schedule
could not do is told in its cause: ticks that were missed, or skipped because the run before is not over.
"""

from typing import NamedTuple

from roost.core.after import wait
from roost.core.effects import Step
from roost.core.requests import cancel_all, submit
from roost.core.state import State
from roost.core.ticks import join_schedule, watch_schedule, when_words
from roost.model.document import check_document, decode_document, encode_document
from roost.model.errors import Conflict, NotFound, RoostError
from roost.model.events import RunNow, Submit, Wanted
from roost.model.limits import AFTER_MAX, TEXT_LENGTH_MAX
from roost.model.schedule import local_time, ticks_between
from roost.model.workload import After, Schedule, Workload

RUNS_AT_ONCE_MAX = 100  # made in one step: some hundred kilobytes to commit; the rest is made in the next one
ON_TIME_MS = 60_000  # a tick that is seen within a minute was not missed: no line of cron is finer than that
LIVE_RUNS_MAX = AFTER_MAX  # of one schedule at a time: each waits for all before it
SAME_MINUTE_MAX = 9  # runs of one schedule that are named by the same minute


class Made(NamedTuple):
    """What became of a tick: a run, or words why there is none."""

    run: Workload | None
    words: str = ""


def tick(state: State, out: Step, key: str, now: int) -> None:
    """A schedule is due: make its run. After an outage also the last of those that were missed, as it says."""
    workload = state.workloads.get(key)
    if workload is None or workload.finished_ms or workload.rest or workload.policy.schedule is None:
        return
    due, told = _due(workload, workload.policy.schedule, now)
    if len(due) > RUNS_AT_ONCE_MAX - out.runs_made and out.runs_made:
        state.at(now + 1, "cron", key)  # not now: whatever is due now is looked at until nothing is
        return
    if not due and not told:  # an earlier line of it was due now; for the present one there is another timer
        return
    for moment in due:
        made = _run(state, out, workload, moment, now)
        workload.tick_ms = moment
        out.runs_made += 1
        if made.words:
            told.append(f"{when_words(workload.policy.schedule, moment)} was skipped: {made.words}")
    workload.tick_ms = max(workload.tick_ms, now - ON_TIME_MS)  # those that are not made up for are done with, too
    workload.cause = "; ".join(told)[:TEXT_LENGTH_MAX]
    state.touch_workload(workload)
    watch_schedule(state, workload)


def run_now(state: State, out: Step, event: RunNow, now: int) -> None:
    """Somebody wants a run besides the ticks. Where the run before is not over, the schedule's own rule holds."""
    workload = state.workloads.get(event.workload)
    if workload is None:
        out.reply(event.request, NotFound(f"there is no workload {event.workload}"))
    elif workload.policy.schedule is None:
        words = f"{event.workload} has no schedule; `retry` runs it again"
        out.reply(event.request, Conflict(words, code="no_schedule"))
    elif workload.rest or workload.finished_ms:
        out.reply(event.request, Conflict(f"{event.workload} was ended: {workload.cause}", code="no_schedule"))
    else:
        made = _run(state, out, workload, now, now)
        if made.run is not None:
            out.reply(event.request, made.run.key)
        else:
            out.reply(event.request, Conflict(f"no run was made: {made.words}", code="run_refused"))


def live_runs(state: State, key: str) -> list[Workload]:
    """The runs of a schedule that are not over, the oldest first."""
    runs = [state.workloads[each] for each in state.runs.get(key, ())]
    return sorted((each for each in runs if not each.finished_ms), key=lambda each: each.serial)


def _due(workload: Workload, schedule: Schedule, now: int) -> tuple[list[int], list[str]]:
    """The ticks to be dealt with now, and what is to be told of those that were missed for good."""
    late_ms = max(now - ON_TIME_MS, workload.tick_ms)
    on_time, _ = ticks_between(schedule, late_ms, now, 2)
    missed, more = ticks_between(schedule, workload.tick_ms, late_ms, schedule.catch_up + 1)
    made_up = missed[max(0, len(missed) - schedule.catch_up) :] if schedule.catch_up else []
    left_out = missed[: len(missed) - len(made_up)]
    if not left_out:
        return made_up + on_time, []
    last = when_words(schedule, left_out[-1])
    return made_up + on_time, [f"missed up to {last}" if more or len(left_out) > 1 else f"missed {last}"]


def _run(state: State, out: Step, workload: Workload, moment: int, now: int) -> Made:
    """Make the run of a moment, if the runs before it let it."""
    schedule = workload.policy.schedule
    assert schedule is not None, f"{workload.key} has no schedule"
    before = live_runs(state, workload.key)
    if before and schedule.overlap == "skip":
        return Made(None, f"{before[-1].key} is not over")
    if len(before) >= LIVE_RUNS_MAX:
        return Made(None, f"{len(before)} runs are not over")
    name, words = _free_name(state, workload, schedule, moment)
    if not name:
        return Made(None, words)
    try:
        wanted = _wanted(workload, name)
    except RoostError as error:
        return Made(None, str(error))
    asked = Step()  # nothing but the answer goes there: the name is free, so nobody has to be forgotten for it
    submit(state, asked, Submit(0, (wanted,)), now)
    answer = asked.replies[0].value
    if isinstance(answer, RoostError):
        return Made(None, str(answer))
    run = state.workloads[f"{wanted.project}/{name}"]
    run.parent, run.tick_ms = workload.key, moment
    join_schedule(state, run)
    if before and schedule.overlap in ("wait", "replace"):
        named = {each.workload for each in run.waits}
        wait(state, run, run.waits + tuple(After(each.key, "finished") for each in before if each.key not in named))
    if schedule.overlap == "replace":
        for each in before:
            cancel_all(state, out, each, f"replaced by {run.key}", now)
    state.touch_workload(run)
    return Made(run)


def _free_name(state: State, workload: Workload, schedule: Schedule, moment: int) -> tuple[str, str]:
    """NAME-YYYYMMDDHHMM by the clocks of its zone; with -2 and so on for a minute that comes again, or was used."""
    local = local_time(schedule, moment)
    stem = f"{workload.name}-{local:%Y%m%d%H%M}"
    for number in range(1 + local.fold, SAME_MINUTE_MAX + 1):
        name = stem if number == 1 else f"{stem}-{number}"
        known = state.workloads.get(f"{workload.project}/{name}")
        if known is None:
            return name, ""
        if known.parent != workload.key:
            return "", f"the name {known.key} is in use by something else"
    return "", f"there are {SAME_MINUTE_MAX} runs of that minute already"


def _wanted(workload: Workload, name: str) -> Wanted:
    """A run as it would be submitted: the same document without the schedule."""
    document = decode_document(workload.document)
    document.schedule, document.name = None, name
    policy = check_document(document)
    return Wanted(workload.project, name, workload.count, policy, encode_document(document), workload.values)
