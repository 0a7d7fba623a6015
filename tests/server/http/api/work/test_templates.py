"""Templates over the API: versions, use, permissions, audit, restart; each refusal with its path."""

from pathlib import Path
from typing import Any

import pytest

from roost.model.limits import TEMPLATE_VERSIONS_MAX
from roost.server.engine.role import Following
from roost.stores.memory import Memory, MemoryStore
from tests.security.callers import caller
from tests.server.http.api.work.test_history import kept, written
from tests.server.inprocess_server import InprocessServer, in_role, inprocess_server

TRAIN: dict[str, Any] = {
    "description": "Train a model",
    "parameters": {"lr": {"type": "number", "default": 0.1, "minimum": 0}, "epochs": {"type": "integer"}},
    "workload": {"command": ["train", "--lr", "{{lr}}", "--epochs", "{{epochs}}"]},
}
PATH = "/v1/templates/default/train"


async def applied(made: InprocessServer, body: Any = None, path: str = PATH, expect: int = 200) -> Any:
    answer = await made.client.put(path, json=TRAIN if body is None else body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def number(version: int) -> dict[str, Any]:
    """The same template with another description."""
    return {**TRAIN, "description": f"number {version}"}


def use(workload: str = "run", beside: dict[str, Any] | None = None, **block: Any) -> dict[str, Any]:
    return {"name": workload, "template": {"name": "train", "parameters": {"epochs": 3}, **block}, **(beside or {})}


async def test_each_difference_makes_a_version() -> None:
    async with inprocess_server() as made:
        first = await applied(made)
        assert (first["result"], first["version"], first["versions"]) == ("created", 1, [1])
        again = await applied(made, dict(reversed(TRAIN.items())))
        assert (again["result"], again["version"]) == ("unchanged", 1)
        before = made.engine.state.revision
        assert (await applied(made))["result"] == "unchanged"
        assert made.engine.state.revision == before
        lr = {**TRAIN["parameters"], "lr": {"type": "number", "default": 1, "minimum": 0}}
        second = await applied(made, {**TRAIN, "parameters": lr})
        assert (second["result"], second["version"], second["versions"]) == ("changed", 2, [1, 2])
        lr["lr"] = {**lr["lr"], "default": 1.0}  # another type is another template
        assert (await applied(made, {**TRAIN, "parameters": lr}))["version"] == 3
        old = await made.get(PATH, version=1)
        assert (old["version"], old["versions"], old["workload"]) == (1, [1, 2, 3], TRAIN["workload"])
        assert old["parameters"] == TRAIN["parameters"]
        assert (await made.get(PATH))["version"] == 3


async def test_oldest_version_falls_off() -> None:
    async with inprocess_server() as made:
        for version in range(1, TEMPLATE_VERSIONS_MAX + 2):
            last = await applied(made, number(version))
        assert (last["version"], last["dropped"]) == (TEMPLATE_VERSIONS_MAX + 1, 1)
        assert last["versions"] == list(range(2, TEMPLATE_VERSIONS_MAX + 2))
        assert len(made.engine.state.opaque_records["template-version"]) == TEMPLATE_VERSIONS_MAX
        gone = await made.get(PATH, expect=404, version=1)
        assert (gone["code"], gone["path"]) == ("no_such_version", "version")
        refused = await made.post("/v1/workloads", use(version=1), expect=422)
        assert (refused["code"], refused["path"]) == ("no_such_version", "template.version")
        assert await made.post("/v1/workloads", use(version=2), expect=201)


async def test_workload_remembers_its_template() -> None:
    async with inprocess_server() as made:
        await applied(made)
        await applied(made, number(2))
        submitted = await made.post("/v1/workloads", use(version=1), expect=201)
        assert (submitted["template"], submitted["labels"]) == ("train@1", {"template": "train"})
        await made.post("/v1/workloads/batch", [use("other"), {"name": "plain", "command": "true"}], expect=201)
        shown = await made.get("/v1/workloads/default/other")
        assert shown["template"] == "train@2"
        assert shown["document"]["command"] == ["train", "--lr", "0.1", "--epochs", "3"]
        assert shown["document"]["template"] == {"name": "train", "version": 2, "parameters": {"epochs": 3}}
        found = await made.get("/v1/workloads", label="template=train")
        assert [item["name"] for item in found["items"]] == ["other", "run"]
        assert (await made.get("/v1/workloads/default/plain"))["template"] == ""


async def test_same_use_again_is_unchanged_and_a_new_version_changes_it() -> None:
    async with inprocess_server() as made:
        await applied(made)
        await made.post("/v1/workloads", use(), expect=201)
        again = await made.post("/v1/workloads?same_ok=true", use(), expect=200)
        assert again["result"] == "unchanged"
        shown = (await made.get("/v1/workloads/default/run"))["document"]
        assert (await made.post("/v1/workloads?same_ok=true", shown, expect=200))["result"] == "unchanged"
        await applied(made, {**TRAIN, "workload": {**TRAIN["workload"], "priority": 70}})
        assert (await made.post("/v1/workloads?same_ok=true", use(), expect=200))["result"] == "changed"


async def test_plan_previews_a_template() -> None:
    async with inprocess_server() as made:
        await made.agent()
        await applied(made)
        plan = await made.post("/v1/plans", [use()])
        assert (plan["created"], [placing["instance"] for placing in plan["placed"]]) == (
            ["default/run"],
            ["default/run.0"],
        )
        await applied(made, {**TRAIN, "workload": {**TRAIN["workload"], "priority": 70}})
        refused = await made.post(f"/v1/workloads?plan={plan['token']}", use(), expect=409)
        assert refused["code"].startswith("plan_")  # the newest version is another one meanwhile


async def test_delete_leaves_workloads_as_they_are() -> None:
    async with inprocess_server() as made:
        await applied(made)
        await applied(made, number(2))
        await made.post("/v1/workloads", use(), expect=201)
        assert (await made.client.delete(PATH)).status_code == 204
        assert (
            made.engine.state.opaque_records["template"] == made.engine.state.opaque_records["template-version"] == {}
        )
        assert (await made.get("/v1/workloads/default/run"))["template"] == "train@2"
        assert (await made.client.delete(PATH)).status_code == 404
        assert (await made.get(PATH, expect=404))["code"] == "not_found"
        refused = await made.post("/v1/workloads", use("more"), expect=422)
        assert (refused["code"], refused["path"]) == ("no_such_template", "template.name")


async def test_own_template_comes_before_the_shared_one() -> None:
    async with inprocess_server() as made:
        await applied(made, number(1), "/v1/templates/*/train")
        shared = await made.get(PATH)
        assert (shared["project"], shared["description"]) == ("*", "number 1")
        assert (await made.post("/v1/workloads", use("a"), expect=201))["template"] == "train@1"
        await applied(made, number(2))
        await applied(made, number(3))
        assert (await made.get(PATH))["project"] == "default"
        assert (await made.get("/v1/templates/*/train"))["project"] == "*"
        assert (await made.post("/v1/workloads", use("b"), expect=201))["template"] == "train@2"
        assert (await made.post("/v1/workloads", use("c", shared=True), expect=201))["template"] == "train@1"
        assert (await made.get("/v1/workloads/default/c"))["document"]["template"]["shared"] is True
        listed = await made.get("/v1/templates")
        assert [(item["project"], item["version"]) for item in listed["items"]] == [("*", 1), ("default", 2)]


async def test_foreign_template_does_not_exist() -> None:
    async with inprocess_server() as made:
        await applied(made, path="/v1/templates/secretive/train")
        await applied(made, path="/v1/templates/*/shared")
        for role in ("viewer", "admin"):
            stranger = await caller(made, role, "own")
            there = await stranger.get("/v1/templates/secretive/train", 404)
            absent = await stranger.get("/v1/templates/secretive/nothing", 404)
            assert there["message"].replace("train", "nothing") == absent["message"]
            listed = await stranger.get("/v1/templates")
            assert [item["name"] for item in listed["items"]] == ["shared"]
            assert (await stranger.get("/v1/templates", project="secretive"))["items"] == listed["items"]
            await stranger.get("/v1/templates/secretive/shared", 404)
            await stranger.get("/v1/templates/own/shared")
            await stranger.get("/v1/templates/*/shared")
        submitter = await caller(made, "submitter", "own")
        for name in ("train", "nothing"):
            block = {"name": name, "parameters": {"epochs": 3}}
            foreign = {"name": "x", "project": "secretive", "template": block}
            answer = await submitter("POST", "/v1/workloads", foreign)
            assert (answer.status_code, answer.json()["path"]) == (403, "project")
            answer = await submitter("POST", "/v1/workloads", {**foreign, "project": "own"})
            assert (answer.status_code, answer.json()["code"]) == (422, "no_such_template")
            assert "train" not in answer.json()["message"].replace("'train'", "")
        many = [{**foreign, "name": f"x{index}"} for index in range(60)]  # so many are read by another process
        assert (await submitter("POST", "/v1/workloads/batch", many)).status_code == 403
        used = {"name": "x", "project": "own", "template": {"name": "shared", "parameters": {"epochs": 3}}}
        assert (await submitter("POST", "/v1/workloads", used)).status_code == 201


async def test_shared_template_is_written_by_admins_of_everything() -> None:
    async with inprocess_server() as made:
        everywhere = await caller(made, "operator", "*")
        own = await caller(made, "admin", "own")
        admin = await caller(made, "admin", "*")
        for method in ("PUT", "DELETE"):
            for principal in (everywhere, own):
                assert (await principal(method, "/v1/templates/*/train", {"nonsense": 1})).status_code == 403
        assert (await admin("PUT", "/v1/templates/*/train", TRAIN)).status_code == 200
        assert (await own("PUT", "/v1/templates/own/train", TRAIN)).status_code == 200
        assert (await admin("DELETE", "/v1/templates/*/train")).status_code == 204


async def test_writes_are_audited() -> None:
    async with inprocess_server() as made:
        await applied(made)
        await applied(made, number(2))
        await made.client.delete(PATH)
        entries = (await made.get("/v1/audit"))["items"]
        assert [(entry["what"], entry["target"], entry.get("detail", "")) for entry in entries[:3]] == [
            ("putrecords", "template default/train (gone), template-version default/train@1 (gone), "
             "template-version default/train@2 (gone)", ""),
            ("putrecords", "template default/train, template-version default/train@2", "version 2"),
            ("putrecords", "template default/train, template-version default/train@1", "version 1"),
        ]  # fmt: skip


async def test_templates_survive_a_restart() -> None:
    memory = Memory()
    async with inprocess_server(MemoryStore(memory)) as made:
        await applied(made)
        await applied(made, number(2))
        before = await made.get(PATH, version=1)
    async with inprocess_server(MemoryStore(memory)) as again:
        assert await again.get(PATH, version=1) == before
        assert (await again.post("/v1/workloads", use(), expect=201))["template"] == "train@2"


async def test_standby_answers_reads() -> None:
    async with inprocess_server() as made:
        await applied(made)
        with in_role(made.engine, Following()):
            assert (await made.get(PATH))["version"] == 1
            assert [item["name"] for item in (await made.get("/v1/templates"))["items"]] == ["train"]
            await applied(made, number(2), expect=503)


async def test_finished_workload_has_its_template_in_the_history(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        agent = await made.agent()
        await applied(made)
        await made.post("/v1/workloads", use(beside={"retention": 0}), expect=201)
        (run,) = agent.orders()
        await agent.starts(run)
        await agent.ends(run)
        await written(made)
        (life,) = (await made.get("/v1/history/default/run"))["items"]
        assert life["document"]["template"] == {"name": "train", "version": 1, "parameters": {"epochs": 3}}


async def test_secret_is_known_by_its_name_only() -> None:
    async with inprocess_server() as made:
        body = {"parameters": {"key": {"secret": True}}, "workload": {"steps": ["push {{key}}"]}}
        await applied(made, body)
        block = {"name": "run", "template": {"name": "train", "parameters": {"key": "api-key"}}}
        missing = await made.post("/v1/workloads", block, expect=422)
        assert (missing["code"], missing["path"]) == ("no_such_secret", "template.parameters.key")
        pasted = {"name": "run", "template": {"name": "train", "parameters": {"key": "hunter2!"}}}
        assert "hunter2" not in (await made.client.post("/v1/workloads", json=pasted)).text
        await made.client.put("/v1/projects/default/secrets/api-key", json={"value": "hunter2!"})
        await made.post("/v1/workloads", block, expect=201)
        shown = await made.get("/v1/workloads/default/run")
        assert shown["document"]["env"] == {"PARAM_key": {"secret": "api-key"}}
        assert "hunter2" not in str(shown)


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"parameters": {"epochs": "3"}}, "template.parameters.epochs"),
        ({"parameters": {}}, "template.parameters.epochs"),
        ({"parameters": {"epochs": 3, "lrr": 1}}, "template.parameters.lrr"),
        ({"parameters": {"epochs": 3, "lr": -1}}, "template.parameters.lr"),
        ({"version": 7}, "template.version"),
        ({"version": 0}, "template.version"),
        ({"name": "trian"}, "template.name"),
        ({"shared": True}, "template.name"),
        ({"colour": 1}, "template.colour"),
    ],
)
async def test_wrong_use_is_refused_with_its_path_and_leaves_nothing(block: dict[str, Any], path: str) -> None:
    async with inprocess_server() as made:
        await applied(made)
        before = made.snapshot()
        refused = await made.post("/v1/workloads", use(**block), expect=422)
        assert refused["path"] == path
        batch = await made.post("/v1/workloads/batch", [use("a"), use("b", **block)], expect=422)
        assert batch["path"] == f"[1].{path}"
        assert made.snapshot() == before


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "workload"),
        ({"workload": {"command": ["x", "{{y}}"]}}, "workload.command[1]"),
        ({"workload": {"command": "x", "name": "y"}}, "workload.name"),
        ({"workload": {"command": "x"}, "parameters": {"n": {"type": "int"}}}, "parameters.n.type"),
        ({"workload": {"command": "x"}, "parameters": {"n": {"minimun": 1}}}, "parameters.n.minimun"),
        ({"workload": {"command": "x"}, "parameters": {"a-b": {}}}, "parameters"),
        ({"workload": {"command": "x"}, "colour": "red"}, "colour"),
    ],
)
async def test_wrong_template_is_refused_with_its_path_and_leaves_nothing(body: Any, path: str) -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        assert (await applied(made, body, expect=422))["path"] == path
        assert (made.snapshot(), made.engine.state.opaque_records.get("template")) == (before, None)
        for wrong in ("/v1/templates/default/a.b", "/v1/templates/a.b/train", f"/v1/templates/default/{'x' * 64}"):
            assert (await applied(made, path=wrong, expect=422))["path"] in ("name", "project")


async def test_many_uses_of_a_large_template_are_bounded() -> None:
    async with inprocess_server() as made:
        body = {"workload": {"command": ["x" * 30_000]}}
        await applied(made, body)
        batch = [{"name": f"run-{index}", "template": {"name": "train"}} for index in range(300)]
        refused = await made.post("/v1/workloads/batch", batch, expect=413)
        assert "8,388,608 bytes" in refused["message"]
        assert len((await made.post("/v1/workloads/batch", batch[:60], expect=201))["items"]) == 60
