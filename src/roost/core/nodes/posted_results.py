"""Results that a client posts: of an attempt that goes on, or how it ended outside of its agent."""

from roost.core.lifecycle.restarts import ended
from roost.core.nodes.flaky import record_end
from roost.core.state.allocation import Allocation, allocation_of
from roost.core.state.outcome import Step
from roost.core.state.results import room_problem, set_result
from roost.core.state.state import State
from roost.core.transitions import move
from roost.model import events as happened
from roost.model.errors import Conflict, NotFound
from roost.model.keys import instance_key
from roost.model.reasons import attempts
from roost.model.records.instance import Instance
from roost.model.spec.document import outputs_in
from roost.model.states import InstanceState


def result_posted(state: State, out: Step, event: happened.ResultPosted, now: int) -> None:
    """A client posts the result of an attempt, or how it ended; it must know the token of the running attempt."""
    key = instance_key(event.workload, event.index)
    instance = state.instances.get(key)
    if instance is None:
        raise NotFound(f"nothing has run as {key}")
    if instance.token != event.token:
        message = f"{key} is at attempt {instance.attempt}, whose token is another one: nothing was changed"
        raise Conflict(message, code="stale_token", path="token")
    running = instance.state in (InstanceState.STARTING, InstanceState.RUNNING, InstanceState.STOPPING)
    if not running or instance.prefilled_behind:
        message = f"{key} is {instance.state}: only what runs can get a result"
        raise Conflict(message, code="not_running", path="token")
    if event.code is not None and outputs_in(state.spec_of(instance).document):
        message = f"the outputs of {key} are collected when its process ends: post a result without a code"
        raise Conflict(message, code="has_outputs", path="code")
    if event.result is not None:
        full = room_problem(state, instance, event.result)
        if full is not None:
            reason = attempts.not_kept(full)
            raise Conflict("nothing was changed", code="no_room_for_result", path="data", reason=reason)
        set_result(state, instance, event.result)
        state.touch_instance(instance)
    if event.code is not None:
        _end_with_result(state, out, instance, event, event.code, now)
    out.reply(event.request, event.workload)


def _end_with_result(
    state: State, out: Step, instance: Instance, event: happened.ResultPosted, code: int, now: int
) -> None:  # fmt: skip
    spec, node, token = state.spec_of(instance), instance.node, instance.token
    held = Allocation()  # an attempt that is prefilled behind it gets its room, and begins once it has ended
    if token not in state.prefilled:
        held = allocation_of(spec, instance)
    if instance.state == InstanceState.STARTING:
        instance.started_ms = now
        move(state, out, instance, InstanceState.RUNNING, attempts.PROCESS_STARTED, now)
    instance.exit_code, instance.signal = code, None
    if instance.state == InstanceState.STOPPING and not instance.requeue_after_stop:
        assert instance.reason is not None, f"{instance.key} is being stopped for no reason"
        move(state, out, instance, InstanceState.CANCELLED, instance.reason, now)
    else:
        lease_ms = state.lease_ms + state.settings.lease_margin_ms
        lives_ms = spec.policy.grace_ms + max(lease_ms, state.liveness[node].lease_until_ms - now)
        ending = InstanceState.FAILED if code else InstanceState.SUCCEEDED
        reason = attempts.ResultReported(code, event.cause, out.principal)
        record_end(state, instance, ending, reason, now)
        ended(state, out, instance, ending, reason, now, lives_ms if spec.policy.fenced else 0)
    state.liveness[node].orphans[token] = held
    state.fleet.take(node, held)
