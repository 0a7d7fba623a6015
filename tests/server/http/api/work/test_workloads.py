"""Workloads over the API: taken in, shown, listed, explained, cancelled, run again."""

import pytest

from tests.server.inprocess_server import InprocessServer, Stop, inprocess_server


async def test_a_document_is_taken_in_and_shown_as_it_was_written() -> None:
    async with inprocess_server() as made:
        answer = await made.client.post(
            "/v1/workloads",
            json={
                "name": "tests",
                "steps": [{"run": "make"}],
                "resources": {"cpu": "500m", "memory": "4GiB", "gpu": 1},
            },
        )
        assert answer.status_code == 201
        view = answer.json()
        assert (view["project"], view["name"], view["kind"], view["state"]) == ("default", "tests", "job", "queued")
        assert view["counts"] == {"queued": 1} and view["finished_ms"] is None
        detail = await made.get("/v1/workloads/default/tests")
        assert detail["document"]["resources"] == {"cpu": "500m", "memory": "4GiB", "gpu": 1}
        assert detail["needs"] == {"cpu_milli": 500, "gpu_milli": 1_000, "memory": 4 << 30}
        assert [instance["state"] for instance in detail["instances"]] == ["queued"]


@pytest.mark.parametrize("kind", ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"])
async def test_yaml_is_taken_in_too(kind: str) -> None:
    async with inprocess_server() as made:
        text = "# a comment\nname: tests\nsteps:\n  - run: ls *.txt && echo '&done'\n"
        answer = await made.client.post("/v1/workloads", content=text, headers={"content-type": kind})
        assert answer.status_code == 201, answer.text
        detail = await made.get("/v1/workloads/default/tests")
        assert detail["document"]["steps"] == [{"run": "ls *.txt && echo '&done'"}]


async def test_the_same_document_again_is_no_conflict_when_that_is_wished() -> None:
    async with inprocess_server() as made:
        document = {"name": "web", "command": "serve", "kind": "service"}
        first = await made.client.post("/v1/workloads?same_ok=true", json=document)
        before = made.snapshot()
        again = await made.client.post("/v1/workloads?same_ok=true", json=document)
        other = await made.client.post("/v1/workloads?same_ok=true", json={**document, "count": 2})
        assert (first.status_code, again.status_code, other.status_code) == (201, 200, 200)
        assert again.json() == first.json() | {"result": "unchanged"}
        assert made.snapshot()[1:2] == before[1:2]
        assert (other.json()["result"], other.json()["version"]) == ("changed", 2)


async def test_a_name_in_use_is_a_conflict_that_says_what_to_do() -> None:
    async with inprocess_server() as made:
        await made.submit("web")
        before = made.snapshot()
        answer = await made.client.post("/v1/workloads", json={"name": "web", "command": "true"})
        report = answer.json()
        assert (answer.status_code, report["code"], report["path"]) == (409, "name_in_use", "name")
        assert "default/web" in report["message"] and report["hint"]
        assert made.snapshot() == before


async def test_a_batch_is_taken_in_whole_or_not_at_all() -> None:
    async with inprocess_server() as made:
        documents = [{"name": f"job-{number}", "command": "true"} for number in range(500)]
        revision = made.engine.state.revision
        answer = await made.client.post("/v1/workloads/batch", json=documents)
        assert answer.status_code == 201
        assert [item["name"] for item in answer.json()["items"]] == [document["name"] for document in documents]
        assert made.engine.state.revision == revision + 1
        before = made.snapshot()
        more = [{"name": f"more-{number}", "command": "true"} for number in range(3)]
        for wrong, status, path in (
            ({"name": "job-7", "command": "true"}, 409, "[3].name"),
            ({"name": "more-1", "command": "true"}, 409, "[3].name"),
            ({"name": "x", "command": "true", "count": "many"}, 422, "[3].count"),
            ({"name": "x"}, 422, "[3].steps"),
            ("x", 422, "[3]"),
        ):
            answer = await made.client.post("/v1/workloads/batch", json=[*more, wrong])
            assert (answer.status_code, answer.json()["path"]) == (status, path)
            assert made.snapshot() == before


@pytest.mark.parametrize("documents", [[], {}, "x", 1, [{"name": "x", "command": "y"}] * 10_001])
async def test_a_batch_has_bounds(documents: object) -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        answer = await made.client.post("/v1/workloads/batch", json=documents)
        assert (answer.status_code, answer.json()["path"]) == (422, "$")
        assert made.snapshot() == before


async def names(made: InprocessServer, **query: object) -> list[str]:
    """All names, page by page."""
    found: list[str] = []
    after = ""
    while True:
        page = await made.get("/v1/workloads", **query, **({"after": after} if after else {}))
        found += [item["name"] for item in page["items"]]
        if not page["next"]:
            return found
        after = page["next"]


async def test_lists_are_newest_first_and_come_in_pages() -> None:
    async with inprocess_server() as made:
        for number in range(7):
            await made.submit(f"job-{number}", project="even" if number % 2 == 0 else "odd")
        newest_first = [f"job-{number}" for number in reversed(range(7))]
        assert await names(made) == newest_first
        for limit in (1, 2, 3, 7, 100):
            assert await names(made, limit=limit) == newest_first
        assert await names(made, project="odd", limit=1) == ["job-5", "job-3", "job-1"]
        assert await names(made, name="job-3") == ["job-3"]
        assert await names(made, project="even", name="job-3") == []
        assert await names(made, state="queued", limit=4) == newest_first
        assert await names(made, state="running") == []


async def test_a_page_goes_on_although_its_last_workload_is_gone() -> None:
    async with inprocess_server() as made:
        for number in range(4):
            await made.submit(f"job-{number}", retention=0)
        page = await made.get("/v1/workloads", limit=2)
        assert [item["name"] for item in page["items"]] == ["job-3", "job-2"]
        await made.post("/v1/workloads/default/job-2/cancel")
        await made.until(lambda: "default/job-2" not in made.engine.state.workloads)
        page = await made.get("/v1/workloads", limit=2, after=page["next"])
        assert [item["name"] for item in page["items"]] == ["job-1", "job-0"]


async def test_states_follow_the_instances() -> None:
    async with inprocess_server() as made:
        agent = await made.agent(cpu=2_000)
        view = await made.submit(count=3)
        assert view["state"] == "running" and view["counts"] == {"placed": 2, "queued": 1}
        first, second = agent.orders()
        await agent.starts(first)
        await agent.ends(first, 0)
        await agent.ends(second, 3)
        (third,) = agent.orders()[2:]
        await agent.ends(third, 0)
        view = await made.get("/v1/workloads/default/job")
        assert view["state"] == "failed" and view["counts"] == {"succeeded": 2, "failed": 1}
        assert view["finished_ms"] is not None
        assert await names(made, state="failed") == ["job"]


async def test_cancelling_stops_first_and_twice_is_fine() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit(count=2)
        assert (await made.post("/v1/workloads/default/job/cancel"))["state"] == "stopping"
        assert (await made.post("/v1/workloads/default/job/cancel"))["state"] == "stopping"
        stops = agent.orders(Stop)
        assert len(stops) == 2
        for stop in stops:
            await agent.stops(stop)
        view = await made.post("/v1/workloads/default/job/cancel", {})
        assert view["state"] == "cancelled" and view["counts"] == {"cancelled": 2}


async def test_one_instance_can_be_cancelled_and_run_again() -> None:
    async with inprocess_server() as made:
        await made.submit(count=3)
        view = await made.post("/v1/workloads/default/job/cancel", {"index": 1})
        assert view["counts"] == {"queued": 2, "cancelled": 1}
        view = await made.post("/v1/workloads/default/job/retry", {"index": 1})
        assert view["counts"] == {"queued": 3}
        answer = await made.post("/v1/workloads/default/job/retry", expect=409)
        assert answer["code"] == "nothing_to_retry"


@pytest.mark.parametrize("action", ["cancel", "retry"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"index": 5}', 404),
        (b'{"index": 99999999999999999999999999}', 404),
        (b'{"index": -1}', 422),
        (b'{"index": "1"}', 422),
        (b'{"index": true}', 422),
        (b'{"indx": 1}', 422),
        (b"[]", 422),
        (b"{", 400),
    ],
)
async def test_odd_choices_are_refused(action: str, body: bytes, status: int) -> None:
    async with inprocess_server() as made:
        await made.submit()
        before = made.snapshot()
        answer = await made.client.post(f"/v1/workloads/default/job/{action}", content=body)
        assert answer.status_code == status, answer.text
        assert made.snapshot() == before


async def test_why_tells_what_is_in_the_way() -> None:
    async with inprocess_server() as made:
        await made.submit(resources={"cpu": 64})
        assert (await made.get("/v1/workloads/default/job/why"))["code"] == "no_nodes"
        await made.agent(cpu=4_000)
        answer = await made.get("/v1/workloads/default/job/why", index=0)
        assert answer["code"] == "unsatisfiable" and answer["blockers"][0]["nodes"] == 1
        await made.submit("small")
        answer = await made.get("/v1/workloads/default/small/why")
        assert (
            answer["node"] == "n1"
            and answer["candidates"][0]["node"] == "n1"
            and 0 <= answer["candidates"][0]["score"] <= 1
        )
        await made.get("/v1/workloads/default/small/why", expect=404, index=1)
        await made.get("/v1/workloads/default/nobody/why", expect=404)


async def test_a_project_may_be_called_like_a_path() -> None:
    async with inprocess_server() as made:
        await made.submit("why", project="batch")
        assert (await made.get("/v1/workloads/batch/why"))["name"] == "why"
        assert (await made.get("/v1/workloads/batch/why/why"))["instance"] == "batch/why.0"
        assert (await made.get("/v1/workloads/batch/why/instances"))["items"][0]["index"] == 0


async def test_a_server_reads_no_files_for_the_values_of_elements() -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        document = {"name": "sweep", "command": "true", "each": {"file": "/etc/passwd"}}
        for path, body, field in (("", document, "each"), ("/batch", [document], "[0].each")):
            answer = await made.client.post(f"/v1/workloads{path}", json=body)
            report = answer.json()
            assert (answer.status_code, report["code"], report["path"]) == (422, "invalid", field)
            assert "files are read by the `roost` command" in report["message"]
        assert made.snapshot() == before


async def test_a_workload_that_does_not_queue_and_has_no_room_is_an_error_with_its_reason() -> None:
    async with inprocess_server() as made:
        await made.agent(cpu=1_000)
        document = {"name": "big", "command": "true", "when_full": "reject", "resources": {"cpu": 8}}
        refused = await made.post("/v1/workloads", document, expect=409)
        assert (refused["code"], refused["params"]["kind"]) == ("rejected", "unsatisfiable")
        assert "needs 8" in refused["message"]
        assert (await made.get("/v1/workloads/default/big"))["state"] == "rejected"


async def test_a_finished_job_is_run_again_only_on_request() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit("once")
        (run,) = agent.orders()
        await agent.ends(run)
        document = (await made.get("/v1/workloads/default/once"))["document"]
        again = await made.post("/v1/workloads?same_ok=true", document, expect=200)
        assert (again["result"], again["state"]) == ("unchanged", "succeeded")
        again = await made.post("/v1/workloads?same_ok=true&rerun=true", document, expect=201)
        assert (again["result"], again["state"]) == ("created", "running")
