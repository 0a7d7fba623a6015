"""A hundred replicas on ten nodes change their version while nodes are killed: a real server, agents over real gRPC."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from roost.bench.product import Product
from roost.client import Client
from roost.client.rolling import Standing
from roost.client.types import Change, Workload
from roost.model.states import HOLDING
from tests.e2e.pretended import Pretended

pytestmark = pytest.mark.serial

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
    """Somebody who sees every commit, and counts after each how many replicas are ready and how many hold room.

    Who went away with its node is not held against the update until it is ready again.
    """

    def __init__(self, client: Client, since: int) -> None:
        super().__init__(daemon=True)
        self.fewest, self.most, self.commits, self.lost = REPLICAS, 0, 0, 0
        self.trouble = ""
        self._follower = client.follow_changes(since=since, kinds=("instance",), workload="default/web")
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
                change = msgspec.json.decode(event.data, type=Change)
                if change.revision != revision:
                    self._count()
                    revision = change.revision
                self._take(change)
        except BaseException as error:  # told by whoever waits for this thread
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

    def _take(self, change: Change) -> None:
        if change.object is None:
            self._known.pop(change.key, None)
            self._away.discard(change.key)
            return
        view, before = change.object, self._known.get(change.key, {})
        self._known[change.key] = view
        stays = view["attempt"] == before.get("attempt") and view["state"] in ("running", "stopping")
        if before.get("ready") and not stays:  # nobody had told it to stop, and none ends by itself
            self._away.add(change.key)
            self.lost += 1
        elif view["ready"]:
            self._away.discard(change.key)

    def _count(self) -> None:
        self.commits += 1
        ready = sum(bool(view["ready"]) for view in self._known.values())
        self.fewest = min(self.fewest, ready + len(self._away))
        self.most = max(self.most, sum(view["state"] in HOLDING for view in self._known.values()))


@pytest.fixture
def product() -> Iterator[Product]:
    with Product(agents=0) as made:
        yield made


def watch(product: Product) -> Watcher:
    page = product.client.page("default", "web")
    watcher = Watcher(Client(product.client.url, product.admin_token), page.revision)
    for instance in product.client.instances("default", "web"):
        watcher.seen({name: getattr(instance, name) for name in ("index", "ready", "state", "attempt")})
    watcher.start()
    return watcher


def changed(product: Product, command: str) -> Workload:
    return product.client.submit(document(command), same_ok=True)


async def waited(product: Product, workload: Workload) -> Standing:
    """Until a change is over, with a client of its own: others go on asking meanwhile."""

    def wait() -> Standing:
        with Client(product.client.url, product.admin_token) as client:
            return client.wait_for_version(workload, DONE_S_MAX)

    return await asyncio.to_thread(wait)


async def until_done(product: Product, number: int) -> None:
    """Until so many are of the new version and available."""

    def look() -> bool:
        rollout = product.client.workload("default", "web").rollout
        return rollout is not None and rollout.done >= number

    async with asyncio.timeout(DONE_S_MAX):
        while not await asyncio.to_thread(look):
            await asyncio.sleep(0.01)


@pytest.mark.timeout(180)
async def test_a_hundred_replicas_change_while_nodes_are_killed(product: Product) -> None:
    nodes = Pretended(product.agents_address, lambda run: run.version == 3)
    try:
        token = product.client.create_join_token(uses=NODES).token
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
        standing = await waiting
        assert standing.well, standing.words
        watcher.end()
        assert watcher.fewest >= REPLICAS - AWAY, f"{watcher.fewest} in {watcher.commits} commits"
        assert watcher.most <= REPLICAS + SURGE
        assert watcher.commits > 10 and watcher.lost >= 10
        instances = product.client.instances("default", "web")
        assert [(each.index, each.version, each.ready) for each in instances] == [(n, 2, True) for n in range(REPLICAS)]

        watcher = watch(product)
        standing = await waited(product, changed(product, "crash"))
        assert not standing.well
        assert standing.words.startswith("rolled back to version 2: version 3 failed: its instances ended ")
        watcher.end()
        assert watcher.fewest >= REPLICAS - AWAY and watcher.most <= REPLICAS + SURGE
        instances = product.client.instances("default", "web")
        assert {(each.version, each.ready) for each in instances} == {(4, True)}
        assert [each.attempt for each in instances].count(instances[-1].attempt) > REPLICAS // 2
    finally:
        await nodes.end()
