"""Logs over the API: pieces, tails, and following over attempts to the end."""

import asyncio
import json
from base64 import b64decode

import pytest

from roost.model.keys import log_name
from roost.model.protocol import Report, Run
from roost.model.records.instance import Instance
from roost.model.records.transition import InstanceTransition
from roost.model.states import InstanceState
from roost.server.logs import hub as log_hub
from roost.server.logs.machine import LogEnd
from roost.server.operations.work import logs as logs_operation
from tests.server.inprocess_server import InprocessServer, Played, events, inprocess_server, over_http

PATH = "/v1/workloads/default/job/instances/0/log"


def write(made: InprocessServer, run: Run, data: bytes, offset: int = 0, stream: str = "stdout") -> None:
    """What an agent ships."""
    made.logs.append(log_name(run.workload, run.serial, run.index, run.attempt, stream), offset, data)


def run_node(made: InprocessServer) -> str:
    return made.engine.state.instances["default/job.0"].node


async def running(made: InprocessServer, **fields: object) -> tuple[Played, Run]:
    """A job that runs."""
    agent = await made.agent()
    await made.submit(**fields)
    (run,) = agent.orders()
    await agent.starts(run)
    return agent, run


async def test_bytes_come_back_as_they_were_written() -> None:
    async with inprocess_server() as made:
        agent, run = await running(made)
        data = bytes(range(256)) * 300
        write(made, run, data)
        answer = await made.client.get(PATH)
        assert answer.content == data and answer.headers["content-type"] == "application/octet-stream"
        report = {name: answer.headers[f"roost-log-{name}"] for name in ("size", "attempt", "finished")}
        assert report == {"size": str(len(data)), "attempt": "1", "finished": "false"}
        assert (await made.client.get(PATH, params={"offset": 5, "limit": 7})).content == data[5:12]
        assert (await made.client.get(PATH, params={"offset": -10})).content == data[-10:]
        assert (await made.client.get(PATH, params={"offset": -(1 << 40)})).content == data
        assert (await made.client.get(PATH, params={"offset": len(data) + 1})).content == b""
        assert (await made.client.get(PATH, params={"limit": 0})).content == b""
        await agent.ends(run)
        assert (await made.client.get(PATH)).headers["roost-log-finished"] == "true"


async def test_an_instance_that_never_ran_has_an_empty_log() -> None:
    async with inprocess_server() as made:
        await made.submit()
        answer = await made.client.get(PATH)
        assert (answer.status_code, answer.content, answer.headers["roost-log-attempt"]) == (200, b"", "0")
        assert answer.headers["roost-log-finished"] == "false"


async def test_every_attempt_has_its_own_log_and_the_newest_is_shown() -> None:
    async with inprocess_server() as made:
        agent, first = await running(made, retries={"max": 1, "on": ["failed"]})
        write(made, first, b"one")
        await agent.ends(first, 1)
        second = agent.orders()[1]
        write(made, second, b"two")
        assert (await made.client.get(PATH)).content == b"two"
        assert (await made.client.get(PATH, params={"attempt": 1})).content == b"one"
        assert (await made.client.get(PATH, params={"attempt": 1})).headers["roost-log-finished"] == "true"


async def test_following_tells_every_byte_and_how_it_ended() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent, run = await running(made)
        write(made, run, b"hello \xff\n")
        async with events(client, f"{PATH}/follow") as answer:
            first = await answer.next()
            assert b64decode(first["data"]) == b"hello \xff\n" and first["id"] == "1.8"
            write(made, run, b"world\n", 8)
            second = await answer.next()
            assert b64decode(second["data"]) == b"world\n" and second["id"] == "1.14"
            await agent.ends(run, 3)
            end = await answer.next()
            assert end["event"] == "end"
            ending = json.loads(end["data"])
            assert (ending["state"], ending["exit_code"], ending["attempt"]) == ("failed", 3, 1)
            assert await answer.ended()


async def test_a_job_that_prints_nothing_ends_at_once() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent, run = await running(made)
        async with events(client, f"{PATH}/follow") as answer:
            assert (await answer.next(marks=True))["id"] == "1.0"
            await agent.ends(run, 0)
            async with asyncio.timeout(0.5):  # less than the log itself takes to look at the state again
                assert json.loads((await answer.next())["data"])["state"] == "succeeded"


async def test_following_goes_on_where_it_was_cut_off() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent, run = await running(made)
        write(made, run, b"0123456789")
        async with events(client, f"{PATH}/follow", last="1.4") as answer:
            assert b64decode((await answer.next())["data"]) == b"456789"
        async with events(client, f"{PATH}/follow", offset=7) as answer:
            assert b64decode((await answer.next())["data"]) == b"789"
        async with events(client, f"{PATH}/follow", last="nonsense") as answer:
            assert b64decode((await answer.next())["data"]) == b"0123456789"
        await agent.ends(run)


async def test_following_an_instance_that_waits_begins_when_it_runs_and_goes_on_with_the_next_attempt() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit(retries={"max": 1, "on": ["failed"]})
        async with events(client, f"{PATH}/follow") as answer:
            assert (await answer.next(marks=True))["id"] == "0.0"
            agent = await made.agent()
            assert json.loads((await answer.next())["data"])["attempt"] == 1
            first = agent.orders()[0]
            write(made, first, b"one")
            assert b64decode((await answer.next())["data"]) == b"one"
            await agent.ends(first, 1)
            update = await answer.next()
            assert update["event"] == "attempt"
            assert json.loads(update["data"])["attempt"] == 2 and json.loads(update["data"])["node"] == "n1"
            second = agent.orders()[1]
            write(made, second, b"two")
            assert (await answer.next())["id"] == "2.3"
            await agent.ends(second, 0)
            assert json.loads((await answer.next())["data"])["state"] == "succeeded"
            assert await answer.ended()


async def test_following_fetches_every_attempt_from_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent, first = await running(made, retries={"max": 1, "on": ["failed"]})
        await agent.ends(first, 1, log_size=3)
        second = agent.orders()[1]
        await agent.ends(second, 0, log_size=3)
        elsewhere = {1: b"one", 2: b"two"}

        async def fetch(_: object, log: str, end: LogEnd) -> None:
            made.logs.append(log, 0, elsewhere[int(log.rpartition(".")[2])])

        monkeypatch.setattr(logs_operation, "_fetch", fetch)
        async with events(client, f"{PATH}/follow", attempt=1) as answer:
            assert b64decode((await answer.next())["data"]) == b"one"
            assert (await answer.next())["event"] == "attempt"
            assert b64decode((await answer.next())["data"]) == b"two"
            assert (await answer.next())["event"] == "end"


async def test_following_what_never_runs_ends_when_that_is_known() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit()
        async with events(client, f"{PATH}/follow") as answer:
            await answer.next(marks=True)
            await made.post("/v1/workloads/default/job/cancel")
            assert json.loads((await answer.next())["data"])["state"] == "cancelled"


async def test_followers_are_sent_away_when_the_server_stops() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await running(made)
        async with events(client, f"{PATH}/follow") as answer:
            await answer.next(marks=True)
            made.watch.close()
            assert (await answer.next())["event"] == "stopping"
            assert await answer.ended()


async def test_a_read_right_after_the_end_waits_for_bytes_that_are_on_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with inprocess_server() as made:
        monkeypatch.setattr(made.logs.machine, "_stall_ms", 60_000)
        agent, run = await running(made)
        write(made, run, b"first ")
        await agent.ends(run, log_size=10)
        first = await made.client.get(PATH)
        assert (first.content, first.headers["roost-log-missing"]) == (b"first ", "4")
        assert first.headers["roost-log-finished"] == "false"
        rest = asyncio.ensure_future(made.client.get(PATH, params={"offset": 6}))
        tail = asyncio.ensure_future(made.client.get(PATH, params={"offset": -2}))
        await asyncio.wait({rest, tail}, timeout=0.05)
        assert not rest.done() and not tail.done()
        write(made, run, b"last", 6)
        async with asyncio.timeout(30):
            assert ((await rest).content, (await tail).content) == (b"last", b"st")
        assert ((await rest).headers["roost-log-finished"], (await rest).headers["roost-log-missing"]) == ("true", "0")


async def test_bytes_that_never_come_are_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 0.01)
    async with inprocess_server() as made, over_http(made) as client:
        monkeypatch.setattr(made.logs.machine, "_stall_ms", 50)
        agent, run = await running(made)
        write(made, run, b"first ")
        await agent.ends(run, log_size=10)
        refused = await made.client.get(PATH, params={"offset": 6})
        assert (refused.status_code, refused.json()["code"]) == (503, "log_unavailable"), "never empty"
        assert refused.json()["params"] | {"log": ""} == {"log": "", "missing": 4, "servers": []}
        assert f"node {run_node(made)} has not sent them" in refused.json()["message"]
        answer = await made.client.get(PATH)
        report = {name: answer.headers[f"roost-log-{name}"] for name in ("size", "finished", "missing")}
        assert (answer.content, report) == (b"first ", {"size": "6", "finished": "true", "missing": "4"})
        async with events(client, f"{PATH}/follow") as stream:
            assert b64decode((await stream.next())["data"]) == b"first "
            missing = await stream.next()
            assert (missing["event"], json.loads(missing["data"])) == (
                "missing",
                {"attempt": 1, "bytes": 4, "node": run_node(made), "stream": "stdout"},
            )
            assert (await stream.next())["event"] == "end"


async def test_the_first_attempt_can_be_followed_before_it_begins() -> None:
    """A client that follows an array does not know which elements have begun."""
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit()
        async with events(client, f"{PATH}/follow", attempt=1) as stream:
            assert (await stream.next(marks=True))["id"] == "0.0"
            agent = await made.agent()
            assert json.loads((await stream.next())["data"])["attempt"] == 1
            (run,) = agent.orders()
            write(made, run, b"one")
            assert b64decode((await stream.next())["data"]) == b"one"
            await agent.ends(run, log_size=3)
            assert (await stream.next())["event"] == "end"
        assert (await made.client.get(PATH, params={"attempt": 2})).status_code == 404


def test_following_a_replica_that_came_back_begins_with_its_own_first_attempt() -> None:
    lines = [InstanceTransition(0, None, InstanceState.QUEUED, None, 1, attempt) for attempt in (0, 3, 4)]
    instance = Instance("default/web", 1, attempt=4, story=tuple(lines))
    assert [logs_operation._following(instance, attempt) for attempt in (0, 3)] == [3, 4]
    assert logs_operation._following(Instance("default/web", 1, attempt=2), 0) == 2, "adopted, without a story"


# --- a separate stderr


async def test_a_separate_stderr_is_read_as_a_log_of_its_own() -> None:
    async with inprocess_server() as made:
        agent, run = await running(made, stderr="separate")
        write(made, run, b"out")
        write(made, run, b"er", stream="stderr")
        answer = await made.client.get(PATH, params={"stream": "stderr"})
        assert (answer.content, answer.headers["roost-log-size"]) == (b"er", "2")
        assert (await made.client.get(PATH)).content == b"out"
        await agent.ends(run, log_size=3, stderr_size=4)
        waiting = asyncio.ensure_future(made.client.get(PATH, params={"stream": "stderr", "offset": 2}))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done(), "two bytes of stderr are on their way"
        write(made, run, b"r!", 2, "stderr")
        assert (await waiting).content == b"r!" and (await waiting).headers["roost-log-finished"] == "true"


async def test_an_attempt_that_was_never_started_has_an_empty_stderr() -> None:
    async with inprocess_server() as made:
        made.logs._settle_s = 60.0
        agent, run = await running(made, stderr="separate", retries=0)
        await agent.says(Report(run.token, "ended", cause="error", error="no such program"))
        for stream in ("stdout", "stderr"):
            answer = await made.client.get(PATH, params={"stream": stream})
            assert (answer.content, answer.headers["roost-log-finished"]) == (b"", "true")


async def test_a_merged_run_has_no_stderr_log() -> None:
    async with inprocess_server() as made:
        agent, run = await running(made, env={"stderr": "separate"})
        write(made, run, b"both")
        answer = await made.client.get(PATH, params={"stream": "stderr"})
        assert (answer.content, answer.headers["roost-log-finished"]) == (b"", "false")
        await agent.ends(run, log_size=4)
        answer = await made.client.get(PATH, params={"stream": "stderr"})
        assert (answer.content, answer.headers["roost-log-finished"]) == (b"", "true")


async def test_a_stream_that_does_not_exist_is_refused() -> None:
    async with inprocess_server() as made:
        await running(made)
        for path, stream in ((PATH, "all"), (PATH, "stdin"), (f"{PATH}/follow", "both")):
            answer = await made.client.get(path, params={"stream": stream})
            assert answer.status_code in (400, 422) and "stream" in answer.text


async def test_both_logs_are_followed_and_resumed_exactly() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent, run = await running(made, stderr="separate")
        write(made, run, b"out\n")
        async with events(client, f"{PATH}/follow", stream="all") as answer:
            first = await answer.next()
            assert (b64decode(first["data"]), first["id"], first.get("event", "message")) == (
                b"out\n",
                "1.4",
                "message",
            )
            write(made, run, b"error\n", stream="stderr")
            second = await answer.next()
            assert (b64decode(second["data"]), second["id"], second["event"]) == (b"error\n", "1.4.6", "stderr")
        write(made, run, b"more\n", 4)
        write(made, run, b"last\n", 6, "stderr")
        await agent.ends(run, log_size=9, stderr_size=11)
        async with events(client, f"{PATH}/follow", stream="all", last="1.4.6") as answer:
            pieces = {item.get("event", "message"): item for item in [await answer.next(), await answer.next()]}
            assert (
                b64decode(pieces["message"]["data"]) == b"more\n" and b64decode(pieces["stderr"]["data"]) == b"last\n"
            )
            assert "1.9.11" in [item["id"] for item in pieces.values()]
            assert (await answer.next())["event"] == "end"
        async with events(client, f"{PATH}/follow", stream="stderr", last="1.3") as answer:
            only = await answer.next()
            assert (b64decode(only["data"]), only["id"], only["event"]) == (b"or\nlast\n", "1.11", "stderr")
            assert (await answer.next())["event"] == "end"


async def test_the_end_comes_at_once_when_the_last_bytes_of_stderr_come_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with inprocess_server() as made, over_http(made) as client:
        monkeypatch.setattr(made.logs.machine, "_stall_ms", 60_000)
        agent, run = await running(made, stderr="separate")
        async with events(client, f"{PATH}/follow", stream="all") as answer:
            await answer.next(marks=True)
            await agent.ends(run, log_size=0, stderr_size=3)
            write(made, run, b"err", stream="stderr")
            assert (await answer.next())["event"] == "stderr"
            async with asyncio.timeout(0.5):  # less than a log itself takes to look at the state again
                assert (await answer.next())["event"] == "end"


async def test_missing_bytes_are_reported_for_each_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 0.01)
    async with inprocess_server() as made, over_http(made) as client:
        monkeypatch.setattr(made.logs.machine, "_stall_ms", 50)
        agent, run = await running(made, stderr="separate")
        await agent.ends(run, log_size=0, stderr_size=7)
        async with events(client, f"{PATH}/follow", stream="all") as stream:
            missing = await stream.next()
            report = json.loads(missing["data"])
            assert (missing["event"], report["bytes"], report["stream"]) == ("missing", 7, "stderr")
            assert (await stream.next())["event"] == "end"


async def test_the_version_of_an_attempt_says_which_logs_it_has() -> None:
    """A job whose stderr is merged by an update. The attempt before still has two logs."""
    async with inprocess_server() as made, over_http(made) as client:
        fields = {"command": "true", "retries": {"max": 1, "on": ["failed"]}}
        agent, first = await running(made, stderr="separate", **fields)
        write(made, first, b"old", stream="stderr")
        answer = await made.client.post("/v1/workloads", params={"same_ok": "true"}, json={"name": "job", **fields})
        assert answer.json()["version"] == 2
        assert (await made.client.get(PATH, params={"stream": "stderr"})).content == b"old"
        async with events(client, f"{PATH}/follow", stream="all") as stream:
            assert b64decode((await stream.next())["data"]) == b"old"
            await agent.ends(first, 1, stderr_size=3)
            assert (await stream.next())["event"] == "attempt"
            second = agent.orders()[1]
            assert made.engine.state.instances["default/job.0"].stderr_size is None
            write(made, second, b"new", stream="stderr")  # what no agent does
            write(made, second, b"both")
            assert b64decode((await stream.next())["data"]) == b"both"
            await agent.ends(second, log_size=4)
            assert (await stream.next())["event"] == "end"
        assert (await made.client.get(PATH, params={"stream": "stderr"})).content == b""
        assert (await made.client.get(PATH, params={"stream": "stderr", "attempt": 1})).content == b"old"
