"""Copies over REST: how one is begun, asked for and ended, each refusal with its code, and the audit log."""

from typing import Any

import pytest

from roost.model.protocol import CopyReport
from roost.model.records.files import OutputGap, OutputProblem, Outputs
from tests.server.inprocess_server import InprocessServer, inprocess_server

ID = "0" * 32
PATH = "/v1/workloads/default/job/instances/0/copies/"


async def running(made: InprocessServer) -> int:
    agent = await made.agent()
    await made.submit()
    (run,) = await made.until(agent.orders)
    await agent.starts(run)
    await made.until(lambda: made.engine.state.instances["default/job.0"].state == "running")  # type: ignore[index]
    return int(run.token)


async def put(made: InprocessServer, body: Any = None, *, path: str = PATH + ID, expect: int = 200) -> Any:
    answer = await made.client.put(path, json=body or {})
    assert answer.status_code == expect, answer.text
    return answer.json()


async def test_a_copy_is_asked_for_until_it_is_done_and_then_ended() -> None:
    async with inprocess_server() as made:
        token = await running(made)
        assert await put(made, {"path": "logs"}) == {
            "state": "copying", "node": "n1", "path": "", "is_file": False, "digest": "", "files": 0, "size": 0,
            "gaps": [], "more_gaps": 0, "grown": [],
        }  # fmt: skip
        (order,) = made.copying.take("n1")
        assert (order.id, order.token, order.path, order.digest) == (ID, token, "logs", "")
        gap = OutputGap(OutputProblem.NOT_A_FILE, "pipe")
        report = CopyReport(ID, token, outputs=Outputs(None, (gap,), 2), place="logs", grown=("a",))
        await made.copying.reported("n1", report)
        done = await put(made, {"path": "logs"})
        assert (done["state"], done["path"], done["digest"], done["more_gaps"], done["grown"]) == (
            "done", "logs", "", 2, ["a"],
        )  # fmt: skip
        assert [(found["path"], found["problem"]) for found in done["gaps"]] == [("pipe", "not_a_file")]
        for _ in range(2):
            assert (await made.client.delete(PATH + ID)).status_code == 204
        assert made.copying.table.is_empty


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "field"),
    [
        ("0" * 31, {}, 422, "invalid", "copy"),
        (ID, {"path": "../x"}, 422, "invalid", "path"),
        (ID, {"path": "/etc/passwd"}, 422, "invalid", "path"),
        (ID, {"path": "a\nb"}, 422, "invalid", "path"),
        (ID, {"path": "x" * 2_000}, 422, "invalid", "path"),
        (ID, {"digest": "sha256:1"}, 422, "invalid", "digest"),
        (ID, {"name": "a/b"}, 422, "invalid", "name"),
        (ID, {"name": ".."}, 422, "invalid", "name"),
        (ID, {"is_file": True}, 422, "invalid", "name"),
        (ID, {"digest": "sha256:" + "1" * 64}, 404, "not_found", "digest"),
        (f"{ID}?wait=21", {}, 422, "invalid", "wait"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_field(
    path: str, body: Any, status: int, code: str, field: str
) -> None:
    async with inprocess_server() as made:
        await running(made)
        refused = await put(made, body, path=PATH + path, expect=status)
        assert (refused["code"], refused["path"]) == (code, field)
        assert made.copying.table.is_empty


async def test_what_does_not_run_is_a_clear_error() -> None:
    async with inprocess_server() as made:
        assert (await put(made, expect=404))["message"] == "there is no workload default/job"
        await made.submit()
        assert (await put(made, expect=404))["code"] == "not_running"
        other = PATH.replace("instances/0", "instances/7") + ID
        assert "instances 0 to 0, not 7" in (await put(made, path=other, expect=404))["message"]
        agent = await made.agent()
        (run,) = await made.until(agent.orders)
        assert (await put(made, expect=409))["params"] == {"instance": "default/job.0", "state": "placed"}
        await agent.ends(run)
        await made.until(lambda: made.engine.state.instances["default/job.0"].finished_ms)  # type: ignore[index]
        refused = await put(made, expect=409)
        assert (refused["code"], refused["params"]["state"]) == ("not_running", "succeeded")
        assert made.copying.table.is_empty
