"""Several servers: a controller is served by any of them, and goes on when its leader is killed or its line is cut."""

import threading
from pathlib import Path
from typing import Any

import pytest
from roost_lab.components import postgres

from roost.client.config import read_config
from roost.client.controller import Controller
from roost.wire import controller_pb2 as pb
from tests.cli.serving import up, wait_until
from tests.e2e.proxy import Proxy
from tests.failover.cluster import TOKEN, Cluster, Server

LINES = 500


class Following(threading.Thread):
    """One action that is followed, on a thread of its own."""

    def __init__(self, controller: Controller, document: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._controller = controller
        self._document = document
        self.log = b""
        self.stages: list[Any] = []
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for frame in self._controller.run(self._document):
                self.stages += frame.stages
                if frame.log.data:
                    assert frame.log.offset == len(self.log), (frame.log.offset, len(self.log))
                    self.log += frame.log.data
                if frame.HasField("result"):
                    self.result = frame.result
        except Exception as error:
            self.error = error

    def check(self) -> None:
        self.join(90)
        assert self.error is None and self.result is not None, (self.error, self.stages)
        assert self.log == b"".join(b"line %d\n" % number for number in range(1, LINES + 1))
        assert self.result.state == "succeeded"
        states = [stage.state for stage in self.stages]
        assert states[0] == "queued" and states[-1] == "succeeded" and states.count("running") == 1, states
        lines = [(stage.revision, stage.state) for stage in self.stages if stage.revision]
        assert len(lines) == len(set(lines)) and lines == sorted(lines, key=lambda line: line[0]), lines


def talker(name: str) -> dict[str, Any]:
    return {"name": name, "command": f"for i in $(seq {LINES}); do echo line $i; sleep 0.01; done"}


def address_of(server: Server) -> str:
    """Of one server: each knows its own from what it says of itself."""
    with server.client() as client:
        items = {item.name: item for item in client.servers.list().items}
        assert server.name in items
        port = int(server.url.rpartition(":")[2]) + 2
        return next((controller for controller in client.status().controllers if controller.endswith(f":{port}")), "")


def test_the_leader_is_killed_and_nothing_is_missing() -> None:
    with postgres.running() as database, Cluster(database.dsn, servers=2) as cluster:
        cluster.add_agent("n1")
        with cluster.client() as client:
            addresses = client.status().controllers
            cluster.until(lambda: len(client.status().controllers) == 2, "both tell where controllers connect")
            addresses = client.status().controllers
        (standby,) = cluster.standbys()
        # Through the one that stands by first: what it cannot answer goes to the leader.
        ordered = sorted(addresses, key=lambda address: address != (address_of(standby) or addresses[-1]))
        with Controller(",".join(ordered), TOKEN) as controller:
            assert controller.schedule({"name": "first", "command": "true"})[0].name == "first"
            changed = {"name": "first", "command": "true", "priority": 60}
            assert controller.schedule(changed, apply=True)[0].name == "first"
            following = Following(controller, talker("talks"))
            following.start()
            seen: list[str] = []
            watching = threading.Thread(target=_watch, args=(controller, seen), daemon=True)
            watching.start()
            cluster.until(lambda: len(following.log) > 500 or following.error, "some of the log is here")
            assert following.error is None
            cluster.leader.end()
            following.check()
            assert controller.unschedule("default", "talks").state == "succeeded"
            wait_until(lambda: "default/talks.0 succeeded" in seen)
            with pytest.raises(Exception, match="nobody"):
                controller.unschedule("default", "nobody")


def _watch(controller: Controller, seen: list[str]) -> None:
    for frame in controller.watch(interval_ms=50, kinds=["instance"]):
        for change in frame.changes:
            if change.HasField("instance"):
                instance: pb.Instance = change.instance
                seen.append(f"{instance.project}/{instance.name}.{instance.index} {instance.state}")


def test_a_line_that_goes_dead_without_a_word_is_noticed_and_nothing_is_missing(tmp_path: Path) -> None:
    with up(tmp_path) as served:
        with served.client() as client:
            host, _, port = client.status().controllers[0].rpartition(":")
        config = read_config(served.config)
        with Proxy((host, int(port))) as proxy, Controller(proxy.address, config.token) as controller:
            following = Following(controller, talker("talks"))
            following.start()
            wait_until(lambda: len(following.log) > 500 or following.error is not None)
            proxy.cut()
            with served.client() as client:
                wait_until(lambda: client.workloads.get("default", "talks").state == "succeeded")
            assert following.result is None
            proxy.heal()
            following.check()
