"""What is revoked at the leader, at once and everywhere: a token, and the certificates of servers."""

import time
from pathlib import Path

import grpc
import httpx
from roost_lab.components import postgres

from roost.model.records.enrolment import SERVER_NAME, Bundle, read_bundle
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


def test_a_stolen_server_certificate_is_worth_nothing_once_it_is_revoked() -> None:
    with postgres.running() as database, Cluster(database.dsn, servers=2) as cluster:
        (standby,) = cluster.standbys()
        agents = {server.name: server for server in cluster.leader.client().servers.list().items}
        cluster.add_agent("n1")
        stolen = bundle_of(cluster.folder / standby.name / "server.pem")
        assert call_as(stolen, agents[cluster.leader.name].agents) is grpc.StatusCode.OK

        with standby.client() as client:
            assert client.servers.revoke_certificates().series == 1
            for server in cluster.servers:
                assert call_as(stolen, agents[server.name].agents) is grpc.StatusCode.UNAUTHENTICATED
            new = cluster.folder / standby.name / "server.pem"
            cluster.until(lambda: bundle_of(new).series == 1, "the server has issued a new one by itself")
            cluster.until(lambda: client.status().ready, "the standby forwards again")
            cluster.until(lambda: len(client.servers.list().items) == 2, "and stands by again")
            assert call_as(bundle_of(new), agents[cluster.leader.name].agents) is grpc.StatusCode.OK
            node = cluster.folder / "n1" / "certificate.pem"
            cluster.until(lambda: bundle_of(node).series == 1, "the node knows")
            client.workloads.submit({"name": "job", "command": "true"})
            client.workloads.wait([("default", "job")], timeout_s=60)
            assert client.instances.get("default", "job").state == "succeeded"


def bundle_of(path: Path) -> Bundle:
    return read_bundle(path.read_text(encoding="ascii"))


def call_as(bundle: Bundle, address: str) -> grpc.StatusCode:
    """How a server answers another one that has this certificate."""
    pair = (bundle.key.encode(), bundle.certificate.encode())
    credentials = grpc.ssl_channel_credentials(bundle.authority.encode(), *pair)
    options = (("grpc.ssl_target_name_override", SERVER_NAME), ("grpc.use_local_subchannel_pool", 1))
    with grpc.secure_channel(address, credentials, options=options) as channel:
        try:
            channel.unary_unary("/roost.server.v1.Servers/Status")(b"", timeout=30, wait_for_ready=True)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            return error.code()
        return grpc.StatusCode.OK
