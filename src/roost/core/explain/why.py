"""Why: for a pending instance, every blocker counted over nodes; for a placed one, the candidates with their scores.

This is the short answer, which is cheap; `advise` adds what would help, and when.
"""

from typing import Any

import msgspec

from roost.core.dependencies.conditions import waiting_text
from roost.core.explain.blockers import CODES, Blocker, blockers_of
from roost.core.lifecycle.power import power_text
from roost.core.lifecycle.restarts import attempts_on
from roost.core.nodes.maintenance import maintenance_text
from roost.core.placement.filters.resources import format_amount
from roost.core.placement.scorers import SCORE_MAX
from roost.core.queue.home import stays
from roost.core.services.reconcile import NOT_REPLACED, eviction_reason
from roost.core.services.rollout import cap_of
from roost.core.state.state import State, in_maintenance
from roost.core.state.versions import instances_of
from roost.core.watch import coming_ticks
from roost.model.errors import NotFound
from roost.model.keys import instance_key, split_instance_key
from roost.model.reasons.attempts import not_kept, outputs_not_kept
from roost.model.reasons.power import VmStays
from roost.model.reasons.reason import Reason, RolledBack, Text, joined
from roost.model.records.instance import Instance
from roost.model.records.workload import DEFAULT_UPDATE, Workload
from roost.model.spec.cron import local_minute
from roost.model.spec.units import show_bytes, show_cpu, show_duration
from roost.model.states import InstanceState, Milestone, RolloutState, WorkloadKind, WorkloadState


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    instance: str
    state: InstanceState | WorkloadState
    text: Text
    code: str = ""
    blockers: tuple[Blocker, ...] = ()
    node: str = ""
    strategy: str = ""
    eligible: int = 0
    considered: int = 0
    candidates: tuple[tuple[str, float], ...] = ()


def why(state: State, workload_key: str, index: int | None = None) -> Why:
    """Why an instance is where it is; without an index, the first pending one, or else the first."""
    workload = state.known_workload(workload_key)
    if workload.policy.schedule is not None:
        return _why_scheduled(state, workload, index)
    if index is None:
        index = _first_pending(state, workload)
    if not 0 <= index < max(workload.count, state.placed_count(workload), 1):
        raise NotFound(f"{workload_key} has instances 0 to {workload.count - 1}, not {index}")
    key = instance_key(workload.key, index)
    instance = state.instances.get(key)
    if instance is None and index < state.placed_count(workload):
        text = f"{key} was submitted to an earlier server, and no agent has reported it to this one"
        return Why(key, InstanceState.LOST, (text,), code="unknown")
    current = instance.state if instance else workload.unstarted_end_state or InstanceState.QUEUED
    if current == InstanceState.QUEUED:
        return _why_waiting(state, key, workload, instance)
    if instance is None:
        return Why(key, current, (f"{key} is {current}", *_because(workload.reason)), code=current)
    return _why_placed(state, instance)


def decision_line(instance: str, node: str, strategy: str, resources: tuple[tuple[str, int, int], ...]) -> str:
    return f"placed {instance} on {node} by {strategy}: " + ", ".join(
        format_usage(name, used, total) for name, used, total in resources
    )


def format_usage(name: str, used: int, total: int) -> str:
    """`cpu 12/16`, `memory 24GiB/32GiB`."""
    if name in ("cpu", "gpu"):
        return f"{name} {show_cpu(used)}/{show_cpu(total)}"
    if name in ("memory", "disk"):
        return f"{name} {show_bytes(used)}/{show_bytes(total)}"
    return f"{name} {used}/{total}"


def node_report(state: State, name: str) -> dict[str, Any]:
    node = state.known_node(name)
    row = state.fleet.row(name)
    used = {resource: int(state.fleet.used[resource][row]) for resource in node.facts.resources}
    return {"node": node, "used": used, "running": attempts_on(state, name), "contact": state.liveness[name]}


def _why_waiting(state: State, key: str, workload: Workload, instance: Instance | None) -> Why:
    if instance is not None and instance.not_before_ms > state.now_ms:
        pause = show_duration(instance.not_before_ms - state.now_ms)
        text = (f"{key} waits {pause} before its next attempt", *_because(instance.reason))
        return Why(key, InstanceState.QUEUED, text, code="backoff")
    first = _why_not_yet(state, key, workload, instance)
    if first is not None:
        return first
    spec = state.spec_of(instance) if instance is not None else workload  # an update may not have reached it yet
    if instance is not None and instance.home and spec.policy.is_homebound:
        return _why_away_from_home(state, instance, spec)
    blocked = blockers_of(state, spec)
    needs = ", ".join(format_amount(*resource) for resource in spec.policy.ask.resources)
    if blocked.code == "placeable":
        return Why(key, InstanceState.QUEUED, (f"{key} is about to be placed (needs {needs})",), code="placeable")
    report = {
        "awaiting_agents": f"{key} (needs {needs}) waits because the server has restarted without memory: ",
        "maintenance": f"{key} (needs {needs}) waits until it is over: ",
        "no_nodes": f"{key} waits because no node is online; start one with `roost agent`",
        "unsatisfiable": f"{key} (needs {needs}) can never run on this fleet: ",
        "insufficient_resources": f"{key} (needs {needs}) waits for room: ",
        "quota_exceeded": f"{key} (needs {needs}) waits for its project's quota: ",
    }
    text = (report[blocked.code], *(blocked.text() if blocked.code != "no_nodes" else ()))
    return Why(key, InstanceState.QUEUED, text, code=blocked.code, blockers=blocked.blockers)


def _why_away_from_home(state: State, instance: Instance, spec: Workload) -> Why:
    """A virtual machine that starts where its disks are, and nowhere else."""
    home, row = instance.home, state.fleet.row(instance.home)
    if row < 0:
        text = "is no longer known; with `move: cold` it starts elsewhere, with new disks"
    elif not state.fleet.open[row]:
        text = f"is {state.nodes[home].status}"
    else:
        needs = ", ".join(format_amount(*resource) for resource in spec.policy.ask.resources)
        text = f"has no room for it (needs {needs})"
    full = f"home: node {home}, which has its disks, {text}"
    blocker = Blocker("home", (full,), 1, CODES["home"])
    return Why(instance.key, InstanceState.QUEUED, (f"{instance.key} waits: {full}",), code="home", blockers=(blocker,))


def _why_not_yet(state: State, key: str, workload: Workload, instance: Instance | None) -> Why | None:
    """What has to come before room matters at all: other workloads."""
    if not (instance.blocked_on_dependency if instance is not None else workload.pending_conditions):
        return None
    text = waiting_text(state, workload, split_instance_key(key)[1])
    is_approval = all(condition.when == Milestone.APPROVED for condition in workload.pending_conditions)
    name = "approval" if is_approval else "after"
    blocker = Blocker(name, text, 0, CODES[name])
    code = "needs_approval" if is_approval else "after"
    return Why(key, InstanceState.QUEUED, (f"{key} ", *text), code=code, blockers=(blocker,))


def _why_scheduled(state: State, workload: Workload, index: int | None) -> Why:
    """A schedule has no instances: why it does not run now, and when it does."""
    key, schedule = workload.key, workload.policy.schedule
    assert schedule is not None, f"{key} has no schedule"
    if index is not None:
        raise NotFound(f"{key} runs by its schedule and has no instances; its runs are workloads of their own")
    if workload.unstarted_end_state:
        ended = WorkloadState(workload.unstarted_end_state)
        return Why(key, ended, (f"{key} is {ended}", *_because(workload.reason)), code=ended)
    ticks = coming_ticks(state, workload, 1, state.now_ms)
    when = f"next at {local_minute(schedule.zone, ticks[0])} ({schedule.zone})" if ticks else "never again"
    paused = f"; ticks make no runs during {maintenance_text(state)}" if in_maintenance(state) else ""
    last = ("; last time: ", workload.reason) if workload.reason is not None else ()
    text: Text = (f"runs by its schedule, {when}{paused}", *last)
    blocker = Blocker("schedule", text, 0, CODES["schedule"])
    return Why(key, WorkloadState.SCHEDULED, (f"{key} ", *text), code="schedule", blockers=(blocker,))


def _why_placed(state: State, instance: Instance) -> Why:
    decision = instance.decision
    where = f" on {instance.node}" if instance.node else ""
    text: Text = (f"{instance.key} is {instance.state}{where}", *_because(instance.reason))
    more = replica_text(state, instance)
    text += ("; ", *more) if more else ()
    power = power_text(instance, state.now_ms)
    text += (f"; {power}",) if power else ()
    workload = state.workloads[instance.workload]
    if workload.policy.kind == WorkloadKind.VM and instance.version != workload.version:
        text += (f"; it gets version {workload.version} when it is started or rebooted: `roost vm reboot`",)
    leaves = eviction_reason(state, instance.node) if instance.node in state.nodes else None
    if leaves is not None and stays(state, instance):
        text += ("; ", leaves, "; ", VmStays(state.spec_of(instance).policy.move))
    for missing in (not_kept(instance.result), outputs_not_kept(instance.outputs)):
        text += ("; ", missing) if missing is not None else ()
    change = state.workloads[instance.workload].change
    text += ("; ", change) if isinstance(change, RolledBack) and change.cause is not None else ()
    if decision is None:
        return Why(instance.key, instance.state, text, node=instance.node)
    taken, score = decision.candidates[0]
    message = f"; {decision.strategy} chose {taken} with {score / SCORE_MAX:.3f}"
    others = ", ".join(f"{name} {score / SCORE_MAX:.3f}" for name, score in decision.candidates[1:])
    message += f" over {others}" if others else ""
    message += f" ({decision.eligible} of {decision.considered} nodes were eligible)"
    candidates = tuple((name, score / SCORE_MAX) for name, score in decision.candidates)
    return Why(
        instance.key, instance.state, (*text, message), node=instance.node, strategy=decision.strategy,
        eligible=decision.eligible, considered=decision.considered, candidates=candidates,
    )  # fmt: skip


def _because(reason: Reason | None) -> Text:
    return (": ", reason) if reason is not None else ()


def _first_pending(state: State, workload: Workload) -> int:
    for instance in instances_of(state, workload):
        if instance.state == InstanceState.QUEUED:
            return instance.index
    begun = state.placed_count(workload)
    return begun if begun < workload.count else 0


def replica_text(state: State, instance: Instance) -> Text:
    """Of a running replica: whether it is ready, whether it has to go, and what it waits for. Empty: all is well."""
    workload = state.workloads[instance.workload]
    is_replica = workload.policy.kind == WorkloadKind.SERVICE and not workload.unstarted_end_state
    if not is_replica or instance.state != InstanceState.RUNNING:
        return ()
    report: list[Text] = []
    if not instance.ready_since_ms:
        failure = instance.health_failure
        report.append(("it is not ready: ", failure) if failure is not None else ("it is not ready yet",))
    goal = _goal(state, workload, instance)
    if goal:
        report.append((*goal, f" and waits: {format_floor(state, workload)}"))
    elif instance.version != workload.version:
        report.append(_stays(workload, instance))
    return joined("; ", report)


def format_floor(state: State, workload: Workload) -> str:
    """`3 of 4 must stay available, and 3 are`"""
    update = workload.policy.update or DEFAULT_UPDATE
    replicas = instances_of(state, workload)
    ended = sum(instance.state in NOT_REPLACED and instance.index < workload.count for instance in replicas)
    floor = max(0, workload.count - ended - update.unavailable_of(workload.count))
    since = state.now_ms - update.healthy_after_ms
    available = sum(
        bool(instance.ready_since_ms) and (instance.version != workload.version or instance.ready_since_ms <= since)
        for instance in replicas
    )
    return f"{floor} of {workload.count} must stay available, and {available} {'is' if available == 1 else 'are'}"


def _goal(state: State, workload: Workload, instance: Instance) -> Text:
    """What becomes of a replica where it runs; empty: it may stay."""
    if instance.index >= workload.count:
        return (f"it is beyond its count of {workload.count}, is to be stopped",)
    if instance.version != workload.version and instance.index < cap_of(workload):
        return (f"it is to be updated to version {workload.version}",)
    reason = eviction_reason(state, instance.node)
    return ("it is to leave (", reason, ")") if reason is not None else ()


def _stays(workload: Workload, instance: Instance) -> Text:
    rollout = workload.rollout
    if rollout is not None and rollout.state == RolloutState.FAILED:
        return (f"it stays at version {instance.version}", *((": ", rollout.reason) if rollout.reason else ()))
    return (f"it stays at version {instance.version} until the canaries of version {workload.version} are promoted",)
