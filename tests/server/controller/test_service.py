"""The controllers' door: who comes in, what each may do and see, health and reflection."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from roost.schema.reason_text import HIDDEN
from roost.server.controller.service import REFLECTION, REFLECTION_V1, SERVICE
from roost.server.engine.role import Starting
from roost.server.pki.tls import OperatorCertificate, ServerCertificate
from roost.wire import controller_pb2 as pb
from tests.certified import authority
from tests.server.controller.controller_server import OPTIONS, No, Visitor, controller_server, job, run_request
from tests.server.controller.test_watch import World, begun, follow
from tests.server.inprocess_server import DEADLINE_S, TOKEN, in_role

DENIED, UNKNOWN, MISSING = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
)
REQUESTS: dict[str, Any] = {
    "Schedule": pb.ScheduleRequest(documents=['{"name": "x", "command": "true", "project": "web"}']),
    "Update": pb.UpdateRequest(document='{"name": "a", "command": "false", "project": "web"}'),
    "Unschedule": pb.UnscheduleRequest(project="web", name="a"),
    "Get": pb.GetRequest(project="web", name="a"),
    "List": pb.ListRequest(),
    "Run": run_request(job("y", project="web")),
    "Attach": pb.AttachRequest(project="web", name="a"),
    "Watch": pb.WatchRequest(),
}


@pytest.mark.parametrize("method", REQUESTS)
@pytest.mark.parametrize("token", [None, "", "wrong-token", "roost_token_1", "x" * 15_000])
async def test_no_unknown_reader_learns_anything(method: str, token: str | None) -> None:
    async with controller_server() as opened:
        no = await opened.visitor(token).refused(method, REQUESTS[method])
        assert (no.status, no.code) == (UNKNOWN, "refused")
        unreadable = await opened.visitor(token).refused(method, b"\xff")
        assert unreadable.status == UNKNOWN  # not even what can be read
        assert not opened.server.engine.state.workloads


async def test_roles_count_as_over_rest() -> None:
    async with controller_server() as opened:
        await opened.server.submit("a", project="web")
        viewer = opened.visitor(await opened.token("viewer", "web"))
        before = opened.server.snapshot()[1:]
        for method in ("Schedule", "Update", "Unschedule", "Run"):
            no = await viewer.refused(method, REQUESTS[method])
            assert (no.status, no.code) == (DENIED, "forbidden"), method
        assert opened.server.snapshot()[1:] == before
        assert (await viewer.call("Get", REQUESTS["Get"])).workload.name == "a"
        submitter = opened.visitor(await opened.token("submitter", "web"))
        assert (await submitter.call("Schedule", REQUESTS["Schedule"])).workloads[0].name == "x"


async def test_a_foreign_project_is_as_good_as_none() -> None:
    async with controller_server() as opened:
        await opened.server.submit("a", project="web")
        stranger = opened.visitor(await opened.token("submitter", "shop"))
        for method in ("Unschedule", "Get", "Attach", "Update"):
            assert (await stranger.refused(method, REQUESTS[method])).status == MISSING, method
        for method in ("Schedule", "Run"):
            assert (await stranger.refused(method, REQUESTS[method])).status == DENIED, method
        assert not (await stranger.call("List", REQUESTS["List"])).workloads


async def test_the_stream_shows_foreign_work_to_no_reader_and_names_it_in_no_words() -> None:
    async with controller_server(preempt_margin=10) as opened:
        agent = await opened.server.agent(cpu=1_000)
        token, world, all_of_it = await opened.token("viewer", "shop"), World(), World()
        stream = await begun(opened, world, token)
        whole = await begun(opened, all_of_it)
        await opened.server.submit("mine", project="shop", resources={"cpu": 1}, priority=0)
        (run,) = agent.orders()
        await agent.starts(run)
        await opened.server.submit("secretive", project="web", resources={"cpu": 1}, priority=100)
        await follow(stream, world, lambda: world.states().get("instance:shop/mine.0") == "stopping")
        await follow(whole, all_of_it, lambda: all_of_it.states().get("instance:shop/mine.0") == "stopping")
        assert sorted(world.objects) == ["instance:shop/mine.0", "node:n1", "workload:shop/mine"]
        assert "secretive" in all_of_it.objects["instance:shop/mine.0"].message
        answer = world.objects["instance:shop/mine.0"]
        assert "secretive" not in str(answer) and HIDDEN in answer.message
        stream.cancel()
        whole.cancel()


async def test_a_token_that_is_taken_back_ends_its_streams() -> None:
    async with controller_server() as opened:
        token, world = await opened.token("viewer", "*"), World()
        stream = await begun(opened, world, token)
        answer = await opened.server.client.delete("/v1/tokens/viewer-all")
        assert answer.status_code in (200, 204), answer.text
        await opened.server.submit("a")
        with pytest.raises(No) as caught:
            await stream.rest()
        assert caught.value.status == UNKNOWN
        assert "workload:default/a" not in world.objects


async def test_health_is_reported_to_all_readers_and_only_when_it_can_be_asked() -> None:
    async with controller_server() as opened:
        stub: Any = health_pb2_grpc.HealthStub(opened.visitor(None).channel)
        for service in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        async with asyncio.timeout(DEADLINE_S):
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            with in_role(opened.server.engine, Starting("the store is away")):
                assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()


async def test_reflection_describes_the_service_to_known_callers() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(visitor.channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        call = stub.ServerReflectionInfo(iter(asked), metadata=visitor.metadata, timeout=DEADLINE_S)
        services, file = [item async for item in call]
        assert {item.name for item in services.list_services_response.service} >= {SERVICE, REFLECTION}
        assert b"roost.controller.v1" in file.file_descriptor_response.file_descriptor_proto[0]
        again = visitor.channel.stream_stream(
            f"/{REFLECTION_V1}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = again(iter(asked), metadata=visitor.metadata, timeout=DEADLINE_S)
        assert [item async for item in call] == [services, file]
        call = stub.ServerReflectionInfo(timeout=DEADLINE_S)
        with suppress(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() == UNKNOWN


@pytest.mark.parametrize("kind", ["own", "operators"])
async def test_it_is_encrypted_as_the_api_is_with_the_same_certificate(kind: str, tmp_path: Path) -> None:
    own = ServerCertificate(authority(), "server", ("127.0.0.1",), tmp_path)
    shown: Any = own
    if kind == "operators":
        (tmp_path / "cert.pem").write_text(own.bundle.certificate)
        (tmp_path / "key.pem").write_text(own.bundle.key)
        shown = OperatorCertificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with controller_server() as opened:
        port = await opened.controllers.start("127.0.0.1", 0, shown.grpc_credentials())
        credentials = grpc.ssl_channel_credentials(authority().certificate.encode())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=OPTIONS) as channel:
            reply = await Visitor(channel, TOKEN).schedule(job("a"))
            assert reply.workloads[0].name == "a"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            no = await Visitor(channel, TOKEN).refused("List", pb.ListRequest())
            assert no.status == grpc.StatusCode.UNAVAILABLE
        if kind == "own":
            before = own.bundle
            own.bundle = own._issue()  # renewed while it runs
            assert own.bundle.certificate != before.certificate
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=OPTIONS) as channel:
                assert (await Visitor(channel, TOKEN).call("List", pb.ListRequest())).workloads


@pytest.mark.parametrize("seed", range(20))
async def test_every_message_is_answered_and_nothing_breaks(seed: int) -> None:
    chance = random.Random(seed)
    async with controller_server() as opened:
        visitor = opened.visitor()
        for method, request in REQUESTS.items():
            good = bytearray(request.SerializeToString())
            for _ in range(chance.randrange(1, 6)):
                good.insert(chance.randrange(len(good) + 1), chance.randrange(256))
            stream = visitor.stream(method, bytes(good))
            try:
                await stream.next()
            except No as no:
                assert no.status not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), (method, bytes(good), no)
            stream.cancel()
        assert opened.server.engine.ready
        await opened.server.until(
            lambda: not opened.controllers.streams["readers"] and not opened.controllers.streams["runs"]
        )
