"""Between protobuf messages and the frames of the model. Both sides use these two pairs of functions."""

from collections.abc import Iterable
from typing import cast

import msgspec

from roost.model.limits import PORT_ANY_FIRST, PORT_ANY_LAST
from roost.model.protocol import Answer, Beat, Drop, Hello, Order, Report, Run, Stop, Usage, Welcome
from roost.model.records.node import Facts
from roost.model.records.secret import Handed
from roost.model.states import AttemptState, EndCause
from roost.wire import agent_pb2 as pb


def pack_agent(frame: Hello | Beat) -> pb.AgentFrame:
    if isinstance(frame, Hello):
        return pb.AgentFrame(hello=_pack_hello(frame))
    usage = frame.usage and pb.Usage(cpu_milli=frame.usage.cpu_milli, memory=frame.usage.memory, disk=frame.usage.disk)
    beat = pb.Beat(
        session=frame.session, sequence=frame.sequence, sent_ms=frame.sent_ms, generation=frame.generation,
        reports=[_pack_report(report) for report in frame.reports], usage=usage or None, lacking=frame.lacking,
        leaving=frame.leaving,
    )  # fmt: skip
    return pb.AgentFrame(beat=beat)


def unpack_agent(frame: pb.AgentFrame) -> Hello | Beat | None:
    """What an agent sent; None for a kind of frame this version does not know."""
    kind = frame.WhichOneof("frame")
    if kind == "beat":
        beat = frame.beat
        usage = beat.usage
        return Beat(
            beat.session, beat.sequence, beat.sent_ms, beat.generation,
            tuple([_unpack_report(report) for report in beat.reports]),
            Usage(usage.cpu_milli, usage.memory, usage.disk) if beat.HasField("usage") else None, beat.lacking,
            beat.leaving,
        )  # fmt: skip
    return _unpack_hello(frame.hello) if kind == "hello" else None


def pack_server(frame: Welcome | Answer) -> pb.ServerFrame:
    orders = [_pack_order(order) for order in frame.orders] if frame.orders else None
    if isinstance(frame, Welcome):
        welcome = pb.Welcome(
            session=frame.session, echo_ms=frame.echo_ms, lease_ms=frame.lease_ms, generation=frame.generation,
            orders=orders,
        )  # fmt: skip
        return pb.ServerFrame(welcome=welcome)
    answer = pb.Answer(
        session=frame.session, echo_ms=frame.echo_ms, acknowledged=frame.acknowledged, base=frame.base,
        generation=frame.generation, whole=frame.whole, orders=orders,
    )  # fmt: skip
    return pb.ServerFrame(answer=answer)


def unpack_server(frame: pb.ServerFrame) -> Welcome | Answer | None:
    """What a server sent; None for a kind of frame this version does not know."""
    kind = frame.WhichOneof("frame")
    if kind == "answer":
        answer = frame.answer
        return Answer(
            answer.session, answer.echo_ms, answer.acknowledged, answer.base, answer.generation, answer.whole,
            _unpack_orders(answer.orders),
        )  # fmt: skip
    if kind == "welcome":
        welcome = frame.welcome
        return Welcome(
            welcome.session, welcome.echo_ms, welcome.lease_ms, welcome.generation, _unpack_orders(welcome.orders)
        )
    return None


def _pack_hello(hello: Hello) -> pb.Hello:
    return pb.Hello(
        node=hello.node, identity=hello.identity, sent_ms=hello.sent_ms,
        facts=pb.Facts(**msgspec.structs.asdict(hello.facts)),
        runs=[pb.Held(run=_pack_run(run), report=_pack_report(report)) for run, report in hello.runs],
    )  # fmt: skip


def _unpack_hello(hello: pb.Hello) -> Hello:
    packed = hello.facts
    facts = Facts(
        dict(packed.resources), dict(packed.labels), packed.zone, packed.rack, packed.region, packed.pool, packed.arch,
        tuple(packed.drivers), packed.gpu_model, tuple(packed.taints), packed.address,
        packed.port_first or PORT_ANY_FIRST, packed.port_last or PORT_ANY_LAST,
    )  # fmt: skip
    runs = tuple([(_unpack_run(run.run), _unpack_report(run.report)) for run in hello.runs])
    return Hello(hello.node, hello.identity, facts, hello.sent_ms, runs)


def _pack_order(order: Order) -> pb.Order:
    if isinstance(order, Run):
        packed = _pack_run(order)
        if order.secrets is not None:
            packed.refusal = order.secrets.refusal
            packed.secrets.update(order.secrets.values)
        return pb.Order(run=packed)
    if isinstance(order, Stop):
        return pb.Order(stop=pb.Stop(token=order.token, grace_ms=order.grace_ms, cause=order.cause))
    return pb.Order(drop=pb.Drop(token=order.token))


def _unpack_orders(orders: Iterable[pb.Order]) -> tuple[Order, ...]:
    unpacked: list[Order] = []
    for order in orders:
        kind = order.WhichOneof("order")
        if kind == "run":
            unpacked.append(_unpack_order(order.run))
        elif kind == "stop":
            unpacked.append(Stop(order.stop.token, order.stop.grace_ms, order.stop.cause))
        elif kind == "drop":
            unpacked.append(Drop(order.drop.token))
    return tuple(unpacked)


def _unpack_order(run: pb.Run) -> Run:
    """With its secrets, which only orders have: what an agent tells of its runs goes to others."""
    unpacked = _unpack_run(run)
    if not run.secrets and not run.refusal:
        return unpacked
    return msgspec.structs.replace(unpacked, secrets=Handed(dict(run.secrets), run.refusal))


def _pack_run(run: Run) -> pb.Run:
    return pb.Run(
        token=run.token, workload=run.workload, index=run.index, attempt=run.attempt, document=run.document,
        timeout_ms=run.timeout_ms, grace_ms=run.grace_ms, leased=run.leased, submitted_ms=run.submitted_ms,
        serial=run.serial, devices=run.devices, ports=run.ports, after=run.after, version=run.version,
        env=[pb.Variable(name=name, value=value) for name, value in run.env] if run.env else None,
    )  # fmt: skip


def _unpack_run(run: pb.Run) -> Run:
    return Run(
        run.token, run.workload, run.index, run.attempt, run.document, run.timeout_ms, run.grace_ms, run.leased,
        run.submitted_ms, run.serial, tuple(run.devices), tuple(run.ports), run.version or 1,
        tuple([(variable.name, variable.value) for variable in run.env]), run.after,
    )  # fmt: skip


def _pack_report(report: Report) -> pb.Report:
    return pb.Report(
        token=report.token, state=report.state, started_ago_ms=report.started_ago_ms,
        ended_ago_ms=report.ended_ago_ms, cause=report.cause, code=report.code, signal=report.signal,
        step=report.step, error=report.error, log_size=report.log_size, unready=not report.ready,
    )  # fmt: skip


def _unpack_report(report: pb.Report) -> Report:
    # What a newer agent reports may be unknown here: the gateway checks both words before anything else reads them.
    state, cause = cast(AttemptState, report.state), cast(EndCause, report.cause)
    return Report(
        report.token, state, report.started_ago_ms, report.ended_ago_ms, cause,
        report.code if report.HasField("code") else None, report.signal if report.HasField("signal") else None,
        report.step, report.error, not report.unready, report.log_size,
    )  # fmt: skip
