"""Plans over the API: made, applied exactly, refused with a clear code; and the long answer to why."""

import pickle
from typing import Any

import pytest

from roost.model.errors import Conflict, Invalid
from roost.model.records.plan import Plan
from roost.server.engine.plan_tokens import BYTES_MAX, PLAN_MS_MAX, PLANS_MAX, Plans, new_token
from tests.core.scene import job, wanted
from tests.server.inprocess_server import InprocessServer, inprocess_server

pytestmark = pytest.mark.anyio


def document(name: str = "web", **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": "true", **fields}


async def planned(made: InprocessServer, *documents: dict[str, Any]) -> Any:
    return await made.post("/v1/plans", list(documents))


async def test_a_plan_says_what_would_happen_and_does_nothing() -> None:
    async with inprocess_server() as made:
        await made.agent("n1", cpu=2_000)
        before = made.snapshot()
        plan = await planned(made, document(count=3, ports={"http": 8080}), document("big", resources={"cpu": 8}))
        assert made.snapshot() == before
        assert plan["changes"] is True
        assert plan["created"] == ["default/web", "default/big"]
        assert [(item["instance"], item["node"], item["ports"]) for item in plan["placed"]] == [
            ("default/web.0", "n1", [8080])
        ]
        waits = {item["workload"]: (item["count"], item["code"]) for item in plan["pending"]}
        assert waits == {"default/web": (2, "insufficient_resources"), "default/big": (1, "unsatisfiable")}
        assert [blocker["code"] for blocker in plan["pending"][1]["blockers"]] == ["too_large"]


async def test_a_plan_is_applied_exactly_once() -> None:
    async with inprocess_server() as made:
        await made.agent("n1")
        plan = await planned(made, document())
        answer = await made.client.post(f"/v1/workloads?plan={plan['token']}", json=document())
        assert answer.status_code == 201
        assert (await made.get("/v1/workloads/default/web/instances/0"))["node"] == "n1"
        again = await made.client.post(f"/v1/workloads?plan={plan['token']}", json=document())
        assert (again.status_code, again.json()["code"]) == (409, "plan_stale")
        nothing = await planned(made, document())
        assert (nothing["changes"], nothing["unchanged"]) == (False, ["default/web"])
        answer = await made.client.post(f"/v1/workloads/batch?plan={nothing['token']}", json=[document()])
        assert answer.status_code == 201


async def test_a_plan_that_no_longer_holds_is_refused_with_the_difference() -> None:
    async with inprocess_server() as made:
        await made.agent("n1", cpu=2_000)
        batch = [document(resources={"cpu": 2}), document("other", priority=1)]
        plan = await planned(made, *batch)
        await made.submit("rival", resources={"cpu": 1})
        before = made.snapshot()
        answer = await made.client.post(f"/v1/workloads/batch?plan={plan['token']}", json=batch)
        report = answer.json()
        assert (answer.status_code, report["code"]) == (409, "plan_stale")
        assert "default/web.0: planned on n1 by least_loaded, now nothing" in report["message"]
        assert report["hint"]
        assert made.snapshot() == before


async def test_tokens_that_do_not_belong_are_refused() -> None:
    async with inprocess_server() as made:
        await made.agent("n1")
        token = (await planned(made, document()))["token"]
        before = made.snapshot()
        forged = token[:-1] + ("0" if token[-1] != "0" else "1")
        cases = [
            (token, document(command="false"), 409, "plan_mismatch"),
            (forged, document(), 422, "plan_unknown"),
            ("nonsense", document(), 422, "plan_unknown"),
            ("ü" * 80, document(), 422, "plan_unknown"),
        ]
        for given, body, status, code in cases:
            answer = await made.client.post("/v1/workloads", params={"plan": given}, json=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code), given
        assert made.snapshot() == before


async def test_bad_documents_are_refused_and_nothing_is_kept() -> None:
    async with inprocess_server() as made:
        await made.agent("n1")
        await made.submit("web")
        before = made.snapshot()
        cases: list[tuple[Any, int, str, str]] = [
            ({}, 422, "invalid", "$"),
            ([], 422, "invalid", "$"),
            ([document(), {"name": "x"}], 422, "invalid", "[1].steps"),
            ([document(count=-1)], 422, "invalid", "[0].count"),
            ([document("a"), document("a")], 409, "name_in_use", "[1].name"),
            ([document(kind="service")], 409, "cannot_change", "kind"),
            ([document("a", placement={"strategy": "none"})], 422, "invalid_strategy", "placement.strategy"),
        ]
        for body, status, code, path in cases:
            answer = await made.client.post("/v1/plans", json=body)
            report = answer.json()
            assert (answer.status_code, report["code"], report["path"]) == (status, code, path), body
        assert (await made.client.post("/v1/plans", content=b"[")).status_code == 400
        assert made.snapshot() == before


async def test_why_tells_what_would_help_unless_a_short_answer_is_asked_for() -> None:
    async with inprocess_server() as made:
        await made.agent("n1", cpu=2_000)
        await made.submit("busy", resources={"cpu": 1}, expected="1m")
        await made.submit("web", resources={"cpu": 2})
        answer = await made.get("/v1/workloads/default/web/why")
        assert (answer["verdict"], answer["position"], answer["queued_before"]) == ("wait", 1, [])
        first = answer["suggestions"][0]
        assert (first["kind"], first["path"], first["amounts"]) == ("less", "resources.cpu", {"cpu_milli": 1_000})
        assert [blocker["code"] for blocker in answer["blockers"]] == ["no_room"]
        assert answer["estimate"]["earliest_ms"] == answer["estimate"]["latest_ms"] > 0
        short = await made.get("/v1/workloads/default/web/why", advice=False)
        assert (short["message"], short["suggestions"], short["verdict"]) == (answer["message"], [], "")


def test_plans_are_few_and_not_old() -> None:
    plans, documents = Plans(), (wanted(job("web")),)
    tokens = [new_token() for _ in range(PLANS_MAX + 1)]
    for token in tokens:
        plans.add(token, pickle.dumps(Plan()), documents, 0)
    with pytest.raises(Invalid):
        plans.find(tokens[0], documents, 0)
    assert plans.find(tokens[1], documents, PLAN_MS_MAX) == Plan()
    with pytest.raises(Invalid):
        plans.find(tokens[1], documents, PLAN_MS_MAX + 1)
    with pytest.raises(Conflict):
        plans.find(tokens[2], (wanted(job("other")),), 0)
    with pytest.raises(Invalid):  # another server, another key
        Plans().find(tokens[2], documents, 0)


def test_plans_are_bounded_by_their_bytes() -> None:
    plans, documents = Plans(), (wanted(job("web")),)
    made = pickle.dumps(Plan(created=("x" * (BYTES_MAX // 2),)))
    for token in ("first", "second", "third"):
        plans.add(token, made, documents, 0)
    with pytest.raises(Invalid):
        plans.find("second", documents, 0)
    assert plans.find("third", documents, 0).created
    plans.add("huge", made + made + made, documents, 0)
    assert plans.find("huge", documents, 0).created  # the newest stays, whatever its size
    with pytest.raises(Invalid):
        plans.find("third", documents, 0)
