"""How far a workload has come that was applied, as a waiting client sees it."""

from typing import Any

import msgspec
import pytest

from roost.client import Client
from roost.client.wait import readiness_of, standing_of
from roost.schema.feed import ChangeView
from roost.schema.reason_text import ReasonView
from roost.schema.rollouts import RolloutView
from roost.schema.work import WorkloadPage, WorkloadView
from tests.client.wires import answer, events, wire

BACK = {"change": "rolled back to version 1: so", "change_reason": ReasonView("rolled_back", {"version": 1})}


def web(version: int = 1, state: str = "", **fields: Any) -> WorkloadView:
    rollout = RolloutView(state=state, **fields.pop("rollout", {})) if state else None
    given = {"counts": {"running": 4}, "ready": 4, "looping": 0, "kind": "service"} | fields
    return WorkloadView(
        project="default",
        name="web",
        count=4,
        priority=50,
        submitted_ms=1,
        version=version,
        rollout=rollout,
        state="running",
        **given,
    )


@pytest.mark.parametrize(
    ("applied", "now", "message", "over", "well"),
    [
        (1, web(ready=1, counts={"running": 2, "starting": 1, "queued": 1}),
         "1 of 4 ready; 1 starting, 1 waiting", False, True),
        (1, web(), "4 of 4 ready", True, True),
        (1, web(ready=0, looping=1, counts={"queued": 1}), "0 of 4 ready; 1 waiting, 1 in a crash loop", True, False),
        (2, web(2, "rolling", rollout={"done": 2}, counts={"running": 3, "stopping": 1}),
         "2 of 4 of version 2 available; 1 stopping", False, True),
        (2, web(2, "rolling", looping=1), "0 of 4 of version 2 available; 1 in a crash loop", False, True),
        (2, web(2, "done", rollout={"done": 4}), "4 of 4 ready, version 2", True, True),
        (2, web(2, "waiting", rollout={"done": 1}),
         "1 canary of version 2 available; `roost promote` lets the others follow", True, True),
        (2, web(2, "failed", rollout={"message": "version 2 failed: so"}), "version 2 failed: so; it stays as it is",
         True, False),
        (2, web(3, "rolling", rollout={"done": 3}, **BACK),
         "going back: 3 of 4 of version 3 available", False, False),
        (2, web(3, "done", **BACK), "rolled back to version 1: so", True, False),
        (2, web(3, "rolling", change="applied"), "version 2 was overtaken by version 3", True, False),
        (1, web(finished_ms=5, message="asked for"), "running: asked for", True, False),
        (1, web(kind="job"), "running", False, True),
        (1, web(kind="vm"), "running", True, True),
    ],
)  # fmt: skip
def test_where_it_stands(applied: int, now: WorkloadView, message: str, over: bool, well: bool) -> None:
    status = standing_of(web(applied), now)
    assert (status.message, status.over, status.well) == (message, over, well)


@pytest.mark.parametrize(
    ("checked", "now", "message", "over", "well"),
    [
        (1, web(ready=3), "3 of 4 ready", False, True),
        (1, web(), "4 of 4 ready", True, True),
        (1, web(ready=3, looping=1), "3 of 4 ready; 1 in a crash loop", False, True),
        (2, web(2, "rolling", rollout={"done": 3}), "3 of 4 of version 2 available", False, True),
        (2, web(2, "waiting", rollout={"done": 1}), "1 of 4 of version 2 available", False, True),
        (2, web(2, "done", rollout={"done": 4}, ready=3), "3 of 4 ready, version 2", False, True),
        (2, web(2, "done", rollout={"done": 4}), "4 of 4 ready, version 2", True, True),
        (1, web(2, "done", change="applied"), "4 of 4 ready, version 2", True, True),
        (2, web(2, "failed", rollout={"message": "so"}), "so; it stays as it is", True, False),
        (2, web(3, "rolling", **BACK), "rolled back to version 1: so", True, False),
        (2, web(3, "done", **BACK), "rolled back to version 1: so", True, False),
        (3, web(3, "done", **BACK), "4 of 4 ready, version 3", True, True),
        (1, web(finished_ms=5, message="asked for"), "running: asked for", True, False),
    ],
)  # fmt: skip
def test_how_ready_it_is(checked: int, now: WorkloadView, message: str, over: bool, well: bool) -> None:
    status = readiness_of(web(checked), now)
    assert (status.message, status.over, status.well) == (message, over, well)


def test_the_end_of_a_workload_is_not_asked_for_again() -> None:
    """A change carries the workload as it is now: one list and one stream are all that a wait sends."""
    running = web(kind="job", counts={"running": 4})
    page = answer(msgspec.json.encode(WorkloadPage(revision=7, items=[running])))
    ended = msgspec.structs.replace(running, state="failed", finished_ms=9)
    change = ChangeView(8, "workload", "default/web", "failed", msgspec.to_builtins(ended))
    stream = events(b"id: 8\nevent: change\ndata: " + msgspec.json.encode(change) + b"\n\n")
    with wire([page], [stream]) as server, Client(server.url) as client:
        assert client.workloads.wait([("default", "web")], timeout_s=20) == [ended]
    assert [request.split(b" ")[1].partition(b"?")[0] for request in server.requests] == [
        b"/v1/workloads", b"/v1/changes",
    ]  # fmt: skip
