"""The client against a real server that has no nodes: everything waits, and everything can be asked."""

import threading
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from roost.client import ApiError, Client, WaitTimedOut
from roost.schema.feed import ChangeView
from tests.cli.serving import Served
from tests.client.wires import answer, events, wire

NUMBERS = count()


@pytest.fixture
def name() -> Iterator[str]:
    yield f"work-{next(NUMBERS)}"


def test_what_was_submitted_is_there(client: Client, name: str) -> None:
    submitted = client.workloads.submit({"name": name, "command": ["echo", "hi"], "count": 3, "priority": 70})
    assert (submitted.key, submitted.state, submitted.counts) == (f"default/{name}", "queued", {"queued": 3})
    workload = client.workloads.get("default", name)
    assert workload.document["command"] == ["echo", "hi"]
    assert workload.needs == {"cpu_milli": 1_000}
    assert [instance.index for instance in workload.instances] == [0, 1, 2]
    assert [instance.state for instance in client.instances.list("default", name)] == ["queued"] * 3
    assert client.instances.get("default", name, 2).state == "queued"
    assert not workload.is_over
    assert not client.instances.get("default", name, 2).is_over


def test_the_same_again_is_no_conflict_if_one_says_so(client: Client, name: str) -> None:
    document = {"name": name, "command": "true"}
    assert client.workloads.submit(document).result == "created"
    assert client.workloads.submit(document, same_ok=True).result == "unchanged"
    with pytest.raises(ApiError) as caught:
        client.workloads.submit(document)
    assert (caught.value.status, caught.value.code) == (409, "name_in_use")


def test_a_batch_is_all_or_nothing(client: Client, name: str) -> None:
    good, bad = {"name": name, "command": "true"}, {"name": f"{name}-2", "command": "true", "count": -1}
    with pytest.raises(ApiError) as caught:
        client.workloads.submit_batch([good, bad])
    assert (caught.value.status, caught.value.path) == (422, "[1].count")
    assert client.workloads.list(project="default", name=name) == []
    assert [workload.name for workload in client.workloads.submit_batch([good, {**bad, "count": 1}])] == [
        name,
        f"{name}-2",
    ]


def test_lists_go_over_pages(client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.client.namespace.PAGE", 2)
    client.workloads.submit_batch(
        [{"name": f"{name}-{index}", "project": name, "command": "true"} for index in range(5)]
    )
    assert [workload.name for workload in client.workloads.list(project=name)] == [
        f"{name}-{item}" for item in (4, 3, 2, 1, 0)
    ]
    assert len(client.workloads.list(project=name, limit=3)) == 3
    assert client.workloads.list(project=name, state="running") == []
    client.workloads.submit({"name": name, "command": "true", "count": 5})
    assert [instance.index for instance in client.instances.list("default", name)] == [0, 1, 2, 3, 4]


def test_why_it_waits(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true", "count": 2})
    why = client.workloads.why("default", name, 1)
    assert (why.instance, why.state, why.code) == (f"default/{name}.1", "queued", "no_nodes")
    assert "no node is online" in why.message


def test_cancel_and_retry(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true", "count": 2})
    assert client.workloads.cancel("default", name, 1).state == "queued"
    assert client.instances.get("default", name, 1).state == "cancelled"
    assert client.workloads.cancel("default", name).state == "cancelled"
    assert client.workloads.cancel("default", name).state == "cancelled"
    assert client.workloads.retry("default", name).counts == {"queued": 2}


def test_unknown_things_are_not_found(client: Client) -> None:
    for ask in (
        lambda: client.workloads.get("default", "nobody"),
        lambda: client.workloads.why("default", "nobody"),
        lambda: client.workloads.cancel("default", "nobody"),
        lambda: client.logs.read("default", "nobody"),
        lambda: client.logs.follow("default", "nobody").piece(10),
        lambda: client.nodes.get("nobody"),
        lambda: client.nodes.drain("nobody", "10m"),
        lambda: client.nodes.uncordon("nobody"),
        lambda: client.nodes.delete("nobody"),
        lambda: client.workloads.wait([("default", "nobody")]),
    ):
        with pytest.raises(ApiError) as caught:
            ask()
        assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_a_wrong_token_is_refused(server: Served, client: Client) -> None:
    with pytest.raises(ApiError) as caught, Client(client.url, "a-wrong-token") as other:
        other.status()
    assert (caught.value.status, caught.value.code) == (401, "refused")


def test_status_counts(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true"})
    status = client.status()
    assert status.ready
    assert status.workloads["queued"] >= 1
    assert client.nodes.list() == []


def test_changes_are_reported_from_a_revision_on(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true"})
    since = client.workloads.page("default", name).revision
    client.workloads.cancel("default", name)
    change = next(client.changes.follow(since=since, kinds=("workload",), workload=f"default/{name}"))
    assert isinstance(change, ChangeView)
    assert (change.kind, change.key, change.what) == ("workload", f"default/{name}", "put")
    assert change.object is not None
    assert change.object["state"] == "cancelled"


def test_waiting_ends_when_it_is_over(server: Served, client: Client, name: str) -> None:
    client.workloads.submit_batch([{"name": name, "command": "true"}, {"name": f"{name}-2", "command": "true"}])

    def cancel_both() -> None:
        with server.client() as other:
            other.workloads.cancel("default", name)
            other.workloads.cancel("default", f"{name}-2")

    canceller = threading.Thread(target=cancel_both)
    canceller.start()
    done = client.workloads.wait([("default", name), ("default", f"{name}-2")], timeout_s=20)
    canceller.join()
    assert [workload.state for workload in done] == ["cancelled", "cancelled"]


def test_finished_work_is_not_waited_for(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true"})
    client.workloads.cancel("default", name)
    for until in ("finished", "running"):
        assert client.workloads.wait([("default", name)], until, timeout_s=20)[0].state == "cancelled"  # type: ignore[arg-type]


def test_waiting_has_an_end(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true"})
    for until in ("finished", "running"):
        with pytest.raises(WaitTimedOut, match=name):
            client.workloads.wait([("default", name)], until, timeout_s=0.1)  # type: ignore[arg-type]


def test_after_a_reset_it_is_looked_at_again() -> None:
    """A server that was away for long cannot tell what happened meanwhile: it might be just what is waited for."""
    waits = {"project": "default", "name": "x", "kind": "job", "count": 1, "priority": 50, "submitted_ms": 1}
    pages = [
        {"revision": 5, "items": [{**waits, "state": "running", "counts": {"running": 1}}]},
        {"revision": 90, "items": [{**waits, "state": "failed", "counts": {"failed": 1}, "finished_ms": 2}]},
    ]
    calls = [answer(msgspec.json.encode(page)) for page in pages]
    reset = events(b'id: 90-2\nevent: reset\ndata: {"revision":90,"message":"list again"}\n\n')
    with wire(calls, [reset, b""]) as server, Client(server.url) as client:
        assert client.workloads.wait([("default", "x")], timeout_s=20)[0].state == "failed"
    assert b"/v1/changes?since=5&kind=workload&workload=default%2Fx" in server.requests[1]


def test_run_to_end_gives_up_in_time_and_the_workload_stays(client: Client, name: str) -> None:
    with pytest.raises(WaitTimedOut):
        client.workloads.run_to_end({"name": name, "command": "true"}, timeout_s=0.1)
    assert client.workloads.get("default", name).state == "queued"


def test_the_log_of_what_never_ran_is_empty(client: Client, name: str) -> None:
    client.workloads.submit({"name": name, "command": "true"})
    assert client.logs.read("default", name) == b""
    with client.logs.follow("default", name) as log:
        assert log.piece(0.1) is None
        client.workloads.cancel("default", name)
        ending = log.piece(10)
    assert getattr(ending, "state", None) == "cancelled"
