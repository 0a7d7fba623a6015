"""Changes as controllers get them: encoded once for all, on the first wish, and kept with their commit in the ring.

A frame of many changes is its changes one after the other: that is how protobuf writes what is repeated. So a frame
for one reader is put together from bytes that all readers share, and nothing is encoded twice.
"""

from typing import Any, NamedTuple

from roost.core.state import State
from roost.model.states import FINISHED
from roost.server.auth_veil import Veil
from roost.server.controller_views import instance_message, node_message, stages_of, workload_message
from roost.server.views import InstanceView, WorkloadView, instance_view, live_view, node_view
from roost.server.watch import Commit
from roost.wire import controller_pb2 as pb

STOPS = FINISHED | {"lost", "stopping"}  # and `queued`, after anything: see _is_stop
NOTHING: tuple[str, ...] = ()


class Encoded(NamedTuple):
    """One change, ready to be sent."""

    data: bytes  # a frame with nothing else in it
    words: tuple[str, ...] = NOTHING  # what it says that may name others
    states: tuple[str, ...] = NOTHING  # of an instance: those it went through
    is_stop: bool = False  # it tells of a stop, so nothing may take its place


def encoded(commit: Commit, at: int) -> Encoded:
    """A change of a commit."""
    known: Encoded | None = commit.messages.get(at)
    if known is None:
        known = commit.messages[at] = _encode(commit, at)
    return known


def encode_record(state: State, kind: str, key: str) -> Encoded | None:
    """An object as it is now; None when there is none any more."""
    revision = state.revision
    if kind == "instance":
        instance = state.instances.get(key)
        return _instance(instance_view(instance), [], revision) if instance is not None else None
    if kind == "workload":
        workload = state.workloads.get(key)
        return _workload(live_view(state, workload), revision) if workload is not None else None
    if key not in state.nodes:
        return None
    return _sealed(pb.Change(revision=revision, node=node_message(node_view(state, key))))


def encode_metrics(state: State, names: list[str]) -> bytes:
    """What nodes measure of themselves, as a frame."""
    metrics: list[pb.Metrics] = []
    for name in names:
        contact = state.contacts.get(name)
        if contact is not None and contact.usage is not None:
            used = contact.usage
            usage = pb.Usage(cpu_milli=used.cpu_milli, memory=used.memory, disk=used.disk)
            metrics.append(pb.Metrics(node=name, at_ms=state.now_ms, usage=usage))
    return pb.WatchFrame(metrics=metrics).SerializeToString()


def veiled(change: Encoded, veil: Veil) -> bytes:
    """The same bytes as for all, unless their words name what is not to be seen."""
    if veil.is_open or all(veil.words(words) == words for words in change.words):
        return change.data
    frame = pb.WatchFrame.FromString(change.data)
    for told in frame.changes:
        if told.HasField("instance"):
            told.instance.cause = veil.words(told.instance.cause)
            for stage in told.instance.stages:
                stage.cause = veil.words(stage.cause)
        elif told.HasField("workload"):
            told.workload.cause = veil.words(told.workload.cause)
    return frame.SerializeToString()


def _encode(commit: Commit, at: int) -> Encoded:
    kind, key, value = commit.changes[at]
    if value is None:
        return _sealed(pb.Change(revision=commit.revision, gone=pb.Gone(kind=kind, key=key)))
    if kind == "instance":
        instance = commit.instance(at)
        view = instance_view(instance)
        stages = stages_of(view, [line for line in instance.story if line.revision > commit.before])
        return _instance(view, stages, commit.revision)
    if kind == "workload":
        return _workload(commit.view(at), commit.revision)
    return _sealed(pb.Change(revision=commit.revision, node=node_message(commit.view(at))))


def _instance(view: InstanceView, stages: list[pb.Stage], revision: int) -> Encoded:
    change = pb.Change(revision=revision, instance=instance_message(view, stages))
    states = (view.state, *(stage.state for stage in stages))
    words = (view.cause, *(stage.cause for stage in stages))
    return _sealed(change, words=words, states=states, is_stop=any(map(_is_stop, stages)))


def _is_stop(stage: pb.Stage) -> bool:
    """Something ended. An attempt that is to be made again is queued straight away, and says why."""
    return stage.state in STOPS or (stage.state == "queued" and stage.attempt > 0)


def _workload(view: WorkloadView, revision: int) -> Encoded:
    change = pb.Change(revision=revision, workload=workload_message(view))
    return _sealed(change, words=(view.cause,), is_stop=view.finished_ms is not None)


def _sealed(change: pb.Change, **more: Any) -> Encoded:
    return Encoded(pb.WatchFrame(changes=[change]).SerializeToString(), **more)
