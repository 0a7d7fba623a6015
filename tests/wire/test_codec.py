"""What goes over the wire comes back as it was, and what older ones leave out means what it meant to them."""

import pytest

from roost.model.protocol import Answer, Beat, Drop, Hello, PowerOrder, Report, Run, Stop, Usage, Welcome
from roost.model.records.files import FileSet, InputFailure, InputProblem, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.node import Facts
from roost.model.records.result import Result, ResultProblem
from roost.model.records.usage import RunUsage
from roost.model.states import PowerAction
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_agent, pack_server, unpack_agent, unpack_server

DIGEST = "sha256:" + "0" * 64
RUN = Run(
    1 << 60, "default/web", 3, 2, b"\x00\xff", 1, 2, False, 3, 4, (0, 1), (8_080,), 7,
    (("PEER", "10.0.0.1:8080"), ("EMPTY", ""), ("PEER", "again")), 5,
)  # fmt: skip
WITH_INPUTS = Run(
    3, "default/job", 0, 1, b"",
    inputs=(
        RunInput("in/0", DIGEST, "dist/*", optional=True),
        RunInput("x", url="https://example.org/x", sha256="0" * 64),
    ),
)  # fmt: skip
STOPPED = Run(4, "default/machine", 0, 1, b"", power="stopped")
PLAIN = Run(2, "default/job", 0, 1, b"")
RESULT = Result(b'{"n":1}', size=9)
REPORT = Report(1 << 60, "ended", 5, 3, "unhealthy", None, 15, 2, "http /: 503", False, 12, 3, RESULT)
NO_URL = InputFailure(InputProblem.URL_FAILED, "in/tool", 503, "example.org answers 503", is_final=False)
GAPS = (OutputGap(OutputProblem.MISSING, "*.xml", required=True), OutputGap(OutputProblem.NOT_STORED))
OUTPUTS = [
    Report(token, "ended", outputs=outputs)
    for token, outputs in enumerate((Outputs(FileSet(DIGEST, 3, 1 << 40), GAPS), Outputs(None, GAPS, 7), Outputs()), 10)
]
LARGE = Report(3, "ended", result=Result(problem=ResultProblem.TOO_LARGE, size=1 << 40))
FACTS = Facts(
    {"cpu": 1}, {"a": "b"}, "zone", "rack", "region", "pool", "arch", ("process", "x"), "T4", ("gpu",), "10.1.2.3"
)


@pytest.mark.parametrize(
    "frame",
    [
        Hello("n", "machine/1", FACTS, 9, ((RUN, REPORT), (PLAIN, Report(2, "running")))),
        Beat(1, 2, 3, 4, (REPORT, LARGE, Report(2, "running", 7)), Usage(1, 2, 3), True, True),
        Beat(1, 2, 3, 4),
        Beat(1, 2, 3, 4, tuple(OUTPUTS)),
        Beat(1, 2, 3, 4, (Report(4, "ended", cause="error", inputs_failed=NO_URL),)),
        Hello("n", "machine/1", FACTS, 9, ((WITH_INPUTS, OUTPUTS[0]),)),
        Hello("n", "machine/1", FACTS, 9, ((STOPPED, Report(4, "running", power="stopped", power_serial=1 << 60)),)),
        Beat(1, 2, 3, 4, (Report(4, "ended", usage=RunUsage(0, 9, True, 1, 0)), Report(5, "ended", usage=RunUsage()))),
        Beat(1, 2, 3, 4, (Report(4, "running", power="paused", power_serial=2, power_problem="no answer"),)),
    ],
)
def test_what_an_agent_says_arrives_as_it_was(frame: Hello | Beat) -> None:
    assert unpack_agent(pb.AgentFrame.FromString(pack_agent(frame).SerializeToString())) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Welcome(1, 2, 3, 4, (RUN, PLAIN, Stop(5, 6, "asked for"), Drop(7))),
        Welcome(1, 2, 3, 4, (STOPPED, PowerOrder(5, 6, PowerAction.STOP, 7), PowerOrder(5, 8, PowerAction.RESET))),
        Answer(1, 2, 3, 4, 5, True, (RUN,), 9_000),
        Answer(1),
        Answer(1, 2, 3, 4, 5, True, (WITH_INPUTS,)),
    ],
)
def test_what_a_server_says_arrives_as_it_was(frame: Welcome | Answer) -> None:
    assert unpack_server(pb.ServerFrame.FromString(pack_server(frame).SerializeToString())) == frame


def test_what_an_older_agent_does_not_know_is_as_it_was_then() -> None:
    allocated = pb.Held(
        run=pb.Run(token=2, workload="default/job", attempt=1), report=pb.Report(token=2, state="running")
    )
    hello = unpack_agent(pb.AgentFrame(hello=pb.Hello(node="n", identity="m", facts=pb.Facts(), runs=[allocated])))
    assert isinstance(hello, Hello)
    ((run, report),) = hello.runs
    assert (run.version, run.env, report.ready, hello.facts.address) == (1, (), True, "")


UNKNOWN_FIELD = b"\x98\x06\x01"  # number 99, of a release to come


@pytest.mark.parametrize(
    "order",
    [
        pb.Order(),
        pb.Order(run=pb.Run.FromString(pb.Run(token=2).SerializeToString() + UNKNOWN_FIELD)),
        pb.Order(power=pb.Power(token=2, serial=3, action="hibernate")),
    ],
    ids=["kind", "field", "action"],
)
def test_an_order_that_this_release_does_not_know_is_not_half_followed(order: pb.Order) -> None:
    known = pb.Order(drop=pb.Drop(token=1))
    assert unpack_server(pb.ServerFrame(answer=pb.Answer(session=1, orders=[known, order]))) is None
    assert unpack_server(pb.ServerFrame(welcome=pb.Welcome(session=1, orders=[known, order]))) is None
    assert unpack_server(pb.ServerFrame(answer=pb.Answer(session=1, orders=[known]))) is not None


def test_an_older_side_has_protocol_0() -> None:
    hello = unpack_agent(pb.AgentFrame(hello=pb.Hello(node="n", identity="m", facts=pb.Facts())))
    welcome = unpack_server(pb.ServerFrame(welcome=pb.Welcome(session=1)))
    assert isinstance(hello, Hello) and isinstance(welcome, Welcome)
    assert (hello.protocol, hello.software, welcome.protocol, welcome.software) == (0, "", 0, "")
