"""Logs while servers are killed and the lead is handed over: every log is byte-equal from every server.

ROOST_LOG_ROUNDS sets the number of kills and of hand-overs (default 2), ROOST_LOG_MB the size of the largest log.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components import etcd, postgres

from roost.client import Client
from roost.client.errors import LogIncomplete
from tests.failover.cluster import DEADLINE_S, TOKEN, Cluster

ROUNDS = int(os.environ.get("ROOST_LOG_ROUNDS", "2"))
LARGEST = int(os.environ.get("ROOST_LOG_MB", "5")) << 20
SIZES = {"tiny": 1 << 10, "small": 64 << 10, "medium": 1 << 20, "large": LARGEST}
LINE_BYTES = 16
CHUNKS = 16

SEPARATE = ("small", "medium")  # these write the same to a separate stderr

# Written in chunks while servers come and go; the last line comes when all of that is over.
SCRIPT = """
number=0
while [ $number -lt {chunks} ]; do
  seq -f %015.0f $((number * {lines} + 1)) $(((number + 1) * {lines}))
  seq -f %015.0f $((number * {lines} + 1)) $(((number + 1) * {lines})) >&2
  number=$((number + 1))
  [ -e {end} ] || sleep 0.5
done
while [ ! -e {end} ]; do sleep 0.2; done
echo the end
echo the end >&2
"""


@pytest.fixture(params=["sqlite", "memory", "postgresql", "etcd"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    match request.param:
        case "postgresql":
            with postgres.running() as server, Cluster(server.dsn) as cluster:
                yield cluster
        case "etcd":
            with etcd.Cluster() as members, Cluster(f"etcd://{','.join(members.endpoints)}/roost") as cluster:
                yield cluster
        case _:
            # A server that is alone has to be back within a lease, also on a busy machine.
            with Cluster(request.param, servers=1, options=("--lease", "60000")) as cluster:
                yield cluster


def test_every_log_is_byte_equal_from_every_server(cluster: Cluster) -> None:
    cluster.add_agent("n1")
    end = cluster.folder / "end"
    with cluster.client() as client:
        for name, size in SIZES.items():
            script = SCRIPT.format(chunks=CHUNKS, lines=size // LINE_BYTES // CHUNKS, end=end)
            fields = {"stderr": "separate"} if name in SEPARATE else {}
            command = ["/bin/sh", "-c", script if fields else f"exec 2>/dev/null; {script}"]
            client.workloads.submit({"name": name, "command": command, "resources": {"cpu": "100m"}, **fields})
        for name in SIZES:
            cluster.until(lambda name=name: client.instances.get("default", name).state == "running", f"{name} runs")
    for _ in range(ROUNDS):
        kill_the_leader(cluster)
        if len(cluster.servers) > 1:
            hand_over(cluster)
    end.touch()
    with cluster.client() as client:
        for name in SIZES:
            cluster.until(lambda name=name: is_finished(client, name), f"{name} has ended")
            assert client.instances.get("default", name).attempt == 1
    for server in cluster.servers:
        with server.client() as client:
            for name, size in SIZES.items():
                for stream in ("stdout", "stderr") if name in SEPARATE else ("stdout",):
                    log = b"".join(client.logs.pieces("default", name, stream=stream))
                    assert hashlib.sha256(log).digest() == hashlib.sha256(expected(size)).digest(), (
                        f"{stream} of {name} from {server.name}: {len(log):,} of {len(expected(size)):,} bytes"
                    )


def kill_the_leader(cluster: Cluster) -> None:
    killed = cluster.leader
    killed.end()
    if len(cluster.servers) > 1:
        cluster.until(lambda: any(server.leads() for server in cluster.servers if server is not killed), "a new leader")
    killed.start()
    is_back(cluster)


def hand_over(cluster: Cluster) -> None:
    before = cluster.leader
    with cluster.client() as client:
        client.servers.transfer_leader()
    cluster.until(lambda: any(server.leads() for server in cluster.servers if server is not before), "another leader")
    is_back(cluster)


def is_back(cluster: Cluster) -> None:
    with cluster.client() as client:
        cluster.until(lambda: len(client.servers.list().items) == len(cluster.servers), "all servers are back")
        cluster.until(lambda: client.nodes.get("n1").status == "ready", "the node is back")
        for name in SIZES:
            cluster.until(lambda name=name: client.instances.get("default", name).state == "running", f"{name} runs on")


def is_finished(client: Client, name: str) -> bool:
    return client.instances.get("default", name).state == "succeeded"


def expected(size: int) -> bytes:
    lines = size // LINE_BYTES // CHUNKS * CHUNKS
    return b"".join(b"%015d\n" % number for number in range(1, lines + 1)) + b"the end\n"


def test_a_follower_gets_every_byte_once_when_the_leader_is_killed(tmp_path: Path) -> None:
    """It goes on at another server from where it was, also where that server has to be sent the bytes again."""
    end, followed, messages = tmp_path / "end", tmp_path / "followed", tmp_path / "messages"
    size = SIZES["medium"]
    script = SCRIPT.format(chunks=CHUNKS, lines=size // LINE_BYTES // CHUNKS, end=end)
    with postgres.running() as store, Cluster(store.dsn) as cluster:
        cluster.add_agent("n1")
        with cluster.client() as client:
            command = ["/bin/sh", "-c", f"exec 2>/dev/null; {script}"]
            client.workloads.submit({"name": "job", "command": command, "resources": {"cpu": "100m"}})
        leader = cluster.leader
        servers = sorted(cluster.servers, key=lambda server: server is not leader)
        environment = {
            **os.environ, "ROOST_URL": ",".join(server.url for server in servers), "ROOST_TOKEN": TOKEN,
        }  # fmt: skip
        with followed.open("wb") as output, messages.open("wb") as errors:
            command = [sys.executable, "-m", "roost", "logs", "-f", "job"]
            follower = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
            try:
                cluster.until(lambda: followed.stat().st_size > 0, "it follows")
                assert followed.stat().st_size < size, "the leader is killed while bytes come"
                leader.end()
                cluster.until(lambda: any(server.leads() for server in servers[1:]), "a new leader")
                seen = followed.stat().st_size
                end.touch()
                assert follower.wait(DEADLINE_S) == 0, messages.read_text()
            finally:
                follower.kill()
        assert seen < followed.stat().st_size, "some came from the new leader"
        assert hashlib.sha256(followed.read_bytes()).digest() == hashlib.sha256(expected(size)).digest()


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_a_log_without_the_server_that_received_it_is_served_or_refused_with_its_name(
    shared: bool, tmp_path: Path
) -> None:
    options = ("--blobs", str(tmp_path / "blobs")) if shared else ()
    with postgres.running() as store, Cluster(store.dsn, options=options) as cluster:
        cluster.add_agent("n1")
        with cluster.client() as client:
            command = ["/bin/sh", "-c", "seq -f %015.0f 1 100000"]  # a full segment and a rest
            client.workloads.submit({"name": "job", "command": command, "resources": {"cpu": "100m"}})
            cluster.until(lambda: is_finished(client, "job"), "it has ended")
            size = len(client.logs.read("default", "job"))
        assert size == 1_600_000
        # The node drops its copy when all of it is sealed; only then a loss of the server is one.
        cluster.until(lambda: not list(cluster.folder.glob("**/logs/default~job~*")), "the node has released it")
        lost = cluster.leader
        lost.end()
        others = [server for server in cluster.servers if server is not lost]
        cluster.until(lambda: any(server.leads() for server in others), "a new leader")
        with others[0].client() as client:
            if shared:
                assert client.logs.read("default", "job") == b"".join(b"%015d\n" % line for line in range(1, 100_001))
            else:
                with pytest.raises(LogIncomplete, match=f"{lost.name}$") as refused:
                    client.logs.read("default", "job")
                assert refused.value.missing == size
