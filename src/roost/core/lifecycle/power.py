"""The power of virtual machines: commands of users, what nodes report, and how a next attempt begins.

A command gets a serial and is an order to the node. It is pending until its node reports that serial, and is sent again
with every whole assignment until then. The last command replaces one that is pending.
"""

from msgspec.structs import replace

from roost.core.orders import power_order
from roost.core.placement.filters import DYNAMIC
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import without_affinity
from roost.core.state.allocation import allocation_of
from roost.core.state.outcome import Paced, Step
from roost.core.state.state import State
from roost.core.transitions import note_instance, restate, stop
from roost.model.errors import Conflict, NotFound
from roost.model.events import SetPower
from roost.model.keys import instance_key
from roost.model.protocol import Report
from roost.model.reasons.attempts import PinnedToLostNode, RetryRequested, UpdatedToVersion
from roost.model.reasons.power import PowerDone, PowerFailed, PowerKept, PowerReported, PowerRequested
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance, PowerState
from roost.model.records.workload import Workload
from roost.model.spec.units import show_duration
from roost.model.states import ONE_SHOT, POWER_MOVES, InstanceState, Power, PowerAction, WorkloadKind

COMMAND_UNITS = 2  # of work: a record, a line of its story and an order
ADVICE = {Power.STOPPED: "start it first", Power.PAUSED: "resume it first", Power.RUNNING: "stop it first"}


def set_power(state: State, out: Step, event: SetPower, now: int) -> Paced[None]:
    """Command the machines of a workload, all or none. Those that are so already do not change."""
    workload = state.known_workload(event.workload)
    if workload.policy.kind != WorkloadKind.VM:
        message = f"{workload.key} is a {workload.policy.kind}; only a vm can be switched on and off"
        raise Conflict(message, code="not_a_vm")
    chosen: list[Instance] = []
    for index in range(workload.count) if event.index is None else (event.index,):
        chosen.append(_running(state, workload, index))
        _check(state, chosen[-1], event.action)
        yield 1
    for instance in chosen:
        _command(state, out, instance, event, now)
        yield COMMAND_UNITS
    out.reply(event.request, workload.key)


def power_reported(state: State, instance: Instance, report: Report, now: int) -> None:
    """The node of a running instance tells the power state of its machine. What is older than known is left."""
    is_vm = state.spec_of(instance).policy.kind == WorkloadKind.VM
    if not report.power or not is_vm or instance.state != InstanceState.RUNNING:
        return
    known = instance.power or PowerState()
    power = Power(report.power)
    if report.power_serial > known.serial and not known.serial:  # an earlier server gave that command
        known = replace(known, wanted=power, serial=min(report.power_serial, state.serial))
    done = min(report.power_serial, known.serial)
    if done < known.done:
        return
    is_carried_out = known.is_pending and done == known.serial
    since = known.since_ms if power == known.reported else now
    new = replace(known, reported=power, done=done, since_ms=since)
    reason = _news(known, power, report.power_problem, is_carried_out=is_carried_out)
    if is_carried_out:
        new = replace(new, problem=report.power_problem, wanted=power)
    elif not new.is_pending and power != known.wanted:
        new = replace(new, wanted=power, action=None, by="", problem="")
    if new != instance.power:
        instance.power = new
        state.touch_instance(instance)
    if reason is not None:
        _note(state, instance, reason, now)


def _news(known: PowerState, power: Power, problem: str, *, is_carried_out: bool) -> Reason | None:
    """The line of the story for a report; None: it reports nothing new."""
    if is_carried_out and known.action is not None:
        if problem or power != known.wanted:
            return PowerFailed(known.by, known.action, problem or f"the vm is {power}")
        return PowerDone(known.by, known.action)
    if known.reported is None:
        return PowerKept() if known.begins_stopped and power != Power.RUNNING else None
    return PowerReported(power) if power != known.reported and not known.is_pending else None


def power_of_next(power: PowerState | None, reason: Reason) -> PowerState | None:
    """How a next attempt begins: switched off if it was to be so, or if its memory is lost with the attempt.

    A user who runs it again switches it on.
    """
    if power is None or isinstance(reason, RetryRequested) or power.wanted == Power.RUNNING:
        return None
    return PowerState(Power.STOPPED)


def power_text(instance: Instance, now: int) -> str:
    """Why a virtual machine is not simply running, since when, and who asked for it. Empty: it is, or is none."""
    power = instance.power
    if power is None or instance.state != InstanceState.RUNNING:
        return ""
    by, texts = f" by {power.by}" if power.by else "", []
    if power.reported not in (None, Power.RUNNING):
        standing = f"its vm has been {power.reported} for {show_duration(max(0, now - power.since_ms))}"
        texts.append(standing + (f",{by}" if by and not power.is_pending and not power.problem else ""))
    if power.is_pending:
        texts.append(f"its node has not done the {power.action} that was requested{by}")
    elif power.problem:
        texts.append(f"the {power.action} that was requested{by} failed: {power.problem}")
    return "; ".join(texts)


def _running(state: State, workload: Workload, index: int) -> Instance:
    if not 0 <= index < workload.count:
        raise NotFound(f"{workload.key} has instances 0 to {workload.count - 1}, not {index}")
    key = instance_key(workload.key, index)
    instance = state.instances.get(key)
    current = instance.state if instance else workload.unstarted_end_state or InstanceState.QUEUED
    if instance is None or current != InstanceState.RUNNING:
        message = f"{key} is {current}: only a running vm takes power commands"
        raise Conflict(message, code="not_running", params={"instance": key, "state": current})
    return instance


def _check(state: State, instance: Instance, action: PowerAction) -> None:
    current = _expected(instance)
    sources, _ = POWER_MOVES[action]
    if current not in sources:
        message = f"{instance.key} is {current}, and {action} is for a vm that is {' or '.join(sorted(sources))}"
        facts = {"instance": instance.key, "power": current, "action": action}
        raise Conflict(f"{message}; {ADVICE[current]}", code="wrong_power", params=facts)
    if action in ONE_SHOT and not state.liveness[instance.node].in_touch:
        message = f"node {instance.node} of {instance.key} is not in contact: a late {action} could surprise its guest"
        raise Conflict(message, code="node_unreachable", params={"instance": instance.key, "node": instance.node})
    if _begins_anew(state, instance, action):
        _check_room(state, instance)


def _begins_anew(state: State, instance: Instance, action: PowerAction) -> bool:
    """Whether a boot is the one with which a machine gets the present version of its document, as a new attempt."""
    is_boot = action == PowerAction.REBOOT or (action == PowerAction.START and _expected(instance) == Power.STOPPED)
    return is_boot and instance.version != state.workloads[instance.workload].version


def _check_room(state: State, instance: Instance) -> None:
    """The present version has to fit on the node, where the disks are: else the machine would wait, switched off."""
    fleet, old, new = state.fleet, state.spec_of(instance), state.workloads[instance.workload]
    row, ask, held = fleet.row(instance.node), new.policy.ask, allocation_of(old, instance)
    fleet.take(instance.node, held, -1, is_trial=True)
    fits = all(node_filter.allows(fleet, ask, row) for node_filter in DYNAMIC if node_filter.name != "status")
    fleet.take(instance.node, held, is_trial=True)
    if not fits or not bool(fits_when_empty(fleet, without_affinity(ask))[row]):
        message = f"version {new.version} of {instance.key} does not fit on node {instance.node}, where its disks are"
        advice = "make room there, or boot it as it was with `roost rollback`"
        raise Conflict(f"{message}; {advice}", code="no_room_for_version", params={"instance": instance.key})


def _begin_anew(state: State, out: Step, instance: Instance, now: int) -> None:
    instance.power = None
    reason = UpdatedToVersion(state.workloads[instance.workload].version)
    stop(state, out, instance, reason, now, requeue=True)


def _expected(instance: Instance) -> Power:
    return (instance.power or PowerState()).expected


def _command(state: State, out: Step, instance: Instance, event: SetPower, now: int) -> None:
    known, action = instance.power or PowerState(), event.action
    if _begins_anew(state, instance, action):
        _begin_anew(state, out, instance, now)
        return
    grace_ms = state.spec_of(instance).policy.grace_ms if event.grace_ms is None else event.grace_ms
    _, target = POWER_MOVES[action]
    is_hurried = known.is_pending and known.action == action == PowerAction.STOP and grace_ms < known.grace_ms
    if known.expected == target and action not in ONE_SHOT and not is_hurried:
        return
    instance.power = replace(
        known, wanted=target, action=action, serial=state.next_serial(), problem="", by=out.principal, asked_ms=now,
        grace_ms=grace_ms,
    )  # fmt: skip
    state.touch_instance(instance)
    _note(state, instance, PowerRequested(out.principal, action, grace_ms), now)
    out.order(instance.node, power_order(instance.token, instance.power))


def _note(state: State, instance: Instance, reason: Reason, now: int) -> None:
    """A line of the story. That its node is lost stays its reason."""
    if isinstance(instance.reason, PinnedToLostNode):
        note_instance(state, instance, instance.state, reason, now)
    else:
        restate(state, instance, reason, now)
