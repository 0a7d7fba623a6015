"""Views: how workloads, instances and nodes look from outside. Names here are stable; times are ms since 1970.

A workload's state is one word for all its instances. While it lives: `running` if one is placed, starting or running,
else `stopping` if one is stopping, else `queued`. Once it is over: the first of failed, timed_out, rejected, expired
and cancelled that any instance ended in, else `succeeded`. What never ran counts as what the workload made of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from roost.core.explain import node_report
from roost.core.retry import CRASH_LOOP
from roost.core.scorers import ONE
from roost.core.state import State
from roost.core.verdict import cause_of
from roost.model.errors import NotFound
from roost.model.instance import Decision, Instance, Move
from roost.model.states import FINISHED
from roost.model.workload import Workload
from roost.server.version_views import RolloutView, rollout_view

WORST_FIRST = ("failed", "timed_out", "rejected", "expired", "cancelled")
RUNNING = ("running", "starting", "placed")
DETAIL_INSTANCES_MAX = 100  # shown with their workload or node; the rest comes page by page


class Line(msgspec.Struct, frozen=True):
    """One line of a story."""

    at_ms: int
    state: str
    cause: str
    revision: int


class Candidate(msgspec.Struct, frozen=True):
    """A node that was eligible, and its score from 0 to 1: higher is better."""

    node: str
    score: float


class DecisionView(msgspec.Struct, frozen=True):
    """Why an instance went where it went. The first candidate was taken."""

    strategy: str
    eligible: int
    considered: int
    candidates: list[Candidate]


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workload."""

    project: str
    name: str
    index: int
    state: str
    attempt: int = 0
    node: str = ""
    cause: str = ""
    since_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    ready_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    step: int = 0
    losses: int = 0
    failures: int = 0
    version: int = 1  # of its workload: which it runs, or is to run
    ready: bool = False  # of a service: it is to be used, as its health check says, or because it runs and has none
    sick: str = ""  # what its health check said last, if that was not well
    crash_loop: bool = False  # it keeps ending, and is not ready


class InstanceDetail(InstanceView, frozen=True, kw_only=True):
    """One run of a workload with its story and the decision that placed it."""

    token: int = 0
    devices: list[int] = []
    ports: dict[str, int] = {}
    decision: DecisionView | None = None
    story: list[Line] = []


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted, and how far it has come."""

    project: str
    name: str
    kind: str
    state: str
    count: int
    counts: dict[str, int]
    priority: int
    cause: str = ""
    submitted_ms: int
    finished_ms: int | None = None
    labels: dict[str, str] = {}
    version: int = 1
    changed_ms: int | None = None  # when this version came; nothing: it is the first
    change: str = ""  # where this version comes from: applied, or rolled back and why
    rollout: RolloutView | None = None
    ready: int | None = None  # of a service: so many of its instances; nothing: this was not looked at
    looping: int | None = None  # of a service: so many keep ending


class WorkloadDetail(WorkloadView, frozen=True, kw_only=True):
    """A workload with the document its user wrote, what one instance needs, and its first instances."""

    document: dict[str, Any]
    needs: dict[str, int]
    instances: list[InstanceView] = []


class Room(msgspec.Struct, frozen=True):
    """How much of a resource is given away, and how much there is."""

    used: int
    total: int


class UsageView(msgspec.Struct, frozen=True):
    """What a node measures of itself."""

    cpu_milli: int
    memory: int
    disk: int


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent. Resources: cpu_milli, gpu_milli, memory and disk in bytes, others counted."""

    name: str
    status: str
    connected: bool
    draining: bool
    drain_until_ms: int | None = None
    cordoned: bool = False
    flaky_until_ms: int | None = None  # runs failed there that did not elsewhere: until then others are preferred
    lease_until_ms: int
    joined_ms: int
    pool: str
    zone: str
    rack: str
    region: str
    arch: str
    drivers: list[str]
    gpu_model: str = ""
    taints: list[str] = []
    labels: dict[str, str]
    resources: dict[str, Room]
    usage: UsageView | None = None
    running: int


class NodeDetail(NodeView, frozen=True, kw_only=True):
    """A node with what runs there and its story. Of each GPU what is free, in thousandths; ports in use."""

    devices: list[int] = []
    ports: list[int] = []
    instances: list[InstanceView] = []
    story: list[Line] = []


def workload_view(
    workload: Workload, begun: int, counts: dict[str, int], ready: int | None = None, looping: int | None = None
) -> WorkloadView:
    """A workload and how many of its instances are in which state, as of one revision."""
    every = counts_of(workload, begun, counts)
    return WorkloadView(
        project=workload.project,
        name=workload.name,
        kind=workload.policy.kind,
        state=workload_state(workload, every),
        count=workload.count,
        counts=every,
        priority=workload.policy.priority,
        cause=cause_of(workload),
        submitted_ms=workload.submitted_ms,
        finished_ms=workload.finished_ms or None,
        labels=_LABELS.decode(workload.document).labels if workload.policy.labels else {},
        version=workload.version,
        changed_ms=workload.changed_ms or None,
        change=workload.change,
        rollout=rollout_view(workload.rollout),
        ready=ready,
        looping=looping,
    )


def live_view(state: State, workload: Workload) -> WorkloadView:
    """A workload as it is now."""
    progress = state.progress.get(workload.key)
    begun, counts = (progress.begun, progress.counts) if progress else (0, {})
    if workload.policy.kind != "service":
        return workload_view(workload, begun, counts)
    known = [each for index in range(begun) if (each := state.instances.get(f"{workload.key}.{index}")) is not None]
    ready = sum(each.serving_ms > 0 for each in known if each.index < workload.count)
    return workload_view(workload, begun, counts, ready, sum(map(_is_looping, known)))


def workload_detail(state: State, workload: Workload) -> WorkloadDetail:
    """Everything about a workload."""
    view = live_view(state, workload)
    first = [each for _, each in instances_of(state, workload, 0, DETAIL_INSTANCES_MAX)]
    return WorkloadDetail(
        **msgspec.structs.asdict(view),
        document=msgspec.msgpack.decode(workload.document),
        needs={unit_name(name): amount for name, amount in workload.policy.ask.resources},
        instances=first,
    )


def counts_of(workload: Workload, begun: int, counts: dict[str, int]) -> dict[str, int]:
    """How many instances are in which state, those that never ran included."""
    every = {state: number for state, number in counts.items() if number}
    fresh = workload.count - begun
    if fresh > 0:
        state = workload.rest or "queued"
        every[state] = every.get(state, 0) + fresh
    return every


def workload_state(workload: Workload, every: dict[str, int]) -> str:
    """One word for all instances; the rule is at the top of this file."""
    if workload.finished_ms:
        return next((state for state in WORST_FIRST if state in every), workload.rest or "succeeded")
    if any(state in every for state in RUNNING):
        return "running"
    return "stopping" if "stopping" in every else "queued"


def instances_of(state: State, workload: Workload, start: int, stop: int) -> Iterator[tuple[int, InstanceView]]:
    """Instances by index, those that never ran included. What an earlier server forgot is left out."""
    key, begun = workload.key, state.begun(workload)
    for index in range(start, min(stop, max(workload.count, begun))):
        instance = state.instances.get(f"{key}.{index}")
        if instance is not None:
            yield index, instance_view(instance)
        elif index >= begun:
            yield index, never_ran(workload, index)


def instance_view(instance: Instance) -> InstanceView:
    """An instance as it is."""
    return InstanceView(**_instance_fields(instance))


def instance_detail(state: State, workload: Workload, index: int) -> InstanceDetail:
    """Everything about an instance, also of one that never ran."""
    instance = state.instances.get(f"{workload.key}.{index}")
    if instance is None:
        if not 0 <= index < max(workload.count, state.begun(workload)):
            last = workload.count - 1
            raise NotFound(f"{workload.key} has instances 0 to {last}, not {index}" if last >= 0 else "it has none")
        if index < state.begun(workload):
            raise NotFound(f"nothing is known of {workload.key}.{index}: it ended before this server learnt of it")
        return InstanceDetail(**msgspec.structs.asdict(never_ran(workload, index)))
    decision = decision_view(instance.decision) if instance.decision else None
    return InstanceDetail(
        **_instance_fields(instance),
        token=instance.token,
        devices=list(instance.devices),
        ports=dict(zip(state.spec_of(instance).policy.ports, instance.ports, strict=False)),
        decision=decision,
        story=story_view(instance.story),
    )


def never_ran(workload: Workload, index: int) -> InstanceView:
    """An instance that has no record: the workload stands for it."""
    return InstanceView(
        project=workload.project,
        name=workload.name,
        index=index,
        state=workload.rest or "queued",
        version=workload.version,
        cause=cause_of(workload) or "submitted",
        since_ms=workload.finished_ms or workload.submitted_ms,
    )


def decision_view(decision: Decision) -> DecisionView:
    """A decision with its scores from 0 to 1."""
    candidates = [Candidate(node, score / ONE) for node, score in decision.candidates]
    return DecisionView(decision.strategy, decision.eligible, decision.considered, candidates)


def story_view(story: Sequence[Move]) -> list[Line]:
    """The story of an instance or a node, oldest line first."""
    return [Line(move.at_ms, move.state, move.cause, move.revision) for move in story]


def node_view(state: State, name: str) -> NodeView:
    """A node as it is now."""
    return NodeView(**_node_fields(state, name))


def node_detail(state: State, name: str) -> NodeDetail:
    """Everything about a node."""
    report = node_report(state, name)
    running = [instance_view(each) for each in report["running"][:DETAIL_INSTANCES_MAX]]
    fleet, row = state.fleet, state.fleet.row(name)
    return NodeDetail(
        **_node_fields(state, name),
        devices=[max(0, free) for free in fleet.devices[row][fleet.device_total[row] > 0].tolist()],
        ports=sorted(fleet.ports.get(name, {})),
        instances=running,
        story=story_view(report["node"].story),
    )


def unit_name(resource: str) -> str:
    """A resource's name with its unit where the unit is not plain: cpu_milli, gpu_milli, memory (bytes)."""
    return f"{resource}_milli" if resource in ("cpu", "gpu") else resource


def _instance_fields(instance: Instance) -> dict[str, Any]:
    project, _, name = instance.workload.partition("/")
    return {
        "project": project,
        "name": name,
        "index": instance.index,
        "state": instance.state,
        "attempt": instance.attempt,
        "node": instance.node,
        "cause": instance.cause,
        "since_ms": instance.since_ms or None,
        "started_ms": instance.started_ms or None,
        "finished_ms": instance.finished_ms or None,
        "ready_ms": instance.ready_ms or None,
        "exit_code": instance.exit_code,
        "signal": instance.signal,
        "step": instance.step,
        "losses": instance.losses,
        "failures": instance.failures,
        "version": instance.version,
        "ready": instance.serving_ms > 0,
        "sick": instance.sick,
        "crash_loop": _is_looping(instance),
    }


def _is_looping(instance: Instance) -> bool:
    """Whether it keeps ending: so often in a row, and it does not serve. One that serves may have recovered."""
    return instance.failures >= CRASH_LOOP and not instance.serving_ms and instance.state not in FINISHED


def _node_fields(state: State, name: str) -> dict[str, Any]:
    report = node_report(state, name)
    node, contact = report["node"], report["contact"]
    facts, usage = state.fleet.facts[state.fleet.row(name)], contact.usage  # with what its pool says for it
    return {
        "name": node.name,
        "status": node.status,
        "connected": contact.connected,
        "draining": node.draining,
        "drain_until_ms": node.drain_until_ms or None,
        "cordoned": node.cordoned,
        "flaky_until_ms": node.flaky_until_ms or None,
        "lease_until_ms": contact.lease_until_ms,
        "joined_ms": node.joined_ms,
        "pool": facts.pool,
        "zone": facts.zone,
        "rack": facts.rack,
        "region": facts.region,
        "arch": facts.arch,
        "drivers": list(facts.drivers),
        "gpu_model": facts.gpu_model,
        "taints": list(facts.taints),
        "labels": facts.labels,
        "resources": {unit_name(each): Room(report["used"][each], total) for each, total in facts.resources.items()},
        "usage": UsageView(usage.cpu_milli, usage.memory, usage.disk) if usage else None,
        "running": len(report["running"]),
    }


class _Labelled(msgspec.Struct):
    """Of a stored document, its labels: reading nothing else of it is quick."""

    labels: dict[str, str] = {}


_LABELS = msgspec.msgpack.Decoder(_Labelled)
