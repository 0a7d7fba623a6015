"""Several engines on one store: one leads, the others mirror it; agents are kept while the store is away."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from roost.core.invariants import check, differences
from roost.core.replica import load
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.events import NodeConnected, Submit
from roost.model.protocol import Hello
from roost.model.records.node import Facts
from roost.ports.store import Change, Fenced, Unavailable, require
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.leadership import Leadership
from roost.server.engine.engine import Clock, Engine
from roost.stores.memory import Memory, MemoryStore
from tests.core.scene import job, wanted

TIMING = LeaderTiming(ttl_ms=300, renew_ms=60, retry_ms=20, store_outage_grace_ms=5_000)
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


AWAY = Unavailable("no server answers")


class Flaky(MemoryStore):
    """A store that can be away."""

    away = False

    async def commit(self, epoch: int, changes: Sequence[Change]) -> Any:
        return AWAY if self.away else await super().commit(epoch, changes)

    async def renew(self, epoch: int, successor: str = "") -> Any:
        return AWAY if self.away else await super().renew(epoch, successor)

    async def load(self) -> Any:
        return AWAY if self.away else await super().load()

    async def lead(self, identity: str, seen: Any = None) -> Any:
        return AWAY if self.away else await super().lead(identity, seen)


class Seen:
    """A performer that remembers."""

    def __init__(self) -> None:
        self.resets = 0
        self.reported: list[Change] = []

    async def act(self, state: State, done: Step) -> None:
        self.reported += done.changes

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        self.reported += changes

    def reset(self) -> None:
        self.resets += 1


class Server:
    """One of several."""

    def __init__(self, memory: Memory, name: str) -> None:
        self.store, self.seen, clock = Flaky(memory), Seen(), Clock()
        identity = ServerIdentity(name, f"life-{name}", f"http://{name}", f"{name}:1")
        settings = Settings(lease_ms=1_000, lease_margin_ms=100, grace_ms=TIMING.grace_ms)
        team = Leadership(self.store, identity, TIMING, clock.now_ms)
        self.engine = Engine(self.store, settings, self.seen, clock, leadership=team)
        self.running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.engine.open("")
        self.running = asyncio.ensure_future(self.engine.run())

    async def stop(self) -> None:
        self.engine.stop()
        if self.running is not None:
            await self.running
            self.running = None

    def kill(self) -> None:
        assert self.running is not None
        self.running.cancel()
        self.running = None

    async def submit(self, name: str) -> Any:
        return await self.engine.ask(lambda request: Submit(request, (wanted(job(name)),)))

    async def hello(self, node: str) -> int:
        hello = Hello(node, f"machine-{node}", Facts({"cpu": 4_000, "memory": 1 << 30}), 1)
        session: int = await self.engine.ask(lambda request: NodeConnected(request, hello))
        return session


@asynccontextmanager
async def servers(*names: str) -> AsyncIterator[list[Server]]:
    """Servers on one memory; the first one leads."""
    memory = Memory()
    made = [Server(memory, name) for name in names]
    await made[0].start()
    await until(lambda: made[0].engine.ready)
    for server in made[1:]:
        await server.start()
        await until(lambda server=server: server.engine.readable)
    try:
        yield made
    finally:
        for server in made:
            await server.stop()


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.002)


async def test_one_leads_and_the_others_show_what_it_commits() -> None:
    async with servers("one", "two", "three") as (one, two, three):
        await one.submit("a")
        await one.hello("n1")
        await until(lambda: two.engine.state.revision == three.engine.state.revision == one.engine.state.revision)
        assert [server.engine.ready for server in (one, two, three)] == [True, False, False]
        for standby in (two, three):
            assert list((await standby.engine.settled()).workloads) == ["default/a"]
            assert standby.seen.reported == one.seen.reported[-len(standby.seen.reported) :] != []
        with pytest.raises(NoService, match="another server leads"):
            await two.submit("b")


async def test_a_standby_takes_over_with_everything_that_was_answered() -> None:
    async with servers("one", "two") as (one, two):
        for number in range(20):
            await one.submit(f"job-{number}")
        await one.hello("n1")
        one.kill()
        await until(lambda: two.engine.ready)
        # By the time of the last decision: how much has passed since then depends on what else the machine does.
        lease_ms = two.engine.state.liveness["n1"].lease_until_ms - two.engine.state.now_ms
        assert len(two.engine.state.workloads) == 20 and check(two.engine.state) == []
        await two.submit("more")  # once this is answered, the takeover itself is committed
        snapshot = require(await two.store.load())
        assert differences(two.engine.state, load(snapshot, two.engine.clock.now_ms(), two.engine.state.settings)) == []
        assert lease_ms > 1_100 + TIMING.store_outage_grace_ms, "the old leader may still be answering this node"


async def test_a_leader_that_stops_lets_go_at_once_and_nothing_has_to_wait() -> None:
    async with servers("one", "two") as (one, two):
        await one.hello("n1")
        await one.stop()
        await until(lambda: two.engine.ready)
        lease_ms = two.engine.state.liveness["n1"].lease_until_ms - two.engine.clock.now_ms()
        assert lease_ms <= 1_100
        assert not one.engine.heard("n1", 1, None)


async def test_the_lead_is_handed_to_the_named_successor() -> None:
    async with servers("one", "two", "three") as (one, two, three):
        await one.submit("a")
        one.engine.let_go("three")
        await until(lambda: three.engine.ready)
        await until(lambda: one.engine.readable)
        assert not one.engine.ready and not two.engine.ready
        await three.submit("b")
        await until(lambda: "default/b" in one.engine.state.workloads)
        assert one.seen.resets == 1


async def test_a_leader_that_was_overtaken_finds_itself_fenced() -> None:
    async with servers("one", "two") as (one, two):
        session = await one.hello("n1")
        await two.store.lead(two.engine.leadership.identity.signed())  # type: ignore[union-attr]
        with pytest.raises(NoService):
            await one.submit("late")
        await until(lambda: not one.engine.ready)
        assert one.seen.resets == 1
        assert not one.engine.heard("n1", session, None)
        await until(lambda: one.engine.readable)
        assert "default/late" not in one.engine.state.workloads


async def test_agents_are_answered_while_the_store_is_away_and_nothing_else_is() -> None:
    async with servers("one") as (one,):
        session = await one.hello("n1")
        await one.submit("kept")
        one.store.away = True
        with pytest.raises(NoService, match="no server answers"):
            await one.submit("lost")
        await until(lambda: not one.engine.ready)
        assert one.engine.heard("n1", session, None) and not one.engine.heard("n1", session + 1, None)
        with pytest.raises(NoService, match="no server answers"):
            await one.engine.settled()
        assert one.seen.resets == 0
        one.store.away = False
        await until(lambda: one.engine.ready)
        assert one.seen.resets == 1, "agents tell again what they run"
        assert list(one.engine.state.workloads) == ["default/kept"]


async def test_a_leader_whose_renewals_fail_takes_no_more_requests_but_keeps_its_agents() -> None:
    async with servers("one") as (one,):
        session = await one.hello("n1")
        assert one.engine.unready() == ""
        one.store.away = True
        await until(lambda: not one.engine.leadership.is_sure())  # type: ignore[union-attr]
        assert one.engine.unready() == "the store does not answer: the lead could not be renewed"
        with pytest.raises(NoService, match="the store does not answer"):
            await one.submit("a")
        assert one.engine.heard("n1", session, None)


async def test_a_standby_that_has_seen_no_renewal_for_long_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with servers("one", "two") as (_, two):
        assert two.engine.unready() == ""
        later_ms = two.engine.clock.now_ms() + 3 * TIMING.ttl_ms
        monkeypatch.setattr(two.engine.clock, "now_ms", lambda: later_ms)
        assert two.engine.unready() == "no leader has renewed its lead of late"


async def test_agents_are_let_go_when_another_leads_by_then() -> None:
    async with servers("one", "two") as (one, two):
        session = await one.hello("n1")
        one.store.away = True
        with pytest.raises(NoService):
            await one.submit("lost")
        await until(lambda: two.engine.ready)
        await two.submit("b")
        assert one.engine.heard("n1", session, None), "it cannot know"
        one.store.away = False
        await until(lambda: one.seen.resets)
        assert not one.engine.heard("n1", session, None)
        await until(lambda: "default/b" in one.engine.state.workloads)


async def test_a_standby_that_loses_the_store_follows_again() -> None:
    async with servers("one", "two") as (one, two):
        await one.submit("a")
        await until(lambda: "default/a" in two.engine.state.workloads)
        await two.store.close()
        await until(lambda: "store is away" in two.engine.failed)
        assert list((await two.engine.settled()).workloads) == ["default/a"], "reads go on with what is known"
        two.store._closed = False
        await one.submit("b")
        await until(lambda: "default/b" in two.engine.state.workloads)


async def test_a_dead_leader_is_followed_at_once_when_its_death_is_seen() -> None:
    memory = Memory()
    one, two = Server(memory, "one"), Server(memory, "two")
    gone = asyncio.Event()

    async def attend(leader: ServerIdentity) -> bool:
        assert leader.name == "one"
        await gone.wait()
        return True

    slow = LeaderTiming(ttl_ms=60_000, renew_ms=60, retry_ms=20)
    team = Leadership(two.store, ServerIdentity("two", "2", "", "two:1"), slow, Clock().now_ms, attend)
    two.engine.leadership, two.engine.machine.leadership = team, team.machine
    await one.start()
    await until(lambda: one.engine.ready)
    await two.start()
    await until(lambda: two.engine.readable)
    one.kill()
    assert not two.engine.ready
    gone.set()
    await until(lambda: two.engine.ready)
    await two.stop()


async def test_a_fenced_epoch_commits_nothing_whatever_it_believes() -> None:
    async with servers("one", "two") as (one, two):
        old = one.engine.machine.epoch
        one.engine.let_go("two")
        await until(lambda: two.engine.ready)
        assert isinstance(await one.store.commit(old, [Change("node", "x", b"")]), Fenced)


async def away(*_: Any) -> Unavailable:
    return AWAY


@pytest.mark.parametrize("what", ["commit", "renew"])
async def test_a_late_answer_of_the_store_proves_the_lead_from_its_request(what: str) -> None:
    async with servers("one") as (one,):
        await one.hello("n1")
        leadership, clock, reached_ms = one.engine.leadership, one.engine.clock, []
        assert leadership is not None
        send, answered = getattr(one.store, what), asyncio.Event()

        async def late(*given: Any) -> Any:
            reached_ms.append(clock.now_ms())
            outcome = await send(*given)
            one.store.away = True  # nothing that is sent later proves anything
            await until(lambda: clock.now_ms() >= reached_ms[0] + TIMING.ttl_ms // 4)
            asyncio.get_running_loop().call_soon(answered.set)
            return outcome

        setattr(one.store, what, late)
        if what == "commit":
            one.store.renew = away  # type: ignore[method-assign]
            await one.submit("a")
        await answered.wait()
        assert leadership.machine.is_sure(reached_ms[0] + TIMING.acting_ms) is False
