"""Between protobuf messages and the frames of the model. Both sides use these two pairs of functions."""

from collections.abc import Iterable
from typing import cast

import msgspec
from google.protobuf.unknown_fields import UnknownFieldSet

from roost.model.limits import PORT_ANY_FIRST, PORT_ANY_LAST
from roost.model.protocol import (
    Answer,
    Beat,
    CopyOrder,
    CopyProblem,
    CopyReport,
    Drop,
    Hello,
    Order,
    PowerOrder,
    Report,
    Run,
    Stop,
    Usage,
    Welcome,
)
from roost.model.records.files import FileSet, InputFailure, InputProblem, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.node import Facts
from roost.model.records.result import Result, ResultProblem
from roost.model.records.secret import Handed
from roost.model.records.usage import RunUsage
from roost.model.states import AttemptState, EndCause, IsolationLevel, PowerAction
from roost.model.tunnels import TunnelOrder
from roost.wire import agent_pb2 as pb

POWER_ACTIONS = frozenset(PowerAction)


def pack_agent(frame: Hello | Beat) -> pb.AgentFrame:
    if isinstance(frame, Hello):
        return pb.AgentFrame(hello=_pack_hello(frame))
    fields = msgspec.structs.asdict(frame)
    fields["reports"] = [_pack_report(report) for report in frame.reports]
    if frame.usage is not None:
        usage = msgspec.structs.asdict(frame.usage)
        del usage["at_ms"]
        fields["usage"] = pb.Usage(**usage)
    return pb.AgentFrame(beat=pb.Beat(**fields))


def unpack_agent(frame: pb.AgentFrame) -> Hello | Beat | None:
    """What an agent sent; None for a kind of frame this version does not know."""
    kind = frame.WhichOneof("frame")
    if kind == "beat":
        beat = frame.beat
        usage = beat.usage
        return Beat(
            beat.session, beat.sequence, beat.sent_ms, beat.generation,
            tuple([_unpack_report(report) for report in beat.reports]),
            _unpack_usage(usage) if beat.HasField("usage") else None, beat.lacking,
            beat.leaving,
        )  # fmt: skip
    return _unpack_hello(frame.hello) if kind == "hello" else None


def _unpack_usage(usage: pb.Usage) -> Usage:
    restarts = dict(usage.task_restarts)
    pulling, images = dict(usage.pulling), tuple(usage.images)
    return Usage(usage.cpu_milli, usage.memory, usage.disk, 0, restarts, usage.logs_stuck_ms, pulling, images)


def pack_server(frame: Welcome | Answer) -> pb.ServerFrame:
    fields = msgspec.structs.asdict(frame)
    fields["orders"] = [_pack_order(order) for order in frame.orders]
    if isinstance(frame, Welcome):
        return pb.ServerFrame(welcome=pb.Welcome(**fields))
    return pb.ServerFrame(answer=pb.Answer(**fields))


def unpack_server(frame: pb.ServerFrame) -> Welcome | Answer | None:
    """What a server sent; None: a frame, an order or a field of an order that this release does not know."""
    kind = frame.WhichOneof("frame")
    if not all(_is_known(order) for order in (frame.answer if kind == "answer" else frame.welcome).orders):
        return None
    if kind == "answer":
        answer = frame.answer
        return Answer(
            answer.session, answer.echo_ms, answer.acknowledged, answer.base, answer.generation, answer.whole,
            _unpack_orders(answer.orders), answer.lease_ms,
        )  # fmt: skip
    if kind == "welcome":
        welcome = frame.welcome
        return Welcome(
            welcome.session, welcome.echo_ms, welcome.lease_ms, welcome.generation, _unpack_orders(welcome.orders),
            welcome.protocol, welcome.software,
        )  # fmt: skip
    return None


def _pack_hello(hello: Hello) -> pb.Hello:
    return pb.Hello(
        node=hello.node, identity=hello.identity, sent_ms=hello.sent_ms, protocol=hello.protocol,
        software=hello.software,
        facts=pb.Facts(**msgspec.structs.asdict(hello.facts)),
        runs=[pb.Held(run=_pack_run(run), report=_pack_report(report)) for run, report in hello.runs],
    )  # fmt: skip


def _unpack_hello(hello: pb.Hello) -> Hello:
    packed = hello.facts
    facts = Facts(
        dict(packed.resources), dict(packed.labels), packed.zone, packed.rack, packed.region, packed.pool, packed.arch,
        tuple(packed.drivers), packed.gpu_model, tuple(packed.taints), packed.address,
        packed.port_first or PORT_ANY_FIRST, packed.port_last or PORT_ANY_LAST, packed.user, tuple(packed.enforces),
        tuple(packed.volumes), tuple(packed.vm), _isolation_of(packed.isolation), packed.users,
    )  # fmt: skip
    runs = tuple([(_unpack_run(run.run), _unpack_report(run.report)) for run in hello.runs])
    return Hello(hello.node, hello.identity, facts, hello.sent_ms, runs, hello.protocol, hello.software)


def _isolation_of(level: str) -> IsolationLevel:
    """One that this release does not know promises nothing."""
    return IsolationLevel(level) if level in set(IsolationLevel) else IsolationLevel.NONE


def _pack_order(order: Order) -> pb.Order:
    if isinstance(order, Run):
        packed = _pack_run(order)
        if order.secrets is not None:
            packed.refusal = order.secrets.refusal
            packed.secrets.update(order.secrets.values)
        return pb.Order(run=packed)
    if isinstance(order, Stop):
        return pb.Order(stop=pb.Stop(**msgspec.structs.asdict(order)))
    if isinstance(order, PowerOrder):
        return pb.Order(power=pb.Power(**msgspec.structs.asdict(order)))
    return pb.Order(drop=pb.Drop(token=order.token))


def _is_known(order: pb.Order) -> bool:
    kind = order.WhichOneof("order")
    if kind is None or (kind == "power" and order.power.action not in POWER_ACTIONS):
        return False
    return not len(UnknownFieldSet(getattr(order, kind)))


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
        elif kind == "power":
            power = order.power
            unpacked.append(PowerOrder(power.token, power.serial, PowerAction(power.action), power.grace_ms))
    return tuple(unpacked)


def _unpack_order(run: pb.Run) -> Run:
    """With its secrets, which only orders have: what an agent tells of its runs goes to others."""
    unpacked = _unpack_run(run)
    if not run.secrets and not run.refusal:
        return unpacked
    return msgspec.structs.replace(unpacked, secrets=Handed(dict(run.secrets), run.refusal))


def _pack_run(run: Run) -> pb.Run:
    """Without its secrets."""
    fields = msgspec.structs.asdict(run)
    fields["env"] = [pb.Variable(name=name, value=value) for name, value in run.env]
    fields["inputs"] = [pb.RunInput(**msgspec.structs.asdict(item)) for item in run.inputs]
    del fields["secrets"]
    return pb.Run(**fields)


def _unpack_run(run: pb.Run) -> Run:
    return Run(
        run.token, run.workload, run.index, run.attempt, run.document, run.timeout_ms, run.grace_ms, run.leased,
        run.submitted_ms, run.serial, tuple(run.devices), tuple(run.ports), run.version or 1,
        tuple([(variable.name, variable.value) for variable in run.env]), run.after,
        tuple([RunInput(item.to, item.digest, item.path, item.url, item.sha256, item.optional) for item in run.inputs]),
        run.power,
    )  # fmt: skip


def _pack_report(report: Report) -> pb.Report:
    fields = msgspec.structs.asdict(report)
    result = report.result
    if result is not None:
        fields["result"] = pb.Result(data=result.data, problem=result.problem or "", size=result.size)
    if report.inputs_failed is not None:
        fields["inputs_failed"] = pb.InputFailure(**msgspec.structs.asdict(report.inputs_failed))
    if report.outputs is not None:
        fields["outputs"] = _pack_outputs(report.outputs)
    if report.usage is not None:
        usage = msgspec.structs.asdict(report.usage)
        del usage["wall_ms"]  # the server counts it
        fields["usage"] = pb.RunUsage(**usage)
    return pb.Report(unready=not fields.pop("ready"), **fields)


def _pack_outputs(outputs: Outputs) -> pb.Outputs:
    found = outputs.files or FileSet("")
    gaps = [pb.OutputGap(problem=gap.problem, path=gap.path, required=gap.required) for gap in outputs.gaps]
    return pb.Outputs(digest=found.digest, files=found.files, size=found.size, gaps=gaps, more_gaps=outputs.more_gaps)


def _unpack_report(report: pb.Report) -> Report:
    # What a newer agent reports may be unknown here: the gateway checks these words before anything else reads them.
    state, cause = cast(AttemptState, report.state), cast(EndCause, report.cause)
    return Report(
        report.token, state, report.started_ago_ms, report.ended_ago_ms, cause,
        report.code if report.HasField("code") else None, report.signal if report.HasField("signal") else None,
        report.step, report.error, not report.unready, report.log_size,
        report.stderr_size if report.HasField("stderr_size") else None,
        _unpack_result(report.result) if report.HasField("result") else None,
        _unpack_failure(report.inputs_failed) if report.HasField("inputs_failed") else None, report.image,
        _unpack_outputs(report.outputs) if report.HasField("outputs") else None, report.power, report.power_serial,
        report.power_problem, _unpack_run_usage(report.usage) if report.HasField("usage") else None,
        report.pulled_ms,
    )  # fmt: skip


def _unpack_run_usage(usage: pb.RunUsage) -> RunUsage:
    return RunUsage(
        usage.cpu_ms if usage.HasField("cpu_ms") else None,
        usage.memory_max if usage.HasField("memory_max") else None, usage.memory_is_bound,
        usage.io_read if usage.HasField("io_read") else None,
        usage.io_written if usage.HasField("io_written") else None,
    )  # fmt: skip


def _unpack_result(result: pb.Result) -> Result:
    return Result(result.data, cast(ResultProblem, result.problem) if result.problem else None, result.size)


def _unpack_failure(failure: pb.InputFailure) -> InputFailure:
    problem = cast(InputProblem, failure.problem)
    return InputFailure(problem, failure.path, failure.status, failure.detail, failure.is_final)


def _unpack_outputs(outputs: pb.Outputs) -> Outputs:
    gaps = tuple([OutputGap(cast(OutputProblem, gap.problem), gap.path, gap.required) for gap in outputs.gaps])
    files = FileSet(outputs.digest, outputs.files, outputs.size) if outputs.digest else None
    return Outputs(files, gaps, outputs.more_gaps)


def pack_copy(order: CopyOrder) -> pb.Copy:
    return pb.Copy(**msgspec.structs.asdict(order))


def unpack_copy(order: pb.Copy) -> CopyOrder:
    return CopyOrder(order.id, order.token, order.path, order.digest, order.name, order.bytes_max, order.is_file)


def pack_copy_report(report: CopyReport) -> pb.CopyReport:
    fields = msgspec.structs.asdict(report)
    fields["outputs"] = _pack_outputs(report.outputs) if report.outputs is not None else None
    fields["problem"] = report.problem or ""
    return pb.CopyReport(**fields)


def unpack_copy_report(report: pb.CopyReport) -> CopyReport:
    return CopyReport(
        report.id, report.token, cast(CopyProblem, report.problem) if report.problem else None, report.message,
        _unpack_outputs(report.outputs) if report.HasField("outputs") else None, report.is_file, report.place,
        tuple(report.grown),
    )  # fmt: skip


def pack_tunnel(order: TunnelOrder) -> pb.TunnelOrder:
    return pb.TunnelOrder(**msgspec.structs.asdict(order))


def unpack_tunnel(order: pb.TunnelOrder) -> TunnelOrder:
    return TunnelOrder(
        order.id,
        order.token,
        tuple(order.argv),
        order.terminal,
        order.rows,
        order.columns,
        order.term,
        order.port,
        order.console,
    )
