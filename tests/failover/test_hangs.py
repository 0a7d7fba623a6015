"""A leader that stops for a while finds itself fenced; a store that is away for a while stops nothing that runs."""

import signal
import time
from pathlib import Path

import pytest
from roost_lab.components.postgres import Postgres

from roost.client.errors import ApiError
from tests.components.etcd import Cluster as Members
from tests.failover.cluster import Cluster
from tests.failover.flow import Flow

STOPPED_S = 10.0
AWAY_S = 30.0
JOBS = 600


@pytest.mark.serial
def test_a_leader_that_was_stopped_finds_itself_fenced(store: str) -> None:
    with Cluster(store) as cluster:
        cluster.add_agent("n1")
        steady = _steady(cluster)
        flow = Flow(cluster, JOBS)
        flow.start()
        cluster.until(lambda: len(flow.accepted) > JOBS // 10, "jobs flow")
        old = cluster.leader
        old.send(signal.SIGSTOP)
        others = [server for server in cluster.servers if server is not old]
        began = time.monotonic()
        cluster.until(lambda: any(server.leads() for server in others), "another one leads")
        assert time.monotonic() - began <= 3.0
        _let_pass(STOPPED_S - (time.monotonic() - began))
        old.send(signal.SIGCONT)
        cluster.until(lambda: len(cluster.client().servers.list().items) == 3 and not old.leads(), "it stands by")
        assert '"no longer leading"' in old.log()
        _has_run_on(cluster, steady)
        flow.check()


def test_when_one_etcd_member_dies_nothing_changes_hands(members: Members) -> None:
    with Cluster(f"etcd://{','.join(members.endpoints)}/roost") as cluster:
        cluster.add_agent("n1")
        steady = _steady(cluster)
        flow = Flow(cluster, JOBS)
        flow.start()
        for number in range(len(members.endpoints)):
            cluster.until(lambda number=number: len(flow.accepted) > (number + 1) * JOBS // 10, "jobs flow")
            members.kill(number)
            _submitted(cluster, f"after-{number}")
            members.start_member(number)
            members.wait_for(number)
        _has_run_on(cluster, steady)
        flow.check()


@pytest.mark.serial
def test_when_all_of_etcd_is_away_for_a_while_everything_runs_on(members: Members) -> None:
    with Cluster(f"etcd://{','.join(members.endpoints)}/roost") as cluster:
        cluster.add_agent("n1")
        steady = _steady(cluster)
        flow = Flow(cluster, JOBS)
        flow.start()
        cluster.until(lambda: len(flow.accepted) > JOBS // 10, "jobs flow")
        for number in range(len(members.endpoints)):
            members.kill(number)
        _api_says_why(cluster)
        _let_pass(AWAY_S)
        for number in range(len(members.endpoints)):
            members.start_member(number)
        _submitted(cluster, "after")
        _has_run_on(cluster, steady)
        flow.check()


@pytest.mark.parametrize("away_s", [0.0, AWAY_S])
def test_when_postgresql_restarts_everything_runs_on(database: Postgres, away_s: float) -> None:
    with Cluster(database.dsn) as cluster:
        cluster.add_agent("n1")
        steady = _steady(cluster)
        flow = Flow(cluster, JOBS)
        flow.start()
        cluster.until(lambda: len(flow.accepted) > JOBS // 10, "jobs flow")
        database.stop("immediate")
        if away_s:
            _api_says_why(cluster)
            _let_pass(away_s)
        database.start()
        _submitted(cluster, "after")
        _has_run_on(cluster, steady)
        flow.check()


def _steady(cluster: Cluster) -> Path:
    """A job that must not be run twice, and that runs until it is ordered to end."""
    end = cluster.folder / "end"
    script = f"echo x >> {cluster.folder}/began; while [ ! -e {end} ]; do sleep 0.2; done"
    document = {"name": "steady", "command": ["/bin/sh", "-c", script], "resources": {"cpu": "100m"}, "fenced": True}
    with cluster.client() as client:
        client.workloads.submit(document)
        cluster.until(lambda: client.instances.get("default", "steady").state == "running", "the steady job runs")
    return end


def _has_run_on(cluster: Cluster, end: Path) -> None:
    end.touch()
    with cluster.client() as client:
        cluster.until(
            lambda: client.instances.get("default", "steady").state == "succeeded", "the steady job has ended"
        )
        instance = client.instances.get("default", "steady")
        story = "\n".join(f"{line.at_ms} {line.state} {line.node}: {line.message}" for line in instance.story)
        assert (instance.state, instance.attempt) == ("succeeded", 1), story
    assert (cluster.folder / "began").read_text() == "x\n"


def _submitted(cluster: Cluster, name: str) -> None:
    with cluster.client() as client:
        cluster.until(
            lambda: client.workloads.submit({"name": name, "command": "true"}, same_ok=True), "a job is taken in"
        )


def _api_says_why(cluster: Cluster) -> None:
    """503, and a sentence."""
    answer: list[ApiError] = []

    def refused() -> bool:
        with cluster.servers[0].client() as client:
            try:
                client.workloads.submit({"name": "refused", "command": "true"}, same_ok=True)
            except ApiError as error:
                answer.append(error)
        return bool(answer)

    cluster.until(refused, "the API refuses")
    assert answer[0].status == 503 and answer[0].message


def _let_pass(seconds: float) -> None:
    """The length of an outage: nothing is waited for but time itself."""
    time.sleep(max(0.0, seconds))
