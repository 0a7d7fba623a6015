"""Everything that can be wrong with a document: refused with a message and the field, and nothing is kept."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from roost.server.engine.role import Starting
from tests.server.inprocess_server import InprocessServer, in_role, inprocess_server

JSON, YAML = "application/json", "application/yaml"


def bomb() -> str:
    """A few lines that stand for 9^18 words."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for level in range(1, 18):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join([*lines, "name: bomb", "command: *a17"])


def quadratic() -> str:
    """One large part, referred to a hundred thousand times: no depth, no cycle, terabytes."""
    return "part: &part [" + "x, " * 100_000 + "]\nall: [" + "*part, " * 100_000 + "]\n"


VALUES: list[tuple[dict[str, Any], int, str]] = [
    ({}, 422, "name"),
    ({"command": "true"}, 422, "name"),
    ({"name": "x"}, 422, "steps"),
    ({"name": "x", "steps": []}, 422, "steps"),
    ({"name": "x", "steps": None}, 422, "steps"),
    ({"name": "x", "steps": [{}]}, 422, "steps[0].run"),
    ({"name": "x", "steps": [{"run": "  "}]}, 422, "steps[0].run"),
    ({"name": "x", "steps": [{"run": "true"}], "command": "true"}, 422, "command"),
    ({"name": "x", "steps": [{"run": "true", "image": "y"}]}, 422, "steps[0].image"),
    ({"name": "x", "command": "true", "image": "python:3.12 --privileged"}, 422, "image"),
    ({"name": "x", "kind": "vm"}, 422, "vm"),
    ({"name": "x", "command": "true", "cuont": 3}, 422, "cuont"),
    ({"name": "x", "command": "true", "count": 10**12}, 422, "count"),
    ({"name": "x", "command": "true", "count": 10**300}, 422, "count"),
    ({"name": "x", "command": "true", "count": 0}, 422, "count"),
    ({"name": "x", "command": "true", "count": -1}, 422, "count"),
    ({"name": "x", "command": "true", "count": "3"}, 422, "count"),
    ({"name": "x", "command": "true", "count": 1.5}, 422, "count"),
    ({"name": "x", "command": "true", "count": True}, 422, "count"),
    ({"name": "x", "command": "true", "priority": 101}, 422, "priority"),
    ({"name": "x", "command": "true", "kind": "pod"}, 422, "kind"),
    ({"name": "x", "command": "true", "resources": {"cpu": -1}}, 422, "resources.cpu"),
    ({"name": "x", "command": "true", "resources": {"cpu": 10**300}}, 422, "resources.cpu"),
    ({"name": "x", "command": "true", "resources": {"cpu": 1e300}}, 422, "resources.cpu"),
    ({"name": "x", "command": "true", "resources": {"memory": "4 Gigs"}}, 422, "resources.memory"),
    ({"name": "x", "command": "true", "resources": [1]}, 422, "resources"),
    ({"name": "x", "command": "true", "timeout": "soon"}, 422, "timeout"),
    ({"name": "x", "command": "true", "timeout": -5}, 422, "timeout"),
    ({"name": "x", "command": "true", "placement": {"require": ["labels."]}}, 422, "placement.require[0]"),
    ({"name": "x", "command": "true", "placement": {"strategy": "cleverest"}}, 422, "placement.strategy"),
    ({"name": "x", "command": "a\0b"}, 422, "command"),
    ({"name": "x", "command": 5}, 422, "command"),
    ({"name": "", "command": "true"}, 422, "name"),
    ({"name": "n" * 10_000, "command": "true"}, 422, "name"),
    ({"name": "../etc", "command": "true"}, 422, "name"),
    ({"name": "a.1", "command": "true"}, 422, "name"),
    ({"name": "x", "project": "a/b", "command": "true"}, 422, "project"),
    ({"name": ["x"], "command": "true"}, 422, "name"),
    ({"name": None, "command": "true"}, 422, "name"),
]


@pytest.fixture(scope="module")
async def made(anyio_backend: str) -> AsyncIterator[InprocessServer]:
    """One server for all: no test leaves a trace in it."""
    async with inprocess_server() as status:
        await status.submit()
        yield status


async def refused(
    made: InprocessServer, body: bytes | str, kind: str = JSON, path: str = "/v1/workloads"
) -> tuple[int, Any]:
    """The refusal of a body, after which everything is as it was before."""
    before = made.snapshot()
    answer = await made.client.post(path, content=body, headers={"content-type": kind})
    assert made.snapshot() == before
    report = answer.json()
    assert set(report) <= {"code", "message", "path", "params", "hint"}
    assert {"code", "message", "path", "params"} <= set(report)
    assert report["code"] and report["message"] and len(report["message"]) <= 1_000
    return answer.status_code, report


@pytest.mark.parametrize(("document", "status", "path"), VALUES, ids=lambda value: str(value)[:40])
async def test_a_wrong_value_is_named(made: InprocessServer, document: dict[str, Any], status: int, path: str) -> None:
    assert [(code, answer["path"]) for code, answer in [await refused(made, json.dumps(document))]] == [(status, path)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"name: x", "JSON"),
        (b'{"name": "x", "command": "true",}', "JSON"),
        (b'{"name": "x", "command": "true"} {}', "JSON"),
        (b'{"name": "x", "command": NaN}', "JSON"),
        (b'{"name": "x", "command": "true", "timeout": Infinity}', "JSON"),
        (b'{"name": "x", "command": "true", "count": 1e999}', "JSON"),
        (b'{"name": "x", "command": "true", "count": ' + b"9" * 5_000 + b"}", "JSON"),
        (b'{"name": "x", "command": "\\ud800"}', "JSON"),
        (b'{"name": "x", "command": "\xff"}', "UTF-8"),
        ('{"name": "x", "command": "true"}'.encode("utf-16"), "JSON"),
        (b'{"name": "x", "command": "true", "name": "y"}', "'name'"),
        (b'{"name": "x", "command": "true", "env": {"A": "1", "B": "2", "A": "3"}}', "'A'"),
        (b'{"name": "x", "env": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}", "deeper"),
        (b"[" * 100_000, "deeper"),
        (b"[" * 65 + b"]" * 65, "deeper"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_json_that_cannot_be_read_is_refused(made: InprocessServer, body: bytes, message: str) -> None:
    status, answer = await refused(made, body)
    assert status == 400 and message in answer["message"], answer


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("name: x\n  command: y\n", "YAML"),
        ("name: [x\n", "YAML"),
        ("name: x\ncommand: a\nname: y\n", '"name"'),
        ("name: x\n---\nname: y\n", "YAML"),
        ("name: &n x\ncommand: *n\n", "aliases"),
        ("base: &b {a: 1}\nname: x\nenv: {<<: *b}\n", "aliases"),
        ("a: &a [*a]\n", "aliases"),
        ("x: *missing\ny: &z 1\n", "aliases"),
        (bomb(), "aliases"),
        (quadratic(), "aliases"),
        ("a: " * 5_000, "YAML"),
        ("[" * 500_000, "deeper"),
        ("{a: " * 100_000, "deeper"),
        ("[" * 70 + "]" * 70, "deeper"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(120)), "deeper"),
        ("name: x\ncommand: !!binary abc\n? [a, b]\n: c\n", "YAML"),
        (b"name: \xff\xfe\n", "UTF-8"),
        ("name: x\0y\n", "YAML"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_yaml_that_cannot_be_read_is_refused(made: InprocessServer, body: str | bytes, message: str) -> None:
    status, answer = await refused(made, body, YAML)
    assert status == 400 and message in answer["message"], answer


@pytest.mark.parametrize(
    "body",
    [
        "",
        "- name: x\n",
        "just words\n",
        "42\n",
        "name: x\ncommand: y\nenv: {a: 1}\n",
        "name: x\ncommand: y\ntimeout: .nan\n",
        "name: x\ncommand: y\ntimeout: .inf\n",
        "name: x\ncommand: y\ncount: 9999999999999999999999999999999999999999999\n",
    ],
)
async def test_yaml_that_says_something_else_is_invalid(made: InprocessServer, body: str) -> None:
    status, answer = await refused(made, body, YAML)
    assert status in (400, 422), answer


@pytest.mark.parametrize(
    "kind", ["application/xml", "application/x-www-form-urlencoded", "text/plain", "nonsense", "\x7f"]
)
async def test_other_types_are_refused(made: InprocessServer, kind: str) -> None:
    status, answer = await refused(made, b'{"name": "x", "command": "true"}', kind)
    assert (status, answer["code"]) == (415, "unsupported_type") and "application/json" in answer["hint"]


async def test_compressed_bodies_are_refused(made: InprocessServer) -> None:
    headers = {"content-type": JSON, "content-encoding": "gzip"}
    answer = await made.client.post("/v1/workloads", content=b"x", headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "path", ["/v1/workloads", "/v1/workloads/batch", "/v1/workloads/a/b/cancel", "/v1/nodes/x/drain"]
)
async def test_a_body_of_ten_megabytes_is_refused(made: InprocessServer, path: str) -> None:
    status, answer = await refused(made, b'{"name": "' + b"x" * 10_000_000 + b'"}', JSON, path)
    assert (status, answer["code"]) == (413, "too_large")


async def test_a_body_that_does_not_say_its_size_is_cut_off_at_the_limit(made: InprocessServer) -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    answer = await made.client.post("/v1/workloads", content=endless(), headers={"content-type": JSON})
    assert answer.status_code == 413
    assert sent <= (8 << 20) + (1 << 20)


async def test_a_large_body_in_yaml_is_refused_before_it_is_read(made: InprocessServer) -> None:
    status, answer = await refused(made, "name: x\n#" + "x" * (1 << 20), YAML)
    assert (status, answer["code"]) == (413, "too_large") and "JSON" in answer["message"]


async def test_a_large_document_within_bounds_is_taken(made: InprocessServer) -> None:
    steps = [{"run": f"echo {number} {'x' * 4_000}"} for number in range(100)]
    answer = await made.client.post("/v1/workloads", json={"name": "large", "steps": steps})
    assert answer.status_code == 201, answer.text
    assert (await made.get("/v1/workloads/default/large"))["document"]["steps"] == steps


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v2/workloads", 404, "not_found"),
        ("GET", "/v1/workloads/x", 404, "not_found"),
        ("GET", "/v1/workloads/a/b/c", 404, "not_found"),
        ("GET", "/schema/other.html", 404, "not_found"),
        ("PUT", "/v1/workloads", 405, "method_not_allowed"),
        ("PATCH", "/v1/workloads/default/x", 405, "method_not_allowed"),
        ("GET", "/v1/workloads/default/%00", 404, "not_found"),
        ("GET", "/v1/workloads/default/%ff%fe", 404, "not_found"),
        ("GET", "/v1/workloads/default/" + "x" * 10_000, 404, "not_found"),
        ("GET", "/v1/workloads/%2e%2e/%2e%2e", 404, "not_found"),
        ("GET", "/v1/workloads/default/a%2Fb", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/1", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/-1", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/x", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/9223372036854775808", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/" + "9" * 5_000, 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/9223372036854775808/log", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/0/log?attempt=7", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/instances/0/log?offset=9223372036854775808", 422, "invalid"),
        ("GET", "/v1/workloads/default/job/instances/0/log?limit=-1", 422, "invalid"),
        ("GET", "/v1/workloads/default/job/why?index=9223372036854775808", 404, "not_found"),
        ("GET", "/v1/workloads/default/job/why?index=-1", 422, "invalid"),
        ("GET", "/v1/workloads?limit=many", 422, "invalid"),
        ("GET", "/v1/workloads?limit=1001", 422, "invalid"),
        ("GET", "/v1/workloads?state=nice", 422, "invalid"),
        ("GET", "/v1/workloads?after=x", 422, "invalid"),
        ("GET", "/v1/workloads?after=%D9%A3", 422, "invalid"),
        ("GET", "/v1/workloads/default/job/instances?after=x", 422, "invalid"),
        ("GET", "/v1/changes?since=yesterday", 422, "invalid"),
        ("GET", "/v1/changes?kind=pod", 422, "invalid"),
        ("GET", "/v1/nodes?status=fine", 422, "invalid"),
        ("GET", "/v1/nodes/" + "n" * 10_000, 404, "not_found"),
        ("POST", "/v1/nodes/nobody/drain", 404, "not_found"),
        ("POST", "/v1/nodes/nobody/uncordon", 404, "not_found"),
        ("DELETE", "/v1/nodes/nobody", 404, "not_found"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_odd_paths_and_questions_are_refused_in_the_same_shape(
    made: InprocessServer, method: str, path: str, status: int, code: str
) -> None:
    before = made.snapshot()
    answer = await made.client.request(method, path)
    report = answer.json()
    assert (answer.status_code, report["code"]) == (status, code), report
    assert {"code", "message", "path"} <= set(report) and len(report["message"]) <= 1_000
    assert made.snapshot() == before


async def test_the_field_is_named_as_it_was_sent(made: InprocessServer) -> None:
    assert (await made.get("/v1/workloads", expect=422, state="nice"))["path"] == "state"


async def test_a_server_that_cannot_decide_says_so() -> None:
    async with inprocess_server() as made:
        with in_role(made.engine, Starting("the disk is full")):
            for method, path in (
                ("GET", "/v1/workloads"),
                ("POST", "/v1/workloads"),
                ("GET", "/readyz"),
                ("GET", "/v1/changes"),
            ):
                answer = await made.client.request(method, path, json={"name": "x", "command": "true"})
                report = answer.json()
                assert (answer.status_code, report["code"]) == (503, "unavailable"), path
                assert "disk is full" in report["message"] and answer.headers["retry-after"] == "1"
            assert (await made.client.get("/livez")).status_code == 200


async def test_a_defect_is_reported_without_its_details(capsys: pytest.CaptureFixture[str]) -> None:
    async with inprocess_server() as made:
        made.engine.state.workloads = None  # type: ignore[assignment]
        answer = await made.get("/v1/workloads/default/job", expect=500)
        assert answer["code"] == "internal" and "NoneType" not in str(answer)
        made.engine.state.workloads = {}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/workloads?sate=running", "sate"),
        ("/v1/workloads?state=running&only=x", "only"),
        ("/v1/status?verbose", "verbose"),
        ("/v1/nodes?=x", ""),
    ],
)
async def test_a_misspelt_question_is_refused_instead_of_answered_otherwise(
    made: InprocessServer, path: str, name: str
) -> None:
    answer = await made.client.get(path)
    report = answer.json()
    assert (answer.status_code, report["code"], report["path"]) == (422, "invalid", name)


@pytest.mark.parametrize(("body", "path"), [("name: x\n1: 2\n", "$"), ("name: x\ncommand: y\nenv: {1: a}\n", "env")])
async def test_a_key_that_is_no_text_is_refused_where_it_is(made: InprocessServer, body: str, path: str) -> None:
    status, answer = await refused(made, body, YAML)
    assert (status, answer["path"]) == (422, path)


async def test_an_error_has_its_facts_as_data(made: InprocessServer) -> None:
    missing = await made.get("/v1/workloads/default/nothing", expect=404)
    assert (missing["code"], missing["params"]) == ("not_found", {"workload": "default/nothing"})
    await made.submit("taken")
    taken = await made.post("/v1/workloads", {"name": "taken", "command": "true"}, expect=409)
    assert (taken["code"], taken["path"], taken["params"]) == ("name_in_use", "name", {"workload": "default/taken"})
    unreadable = await made.client.post("/v1/workloads", content=b"{", headers={"content-type": JSON})
    assert unreadable.json()["params"] == {}
