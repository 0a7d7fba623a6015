"""Pipelines over the API: one request and one commit, each refusal with its path in the file."""

from typing import Any

import pytest

from tests.security.callers import caller
from tests.server.inprocess_server import inprocess_server

PATH = "/v1/pipelines"


def pipeline(*actions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "web", "actions": [{"steps": ["make"], **action} for action in actions], **fields}


WEB = pipeline({"name": "Unit tests", "needs": ["build"]}, {"name": "build"}, {"name": "lint"})


async def test_one_request_is_one_commit_with_all_actions() -> None:
    async with inprocess_server() as made:
        before = made.engine.state.revision
        body = {"pipeline": WEB, "variables": {"A": "b"}, "retention": "1h", "run": "r1"}
        started = await made.post(PATH, body, expect=201)
        assert made.engine.state.revision == before + 1
        assert {field: started[field] for field in ("project", "pipeline", "run", "name", "since")} == {
            "project": "default", "pipeline": "web", "run": "r1", "name": "web-r1", "since": before,
        }  # fmt: skip
        assert [(item["action"], item["needs"], item["workload"]["name"]) for item in started["actions"]] == [
            ("build", {}, "web-r1-build"),
            ("lint", {}, "web-r1-lint"),
            ("Unit tests", {"web-r1-build": "succeeded"}, "web-r1-Unit-tests"),
        ]
        shown = await made.get("/v1/workloads/default/web-r1-Unit-tests")
        assert (shown["document"]["env"], shown["document"]["retention"]) == ({"A": "b"}, "1h")
        assert shown["labels"] == {"pipeline": "web", "run": "r1", "action": "Unit tests"}


async def test_a_run_without_an_id_gets_one_and_a_known_id_is_refused() -> None:
    async with inprocess_server() as made:
        runs = [(await made.post(PATH, {"pipeline": WEB, "only": ["lint"]}, expect=201)) for _ in range(2)]
        assert runs[0]["run"] != runs[1]["run"]
        assert [item["action"] for item in runs[0]["actions"]] == ["lint"]
        await made.post(PATH, {"pipeline": WEB, "run": "again"}, expect=201)
        refused = await made.post(PATH, {"pipeline": WEB, "run": "again"}, expect=409)
        assert (refused["code"], refused["path"]) == ("name_in_use", "pipeline.actions[1].name")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "pipeline"),
        ({"pipeline": []}, "pipeline"),
        ({"pipeline": WEB, "runs": 1}, "runs"),
        ({"pipeline": WEB, "run": "a b"}, "run"),
        ({"pipeline": WEB, "only": ["nope"]}, "pipeline.actions"),
        ({"pipeline": pipeline({"name": "a", "needs": ["b"]})}, "pipeline.actions[0].needs[0]"),
        ({"pipeline": pipeline({"name": "a"}, {"name": "b", "image": "x y"})}, "pipeline.actions[1].image"),
        (
            {"pipeline": pipeline({"name": "a", "needs": ["b"], "env": {"K": {"secret": "none"}}}, {"name": "b"})},
            "pipeline.actions[0].env.K",
        ),
        (
            {"pipeline": pipeline({"name": "b"}, {"name": "a", "placement": {"strategy": "none"}})},
            "pipeline.actions[1].placement.strategy",
        ),
    ],
)
async def test_a_wrong_pipeline_is_refused_as_a_whole(body: Any, path: str) -> None:
    async with inprocess_server() as made:
        refused = await made.post(PATH, body, expect=422)
        assert refused["path"] == path
        assert not made.engine.state.workloads


async def test_a_large_pipeline_is_read_beside_the_loop() -> None:
    many = pipeline(*({"name": f"a{number}", "env": {"X": "y" * 100}} for number in range(300)))
    async with inprocess_server() as made:
        started = await made.post(PATH, {"pipeline": many}, expect=201)
        assert len(started["actions"]) == len(made.engine.state.workloads) == 300
        many["actions"][200]["steps"] = []
        refused = await made.post(PATH, {"pipeline": many}, expect=422)
        assert refused["path"] == "pipeline.actions[200].steps"
        assert len(made.engine.state.workloads) == 300


async def test_yaml_is_taken_too() -> None:
    text = "pipeline:\n  name: web\n  actions:\n    - {name: a, steps: [make]}\n"
    async with inprocess_server() as made:
        answer = await made.client.post(PATH, content=text, headers={"content-type": "application/yaml"})
        assert answer.status_code == 201, answer.text


async def test_a_pipeline_of_a_foreign_project_is_forbidden() -> None:
    async with inprocess_server() as made:
        visitor = await caller(made, "submitter", "shop")
        answer = await visitor("POST", PATH, {"pipeline": {**WEB, "project": "shop"}})
        assert answer.status_code == 201, answer.text
        refused = await visitor("POST", PATH, {"pipeline": WEB})
        assert (refused.status_code, refused.json()["path"]) == (403, "pipeline.project")


async def test_approval_has_a_role_and_is_written_down() -> None:
    gated = pipeline({"name": "deploy", "approve": {"role": "operator"}}, project="shop")
    async with inprocess_server() as made:
        await made.post(PATH, {"pipeline": gated, "run": "r1"}, expect=201)
        path = "/v1/workloads/shop/web-r1-deploy"
        shown = await made.get(path)
        assert (shown["state"], shown["reason"]) == (
            "queued",
            {"code": "needs_approval", "params": {"role": "operator"}},
        )
        assert (await made.get(f"{path}/why"))["code"] == "needs_approval"
        submitter, operator = await caller(made, "submitter", "shop"), await caller(made, "operator", "shop")
        refused = await submitter("POST", f"{path}/approve")
        assert (refused.status_code, refused.json()["params"]["role"]) == (403, "operator")
        assert (await operator("POST", f"{path}/approve")).status_code == 200
        assert (await made.get(path))["reason"] is None
        entry = (await made.get("/v1/audit"))["items"][0]
        assert (entry["what"], entry["target"], entry["who"]) == (
            "approve",
            "shop/web-r1-deploy",
            f"token:{operator.name}",
        )


async def test_a_newer_run_supersedes_an_older_one_in_the_same_commit() -> None:
    grouped = pipeline({"name": "build"}, concurrency={"cancel": True})
    async with inprocess_server() as made:
        await made.post(PATH, {"pipeline": grouped, "run": "r1"}, expect=201)
        before = made.engine.state.revision
        await made.post(PATH, {"pipeline": grouped, "run": "r2"}, expect=201)
        assert made.engine.state.revision == before + 1
        old = await made.get("/v1/workloads/default/web-r1-build")
        assert (old["state"], old["reason"]["code"]) == ("cancelled", "superseded")
        assert old["message"] == "superseded by default/web-r2-build"


async def test_services_are_submitted_with_their_action() -> None:
    raw = pipeline({"name": "test", "services": [{"name": "db", "command": "x"}]}, {"name": "lint"})
    async with inprocess_server() as made:
        started = await made.post(PATH, {"pipeline": raw, "run": "r1"}, expect=201)
        assert [(item["action"], item["services"]) for item in started["actions"]] == [
            ("test", {"db": "web-r1-test-db"}),
            ("lint", {}),
        ]
        assert (await made.get("/v1/workloads/default/web-r1-test-db"))["kind"] == "service"
        raw["actions"][0]["services"][0]["env"] = {"K": {"secret": "none"}}
        refused = await made.post(PATH, {"pipeline": raw, "run": "r2"}, expect=422)
        assert refused["path"] == "pipeline.actions[0].services[0].env.K"
