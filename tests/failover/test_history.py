"""The history of several servers: the leader is killed with its data, and the others answer the same to the byte."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components import etcd, postgres

from tests.failover.cluster import Cluster, Server

JOBS = 8


@pytest.fixture(params=["postgresql", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if request.param == "postgresql":
        with postgres.running() as server, Cluster(server.dsn, servers=2) as cluster:
            yield cluster
    else:
        options = ("--blobs", str(tmp_path / "blobs"))
        with etcd.Cluster() as members:
            with Cluster(f"etcd://{','.join(members.endpoints)}/roost", options=options) as cluster:
                yield cluster


def test_the_history_survives_the_leader_and_its_disk(cluster: Cluster) -> None:
    cluster.add_agent("n1")
    run(cluster, "before")
    killed = kill_the_leader(cluster)
    shutil.rmtree(cluster.folder / killed.name)
    run(cluster, "after")
    alive = [server for server in cluster.servers if server is not killed]
    with alive[0].client() as client:
        at = f"@{client.history.moment('0s').revision}"
    expect_the_same(cluster, alive, at)
    with alive[0].client() as client:
        names = [workload.name for workload in client.history.list()]
        assert sorted(names) == sorted(f"{when}-{number}" for when in ("before", "after") for number in range(JOBS))
        ends = [event for event in client.events.list(kind="workload") if event.what == "succeeded"]
        assert len(ends) == 2 * JOBS, "none is missing and none is there twice"
        assert not list(client.events.list(kind="history")), "there is no gap"
    killed.start()
    expect_the_same(cluster, cluster.servers, at)


def run(cluster: Cluster, when: str) -> None:
    names = [f"{when}-{number}" for number in range(JOBS)]
    with cluster.client(first=cluster.leader) as client:
        for name in names:
            client.workloads.submit({"name": name, "command": "true", "resources": {"cpu": "100m"}})
        cluster.until(
            lambda: all(client.instances.get("default", name).state == "succeeded" for name in names), "all have run"
        )


def kill_the_leader(cluster: Cluster) -> Server:
    """With kill -9, right after the last commit."""
    killed = cluster.leader
    killed.end()
    others = [server for server in cluster.servers if server is not killed]
    cluster.until(lambda: any(server.leads() for server in others), "a new leader")
    cluster.until(lambda: cluster.is_ready("n1"), "the node is back")
    return killed


def expect_the_same(cluster: Cluster, servers: list[Server], at: str) -> None:
    found: list[list[bytes]] = []

    def is_the_same() -> bool:
        found[:] = [answers(server, at) for server in servers]
        return all(other == found[0] for other in found)

    try:
        cluster.until(is_the_same, "all servers answer the same")
    except AssertionError:
        for answer, *others in zip(*(answers(server, at) for server in servers), strict=True):
            assert all(other == answer for other in others)
        raise


def answers(server: Server, at: str) -> list[bytes]:
    """History, events with their numbers in small pages, and a state of the past."""
    with server.client() as client:
        found: list[bytes] = []

        def ask(path: str, **query: str | int) -> bytes:
            found.append(client._transport.call("GET", f"/v1/{path}", query).body)
            return found[-1]

        for path in ("history", "events", "audit"):
            page = json.loads(ask(path, limit=7))
            while page.get("next"):
                page = json.loads(ask(path, limit=7, after=page["next"]))
            assert page.get("behind") is None, page
        for path in ("history/at", "workloads", "nodes"):
            ask(path, at=at)
        return found
