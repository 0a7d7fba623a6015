"""What a controller asks for: schedule, update, unschedule, get, list; and every no."""

import json

import grpc
import pytest

from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import controller_server, job

INVALID, MISSING = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


async def test_what_is_scheduled_is_there_and_is_reported() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        reply = await visitor.schedule(job("a"), job("b", count=3, priority=70))
        assert [(workload.project, workload.name, workload.count, workload.state) for workload in reply.workloads] == [
            ("default", "a", 1, "queued"),
            ("default", "b", 3, "queued"),
        ]
        found = await visitor.call("Get", pb.GetRequest(project="default", name="b"))
        assert json.loads(found.document)["count"] == 3
        assert [instance.index for instance in found.instances] == [0, 1, 2]
        assert found.workload.counts["queued"] == 3 and found.workload.priority == 70
        page = await visitor.call("List", pb.ListRequest(limit=1))
        assert [workload.name for workload in page.workloads] == ["b"] and page.next
        page = await visitor.call("List", pb.ListRequest(limit=1, after=page.next))
        assert [workload.name for workload in page.workloads] == ["a"]


async def test_the_principal_is_in_the_audit_log() -> None:
    async with controller_server() as opened:
        await opened.visitor(await opened.token("submitter", "default")).schedule(job("a"))
        entries = (await opened.server.get("/v1/audit"))["items"]
        assert [(entry["who"], entry["what"], entry["target"]) for entry in entries][0] == (
            "token:submitter-default", "submit", "default/a",
        )  # fmt: skip
        assert entries[0]["where"] == "127.0.0.1"


async def test_a_batch_is_taken_in_whole_or_not_at_all() -> None:
    async with controller_server() as opened:
        visitor, before = opened.visitor(), opened.server.snapshot()
        documents = [json.dumps(item) for item in (job("a"), job("b", retries=-1))]
        no = await visitor.refused("Schedule", pb.ScheduleRequest(documents=documents))
        assert (no.status, no.path) == (INVALID, "documents[1].retries.max")
        assert opened.server.snapshot() == before


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ('{"name": "a", "command": "true", "count": 0.5}', "documents[0].count"),
        ('{"name": "a", "command": "true", "colour": 1}', "documents[0].colour"),
        ('{"name": "a b", "command": "true"}', "documents[0].name"),
        ('{"command": "true"}', "documents[0].name"),
        ('{"name": "a"}', "documents[0].steps"),
        ('{"name": "a", "steps": []}', "documents[0].steps"),
        ('{"name": "a", "name": "b", "command": "true"}', "documents[0].name"),
        ('{"name": "a", "command": "true"},{"name": "b", "command": "true"}', "documents[0]"),
        ("[]", "documents[0]"),
        ("nonsense", "documents[0]"),
        ("", "documents[0]"),
    ],
)
async def test_what_is_wrong_with_a_document_is_reported_with_its_field(document: str, path: str) -> None:
    async with controller_server() as opened:
        before = opened.server.snapshot()
        no = await opened.visitor().refused("Schedule", pb.ScheduleRequest(documents=[document]))
        assert no.status == INVALID and no.path == path and no.message.startswith(path), (no, no.path)
        assert opened.server.snapshot() == before


async def test_nothing_and_too_much_are_refused() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        for documents in ([], ["{}"] * 10_001):
            no = await visitor.refused("Schedule", pb.ScheduleRequest(documents=documents))
            assert (no.status, no.path, no.code) == (INVALID, "documents", "invalid")
        large = json.dumps(job("a", env={"X": "x" * (8 << 20)}))
        assert (await visitor.refused("Schedule", pb.ScheduleRequest(documents=[large]))).code == "too_large"
        assert (await visitor.refused("Schedule", b"\xff\xff\xff")).code == "unreadable"


async def test_a_name_in_use_is_a_conflict_and_apply_is_none() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await visitor.schedule(job("a"))
        no = await visitor.refused("Schedule", pb.ScheduleRequest(documents=[json.dumps(job("a"))]))
        assert (no.status, no.code, no.path) == (grpc.StatusCode.ALREADY_EXISTS, "name_in_use", "documents[0].name")
        reply = await visitor.schedule(job("a"), apply=True)
        assert reply.workloads[0].name == "a"


async def test_update_changes_what_is_there_and_nothing_else() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        document = json.dumps(job("web", kind="service", count=1))
        no = await visitor.refused("Update", pb.UpdateRequest(document=document))
        assert (no.status, no.path) == (MISSING, "document.name") and "default/web" in no.message
        assert not opened.server.engine.state.workloads
        await visitor.schedule(document)
        changed = json.dumps(job("web", kind="service", count=2))
        assert (await visitor.call("Update", pb.UpdateRequest(document=changed))).count == 2
        no = await visitor.refused("Update", pb.UpdateRequest(document=json.dumps(job("web", count="x"))))
        assert (no.status, no.path) == (INVALID, "document.count")


async def test_update_restarts_nothing_that_has_ended() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await visitor.schedule(job("web", kind="service", count=1))
        changed = pb.UpdateRequest(document=json.dumps(job("web", kind="service", count=2)))
        await visitor.call("Unschedule", pb.UnscheduleRequest(project="default", name="web"))
        no = await visitor.refused("Update", changed)
        assert (no.status, no.code, no.path) == (MISSING, "not_found", "document.name")
        workload = opened.server.engine.state.workloads["default/web"]
        assert workload.version == 1 and workload.finished_ms


async def test_unschedule_twice_is_fine_and_what_is_unknown_is_not_found() -> None:
    async with controller_server() as opened:
        visitor, agent = opened.visitor(), await opened.server.agent()
        await visitor.schedule(job("a"), job("array", count=2, resources={"cpu": 4}))
        for _ in range(2):
            answer = await visitor.call("Unschedule", pb.UnscheduleRequest(project="default", name="array", index=1))
            assert answer.counts["cancelled"] == 1
        for _ in range(2):
            assert (await visitor.call("Unschedule", pb.UnscheduleRequest(project="default", name="a"))).name == "a"
        for unknown in (
            pb.UnscheduleRequest(project="default", name="nobody"),
            pb.UnscheduleRequest(project="nowhere", name="a"),
            pb.UnscheduleRequest(project="default", name="array", index=7),
        ):
            assert (await visitor.refused("Unschedule", unknown)).status == MISSING
        assert len([order for order in agent.orders() if order.workload == "default/a"]) == 1


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b", "ü", "a" * 500, "%2e"])
async def test_odd_names_lead_nowhere(name: str) -> None:
    async with controller_server() as opened:
        for method, kind in (
            ("Get", pb.GetRequest),
            ("Unschedule", pb.UnscheduleRequest),
            ("Attach", pb.AttachRequest),
        ):
            no = await opened.visitor().refused(method, kind(project="default", name=name))
            assert (no.status, no.path) == (INVALID, "name")


async def test_get_shows_the_token_and_the_story_of_one_instance() -> None:
    async with controller_server() as opened:
        agent = await opened.server.agent()
        visitor = opened.visitor()
        await visitor.schedule(job("a"))
        (run,) = agent.orders()
        await agent.starts(run)
        reply = await visitor.call("Get", pb.GetRequest(project="default", name="a", index=0))
        (instance,) = reply.instances
        assert (instance.token, instance.node, instance.state) == (run.token, "n1", "running")
        assert [stage.state for stage in instance.stages] == ["queued", "placed", "running"]
        assert [stage.attempt for stage in instance.stages] == [0, 1, 1]
        no = await visitor.refused("Get", pb.GetRequest(project="default", name="a", index=1))
        assert no.status == MISSING
