"""Pipelines for controllers: one call starts all actions."""

import json
from typing import Any

from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import controller_server

WEB: dict[str, Any] = {
    "name": "web",
    "actions": [{"name": "test", "needs": {"build": "finished"}, "steps": ["y"]}, {"name": "build", "steps": ["x"]}],
}


async def test_a_controller_starts_a_pipeline() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        request = pb.StartPipelineRequest(pipeline=json.dumps(WEB), variables={"A": "b"}, retention="1h", run="r1")
        reply = await visitor.call("StartPipeline", request)
        assert (reply.project, reply.pipeline, reply.run, reply.name) == ("default", "web", "r1", "web-r1")
        assert [
            (item.action, dict(item.needs), item.workload.name, item.workload.result) for item in reply.actions
        ] == [
            ("build", {}, "web-r1-build", "created"),
            ("test", {"web-r1-build": "finished"}, "web-r1-test", "created"),
        ]
        assert set(opened.server.engine.state.workloads) == {"default/web-r1-build", "default/web-r1-test"}


async def test_a_wrong_pipeline_names_the_field() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        for text, path in (
            ("", "pipeline"),
            ("{", "pipeline"),
            ('{"name": "web"}', "pipeline.actions"),
            (json.dumps(WEB) + ', "only": ["x"]', ""),
        ):
            refused = await visitor.refused("StartPipeline", pb.StartPipelineRequest(pipeline=text))
            assert not path or refused.path == path
        assert not opened.server.engine.state.workloads


async def test_a_controller_approves() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        gated = {"name": "web", "actions": [{"name": "deploy", "steps": ["x"], "approve": {"role": "admin"}}]}
        await visitor.call("StartPipeline", pb.StartPipelineRequest(pipeline=json.dumps(gated), run="r1"))
        request = pb.ApproveRequest(project="default", name="web-r1-deploy")
        assert (await visitor.call("Approve", request)).name == "web-r1-deploy"
        assert opened.server.engine.state.workloads["default/web-r1-deploy"].approval is not None
        refused = await visitor.refused("Approve", pb.ApproveRequest(project="default", name="none"))
        assert refused.code == "not_found"
