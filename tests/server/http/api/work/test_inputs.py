"""Inputs of submitted workloads: digests and names become sets of files that are whole, or the document is refused."""

import json
from typing import Any

import httpx
import pytest

from roost.files.manifest import FileEntry, Manifest, encode
from roost.model.protocol import Run
from roost.model.records.files import FileSet
from roost.ports.blobs import digest_of
from roost.stores.memory import Memory, MemoryStore
from tests.security.callers import caller
from tests.server.api_requests import put
from tests.server.inprocess_server import InprocessServer, inprocess_server

NAMED = "/v1/projects/default/named-files"
ONE, TWO = b"one", b"three"


def manifest(data: bytes) -> bytes:
    return encode(Manifest((FileEntry("file", 0o644, len(data), digest_of(data)),)))


FIRST, SECOND = manifest(ONE), manifest(TWO)
FILES = FileSet(digest_of(FIRST), 1, 3)


async def store(made: InprocessServer, *contents: bytes, project: str = "default") -> None:
    await made.files.root.project(project).put([(digest_of(data), data) for data in contents])


async def submit(made: InprocessServer, *sources: str, **fields: Any) -> httpx.Response:
    inputs = [{"from": source, "to": f"d{at}"} for at, source in enumerate(sources)]
    return await made.client.post("/v1/workloads", json={"name": "job", "command": "x", "inputs": inputs, **fields})


async def test_an_input_by_digest_gets_its_numbers_and_goes_to_the_node() -> None:
    async with inprocess_server() as made:
        await store(made, FIRST, ONE)
        agent = await made.agent()
        assert (await submit(made, digest_of(FIRST))).status_code == 201
        (item,) = made.engine.state.workloads["default/job"].policy.inputs
        assert item.files == FILES
        assert list(made.engine.state.file_sets["default"]) == [FILES]
        (run,) = agent.orders(Run)
        assert [given.digest for given in run.inputs] == [FILES.digest]
        assert list(made.files.project("default").held_sets()) == [], "the record names it now"


@pytest.mark.parametrize(
    ("stored", "source", "status", "code"),
    [
        ((), digest_of(FIRST), 422, "no_such_files"),
        ((FIRST,), digest_of(FIRST), 409, "files_missing"),
        ((ONE,), digest_of(ONE), 422, "invalid"),
        ((), "blob:unknown", 422, "no_such_files"),
    ],
    ids=["no manifest", "no contents", "no manifest at all", "no name"],
)
async def test_an_input_that_is_not_whole_is_refused(
    stored: tuple[bytes, ...], source: str, status: int, code: str
) -> None:
    async with inprocess_server() as made:
        await store(made, FIRST, ONE, project="elsewhere")  # which is of no use here
        await store(made, *stored)
        before = made.snapshot()
        answer = await submit(made, source)
        assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (status, code, "inputs[0].from")
        body = [{"name": "a", "command": "x"}, {"name": "b", "command": "x", "inputs": [{"from": source}]}]
        for path in ("/v1/workloads/batch", "/v1/plans"):
            answer = await made.client.post(path, json=body)
            assert (answer.status_code, answer.json()["path"]) == (status, "[1].inputs[0].from"), path
        assert made.snapshot() == before
        assert list(made.files.project("default").held_sets()) == []


async def test_a_role_is_checked_before_files_are_looked_for() -> None:
    async with inprocess_server() as made:
        await store(made, FIRST, ONE)
        stranger = await caller(made, "submitter", "elsewhere")
        answers = []
        for source in (digest_of(FIRST), digest_of(SECOND)):
            body = {"name": "job", "command": "x", "inputs": [{"from": source}]}
            answers.append(await stranger("POST", "/v1/workloads", body))
        assert [answer.status_code for answer in answers] == [403, 403]
        assert answers[0].json() == answers[1].json()


async def test_a_name_is_the_set_at_the_time_of_submission() -> None:
    async with inprocess_server() as made:
        await store(made, FIRST, ONE, SECOND, TWO)
        view = await put(made, f"{NAMED}/data", {"digest": digest_of(FIRST)})
        assert (view["digest"], view["files"], view["size"], view["changed_by"]) == (digest_of(FIRST), 1, 3, "root")
        assert (await submit(made, "blob:data")).status_code == 201
        await put(made, f"{NAMED}/data", {"digest": digest_of(SECOND)})
        assert made.engine.state.workloads["default/job"].policy.inputs[0].files == FILES
        again = await made.client.post(
            "/v1/workloads?same_ok=true",
            json={"name": "job", "command": "x", "inputs": [{"from": "blob:data", "to": "d0"}]},
        )
        assert again.json()["result"] == "changed", "the same document, and other files"
        entry = (await made.get("/v1/audit"))["items"][1]
        assert (entry["what"], entry["detail"]) == ("putrecords", digest_of(SECOND))


async def test_names_are_listed_shown_deleted_and_survive_a_restart() -> None:
    memory = Memory()
    async with inprocess_server(MemoryStore(memory)) as made:
        await store(made, FIRST, ONE)
        for name in ("b", "a"):
            await put(made, f"{NAMED}/{name}", {"digest": digest_of(FIRST)})
    async with inprocess_server(MemoryStore(memory)) as made:
        assert [item["name"] for item in (await made.get(NAMED))["items"]] == ["a", "b"]
        page = await made.get(NAMED, limit=1)
        assert [item["name"] for item in (await made.get(NAMED, after=page["next"]))["items"]] == ["b"]
        assert (await made.get(f"{NAMED}/a"))["size"] == 3
        assert (await made.client.delete(f"{NAMED}/a")).status_code == 204
        assert (await made.client.delete(f"{NAMED}/a")).status_code == 404
        await made.get(f"{NAMED}/a", 404)


async def test_only_whole_sets_get_a_name() -> None:
    async with inprocess_server() as made:
        await store(made, FIRST)
        answers = [
            await made.client.put(f"{NAMED}/a", json={"digest": digest_of(FIRST)}),
            await made.client.put(f"{NAMED}/a", json={"digest": digest_of(SECOND)}),
            await made.client.put(f"{NAMED}/a", json={"digest": "x"}),
            await made.client.put(f"{NAMED}/-a", json={"digest": digest_of(FIRST)}),
        ]
        assert [answer.status_code for answer in answers] == [409, 404, 422, 422]
        assert [json.loads(answer.content)["path"] for answer in answers[2:]] == ["digest", "name"]
        assert (await made.get(NAMED))["items"] == []


async def test_a_plan_with_inputs_is_applied() -> None:
    async with inprocess_server() as made:
        await store(made, FIRST, ONE)
        await made.agent()
        body = [{"name": "job", "command": "x", "inputs": [{"from": digest_of(FIRST)}]}]
        token = (await made.post("/v1/plans", body))["token"]
        await made.post(f"/v1/workloads/batch?plan={token}", body, 201)
        assert made.engine.state.workloads["default/job"].policy.inputs[0].files == FILES
