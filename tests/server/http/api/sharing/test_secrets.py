"""Secrets over the API: values go in and never come out; workloads may refer only to what is there."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.security.callers import caller
from tests.server.inprocess_server import InprocessServer, inprocess_server

VALUE = "planted-5b2d"
ENV = {"PASSWORD": {"secret": "db"}}


@pytest.fixture
async def made() -> AsyncIterator[InprocessServer]:
    async with inprocess_server() as status:
        yield status


async def set_secret(made: InprocessServer, path: str = "default/secrets/db", expect: int = 200, **body: Any) -> Any:
    answer = await made.client.put(f"/v1/projects/{path}", json=body or {"value": VALUE})
    assert answer.status_code == expect, answer.text
    assert VALUE not in answer.text
    return answer.json()


async def test_a_secret_is_set_listed_and_removed_and_its_value_never_shown(made: InprocessServer) -> None:
    shown = await set_secret(made)
    assert (shown["project"], shown["name"], shown["size"]) == ("default", "db", len(VALUE))
    assert shown["changed_by"] == "root" and shown["readable"] and shown["newest_key"]
    await set_secret(made, "web/secrets/db", base64=base64.b64encode(b"\xff\xfe").decode())
    listed = await made.get("/v1/projects/default/secrets")
    assert listed["items"] == [shown]
    assert (await made.get("/v1/projects/web/secrets"))["items"][0]["size"] == 2
    assert (await made.client.get("/v1/projects/default/secrets/db")).status_code == 405
    assert (await made.client.delete("/v1/projects/default/secrets/db")).status_code == 204
    assert (await made.client.delete("/v1/projects/default/secrets/db")).status_code == 404
    assert (await made.get("/v1/projects/default/secrets"))["items"] == []


async def test_pages_follow_each_other(made: InprocessServer) -> None:
    for number in range(5):
        await set_secret(made, f"web/secrets/s{number}")
    await set_secret(made, "web2/secrets/other")
    first = await made.get("/v1/projects/web/secrets", limit=3)
    rest = await made.get("/v1/projects/web/secrets", limit=3, after=first["next"])
    assert [item["name"] for item in first["items"] + rest["items"]] == [f"s{number}" for number in range(5)]
    assert rest["next"] is None


async def test_a_newer_value_takes_the_place_of_the_old_one(made: InprocessServer) -> None:
    await set_secret(made)
    assert (await set_secret(made, value="longer-" + VALUE))["size"] == len(VALUE) + 7


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({}, 422, "value"),
        ({"value": VALUE, "base64": "eA=="}, 422, "value"),
        ({"value": ""}, 422, "value"),
        ({"value": VALUE + "\0"}, 422, "value"),
        ({"value": 5}, 422, "value"),
        ({"base64": VALUE + "!"}, 422, "base64"),
        ({"base64": "é"}, 422, "base64"),
        ({"text": VALUE}, 422, "text"),
        ({"value": VALUE * 3_000}, 413, "value"),
        ({"value": VALUE * 30_000}, 413, ""),
    ],
)
async def test_what_cannot_be_a_value_is_refused_without_repeating_it(
    made: InprocessServer, body: Any, status: int, path: str
) -> None:
    answer = await made.client.put("/v1/projects/default/secrets/db", json=body)
    assert (answer.status_code, answer.json()["path"]) == (status, path), answer.text
    assert VALUE not in answer.text
    assert made.engine.state.opaque_records.get("secret", {}) == {}


@pytest.mark.parametrize("path", ["a.b/secrets/db", "*/secrets/db", "web/secrets/d.b", "web/secrets/-"])
async def test_names_are_checked(made: InprocessServer, path: str) -> None:
    await set_secret(made, path, expect=422)


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
async def test_a_body_that_cannot_be_read_is_not_repeated(made: InprocessServer, kind: str) -> None:
    for body in (f'{{"value": "{VALUE}"', f'{{"value": {VALUE}: {VALUE}: x}}', f'["{VALUE}"]', f'"{VALUE}"'):
        answer = await made.client.put("/v1/projects/default/secrets/db", content=body, headers={"content-type": kind})
        assert answer.status_code in (400, 422) and VALUE not in answer.text


async def test_a_workload_may_refer_only_to_secrets_of_its_project_that_are_there(made: InprocessServer) -> None:
    await set_secret(made, "web/secrets/db")
    document = {"name": "job", "command": "true", "env": ENV}
    for path, body, where in (
        ("/v1/workloads", document, "env.PASSWORD"),
        ("/v1/workloads/batch", [{"name": "a", "command": "b"}, document], "[1].env.PASSWORD"),
        ("/v1/plans", [document], "[0].env.PASSWORD"),
    ):
        answer = await made.post(path, body, expect=422)
        assert (answer["path"], answer["code"]) == (where, "no_such_secret")
        assert "`roost secrets set default/db`" in answer["message"]
    assert not made.engine.state.workloads
    await made.submit("job", project="web", env=ENV)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"secret": "d.b"}, "env.PASSWORD.secret"),
        ({"secret": 5}, "env.PASSWORD.secret"),
        ({"secret": "db", "key": "x"}, "env.PASSWORD.key"),
        ({}, "env.PASSWORD.secret"),
        (5, "env.PASSWORD"),
    ],
)
async def test_a_reference_that_is_none_is_refused_where_it_is(made: InprocessServer, value: Any, path: str) -> None:
    document = {"name": "job", "command": "true", "env": {"MODE": "x", "PASSWORD": value}}
    assert (await made.post("/v1/workloads", document, expect=422))["path"] == path
    batch = await made.post("/v1/workloads/batch", [document], expect=422)
    assert batch["path"] == f"[0].{path}"


async def test_path_cannot_be_a_secret_and_there_may_be_so_many(made: InprocessServer) -> None:
    document = {"name": "job", "command": "true", "env": {"PATH": {"secret": "db"}}}
    assert (await made.post("/v1/workloads", document, expect=422))["path"] == "env.PATH"
    document["env"] = {f"V{number}": {"secret": "db"} for number in range(33)}
    assert "0 to 32 secrets" in (await made.post("/v1/workloads", document, expect=422))["message"]


async def test_everything_shows_the_reference_and_nothing_the_value(made: InprocessServer) -> None:
    await set_secret(made)
    agent = await made.agent()
    await made.submit("job", env=ENV)
    (run,) = agent.orders()
    assert run.secrets is None, "only the gateway's last word to a node has it"
    await agent.starts(run)
    shown = await made.get("/v1/workloads/default/job")
    assert shown["document"]["env"] == ENV
    for path in ("/v1/workloads/default/job/why", "/v1/workloads/default/job/instances/0", "/v1/audit", "/v1/status"):
        assert VALUE not in (await made.client.get(path)).text
    entry = (await made.get("/v1/audit"))["items"][-1]
    assert (entry["what"], entry["target"]) == ("putrecords", "secret default/db")


async def test_permissions_of_every_role(made: InprocessServer) -> None:
    await set_secret(made, "web/secrets/db")
    viewer, submitter, operator = [await caller(made, role, "web") for role in ("viewer", "submitter", "operator")]
    stranger = await caller(made, "admin", "shop")
    path = "/v1/projects/web/secrets"
    assert (await viewer("GET", path)).json()["items"][0]["name"] == "db"
    for principal, status in ((viewer, 403), (submitter, 403), (stranger, 404), (operator, 200)):
        assert (await principal("PUT", f"{path}/db", {"value": VALUE})).status_code == status
    assert (await stranger("GET", path)).status_code == 404
    document = {"name": "job", "project": "web", "command": "true", "env": ENV}
    assert (await submitter("POST", "/v1/workloads", document)).status_code == 201
    assert (await stranger("POST", "/v1/workloads", document)).status_code == 403, "not even whether it is there"
    assert (await operator("POST", "/v1/secrets/reseal")).status_code == 403
    assert (await made.post("/v1/secrets/reseal")) == {"resealed": 0, "unreadable": []}
    for principal, status in ((submitter, 403), (stranger, 404), (operator, 204)):
        assert (await principal("DELETE", f"{path}/db")).status_code == status
