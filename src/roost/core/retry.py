"""What happens after an attempt: it is over, or it is tried again, by cause and by policy."""

from roost.core.effects import Step
from roost.core.flaky import noticed
from roost.core.gang import members
from roost.core.move import move, stop
from roost.core.operate import frozen
from roost.core.order import start_by_ms
from roost.core.rollout import failed_once
from roost.core.state import State
from roost.model.instance import Instance
from roost.model.states import HOLDING
from roost.model.units import show_duration
from roost.model.workload import DEFAULT_RESTART, Workload

CRASH_LOOP = 5  # ends in a row, none of them after a steady run
STEADY_MS = 60_000  # a service that ran this long has recovered: the next pause is the first again


def ended(
    state: State, out: Step, instance: Instance, ending: str, cause: str, now: int, delay_ms: int = 0
) -> None:  # fmt: skip
    """An attempt ended by itself: `ending` is succeeded, failed or timed_out. Another one waits for `delay_ms`."""
    noticed(state, instance, ending, now)
    workload = state.spec_of(instance)
    policy = workload.policy
    if policy.kind == "service":
        _restart(state, out, instance, ending, cause, now, delay_ms)
    elif ending != "succeeded" and _tries_again(workload, instance, ending, now):
        instance.failures += 1
        words = f"{cause}; attempt {instance.failures + 1} of {policy.retries_max + 1}"
        requeue(state, out, instance, words, now, delay_ms)
    else:
        move(state, out, instance, ending, cause, now)


def lost(state: State, out: Step, instance: Instance, cause: str, now: int) -> None:
    """An attempt ended with its node, or nobody knows how."""
    workload = state.spec_of(instance)
    policy = workload.policy
    cancelled = instance.state == "stopping" and not instance.moving
    move(state, out, instance, "lost", cause, now)
    instance.losses += 1
    if cancelled:
        move(state, out, instance, "cancelled", cause, now)
    elif policy.when_lost == "fail":
        move(state, out, instance, "failed", f"{cause}; it is not to be run elsewhere", now)
    elif policy.kind == "job" and ("lost" not in policy.retry_on or instance.losses > policy.retries_max):
        move(state, out, instance, "failed", f"{cause}; no retries left ({policy.retries_max})", now)
    else:
        requeue(state, out, instance, cause, now)


def requeue(state: State, out: Step, instance: Instance, cause: str, now: int, delay_ms: int = 0) -> None:
    """Let an instance wait for another attempt, at once or after a pause."""
    workload = state.workloads[instance.workload]
    if workload.adopted:  # an agent that has not spoken yet may be running a later attempt
        delay_ms = max(delay_ms, state.settled_ms() - now)
    move(state, out, instance, "queued", cause, now)
    if workload.policy.kind != "service":
        instance.version = workload.version  # it starts again as it is wanted now
    elif instance.version != workload.version:
        state.rouse(workload.key)  # `reconcile` decides which it is to be
    spec = state.spec_of(instance)
    if spec.policy.gang and not frozen(state):
        regroup(state, out, spec, instance, now)
    instance.node = ""
    instance.finished_ms = 0
    instance.ready_ms = now + delay_ms if delay_ms else 0
    if too_late(spec, now):
        move(state, out, instance, "expired", lateness(spec, now), now)
    elif delay_ms:
        state.at(instance.ready_ms, "ready", instance.key)
    else:
        state.queue.add_again(spec, instance.index)


def may_still_run(state: State, instance: Instance) -> bool:
    """What is kept on a node has no lease: cancelled while the node was out of touch, nobody knows when it stops."""
    policy, node = state.spec_of(instance).policy, state.nodes.get(instance.node)
    if instance.state != "cancelled" or node is None or not policy.exclusive or policy.when_lost != "keep":
        return False
    unconfirmed = instance.exit_code is None and instance.signal is None and instance.attempt > 0
    return unconfirmed and (node.status == "lost" or instance.token in state.contacts[node.name].ghosts)


def regroup(state: State, out: Step, workload: Workload, instance: Instance, now: int) -> None:
    """Who starts again starts with all of its gang: the others are stopped for that."""
    for member in members(state, workload.policy.gang):
        for index in range(state.begun(member)):
            other = state.instances.get(f"{member.key}.{index}")
            if other is not None and other.state in HOLDING and other.state != "stopping":
                stop(state, out, other, f"{instance.key} of its gang has to start again", now, moving=True)


def too_late(workload: Workload, now: int) -> bool:
    """Whether its deadline cannot be met any more: what runs may finish, but nothing starts any more."""
    return start_by_ms(workload) <= now


def lateness(workload: Workload, now: int) -> str:
    """Why a deadline cannot be met, as arithmetic."""
    left = start_by_ms(workload) + workload.policy.expected_ms - now
    if left <= 0:
        return "its deadline has passed"
    expected = show_duration(workload.policy.expected_ms)
    return f"its deadline cannot be met any more: it takes {expected} and {show_duration(left)} are left"


def _restart(
    state: State, out: Step, instance: Instance, ending: str, cause: str, now: int, delay_ms: int
) -> None:  # fmt: skip
    """A service is started again after a pause, unless its policy says otherwise."""
    restart = state.spec_of(instance).policy.restart or DEFAULT_RESTART
    may_end = restart.when != "always" and ending == "succeeded"
    if not may_end:
        failed_once(state, instance)
    if restart.when == "never" or may_end:
        move(state, out, instance, ending, f"{cause}; it is not to be restarted", now)
        return
    if instance.started_ms and now - instance.started_ms >= STEADY_MS:
        instance.failures = 0
    delay = max(delay_ms, min(restart.pause_ms << min(instance.failures, 20), restart.pause_max_ms))
    instance.failures += 1
    loop = f"; crash loop: it ended {instance.failures} times in a row" if instance.failures >= CRASH_LOOP else ""
    requeue(state, out, instance, f"{cause}{loop}; restarted in {show_duration(delay)}", now, delay)


def _tries_again(workload: Workload, instance: Instance, ending: str, now: int) -> bool:
    policy = workload.policy
    if instance.failures >= policy.retries_max or too_late(workload, now):
        return False
    code = f"exit:{instance.exit_code}" if instance.exit_code is not None else ""
    return ending in policy.retry_on or code in policy.retry_on
