"""Changes over the API: everything once and in order, resumed without gaps or repeats."""

import json

from roost.model.protocol import Report, Stop
from roost.model.states import FINISHED
from roost.server.feed.change_log import Watch
from tests.server.inprocess_server import Events, InprocessServer, events, inprocess_server, over_http


async def changes(report: Events, number: int) -> list[tuple[int, str, str]]:
    """The next changes: revision, key, what."""
    found = [json.loads((await report.next())["data"]) for _ in range(number)]
    return [(item["revision"], item["key"], item["what"]) for item in found]


async def test_every_change_is_reported_once_with_its_object() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        async with events(client, "/v1/changes") as answer:
            await answer.next(marks=True)
            await made.submit("a")
            change = json.loads((await answer.next())["data"])
            assert (change["kind"], change["key"], change["what"]) == ("workload", "default/a", "put")
            assert change["object"] == {**await made.get("/v1/workloads", name="a")}["items"][0]
            agent = await made.agent()
            kinds = {change[1] for change in await changes(answer, 2)}
            assert kinds == {"n1", "default/a.0"}
            await agent.ends(agent.orders()[0], 0)
            seen = [json.loads((await answer.next())["data"]) for _ in range(2)]
            states = {item["kind"]: item["object"]["state"] for item in seen}
            assert states == {"instance": "succeeded", "workload": "succeeded"}


async def test_every_stop_is_reported_with_its_cause_expected_or_not() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        agent = await made.agent()
        for name in ("failing", "cancelled", "lost"):
            await made.submit(name, when_lost="fail", retries=0)
        fails, cancelled, lost = agent.orders()
        await agent.says(*(Report(run.token, "running") for run in (fails, cancelled, lost)))
        async with events(client, "/v1/changes", kind="instance") as answer:
            await answer.next(marks=True)
            await agent.ends(fails, code=3)
            await made.post("/v1/workloads/default/cancelled/cancel")
            await agent.stops(agent.orders(Stop)[0])
            await agent.says(Report(lost.token, "ended", cause="lease"))
            ends = {}
            while len(ends) < 3:
                seen = json.loads((await answer.next())["data"])["object"]
                if seen["state"] in FINISHED:
                    ends[seen["name"]] = (seen["state"], seen["message"])
        assert ends == {
            "failing": ("failed", "exit code 3"),
            "cancelled": ("cancelled", "cancelled by root"),
            "lost": ("failed", "lease of node n1 expired; it is not rescheduled"),
        }


async def test_a_list_and_the_changes_after_it_leave_no_gap() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit("a")
        revision = (await made.get("/v1/workloads"))["revision"]
        await made.submit("b")
        async with events(client, "/v1/changes", since=revision) as answer:
            assert await changes(answer, 1) == [(revision + 1, "default/b", "put")]


async def test_a_client_that_comes_back_gets_what_was_missed_and_nothing_twice() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        seen: list[tuple[int, str, str]] = []
        last = ""
        for number in range(5):
            async with events(client, "/v1/changes", last=last) as answer:
                if not last:
                    await answer.next(marks=True)
                    await made.submit(f"job-{number}-a")
                seen += await changes(answer, 1)
                await made.submit(f"job-{number}-b")
                seen += await changes(answer, 1)
                await answer.next(marks=True)
                last = answer.last_id
            await made.submit(f"job-{number + 1}-a")
        keys = [key for _, key, _ in seen]
        assert keys == [f"default/job-{number}-{letter}" for number in range(5) for letter in "ab"]
        revisions = [revision for revision, _, _ in seen]
        assert revisions == list(range(revisions[0], revisions[0] + 10))


async def test_only_what_is_wanted_is_reported() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        async with (
            events(client, "/v1/changes", kind="node") as nodes,
            events(client, "/v1/changes", workload="default/web") as web,
            events(client, "/v1/changes", kind=["workload", "instance"]) as work,
        ):
            for answer in (nodes, web, work):
                await answer.next(marks=True)
            await made.submit("web-1")
            await made.submit("web")
            await made.agent()
            assert [key for _, key, _ in await changes(nodes, 1)] == ["n1"]
            assert [key for _, key, _ in await changes(web, 2)] == ["default/web", "default/web.0"]
            assert [key for _, key, _ in await changes(work, 4)] == [
                "default/web-1", "default/web", "default/web-1.0", "default/web.0"
            ]  # fmt: skip


async def test_settings_of_operators_are_sent_to_readers_that_ask_for_them_only() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.agent("n1")
        async with (
            events(client, "/v1/changes", kind=["pool", "project", "reservation"]) as settings,
            events(client, "/v1/changes") as usual,
            events(client, "/v1/changes", kind=["project", "workload"], prefix="default") as work,
        ):
            for answer in (settings, usual, work):
                await answer.next(marks=True)
            await made.client.put("/v1/pools/n1", json={"strategy": "best_fit", "overcommit": {"cpu": 1.5}})
            await made.client.put("/v1/pools/n1/status", json={"status": "failed", "reason": "flooded"})
            await made.client.put("/v1/projects/default", json={"weight": 3, "quota": {"cpu": 2}})
            reserving = {"name": "night", "project": "default", "nodes": ["n1"], "start": "9d"}
            shown = await made.post("/v1/reservations", reserving, expect=201)
            await made.client.delete("/v1/reservations/night")
            await made.client.delete("/v1/pools/n1")
            await made.submit("last")
            found = [json.loads((await settings.next())["data"]) for _ in range(6)]
            assert [(item["kind"], item["key"], item["what"]) for item in found] == [
                ("pool", "n1", "put"), ("pool", "n1", "put"), ("project", "default", "put"),
                ("reservation", "night", "put"), ("reservation", "night", "gone"), ("pool", "n1", "gone"),
            ]  # fmt: skip
            pool, failed, project, reservation, _, gone = [item["object"] for item in found]
            assert (pool["strategy"], pool["overcommit"], pool["status"]) == ("best_fit", {"cpu": 1.5}, "ready")
            assert (failed["status"], failed["reason"], failed["failed_by"]) == ("failed", "flooded", "operator")
            assert project == {
                "name": "default", "weight": 3, "quota": {"cpu_milli": 2_000}, "borrow": False, "counted": False,
                "isolation": "none", "run_as": [],
            }  # fmt: skip
            assert reservation | {"active": False} == shown
            assert gone is None
            for answer in (usual, work):
                assert [key for _, key, _ in await changes(answer, 1)] == ["default/last"]


async def test_removed_objects_are_reported() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit("a")
        async with events(client, "/v1/changes") as answer:
            await answer.next(marks=True)
            await made.post("/v1/workloads/default/a/cancel")
            await made.submit("a", command="false")
            first, second = [json.loads((await answer.next())["data"]) for _ in range(2)]
            assert (first["object"]["state"], first["what"]) == ("cancelled", "put")
            assert (second["object"]["state"], second["what"]) == ("queued", "put")


async def test_a_client_that_was_away_for_too_long_is_ordered_to_list_again() -> None:
    async with inprocess_server(watch=Watch(changes_max=3)) as made, over_http(made) as client:
        await made.submit("a")
        since = made.engine.state.revision
        for number in range(5):
            await made.submit(f"b-{number}")
        async with events(client, "/v1/changes", since=since) as answer:
            event = await answer.next()
            assert event["event"] == "reset"
            assert json.loads(event["data"])["revision"] == made.engine.state.revision
            await made.submit("c")
            assert [key for _, key, _ in await changes(answer, 1)] == ["default/c"]


async def test_numbers_of_another_life_mean_nothing() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.submit("a")
        for since in ("1-12345", str(made.engine.state.revision + 1)):
            async with events(client, "/v1/changes", since=since) as answer:
                assert (await answer.next())["event"] == "reset"


async def test_watchers_are_counted_and_sent_away_when_the_server_stops() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        async with events(client, "/v1/changes") as answer:
            await answer.next(marks=True)
            assert made.watch.subscribers == 1
            made.watch.close()
            assert (await answer.next())["event"] == "stopping"
            assert await answer.ended()
        await made.until(lambda: made.watch.subscribers == 0)


async def test_a_watcher_that_goes_away_is_forgotten() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        async with events(client, "/v1/changes") as answer:
            await answer.next(marks=True)
        await made.until(lambda: made.watch.subscribers == 0)
        await gone(made)


async def gone(made: InprocessServer) -> None:
    """And the next change goes to no client."""
    await made.submit("later")
    assert made.watch.subscribers == 0


async def test_a_reader_that_does_not_read_is_cut_off_and_holds_up_no_client() -> None:
    async with inprocess_server(watch=Watch(changes_max=1_000)) as made, over_http(made) as client:
        async with events(client, "/v1/changes") as slow:
            await slow.next(marks=True)
            for batch in range(4):  # some 12 MB, more than lies in buffers on the way
                documents = [{"name": f"job-{batch}-{number}", "command": "true"} for number in range(10_000)]
                await made.post("/v1/workloads/batch", documents, expect=201)
            async with events(client, "/v1/changes") as quick:
                await quick.next(marks=True)
                await made.submit("last")
                assert await changes(quick, 1) == [(made.engine.state.revision, "default/last", "put")]
            seen = 0
            while (event := await slow.next())["event"] == "change":
                seen += 1
            assert event["event"] == "reset" and 0 < seen < 40_000
            await made.submit("after")
            assert [key for _, key, _ in await changes(slow, 1)] == ["default/after"]
