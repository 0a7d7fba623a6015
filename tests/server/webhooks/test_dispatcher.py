"""Hooks: events are sent, signed, in order, again until it is taken; and by the leader only."""

import hmac
import json
import os
from hashlib import sha256
from typing import Any

import pytest
import structlog

from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.model.records.result import Result, ResultProblem
from roost.model.records.webhook import WebhookEvent
from roost.server.pki.encryption import Seal
from roost.server.webhooks.destinations import Destinations
from roost.stores.memory import Memory, MemoryStore
from tests.server.inprocess_server import Run, Stop, inprocess_server
from tests.server.receiver import OK, Reported, equip, hook_of, receiver, set_hook, status, telling

SECRET = "planted-7c1f-do-not-tell"


async def test_an_end_is_reported_with_all_that_is_known_of_it() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        agent = await made.agent("n1")
        await set_hook(made, "default/ends", there.url)
        await made.submit("job", command="false")
        (run,) = agent.orders(Run)
        await agent.starts(run)
        await agent.ends(run, code=3)
        await there.until(lambda: len(there.reported) == 2)
        ended, finished = there.events()
        assert (ended["event"], ended["key"], ended["project"], ended["index"]) == (
            "instance.failed", "default/job.0", "default", 0,
        )  # fmt: skip
        assert (ended["state"], ended["before"], ended["ended"]) == ("failed", "running", True)
        assert (ended["attempt"], ended["node"], ended["exit_code"], ended["version"]) == (1, "n1", 3, 1)
        assert "3" in ended["message"] and ended["revision"] <= made.engine.state.revision
        assert (finished["event"], finished["key"], finished["state"]) == ("workload.finished", "default/job", "failed")
        assert finished["counts"] == {"failed": 1}
        headers = there.reported[0].headers
        assert headers["roost-event"] == "instance.failed" and headers["roost-delivery"] == ended["id"]
        assert headers["user-agent"].startswith("Roost/") and headers["content-type"] == "application/json"
        assert "roost-signature" not in headers


async def test_an_attempt_that_is_tried_again_has_ended_too() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        agent = await made.agent("n1")
        await set_hook(made, "default/ends", there.url)
        await made.submit("job", retries={"max": 1, "on": ["exit:75"]})
        (run,) = agent.orders(Run)
        await agent.starts(run)
        await agent.ends(run, code=75)
        await there.until(lambda: there.reported)
        (answer,) = there.events()
        assert (answer["event"], answer["before"], answer["ended"]) == ("instance.queued", "running", True)
        assert (answer["attempt"], answer["node"], answer["exit_code"]) == (1, "n1", 75)


async def test_what_is_reported_is_what_was_asked_for() -> None:
    async with (
        inprocess_server() as made,
        receiver() as all_of_it,
        receiver() as web,
        receiver() as nodes,
        telling(made),
    ):
        await set_hook(made, "*/all", all_of_it.url, events=["*"])
        await set_hook(made, "web/deploys", web.url, events=["instance.running"], workload="deploy-*")
        await set_hook(made, "*/nodes", nodes.url, events=["node.*"])
        agent = await made.agent("n1")
        for project, name in (("web", "deploy-1"), ("web", "test"), ("other", "deploy-1")):
            await made.submit(name, project=project)
        for run in agent.orders(Run):
            await agent.starts(run)
        await agent.parts()
        await all_of_it.until(lambda: len(all_of_it.events("instance.running")) == 3)
        await nodes.until(lambda: [event["state"] for event in nodes.events()] == ["ready", "suspect"])
        await web.until(lambda: web.reported)
        (answer,) = web.events()
        assert answer["key"] == "web/deploy-1.0"
        assert {event["event"] for event in all_of_it.events()} >= {"instance.placed", "node.ready", "instance.running"}


async def test_an_end_has_the_result_of_its_attempt() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        await set_hook(made, "default/ends", there.url, events=["instance.*"])
        agent = await made.agent("n1")
        await made.submit("job", retries={"max": 1, "on": ["failed"]})
        for code, result in ((1, Result(problem=ResultProblem.NOT_JSON)), (0, Result(b'{"n":1}'))):
            run = agent.orders(Run)[-1]
            await agent.starts(run)
            await agent.ends(run, code, result=result)
        await there.until(lambda: there.events("instance.succeeded"))
        (end,) = there.events("instance.succeeded")
        assert end["result"] == {"size": 7, "data": {"n": 1}, "message": "", "reason": None}
        assert [event["result"] for event in there.events("instance.running")] == [None, None]


async def test_a_project_does_not_hear_of_others() -> None:
    async with inprocess_server(preempt_margin=1) as made, receiver() as there, telling(made):
        agent = await made.agent("n1", cpu=1_000)
        await set_hook(made, "web/all", there.url, events=["instance.*"])
        await made.submit("low", project="web", priority=1, resources={"cpu": 1})
        await agent.starts(agent.orders(Run)[0])
        await made.submit("high", project="secretive", priority=99, resources={"cpu": 1})
        await made.until(lambda: agent.orders(Stop))
        await agent.stops(agent.orders(Stop)[0])
        await there.until(lambda: there.events("instance.preempted"))
        (answer,) = there.events("instance.preempted")
        assert answer["state"] == "stopping" and "preempted by a workload of another project" in answer["message"]
        assert b"secretive" not in b"".join(other_answer.body for other_answer in there.reported)


async def test_a_message_is_signed_and_its_secret_is_nowhere() -> None:
    with structlog.testing.capture_logs() as lines:
        async with inprocess_server() as made, receiver(lambda answer: status(500)) as there:
            equip(made)
            async with telling(made):
                shown = await set_hook(made, "default/ends", there.url, secret=SECRET)
                assert shown["signed"] is True
                await made.submit("job")
                await made.post("/v1/workloads/default/job/cancel", {})
                await there.until(lambda: len(there.reported) >= 2)
                for report in there.reported[:2]:
                    at, digest = (part.partition("=")[2] for part in report.headers["roost-signature"].split(","))
                    expected = hmac.new(SECRET.encode(), at.encode() + b"." + report.body, sha256).hexdigest()
                    assert digest == expected
                again = await set_hook(made, "default/ends", there.url)
                assert again["signed"] is True, "set again, it keeps its secret"
                answers = [again, shown, await made.get("/v1/hooks"), await made.get("/v1/audit")]
                assert SECRET not in json.dumps(answers) and SECRET not in repr(lines)
                stored = made.engine.state.opaque_records
                assert SECRET.encode() not in b"".join(value for item in stored.values() for value in item.values())
                assert "hook default/ends" in json.dumps(answers[3])
                await set_hook(made, "default/ends", there.url, secret=None)
                assert (await hook_of(made, "default/ends"))["signed"] is False


async def test_it_is_tried_again_until_it_is_taken() -> None:
    answers = [status(503), status(503), OK]
    async with inprocess_server() as made, receiver(lambda answer: answers.pop(0)) as there:
        equip(made)
        async with telling(made):
            await set_hook(made, "default/ends", there.url, events=["workload.finished"])
            await made.submit("job")
            await made.post("/v1/workloads/default/job/cancel", {})
            await there.until(lambda: len(there.reported) == 3)
            assert len({report.headers["roost-delivery"] for report in there.reported}) == 1, (
                "the same event, the same id"
            )
            await there.until(lambda: made.hooks.channels["default/ends"].counts.delivered)
            found = await hook_of(made, "default/ends")
            assert (found["delivered"], found["failed"], found["waiting"], found["last_code"]) == (1, 2, 0, 204)
            assert found["last_error"] == "it answers with status 503"


async def test_events_of_one_object_come_in_order_though_some_fail() -> None:
    failures = iter([status(500), OK, status(500), OK, OK, status(503), OK])
    async with inprocess_server() as made, receiver(lambda answer: next(failures, OK)) as there:
        equip(made)
        async with telling(made):
            agent = await made.agent("n1")
            await set_hook(made, "default/all", there.url, events=["instance.*"])
            for number in range(4):
                await made.submit(f"job-{number}")
            for run in agent.orders(Run):
                await agent.starts(run)
                await agent.ends(run)
            await there.until(lambda: made.hooks.channels["default/all"].counts.delivered == 4 * 4)
            for number in range(4):
                states = [event["state"] for event in there.events() if event["workload"] == f"job-{number}"]
                order = list(dict.fromkeys(states))
                assert order == ["queued", "placed", "running", "succeeded"]


async def test_redirects_are_not_followed_and_huge_answers_are_cut() -> None:
    def endless(report: Reported) -> bytes:
        return b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (8 << 20)

    async with inprocess_server() as made, receiver() as elsewhere, receiver(endless) as huge:
        async with receiver(lambda answer: status(302, f"Location: {elsewhere.url}\r\n")) as moved, telling(made):
            await set_hook(made, "default/moved", moved.url)
            tried = await made.post("/v1/projects/default/hooks/moved/test")
            assert (tried["ok"], tried["code"]) == (False, 302) and "not followed" in tried["message"]
            await set_hook(made, "default/huge", huge.url)
            tried = await made.post("/v1/projects/default/hooks/huge/test")
            assert tried["ok"] is True
            assert [report.event["event"] for report in (*moved.reported, *huge.reported)] == ["ping", "ping"]
            assert not elsewhere.reported


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 50, b"x" * 100_000])
async def test_odd_answers_are_failures(answer: bytes) -> None:
    async with inprocess_server() as made, receiver(lambda report: answer) as there, telling(made):
        await set_hook(made, "default/odd", there.url)
        tried = await made.post("/v1/projects/default/hooks/odd/test")
        assert tried["ok"] is False and tried["code"] is None and tried["message"]


async def test_an_end_has_the_outputs_of_its_attempt() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        await set_hook(made, "default/ends", there.url, events=["instance.*"])
        agent = await made.agent("n1")
        await made.submit("job")
        (run,) = agent.orders(Run)
        await agent.starts(run)
        files, gap = FileSet("sha256:" + "0" * 64, 2, 20), OutputGap(OutputProblem.MISSING, "*.xml")
        await agent.ends(run, outputs=Outputs(files, (gap,)))
        await there.until(lambda: there.events("instance.succeeded"))
        (end,) = there.events("instance.succeeded")
        missing = {"path": "*.xml", "problem": "missing", "required": False, "message": "no file matches"}
        summary = {"digest": files.digest, "files": 2, "size": 20, "gaps": [missing], "gaps_count": 1}
        assert end["outputs"] == summary and end["result"] is None
        assert [event["outputs"] for event in there.events("instance.running")] == [None]


async def test_a_result_is_reported_by_the_next_server_too() -> None:
    memory = Memory()
    async with inprocess_server(MemoryStore(memory)) as made:
        equip(made)
        await set_hook(made, "default/ends", "http://127.0.0.1:9/", events=["instance.succeeded"])
        agent = await made.agent("n1")
        await made.submit("job")
        (run,) = agent.orders(Run)
        await agent.ends(run, result=Result(b"[1]"))
    async with receiver() as there, inprocess_server(MemoryStore(memory)) as made:
        equip(made)
        await set_hook(made, "default/ends", there.url, events=["instance.succeeded"])
        async with telling(made):
            await there.until(lambda: there.events("instance.succeeded"))
            assert there.events("instance.succeeded")[0]["result"]["data"] == [1]


async def test_after_a_restart_nothing_is_lost() -> None:
    memory = Memory()
    async with receiver() as there:
        async with inprocess_server(MemoryStore(memory)) as made:
            equip(made)
            async with telling(made):
                await set_hook(made, "default/ends", there.url)
                await made.submit("first")
                await made.post("/v1/workloads/default/first/cancel", {})
                await there.until(lambda: there.reported)
                await made.hooks.leave()
                there.gate.clear()  # from now on no receiver answers
                agent = await made.agent("n1")
                for name in ("ran", "waits"):
                    await made.submit(name, resources={"cpu": 4})
                await made.post("/v1/workloads/default/waits/cancel", {})
                (run,) = agent.orders(Run)
                await agent.starts(run)
                await agent.ends(run, code=1)
                await there.until(lambda: len(there.reported) > 1)
        there.reported.clear()
        there.gate.set()
        async with inprocess_server(MemoryStore(memory)) as made:
            equip(made)
            async with telling(made):
                await there.until(lambda: len(there.events("workload.finished")) >= 2)
                await there.until(lambda: not made.hooks.channels["default/ends"].waiting)
                assert {event["key"] for event in there.events("workload.finished")} >= {"default/ran", "default/waits"}
                (failed,) = there.events("instance.failed")
                assert (failed["key"], failed["exit_code"], failed["node"]) == ("default/ran.0", 1, "n1")
                assert made.hooks.channels["default/ends"].missing == ""


async def test_what_was_reported_is_not_repeated_by_the_next() -> None:
    memory = Memory()
    async with receiver() as there:
        async with inprocess_server(MemoryStore(memory)) as made, telling(made):
            agent = await made.agent("n1")
            await set_hook(made, "*/ends", there.url, events=["instance.*"])
            await made.submit("job")
            await agent.starts(agent.orders(Run)[0])
            await there.until(lambda: there.events("instance.running"))
            await there.until(lambda: not made.hooks.channels["*/ends"].waiting)
            await made.hooks.leave()
        there.reported.clear()
        async with inprocess_server(MemoryStore(memory)) as made, telling(made):
            await made.submit("other")
            await made.post("/v1/workloads/default/other/cancel", {})
            await set_hook(made, "*/ping", there.url, events=["workload.finished"])
            await made.submit("another")
            await made.post("/v1/workloads/default/another/cancel", {})
            await there.until(lambda: there.events("workload.finished"))
            assert {event["workload"] for event in there.events("workload.finished")} == {"another"}, (
                "not from before it"
            )
            assert not [event for event in there.events() if event["state"] == "running"]


async def test_a_hook_that_is_removed_or_disabled_gets_nothing() -> None:
    async with inprocess_server() as made, receiver() as there, receiver() as other, telling(made):
        await set_hook(made, "default/gone", there.url)
        await set_hook(made, "default/off", there.url, enabled=False)
        await set_hook(made, "default/stays", other.url)
        assert (await made.client.delete("/v1/projects/default/hooks/gone")).status_code == 204
        await made.submit("job")
        await made.post("/v1/workloads/default/job/cancel", {})
        await other.until(lambda: other.reported)
        assert not there.reported
        assert (await made.client.delete("/v1/projects/default/hooks/gone")).status_code == 404
        assert [item["name"] for item in (await made.get("/v1/hooks"))["items"]] == ["off", "stays"]


@pytest.mark.parametrize(
    ("key", "fields", "path", "message"),
    [
        ("default/x", {"url": "ftp://h/"}, "url", "is not like https://HOST/PATH"),
        ("default/x", {"url": "http://a:b@h/"}, "url", "no password"),
        ("default/x", {"url": "http://h/\u00e4"}, "url", "ASCII"),
        ("default/x", {"url": "http://169.254.169.254/latest"}, "url", "metadata"),
        ("default/x", {"url": "http://[::ffff:169.254.1.1]/"}, "url", "link-local"),
        ("default/x", {"url": "http://h/", "events": ["failed"]}, "events[0]", "instance.failed"),
        ("default/x", {"url": "http://h/", "events": []}, "events", "at least one"),
        ("default/x", {"url": "http://h/", "events": ["node.lost"]}, "events", "nodes belong to no project"),
        ("default/x", {"url": "http://h/", "workload": "a/b"}, "workload", "NAME or PREFIX*"),
        ("*/x", {"url": "http://h/", "workload": "b"}, "workload", "PROJECT/NAME"),
        ("default/x", {"url": "http://h/", "secret": "short"}, "secret", "8 to 256"),
        ("default/x", {"url": "http://h/", "colour": "red"}, "colour", "no such field"),
        ("default/-x", {"url": "http://h/"}, "name", "a name is made of"),
    ],
)
async def test_what_cannot_work_is_refused(key: str, fields: dict[str, Any], path: str, message: str) -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        refused = await set_hook(made, key, expect=422, **fields)
        assert refused["path"] == path and message in refused["message"]
        assert made.snapshot() == before and not made.engine.state.opaque_records.get("hook")


async def test_the_servers_own_host_is_refused_unless_allowed() -> None:
    async with inprocess_server() as made:
        made.hooks.destinations = Destinations()
        for host in ("127.0.0.1", "[::1]", "localhost", "127.1.2.3"):
            refused = await set_hook(made, "default/x", f"http://{host}:1/", expect=422)
            assert "--webhook-allow" in refused["message"]


async def test_hooks_are_bounded_in_number() -> None:
    async with inprocess_server() as made:
        for number in range(200):
            await set_hook(made, f"default/h{number}", "https://h.example/")
        assert (await set_hook(made, "default/one-more", "https://h.example/", expect=409))["code"] == "too_many"


async def test_metrics_count_what_became_of_events() -> None:
    async with inprocess_server() as made, receiver() as there, telling(made):
        await set_hook(made, "default/ends", there.url)
        await made.submit("job")
        await made.post("/v1/workloads/default/job/cancel", {})
        await there.until(lambda: made.hooks.channels.get("default/ends") and there.reported)
        await there.until(lambda: not made.hooks.channels["default/ends"].waiting)
        page = (await made.client.get("/metrics")).text
        assert 'roost_hook_events_total{hook="default/ends",outcome="delivered"} 1.0' in page
        assert 'roost_hook_waiting{hook="default/ends"} 0.0' in page


async def test_a_secret_of_an_older_key_is_sealed_again() -> None:
    old, new = os.urandom(32), os.urandom(32)
    async with inprocess_server() as made:
        made.hooks.seal = made.secrets.seal = Seal(old)
        await set_hook(made, "default/ends", "https://h.example/", secret=SECRET)
        before = made.engine.state.opaque_records["hook"]["default/ends"]
        made.hooks.seal = made.secrets.seal = Seal(new, old)
        assert await made.post("/v1/secrets/reseal") == {"resealed": 1, "unreadable": []}
        assert made.engine.state.opaque_records["hook"]["default/ends"] != before
        assert await made.post("/v1/secrets/reseal") == {"resealed": 0, "unreadable": []}


def test_the_fields_of_an_event_are_as_documented() -> None:
    assert WebhookEvent.__struct_fields__ == (
        "id", "event", "at_ms", "revision", "kind", "key", "project", "workload", "index", "state", "before", "ended",
        "message", "reason", "attempt", "node", "exit_code", "signal", "version", "counts", "result", "outputs",
        "usage",
    )  # fmt: skip
