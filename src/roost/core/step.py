"""step(state, events, now): every decision of Roost. Pure: the same input gives the same output.

One pass: events, timers (expire), services, dependencies, placement, retention (sweep). The state is changed in place;
a caller that cannot make the changes durable discards the state and loads it again.

A step can pause: `begin`, `handle` each event, `conclude`. The state must not be read between, nor changed by others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from msgspec.structs import replace

from roost.core import caches, records
from roost.core.dependencies.release import approve, release_dependents
from roost.core.explain.blockers import blockers_of
from roost.core.explain.plan import PASSES_MAX, check_plan, plan_of
from roost.core.lifecycle import commands, power, retention, schedules, update
from roost.core.lifecycle.companions import stop_companions
from roost.core.lifecycle.restarts import lose_more
from roost.core.lifecycle.stop import cancel_more
from roost.core.nodes import drain, maintenance, pools, posted_results, reports
from roost.core.orders import hand_out
from roost.core.queue import projects
from roost.core.queue.place import place
from roost.core.services import rollout
from roost.core.services.reconcile import reconcile
from roost.core.state.outcome import Paced, Step, at_once
from roost.core.state.state import State, awaits_agents, in_maintenance, overlay
from roost.core.state.weight import weight
from roost.core.timers import expire, sweep_timers
from roost.core.transitions import finish_if_over, move, new_transitions
from roost.model import events as happened
from roost.model.errors import Conflict, RoostError
from roost.model.records.plan import Plan
from roost.model.states import InstanceState

REJECTION_UNITS = 20  # of work: every filter says how many nodes it rejects


def step(state: State, events: Sequence[happened.Event], now: int) -> Step:
    """Handle events at a time. Returns the changes, and the effects once they are durable."""
    out = begin(state, now)
    for event in events:
        at_once(handle(state, out, event))
    at_once(conclude(state, out))
    return out


def begin(state: State, now: int) -> Step:
    state.now_ms = max(now, state.now_ms)
    state.sent_lease_ms = state.lease_ms
    return Step()


def handle(state: State, out: Step, event: happened.Event) -> Paced[None]:
    out.work += weight(event)
    return _handle(state, out, event, state.now_ms)


def conclude(state: State, out: Step) -> Paced[None]:
    """What follows from the events and from the time."""
    now = state.now_ms
    expire(state, out, now)
    cancel_more(state, out, now)
    lose_more(state, out, now)
    yield out.work
    reconcile(state, out, now)
    release_dependents(state, out, now)
    stop_companions(state, out, now)
    more = yield from place(state, out, now)
    if not more:
        yield from reject_pending(state, out, now)
    yield from retention.sweep(state, out)
    sweep_timers(state)
    state.grow_lease()
    yield from hand_out(state, out)
    out.transitions += yield from new_transitions(state)
    out.changes = yield from state.flush()
    if out.changes:
        state.revision += 1
    more = more or bool(state.dependency_changes) or (bool(state.dirty_services) and not in_maintenance(state))
    more = more or bool(state.cancelling or state.losing or state.ended_owners)
    out.wake_at_ms = now if more else state.timers[0][0] if state.timers else None


def _handle(state: State, out: Step, event: happened.Event, now: int) -> Paced[None]:
    match event:
        case happened.ReportsReceived():
            yield from reports.reports_received(state, out, event, now)
        case happened.HeartbeatsReceived():
            reports.heartbeats_received(state, out, event, now)
        case happened.ReadingPaused():
            reports.reading_paused(state, out, event, now)
        case happened.AttributedRequest():
            yield from _attributed(state, out, event, now)
        case happened.NodeConnected():
            with _refusals(out, event.request):
                yield from reports.node_connected(state, out, event, now)
        case happened.RestoreCache():
            with _refusals(out, event.request):
                caches.restore(state, out, event, now)
        case happened.SaveCache():
            with _refusals(out, event.request):
                caches.save(state, out, event, now)
        case happened.NodeDisconnected():
            reports.node_disconnected(state, out, event, now)
        case _:
            with _refusals(out, event.request):
                yield from _handle_request(state, out, event, now)


@contextmanager
def _refusals(out: Step, request: int) -> Iterator[None]:
    """Answer a request with the error that its handler raises. Handlers raise before they change anything."""
    try:
        yield
    except RoostError as error:
        out.reply(request, error.with_traceback(None))


def _handle_request(state: State, out: Step, event: happened.Request, now: int) -> Paced[None]:
    match event:
        case happened.Submit():
            yield from _submit(state, out, event, now)
        case happened.Cancel():
            yield from commands.cancel(state, out, event, now)
        case happened.Retry():
            yield from commands.retry(state, out, event, now)
        case happened.Delete():
            yield from retention.delete(state, out, event)
        case happened.Approve():
            approve(state, out, event, now)
        case happened.ResultPosted():
            posted_results.result_posted(state, out, event, now)
        case happened.RunNow():
            schedules.run_now(state, out, event, now)
        case happened.Promote():
            rollout.promote(state, out, event, now)
        case happened.Rollback():
            update.rollback(state, out, event, now)
        case happened.SetPower():
            yield from power.set_power(state, out, event, now)
        case _:
            _handle_operator_request(state, out, event, now)


def _handle_operator_request(state: State, out: Step, event: happened.OperatorRequest, now: int) -> None:
    match event:
        case happened.Drain():
            drain.drain(state, out, event, now)
        case happened.Cordon():
            drain.cordon(state, out, event, now)
        case happened.Maintain():
            maintenance.maintain(state, out, event, now)
        case happened.Uncordon():
            drain.uncordon(state, out, event, now)
        case happened.Remove():
            drain.remove(state, out, event, now)
        case happened.SetProject():
            projects.set_project(state, out, event, now)
        case happened.SetPool():
            pools.set_pool(state, out, event, now)
        case happened.MarkPool():
            pools.mark_pool(state, out, event, now)
        case happened.Reserve():
            projects.reserve(state, out, event, now)
        case happened.Unset():
            projects.unset(state, out, event, now)
        case happened.PutRecords():
            records.put_records(state, out, event, now)
        case happened.DeleteCaches():
            caches.delete(state, out, event)
        case _:
            assert_never(event)


def _submit(state: State, out: Step, event: happened.Submit, now: int) -> Paced[None]:
    """Add workloads. A plan is checked on a copy and placed at once: exactly that happens, or nothing."""
    if event.expected is None:
        yield from commands.submit(state, out, event, now)
        return
    expire(state, out, now)
    release_dependents(state, out, now)
    if (yield from _place_all(state, out, now)):
        message = "more waits to be placed than one step may do; try again in a moment"
        raise Conflict(message, code="plan_stale")
    try:
        plan: Plan | RoostError = yield from _planned(state, event, now)
    except RoostError as error:
        plan = error
    check_plan(event.expected, plan)
    yield from commands.submit(state, out, event, now)
    release_dependents(state, out, now)
    if not (yield from _place_all(state, out, now)):
        yield from reject_pending(state, out, now)


def make_plan(state: State, submit: happened.Submit, now: int) -> Plan:
    """What a submission would do now. Raises what it would be refused with. The state stays as it is."""
    return at_once(_planned(state, submit, now))


def _planned(state: State, submit: happened.Submit, now: int) -> Paced[Plan]:
    copy = overlay(state)
    yield copy.settings.step_units
    yield from _pass(copy, (), now)  # what would happen anyway is not of the plan's doing
    passes = [(yield from _pass(copy, (replace(submit, expected=None),), now))]
    for reply in passes[0].replies:
        if isinstance(reply.value, RoostError):
            raise reply.value
    while passes[-1].wake_at_ms == copy.now_ms and len(passes) < PASSES_MAX:
        passes.append((yield from _pass(copy, (), now)))
    return (yield from plan_of(state, copy, submit, passes))


def _pass(copy: State, events: Sequence[happened.Event], now: int) -> Paced[Step]:
    """A step on a copy. It may pause there, and after it."""
    out = begin(copy, now)
    for event in events:
        yield from handle(copy, out, event)
    yield from conclude(copy, out)
    yield copy.settings.step_units
    return out


def _attributed(state: State, out: Step, event: happened.AttributedRequest, now: int) -> Paced[None]:
    before = len(out.replies)
    out.principal = event.by.who
    detail = records.detail_of(state, event.event)
    with _refusals(out, event.event.request):
        yield from _handle_request(state, out, event.event, now)
    out.principal = ""
    if not any(isinstance(reply.value, RoostError) for reply in out.replies[before:]):
        records.note(state, event.by, event.event, now, detail)


def _place_all(state: State, out: Step, now: int) -> Paced[bool]:
    """Returns True if the passes that a plan may take were not enough."""
    for _ in range(PASSES_MAX):
        if not (yield from place(state, out, now)):
            return False
    return True


def reject_pending(state: State, out: Step, now: int) -> Paced[None]:
    """Workloads that do not queue end here if not all of their instances were placed."""
    if awaits_agents(state):
        return
    for key in state.rejectable:
        yield REJECTION_UNITS
        instance = state.instances.get(key)  # released by itself; names of workloads have no dots
        if instance is not None and instance.state == InstanceState.QUEUED and not instance.attempt:
            reason = blockers_of(state, state.spec_of(instance)).reason()
            move(state, out, instance, InstanceState.REJECTED, reason, now)
        workload = state.workloads.get(key)
        if workload is not None and state.has_unstarted(workload):
            workload.unstarted_end_state = InstanceState.REJECTED
            workload.reason = blockers_of(state, workload).reason()
            state.touch_workload(workload)
            finish_if_over(state, workload, now)
    state.rejectable.clear()
