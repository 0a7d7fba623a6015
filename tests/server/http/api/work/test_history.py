"""The past over the API: finished workloads, what happened, and everything as it was."""

import os
from pathlib import Path
from typing import Any

from roost.core.state.records import Settings
from roost.server.history.service import History
from tests.server.inprocess_server import InprocessServer, events, inprocess_server, over_http


def kept(folder: Path) -> History:
    return History(folder, Settings())


async def written(made: InprocessServer) -> None:
    """Wait until the history has what is committed."""
    history = made.history
    assert history is not None
    await made.until(lambda: history.standing().revision >= made.engine.state.revision)


async def ran(made: InprocessServer, agent: Any, name: str, code: int = 0, **fields: Any) -> None:
    """A workload that runs to its end."""
    await made.submit(name, **fields)
    run = agent.orders()[-1]
    await agent.starts(run)
    await agent.ends(run, code)


async def test_finished_workloads_can_be_searched(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        agent = await made.agent()
        await ran(made, agent, "train-1")
        await ran(made, agent, "train-2", 7)
        await ran(made, agent, "deploy", project="web")
        await written(made)
        page = await made.get("/v1/history")
        assert [(item["project"], item["name"], item["state"]) for item in page["items"]] == [
            ("web", "deploy", "succeeded"), ("default", "train-2", "failed"), ("default", "train-1", "succeeded")
        ]  # fmt: skip
        assert page["next"] is None
        (failed,) = (await made.get("/v1/history", name="train", state="failed"))["items"]
        assert (failed["exit_code"], failed["node"], failed["attempts"]) == (7, "n1", 1)
        assert (await made.get("/v1/history", project="web", until="1h"))["items"] == []
        assert len((await made.get("/v1/history", since="1h"))["items"]) == 3
        first = await made.get("/v1/history", limit=2)
        rest = await made.get("/v1/history", limit=2, after=first["next"])
        assert [item["name"] for item in rest["items"]] == ["train-1"]


async def test_all_lives_of_a_name_are_there_with_their_instances(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        agent = await made.agent()
        for code in (1, 0):
            await ran(made, agent, "train", code, env={"A": str(code)})
        await written(made)
        page = await made.get("/v1/history/default/train")
        assert [(item["state"], item["document"]["env"]["A"]) for item in page["items"]] == [
            ("succeeded", "0"), ("failed", "1")
        ]  # fmt: skip
        serial = page["items"][1]["serial"]
        found = await made.get(f"/v1/history/default/train/{serial}/instances")
        (instance,) = found["items"]
        assert [line["state"] for line in instance["story"]] == ["queued", "placed", "running", "failed"]
        assert instance["decision"]["strategy"] == "least_loaded"
        answer = await made.get("/v1/history/default/unknown", 404)
        assert "nothing of the name default/unknown" in answer["message"]
        assert (await made.get("/v1/history/default/train/1/instances", 404))["code"] == "not_found"


async def test_instances_that_never_ran_are_in_the_history_too(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        await made.submit("array", count=5)
        await made.post("/v1/workloads/default/array/cancel")
        await written(made)
        (over,) = (await made.get("/v1/history"))["items"]
        assert (over["state"], over["counts"]) == ("cancelled", {"cancelled": 5})
        path = f"/v1/history/default/array/{over['serial']}/instances"
        first = await made.get(path, limit=3)
        rest = await made.get(path, limit=3, after=first["next"])
        assert [item["index"] for item in first["items"] + rest["items"]] == [0, 1, 2, 3, 4] and rest["next"] is None


async def test_events_have_the_principal_and_the_outcome(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        agent = await made.agent()
        await ran(made, agent, "train")
        await made.post("/v1/nodes/n1/drain")
        await written(made)
        page = await made.get("/v1/events", project="default", workload="train")
        answer = [(item["kind"], item["what"], item.get("who", "")) for item in page["items"][::-1]]
        assert sorted(answer) == sorted([
            ("workload", "submitted", ""), ("audit", "submit", "root"), ("instance", "queued", ""),
            ("instance", "placed", ""), ("instance", "running", ""), ("instance", "succeeded", ""),
            ("workload", "succeeded", ""),
        ])  # fmt: skip
        on_node = [(item["kind"], item["what"]) for item in (await made.get("/v1/events", node="n1"))["items"]]
        assert ("node", "ready") in on_node and ("node", "drained") in on_node and ("audit", "drain") in on_node
        assert [item["what"] for item in (await made.get("/v1/events", what="running"))["items"]] == ["running"]
        assert (await made.get("/v1/events", 422, kind="weather"))["path"] == "kind"
        assert (await made.get("/v1/events", 422, index=3))["path"] == "index"
        assert (await made.get("/v1/events", 422, after="nonsense"))["path"] == "after"
        assert (await made.get("/v1/events", 422, since="2026-01-01T00:00"))["path"] == "since"


async def test_events_can_be_followed_and_gone_on_with(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made, over_http(made) as client:
        agent = await made.agent()
        await written(made)
        async with events(client, "/v1/events/follow", kind="instance") as stream:
            await ran(made, agent, "train")
            seen = [await stream.next() for _ in range(4)]
            assert [item["event"] for item in seen] == ["happened"] * 4
            assert ['"what":"' + what + '"' in item["data"] for what, item in
                    zip(("queued", "placed", "running", "succeeded"), seen, strict=True)] == [True] * 4  # fmt: skip
        async with events(client, "/v1/events/follow", last=seen[1]["id"], kind="instance") as stream:
            again = [await stream.next() for _ in range(2)]
        assert [item["id"] for item in again] == [seen[2]["id"], seen[3]["id"]]


async def test_everything_can_be_seen_as_it_was(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        agent = await made.agent()
        await made.submit("train", count=2)
        then = made.engine.state.revision
        shown = await made.get("/v1/workloads/default/train")
        for run in agent.orders():
            await agent.starts(run)
            await agent.ends(run)
        await made.submit("late")
        await written(made)
        past = await made.client.get("/v1/workloads", params={"at": f"@{then}"})
        assert past.headers["roost-revision"] == str(then) and past.headers["roost-at"].endswith("Z")
        assert past.json()["revision"] == then
        assert [(item["name"], item["state"]) for item in past.json()["items"]] == [("train", "running")]
        assert await made.get("/v1/workloads/default/train", at=f"@{then}") == shown
        instances = await made.get("/v1/workloads/default/train/instances", at=f"@{then}")
        assert [item["state"] for item in instances["items"]] == ["placed", "placed"]
        one = await made.get("/v1/workloads/default/train/instances/1", at=f"@{then}")
        assert [line["state"] for line in one["story"]] == ["queued", "placed"]
        (node,) = (await made.get("/v1/nodes", at=f"@{then}"))["items"]
        assert (node["running"], node["status"], node["connected"]) == (2, "ready", True)
        detail = await made.get("/v1/nodes/n1", at=f"@{then}")
        assert [instance["name"] for instance in detail["instances"]] == ["train", "train"]
        (now,) = (await made.get("/v1/nodes"))["items"]
        assert now["running"] == 1
        gone = await made.get("/v1/workloads/default/late", 404, at=f"@{then}")
        assert "there was no workload default/late at that time" in gone["message"]


async def test_a_time_is_settled_once_for_many_questions(tmp_path: Path) -> None:
    async with inprocess_server(history=kept(tmp_path)) as made:
        await made.submit("train")
        await written(made)
        moment = await made.get("/v1/history/at", at="0s")
        assert moment["revision"] == made.engine.state.revision and moment["earliest_ms"] <= moment["at_ms"]
        page = await made.get("/v1/workloads", at=moment["token"])
        assert page["revision"] == moment["revision"]
        early = await made.get("/v1/workloads", 404, at="30d")
        assert early["code"] == "before_history" and "it begins at 20" in early["message"]
        for nonsense in ("yesterday", "@", "@-", "@1-x", "2026-13-01T00:00Z", "2026-01-01"):
            assert (await made.get("/v1/workloads", 422, at=nonsense))["path"] == "at", nonsense


async def test_without_a_history_it_is_reported_how_to_get_one() -> None:
    async with inprocess_server() as made:
        await made.submit("train")
        for path in ("/v1/history", "/v1/events", "/v1/history/default/train", "/v1/events/follow", "/v1/history/at"):
            answer = await made.get(path, 404)
            assert answer["code"] == "history_off" and "--history on" in answer["message"]
        assert (await made.get("/v1/nodes", 404, at="1h"))["code"] == "history_off"
        assert (await made.get("/v1/status"))["history"] is None


async def test_a_history_that_cannot_be_written_does_not_keep_the_server_from_serving(tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    history = kept(tmp_path)
    async with inprocess_server(history=history) as made:
        await made.until(lambda: history.standing().failed)
        await made.submit("train")
        assert (await made.get("/readyz"))["ready"] is True
        assert "cannot be written" in (await made.get("/v1/status"))["history"]["failed"]
        page = (await made.client.get("/metrics")).text
        assert "roost_history_failed 1.0" in page
        assert (await made.get("/v1/history", 503))["code"] == "unavailable"
    os.rmdir(tmp_path / "history.db")
