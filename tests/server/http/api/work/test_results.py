"""Results: posted by a client that knows them, with the token of the attempt."""

import pytest

from roost.model.protocol import Drop
from tests.server.inprocess_server import inprocess_server

PATH = "/v1/workloads/default/job/instances/0"


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
