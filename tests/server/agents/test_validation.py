"""What an agent says of itself, checked before the core hears it; each no has words."""

from typing import Any

import grpc
import pytest

from roost.model.protocol import Hello, Report, Run
from roost.model.records.files import FileSet, InputFailure, InputProblem, OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.node import Facts
from roost.model.records.result import Result
from roost.model.spec.document import encode_document, read_document
from roost.server.agents.validation import LOG_NAME, check_hello
from tests.server.gateway_server import gateway_server, played


def run_of(**fields: Any) -> Run:
    document = {"name": "job", "command": ["/bin/true"], **fields.pop("document", {})}
    given = {"token": 5, "workload": "default/job", "index": 0, "attempt": 1, "serial": 3, **fields}
    return Run(document=encode_document(read_document(document)), **given)


DIGEST = "sha256:" + "0" * 64
WITH_INPUTS: dict[str, Any] = {
    "inputs": [{"from": "blob:code", "to": "src"}, {"workload": "build", "path": "*", "to": "in"}, {"workload": "b"}]
}
INPUTS = (RunInput("src", DIGEST), RunInput("in/7", DIGEST, "*"), RunInput("", DIGEST))
OFFER = {"cpu": 1_000}
WRONG = {
    "no name": (Hello("", "m", Facts(OFFER), 0), "node: a name cannot be empty"),
    "a name that leads elsewhere": (Hello("../x", "m", Facts(OFFER), 0), "node: a name is made of"),
    "no identity": (Hello("n", "", Facts(OFFER), 0), "identity"),
    "a negative amount": (Hello("n", "m", Facts({"cpu": -1}), 0), "resources.cpu"),
    "an absurd amount": (Hello("n", "m", Facts({"memory": 1 << 60}), 0), "resources.memory"),
    "a resource without a name": (Hello("n", "m", Facts({"": 1}), 0), "resources."),
    "too many resources": (Hello("n", "m", Facts({f"r{n}": 1 for n in range(33)}), 0), "resources"),
    "a label of two lines": (Hello("n", "m", Facts(OFFER, {"a": "b\nc"}), 0), "labels.a"),
    "a long zone": (Hello("n", "m", Facts(OFFER, zone="z" * 300), 0), "zone"),
    "a bad pool": (Hello("n", "m", Facts(OFFER, pool="a/b"), 0), "pool"),
    "many drivers": (Hello("n", "m", Facts(OFFER, drivers=tuple(f"d{n}" for n in range(99))), 0), "drivers"),
    "a model of two lines": (Hello("n", "m", Facts(OFFER, gpu_model="a\nb"), 0), "gpu_model"),
    "an address of two lines": (Hello("n", "m", Facts(OFFER, address="10.0.0.1\n10.0.0.2"), 0), "address: "),
    "ports that are none": (Hello("n", "m", Facts(OFFER, port_first=70_000, port_last=80_000), 0), "port_first: "),
    "few ports": (Hello("n", "m", Facts(OFFER, port_first=20_000, port_last=20_010), 0), "port_first: "),
    "a long address": (Hello("n", "m", Facts(OFFER, address="a" * 257), 0), "address: "),
    "a result that is not JSON": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", result=Result(b"{"))),)),
        "reports[5].result.data: a result is JSON",
    ),
    "a large result": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", result=Result(b" " * 65_536 + b"1"))),)),
        "reports[5].result.data: ",
    ),
    "a result without data": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", result=Result())),)),
        "reports[5].result.data: ",
    ),
    "a result that lacks for a strange reason": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", result=Result(problem="lazy"))),)),  # type: ignore[arg-type]
        "reports[5].result.problem: ",
    ),
    "a result of a strange size": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", result=Result(b"1", size=-1))),)),
        "reports[5].result.size: ",
    ),
    **{
        f"outputs with {what}": (
            Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", outputs=outputs)),)),
            f"reports[5].outputs.{path}: ",
        )
        for what, outputs, path in (
            ("a digest that is none", Outputs(FileSet("sha256:00")), "files.digest"),
            ("a negative number of files", Outputs(FileSet(DIGEST, -1)), "files.files"),
            ("a negative size", Outputs(FileSet(DIGEST, 1, -1)), "files.size"),
            ("an absurd size", Outputs(FileSet(DIGEST, 1, 1 << 60)), "files.size"),
            ("many gaps", Outputs(None, (OutputGap(OutputProblem.MISSING),) * 101), "gaps"),
            ("a strange problem", Outputs(None, (OutputGap("lazy"),)), "gaps"),  # type: ignore[arg-type]
            ("a long path", Outputs(None, (OutputGap(OutputProblem.MISSING, "x" * 1_025),)), "gaps.path"),
        )
    },
    **{
        f"inputs that failed with {what}": (
            Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "ended", inputs_failed=failure)),)),
            f"reports[5].inputs_failed.{path}: ",
        )
        for what, failure, path in (
            ("a strange problem", InputFailure("lazy"), "problem"),  # type: ignore[arg-type]
            ("a long path", InputFailure(InputProblem.NOT_FOUND, "x" * 1_025), "path"),
            ("a negative status", InputFailure(InputProblem.URL_FAILED, "x", -1), "status"),
            ("a text of several lines", InputFailure(InputProblem.REFUSED, "x", 0, "a\nb"), "detail"),
        )
    },
    "a run without an input of its document": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(document=WITH_INPUTS, inputs=INPUTS[1:]), Report(5, "running")),)),
        "runs[5].inputs: its document has an input 'src'",
    ),
    "an input with a digest that is none": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(inputs=(RunInput("a", "sha256:"),)), Report(5, "running")),)),
        "runs[5].inputs.digest: ",
    ),
    "an input outside of the work directory": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(inputs=(RunInput("../a", DIGEST),)), Report(5, "running")),)),
        "runs[5].inputs: ",
    ),
    "a version before the first": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(version=-1), Report(5, "running")),)),
        "runs[5].version",
    ),
    "a variable that cannot be": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(env=(("A=B", "c"),)), Report(5, "running")),)),
        "runs[5].env: 'A=B'",
    ),
    "many variables": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(env=(("A", "b"),) * 501), Report(5, "running")),)),
        "runs[5].env",
    ),
    "a variable with much in it": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(env=(("A", "b" * (128 << 10)),)), Report(5, "running")),)),
        "runs[5].env",
    ),
    "a taint that is none": (Hello("n", "m", Facts(OFFER, taints=("ok", "=x")), 0), "taints[1]"),
    "many taints": (Hello("n", "m", Facts(OFFER, taints=tuple(f"t{n}" for n in range(33))), 0), "taints"),
    "a device that cannot be": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(devices=(1_000_000_000,)), Report(5, "running")),)),
        "runs[5].devices",
    ),
    "a port that cannot be": (
        Hello(
            "n", "m", Facts(OFFER), 0, ((run_of(document={"ports": {"a": 0}}, ports=(70_000,)), Report(5, "running")),)
        ),
        "runs[5].ports",
    ),
    "ports no agent asked for": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(ports=(80,)), Report(5, "running")),)),
        "runs[5].ports",
    ),
    "a run of garbage": (
        Hello("n", "m", Facts(OFFER), 0, ((Run(5, "default/job", 0, 1, b"\xc1"), Report(5, "running")),)),
        "runs[5].document",
    ),
    "a run under another name": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(workload="default/other"), Report(5, "running")),)),
        "runs[5].workload",
    ),
    "an index beyond the count": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(index=1), Report(5, "running")),)),
        "runs[5].index",
    ),
    "a report of another": (Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(6, "running")),)), "runs"),
    "a run reported twice": (Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "running")),) * 2), "runs"),
    "a run that waits": (
        Hello("n", "m", Facts(OFFER), 0, ((run_of(), Report(5, "queued")),)),
        "an agent reports starting, running or ended, not 'queued'",
    ),
}


@pytest.mark.parametrize("hello, message", WRONG.values(), ids=WRONG.keys())
async def test_a_hello_that_makes_no_sense_is_refused_in_a_message(hello: Hello, message: str) -> None:
    async with gateway_server() as server, played(server.port) as agent:
        await agent.transmit(hello)
        code, text = await agent.ending()
        assert code == grpc.StatusCode.INVALID_ARGUMENT and message in text
        assert not server.engine.state.nodes


def test_a_hello_with_an_attempt_is_fine() -> None:
    check_hello(Hello("n.example", "m", Facts(OFFER), 0, ((run_of(), Report(5, "running")),)))
    with_files = Report(5, "ended", outputs=Outputs(FileSet(DIGEST, 1, 5), (OutputGap(OutputProblem.MISSING, "*"),)))
    run = run_of(document=WITH_INPUTS, inputs=INPUTS)
    check_hello(Hello("n.example", "m", Facts(OFFER), 0, ((run, with_files),)))
    sick = Report(5, "ended", cause="unhealthy", error="http /: 503", ready=False)
    check_hello(Hello("n", "m", Facts(OFFER, address="10.1.2.3"), 0, ((run_of(version=4, env=(("A", ""),)), sick),)))


@pytest.mark.parametrize("name", ["a/b/1/0.1", "a-b/c_d/1763243412345001/999999.12", "a/b/1/0.1.stderr"])
def test_logs_have_names_like_these(name: str) -> None:
    assert LOG_NAME.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b/1",
        "a/b/1/0",
        "a/b/1/0.1/",
        "/a/b/1/0.1",
        "../b/1/0.1",
        "a/b/1/0.1\n",
        "a/b/x/0.1",
        "a.b/c/1/0.1",
        "a/b/1/0.1.stderr/x",
        "a/b/1/0.1.stdout",
        "a/b/1/0.1xstderr",
        "a/b/1/0.1.stderr.stderr",
    ],
)
def test_and_not_like_these(name: str) -> None:
    assert not LOG_NAME.fullmatch(name)
