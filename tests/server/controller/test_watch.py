"""Watch: everything once, then every change; at the pace of each, and nothing missed."""

import asyncio
from typing import Any

import grpc
import pytest

from roost.model.protocol import Report, Usage
from roost.server.controller import encode
from roost.server.controller import watch as watch_module
from roost.server.feed.change_log import Watch
from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import ControllerServer, No, Stream, controller_server, job

FAST = {"interval_ms": 20}


class World:
    """What a controller knows, as it is to put it together: of each object the newest."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.revisions: dict[str, int] = {}
        self.stages: list[tuple[str, str]] = []
        self.metrics: dict[str, int] = {}
        self.measured_ms: dict[str, int] = {}
        self.mark = ""
        self.resets = 0
        self.reported = 0

    def take(self, frame: Any) -> Any:
        if frame.reset:
            self.objects.clear()
            self.revisions.clear()
            self.resets += 1
        for change in frame.changes:
            self.reported += 1
            kind = change.WhichOneof("object")
            key, thing = key_of(kind, change)
            if kind == "instance":
                self.stages += [(key, stage.state) for stage in thing.stages]
            if change.revision < self.revisions.get(key, 0):
                continue
            self.revisions[key] = change.revision
            if kind == "gone":
                self.objects.pop(key, None)
            else:
                self.objects[key] = thing
        self.metrics |= {metric.node: metric.usage.cpu_milli for metric in frame.metrics}
        self.measured_ms |= {metric.node: metric.at_ms for metric in frame.metrics}
        self.mark = frame.mark or self.mark
        return frame

    def states(self) -> dict[str, str]:
        return {key: thing.state for key, thing in self.objects.items() if hasattr(thing, "state")}


def key_of(kind: str, change: Any) -> tuple[str, Any]:
    thing = getattr(change, kind)
    if kind == "gone":
        return f"{thing.kind}:{thing.key}", thing
    if kind == "node":
        return f"node:{thing.name}", thing
    return f"{kind}:{thing.project}/{thing.name}" + (f".{thing.index}" if kind == "instance" else ""), thing


async def follow(stream: Stream, world: World, holds: Any) -> None:
    await stream.until(lambda frame: (world.take(frame), holds())[1])


async def begun(opened: ControllerServer, world: World, token: str | None = None, **fields: Any) -> Stream:
    """A stream that has sent everything."""
    visitor = opened.visitor(token) if token else opened.visitor()
    stream = visitor.stream("Watch", pb.WatchRequest(**{**FAST, **fields}))
    await stream.until(lambda frame: world.take(frame).whole)
    return stream


async def test_everything_is_reported_and_then_what_changes() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(labels={"disk": "nvme"}, zone="z1", arch="arm64"), World()
        await opened.server.submit("a")
        stream = await begun(opened, world)
        assert world.resets == 1
        assert world.states() == {"workload:default/a": "running", "instance:default/a.0": "placed"}
        node = world.objects["node:n1"]
        assert (node.zone, node.arch, dict(node.labels)) == ("z1", "arm64", {"disk": "nvme"})
        assert node.resources["cpu_milli"].total == 4_000 and node.status == "ready"
        (run,) = agent.orders()
        await agent.starts(run)
        await agent.ends(run, code=9)
        await follow(stream, world, lambda: world.states().get("workload:default/a") == "failed")
        instance = world.objects["instance:default/a.0"]
        assert (instance.state, instance.exit_code, instance.message) == ("failed", 9, "exit code 9")
        stream.cancel()


async def test_every_stop_is_reported_with_its_cause_whatever_took_its_place() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(), World()
        stream = await begun(opened, world, interval_ms=500)
        await opened.server.submit("a", retries={"max": 2, "on": ["failed"]})
        for code in (1, 2, 0):  # all of it within one interval
            run = agent.orders()[-1]
            await agent.starts(run)
            await agent.ends(run, code=code)
        await follow(stream, world, lambda: world.states().get("instance:default/a.0") == "succeeded")
        moves = [state for key, state in world.stages if key == "instance:default/a.0"]
        assert moves.count("queued") >= 2 and moves[-1] == "succeeded"
        stream.cancel()
        causes = [line["message"] for line in (await opened.server.get("/v1/workloads/default/a/instances/0"))["story"]]
        assert sum("exit code" in cause for cause in causes) == 3


async def test_changes_of_one_object_within_the_interval_are_reported_as_one() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(), World()
        await opened.server.submit("a")
        (run,) = agent.orders()
        stream = await begun(opened, world, interval_ms=1_000)
        answer, revision = world.reported, opened.server.engine.state.revision
        for step in range(1, 51):
            await agent.says(Report(run.token, "running", step=step))
        assert opened.server.engine.state.revision == revision + 50
        await follow(stream, world, lambda: world.objects["instance:default/a.0"].step == 50)
        assert world.reported - answer <= 10
        stream.cancel()


async def test_a_reader_that_comes_back_misses_nothing_and_gets_nothing_twice() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(cpu=64_000), World()
        stream = await begun(opened, world)
        await opened.server.submit("a")
        await follow(stream, world, lambda: "instance:default/a.0" in world.objects)
        stream.cancel()
        for run in agent.orders():
            await agent.ends(run)
        await opened.server.submit("b")
        seen, resets, stages = world.reported, world.resets, len(world.stages)
        stream = await begun(opened, world, since=world.mark)
        await follow(stream, world, lambda: world.states().get("instance:default/b.0") == "placed")
        assert world.resets == resets
        assert world.states()["instance:default/a.0"] == "succeeded"
        assert [stage for stage in world.stages[stages:]] == [
            ("instance:default/a.0", "running"),
            ("instance:default/a.0", "succeeded"),
            ("instance:default/b.0", "queued"),
            ("instance:default/b.0", "placed"),
        ]
        assert seen < world.reported
        stream.cancel()


@pytest.mark.parametrize("since", ["1-1", "999999999", "nonsense", "0"])
async def test_what_is_no_longer_known_is_reported_as_such_and_everything_anew(since: str) -> None:
    async with controller_server(watch=Watch(changes_max=5)) as opened:
        for number in range(20):
            await opened.server.submit(f"w{number}")
        world = World()
        stream = await begun(opened, world, since=since)
        assert world.resets == 1 and len(world.objects) == 20
        stream.cancel()


async def test_gone_is_reported() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(), World()
        stream = await begun(opened, world)
        await opened.server.submit("a", retention="0s")
        (run,) = agent.orders()
        await follow(stream, world, lambda: "instance:default/a.0" in world.objects)
        await agent.ends(run)
        await follow(stream, world, lambda: "workload:default/a" not in world.objects)
        assert list(world.objects) == ["node:n1"]
        stream.cancel()


async def test_filters_show_what_is_asked_for_and_nothing_else() -> None:
    async with controller_server() as opened:
        agent = await opened.server.agent(cpu=64_000)
        await opened.server.submit("a")
        await opened.server.submit("b", project="web")
        streams: dict[str, tuple[Stream, World]] = {}
        for name, fields in {
            "kinds": {"kinds": ["node"]},
            "project": {"project": "web", "kinds": ["instance", "workload"]},
            "workload": {"workload": "default/a", "kinds": ["instance"]},
            "states": {"states": ["failed"], "kinds": ["instance"]},
        }.items():
            world = World()
            streams[name] = (await begun(opened, world, **fields), world)
        assert {name: sorted(world.objects) for name, (_, world) in streams.items()} == {
            "kinds": ["node:n1"],
            "project": ["instance:web/b.0", "workload:web/b"],
            "workload": ["instance:default/a.0"],
            "states": [],
        }
        for run, code in zip(agent.orders(), (0, 1), strict=True):
            await agent.ends(run, code=code)
        stream, world = streams["states"]
        await follow(stream, world, lambda: world.objects)
        assert world.states() == {"instance:web/b.0": "failed"}
        for stream, _ in streams.values():
            stream.cancel()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"kinds": ["pod"]}, "kinds"),
        ({"states": ["dead"]}, "states"),
        ({"workload": "a"}, "workload"),
        ({"interval_ms": 5}, "interval_ms"),
        ({"interval_ms": 70_000}, "interval_ms"),
        ({"metrics_ms": 10}, "metrics_ms"),
    ],
)
async def test_odd_wishes_are_refused_with_their_field(fields: dict[str, Any], path: str) -> None:
    async with controller_server() as opened:
        no = await opened.visitor().refused("Watch", pb.WatchRequest(**fields))
        assert (no.status, no.path) == (grpc.StatusCode.INVALID_ARGUMENT, path)
        assert not opened.controllers.streams["readers"]


async def test_metrics_come_as_often_as_asked_for_although_nothing_changes() -> None:
    async with controller_server() as opened:
        agent, world = await opened.server.agent(), World()
        stream = await begun(opened, world, metrics_ms=1_000)
        engine = opened.server.engine
        before_ms = engine.clock.now_ms()
        engine.heard("n1", agent.session, Usage(cpu_milli=1_234, memory=5, disk=6))
        after_ms = engine.clock.now_ms()
        engine._wake.set()
        await follow(stream, world, lambda: world.metrics == {"n1": 1_234})
        await opened.server.submit("later")  # another step: the time of measuring stays
        world.metrics.clear()
        await follow(stream, world, lambda: world.metrics == {"n1": 1_234})
        assert before_ms <= world.measured_ms["n1"] <= after_ms
        usage = (await opened.server.get("/v1/nodes/n1"))["usage"]
        assert (usage["cpu_milli"], usage["measured_ms"]) == (1_234, world.measured_ms["n1"])
        stream.cancel()


async def test_once_ends_when_everything_was_reported() -> None:
    async with controller_server() as opened:
        for number in range(3):
            await opened.server.submit(f"w{number}")
        world = World()
        for frame in await opened.visitor().stream("Watch", pb.WatchRequest(once=True)).rest():
            world.take(frame)
        assert len(world.objects) == 3


async def test_fifty_readers_share_what_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with controller_server() as opened:
        await opened.server.submit("a")
        worlds = [World() for _ in range(50)]
        streams = [await begun(opened, world) for world in worlds]
        encodings = 0
        really = encode._encode

        def counted(*args: Any) -> Any:
            nonlocal encodings
            encodings += 1
            return really(*args)

        monkeypatch.setattr(encode, "_encode", counted)
        await opened.server.submit("b")
        for stream, world in zip(streams, worlds, strict=True):
            await follow(stream, world, lambda world=world: "workload:default/b" in world.objects)
        assert encodings == 1
        for stream in streams:
            stream.cancel()


async def test_a_reader_that_falls_off_the_ring_is_sent_away_and_may_come_back() -> None:
    async with controller_server(watch=Watch(changes_max=20)) as opened:
        world = World()
        stream = await begun(opened, world, interval_ms=1_000)
        for number in range(60):
            await opened.server.submit(f"w{number}")
        with pytest.raises(No) as caught:
            await follow(stream, world, lambda: len(world.objects) == 60)
        assert caught.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.code == "slow_reader" and caught.value.since == world.mark
        stream = await begun(opened, world, since=world.mark)
        assert world.resets == 2 and len(world.objects) == 60
        stream.cancel()


async def test_a_reader_that_never_reads_holds_one_frame_and_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "WRITE_S_MAX", 0.5)
    async with controller_server() as opened:
        allocated: list[int] = []
        really = watch_module.WatchReader._send

        async def sent(self: Any, frame: bytes) -> None:
            allocated.append(len(frame))
            await really(self, frame)

        monkeypatch.setattr(watch_module.WatchReader, "_send", sent)
        await opened.server.submit("big", count=1)
        for number in range(40):
            documents = [job(f"w{number}-{index}", labels={"x": "y" * 60}) for index in range(100)]
            await opened.server.client.post("/v1/workloads/batch", json=documents)
        visitor = opened.visitor("the-token-of-the-roost", ("grpc.http2.lookahead_bytes", 1 << 10))
        stream = visitor.stream("Watch", pb.WatchRequest(**FAST))
        await opened.server.until(lambda: opened.controllers.streams["readers"])
        async with asyncio.timeout(20):
            await opened.server.until(lambda: not opened.controllers.streams["readers"])
        assert max(allocated) <= watch_module.FRAME_BYTES + 4_096
        with pytest.raises(No) as caught:
            await stream.rest()
        assert caught.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED and caught.value.code == "slow_reader"


async def test_a_reader_that_does_not_take_everything_in_time_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "EVERYTHING_S_MAX", 0.0)
    async with controller_server() as opened:
        await opened.server.submit("a")
        no = await opened.visitor().refused("Watch", pb.WatchRequest())
        assert (no.status, no.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow_reader")


async def test_a_server_that_stops_says_so_and_where_to_go_on() -> None:
    async with controller_server() as opened:
        world = World()
        stream = await begun(opened, world)
        opened.server.watch.close()
        with pytest.raises(No) as caught:
            await stream.rest()
        assert (caught.value.status, caught.value.since) == (grpc.StatusCode.UNAVAILABLE, world.mark)


async def test_a_state_that_was_loaded_anew_is_reported_anew() -> None:
    async with controller_server() as opened:
        await opened.server.submit("a")
        world = World()
        stream = await begun(opened, world)
        opened.server.perform.reset()
        await opened.server.submit("b")
        await follow(stream, world, lambda: "workload:default/b" in world.objects)
        assert world.resets <= 2 and "workload:default/a" in world.objects
        stream.cancel()
