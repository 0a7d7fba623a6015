"""The sentences for reasons. What a reader may not see is hidden in the data, before any sentence is made.

A sentence is a template of the reason's fields: durations, subjects and quoted reasons are already text in it. Where a
template is not enough there is a function. tests/schema/test_reason_text.py holds that every reason has a sentence.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from roost.model.errors import RoostError
from roost.model.keys import split_workload_key
from roost.model.limits import RESULT_BYTES_MAX, RESULT_DEPTH_MAX
from roost.model.reasons import attempts, needs, nodes, power, reason
from roost.model.reasons.attempts import TickSkipped, TicksSkipped
from roost.model.reasons.reason import Reason, Text
from roost.model.reasons.subjects import (
    BaseReason,
    HealthEvidence,
    InstanceRef,
    ProjectRef,
    Ref,
    WorkloadRef,
    note_parts,
)
from roost.model.records.result import ResultProblem
from roost.model.spec.cron import local_minute
from roost.model.spec.units import show_bytes, show_cpu, show_duration
from roost.model.states import PowerAction
from roost.schema.file_text import FILE_SENTENCES, gaps_text

Visible = Callable[[str], bool]  # whether a reader sees a project

POWER_DONE = {
    PowerAction.START: "started", PowerAction.STOP: "stopped", PowerAction.PAUSE: "paused",
    PowerAction.RESUME: "resumed", PowerAction.REBOOT: "rebooted", PowerAction.RESET: "reset",
}  # fmt: skip
HIDDEN = "a workload of another project"
HIDDEN_PROJECT = "another project"


class ReasonView(msgspec.Struct, frozen=True):
    """A reason as data: a stable code, and what it is about. Subjects that the reader may not see are null."""

    code: str
    params: dict[str, Any] = {}


def render(why: Reason, visible: Visible | None = None) -> str:
    """The sentence for a reason. `visible`: what the reader may see; None: everything."""
    sentence = SENTENCES[type(why)]
    if not isinstance(sentence, str):
        return sentence(why, visible)
    return sentence.format_map(_shown(why, visible))


def message_of(why: Reason | None, visible: Visible | None = None) -> str:
    return "" if why is None else render(why, visible)


def render_text(text: str | Text, visible: Visible | None = None) -> str:
    """A text with typed subjects as one sentence."""
    if isinstance(text, str):
        return text
    return "".join([part if isinstance(part, str) else _value("", part, visible) for part in text])


def render_note(note: str, visible: Visible | None = None) -> str:
    """Free text of an operator, without the names that the reader may not see."""
    return note if visible is None else render_text(note_parts(note), visible)


def error_message(error: RoostError, visible: Visible | None = None) -> str:
    message = render_text(error.text, visible) if error.text else error.message
    return message if error.reason is None else f"{message}: {render(error.reason, visible)}"


def error_params(error: RoostError, visible: Visible | None = None) -> dict[str, Any]:
    return error.params if error.reason is None else {**error.params, "reason": reason_data(error.reason, visible)}


def reason_view(why: Reason | None, visible: Visible | None = None) -> ReasonView | None:
    if why is None:
        return None
    params = {name: _data(getattr(why, name), visible) for name in type(why).__struct_fields__}
    if "note" in params:
        params["note"] = render_note(params["note"], visible)
    return ReasonView(why.code, params)


def reason_data(why: Reason | None, visible: Visible | None = None) -> dict[str, Any] | None:
    view = reason_view(why, visible)
    return {"code": view.code, "params": view.params} if view is not None else None


def _data(value: Any, visible: Visible | None) -> Any:
    if isinstance(value, BaseReason):
        return reason_data(value, visible)  # type: ignore[arg-type]
    if isinstance(value, Ref):
        return {name: getattr(value, name) for name in value.__struct_fields__} if _sees(value, visible) else None
    if isinstance(value, msgspec.Struct):
        return {name: _data(getattr(value, name), visible) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        if value and any(not isinstance(part, msgspec.Struct) or isinstance(part, Ref) for part in value):
            return render_text(value, visible)
        return [_data(part, visible) for part in value]
    return value


def is_visible(key: str, visible: Visible | None) -> bool:
    """Whether a reader sees a workload or an instance, as PROJECT/NAME or PROJECT/NAME.INDEX."""
    return visible is None or visible(split_workload_key(key)[0])


def _sees(ref: Ref, visible: Visible | None) -> bool:
    return visible is None or visible(ref.name if isinstance(ref, ProjectRef) else ref.project)


def _shown(why: Reason, visible: Visible | None) -> dict[str, str]:
    return {name: _value(name, getattr(why, name), visible) for name in type(why).__struct_fields__}


def _value(name: str, value: Any, visible: Visible | None) -> str:
    if isinstance(value, BaseReason):
        return render(value, visible)  # type: ignore[arg-type]
    if isinstance(value, ProjectRef):
        return f"project {value.name}" if _sees(value, visible) else HIDDEN_PROJECT
    if isinstance(value, WorkloadRef | InstanceRef):
        return value.key if _sees(value, visible) else HIDDEN
    if isinstance(value, HealthEvidence):
        return health_text(value)
    if value is None:
        return HIDDEN
    if name.endswith("_ms"):
        return show_duration(value)
    if name == "step":
        return f"step {value + 1}: " if value else ""
    if name == "by":
        return f" by {value}" if value else ""
    if name == "detail":
        return f" ({value})" if value else ""
    if name == "note":
        return f": {render_note(value, visible)}" if value else ""
    return str(value)


def health_text(evidence: HealthEvidence) -> str:
    """`http /healthz: 503`, `tcp web: connection refused`, `command: exit code 3`."""
    check = evidence.check if evidence.check == "command" else f"{evidence.check} {evidence.target}".strip()
    return ": ".join(filter(None, (check or "health check", evidence.answer)))


def _preempted(why: attempts.Preempted, visible: Visible | None) -> str:
    by = _value("", why.by, visible)
    if why.over_quota is not None:
        return f"preempted by {by} ({_value('', why.over_quota, visible)} is over its quota)"
    return f"preempted by {by} (priority {why.priority} over {why.own_priority})"


def _pool_failed(why: attempts.PoolFailed, visible: Visible | None) -> str:
    note = _value("note", why.note, visible)
    note = f": no node in contact for {show_duration(why.silent_ms)}" if why.silent_ms else note
    outcome = {
        "moved": "moved",
        "cancelled": "cancelled",
        "fallback": f"pool {why.fallback} is used instead",
        "waiting": "waiting until the pool is ready",
    }[why.outcome]
    return f"pool {why.pool} failed{note}; {outcome}"


def _restarted(why: reason.ServiceRestarted, visible: Visible | None) -> str:
    loop = f"; crash loop: {why.failures} failures in a row" if why.is_crash_loop else ""
    return f"{render(why.cause, visible)}{loop}; restarting in {show_duration(why.delay_ms)}"


def _dependency_ended(why: reason.DependencyEnded, visible: Visible | None) -> str:
    ended = {"timed_out": "timed out", "failed": "failed", "succeeded": "succeeded", "expired": "expired"}
    state = ended.get(why.state, f"was {why.state}")
    cause = message_of(why.cause, visible)
    if why.instance is not None:
        cause = f"instance {why.instance}: {cause}"
    return f"dependency {_dependency(why, visible)} {state}" + (f" ({cause})" if cause else "")


def _dependency_unknown(why: attempts.DependencyUnknown, visible: Visible | None) -> str:
    known = "only known in part" if why.is_partial else "no longer known"
    return f"dependency {_dependency(why, visible)} is {known}"


def _dependency(
    why: reason.DependencyEnded | attempts.DependencyUnknown | attempts.DependencyWithoutOutputs,
    visible: Visible | None,
) -> str:
    if why.dependency is None or not _sees(why.dependency, visible):
        return HIDDEN
    return why.dependency.key + (f".{why.element}" if why.element is not None else "")


def _rejected(why: reason.PlacementRejected, visible: Visible | None) -> str:
    found = ["no node is online"] if why.kind == "no_nodes" else []
    for blocker in why.blockers:
        nodes_text = f" ({blocker.nodes} node{'s' * (blocker.nodes != 1)})" if blocker.nodes else ""
        found.append(render_text(blocker.text, visible) + nodes_text)
    return f"{why.kind}: {'; '.join(found)}"


def _ticks(why: TicksSkipped, visible: Visible | None) -> str:
    found = []
    if why.missed_until_ms:
        last = local_minute(why.zone, why.missed_until_ms)
        found.append(f"missed {last}" if why.is_one else f"missed ticks up to {last}")
    found += [f"{local_minute(why.zone, item.tick_ms)} skipped: {tick_text(item, visible)}" for item in why.skipped]
    return "; ".join(found)


def tick_text(tick: TickSkipped, visible: Visible | None) -> str:
    return {
        "run_active": f"{_value('', tick.workload, visible)} is still active",
        "runs_active": f"{tick.count} runs are still active",
        "name_in_use": f"the name {_value('', tick.workload, visible)} is in use",
        "minute_used": f"there are {tick.count} runs of that minute already",
        "refused": tick.error,
    }[tick.why]


def _flaky(why: nodes.NodeFlaky, _: Visible | None) -> str:
    what = f"{why.workloads} workloads" if why.workloads > 1 else "one workload that runs elsewhere"
    window, avoided = show_duration(why.window_ms), show_duration(why.avoided_ms)
    return f"{why.failures} runs of {what} failed within {window}; other nodes are preferred for {avoided}"


def _rolled_back(why: reason.RolledBack, visible: Visible | None) -> str:
    cause = f": {render(why.cause, visible)}" if why.cause is not None else ""
    return f"rolled back to version {why.version}{_value('by', why.by, visible)}{cause}"


def _rollout_failures(why: reason.RolloutFailures, visible: Visible | None) -> str:
    last = f", the last: {render(why.last, visible)}" if why.last is not None else ""
    return f"version {why.version} failed: its instances ended {why.failures} times{last}"


def _rollout_stalled(why: reason.RolloutStalled, visible: Visible | None) -> str:
    text = f"version {why.version} failed: no instance became available within {show_duration(why.limit_ms)}"
    if why.health is not None:
        return f"{text}; its health check: {health_text(why.health)}"
    return f"{text}; the last ended: {render(why.last, visible)}" if why.last is not None else text


def _result_not_kept(why: attempts.ResultNotKept, _: Visible | None) -> str:
    most = show_bytes(RESULT_BYTES_MAX)
    texts = {
        ResultProblem.TOO_LARGE: f"it has {why.size:,} bytes, and {most} are allowed",
        ResultProblem.TOO_DEEP: f"it has more than {RESULT_DEPTH_MAX} levels of arrays and objects",
        ResultProblem.NOT_JSON: "it is not JSON",
        ResultProblem.NOT_A_FILE: "ROOST_RESULT is a link, a directory or another special file",
        ResultProblem.UNREADABLE: "the agent cannot read the file",
        ResultProblem.NODE_FULL: "its node has too many results that the server has not received",
        ResultProblem.PROJECT_FULL: "the results of its project take all the memory that a project has for them",
        ResultProblem.SERVER_FULL: "the results of all projects take all the memory that the server has for them",
    }
    return f"result not kept: {texts[why.problem]}"


def _above_use(why: needs.RequestAboveUse, _: object) -> str:
    if why.resource == "memory":
        asked, used = f"{show_bytes(why.asked)} of memory", show_bytes(why.used_max)
    else:
        asked, used = f"{show_cpu(why.asked)} cpu", f"{show_cpu(why.used_max)} on average"
    return f"asks for {asked}, its last {why.runs} runs used at most {used}"


SENTENCES: dict[type, str | Callable[[Any, Visible | None], str]] = {
    **FILE_SENTENCES,
    attempts.Submitted: "submitted",
    attempts.RecoveredFromAgent: "submitted to an earlier server",
    attempts.NotReported: "no agent reported it",
    attempts.ScaledUp: "scaled up",
    attempts.SurgeReplica: "surge replica while others are replaced",
    attempts.WaitingForDependencies: "waiting for its dependencies",
    attempts.DependenciesMet: "dependencies met",
    attempts.NeedsApproval: "it needs approval by a user with the role {role}",
    attempts.Approved: "approved{by}",
    attempts.ConditionFalse: "its condition is false: {condition}",
    attempts.ConditionUnclear: "its condition cannot be evaluated: {condition}: {error}",
    attempts.Superseded: "superseded by {superseded_by}",
    attempts.OwnerEnded: "{owner} is finished",
    attempts.PlacedOnNode: "on {node} by {strategy}",
    attempts.PlacedWithImage: "on {node}, which has its image, by {strategy}",
    attempts.Prefilled: "on {node}, behind {behind}",
    attempts.AcceptedByAgent: "accepted by the agent",
    attempts.ImagePulled: "accepted by the agent, which fetched its image in {pull_ms}",
    attempts.ProcessStarted: "started",
    attempts.AdoptedFromAgent: "adopted from its agent",
    attempts.UpdatedInPlace: "updated in place to version {version}",
    attempts.ExitCode: "{step}exit code {exit_code}",
    attempts.KilledBySignal: "{step}killed by signal {signal}{detail}",
    attempts.TimeoutExceeded: "{step}timeout of {limit_ms} exceeded",
    attempts.StartFailed: lambda why, _: _value("step", why.step, None) + (why.error or "could not be started"),
    attempts.HealthCheckFailed: "{step}unhealthy: {evidence}",
    attempts.ResultReported: "exit code {exit_code}, reported{by}{note}",
    attempts.ResultNotKept: _result_not_kept,
    attempts.OutputsMissing: lambda why, _: f"required outputs are missing: {gaps_text(why.gaps, why.more)}",
    attempts.OutputsNotKept: lambda why, _: f"outputs not kept: {gaps_text(why.gaps, why.more)}",
    attempts.LeaseExpired: "lease of node {node} expired",
    attempts.StoppedByNode: "node {node} stopped it",
    attempts.StreamClosed: "node {node} disconnected",
    attempts.MissingOnNode: "node {node} came back without it",
    attempts.PinnedToLostNode: lambda why, _: (
        f"node {why.node} lost since {local_minute('UTC', why.since_ms)}; it is not known whether it still runs"
    ),
    attempts.NodeReturned: "node {node} is back",
    attempts.CancelRequested: "cancelled{by}",
    attempts.RetryRequested: "retry requested{by}",
    attempts.RunReplaced: lambda why, visible: f"replaced by {_value('', why.by, visible)}",
    attempts.Preempted: _preempted,
    attempts.NodeReserved: "node {node} is reserved for {project}",
    attempts.GangRestart: "{member} of its gang starts again",
    attempts.NodeDraining: "node {node} is draining",
    attempts.PoolDraining: "pool {pool} is draining{note}",
    attempts.PoolFailed: _pool_failed,
    attempts.PrefillTimeout: "the attempt before it takes too long",
    attempts.UpdatedToVersion: "updated to version {version}",
    attempts.ScaledDown: "scaled down to {count}",
    attempts.DeadlinePassed: "deadline passed",
    attempts.DeadlineUnreachable: "deadline cannot be met: it takes {expected_ms}, and {left_ms} are left",
    attempts.QueueTimeout: "queue timeout of {limit_ms} exceeded",
    attempts.DependencyUnknown: _dependency_unknown,
    attempts.DependencyWithoutOutputs: lambda why, visible: f"dependency {_dependency(why, visible)} has no outputs",
    attempts.TicksSkipped: _ticks,
    power.PowerRequested: "{action} of the vm requested{by}",
    power.PowerDone: lambda why, _: f"vm {POWER_DONE[why.action]}{_value('by', why.by, None)}",
    power.PowerFailed: "{action} of the vm failed: {problem}",
    power.PowerReported: "the vm is {power} without a command",
    power.VmStays: "it stays on its node, which is to be emptied: `move: {move}` does not let it be stopped for that",
    power.PowerKept: "the vm begins stopped, as it was before",
    needs.RequestAboveUse: _above_use,
    reason.NodeLost: "node {node} lost: {cause}",
    reason.MovedToQueue: "moved: {cause}",
    reason.AttemptRetried: "{cause}; attempt {attempt} of {attempts_max}",
    reason.ServiceRestarted: _restarted,
    reason.RestartDisabled: "{cause}; its restart policy does not restart it",
    reason.RescheduleDisabled: "{cause}; it is not rescheduled",
    reason.RetriesExhausted: "{cause}; no retries left ({retries_max})",
    reason.DependencyEnded: _dependency_ended,
    reason.PlacementRejected: _rejected,
    nodes.NodeRegistered: "agent connected",
    nodes.NodeStreamClosed: "stream closed",
    nodes.NodeLeaving: "agent is shutting down",
    nodes.NodeLeft: "agent shut down",
    nodes.HeartbeatsMissing: lambda why, _: (
        f"no heartbeat for {show_duration(why.lease_ms)}" + "; kept during maintenance" * why.in_maintenance
    ),
    nodes.HeartbeatsResumed: "heartbeats resumed",
    nodes.DrainRequested: "drain requested{by}",
    nodes.DrainCompleted: "drain completed",
    nodes.CordonRequested: "cordoned{by}",
    nodes.UncordonRequested: "uncordoned{by}",
    nodes.NodeRemoved: "removed{by}",
    nodes.NodeFlaky: _flaky,
    nodes.NodeFlakyEnded: "used like other nodes again",
    reason.VersionApplied: "applied{by}",
    reason.RolledBack: _rolled_back,
    reason.RolloutFailures: _rollout_failures,
    reason.RolloutStalled: _rollout_stalled,
}
