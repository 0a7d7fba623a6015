"""Views and changes as protobuf, for controllers. A change is encoded once for all readers, and kept in the ring.

A frame of many changes is its changes one after the other: that is how protobuf writes what is repeated. So a frame
for one reader is put together from bytes that all readers share, and nothing is encoded twice.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import Message

from roost.core.state.state import State
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.transition import InstanceTransition
from roost.model.records.workload import Workload
from roost.model.states import FINISHED, InstanceState
from roost.schema.reason_text import ReasonView, Visible, render
from roost.schema.reason_text import message_of as sentence_of
from roost.schema.work import InstanceDetail, InstanceView, RunUsageView, StoryLine, WorkloadView
from roost.server.auth.principal import Redactor
from roost.server.feed.change_log import CommittedChanges
from roost.server.views.work import instance_view, live_view, node_view
from roost.wire import controller_pb2 as pb

STOPS = FINISHED | {InstanceState.LOST, InstanceState.STOPPING}  # and `queued`, after anything: see _is_stop
NOTHING: tuple[str, ...] = ()

M = TypeVar("M", bound=Message)


class Encoded(NamedTuple):
    data: bytes  # a frame with nothing else in it
    reasons: tuple[Reason | None, ...] = ()  # why, and why each stage: they may name others
    states: tuple[str, ...] = NOTHING  # of an instance: those it went through
    is_stop: bool = False  # it tells of a stop, so nothing may take its place


def encoded(commit: CommittedChanges, at: int) -> Encoded:
    known: Encoded | None = commit.messages.get(at)
    if known is None:
        known = commit.messages[at] = _encode(commit, at)
    return known


def encode_record(state: State, kind: str, key: str) -> Encoded | None:
    revision = state.revision
    if kind == "instance":
        instance = state.instances.get(key)
        return _instance(instance, [], revision) if instance is not None else None
    if kind == "workload":
        workload = state.workloads.get(key)
        return _workload(live_view(state, workload), workload, revision) if workload is not None else None
    if key not in state.nodes:
        return None
    return _sealed(pb.Change(revision=revision, node=message_of(node_view(state, key), pb.Node)))


def encode_metrics(state: State, names: list[str]) -> bytes:
    metrics: list[pb.Metrics] = []
    for name in names:
        contact = state.liveness.get(name)
        if contact is not None and contact.usage is not None:
            used = contact.usage
            usage = pb.Usage(cpu_milli=used.cpu_milli, memory=used.memory, disk=used.disk)
            metrics.append(pb.Metrics(node=name, at_ms=used.at_ms, usage=usage))
    return pb.WatchFrame(metrics=metrics).SerializeToString()


def redacted(change: Encoded, redactor: Redactor) -> bytes:
    """The shared bytes, unless a message names work that the reader may not see."""
    visible = redactor.visible
    if visible is None or all(sentence_of(why) == sentence_of(why, visible) for why in change.reasons):
        return change.data
    frame = pb.WatchFrame.FromString(change.data)
    report, (own, *others) = frame.changes[0], change.reasons
    if report.HasField("instance"):
        report.instance.message = sentence_of(own, visible)
        for stage, why in zip(report.instance.stages, others, strict=True):
            stage.message = sentence_of(why, visible)
    else:
        report.workload.message = sentence_of(own, visible)
    return frame.SerializeToString()


def _encode(commit: CommittedChanges, at: int) -> Encoded:
    kind, key = commit.changes[at].record
    if commit.changes[at].value is None:
        return _sealed(pb.Change(revision=commit.revision, gone=pb.Gone(kind=kind, key=key)))
    if kind == "instance":
        instance = commit.instance(at)
        return _instance(instance, [line for line in instance.story if line.revision > commit.before], commit.revision)
    if kind == "workload":
        return _workload(commit.view(at), commit.workload(at), commit.revision)
    return _sealed(pb.Change(revision=commit.revision, node=message_of(commit.view(at), pb.Node)))


def _instance(instance: Instance, lines: list[InstanceTransition], revision: int) -> Encoded:
    stages = stages_of(lines)
    change = pb.Change(revision=revision, instance=instance_message(instance_view(instance), stages))
    states = (instance.state, *(line.state for line in lines))
    reasons = (instance.reason, *(line.reason for line in lines))
    return _sealed(change, reasons=reasons, states=states, is_stop=any(map(_is_stop, lines)))


def _is_stop(line: InstanceTransition) -> bool:
    """An attempt ended. One that is to be retried is queued at once, and its line says why."""
    return line.state in STOPS or (line.state == "queued" and line.attempt > 0)


def _workload(view: WorkloadView, workload: Workload, revision: int) -> Encoded:
    change = pb.Change(revision=revision, workload=workload_message(view))
    return _sealed(change, reasons=(workload.reason,), is_stop=view.finished_ms is not None)


def _sealed(change: pb.Change, **more: Any) -> Encoded:
    return Encoded(pb.WatchFrame(changes=[change]).SerializeToString(), **more)


def workload_message(view: WorkloadView, result: str = "") -> pb.Workload:
    return pb.Workload(
        project=view.project, name=view.name, kind=view.kind, state=view.state, count=view.count,
        counts={state.value: number for state, number in view.counts.items()},
        priority=view.priority, message=view.message, submitted_ms=view.submitted_ms, finished_ms=view.finished_ms or 0,
        version=view.version, result=result, reason=_code(view.reason), template=view.template,
    )  # fmt: skip


def instance_message(view: InstanceView, stages: Iterable[pb.Stage] = (), token: int = 0) -> pb.Instance:
    return pb.Instance(
        project=view.project, name=view.name, index=view.index, state=view.state, attempt=view.attempt, node=view.node,
        message=view.message, since_ms=view.since_ms or 0, started_ms=view.started_ms or 0,
        finished_ms=view.finished_ms or 0, exit_code=view.exit_code, signal=view.signal, step=view.step,
        losses=view.losses, failures=view.failures, token=token, stages=stages,
        version=view.version, ready=view.ready, sick=view.health_message, reason=_code(view.reason),
        usage=_usage(view.usage),
    )  # fmt: skip


def _usage(view: RunUsageView | None) -> pb.RunUsage | None:
    if view is None:
        return None
    return pb.RunUsage(
        wall_ms=view.wall_ms, cpu_ms=view.cpu_ms, memory_max=view.memory_max, memory_is_bound=view.memory_is_bound,
        io_read=view.io_read, io_written=view.io_written,
    )  # fmt: skip


def detail_message(view: InstanceDetail) -> pb.Instance:
    return instance_message(view, [_stage(line, line.message) for line in view.story], view.token)


def stages_of(lines: Sequence[InstanceTransition], visible: Visible | None = None) -> list[pb.Stage]:
    return [_stage(line, render(line.reason, visible)) for line in lines]


def _stage(line: InstanceTransition | StoryLine, message: str) -> pb.Stage:
    return pb.Stage(
        state=line.state, message=message, at_ms=line.at_ms, revision=line.revision, attempt=line.attempt,
        node=line.node, step=line.step, reason=_code(line.reason),
    )  # fmt: skip


def _code(reason: Reason | ReasonView | None) -> str:
    return "" if reason is None else reason.code


def message_of(view: Any, kind: type[M]) -> M:
    """A view of the REST API as a message whose fields have the same names."""
    message = kind()
    if view is not None:
        _fill(message, view)
    return message


def _fill(message: Message, view: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        value = getattr(view, field.name)
        if value is None:
            continue
        if isinstance(value, ReasonView):
            value = value.code
        target = getattr(message, field.name)
        if isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, msgspec.Struct):
                    _fill(target[key], item)
                else:
                    target[key] = item
        elif isinstance(value, list):
            if field.message_type is None:
                target.extend(value)
            else:
                for item in value:
                    _fill(target.add(), item)
        elif field.message_type is None:
            setattr(message, field.name, value)
        else:
            target.SetInParent()
            _fill(target, value)
