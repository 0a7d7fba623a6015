"""Results: posted by a client that knows them, with the token of the attempt."""

import json
from typing import Any

import pytest

from roost.model.protocol import Drop
from roost.model.records.result import Result, ResultProblem
from tests.server.inprocess_server import InprocessServer, events, inprocess_server, over_http

PATH = "/v1/workloads/default/job/instances/0"
RESULTS = "/v1/workloads/default/job/results"
BAD = Result(problem=ResultProblem.TOO_LARGE, size=99_999)


async def test_a_result_ends_the_attempt_and_is_noted() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        token = (await made.get(PATH))["token"]
        answer = await made.post(f"{PATH}/result", {"token": token, "code": 0, "message": "seen\nelsewhere"})
        assert (answer["state"], answer["exit_code"]) == ("succeeded", 0)
        assert answer["message"] == r"exit code 0, reported by root: seen\nelsewhere"
        assert [order.token for order in agent.orders(Drop)] == [token]
        entry = (await made.get("/v1/audit"))["items"][0]
        assert (entry["what"], entry["target"]) == ("resultposted", "default/job.0")


async def test_a_stale_token_is_a_conflict_and_changes_nothing() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        await agent.starts(agent.orders()[0])
        token, before = (await made.get(PATH))["token"], made.snapshot()
        answer = await made.post(f"{PATH}/result", {"token": token + 1, "code": 0}, 409)
        assert (answer["code"], answer["path"]) == ("stale_token", "token")
        assert made.snapshot() == before and (await made.get(PATH))["state"] == "running"
        await made.post(f"{PATH}/result", {"token": token, "code": 7})
        assert (await made.post(f"{PATH}/result", {"token": token, "code": 0}, 409))["code"] == "not_running"
        assert (await made.get(PATH))["exit_code"] == 7


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"code": 0}, "token"),
        ({"token": 1}, "code"),
        ({"token": 1, "data": "x" * (64 << 10)}, "data"),
        ({"token": 0, "code": 0}, "token"),
        ({"token": 1, "code": 256}, "code"),
        ({"token": 1, "code": -1}, "code"),
        ({"token": "1", "code": 0}, "token"),
        ({"token": 1, "code": 0, "message": "x" * 5_000}, "message"),
        ({"token": 1, "code": 0, "more": 1}, "more"),
    ],
)
async def test_what_is_wrong_with_it_is_reported_with_its_field(body: dict[str, object], path: str) -> None:
    async with inprocess_server() as made:
        await made.agent()
        await made.submit()
        assert (await made.post(f"{PATH}/result", body, 422))["path"] == path


async def test_what_is_not_there_is_not_found() -> None:
    async with inprocess_server() as made:
        await made.submit()
        for path in (PATH.replace("job", "nobody"), PATH.replace("/0", "/1"), PATH):
            await made.post(f"{path}/result", {"token": 1, "code": 0}, 404)


async def test_a_client_that_may_only_look_may_not_say_how_it_ended() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        await agent.starts(agent.orders()[0])
        made_token = await made.post("/v1/tokens", {"name": "v", "role": "viewer", "projects": ["default"]}, 201)
        token = (await made.get(PATH))["token"]
        headers = {"authorization": f"Bearer {made_token['token']}"}
        answer = await made.client.post(f"{PATH}/result", json={"token": token, "code": 0}, headers=headers)
        assert answer.status_code == 403
        assert (await made.get(PATH))["state"] == "running"


async def run_job(made: InprocessServer, *results: Result | None, code: int = 0, **fields: Any) -> None:
    agent = await made.agent()
    await made.submit(count=len(results), resources={"cpu": 0.1}, retries=0, **fields)
    runs = {run.index: run for run in agent.orders()}
    for index, result in enumerate(results):
        await agent.starts(runs[index])
        await agent.ends(runs[index], code, result=result)


async def test_a_result_is_read_as_the_json_that_was_written() -> None:
    async with inprocess_server() as made:
        await run_job(made, Result(b'{"b":1.50,"a":"\\u00e9"}'))
        answer = await made.client.get(f"{PATH}/result")
        assert answer.content == b'{"b":1.50,"a":"\\u00e9"}'
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["roost-result-attempt"] == "1"
        shown = (await made.get(PATH))["result"]
        assert shown == {"size": 23, "data": {"b": 1.5, "a": "é"}, "message": "", "reason": None}
        assert (await made.get("/v1/workloads/default/job/instances"))["items"][0]["result"] == shown


async def test_why_there_is_none_is_shown_as_data_and_as_a_message() -> None:
    async with inprocess_server() as made:
        await made.submit()
        waits = await made.get(f"{PATH}/result", 404)
        assert (waits["code"], waits["message"]) == ("no_result", "default/job.0 has no result: it is queued")
        assert (await made.get(PATH))["result"] is None
        await made.agent()
    async with inprocess_server() as made:
        await run_job(made, None)
        assert (await made.get(f"{PATH}/result", 404))["message"] == "default/job.0 has no result: it wrote none"
    async with inprocess_server() as made:
        await run_job(made, BAD, code=3)
        text = "result not kept: it has 99,999 bytes, and 64KiB are allowed"
        reason = {"code": "result_not_kept", "params": {"problem": "too_large", "size": 99_999}}
        missing = await made.get(f"{PATH}/result", 404)
        assert (missing["code"], missing["message"]) == ("no_result", f"default/job.0: {text}")
        assert missing["params"]["reason"] == reason
        shown = await made.get(PATH)
        assert (shown["state"], shown["exit_code"]) == ("failed", 3)
        assert shown["result"] == {"size": 0, "message": text, "reason": reason}
        assert text in (await made.get("/v1/workloads/default/job/why"))["message"]


async def test_a_large_result_is_not_shown_with_its_instance() -> None:
    async with inprocess_server() as made:
        data = json.dumps("x" * 2_000).encode()
        await run_job(made, Result(data))
        assert (await made.get(PATH))["result"] == {"size": 2_002, "message": "", "reason": None}
        assert (await made.client.get(f"{PATH}/result")).content == data


async def test_results_of_an_array_come_by_index_and_page_by_page() -> None:
    async with inprocess_server() as made:
        large = Result(json.dumps("x" * 60_000).encode())
        await run_job(made, Result(b"0"), None, BAD, *[large] * 20)
        page = await made.get(RESULTS, limit=2)
        first, second = page["items"]
        assert (first["index"], first["data"], first["state"], first["attempt"]) == (0, 0, "succeeded", 1)
        assert (second["index"], second["reason"]["params"]["problem"], "data" in second) == (2, "too_large", False)
        assert page["next"] == 2
        page = await made.get(RESULTS, after=2)
        assert [item["index"] for item in page["items"]] == list(range(3, 21)), "a page ends after a megabyte"
        last = await made.get(RESULTS, after=page["next"])
        assert [item["index"] for item in last["items"]] == [21, 22] and last["next"] is None


async def test_a_result_of_another_project_does_not_exist() -> None:
    async with inprocess_server() as made:
        await run_job(made, Result(b"1"))
        other = await made.post("/v1/tokens", {"name": "o", "role": "admin", "projects": ["other"]}, 201)
        headers = {"authorization": f"Bearer {other['token']}"}
        for path in (f"{PATH}/result", RESULTS):
            answers = [await made.client.get(path.replace("job", name), headers=headers) for name in ("job", "nobody")]
            bodies = [answer.text.replace("nobody", "job") for answer in answers]
            assert answers[0].status_code == answers[1].status_code in (403, 404) and bodies[0] == bodies[1]


async def test_data_is_posted_while_it_runs_and_the_last_one_counts() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        for data in ({"progress": 1}, None, {"progress": 2}):
            answer = await made.post(f"{PATH}/result", {"token": run.token, "data": data})
            assert answer["state"] == "running" and answer["result"]["size"] == len(json.dumps(data).replace(" ", ""))
            assert (await made.get(f"{PATH}/result")) == data
        await made.post(f"{PATH}/result", {"token": run.token + 1, "data": 1}, 409)
        await agent.ends(run)
        assert (await made.get(f"{PATH}/result")) == {"progress": 2}


async def test_a_posted_end_may_have_data() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        answer = await made.post(f"{PATH}/result", {"token": run.token, "code": 0, "data": [1]})
        assert (answer["state"], answer["result"]["size"]) == ("succeeded", 3)
        assert (await made.get(f"{PATH}/result")) == [1]


async def test_a_dependent_says_which_results_it_does_not_get() -> None:
    async with inprocess_server() as made:
        await run_job(made, Result(json.dumps("x" * 20_000).encode()))
        await made.submit("next", after=["job"])
        text = {"code": "too_large", "message": "it has more than 16KiB"}
        assert (await made.get("/v1/workloads/default/next/instances/0"))["not_passed"] == [
            {"variable": "ROOST_RESULT_JOB", "workload": "default/job", **text}
        ]


async def test_a_change_has_the_result_of_its_instance() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        async with events(client, "/v1/changes", kind="instance") as feed:
            await run_job(made, Result(b'{"n":1.50}'))
            while (change := json.loads(frame := (await feed.next())["data"]))["object"]["state"] != "succeeded":
                assert change["object"]["result"] is None
            assert change["object"]["result"]["size"] == 10 and '"data":{"n":1.50}' in frame


async def test_the_end_of_a_followed_log_has_the_result() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await run_job(made, Result(b'{"n":1.50}'))
        async with events(client, f"{PATH}/log/follow") as log:
            while (frame := await log.next())["event"] != "end":
                pass
        end = json.loads(frame["data"])
        assert (end["state"], end["data"], end["problem"]) == ("succeeded", '{"n":1.50}', "")
