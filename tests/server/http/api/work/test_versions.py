"""Versions over the API: what became of a submission, what each version was, what differs, and the ways back and on."""

from typing import Any

import pytest

from roost.model.protocol import Report
from roost.model.reasons.attempts import Preempted
from roost.model.reasons.reason import RolloutFailures
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.workload import Rollout
from roost.schema.reason_text import HIDDEN
from roost.server.auth.principal import Access, Redactor
from roost.server.views.work import rollout_view
from tests.server.inprocess_server import InprocessServer, Played, Stop, inprocess_server

ONE = {"name": "web", "kind": "service", "command": "serve 1", "count": 2, "resources": {"cpu": "100m"},
       "update": {"max_unavailable": 1, "healthy_after": 0}}  # fmt: skip
TWO = {**ONE, "command": "serve 2", "env": {"LEVEL": "debug", "A": "b"}}
PATH = "/v1/workloads/default/web"


async def applied(made: InprocessServer, document: dict[str, Any], expect: int = 200) -> dict[str, Any]:
    answer = await made.client.post("/v1/workloads?same_ok=true", json=document)
    assert answer.status_code == expect, answer.text
    reported: dict[str, Any] = answer.json()
    return reported


async def served(made: InprocessServer, agent: Played, state: str = "") -> dict[str, Any]:
    """The agent does what it is reported, until a rollout is in a state; none named: until nothing is left to do."""
    done: set[tuple[int, type]] = set()
    for _ in range(50):
        orders = [*agent.orders(Stop), *agent.orders()]
        new = [order for order in orders if (order.token, type(order)) not in done and _is_held(made, order.token)]
        for item in new:
            done.add((item.token, type(item)))
            await (agent.stops(item) if isinstance(item, Stop) else agent.starts(item))
        workload = made.engine.state.workloads["default/web"]
        if not new and (not state or (workload.rollout is not None and workload.rollout.state == state)):
            break
        revision = made.engine.state.revision
        if not new:
            await made.until(lambda revision=revision: made.engine.state.revision != revision)
    view: dict[str, Any] = await made.get(PATH)
    return view


def _is_held(made: InprocessServer, token: int) -> bool:
    return token in made.engine.state.allocated["n1"]


async def test_what_became_of_a_submission_is_reported() -> None:
    async with inprocess_server() as made:
        first = await applied(made, ONE, 201)
        again = await applied(made, ONE)
        other = await applied(made, TWO)
        assert [(item["result"], item["version"]) for item in (first, again, other)] == [
            ("created", 1), ("unchanged", 1), ("changed", 2),
        ]  # fmt: skip
        answer = await made.client.post("/v1/workloads/batch?same_ok=true", json=[TWO, {**ONE, "name": "new"}])
        assert [(item["name"], item["result"]) for item in answer.json()["items"]] == [
            ("web", "unchanged"), ("new", "created"),
        ]  # fmt: skip


async def test_what_must_exist_is_changed_and_never_made() -> None:
    async with inprocess_server() as made:
        before = made.snapshot()
        for path, document, field in (
            ("/v1/workloads", ONE, "name"),
            ("/v1/workloads/batch", [ONE], "name"),
            ("/v1/workloads/batch", [ONE, {**ONE, "name": "new"}], "[0].name"),
        ):
            answer = await made.client.post(f"{path}?must_exist=true", json=document)
            reported = answer.json()
            assert (answer.status_code, reported["code"], reported["path"]) == (404, "not_found", field)
        assert made.snapshot() == before
        await applied(made, ONE, 201)
        answer = await made.client.post("/v1/workloads?must_exist=true", json=TWO)
        assert (answer.status_code, answer.json()["result"], answer.json()["version"]) == (200, "changed", 2)
        answer = await made.client.post("/v1/workloads/batch?must_exist=true", json=[TWO])
        assert [item["result"] for item in answer.json()["items"]] == ["unchanged"]
        answer = await made.client.post("/v1/workloads?must_exist=perhaps", json=TWO)
        assert (answer.status_code, answer.json()["path"]) == (422, "must_exist")


async def test_what_was_planned_is_not_made_either_where_it_must_exist() -> None:
    async with inprocess_server() as made:
        plan = (await made.client.post("/v1/plans", json=[ONE])).json()
        before = made.snapshot()
        answer = await made.client.post(f"/v1/workloads?must_exist=true&plan={plan['token']}", json=ONE)
        assert (answer.status_code, answer.json()["code"]) == (409, "plan_stale"), answer.text
        assert made.snapshot() == before


async def test_what_cannot_change_is_refused_by_its_field() -> None:
    async with inprocess_server() as made:
        await applied(made, ONE, 201)
        before = made.snapshot()
        answer = await made.client.post("/v1/workloads?same_ok=true", json={"name": "web", "command": "true"})
        reported = answer.json()
        assert (answer.status_code, reported["code"], reported["path"]) == (409, "cannot_change", "kind")
        assert made.snapshot() == before


async def test_versions_tell_what_each_was_and_what_it_changed() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await applied(made, ONE, 201)
        await served(made, agent)
        await applied(made, TWO)
        page = await made.get(f"{PATH}/versions", diff="each")
        new, old = page["items"]
        assert (new["version"], new["change"], new["present"], new["rollout"]["state"]) == (
            2,
            "applied by root",
            True,
            "rolling",
        )
        assert (old["version"], old["change"], old["present"], old["instances"]) == (1, "submitted", False, 2)
        assert old["document"]["command"] == "serve 1" and old["diff"] == []
        assert new["diff"] == [
            "--- version 1", "+++ version 2", "@@ -1,5 +1,8 @@",
            "-command: serve 1", "+command: serve 2", " count: 2", "+env:", "+  A: b", "+  LEVEL: debug",
            " kind: service", " name: web", " resources:",
        ]  # fmt: skip
        view = await served(made, agent, "done")
        assert (view["version"], view["ready"], view["looping"], view["rollout"]["done"]) == (2, 2, 0, 2)
        assert {(instance["version"], instance["ready"], instance["crash_loop"]) for instance in view["instances"]} == {
            (2, True, False)
        }
        page = await made.get(f"{PATH}/versions", diff="2..1")
        assert page["diff"][3:5] == ["-command: serve 2", "+command: serve 1"]
        assert [(item["version"], item["instances"], item["diff"]) for item in page["items"]] == [
            (2, 2, []),
            (1, 0, []),
        ]


@pytest.mark.parametrize(
    ("diff", "status", "path", "sentence"),
    [
        ("1..9", 404, "", "version 9 of default/web is not known; those known are 1"),
        ("1-2", 422, "diff", "two versions, such as 1..3, or `each`"),
        ("..", 422, "diff", "two versions, such as 1..3, or `each`"),
        ("x" * 31, 422, "diff", ""),
    ],
)
async def test_what_cannot_be_compared(diff: str, status: int, path: str, sentence: str) -> None:
    async with inprocess_server() as made:
        await applied(made, ONE, 201)
        reported = await made.get(f"{PATH}/versions", expect=status, diff=diff)
        assert reported["path"] == path and sentence in reported["message"]


async def test_canaries_are_promoted() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        canary = {**ONE["update"], "canary": 1}  # type: ignore[dict-item]
        await applied(made, {**ONE, "update": canary}, 201)
        await served(made, agent)
        refused = await made.post(f"{PATH}/promote", expect=409)
        assert refused["code"] == "nothing_to_promote"
        await applied(made, {**TWO, "update": canary})
        view = await served(made, agent, "waiting")
        assert sorted(instance["version"] for instance in view["instances"]) == [1, 2]
        assert (await made.post(f"{PATH}/promote"))["rollout"]["promoted"] is True
        view = await served(made, agent, "done")
        assert {instance["version"] for instance in view["instances"]} == {2}
        audit = (await made.get("/v1/audit"))["items"]
        assert ("promote", "default/web") in {(item["what"], item["target"]) for item in audit}


async def test_an_operator_rolls_back() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await applied(made, ONE, 201)
        reported = await made.post(f"{PATH}/rollback", expect=404)
        assert reported["code"] == "no_such_version"
        await served(made, agent)
        await applied(made, TWO)
        await served(made, agent, "done")
        view = await made.post(f"{PATH}/rollback")
        assert (view["version"], view["change"]) == (3, "rolled back to version 1 by root")
        await served(made, agent, "done")
        view = await made.post(f"{PATH}/rollback", {"version": 2})
        assert (view["version"], view["change"]) == (4, "rolled back to version 2 by root")
        reported = await made.post(f"{PATH}/rollback", {"version": 9}, expect=404)
        assert reported["message"] == "default/web has no version 9 to go back to; those known are 1, 2, 3"
        for wrong in (0, -1, "one", 1 << 40):
            reported = await made.post(f"{PATH}/rollback", {"version": wrong}, expect=422)
            assert reported["path"] == "version"
        audit = (await made.get("/v1/audit"))["items"]
        assert [item["target"] for item in audit if item["what"] == "rollback"] == ["default/web"] * 2


async def test_a_replica_that_keeps_ending_is_seen_and_explained() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await applied(made, {**ONE, "count": 1, "restart": {"pause": 0.001, "pause_max": 0.001}}, 201)
        for number in range(5):
            await made.until(lambda number=number: len(agent.orders()) > number)
            await agent.starts(agent.orders()[number])
            await agent.ends(agent.orders()[number], 1)
        view = await made.get(PATH)
        assert (view["looping"], view["ready"]) == (1, 0)
        (instance,) = view["instances"]
        assert instance["crash_loop"] is True and instance["ready"] is False and instance["failures"] == 5
        assert "crash loop: 5 failures in a row" in str(await made.get(f"{PATH}/instances/0"))


async def test_a_replica_that_waits_for_the_disruption_budget_is_shown_as_such() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await applied(made, {**ONE, "count": 4}, 201)
        await served(made, agent)
        await applied(made, {**TWO, "count": 4})
        reported = await made.get(f"{PATH}/why", index=3)
        assert reported["message"].startswith(
            "default/web.3 is running on n1: started; it is to be updated to version 2 and waits: "
            "3 of 4 must stay available, and 3 are"
        )
        reported = await made.get(f"{PATH}/why", index=0)
        assert reported["message"].startswith("default/web.0 is stopping on n1: updated to version 2")


async def test_an_unhealthy_replica_is_shown_as_such() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await applied(made, {**ONE, "count": 1, "health": {"http": "/", "port": 80}}, 201)
        (run,) = agent.orders()
        await agent.says(Report(run.token, "running", ready=False, error="503"))
        (instance,) = (await made.get(PATH))["instances"]
        assert (instance["ready"], instance["health_message"]) == (False, "http /: 503")
        reported = await made.get(f"{PATH}/why", index=0)
        assert "it is not ready: http /: 503" in reported["message"]


def test_words_of_a_version_do_not_name_foreign_work() -> None:
    failed = RolloutFailures(2, 1, Preempted(InstanceRef("hidden", "covert", 0), 90, 10))
    rollout = Rollout("failed", 1, 1, 1, reason=failed)
    reported = rollout_view(rollout, Redactor(Access({"open": "viewer"})).visible)
    assert reported is not None and "covert" not in str(reported) and HIDDEN in reported.message
    assert "covert" in str(rollout_view(rollout, Redactor(Access({"*": "viewer"})).visible))
