"""A hundred replicas on ten nodes change their version while nodes are killed: a real server, agents over real gRPC."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from roost_lab.bench.product import Product

from roost.client import Client
from roost.client.wait import RolloutStatus
from roost.model.states import ALLOCATED
from roost.schema.feed import ChangeView
from roost.schema.work import WorkloadView
from tests.e2e.fake_agents import FakeAgent

REPLICAS, NODES = 100, 10
AWAY, SURGE = 10, 5
DONE_S_MAX = 60.0


def document(command: str) -> dict[str, Any]:
    limits = {"max_unavailable": AWAY, "max_surge": SURGE, "healthy_after": 0.2, "failures": 5}
    return {
        "name": "web", "kind": "service", "command": command, "count": REPLICAS, "update": limits,
        "resources": {"cpu": 1}, "restart": {"pause": 0.2},
    }  # fmt: skip


class Watcher(threading.Thread):
    """A client that sees every commit, and counts after each how many replicas are ready and how many hold room.

    Who went away with its node is not held against the update until it is ready again.
    """

    def __init__(self, client: Client, since: int) -> None:
        super().__init__(daemon=True)
        self.fewest, self.most, self.commits, self.lost = REPLICAS, 0, 0, 0
        self.trouble = ""
        self._follower = client.changes.open(since=since, kinds=("instance",), workload="default/web")
        self._known: dict[str, dict[str, Any]] = {}
        self._away: set[str] = set()  # lost with a node, and not back yet
        self._stopping = threading.Event()

    def run(self) -> None:
        revision = 0
        try:
            while not self._stopping.is_set():
                event = self._follower.next(0.2)
                if event is None or event.name != "change":
                    assert event is None or event.name != "reset", "something was missed"
                    continue
                change = msgspec.json.decode(event.data, type=ChangeView)
                if change.revision != revision:
                    self._count()
                    revision = change.revision
                self._take(change)
        except BaseException as error:  # raised again where this thread is awaited
            self.trouble = repr(error)
        finally:
            self._follower.close()

    def end(self) -> None:
        self._stopping.set()
        self.join(10)
        assert not self.trouble, self.trouble

    def seen(self, view: dict[str, Any]) -> None:
        """What is there before the first change."""
        self._known[f"default/web.{view['index']}"] = view

    def _take(self, change: ChangeView) -> None:
        if change.object is None:
            self._known.pop(change.key, None)
            self._away.discard(change.key)
            return
        view, before = change.object, self._known.get(change.key, {})
        self._known[change.key] = view
        stays = view["attempt"] == before.get("attempt") and view["state"] in ("running", "stopping")
        if before.get("ready") and not stays:  # it was not ordered to stop, and none ends by itself
            self._away.add(change.key)
            self.lost += 1
        elif view["ready"]:
            self._away.discard(change.key)

    def _count(self) -> None:
        self.commits += 1
        ready = sum(bool(view["ready"]) for view in self._known.values())
        self.fewest = min(self.fewest, ready + len(self._away))
        self.most = max(self.most, sum(view["state"] in ALLOCATED for view in self._known.values()))


@pytest.fixture
def product() -> Iterator[Product]:
    with Product(agents=0) as made:
        yield made


def watch(product: Product) -> Watcher:
    page = product.client.workloads.page("default", "web")
    watcher = Watcher(Client(product.client.url, product.admin_token), page.revision)
    for instance in product.client.instances.list("default", "web"):
        watcher.seen({name: getattr(instance, name) for name in ("index", "ready", "state", "attempt")})
    watcher.start()
    return watcher


def changed(product: Product, command: str) -> WorkloadView:
    return product.client.workloads.submit(document(command), same_ok=True)


async def waited(product: Product, workload: WorkloadView) -> RolloutStatus:
    """Until a change is over, with a client of its own: others go on asking meanwhile."""

    def wait() -> RolloutStatus:
        with Client(product.client.url, product.admin_token) as client:
            return client.workloads.wait_for_version(workload, DONE_S_MAX)

    return await asyncio.to_thread(wait)


async def until_done(product: Product, number: int) -> None:
    """Until so many are of the new version and available."""

    def check() -> bool:
        rollout = product.client.workloads.get("default", "web").rollout
        return rollout is not None and rollout.done >= number

    async with asyncio.timeout(DONE_S_MAX):
        while not await asyncio.to_thread(check):
            await asyncio.sleep(0.01)


async def test_a_hundred_replicas_change_while_nodes_are_killed(product: Product) -> None:
    nodes = FakeAgent(product.agents_address, lambda run: run.version == 3)
    try:
        token = product.client.join_tokens.create(uses=NODES).token
        await nodes.join(token, [f"n{number}" for number in range(NODES)])
        assert (await waited(product, changed(product, "serve 1"))).well

        watcher = watch(product)
        updating = changed(product, "serve 2")
        waiting = asyncio.create_task(waited(product, updating))
        await until_done(product, 20)
        await nodes.kill("n3")
        await until_done(product, 40)
        await nodes.kill("n7")
        await nodes.start("n3")  # without what it ran
        status = await waiting
        assert status.well, status.message
        watcher.end()
        assert watcher.fewest >= REPLICAS - AWAY, f"{watcher.fewest} in {watcher.commits} commits"
        assert watcher.most <= REPLICAS + SURGE
        assert watcher.commits > 10 and watcher.lost >= 10
        instances = product.client.instances.list("default", "web")
        assert [(instance.index, instance.version, instance.ready) for instance in instances] == [
            (n, 2, True) for n in range(REPLICAS)
        ]

        watcher = watch(product)
        status = await waited(product, changed(product, "crash"))
        assert not status.well
        assert status.message.startswith("rolled back to version 2: version 3 failed: its instances ended ")
        watcher.end()
        assert watcher.fewest >= REPLICAS - AWAY and watcher.most <= REPLICAS + SURGE
        instances = product.client.instances.list("default", "web")
        assert {(instance.version, instance.ready) for instance in instances} == {(4, True)}
        assert [instance.attempt for instance in instances].count(instances[-1].attempt) > REPLICAS // 2
    finally:
        await nodes.end()
