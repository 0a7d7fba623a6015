"""Services over the API: where they are, who is ready, and what is not to be seen."""

from roost.core.lifecycle.restarts import CRASH_LOOP
from roost.model.protocol import Report
from tests.security.callers import caller, quiet_server
from tests.server.inprocess_server import inprocess_server

WEB = {"kind": "service", "count": 2, "ports": {"http": 0, "admin": 0}, "resources": {"cpu": "100m"}}


async def test_addresses_are_reported_by_port_and_readiness() -> None:
    async with inprocess_server() as made:
        agent = await made.agent(address="10.1.2.3")
        await made.submit("web", **WEB)
        await made.submit("job")
        first, second, *_ = [run for run in agent.orders() if run.workload == "default/web"]
        await agent.says(Report(first.token, "running"))
        await agent.says(Report(second.token, "running", ready=False, error="tcp: refused"))
        (answer,) = (await made.get("/v1/services"))["items"]
        assert (answer["name"], answer["count"], answer["ready"], answer["ports"]) == ("web", 2, 1, ["http", "admin"])
        ready, other = answer["addresses"]
        assert (ready["index"], ready["host"], ready["node"], ready["ready"], ready["version"]) == (
            0, "10.1.2.3", "n1", True, 1,
        )  # fmt: skip
        assert ready["ports"] == dict(zip(("http", "admin"), first.ports, strict=True))
        assert (other["index"], other["ready"]) == (1, False)
        only = await made.get("/v1/services/default/web", ready=True)
        assert [address["index"] for address in only["addresses"]] == [0]
        assert (await made.get("/v1/services", project="other"))["items"] == []


async def test_all_that_are_ready_are_counted_also_beyond_those_whose_addresses_are_reported() -> None:
    async with inprocess_server() as made:
        agent = await made.agent(cpu=100_000)
        await made.submit("web", kind="service", count=120, resources={"cpu": "100m"})
        for run in agent.orders():
            await agent.says(Report(run.token, "running"))
        answer = await made.get("/v1/services/default/web")
        assert (answer["ready"], len(answer["addresses"])) == (120, 100)


async def test_progress_of_a_change_is_reported_and_how_many_keep_ending() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        document = {"name": "web", "kind": "service", "command": "serve", "restart": {"pause": "1ms"}}
        await made.submit(**document)
        assert (await made.get("/v1/services/default/web"))["rollout"] == "rolling"
        for number in range(CRASH_LOOP):
            await made.until(lambda number=number: len(agent.orders()) > number)
            await agent.ends(agent.orders()[number], 1)
        answer = await made.get("/v1/services/default/web")
        assert (answer["ready"], answer["looping"]) == (0, 1)
        await made.client.post("/v1/workloads?same_ok=true", json={**document, "command": "serve better"})
        answer = await made.get("/v1/services/default/web")
        assert (answer["version"], answer["rollout"]) == (2, "rolling")


async def test_what_has_no_addresses_is_refused() -> None:
    async with inprocess_server() as made:
        await made.submit("job")
        assert (await made.get("/v1/services/default/job", expect=409))["code"] == "no_service"
        assert (await made.get("/v1/services/default/nobody", expect=404))["code"] == "not_found"
        assert (await made.get("/v1/services", expect=422, after="nonsense"))["path"] == "after"


async def test_services_come_in_pages_and_those_that_are_over_are_left_out() -> None:
    async with inprocess_server() as made:
        for number in range(5):
            await made.submit(f"web-{number}", **WEB)
        await made.post("/v1/workloads/default/web-2/cancel")
        found: list[str] = []
        after = ""
        for _ in range(10):
            page = await made.get("/v1/services", limit=2, **({"after": after} if after else {}))
            found += [item["name"] for item in page["items"]]
            after = page["next"]
            if not after:
                break
        assert found == ["web-4", "web-3", "web-1", "web-0"]


async def test_foreign_services_are_not_there() -> None:
    async with quiet_server() as made:
        await made.submit("covert", project="hidden", **WEB)
        await made.submit("own", project="open", **WEB)
        principal = await caller(made, "viewer", "open")
        assert [item["name"] for item in (await principal.get("/v1/services"))["items"]] == ["own"]
        assert (await principal.get("/v1/services", project="hidden"))["items"] == []
        assert (await principal("GET", "/v1/services/hidden/covert")).status_code == 404
        assert (await principal("GET", "/v1/workloads/hidden/covert/versions")).status_code == 404
