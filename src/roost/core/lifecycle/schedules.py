"""Ticks of schedules: each makes a run, a workload of its own that is named by the minute.

A tick is dealt with once: the schedule remembers the last one in the same commit that makes its run. Its reason lists
ticks that were missed, or skipped because the run before has not finished.
"""

import msgspec

from roost.core.dependencies.release import wait
from roost.core.lifecycle.commands import submit
from roost.core.lifecycle.stop import cancel_all
from roost.core.state.dependencies import link
from roost.core.state.outcome import Step, at_once
from roost.core.state.state import State
from roost.core.watch import watch_schedule
from roost.model.errors import Conflict, RoostError
from roost.model.events import RunNow, Submit, WorkloadSpec
from roost.model.keys import workload_key
from roost.model.limits import AFTER_MAX, TEXT_LENGTH_MAX
from roost.model.reasons.attempts import RunReplaced, TickSkipped, TicksSkipped
from roost.model.reasons.subjects import WorkloadRef
from roost.model.records.workload import After, Schedule, Workload
from roost.model.spec.cron import local_time, ticks_between
from roost.model.spec.document import check_document, decode_document, encode_document
from roost.model.states import Milestone, Overlap

RUN_UNITS = 30  # of work to make a run: 270 us
ON_TIME_MS = 60_000  # a tick that is seen within a minute was not missed: no line of cron is finer than that
LIVE_RUNS_MAX = AFTER_MAX  # of one schedule at a time: each waits for all before it
SKIPPED_MAX = 3  # skipped ticks that are named, the last ones
SAME_MINUTE_MAX = 9  # runs of one schedule that are named by the same minute


def tick(state: State, out: Step, key: str, now: int) -> None:
    """A schedule is due: make its run. After an outage also the last missed ones, as `catch_up` allows."""
    workload = state.workloads.get(key)
    if workload is None or workload.finished_ms or workload.unstarted_end_state or workload.policy.schedule is None:
        return
    due, missed = _due(workload, workload.policy.schedule, now)
    if not due and missed is None:  # an earlier line of it was due now; for the present one there is another timer
        return
    skipped: list[TickSkipped] = []
    for moment in due:
        made = _run(state, out, workload, moment, now)
        workload.tick_ms = moment
        out.work += RUN_UNITS
        if isinstance(made, TickSkipped):
            skipped.append(made)
    workload.tick_ms = max(workload.tick_ms, now - ON_TIME_MS)  # those beyond `catch_up` are skipped
    workload.reason = None
    if missed is not None or skipped:
        about = missed or TicksSkipped(workload.policy.schedule.zone)
        workload.reason = msgspec.structs.replace(about, skipped=tuple(skipped[-SKIPPED_MAX:]))
    state.touch_workload(workload)
    watch_schedule(state, workload)


def run_now(state: State, out: Step, event: RunNow, now: int) -> None:
    """Make a run besides the ticks. If an earlier run is live, the schedule's `overlap` decides."""
    workload = state.known_workload(event.workload)
    if workload.policy.schedule is None:
        raise Conflict(f"{event.workload} has no schedule; `retry` runs it again", code="no_schedule")
    if workload.unstarted_end_state or workload.finished_ms:
        raise Conflict(f"{event.workload} was ended", code="no_schedule", reason=workload.reason)
    made = _run(state, out, workload, now, now)
    if isinstance(made, TickSkipped):
        reason = TicksSkipped(workload.policy.schedule.zone, skipped=(made,))
        raise Conflict("no run was made", code="run_refused", reason=reason)
    out.reply(event.request, made.key)


def live_runs(state: State, key: str) -> list[Workload]:
    runs = [state.workloads[run] for run in state.runs.get(key, ())]
    return sorted((workload for workload in runs if not workload.finished_ms), key=lambda run: run.serial)


def _due(workload: Workload, schedule: Schedule, now: int) -> tuple[list[int], TicksSkipped | None]:
    late_ms = max(now - ON_TIME_MS, workload.tick_ms)
    on_time, _ = ticks_between(schedule, late_ms, now, 2)
    missed, more = ticks_between(schedule, workload.tick_ms, late_ms, schedule.catch_up + 1)
    made_up = missed[max(0, len(missed) - schedule.catch_up) :] if schedule.catch_up else []
    left_out = missed[: len(missed) - len(made_up)]
    if not left_out:
        return made_up + on_time, None
    return made_up + on_time, TicksSkipped(schedule.zone, left_out[-1], not more and len(left_out) == 1)


def _run(state: State, out: Step, workload: Workload, moment: int, now: int) -> Workload | TickSkipped:
    schedule = workload.policy.schedule
    assert schedule is not None, f"{workload.key} has no schedule"
    before = live_runs(state, workload.key)
    if before and schedule.overlap == Overlap.SKIP:
        return TickSkipped(moment, "run_active", WorkloadRef.of(before[-1].key))
    if len(before) >= LIVE_RUNS_MAX:
        return TickSkipped(moment, "runs_active", count=len(before))
    name = _free_name(state, workload, schedule, moment)
    if isinstance(name, TickSkipped):
        return name
    try:
        wanted = _wanted(workload, name)
        at_once(submit(state, Step(), Submit(0, (wanted,)), now))  # the name is free: there is no effect but the reply
    except RoostError as error:
        return TickSkipped(moment, "refused", error=str(error)[:TEXT_LENGTH_MAX])
    run = state.workloads[wanted.key]
    run.parent, run.tick_ms = workload.key, moment
    link(state.runs, run.parent, run.key)
    if before and schedule.overlap in (Overlap.WAIT, Overlap.REPLACE):
        named = {condition.workload for condition in run.pending_conditions}
        others = tuple(After(other.key, Milestone.FINISHED) for other in before if other.key not in named)
        wait(state, run, run.pending_conditions + others)
    if schedule.overlap == Overlap.REPLACE:
        for other in before:
            cancel_all(state, out, other, RunReplaced(WorkloadRef.of(run.key)), now)
    state.touch_workload(run)
    return run


def _free_name(state: State, workload: Workload, schedule: Schedule, moment: int) -> str | TickSkipped:
    """NAME-YYYYMMDDHHMM by the clocks of its zone; with -2 and so on for a minute that comes again, or was used."""
    local = local_time(schedule, moment)
    stem = f"{workload.name}-{local:%Y%m%d%H%M}"
    for number in range(1 + local.fold, SAME_MINUTE_MAX + 1):
        name = stem if number == 1 else f"{stem}-{number}"
        known = state.workloads.get(workload_key(workload.project, name))
        if known is None:
            return name
        if known.parent != workload.key:
            return TickSkipped(moment, "name_in_use", WorkloadRef.of(known.key))
    return TickSkipped(moment, "minute_used", count=SAME_MINUTE_MAX)


def _wanted(workload: Workload, name: str) -> WorkloadSpec:
    document = decode_document(workload.document)
    document.schedule, document.name = None, name
    policy = msgspec.structs.replace(
        check_document(document), inputs=workload.policy.inputs
    )  # their files were found at submission
    return WorkloadSpec(workload.project, name, workload.count, policy, encode_document(document), workload.values)
