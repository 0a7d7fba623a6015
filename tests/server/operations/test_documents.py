"""Documents of requests: small ones are read on the loop, large ones beside it, and both alike."""

import asyncio
import json
import time
from typing import Any

import pytest

from roost.server.operations.work import documents
from tests.server.inprocess_server import InprocessServer, inprocess_server

pytestmark = pytest.mark.anyio

YAML = {"content-type": "application/yaml"}
HELD_MS_MAX = 50.0


def document(number: int, **fields: Any) -> dict[str, Any]:
    return {"name": f"w{number}", "command": "true", **fields}


async def held_ms(
    made: InprocessServer, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[float, Any]:
    """The CPU time of the longest uninterrupted work of the loop while a request is answered, and the answer."""
    worst, asking = 0.0, asyncio.ensure_future(made.client.post(path, content=body, headers=headers))
    while not asking.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        worst = max(worst, time.thread_time() - began)
    return worst * 1_000, asking.result()


HOSTILE: dict[str, tuple[str, bytes, dict[str, str], int]] = {
    "unclosed mappings": ("/v1/workloads", b"{a: " * 45_000, YAML, 400),
    "1 MB of mappings": ("/v1/workloads", b"".join(b"k%d: {a: [1], b: 'x'}\n" % n for n in range(36_000)), YAML, 422),
    "1 MB of numbers": ("/v1/workloads", b"a: [" + b"1," * 500_000 + b"]", YAML, 422),
    "4 MB of objects": ("/v1/workloads/batch", b"[" + b"{}," * 1_300_000 + b"{}]", {}, 422),
    "nested lists": ("/v1/workloads", b"[" * 100_000, {}, 400),
    "too many rules": (
        "/v1/workloads/batch",
        json.dumps([document(n, placement={"require": [f"labels.a{n}x{i} == 'x'" for i in range(32)]})
                    for n in range(400)]).encode(),
        {},
        422,
    ),
    "many rules": (
        "/v1/plans",
        json.dumps([document(n, placement={"require": [f"zone == '{n}x{i}'" for i in range(32)]})
                    for n in range(8)]).encode(),
        {},
        200,
    ),
    "1,500 plans with affinity rules": (
        "/v1/plans",
        json.dumps([document(n, placement={"apart": [{"workload": f"w{(n + i) % 1_500}"} for i in range(1, 33)]})
                    for n in range(1_500)]).encode(),
        {},
        200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_body_holds_the_loop(name: str) -> None:
    path, body, headers, status = HOSTILE[name]
    async with inprocess_server() as made:
        await made.post("/v1/plans", [document(0, placement={"require": ["zone == 'a'"]})])  # imports the library
        held, answer = await held_ms(made, path, body, headers)
        assert answer.status_code in (status, 503), answer.text[:300]
        assert held < HELD_MS_MAX, answer.text[:300]


async def test_a_large_batch_is_read_beside_the_loop_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        document(n, env={"A": "b"}, each=["x", {"B": "c"}], after=[f"w{n - 1}"] if n else [],
                 placement={"require": ["zone != 'x'"], "prefer": [{"that": "arch == 'a'"}], "near": [{"label": "l"}]})
        for n in range(3)
    ]  # fmt: skip
    async with inprocess_server() as small, inprocess_server() as large:
        monkeypatch.setattr(documents, "QUICK_BYTES_MAX", 1 << 20)
        await small.post("/v1/workloads/batch", wanted, 201)
        monkeypatch.setattr(documents, "QUICK_BYTES_MAX", 0)
        monkeypatch.setattr(documents, "PIECE", 2)
        await large.post("/v1/workloads/batch", wanted, 201)
        for key, workload in small.engine.state.workloads.items():
            other = large.engine.state.workloads[key]
            assert (other.policy, other.document, other.count) == (workload.policy, workload.document, workload.count)
        assert len(large.engine.state.workloads) == len(wanted)


async def test_errors_of_a_large_batch_are_those_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = json.dumps([document(0), document(1, count=0, labels={"": "x"}), {"name": "a b"}]).encode()
    async with inprocess_server() as made:
        small = await made.client.post("/v1/workloads/batch", content=wrong)
        monkeypatch.setattr(documents, "QUICK_BYTES_MAX", 0)
        large = await made.client.post("/v1/workloads/batch", content=wrong)
        assert small.status_code == large.status_code == 422
        assert small.json() == large.json()
        paths = [error["path"] for error in large.json()["params"]["errors"]]
        assert paths == ["[1].labels", "[1].count", "[2].name", "[2].steps"]


async def test_different_rules_of_a_request_are_limited() -> None:
    async with inprocess_server() as made:
        rules = [[f"zone == '{n}x{i}'" for i in range(32)] for n in range(9)]
        body = [document(n, placement={"require": own}) for n, own in enumerate(rules)]
        answer = await made.client.post("/v1/workloads/batch", json=body)
        assert answer.status_code == 422
        assert answer.json()["message"].startswith("a request may have 256 different rules")
        assert not made.engine.state.workloads
        same = [document(n, placement={"require": rules[0]}) for n in range(9)]
        assert (await made.client.post("/v1/workloads/batch", json=same)).status_code == 201
