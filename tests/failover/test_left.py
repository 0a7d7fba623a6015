"""A leader that leaves: its standby leads, and logs no traceback."""

import signal

import httpx
import pytest
from roost_lab.components import postgres

from tests.failover.cluster import TOKEN, Cluster


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_standby_whose_leader_leaves_logs_no_traceback(how: signal.Signals) -> None:
    with postgres.running() as database, Cluster(database.dsn, servers=2) as cluster:
        leader, (standby,) = cluster.leader, cluster.standbys()
        with leader.client() as client:
            client.workloads.submit({"name": "pending", "command": "true"})
        path, headers = "/v1/workloads/default/pending/instances/0/log/follow", {"authorization": f"Bearer {TOKEN}"}
        with httpx.stream("GET", f"{standby.url}{path}", headers=headers, timeout=60.0) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(("id:", "data:", "event:")), "it is followed through the standby"
            leader.end(how)
            assert "event: stopping" in list(lines)
            cluster.until(standby.leads, "the standby leads")
        with standby.client() as client:
            client.workloads.submit({"name": "later", "command": "true"})
        standby.end(signal.SIGTERM)
        assert "Traceback" not in standby.log()
        assert "never retrieved" not in standby.log()
