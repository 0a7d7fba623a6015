"""Deletion over the API: a finished workload goes with its logs, and one that is not finished stays."""

from roost.model.keys import log_name
from tests.server.inprocess_server import inprocess_server

PATH = "/v1/workloads/default/job"


async def test_a_finished_workload_is_deleted_with_its_logs() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        log = log_name(run.workload, run.serial, run.index, run.attempt)
        made.logs.append(log, 0, b"bytes")
        await agent.ends(run, log_size=5)
        answer = await made.client.delete(PATH)
        assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
        assert (await made.client.get(PATH)).status_code == 404
        assert (await made.client.get(f"{PATH}/instances/0/log")).status_code == 404
        await made.until(lambda: made.logs.size(log) is None)
        audit = (await made.get("/v1/audit"))["items"]
        assert [(entry["what"], entry["target"]) for entry in audit][:1] == [("delete", "default/job")]
        assert (await made.client.delete(PATH)).status_code == 404


async def test_a_running_workload_is_refused_with_what_to_do() -> None:
    async with inprocess_server() as made:
        agent = await made.agent()
        await made.submit()
        (run,) = agent.orders()
        await agent.starts(run)
        before = made.snapshot()
        answer = await made.client.delete(PATH)
        report = answer.json()
        assert (answer.status_code, report["code"]) == (409, "not_finished")
        assert "cancel" in report["message"]
        assert made.snapshot() == before
