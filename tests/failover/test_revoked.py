"""A token that is revoked at the leader ends what is followed through a standby."""

import time

import httpx
from roost_lab.components import postgres

from tests.failover.cluster import Cluster

AT_ONCE_S = 8.0  # a silent stream looks at its token every 15 s by itself


def test_a_revoked_token_ends_a_stream_through_a_standby_at_once() -> None:
    with postgres.running() as database, Cluster(database.dsn, servers=2) as cluster:
        (standby,) = cluster.standbys()
        with cluster.leader.client() as client:
            token = client.tokens.create("reader", role="viewer", projects=["default"]).token
            client.workloads.submit({"name": "pending", "command": "true"})
            path = "/v1/workloads/default/pending/instances/0/log/follow"
            headers = {"authorization": f"Bearer {token}"}
            cluster.until(lambda: httpx.get(f"{standby.url}/v1/whoami", headers=headers).status_code == 200, "known")
            with httpx.stream("GET", f"{standby.url}{path}", headers=headers, timeout=60.0) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith(("id:", "data:", "event:"))
                client.tokens.delete("reader")
                revoked_s = time.monotonic()
                assert any(line == "event: stopping" for line in lines)
                assert time.monotonic() - revoked_s < AT_ONCE_S
