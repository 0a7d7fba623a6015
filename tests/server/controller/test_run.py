"""Run and Attach: stages and log bytes of one action, from every offset."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from roost.model.keys import log_name
from roost.model.protocol import Report
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.model.records.result import Result, ResultProblem
from roost.server.controller.run import LOOK_S
from roost.wire import controller_pb2 as pb
from tests.server.controller.controller_server import ControllerServer, No, Stream, controller_server, job, run_request

BYTES = bytes(range(256)) * 40


async def write_log(
    opened: ControllerServer, name: str, data: bytes, attempt: int = 1, stream: str = "stdout"
) -> None:  # fmt: skip
    serial = opened.server.engine.state.workloads[f"default/{name}"].serial
    log = log_name(f"default/{name}", serial, 0, attempt, stream)
    opened.server.logs.append(log, opened.server.logs.size(log) or 0, data)


def stages(frames: list[Any]) -> list[str]:
    return [stage.state for frame in frames for stage in frame.stages]


def log(frames: list[Any]) -> bytes:
    """The bytes, each where it belongs."""
    data = b""
    for frame in frames:
        if frame.HasField("log"):
            assert frame.log.offset == len(data)
            data += frame.log.data
    return data


@pytest.mark.parametrize("result", [Result(b'{"n":1}'), Result(problem=ResultProblem.NOT_JSON)])
async def test_the_last_frame_has_the_result_of_the_last_attempt(result: Result) -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await agent.starts(run)
        await agent.ends(run, result=result)
        last = (await stream.rest())[-1].result
        assert (last.state, last.data, last.problem) == ("succeeded", result.data.decode(), result.problem or "")


async def test_the_last_frame_has_the_outputs_of_the_last_attempt() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a", retries=0)))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await agent.starts(run)
        files = FileSet("sha256:" + "0" * 64, 2, 20)
        await agent.ends(run, outputs=Outputs(files, (OutputGap(OutputProblem.TOO_LARGE, "core", required=True),)))
        last = (await stream.rest())[-1].result
        assert (last.state, last.reason) == ("failed", "outputs_missing")
        found, (gap,) = last.outputs, last.outputs.gaps
        assert (found.digest, found.files, found.size, found.gaps_count) == (files.digest, 2, 20, 1)
        assert (gap.path, gap.problem, gap.required, gap.message) == ("core", "too_large", True, "too large")


async def test_an_action_is_reported_to_its_end() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        frames = await stream.until(lambda frame: "placed" in stages([frame]))
        assert (frames[0].project, frames[0].name) == ("default", "a")
        (run,) = agent.orders()
        await agent.starts(run)
        await write_log(opened, "a", BYTES)
        frames += await stream.until(lambda frame: frame.HasField("log"))
        await agent.ends(run, code=3, log_size=len(BYTES))
        frames += await stream.rest()
        assert stages(frames) == ["queued", "placed", "running", "failed"]
        assert log(frames) == BYTES
        result = frames[-1].result
        assert (result.state, result.exit_code, result.message, result.attempt) == ("failed", 3, "exit code 3", 1)
        assert [stage.node for frame in frames for stage in frame.stages][1:] == ["n1"] * 3
        assert not opened.controllers.streams["runs"]


async def test_a_reader_that_comes_back_goes_on_where_it_was() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await write_log(opened, "a", BYTES)
        before = await stream.until(lambda frame: frame.HasField("log"))
        stream.cancel()
        await opened.server.until(lambda: not opened.controllers.streams["runs"])
        await agent.starts(run)
        await write_log(opened, "a", b"more")
        await agent.ends(run, log_size=len(BYTES) + 4)
        position = before[-1].position
        for request in (
            ("Attach", pb.AttachRequest(project="default", name="a", position=position)),
            ("Run", run_request(job("a"), attach=True, position=position)),
        ):
            after = await visitor.stream(*request).rest()
            assert stages(after) == ["running", "succeeded"]
            (piece,) = [frame.log for frame in after if frame.HasField("log")]
            assert (piece.offset, piece.data) == (len(BYTES), b"more")
            assert after[-1].result.state == "succeeded"
        assert len(agent.orders()) == 1  # it was not run again


async def test_a_separate_stderr_comes_marked_and_both_positions_are_resumed() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a", stderr="separate")))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await agent.starts(run)
        await write_log(opened, "a", b"out")
        await stream.until(lambda frame: frame.HasField("log"))
        await write_log(opened, "a", BYTES, stream="stderr")
        frame = (await stream.until(lambda frame: frame.HasField("log")))[-1]
        assert (frame.log.stream, frame.log.offset, frame.log.data) == (pb.LOG_STREAM_STDERR, 0, BYTES)
        assert (frame.position.log_offset, frame.position.stderr_offset) == (3, len(BYTES))
        stream.cancel()
        await write_log(opened, "a", b"more")
        await write_log(opened, "a", b"last", stream="stderr")
        await agent.ends(run, log_size=7, stderr_size=len(BYTES) + 6)
        opened.server.logs._stall_s = 0.01
        request = pb.AttachRequest(project="default", name="a", position=frame.position)
        after = await visitor.stream("Attach", request).rest()
        assert sorted((item.log.stream, item.log.offset, item.log.data) for item in after if item.HasField("log")) == [
            (pb.LOG_STREAM_STDOUT, 3, b"more"),
            (pb.LOG_STREAM_STDERR, len(BYTES), b"last"),
        ]
        assert [(item.log_missing, item.stderr_missing) for item in after if item.stderr_missing] == [(0, 2)]
        assert after[-1].result.state == "succeeded"


async def test_a_reader_that_knows_nothing_gets_everything_also_what_has_ended() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        await visitor.schedule(job("a", retries={"max": 1, "on": ["failed"]}))
        for attempt, code in ((1, 1), (2, 0)):
            run = agent.orders()[-1]
            await agent.starts(run)
            await write_log(opened, "a", b"attempt %d" % attempt, attempt)
            await agent.ends(run, code=code, log_size=9)
        frames = await visitor.stream("Attach", pb.AttachRequest(project="default", name="a")).rest()
        assert stages(frames) == ["queued", "placed", "running", "queued", "placed", "running", "succeeded"]
        assert [stage.attempt for frame in frames for stage in frame.stages] == [0, 1, 1, 1, 2, 2, 2]
        assert [(f.log.attempt, f.log.offset, f.log.data) for f in frames if f.HasField("log")] == [
            (1, 0, b"attempt 1"),
            (2, 0, b"attempt 2"),
        ]
        assert frames[-1].result.attempt == 2
        assert "exit code 1" in [stage.message for frame in frames for stage in frame.stages][3]


async def test_steps_are_reported_also_those_that_no_reader_saw() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        document = {"name": "a", "steps": [{"run": f"step-{number}"} for number in range(5)]}
        stream = visitor.stream("Run", run_request(document))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await agent.starts(run)
        await stream.until(lambda frame: "running" in stages([frame]))
        await agent.says(Report(run.token, "running", step=1))
        frames = await stream.until(lambda frame: frame.stages)
        assert [(stage.state, stage.step) for stage in frames[-1].stages] == [("running", 1)]
        position = frames[-1].position
        stream.cancel()
        await agent.says(Report(run.token, "running", step=2))
        await agent.says(Report(run.token, "running", step=3))
        await agent.ends(run, step=4)
        frames = await visitor.stream("Attach", pb.AttachRequest(project="default", name="a", position=position)).rest()
        answer = [(stage.state, stage.step) for frame in frames for stage in frame.stages]
        assert answer == [("running", 2), ("running", 3), ("running", 4), ("succeeded", 4)]


async def test_the_started_stage_has_the_step_of_its_moment() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        document = {"name": "a", "steps": [{"run": f"step-{number}"} for number in range(5)]}
        stream = visitor.stream("Run", run_request(document))
        await stream.until(lambda frame: "placed" in stages([frame]))
        (run,) = agent.orders()
        await agent.says(Report(run.token, "running", step=3))
        frames = await stream.until(lambda frame: "running" in stages([frame]))
        assert [stage.step for stage in frames[-1].stages if stage.state == "running"] == [0, 1, 2, 3]


async def test_an_action_that_never_ran_ends_too() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        frames = await stream.until(lambda frame: "queued" in stages([frame]))
        await visitor.call("Unschedule", pb.UnscheduleRequest(project="default", name="a"))
        frames += await stream.rest()
        assert stages(frames) == ["queued", "cancelled"]
        assert frames[-1].result.state == "cancelled" and not frames[-1].result.HasField("exit_code")


async def test_a_position_never_submits() -> None:
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a", retention="0s")))
        position = (await stream.until(lambda frame: frame.stages))[-1].position
        (run,) = agent.orders()
        await agent.starts(run)
        await agent.ends(run)
        await opened.server.until(lambda: not opened.server.engine.state.workloads)
        no = await visitor.refused("Run", run_request(job("a"), attach=True, position=position))
        assert (no.status, no.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
        assert len(agent.orders()) == 1 and not opened.server.engine.state.workloads


async def test_another_action_of_the_same_name_is_not_taken_for_it() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        position = (await stream.until(lambda frame: frame.stages))[-1].position
        await visitor.call("Unschedule", pb.UnscheduleRequest(project="default", name="a"))
        await stream.rest()
        await visitor.schedule(job("a"))
        no = await visitor.refused("Attach", pb.AttachRequest(project="default", name="a", position=position))
        assert (no.status, no.code) == (grpc.StatusCode.FAILED_PRECONDITION, "another_run")


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (job("a", count=2), "document.count"),
        (job("a", each={"X": ["1", "2"]}), "document.each"),
        (job("a", schedule={"cron": "* * * * *"}), "document.schedule"),
        (job("a", colour="red"), "document.colour"),
        ({"command": "true"}, "document.name"),
        (job("a b"), "document.name"),
    ],
)
async def test_what_cannot_be_followed_is_refused_and_nothing_is_left(document: dict[str, Any], path: str) -> None:
    async with controller_server() as opened:
        before = opened.server.snapshot()
        for attach in (False, True):
            no = await opened.visitor().refused("Run", run_request(document, attach=attach))
            assert (no.status, no.path) == (grpc.StatusCode.INVALID_ARGUMENT, path)
        assert opened.server.snapshot() == before


async def test_a_name_in_use_is_a_conflict_unless_it_is_to_be_followed() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await visitor.schedule(job("a"))
        no = await visitor.refused("Run", run_request(job("a")))
        assert (no.status, no.path) == (grpc.StatusCode.ALREADY_EXISTS, "document.name")
        stream = visitor.stream("Run", run_request(job("a"), attach=True))
        assert stages(await stream.until(lambda frame: frame.stages)) == ["queued"]
        stream.cancel()


async def test_what_is_not_there_is_not_found() -> None:
    async with controller_server() as opened:
        visitor = opened.visitor()
        await visitor.schedule(job("a"))
        for request in (
            pb.AttachRequest(project="default", name="b"),
            pb.AttachRequest(project="default", name="a", index=1),
            pb.AttachRequest(project="nowhere", name="a"),
        ):
            assert (await visitor.refused("Attach", request)).status == grpc.StatusCode.NOT_FOUND


async def test_a_server_that_stops_sends_all_readers_away_with_words() -> None:
    async with controller_server() as opened:
        stream: Stream = opened.visitor().stream("Run", pb.RunRequest(document=json.dumps(job("a"))))
        await stream.until(lambda frame: frame.stages)
        opened.server.watch.close()
        try:
            await stream.rest()
            raise AssertionError("it ended as if all were well")
        except Exception as no:
            assert getattr(no, "status", None) == grpc.StatusCode.UNAVAILABLE, no


async def test_a_position_of_another_incarnation_is_reported_so_and_hides_no_stage() -> None:
    """A server without memory counts revisions from the beginning: a larger one of before says nothing."""
    async with controller_server() as opened:
        agent, visitor = await opened.server.agent(), opened.visitor()
        stream = visitor.stream("Run", run_request(job("a")))
        before = await stream.until(lambda frame: "placed" in stages([frame]))
        stream.cancel()
        (run,) = agent.orders()
        position = before[-1].position
        assert position.incarnation == opened.server.engine.state.meta.first_serial
        assert not any(frame.state_lost for frame in before)
        position.incarnation, position.revision = position.incarnation - 1, 1_000_000
        await agent.starts(run)
        await agent.ends(run)
        after = await visitor.stream("Attach", pb.AttachRequest(project="default", name="a", position=position)).rest()
        assert stages(after) == ["queued", "placed", "running", "succeeded"]
        assert [frame.state_lost for frame in after] == [True] + [False] * (len(after) - 1)
        assert after[-1].position.incarnation == opened.server.engine.state.meta.first_serial
        assert after[-1].position.revision < 1_000_000


async def test_a_revoked_token_ends_a_silent_run_at_once() -> None:
    async with controller_server() as opened:
        token = await opened.server.post("/v1/tokens", {"name": "t", "role": "viewer", "projects": ["default"]}, 201)
        await opened.server.submit("a")
        stream = opened.visitor(token["token"]).stream("Attach", pb.AttachRequest(project="default", name="a"))
        await stream.until(lambda frame: "queued" in stages([frame]))
        async with asyncio.timeout(LOOK_S / 2):
            assert (await opened.server.client.delete("/v1/tokens/t")).status_code == 204
            with pytest.raises(No) as caught:
                await stream.next()
        assert caught.value.status == grpc.StatusCode.UNAUTHENTICATED
