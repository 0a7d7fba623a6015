"""Inputs and outputs of a document: what they become, and every refusal with its path."""

from typing import Any

import pytest

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.files import FileSet, Input
from roost.model.records.workload import After
from roost.model.spec.document import decode_document, outputs_in
from roost.model.spec.files import OutputBlock, OutputsWhen, outputs_of
from roost.model.spec.submission import spec_of_document

DIGEST, HEX = "sha256:" + "ab" * 32, "cd" * 32
URL = "https://example.org/data/set.tar.gz?x=1#top"


def document(**fields: Any) -> dict[str, Any]:
    return {"name": "test", "command": "true"} | fields


def inputs(*blocks: Any) -> tuple[Input, ...]:
    return spec_of_document(document(inputs=list(blocks))).policy.inputs


def refusal(**fields: Any) -> tuple[str, str]:
    with pytest.raises(Invalid) as caught:
        spec_of_document(document(**fields))
    return caught.value.path, caught.value.message


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ({"from": DIGEST}, Input("", FileSet(DIGEST))),
        ({"from": "blob:data", "to": "./a//b/"}, Input("a/b", FileSet("blob:data"))),
        ({"workload": "build"}, Input("", workload="default/build")),
        ({"workload": "build", "path": "dist/*", "to": "in"}, Input("in", workload="default/build", path="dist/*")),
        ({"url": URL, "sha256": HEX}, Input("set.tar.gz", url=URL, sha256=HEX)),
        ({"url": URL, "sha256": HEX, "to": "d/x"}, Input("d/x", url=URL, sha256=HEX)),
        ({"url": "http://example.org", "sha256": HEX, "to": "x"}, Input("x", url="http://example.org", sha256=HEX)),
    ],
)
def test_an_input_has_a_source_and_a_place(block: dict[str, str], found: Input) -> None:
    assert inputs(block) == (found,)


WRONG_INPUTS: list[tuple[Any, str, str]] = [
    ({}, "inputs[0]", "give one of from, workload and url"),
    ({"to": "x"}, "inputs[0]", "give one of from, workload and url"),
    ({"from": DIGEST, "url": URL, "sha256": HEX}, "inputs[0]", "give one of"),
    ({"from": DIGEST, "path": "x"}, "inputs[0].path", "belongs to workload"),
    ({"url": URL, "sha256": HEX, "path": "x"}, "inputs[0].path", "belongs to workload"),
    ({"workload": "build", "sha256": HEX}, "inputs[0].sha256", "belongs to url"),
    ({"from": "src/"}, "inputs[0].from", "is blob:NAME or sha256:DIGEST here"),
    ({"from": "sha256:AB"}, "inputs[0].from", "is blob:NAME or sha256:DIGEST here"),
    ({"from": DIGEST + "0"}, "inputs[0].from", "is blob:NAME or sha256:DIGEST here"),
    ({"from": "blob:"}, "inputs[0].from", "empty"),
    ({"from": "blob:a/b"}, "inputs[0].from", "a name is made of"),
    ({"workload": "a/b"}, "inputs[0].workload", "a name is made of"),
    ({"workload": "test"}, "inputs[0].workload", "its own outputs"),
    ({"workload": "build", "path": "../x"}, "inputs[0].path", "below the work directory"),
    ({"workload": "build", "path": "./"}, "inputs[0].path", "names no file"),
    ({"url": "ftp://example.org/x", "sha256": HEX}, "inputs[0].url", "http or https"),
    ({"url": "https://example.org/\n", "sha256": HEX}, "inputs[0].url", "http or https"),
    ({"url": "https://e/" + "x" * limits.URL_LENGTH_MAX, "sha256": HEX}, "inputs[0].url", "at most 2000 characters"),
    ({"url": "https:///x", "sha256": HEX}, "inputs[0].url", "http or https"),
    ({"url": URL}, "inputs[0].sha256", "is needed with url"),
    ({"url": URL, "sha256": DIGEST}, "inputs[0].sha256", "64 hexadecimal digits"),
    ({"url": "https://example.org/", "sha256": HEX}, "inputs[0].to", "ends without the name of a file"),
    ({"url": "https://example.org", "sha256": HEX}, "inputs[0].to", "ends without the name of a file"),
    ({"url": "https://example.org/a/..", "sha256": HEX}, "inputs[0].to", "ends without the name of a file"),
    ({"from": DIGEST, "to": "/etc"}, "inputs[0].to", "below the work directory"),
    ({"from": DIGEST, "to": "a/../../b"}, "inputs[0].to", "below the work directory"),
    ({"from": DIGEST, "to": "a\0b"}, "inputs[0].to", "control character"),
    ({"from": DIGEST, "to": "é" * 513}, "inputs[0].to", "at most 1024 bytes"),
    ({"from": DIGEST, "too": "x"}, "inputs[0].too", "there is no such field"),
    ("src", "inputs[0]", ""),
]


@pytest.mark.parametrize(("block", "path", "message"), WRONG_INPUTS)
def test_a_wrong_input_is_named(block: Any, path: str, message: str) -> None:
    found = refusal(inputs=[block])
    assert found[0] == path and message in found[1]


def test_there_may_be_so_many_and_all_wrong_ones_are_named() -> None:
    assert len(inputs(*[{"from": DIGEST, "to": str(number)} for number in range(limits.INPUTS_MAX)])) == 100
    assert refusal(inputs=[{"from": DIGEST}] * (limits.INPUTS_MAX + 1))[0] == "inputs"
    with pytest.raises(Invalid) as caught:
        spec_of_document(document(inputs=[{}, {"from": DIGEST}, {"from": "x"}], outputs=["/"]))
    assert [error.path for error in caught.value.every] == ["outputs[0]", "inputs[0]", "inputs[2].from"]


# --- what inputs wait for ---------------------------------------------------------------------------------------------


def test_an_input_from_a_workload_implies_that_it_comes_after_it() -> None:
    use = [{"workload": "build", "to": "a"}, {"workload": "build", "to": "b"}, {"from": DIGEST, "to": "c"}]
    assert spec_of_document(document(inputs=use)).policy.after == (After("default/build", "succeeded"),)
    assert spec_of_document(document(inputs=use, project="red")).policy.after == (After("red/build", "succeeded"),)


@pytest.mark.parametrize("when", ["finished", "succeeded", None])
def test_what_after_says_holds(when: str | None) -> None:
    after = [{"workload": "build", "when": when}, "data"]
    found = spec_of_document(document(inputs=[{"workload": "build"}, {"workload": "more"}], after=after)).policy.after
    assert found == (After("default/build", when), After("default/data", None), After("default/more", "succeeded"))


def test_outputs_are_not_there_when_a_workload_has_started() -> None:
    after = [{"workload": "build", "when": "started"}]
    path, message = refusal(inputs=[{"from": DIGEST}, {"workload": "build"}], after=after)
    assert path == "inputs[1].workload" and "`after` waits only until it has started" in message


def test_inputs_count_as_dependencies() -> None:
    names = [f"j{number}" for number in range(limits.AFTER_MAX)]
    assert len(spec_of_document(document(after=names, inputs=[{"workload": "j0"}])).policy.after) == limits.AFTER_MAX
    assert refusal(after=names, inputs=[{"workload": "more"}])[0] == "inputs"


# --- outputs ----------------------------------------------------------------------------------------------------------


def test_an_output_is_a_pattern_or_a_block() -> None:
    block = {"path": "logs/*.txt", "when": "success", "required": True, "size_max": "10MiB"}
    spec = spec_of_document(document(outputs=["dist/**", block]))
    found = [OutputBlock("dist/**"), OutputBlock("logs/*.txt", OutputsWhen.SUCCESS, True, "10MiB")]
    assert outputs_of(decode_document(spec.document).outputs) == found == outputs_in(spec.document)
    assert outputs_in(spec_of_document(document()).document) == []
    assert outputs_in(spec_of_document(document(env={"outputs": "x"})).document) == []


@pytest.mark.parametrize(
    ("block", "path", "message"),
    [
        ("", "outputs[0]", "names no file; use **"),
        (".", "outputs[0]", "names no file"),
        ("/tmp/*", "outputs[0]", "below the work directory"),
        ("a/../b", "outputs[0]", "without .."),
        ("a\tb", "outputs[0]", "control character"),
        ({"path": "../x"}, "outputs[0].path", "below the work directory"),
        ({"path": "x", "when": "never"}, "outputs[0].when", ""),
        ({"path": "x", "size_max": "much"}, "outputs[0].size_max", ""),
        ({"path": "x", "size_max": -1}, "outputs[0].size_max", ""),
        ({"path": "x", "size_max": 0}, "outputs[0].size_max", ""),
        ({"required": True}, "outputs[0].path", ""),
        (5, "outputs[0]", ""),
    ],
)
def test_a_wrong_output_is_named(block: Any, path: str, message: str) -> None:
    found = refusal(outputs=[block])
    assert found[0] == path and message in found[1]


def test_there_may_be_so_many_outputs() -> None:
    assert refusal(outputs=["x"] * (limits.OUTPUTS_MAX + 1))[0] == "outputs"
