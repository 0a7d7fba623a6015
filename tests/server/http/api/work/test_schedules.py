"""Schedules over the API: when they are due, their runs, a run besides; and order among workloads."""

from pathlib import Path
from typing import Any

from tests.security.callers import caller, quiet_server
from tests.server.http.api.work.test_history import kept, written
from tests.server.inprocess_server import inprocess_server

NEVER_SOON = "0 0 29 2 *"  # the clock of these tests is the real one


async def test_a_schedule_is_listed_with_its_ticks_and_runs() -> None:
    async with inprocess_server() as made:
        await made.agent("n1")
        await made.submit("plain")
        view = await made.submit("nightly", schedule={"cron": NEVER_SOON, "zone": "Europe/Berlin", "overlap": "wait"})
        assert (view["state"], view["counts"]) == ("scheduled", {})
        run = await made.post("/v1/schedules/default/nightly/run", None, expect=201)
        assert run["name"].startswith("nightly-20")
        assert run["state"] == "running"
        again = await made.post("/v1/schedules/default/nightly/run", None, expect=201)
        assert again["message"] == f"waits for default/{run['name']} to finish"
        (found,) = (await made.get("/v1/schedules", next=3))["items"]
        assert (found["name"], found["cron"], found["zone"]) == ("nightly", NEVER_SOON, "Europe/Berlin")
        assert (found["overlap"], found["catch_up"], found["history_limit"], found["ended"]) == ("wait", 1, 10, False)
        assert found["next_ms"] == sorted(found["next_ms"])
        assert len(found["next_ms"]) == 3
        assert [run["name"] for run in found["runs"]] == [again["name"], run["name"]]
        assert [run["state"] for run in found["runs"]] == ["queued", "running"]
        assert found["last_ms"] == found["runs"][0]["tick_ms"]
        assert await made.get("/v1/schedules/default/nightly", next=3) == found
        shown = await made.get("/v1/workloads/default/nightly")
        assert shown["schedule"] == {**found, "next_ms": found["next_ms"][:1]}
        assert (shown["state"], shown["counts"], shown["instances"]) == ("scheduled", {}, [])
        assert (await made.get("/v1/workloads/default/plain"))["schedule"] is None


async def test_a_schedule_is_scheduled_everywhere_and_has_no_instances() -> None:
    async with inprocess_server() as made:
        await made.submit("waits")
        await made.submit("nightly", schedule=NEVER_SOON, count=3)
        for state, names in (("scheduled", ["nightly"]), ("queued", ["waits"])):
            page = await made.get("/v1/workloads", state=state)
            assert [(item["name"], item["state"]) for item in page["items"]] == [(name, state) for name in names]
        status = await made.get("/v1/status")
        assert (status["workloads"], status["instances"]) == ({"queued": 1, "scheduled": 1}, {"queued": 1})
        assert (await made.get("/v1/workloads/default/nightly/instances"))["items"] == []
        answer = await made.get("/v1/workloads/default/nightly/instances/0", expect=404)
        assert "runs by its schedule and has no instances" in answer["message"]
        report = await made.get("/v1/workloads/default/nightly/why")
        next_ms = (await made.get("/v1/schedules/default/nightly"))["next_ms"][0]
        assert (report["state"], report["instance"], report["code"]) == ("scheduled", "default/nightly", "schedule")
        assert report["estimate"]["earliest_ms"] == next_ms


async def test_a_schedule_is_paused_by_maintenance() -> None:
    async with inprocess_server() as made:
        await made.submit("nightly", schedule=NEVER_SOON)
        assert (await made.get("/v1/schedules/default/nightly"))["paused"] is False
        await made.client.put("/v1/maintenance", json={"reason": "new switches"})
        shown = await made.get("/v1/workloads/default/nightly")
        assert (shown["schedule"]["paused"], shown["state"]) == (True, "scheduled")
        await made.post("/v1/workloads/default/nightly/cancel", None)
        assert (await made.get("/v1/workloads/default/nightly"))["schedule"]["paused"] is False


async def test_schedules_come_in_pages_and_by_project() -> None:
    async with inprocess_server() as made:
        for name in ("c", "a", "b"):
            await made.submit(name, schedule=NEVER_SOON)
        await made.submit("a", project="web", schedule=NEVER_SOON)
        page = await made.get("/v1/schedules", limit=2)
        assert ([item["name"] for item in page["items"]], page["next"]) == (["a", "b"], "default/b")
        page = await made.get("/v1/schedules", limit=2, after="default/b")
        assert [(item["project"], item["name"]) for item in page["items"]] == [("default", "c"), ("web", "a")]
        page = await made.get("/v1/schedules", project="web")
        assert [item["project"] for item in page["items"]] == ["web"]
        await made.get("/v1/schedules", expect=422, next=11)


async def test_a_schedule_of_the_past_is_shown_with_the_runs_of_then(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        await made.submit("nightly", schedule={"cron": NEVER_SOON, "overlap": "allow"}, count=3)
        first = await made.post("/v1/schedules/default/nightly/run", None, expect=201)
        revision = made.engine.state.revision
        await made.post("/v1/schedules/default/nightly/run", None, expect=201)
        await made.post("/v1/workloads/default/nightly/cancel", None)
        await written(made)
        then = await made.get("/v1/workloads/default/nightly", at=f"@{revision}")
        assert (then["state"], [run["name"] for run in then["schedule"]["runs"]]) == ("scheduled", [first["name"]])
        assert len(then["schedule"]["next_ms"]) == 1
        (over,) = (await made.get("/v1/history/default/nightly"))["items"]
        assert (over["state"], over["counts"]) == ("cancelled", {})
        page = await made.get(f"/v1/history/default/nightly/{over['serial']}/instances")
        assert page["items"] == [], "a schedule never had any"


async def test_a_schedule_that_was_cancelled_is_ended() -> None:
    async with inprocess_server() as made:
        await made.submit("nightly", schedule=NEVER_SOON)
        await made.post("/v1/workloads/default/nightly/cancel", None)
        found = await made.get("/v1/schedules/default/nightly")
        assert (found["ended"], found["message"], found["next_ms"]) == (True, "cancelled by root", [])
        answer = await made.post("/v1/schedules/default/nightly/run", None, expect=409)
        assert answer["code"] == "no_schedule"


async def test_what_is_not_a_schedule_is_not_found_and_does_not_run() -> None:
    async with inprocess_server() as made:
        await made.submit("plain")
        await made.get("/v1/schedules/default/plain", expect=404)
        await made.post("/v1/schedules/default/nobody/run", None, expect=404)
        answer = await made.post("/v1/schedules/default/plain/run", None, expect=409)
        assert answer["code"] == "no_schedule"
        assert answer["message"] == "default/plain has no schedule; `retry` runs it again"


async def test_a_run_is_audited_with_its_principal() -> None:
    async with inprocess_server() as made:
        await made.submit("nightly", schedule=NEVER_SOON)
        await made.post("/v1/schedules/default/nightly/run", None, expect=201)
        (noted, *_) = (await made.get("/v1/audit"))["items"]
        assert (noted["what"], noted["target"]) == ("runnow", "default/nightly")


async def test_schedules_of_foreign_projects_are_not_reported() -> None:
    async with quiet_server() as made:
        for project in ("red", "blue"):
            await made.submit("nightly", project=project, schedule=NEVER_SOON)
        viewer = await caller(made, "viewer", "red")
        page = await viewer.get("/v1/schedules")
        assert [item["project"] for item in page["items"]] == ["red"]
        await viewer.get("/v1/schedules/blue/nightly", expect=404)
        assert (await viewer("POST", "/v1/schedules/red/nightly/run")).status_code == 403
        submitter = await caller(made, "submitter", "red")
        assert (await submitter("POST", "/v1/schedules/red/nightly/run")).status_code == 201


async def test_order_is_reported_and_kept() -> None:
    async with inprocess_server() as made:
        agent = await made.agent("n1")
        documents: list[dict[str, Any]] = [
            {"name": "build", "command": "true", "retries": 0},
            {"name": "test", "command": "true", "after": ["build"]},
        ]
        answer = await made.client.post("/v1/workloads/batch", json=documents)
        assert answer.status_code == 201, answer.text
        view = await made.get("/v1/workloads/default/test")
        assert (view["state"], view["message"]) == ("queued", "waits for default/build to succeed")
        assert view["instances"][0]["message"] == "waits for default/build to succeed"
        report = await made.get("/v1/workloads/default/test/why")
        assert report["code"] == "after"
        assert report["message"] == "default/test.0 waits for default/build to succeed (it is running)"
        (run,) = agent.orders()
        await agent.ends(run, code=1)
        view = await made.get("/v1/workloads/default/test")
        assert (view["state"], view["message"]) == ("cancelled", "dependency default/build failed (exit code 1)")
        report = await made.post("/v1/workloads/default/test/retry", None, expect=409)
        assert report["code"] == "after_failed"
        view = await made.post("/v1/workloads/default/build/retry", {"failed": True})
        assert view["state"] == "running"
        await made.post("/v1/workloads/default/test/retry", {"failed": "yes"}, expect=422)


async def test_a_circle_is_refused_with_the_place_of_the_field() -> None:
    async with inprocess_server() as made:
        documents = [
            {"name": "a", "command": "true", "after": ["b"]},
            {"name": "b", "command": "true", "after": ["a"]},
        ]
        answer = await made.client.post("/v1/workloads/batch", json=documents)
        assert (answer.status_code, answer.json()["code"], answer.json()["path"]) == (422, "after_cycle", "[0].after")
        assert (await made.get("/v1/workloads"))["items"] == []
