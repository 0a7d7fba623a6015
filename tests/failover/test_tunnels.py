"""Commands inside runs through a server that does not lead, and what is left when servers are killed."""

import signal
from collections.abc import Iterator

import pytest
from roost_lab.components import postgres

from roost.client import Client
from roost.client.errors import Unreachable
from roost.model.tunnels import FrameKind, TunnelEnd
from tests.e2e.test_exec import everything, sleepers
from tests.failover.cluster import TOKEN, Cluster, Server

ECHO = ["sh", "-c", "cat; echo wrong >&2; exit 4"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with postgres.running() as store, Cluster(store.dsn, servers=2) as cluster:
        cluster.add_agent("n1")
        with cluster.client() as client:
            client.workloads.submit({"name": "job", "command": "sleep 600"})
            client.workloads.wait([("default", "job")], until="started", timeout_s=60)
        yield cluster


def only(server: Server) -> Client:
    return Client(server.url, TOKEN, server.ca.read_text())


def test_a_standby_passes_a_tunnel_on(cluster: Cluster) -> None:
    (standby,) = cluster.standbys()
    data = bytes(range(256)) * 1_000
    for server in (standby, cluster.leader):
        with only(server) as client:
            tunnel = client.tunnels.exec("default", "job", ECHO)
            tunnel.write(data[:100_000])
            tunnel.end_input()
            assert everything(tunnel) == (data[:100_000], b"wrong\n", TunnelEnd(code=4))


@pytest.mark.parametrize("killed", ["standby", "leader"])
def test_a_tunnel_ends_with_either_server_and_its_command_with_it(cluster: Cluster, killed: str) -> None:
    (standby,) = cluster.standbys()
    leader = cluster.leader
    with only(standby) as client:
        tunnel = client.tunnels.exec("default", "job", ["sh", "-c", "echo on; exec sleep 81818"])
        assert tunnel.read() == (FrameKind.OUTPUT, b"on\n")
        cluster.until(lambda: len(sleepers("81818")) == 1, "the command runs")
        (standby if killed == "standby" else leader).end(signal.SIGKILL)
        if killed == "standby":
            with pytest.raises(Unreachable):
                tunnel.read()
        else:
            end = everything(tunnel)[2]
            assert end is not None and end.reason == "lost"
        cluster.until(lambda: not sleepers("81818"), "the command has ended with its tunnel")
