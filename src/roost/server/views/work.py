"""Views: how workloads, instances and nodes look from outside. Names here are stable; times are ms since 1970.

A workload's state is one word for all its instances. While it lives: `running` if one is placed, starting or running,
else `stopping` if one is stopping, else `queued`; a live schedule, which has no instances, is `scheduled`. Once it is
over: the first of failed, timed_out, rejected, expired and cancelled that any instance ended in, else `succeeded`. What
never ran counts as what the workload made of it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from roost.core.dependencies.conditions import pending_text
from roost.core.explain.why import node_report
from roost.core.lifecycle.restarts import CRASH_LOOP
from roost.core.placement.scorers import SCORE_MAX
from roost.core.state import versions
from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.keys import split_workload_key
from roost.model.protocol import Usage
from roost.model.reasons.attempts import SUBMITTED
from roost.model.records.instance import Decision, Instance
from roost.model.records.template import TemplateUse
from roost.model.records.transition import InstanceTransition, NodeTransition
from roost.model.records.webhook import is_end
from roost.model.records.workload import Rollout, Workload
from roost.model.states import FINISHED, WORST_FIRST, InstanceState, WorkloadKind, WorkloadState
from roost.ports.store import Change
from roost.schema.nodes import NodeDetail, NodeView, ResourceUse, UsageView
from roost.schema.reason_text import Visible, health_text, message_of, reason_view, render, render_text
from roost.schema.rollouts import RolloutView
from roost.schema.schedules import ScheduleView
from roost.schema.work import (
    CandidateView,
    DecisionView,
    InstanceDetail,
    InstanceView,
    StoryLine,
    WorkloadDetail,
    WorkloadView,
)
from roost.server.views.limits import unenforced_on
from roost.server.views.outputs import outputs_summary
from roost.server.views.pulls import story_with_pull, with_pull
from roost.server.views.results import not_passed_views, result_view
from roost.server.views.usage import run_usage_view
from roost.server.views.view_of import view_of
from roost.server.views.vms import power_view

RUNNING = (InstanceState.RUNNING, InstanceState.STARTING, InstanceState.PLACED)
DETAIL_INSTANCES_MAX = 100  # shown with their workload or node; the rest comes page by page

Progress = tuple[int, dict[InstanceState, int]]  # how many instances have begun, and how many are in which state
N = TypeVar("N", bound=NodeView)


def workload_view(
    workload: Workload,
    begun: int,
    counts: dict[InstanceState, int],
    ready: int | None = None,
    looping: int | None = None,
    visible: Visible | None = None,
) -> WorkloadView:
    every = counts_of(workload, begun, counts)
    labelled = _LABELS.decode(workload.document) if workload.policy.labels else _UNLABELLED
    return WorkloadView(
        project=workload.project,
        name=workload.name,
        kind=workload.policy.kind,
        state=workload_state(workload, every),
        count=workload.count,
        counts=every,
        priority=workload.policy.priority,
        message=workload_message(workload, visible),
        reason=reason_view(workload.reason, visible),
        submitted_ms=workload.submitted_ms,
        finished_ms=workload.finished_ms or None,
        labels=labelled.labels,
        template=labelled.template.label if labelled.template is not None else "",
        version=workload.version,
        changed_ms=workload.changed_ms or None,
        change=message_of(workload.change, visible),
        change_reason=reason_view(workload.change, visible),
        rollout=rollout_view(workload.rollout, visible),
        ready=ready,
        looping=looping,
    )


def workload_message(workload: Workload, visible: Visible | None = None) -> str:
    """Why a workload is as it is; of a pending one, what it waits for."""
    return message_of(workload.reason, visible) or render_text(pending_text(workload), visible)


def live_view(state: State, workload: Workload, visible: Visible | None = None) -> WorkloadView:
    begun, counts = progress_of(state, workload.key)
    if workload.policy.kind != WorkloadKind.SERVICE:
        return workload_view(workload, begun, counts, visible=visible)
    known = versions.instances_of(state, workload)
    ready = sum(instance.ready_since_ms > 0 for instance in known if instance.index < workload.count)
    return workload_view(workload, begun, counts, ready, sum(map(_is_looping, known)), visible)


def workload_detail(
    state: State, workload: Workload, visible: Visible | None = None, schedule: ScheduleView | None = None
) -> WorkloadDetail:
    return view_of(
        WorkloadDetail,
        live_view(state, workload, visible),
        document=msgspec.msgpack.decode(workload.document),
        needs={unit_name(name): amount for name, amount in workload.policy.ask.resources},
        instances=[instance for _, instance in instances_of(state, workload, 0, DETAIL_INSTANCES_MAX, visible)],
        schedule=schedule,
    )


def progress_of(state: State, key: str) -> Progress:
    """A copy of the progress of a workload, which changes in place."""
    progress = state.progress.get(key)
    return (progress.placed_count, progress.counts.copy()) if progress else (0, {})


def workloads_of(changes: Sequence[Change]) -> dict[str, None]:
    """The keys of the workloads that changed, also in their instances."""
    keys = [change.key.rpartition(".")[0] for change in changes if change.kind == "instance"]
    return dict.fromkeys([*keys, *(change.key for change in changes if change.kind == "workload")])


def counts_of(workload: Workload, begun: int, counts: dict[InstanceState, int]) -> dict[InstanceState, int]:
    """Instances per state, including those that never ran."""
    every = {state: number for state, number in counts.items() if number}
    fresh = workload.instance_count - begun
    if fresh > 0:
        state = workload.unstarted_end_state or InstanceState.QUEUED
        every[state] = every.get(state, 0) + fresh
    return every


def workload_state(workload: Workload, every: dict[InstanceState, int]) -> WorkloadState:
    """One state for all instances; the rule is at the top of this file."""
    if workload.finished_ms:
        ended = workload.unstarted_end_state or InstanceState.SUCCEEDED
        return WorkloadState(next((state for state in WORST_FIRST if state in every), ended))
    if workload.policy.schedule:
        return WorkloadState.SCHEDULED
    if any(state in every for state in RUNNING):
        return WorkloadState.RUNNING
    return WorkloadState.STOPPING if InstanceState.STOPPING in every else WorkloadState.QUEUED


def instances_of(
    state: State, workload: Workload, start: int, stop: int, visible: Visible | None = None
) -> Iterator[tuple[int, InstanceView]]:
    """Instances by index, including those that never ran. Instances that an earlier server dropped are left out."""
    key, begun = workload.key, state.placed_count(workload)
    for index in range(start, min(stop, max(workload.instance_count, begun))):
        instance = state.instances.get(f"{key}.{index}")
        if instance is not None:
            yield index, with_pull(state, instance, instance_view(instance, visible))
        elif index >= begun:
            yield index, never_ran(workload, index, visible)


def instance_view(instance: Instance, visible: Visible | None = None) -> InstanceView:
    project, name = split_workload_key(instance.workload)
    return InstanceView(
        project=project,
        name=name,
        index=instance.index,
        state=instance.state,
        attempt=instance.attempt,
        node=instance.node,
        message=message_of(instance.reason, visible),
        reason=reason_view(instance.reason, visible),
        since_ms=instance.since_ms or None,
        started_ms=instance.started_ms or None,
        finished_ms=instance.finished_ms or None,
        not_before_ms=instance.not_before_ms or None,
        exit_code=instance.exit_code,
        signal=instance.signal,
        step=instance.step,
        losses=instance.losses,
        failures=instance.failures,
        version=instance.version,
        ready=instance.ready_since_ms > 0,
        image=instance.image,
        health_message=health_text(instance.health_failure) if instance.health_failure is not None else "",
        crash_loop=_is_looping(instance),
        result=result_view(instance.result),
        outputs=outputs_summary(instance.outputs),
        power=power_view(instance),
        usage=run_usage_view(instance.usage),
    )


def instance_detail(state: State, workload: Workload, index: int, visible: Visible | None = None) -> InstanceDetail:
    """An instance with its story, also one that never ran. Raises NotFound."""
    instance = state.instances.get(f"{workload.key}.{index}")
    if workload.policy.schedule:
        raise NotFound(f"{workload.key} runs by its schedule and has no instances; its runs are workloads of their own")
    if instance is None:
        if not 0 <= index < max(workload.count, state.placed_count(workload)):
            last = workload.count - 1
            raise NotFound(f"{workload.key} has instances 0 to {last}, not {index}" if last >= 0 else "it has none")
        if index < state.placed_count(workload):
            raise NotFound(f"nothing is known of {workload.key}.{index}: it ended before this server learnt of it")
        return InstanceDetail(**msgspec.structs.asdict(never_ran(workload, index, visible)))
    spec = state.spec_of(instance)
    detail = detail_of(spec, instance, visible)
    detail = story_with_pull(state, instance, with_pull(state, instance, detail))
    unenforced, not_passed = unenforced_on(state, spec, instance), not_passed_views(state, spec, index)
    return msgspec.structs.replace(detail, unenforced=unenforced, not_passed=not_passed)


def detail_of(workload: Workload, instance: Instance, visible: Visible | None = None) -> InstanceDetail:
    """`workload`: at the version of the instance."""
    return InstanceDetail(
        **msgspec.structs.asdict(instance_view(instance, visible)),
        token=instance.token,
        devices=list(instance.devices),
        ports=dict(zip(workload.policy.ports, instance.ports, strict=False)),
        decision=decision_view(instance.decision) if instance.decision else None,
        story=story_view(instance.story, visible),
    )


def never_ran(workload: Workload, index: int, visible: Visible | None = None) -> InstanceView:
    """An instance that has no record: the workload stands for it."""
    return InstanceView(
        project=workload.project,
        name=workload.name,
        index=index,
        state=workload.unstarted_end_state or InstanceState.QUEUED,
        version=workload.version,
        message=workload_message(workload, visible) or render(SUBMITTED),
        reason=reason_view(workload.reason or SUBMITTED, visible),
        since_ms=workload.finished_ms or workload.submitted_ms,
    )


def decision_view(decision: Decision) -> DecisionView:
    candidates = [
        CandidateView(node, score / SCORE_MAX, node in decision.with_image) for node, score in decision.candidates
    ]
    return view_of(DecisionView, decision, candidates=candidates)


def story_view(story: Sequence[InstanceTransition], visible: Visible | None = None) -> list[StoryLine]:
    return [
        _line_view(
            line, visible, attempt=line.attempt, node=line.node, exit_code=line.exit_code, signal=line.signal,
            step=line.step, usage=run_usage_view(line.usage) if is_end(line.before, line.state) else None,
        )
        for line in story
    ]  # fmt: skip


def _line_view(line: InstanceTransition | NodeTransition, visible: Visible | None, **more: Any) -> StoryLine:
    message, reason = render(line.reason, visible), reason_view(line.reason, visible)
    return StoryLine(line.at_ms, line.state, message, line.revision, reason, line.before or "", **more)


def node_view(state: State, name: str) -> NodeView:
    return _node_view(NodeView, state, name, node_report(state, name))


def node_detail(state: State, name: str, visible: Visible | None = None) -> NodeDetail:
    report = node_report(state, name)
    seen = [item for item in report["running"] if visible is None or visible(split_workload_key(item.workload)[0])]
    fleet, row = state.fleet, state.fleet.row(name)
    return _node_view(
        NodeDetail,
        state,
        name,
        report,
        devices=[max(0, free) for free in fleet.devices[row][fleet.device_total[row] > 0].tolist()],
        ports=sorted(fleet.ports.get(name, {})),
        instances=[instance_view(instance, visible) for instance in seen[:DETAIL_INSTANCES_MAX]],
        story=[_line_view(line, visible, node=name) for line in report["node"].story],
    )


def unit_name(resource: str) -> str:
    """A resource's name with its unit where the unit is not plain: cpu_milli, gpu_milli, memory (bytes)."""
    return f"{resource}_milli" if resource in ("cpu", "gpu") else resource


def _is_looping(instance: Instance) -> bool:
    """It ended several times in a row and is not ready. A ready one may have recovered."""
    return instance.failures >= CRASH_LOOP and not instance.ready_since_ms and instance.state not in FINISHED


def _node_view(kind: type[N], state: State, name: str, report: dict[str, Any], **fields: Any) -> N:
    contact = report["contact"]
    facts, usage = state.fleet.facts[state.fleet.row(name)], contact.usage  # facts of the node and its pool
    return view_of(
        kind,
        report["node"],
        contact,
        facts,
        resources={
            unit_name(resource): ResourceUse(report["used"][resource], total)
            for resource, total in facts.resources.items()
        },
        usage=_usage_view(usage) if usage else None,
        running=len(report["running"]),
        **fields,
    )


def _usage_view(usage: Usage) -> UsageView:
    used = (usage.cpu_milli, usage.memory, usage.disk, usage.at_ms)
    return UsageView(*used, usage.task_restarts, usage.logs_stuck_ms)


class _Labelled(msgspec.Struct):
    """The labels of a stored document, and its template: decoding nothing else is quick."""

    labels: dict[str, str] = {}
    template: TemplateUse | None = None  # what has one has a label


_LABELS = msgspec.msgpack.Decoder(_Labelled)
_UNLABELLED = _Labelled()


def rollout_view(rollout: Rollout | None, visible: Visible | None = None) -> RolloutView | None:
    if rollout is None:
        return None
    return view_of(
        RolloutView,
        rollout,
        before=rollout.before or None,
        message=message_of(rollout.reason, visible),
        reason=reason_view(rollout.reason, visible),
    )
