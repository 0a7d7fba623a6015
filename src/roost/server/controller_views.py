"""Views for controllers: workloads, instances and nodes as protobuf, made from what the REST API shows."""

from collections.abc import Iterable

from roost.model.instance import Move
from roost.server.views import InstanceDetail, InstanceView, Line, NodeView, WorkloadView
from roost.wire import controller_pb2 as pb


def workload_message(view: WorkloadView) -> pb.Workload:
    """What is wanted, and how far it has come."""
    return pb.Workload(
        project=view.project, name=view.name, kind=view.kind, state=view.state, count=view.count, counts=view.counts,
        priority=view.priority, cause=view.cause, submitted_ms=view.submitted_ms, finished_ms=view.finished_ms or 0,
        version=view.version,
    )  # fmt: skip


def instance_message(view: InstanceView, stages: Iterable[pb.Stage] = (), token: int = 0) -> pb.Instance:
    """One run of a workload."""
    return pb.Instance(
        project=view.project, name=view.name, index=view.index, state=view.state, attempt=view.attempt, node=view.node,
        cause=view.cause, since_ms=view.since_ms or 0, started_ms=view.started_ms or 0,
        finished_ms=view.finished_ms or 0, exit_code=view.exit_code, signal=view.signal, step=view.step,
        losses=view.losses, failures=view.failures, token=token, stages=stages,
        version=view.version, ready=view.ready, sick=view.sick,
    )  # fmt: skip


def detail_message(view: InstanceDetail) -> pb.Instance:
    """One run with its token and its story."""
    return instance_message(view, stages_of(view, view.story), view.token)


def stages_of(view: InstanceView, lines: Iterable[Line | Move]) -> list[pb.Stage]:
    """The last lines of a story as stages. A line does not say of which attempt it is, but attempts begin when placed.

    Where an earlier attempt was is not kept; where this one is can be said of all its lines.
    """
    stages: list[pb.Stage] = []
    attempt, node, step = view.attempt, view.node, view.step
    for line in reversed(list(lines)):
        stages.append(
            pb.Stage(
                state=line.state, cause=line.cause, at_ms=line.at_ms, revision=line.revision, attempt=attempt,
                node=node, step=step,
            )
        )  # fmt: skip
        step = 0
        if line.state == "placed":
            attempt, node = max(0, attempt - 1), ""
    stages.reverse()
    return stages


def node_message(view: NodeView) -> pb.Node:
    """A machine: what it is, how full it is, and what it measures."""
    usage = view.usage
    return pb.Node(
        name=view.name, status=view.status, connected=view.connected, draining=view.draining, pool=view.pool,
        zone=view.zone, rack=view.rack, region=view.region, arch=view.arch, drivers=view.drivers,
        gpu_model=view.gpu_model, taints=view.taints, labels=view.labels,
        resources={name: pb.Room(used=room.used, total=room.total) for name, room in view.resources.items()},
        usage=pb.Usage(cpu_milli=usage.cpu_milli, memory=usage.memory, disk=usage.disk) if usage else None,
        running=view.running, joined_ms=view.joined_ms, cordoned=view.cordoned,
        flaky_until_ms=view.flaky_until_ms or 0,
    )  # fmt: skip
