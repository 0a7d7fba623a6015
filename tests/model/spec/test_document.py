"""The workload document: what is taken, what is refused, with which path and which sentence."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.workload import Ask, Policy
from roost.model.spec.document import (
    Document,
    check_document,
    commands,
    decode_document,
    encode_document,
    read_document,
    separates_stderr,
)
from roost.model.spec.problems import ERRORS_MAX

VM = {"kind": "vm", "vm": {"image": "debian"}, "resources": {"memory": "64MiB"}, "command": ""}


def taken(**fields: Any) -> tuple[Document, Policy]:
    document = read_document({"name": "web", "command": "true"} | fields)
    return document, check_document(document)


def refusal(raw: object, path: str = "") -> tuple[str, str]:
    """(path, sentence) of what is wrong with a document."""
    with pytest.raises(Invalid) as refused:
        document = read_document(raw, path)
        check_document(document, path)
        encode_document(document, path)
    assert refused.value.status == 422
    return refused.value.path, refused.value.message


def test_omitted_fields_have_sensible_defaults() -> None:
    document, policy = taken()
    assert policy == Policy("job", Ask((("cpu", 1_000),)))
    assert (document.project, document.count, policy.priority) == ("default", 1, 50)
    assert (policy.grace_ms, policy.retention_ms) == (10_000, 7 * 86_400_000)
    assert (policy.retries_max, policy.retry_on, policy.when_lost) == (3, ("lost",), "reschedule")


def test_every_field_is_read() -> None:
    _, policy = taken(
        kind="service",
        image="python:3.12",
        resources={"memory": "4GiB", "cpu": "500m", "gpu": 1, "license": 2, "disk": 0},
        priority=90,
        retries={"max": 5, "on": ["lost", "failed", "exit:75"]},
        timeout="10m",
        queue_timeout="1h",
        deadline=1800,
        grace="30s",
        when_full="reject",
        when_lost="fail",
        fenced=False,
        placement={"pool": ["b", "a", "b"], "strategy": "best_fit", "require": ["labels.arch == 'amd64'"]},
        retention="1d",
    )
    assert policy == Policy(
        kind="service",
        ask=Ask(
            resources=(("cpu", 500), ("gpu", 1_000), ("license", 2), ("memory", 4 << 30)),
            driver="container",
            pools=("a", "b"),
            strategy="best_fit",
            require=("labels.arch == 'amd64'",),
            gpu_milli=1_000,
            gpu_count=1,
            image="python:3.12",
        ),
        priority=90,
        retries_max=5,
        retry_on=("lost", "failed", "exit:75"),
        timeout_ms=600_000,
        queue_timeout_ms=3_600_000,
        deadline_ms=1_800_000,
        when_full="reject",
        when_lost="fail",
        fenced=False,
        grace_ms=30_000,
        retention_ms=86_400_000,
    )


@pytest.mark.parametrize(
    ("fields", "driver", "when_lost"),
    [({}, "process", "reschedule"), ({"image": "x"}, "container", "reschedule"), (VM, "qemu", "pin")],
)
def test_the_kind_of_work_says_which_driver_and_what_happens_on_loss(
    fields: dict[str, Any], driver: str, when_lost: str
) -> None:
    _, policy = taken(**fields)
    assert (policy.ask.driver, policy.when_lost) == (driver, when_lost)


def test_equal_asks_are_equal_however_they_are_written() -> None:
    _, first = taken(resources={"cpu": 0.5, "memory": "1GiB", "disk": 0}, placement={"pool": "a"})
    _, second = taken(resources={"memory": 1 << 30, "cpu": "500m"}, placement={"pool": ["a"]})
    assert first == second
    assert hash(first) == hash(second)


def test_steps_run_in_order_and_say_whether_their_failure_counts() -> None:
    document, _ = taken(command="", steps=[{"run": "one"}, {"run": "two", "ignore_failure": True}])
    assert commands(document) == [(["/bin/sh", "-c", "one"], False), (["/bin/sh", "-c", "two"], True)]
    assert commands(taken(command="a | b")[0]) == [(["/bin/sh", "-c", "a | b"], False)]
    assert commands(taken(command=["a", "|", "b"])[0]) == [(["a", "|", "b"], False)]
    assert commands(taken(command=["a"])[0]) == [(["a"], False)]


def test_a_separate_stderr_is_recognised_in_what_is_stored() -> None:
    assert separates_stderr(encode_document(taken(stderr="separate")[0]))
    for merged in ({}, {"stderr": "merge"}, {"env": {"stderr": "separate"}}, {"command": ["stderr"]}):
        assert not separates_stderr(encode_document(taken(**merged)[0]))
    assert not separates_stderr(msgspec.msgpack.encode({"stderr": 5}))


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        ({"name": "web", "command": "x", "stderr": "apart"}, "stderr", "merge"),
        ({"name": "web", "command": "x", "stderr": True}, "stderr", ""),
        ({"command": "true"}, "name", "this is needed: a text"),
        ({"name": "web"}, "steps", "a workload needs steps or a command to run"),
        ({"name": "web", "steps": []}, "steps", "this must be 1 to 100 steps, not 0"),
        ({"name": "web", "command": "x", "colour": 1}, "colour", "there is no such field"),
        ({"name": "web", "steps": [{"run": "x", "loud": 1}]}, "steps[0].loud", "there is no such field"),
        ({"name": "web.1", "command": "x"}, "name", "not 'web.1'"),
        ({"name": "", "command": "x"}, "name", "a name cannot be empty"),
        ({"name": 1, "command": "x"}, "name", "this is a text, not 1; write it in quotes"),
        ([], "$", "a workload is a mapping"),
        (None, "$", "a workload is a mapping"),
        ({"name": "web", "command": "x", "steps": [{"run": "x"}]}, "command", "either command or steps"),
        ({"name": "web", "steps": [{"run": "x"}, {"run": " "}]}, "steps[1].run", "there is nothing to run here"),
        ({"name": "web", "command": ["", "x"]}, "command[0]", "the program to run has no name"),
        ({"name": "web", "command": "a\0b"}, "command", "NUL"),
        ({"name": "web", "kind": "service", "steps": [{"run": "x"}]}, "steps", "steps belong to a job"),
        ({"name": "web", "kind": "pod", "command": "x"}, "kind", "this is job, service or vm, not 'pod'"),
        ({"name": "web", "command": "x", "count": 0}, "count", "this must be 1 to 1,000,000, not 0"),
        ({"name": "web", "command": "x", "count": 1.5}, "count", "this is a whole number, not 1.5"),
        ({"name": "web", "command": "x", "count": 10**5000}, "count", "this must be 1 to 1,000,000"),
        ({"name": "web", "command": "x", "priority": 101}, "priority", "this must be 0 to 100, not 101"),
        ({"name": "web", "command": "x", "resources": {"cpu": -1}}, "resources.cpu", "cannot be negative"),
        ({"name": "web", "command": "x", "resources": {"cpu": 10**500}}, "resources.cpu", "more than Roost can count"),
        ({"name": "web", "command": "x", "resources": {"a b": 1}}, "resources.a b", "a name is made of"),
        ({"name": "web", "command": "x", "timeout": 0}, "timeout", "this must be longer than nothing"),
        ({"name": "web", "command": "x", "timeout": "soon"}, "timeout", "not 'soon'"),
        ({"name": "web", "command": "x", "retries": -1}, "retries.max", "this must be 0 to 1,000, not -1"),
        ({"name": "web", "command": "x", "retries": {"on": ["x"]}}, "retries.on[0]", "exit:CODE, not 'x'"),
        ({"name": "web", "command": "x", "retries": {"on": ["exit:256"]}}, "retries.on[0]", "exit:CODE"),
        ({"name": "web", "command": "x", "retries": {"on": ["exit:007"]}}, "retries.on[0]", "exit:CODE"),
        ({"name": "web", "command": "x", "env": {"A=B": "1"}}, "env", "'A=B' is not a name for a variable"),
        (
            {"name": "web", "command": "x", "env": {"A": 1}},
            "env.A",
            "this is a text or a mapping with `secret`, not 1; write it in quotes",
        ),
        ({"name": "web", "command": "x", "env": {"A\0": "1"}}, "env.A\0", "NUL"),
        ({"name": "web", "command": ["x"] * 1_001}, "command", "this must be 1 to 1,000 arguments, not 1,001"),
        ({"name": "web", "command": "x", "resources": {f"r{n}": 1 for n in range(33)}}, "resources", "0 to 32 kinds"),
        ({"name": "web", "command": "x", "labels": {"a": "b\nc"}}, "labels.a", "one line of printable text"),
        ({"name": "web", "command": "x", "run_as": "Root; id"}, "run_as", "this is the name of a user"),
        ({"name": "web", "command": "x", "isolation": "vm"}, "isolation", "'vm'"),
        ({"name": "web", "command": "x", "limits": "required"}, "limits", "give resources.cpu or resources.memory"),
        ({"name": "web", "image": "x", "isolation": "user"}, "isolation", "a container is isolated and limited"),
        ({"name": "web", "image": "x", "run_as": "root"}, "run_as", "this is for processes"),
        ({"name": "web", "command": "x", "image": "a\nb"}, "image", "one line of printable text"),
        ({"name": "web", "command": "x", "placement": {"pool": "a/b"}}, "placement.pool", "a name is made of"),
        ({"name": "web", "command": "x", "placement": {"strategy": "\ud800"}}, "placement.strategy", "one line"),
        ({"name": "web", "command": "x", "placement": {"require": ["zone =="]}}, "placement.require[0]", "not a rule"),
        ({"name": "web", "command": "x", "placement": {"require": ["zone"]}}, "placement.require[0]", "yes or no"),
        (
            {"name": "web", "command": "x", "placement": {"require": ["rick == 'a'"]}},
            "placement.require[0]",
            "mean `rack`?",
        ),
        ({"name": "web", "command": "x" * (limits.COMMAND_BYTES_MAX + 1)}, "command", "may have 131072 bytes"),
        ({"name": "web", "command": ["x" * 100_000] * 6}, "$", "a workload may have 524288 bytes"),
    ],
)
def test_what_is_refused(raw: object, path: str, message: str) -> None:
    where, sentence = refusal(raw)
    assert where == path
    assert message in sentence


def errors_of(raw: object) -> list[tuple[str, str]]:
    with pytest.raises(Invalid) as caught:
        check_document(read_document(raw))
    return [(error["path"], error["message"]) for error in caught.value.params["errors"]]


def test_all_errors_of_a_document_are_reported_at_once_each_with_its_path() -> None:
    raw = {
        "name": "a b", "step": ["make"], "count": "two", "priority": 101, "labels": {"a": "b\nc", "": "x"},
        "resources": {"cpu": -1, "gpus": 1}, "placement": {"require": ["zone ==", "true", "1"], "strategy": "x\ny"},
        "retries": {"on": ["x", "lost", "y"]},
    }  # fmt: skip
    assert [path for path, _ in errors_of(raw)] == [
        "step", "count",  # what cannot be read, in the order of the file
        "name", "labels.a", "labels", "priority", "retries.on[0]", "retries.on[2]", "placement.strategy",
        "placement.require[0]", "placement.require[2]", "resources.cpu", "resources.gpus",
    ]  # fmt: skip


def test_an_unknown_kind_hides_only_errors_that_depend_on_it() -> None:
    raw = {"kind": "jbo", "name": "a b", "count": 0, "steps": [], "resources": {"cpu": -1}}
    assert [path for path, _ in errors_of(raw)] == ["kind", "name", "resources.cpu"]


def test_steps_are_lines_for_the_shell_or_blocks() -> None:
    document = read_document({"name": "web", "steps": ["make", {"run": "make test", "ignore_failure": True}]})
    check_document(document)
    assert commands(document) == [(["/bin/sh", "-c", "make"], False), (["/bin/sh", "-c", "make test"], True)]
    raw = {"name": "web", "steps": ["make", 3, {"run": "x"}, {"name": "x"}]}
    assert errors_of(raw) == [
        ("steps[1]", "this is a text or a mapping with `run`, not 3; write it in quotes"),
        ("steps[3].run", "this is needed: a text"),
    ]


@pytest.mark.parametrize(
    ("field", "meant"),
    [("comand", "command"), ("Image", "image"), ("replicas", "count"), ("environment", "env"), ("cpu", "resources")],
)
def test_an_unknown_field_names_the_one_that_is_meant(field: str, meant: str) -> None:
    raw = {"name": "web", "steps": ["x"], field: 1}
    assert refusal(raw) == (field, f"there is no such field; did you mean `{meant}`?")


@pytest.mark.parametrize(("name", "meant"), [("gpus", "gpu"), ("CPU", "cpu"), ("mem", "memory"), ("storage", "disk")])
def test_a_resource_that_looks_like_a_misspelt_one_is_refused(name: str, meant: str) -> None:
    path, message = refusal({"name": "web", "command": "x", "resources": {name: 1}})
    assert path == f"resources.{name}"
    assert message.startswith(f"did you mean `{meant}`?")


def test_more_errors_than_any_workload_reads_are_counted() -> None:
    with pytest.raises(Invalid) as caught:
        check_document(read_document({"name": "web", "steps": [" "] * 60}))
    assert len(caught.value.params["errors"]) == ERRORS_MAX
    assert caught.value.params["left_out"] == 10


def test_a_path_begins_where_the_document_does() -> None:
    assert refusal({"name": "web"}, "[3]")[0] == "[3].steps"
    assert refusal({"name": "web", "x": 1}, "[3]")[0] == "[3].x"
    assert refusal(7, "[3]")[0] == "[3]"


# whatever comes

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(Document.__struct_fields__)


@given(raw=ANYTHING)
def test_any_data_is_a_document_or_invalid(raw: object) -> None:
    try:
        encode_document(read_document(raw))
    except Invalid:
        pass


@given(fields=st.dictionaries(FIELDS, ANYTHING, max_size=3))
def test_any_value_in_any_field_is_taken_or_invalid_and_what_is_taken_is_kept(fields: dict[str, Any]) -> None:
    try:
        document = read_document({"name": "web", "command": "true"} | fields)
        policy = check_document(document)
        packed = encode_document(document)
    except Invalid as refused:
        assert refused.message
        return
    again = decode_document(packed)
    assert again == document
    assert check_document(again) == policy
    assert decode_document(encode_document(again)) == document


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40).filter(str.strip)
DURATIONS = st.one_of(st.integers(1, 10_000), st.from_regex(r"[1-9][0-9]{0,2}(ms|s|m|h|d)", fullmatch=True))
RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "disk", "gpu", "license"]),
    st.one_of(st.integers(0, 64), st.from_regex(r"[0-9]{1,2}", fullmatch=True)),
)
WORK = st.one_of(
    st.builds(lambda line: {"command": line}, LINES),
    st.builds(lambda rest: {"command": ["env", *rest]}, st.lists(LINES, max_size=4)),
    st.builds(lambda lines: {"steps": [{"run": line} for line in lines]}, st.lists(LINES, min_size=1, max_size=4)),
)
OPTIONS = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "project": NAMES,
        "count": st.integers(1, limits.COUNT_JOB_MAX),
        "priority": st.integers(0, 100),
        "resources": RESOURCES,
        "timeout": DURATIONS,
        "queue_timeout": DURATIONS,
        "deadline": DURATIONS,
        "grace": DURATIONS,
        "retention": DURATIONS,
        "retries": st.integers(0, 9),
        "when_full": st.sampled_from(["queue", "reject"]),
        "when_lost": st.sampled_from(["reschedule", "fail", "pin"]),
        "fenced": st.booleans(),
        "stderr": st.sampled_from(["merge", "separate"]),
        "env": st.dictionaries(NAMES, LINES, max_size=3),
        "labels": st.dictionaries(NAMES, NAMES, max_size=3),
    },
)


@given(options=OPTIONS, work=WORK)
def test_a_valid_document_survives_being_stored_and_sent(options: dict[str, Any], work: dict[str, Any]) -> None:
    document = read_document(options | work)
    policy = check_document(document)
    assert decode_document(encode_document(document)) == document
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy) == policy
    amounts = dict(policy.ask.resources)
    assert all(type(amount) is int and amount > 0 for amount in amounts.values())
    assert msgspec.convert(msgspec.to_builtins(document), Document) == document


@given(options=OPTIONS, work=WORK, unknown=NAMES)
def test_one_unknown_key_is_enough_to_refuse(options: dict[str, Any], work: dict[str, Any], unknown: str) -> None:
    if unknown in Document.__struct_fields__:
        return
    assert refusal(options | work | {unknown: 1}) == (unknown, "there is no such field")


def test_variables_of_the_agent_are_not_set_by_a_document() -> None:
    message = "variables that begin with ROOST_ are set by the agent; choose another name"
    for name in ("ROOST_KEEPER", "ROOST_RUN", "ROOST_INDEX", "ROOST_X"):
        assert refusal({"name": "a", "command": "x", "env": {name: "1"}}) == (f"env.{name}", message)
    own = {"ROOST_URL": "https://10.0.0.1:8420", "ROOST_TOKEN": {"secret": "token"}, "ROOSTER": "1"}
    assert set(taken(env=own)[0].env) == set(own)  # a `roost` in a run reads these


@pytest.mark.parametrize("name", ["files", "file_bytes"])
def test_the_file_quota_of_a_project_is_no_resource_of_a_node(name: str) -> None:
    with pytest.raises(Invalid, match=f"resources.{name}: this bounds the inputs and outputs of a project"):
        check_document(read_document({"name": "a", "command": "true", "resources": {name: 1}}))
