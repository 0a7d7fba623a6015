"""What is shown of foreign projects: numbers at most, never a name. In lists, streams, reasons, plans and stories."""

import json
from typing import Any

import pytest

from roost.schema.reason_text import HIDDEN, HIDDEN_PROJECT
from tests.security.callers import Caller, caller, quiet_server
from tests.server.inprocess_server import InprocessServer, events, over_http

SECRETS = ("hidden", "covert")  # the foreign project, and its workload


def silent(reported: Any) -> bool:
    """Whether an answer gives no foreign name away."""
    text = json.dumps(reported)
    return not any(word in text for word in SECRETS)


async def both(made: InprocessServer, **fields: Any) -> Caller:
    """A foreign workload on the only node, and a caller of another project."""
    await made.agent("n1", cpu=1_000)
    await made.submit("covert", project="hidden", resources={"cpu": 1}, **fields)
    return await caller(made, "submitter", "open")


async def test_lists_hold_only_what_may_be_seen() -> None:
    async with quiet_server() as made:
        principal = await both(made)
        await made.submit("own", project="open")
        await made.client.put("/v1/projects/hidden", json={"weight": 3})
        await made.post(
            "/v1/reservations", {"name": "covertly", "project": "hidden", "count": 1, "start": "9d"}, expect=201
        )
        assert [item["name"] for item in (await principal.get("/v1/workloads"))["items"]] == ["own"]
        assert [item["name"] for item in (await principal.get("/v1/projects"))["items"]] == ["open"]
        assert (await principal.get("/v1/reservations"))["items"] == []
        assert (await principal.get("/v1/workloads", name="covert"))["items"] == []
        node = await principal.get("/v1/nodes/n1")
        assert (node["running"], node["instances"]) == (1, []) and silent(node)
        for path in ("/v1/nodes", "/v1/pools", "/v1/status"):
            assert silent(await principal.get(path))


@pytest.mark.parametrize("query", ["", "&name=covert", "&at=@1"])
async def test_a_list_of_a_foreign_project_is_answered_as_one_of_an_unknown_project(query: str) -> None:
    async with quiet_server() as made:
        principal = await both(made)
        foreign = await principal("GET", f"/v1/workloads?project=hidden{query}")
        unknown = await principal("GET", f"/v1/workloads?project=nowhere{query}")
        assert (foreign.status_code, foreign.json()["code"]) == (404, "not_found")
        assert foreign.json()["message"] == "there is no project hidden, or it is none of yours"
        assert foreign.text.replace("hidden", "nowhere") == unknown.text


async def test_pages_do_not_tell_which_foreign_work_lies_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.server.waiting.SCANNED_AT_ONCE", 1)
    monkeypatch.setattr("roost.server.waiting.SCAN_S", 0.0)
    async with quiet_server() as made:
        principal = await both(made)
        await made.submit("own", project="open")
        await made.submit("covert-too", project="hidden")
        first = await principal.get("/v1/workloads")
        second = await principal.get("/v1/workloads", after=first["next"])
        assert (first["items"], [item["name"] for item in second["items"]]) == ([], ["own"])
        assert silent(first)
        # A name that is made up and one that is foreign are answered alike.
        made_up = await principal.get("/v1/workloads", after="99999999999999999:hidden/nobody")
        foreign = await principal.get("/v1/workloads", after="99999999999999999:hidden/covert")
        assert made_up == foreign


async def test_foreign_and_missing_things_are_answered_alike() -> None:
    async with quiet_server() as made:
        principal = await both(made)
        for there, missing in (
            ("/v1/workloads/hidden/covert", "/v1/workloads/nobody/covert"),
            ("/v1/workloads/hidden/covert/why", "/v1/workloads/nobody/covert/why"),
            ("/v1/projects/hidden", "/v1/projects/nobody"),
            ("/v1/reservations/hidden", "/v1/reservations/nobody"),
        ):
            first, second = await principal.get(there, expect=404), await principal.get(missing, expect=404)
            assert json.dumps(first).replace("hidden", "nobody") == json.dumps(second)


async def test_foreign_work_ahead_in_the_queue_is_counted_not_named() -> None:
    async with quiet_server() as made:
        principal = await both(made)
        await made.submit("own", project="open")
        why = await principal.get("/v1/workloads/open/own/why")
        assert [suggestion["message"] for suggestion in why["suggestions"] if suggestion["kind"] == "end"] == [
            f"the end of {HIDDEN} on n1"
        ]
        assert silent(why)
        await made.submit("covert-too", project="hidden", priority=90)
        await made.submit("before", project="open", priority=80)
        why = await principal.get("/v1/workloads/open/own/why")
        assert why["position"] == 3 and why["queued_before"] == ["open/before.0"] and silent(why)
        assert not silent(await made.get("/v1/workloads/open/own/why"))  # for an administrator


async def test_reserved_nodes_are_another_projects() -> None:
    async with quiet_server() as made:
        principal = await both(made)
        await made.post("/v1/reservations", {"name": "kept", "project": "hidden", "count": 1}, expect=201)
        await made.submit("own", project="open")
        why = await principal.get("/v1/workloads/open/own/why", advice=False)
        assert f"reserved for {HIDDEN_PROJECT}" in why["message"] and silent(why)
        plan = (await principal("POST", "/v1/plans", [{"name": "more", "project": "open", "command": "true"}])).json()
        assert HIDDEN_PROJECT in plan["pending"][0]["message"] and silent(plan)


async def test_a_plan_does_not_name_foreign_instances_it_would_stop() -> None:
    async with quiet_server(preempt_margin=10) as made:
        principal = await both(made, priority=10)
        document = {
            "name": "own", "project": "open", "command": "true", "priority": 90, "resources": {"cpu": 1},
        }  # fmt: skip
        plan = (await principal("POST", "/v1/plans", [document])).json()
        assert [item["instance"] for item in plan["stopped"]] == [HIDDEN] and silent(plan)
        assert (await principal("POST", "/v1/plans", [{**document, "project": "hidden"}])).status_code == 403


@pytest.mark.parametrize("kind", ["near", "apart", "avoid"])
async def test_rules_about_work_that_cannot_be_seen_are_refused(kind: str) -> None:
    async with quiet_server() as made:
        principal = await both(made)
        before = made.snapshot()
        for other in ("hidden/covert", "nobody/nothing"):
            rule = {"placement": {kind: [{"workload": other, "by": "node"}]}}
            document = {"name": "own", "project": "open", "command": "true", **rule}
            for path, body in (("/v1/workloads", document), ("/v1/plans", [document])):
                answer = await principal("POST", path, body)
                assert (answer.status_code, answer.json()["path"]) == (403, f"placement.{kind}")
        assert made.snapshot() == before
        rule = {"placement": {kind: [{"workload": "open/other"}]}}
        assert (await principal("POST", "/v1/workloads", {**document, **rule})).status_code == 201


async def test_a_foreign_preemptor_is_not_named_in_any_story() -> None:
    async with quiet_server(preempt_margin=10) as made, over_http(made) as client:
        agent = await made.agent("n1", cpu=1_000)
        principal = await caller(made, "viewer", "open")
        await made.submit("own", project="open", priority=10, resources={"cpu": 1})
        await agent.starts(agent.orders()[0])
        client.headers.update(principal.headers)
        async with events(client, "/v1/changes") as reported:
            await reported.next(marks=True)
            await made.submit("covert", project="hidden", priority=90, resources={"cpu": 1})
            kinds = []
            while "instance" not in kinds:
                change = json.loads((await reported.next())["data"])
                kinds.append(change["kind"])
                assert silent(change)
            assert HIDDEN in change["object"]["message"]
        for path in ("", "/instances", "/instances/0", "/why"):
            assert silent(await principal.get(f"/v1/workloads/open/own{path}"))
        assert not silent(await made.get("/v1/workloads/open/own/instances/0"))


async def test_changes_of_foreign_projects_are_not_streamed() -> None:
    async with quiet_server() as made, over_http(made) as client:
        principal = await both(made)
        since = made.engine.state.revision - 1
        client.headers.update(principal.headers)
        async with events(client, "/v1/changes", since=since, workload="hidden/covert") as nothing:
            async with events(client, "/v1/changes", since=0) as reported:
                await made.submit("covert-too", project="hidden")
                await made.submit("own", project="open")
                keys = []
                while "open/own" not in keys:
                    event = await reported.next()
                    assert silent(event)
                    if event["event"] == "change":
                        keys.append(json.loads(event["data"])["key"])
                assert set(keys) <= {"n1", "open/own"}
            made.watch.close()
            assert (await nothing.next())["event"] == "stopping"


async def test_settings_of_foreign_projects_are_not_streamed_even_when_they_go() -> None:
    async with quiet_server() as made, over_http(made) as client:
        principal = await both(made)
        since = made.engine.state.revision
        for project, name in (("hidden", "covertly"), ("open", "openly")):
            await made.client.put(f"/v1/projects/{project}", json={"weight": 3})
            reserving = {"name": name, "project": project, "count": 1, "start": "9d", "end": "10d"}
            await made.post("/v1/reservations", reserving, expect=201)
            assert (await made.client.delete(f"/v1/reservations/{name}")).status_code == 204
        await made.client.put("/v1/pools/shared", json={"projects": ["hidden", "open"]})
        client.headers.update(principal.headers)
        async with events(client, "/v1/changes", since=since, kind=["pool", "project", "reservation"]) as reported:
            found = [json.loads((await reported.next())["data"]) for _ in range(4)]
        assert [(item["kind"], item["key"], item["what"]) for item in found] == [
            ("project", "open", "put"), ("reservation", "openly", "put"), ("reservation", "openly", "gone"),
            ("pool", "shared", "put"),
        ]  # fmt: skip
        assert silent(found)
        assert (found[-1]["object"]["projects"], found[-1]["object"]["restricted"]) == (["open"], True)


async def test_reasons_that_operators_write_do_not_name_foreign_work() -> None:
    reason = "hidden/covert.0 of project hidden broke open/own"
    shown = f"{HIDDEN} of {HIDDEN_PROJECT} broke open/own"
    async with quiet_server() as made, over_http(made) as client:
        principal = await both(made)
        since = made.engine.state.revision
        await made.submit("own", project="open", placement={"pool": "default"})
        marking = {"status": "failed", "reason": reason}
        assert (await made.client.put("/v1/pools/default/status", json=marking)).status_code == 200
        assert (await made.get("/v1/pools/default"))["reason"] == reason
        assert (await principal.get("/v1/pools/default"))["reason"] == shown
        assert [pool["reason"] for pool in (await principal.get("/v1/pools"))["items"]] == [shown]
        client.headers.update(principal.headers)
        async with events(client, "/v1/changes", since=since, kind=["pool"]) as reported:
            assert json.loads((await reported.next())["data"])["object"]["reason"] == shown
        for path in ("", "/instances", "/instances/0", "/why"):
            assert silent(await principal.get(f"/v1/workloads/open/own{path}")), path
        assert reason in json.dumps(await made.get("/v1/workloads/open/own/why"))
        assert (await made.client.put("/v1/maintenance", json={"reason": reason})).status_code == 200
        assert (await principal.get("/v1/maintenance"))["reason"] == shown
        assert (await principal.get("/v1/status"))["maintenance"]["reason"] == shown
        assert silent(await principal.get("/v1/workloads/open/own/why"))


async def test_a_stream_ends_with_its_token() -> None:
    async with quiet_server() as made, over_http(made) as client:
        principal = await both(made)
        client.headers.update(principal.headers)
        async with events(client, "/v1/changes") as reported:
            await reported.next(marks=True)
            assert (await made.client.delete(f"/v1/tokens/{principal.name}")).status_code == 204
            await made.submit("own", project="open")
            assert (await reported.next())["event"] == "stopping"
            assert await reported.ended()
