"""Views for controllers: workloads, instances and nodes as protobuf, made from what the REST API shows."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import Message

from roost.model.reasons.reason import Reason
from roost.model.records.transition import Transition
from roost.schema.reason_text import ReasonView, Visible, render
from roost.schema.work import InstanceDetail, InstanceView, StoryLine, WorkloadView
from roost.wire import controller_pb2 as pb

M = TypeVar("M", bound=Message)


def workload_message(view: WorkloadView, result: str = "") -> pb.Workload:
    return pb.Workload(
        project=view.project, name=view.name, kind=view.kind, state=view.state, count=view.count,
        counts={state.value: number for state, number in view.counts.items()},
        priority=view.priority, message=view.message, submitted_ms=view.submitted_ms, finished_ms=view.finished_ms or 0,
        version=view.version, result=result, reason=_code(view.reason),
    )  # fmt: skip


def instance_message(view: InstanceView, stages: Iterable[pb.Stage] = (), token: int = 0) -> pb.Instance:
    return pb.Instance(
        project=view.project, name=view.name, index=view.index, state=view.state, attempt=view.attempt, node=view.node,
        message=view.message, since_ms=view.since_ms or 0, started_ms=view.started_ms or 0,
        finished_ms=view.finished_ms or 0, exit_code=view.exit_code, signal=view.signal, step=view.step,
        losses=view.losses, failures=view.failures, token=token, stages=stages,
        version=view.version, ready=view.ready, sick=view.health_message, reason=_code(view.reason),
    )  # fmt: skip


def detail_message(view: InstanceDetail) -> pb.Instance:
    return instance_message(
        view,
        [_stage(line, line.message, view.step if line is view.story[-1] else 0) for line in view.story],
        view.token,
    )


def stages_of(lines: Sequence[Transition], step: int, visible: Visible | None = None) -> list[pb.Stage]:
    stages = [_stage(line, render(line.reason, visible), 0) for line in lines]
    if stages:
        stages[-1].step = step
    return stages


def _stage(line: Transition | StoryLine, message: str, step: int) -> pb.Stage:
    return pb.Stage(
        state=line.state, message=message, at_ms=line.at_ms, revision=line.revision, attempt=line.attempt,
        node=line.node, step=step, reason=_code(line.reason),
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
