"""Templates for controllers: documents of Schedule, Update and Run may name one."""

import json
from typing import Any

from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import ControllerServer, controller_server, run_request

TEMPLATE = {
    "parameters": {"n": {"type": "integer", "default": 1}, "cron": {"required": False}},
    "workload": {"command": ["run", "{{n}}"], "count": "{{n}}", "schedule": "{{cron}}"},
}


async def apply(opened: ControllerServer) -> None:
    assert (await opened.server.client.put("/v1/templates/default/train", json=TEMPLATE)).status_code == 200


def use(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "template": {"name": "train", "parameters": parameters}}


async def test_controllers_schedule_and_update_from_a_template() -> None:
    async with controller_server() as opened:
        await apply(opened)
        visitor = opened.visitor()
        reply = await visitor.schedule(use("a"), use("b", n=3))
        assert [(made.name, made.count, made.template) for made in reply.workloads] == [
            ("a", 1, "train@1"),
            ("b", 3, "train@1"),
        ]
        updated = await visitor.call("Update", pb.UpdateRequest(document=json.dumps(use("b", n=4))))
        assert (updated.result, updated.count) == ("changed", 4)
        no = await visitor.refused("Schedule", pb.ScheduleRequest(documents=[json.dumps(use("c", n="x"))]))
        assert no.path == "documents[0].template.parameters.n"


async def test_what_is_followed_is_one_instance_also_of_a_template() -> None:
    async with controller_server() as opened:
        await apply(opened)
        visitor = opened.visitor()
        for wrong in (use("a", n=2), use("a", cron="@daily")):
            no = await visitor.refused("Run", run_request(wrong))
            assert no.path == "document.template"
        assert not opened.server.engine.state.workloads
        frames = await visitor.stream("Run", run_request(use("a"))).until(lambda frame: frame.name == "a")
        assert frames
