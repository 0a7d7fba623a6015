"""The matrix of releases: servers, agents, keepers and stores of this release and of others, as real processes.

Each pair either works end to end, or refuses with a message that names both releases and what to do. A refusal changes
nothing that is stored, and the right release goes on where it was.
"""

import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components import postgres

from roost.cli.start.local_nodes import pids_of
from roost.client import Client
from roost.client.errors import ApiError
from tests.failover.cluster import Cluster
from tests.failover.releases import WIRE, Release, made_release, newest_tag, tagged_release, this_release

LEASE = ("--lease", "60000", "--no-controllers")  # what runs has to survive a change of release on a busy machine
LINES = 2_000
SCRIPT = "seq {lines}; while [ ! -e {end} ]; do sleep 0.05; done; echo the end"
WHOLE = b"".join(b"%d\n" % number for number in range(1, LINES + 1)) + b"the end\n"
UNSTABLE = ("roost.lock", "server.lock", "client.toml")  # of the server that runs, not of what is kept


@pytest.fixture(scope="module")
def this() -> Release:
    return this_release()


@pytest.fixture(scope="module", params=["previous", "next", *filter(None, [newest_tag()])])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release whose every number differs, and the newest one that has a tag."""
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "previous":
            yield made_release(folder, "0.0.9", -1)
        case "next":
            yield made_release(folder, "0.2.0", +1)
        case _:
            yield tagged_release(folder, request.param)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release that reads and writes the same stores, and whose messages differ."""
    folder = tmp_path_factory.mktemp("wire")
    yield made_release(folder, "0.1.9", +1, WIRE)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("is_server_this", [True, False], ids=["server-this", "server-other"])
def test_another_release_is_refused_and_nothing_is_lost(this: Release, other: Release, is_server_this: bool) -> None:
    right, wrong = (this, other) if is_server_this else (other, this)
    with cluster_of(right) as cluster, cluster.client() as client:
        submit(client, "first", cluster.folder / "go")
        agent = cluster.make_agent("n1")
        if right.differs(wrong, "agents"):
            agent.use(wrong.source)
            agent.start()
            cluster.until(lambda: names_both(agent.log(), right, wrong), "the agent says why it does not connect")
            cluster.until(lambda: names_both(cluster.servers[0].log(), right, wrong), "the server says it as well")
            assert (client.nodes.list(), state_of(client, "first")) == ([], "queued")
            agent.end(signal.SIGTERM)
        agent.use(right.source)
        agent.start()
        cluster.until(lambda: state_of(client, "first") == "running", "it runs")

        if right.differs(wrong, "records"):
            refuses_the_directory(cluster, right, wrong)
        cluster.until(lambda: cluster.is_ready("n1"), "the node is back")
        (cluster.folder / "go").touch()
        is_whole(cluster, client, "first")


def test_an_agent_is_changed_in_place_under_its_running_work(this: Release, wire: Release, tmp_path: Path) -> None:
    """The server first, then the agent: its keeper is of the release before, and what it runs goes on."""
    keeper = made_release(tmp_path / "keeper", "0.1.8", +1, ["agents", "keeper"])
    with cluster_of(this) as cluster, cluster.client() as client:
        installed = cluster.folder / "installed"
        install(installed, this.source)
        agent = cluster.make_agent("n1")
        agent.use(installed)
        agent.start()
        submit(client, "long", cluster.folder / "go")
        cluster.until(lambda: state_of(client, "long") == "running", "it runs")

        start_anew(cluster, wire)
        cluster.until(lambda: names_both(agent.log(), wire, this), "the agent of before says why it does not connect")
        install(installed, keeper.source)
        restart_agent_process(cluster, "n1")
        cluster.until(lambda: names_both(agent.log(), keeper, this), "an agent says that it needs another keeper")
        install(installed, wire.source)
        cluster.until(lambda: cluster.is_ready("n1"), "the right agent is started by itself")
        (cluster.folder / "go").touch()
        is_whole(cluster, client, "long")


def test_a_standby_of_another_release_forwards_nothing_and_takes_over(
    this: Release, wire: Release, tmp_path: Path
) -> None:
    later = made_release(tmp_path / "later", "0.2.0", +1)
    with postgres.running() as database:
        cluster = Cluster(database.dsn, servers=3, options=LEASE)
        first, second, third = cluster.servers
        second.use(wire.source)
        third.use(later.source)
        cluster.servers = [first]
        with cluster:
            cluster.servers = [first, second]
            second.start()
            with first.client() as leader, second.client() as standby:
                cluster.until(lambda: len(leader.servers.list().items) == 2, "it stands by")
                with pytest.raises(ApiError) as refused:
                    submit(standby, "job", cluster.folder / "go")
                assert refused.value.code == "version_mismatch"
                assert names_both(str(refused.value), this, wire), refused.value
                submit(leader, "job", cluster.folder / "go")
                cluster.until(lambda: state_of(standby, "job") == "queued", "reads are answered")

                third.start()
                assert third.wait() == 1, third.log()
                assert names_both(third.log(), this, later), third.log()
                first.end(signal.SIGTERM)
                cluster.until(second.leads, "the standby takes over")
                agent = cluster.make_agent("n1")
                agent.use(wire.source)
                agent.start()
                (cluster.folder / "go").touch()
                is_whole(cluster, standby, "job")


def cluster_of(release: Release) -> Cluster:
    cluster = Cluster("sqlite", servers=1, options=LEASE)
    cluster.servers[0].use(release.source)
    return cluster


def submit(client: Client, name: str, end: Path) -> None:
    command = ["/bin/sh", "-c", SCRIPT.format(lines=LINES, end=end)]
    client.workloads.submit({"name": name, "command": command, "resources": {"cpu": "100m"}})


def state_of(client: Client, name: str) -> str:
    return client.instances.get("default", name).state


def is_whole(cluster: Cluster, client: Client, name: str) -> None:
    """It has ended well in its first attempt, and every byte of its log is there."""
    cluster.until(lambda: state_of(client, name) == "succeeded", f"{name} has ended")
    assert client.instances.get("default", name).attempt == 1
    assert client.logs.read("default", name) == WHOLE


def names_both(text: str, one: Release, two: Release) -> bool:
    """A message for an operator: what there is, what is expected, and what to do."""
    does = ("install the same release", "start that release")
    return any(
        f"roost {one.version}" in line and f"roost {two.version}" in line and any(advice in line for advice in does)
        for line in text.splitlines()
    )


def refuses_the_directory(cluster: Cluster, right: Release, wrong: Release) -> None:
    """A server of another release does not start on a directory, and leaves every byte of it as it is."""
    (server,) = cluster.servers
    server.end(signal.SIGTERM)
    earlier, before = server.log(), contents(cluster.folder / server.name)
    server.use(wrong.source)
    server.start()
    assert server.wait() == 1, server.log()
    assert names_both(server.log().removeprefix(earlier), right, wrong), server.log()
    assert contents(cluster.folder / server.name) == before
    start_anew(cluster, right)


def install(at: Path, source: Path) -> None:
    at.unlink(missing_ok=True)
    at.symlink_to(source)


def start_anew(cluster: Cluster, release: Release) -> None:
    (server,) = cluster.servers
    server.end(signal.SIGTERM)
    server.use(release.source)
    server.start()
    cluster.until(server.leads, "it serves")


def restart_agent_process(cluster: Cluster, name: str) -> None:
    """The agent of a keeper ends, as when an operator restarts it; the keeper starts it again."""
    for pid in pids_of(cluster.folder / name):
        if b"roost.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)


def contents(directory: Path) -> dict[str, str]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name not in UNSTABLE]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
