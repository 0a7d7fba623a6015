"""Hooks of several servers on one store: only the leader tells, and the next one goes on where it ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.core.state.records import Settings
from roost.model.events import Cancel, PutRecords, Submit
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.webhook import Hook
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.leadership import Leadership
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.executor import Executor
from roost.server.feed.change_log import Watch
from roost.server.logs.hub import LogHub
from roost.server.pki.secrets import encode
from roost.server.webhooks.channel import RetryTiming
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.dispatcher import Hooks
from roost.stores.memory import Memory, MemoryStore
from tests.core.scene import job, wanted
from tests.server.receiver import receiver

LEAD = LeaderTiming(ttl_ms=300, renew_ms=60, retry_ms=20, store_outage_grace_ms=5_000)
QUICK = RetryTiming(first_ms=10, pause_ms_max=40)
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


class Server:
    """One of several."""

    def __init__(self, memory: Memory, name: str, store_s: float) -> None:
        clock, store = Clock(), MemoryStore(memory)
        identity = ServerIdentity(name, f"life-{name}", f"http://{name}", f"{name}:1")
        settings = Settings(lease_ms=1_000, lease_margin_ms=100, grace_ms=LEAD.grace_ms)
        perform = Executor(Watch(), LogHub(MemoryLogs(), MemoryObjects()))
        team = Leadership(store, identity, LEAD, clock.now_ms)
        self.engine = Engine(store, settings, perform, clock, leadership=team)
        self.hooks = perform.hooks = Hooks(
            self.engine, destinations=Destinations(["public", "127.0.0.0/8"]), timing=QUICK, store_s=store_s
        )
        self.tasks: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        await self.engine.open("")
        self.tasks = [asyncio.ensure_future(self.engine.run()), asyncio.ensure_future(self.hooks.run())]

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    async def end(self, *names: str) -> None:
        """Workloads that come and end."""
        for name in names:
            await self.engine.ask(lambda request, name=name: Submit(request, (wanted(job(name)),)))
            await self.engine.ask(lambda request, name=name: Cancel(request, f"default/{name}"))


@asynccontextmanager
async def two_servers(url: str, store_s: float = 0.0) -> AsyncIterator[tuple[Server, Server]]:
    """Two servers on one memory, the first leads; and a hook."""
    memory = Memory()
    one, two = Server(memory, "one", store_s), Server(memory, "two", store_s)
    try:
        await one.start()
        await until(lambda: one.engine.ready)
        hook = OpaqueRecord("hook", "default/ends", encode(Hook(url, ("workload.finished",))))
        await one.engine.ask(lambda request: PutRecords(request, (hook,)))
        await two.start()
        await until(lambda: two.engine.readable)
        yield one, two
    finally:
        for server in (one, two):
            await server.kill()
            await server.hooks.close()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.002)


async def observe(server: Server) -> None:
    """Let its loop look around now, and not in half a second."""
    server.hooks._wake.set()
    for _ in range(50):
        await asyncio.sleep(0)


async def test_only_the_leader_tells_and_a_new_one_goes_on() -> None:
    async with receiver() as there, two_servers(there.url) as (one, two):
        await one.end("a", "b")
        await there.until(lambda: len(there.reported) == 2)
        await until(lambda: two.engine.state.revision == one.engine.state.revision)
        there.gate.clear()
        await one.end("c", "d")
        await there.until(lambda: len(there.reported) == 4)
        await one.kill()  # it is unknown whether c and d have arrived
        there.gate.set()
        await until(lambda: two.engine.ready)
        await two.end("e")
        await there.until(lambda: {"c", "d", "e"} <= {event["workload"] for event in there.events()[4:]})
        ids = {event["workload"]: set() for event in there.events()}  # type: dict[str, set[str]]
        for event in there.events():
            ids[event["workload"]].add(event["id"])
        assert all(len(found) == 1 for found in ids.values()), "reported by another leader, it has the same id"


async def test_what_was_stored_is_not_repeated_by_the_next_leader() -> None:
    async with receiver() as there, two_servers(there.url, store_s=3_600) as (one, two):
        await one.end("a")
        await there.until(lambda: there.reported)
        await until(lambda: not one.hooks.channels["default/ends"].waiting)
        await until(lambda: two.engine.state.revision == one.engine.state.revision)
        await observe(two)
        assert not two.hooks.channels, "a standby sends nothing"
        await one.hooks.leave()
        assert one.engine.state.opaque_records["hook-position"]
        # The end of a workload has no revision: one that is ten seconds old may be reported once more.
        one.engine.let_go("two")
        await until(lambda: two.engine.ready)
        await until(lambda: not one.hooks.channels)
        await two.end("b")
        await there.until(lambda: "b" in [event["workload"] for event in there.events()])
        assert len({event["id"] for event in there.events()}) == 2


async def test_positions_are_stored_seldom_and_only_when_something_was_reported() -> None:
    async with receiver() as there, two_servers(there.url, store_s=0.0) as (one, _):
        await one.end("a")
        await there.until(lambda: there.reported)
        channel = one.hooks.channels["default/ends"]
        await until(lambda: not channel.waiting and not channel.changed)
        await until(lambda: one.hooks._stored["default/ends"] == one.hooks._seen)
        revision = one.engine.state.revision
        await observe(one)
        channel.changed = True  # a try that has failed, say
        await observe(one)
        assert not channel.changed
        assert one.engine.state.revision == revision, "a position that is stored is no reason to store one"
