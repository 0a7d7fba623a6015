"""What a controller asks beyond work: why, plans, nodes, drains, join tokens, history."""

import json

import grpc

from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import controller_server, job

DENIED = grpc.StatusCode.PERMISSION_DENIED


async def test_why_and_plan_say_what_the_rest_api_says() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await opened.server.agent("n1")
        await visitor.schedule(job("huge", resources={"cpu": 1_000}))
        found = await visitor.call("Why", pb.WhyRequest(project="default", name="huge"))
        answer = await opened.server.get("/v1/workloads/default/huge/why")
        assert (found.code, found.verdict, found.message) == (answer["code"], answer["verdict"], answer["message"])
        assert [(item.code, item.nodes) for item in found.blockers] == [
            (item["code"], item["nodes"]) for item in answer["blockers"]
        ]
        brief = await visitor.call("Why", pb.WhyRequest(project="default", name="huge", brief=True))
        assert brief.code == found.code and not brief.verdict
        plan = await visitor.call("Plan", pb.PlanRequest(documents=[json.dumps(job("small"))]))
        assert [(item.instance, item.node) for item in plan.placed] == [("default/small.0", "n1")]
        assert list(plan.created) == ["default/small"] and plan.changes and plan.token
        no = await visitor.refused("Why", pb.WhyRequest(project="default", name="nothing"))
        assert no.status is grpc.StatusCode.NOT_FOUND


async def test_nodes_are_listed_and_taken_out_of_service() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await opened.server.agent("n1")
        await opened.server.agent("n2")
        page = await visitor.call("ListNodes", pb.ListNodesRequest(limit=1))
        assert [node.name for node in page.nodes] == ["n1"] and page.next == "n1"
        assert (await visitor.call("GetNode", pb.NodeRequest(name="n1"))).node.status == "ready"
        assert (await visitor.call("Cordon", pb.NodeRequest(name="n1"))).cordoned
        assert not (await visitor.call("Uncordon", pb.NodeRequest(name="n1"))).cordoned
        preview = await visitor.call("PreviewDrain", pb.DrainRequest(name="n1", deadline="10m"))
        assert preview.node == "n1" and preview.whole
        assert (await visitor.call("GetNode", pb.NodeRequest(name="n1"))).node.status == "ready"
        drained = await visitor.call("Drain", pb.DrainRequest(name="n1"))
        assert drained.status in ("draining", "drained")
        no = await visitor.refused("ListNodes", pb.ListNodesRequest(status="odd"))
        assert no.path == "status"


async def test_join_tokens_are_made_listed_and_revoked() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        made = await visitor.call("CreateJoinToken", pb.CreateJoinTokenRequest(pool="edge", uses=3, expires="2h"))
        assert made.token and (made.about.pool, made.about.uses) == ("edge", 3)
        forever = await visitor.call("CreateJoinToken", pb.CreateJoinTokenRequest(unlimited=True))
        assert not forever.about.HasField("uses")
        listed = await visitor.call("ListJoinTokens", pb.ListJoinTokensRequest())
        assert {item.id for item in listed.items} == {made.about.id, forever.about.id}
        await visitor.call("RevokeJoinToken", pb.RevokeJoinTokenRequest(id=made.about.id))
        listed = await visitor.call("ListJoinTokens", pb.ListJoinTokensRequest())
        assert [item.id for item in listed.items] == [forever.about.id]


async def test_a_role_that_is_too_low_is_refused() -> None:
    async with controller_server() as opened:
        await opened.server.agent("n1")
        visitor = opened.visitor(await opened.token("viewer", "default"))
        for method, request in (
            ("Drain", pb.DrainRequest(name="n1")),
            ("Cordon", pb.NodeRequest(name="n1")),
            ("CreateJoinToken", pb.CreateJoinTokenRequest()),
            ("Plan", pb.PlanRequest(documents=[json.dumps(job("a"))])),
        ):
            assert (await visitor.refused(method, request)).status is DENIED
        assert (await visitor.call("ListNodes", pb.ListNodesRequest())).nodes[0].name == "n1"


async def test_without_a_history_the_answer_says_so() -> None:
    async with controller_server() as opened:
        no = await opened.visitor().refused("History", pb.HistoryRequest(limit=1_001))
        assert no.path == "limit"
        no = await opened.visitor().refused("Events", pb.EventsRequest())
        assert no.code


async def test_a_schedule_is_scheduled_to_controllers_too() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await opened.server.submit("nightly", schedule="0 0 29 2 *", count=3)
        await opened.server.submit("waits")
        page = await visitor.call("List", pb.ListRequest(state="scheduled"))
        assert [(item.name, item.state, dict(item.counts)) for item in page.workloads] == [("nightly", "scheduled", {})]
        why = await visitor.call("Why", pb.WhyRequest(project="default", name="nightly"))
        assert (why.state, why.code) == ("scheduled", "schedule")
