"""The engine: persist first, then act; who asks is answered after the commit; a failing store loses nothing else."""

import asyncio
from collections.abc import Sequence

import pytest

from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.events import Uncordon
from roost.ports.store import Change, CommitFailure, Committed, Fenced, InDoubt, Unavailable, WriteConflict
from roost.server.engine import machine
from roost.stores.memory import Memory, MemoryStore
from tests.server.inprocess_server import inprocess_server


class Slow(MemoryStore):
    """A store whose commits take until they are let go, or fail."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__(memory)
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = 0
        self.failure: CommitFailure | None = None

    async def commit(self, epoch: int, changes: Sequence[Change]) -> Committed | CommitFailure:
        self.begun += 1
        await self.gate.wait()
        if self.failure is not None:
            return self.failure
        return await super().commit(epoch, changes)


async def test_a_request_that_is_cancelled_while_its_commit_is_under_way_breaks_nothing() -> None:
    store = Slow()
    async with inprocess_server(store) as made:
        store.gate.clear()
        begun = store.begun
        asking = asyncio.ensure_future(made.submit("a"))
        await made.until(lambda: store.begun > begun)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        store.gate.set()
        await made.submit("b")
        page = await made.get("/v1/workloads")
        assert [item["name"] for item in page["items"]] == ["b", "a"]
        assert made.engine._waiting == {}


async def test_readers_wait_until_a_step_was_acted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inprocess_server() as made:
        gate, act = asyncio.Event(), made.perform.act

        async def act_later(state: State, done: Step) -> None:
            await gate.wait()
            await act(state, done)

        monkeypatch.setattr(made.perform, "act", act_later)
        asking = asyncio.ensure_future(made.submit("a"))
        await made.until(lambda: made.engine._is_acting)
        looking = asyncio.ensure_future(made.get("/v1/workloads"))
        await made.until(lambda: made.engine._readers)
        assert not asking.done() and not looking.done()
        gate.set()
        assert [item["name"] for item in (await looking)["items"]] == ["a"]
        await asking


async def test_changes_are_visible_only_when_durable() -> None:
    store = Slow()
    async with inprocess_server(store) as made:
        store.gate.clear()
        begun = store.begun
        asking = asyncio.ensure_future(made.submit("a"))
        await made.until(lambda: store.begun > begun)
        looking = asyncio.ensure_future(made.get("/v1/workloads"))
        waiting = asyncio.ensure_future(made.submit("b"))
        await made.until(lambda: made.engine._readers)
        assert not looking.done() and not asking.done()
        store.gate.set()
        assert [item["name"] for item in (await looking)["items"]] == ["a"]
        await asyncio.gather(asking, waiting)


async def test_each_turn_of_the_loop_has_one_of_those_that_waited_for_a_commit_to_read() -> None:
    """Fifty readers of long lists would hold the loop for a quarter of a second."""
    store = Slow()
    async with inprocess_server(store) as made:
        store.gate.clear()
        begun = store.begun
        asking = asyncio.ensure_future(made.submit("a"))
        await made.until(lambda: store.begun > begun)
        turn, turns = 0, []

        async def read() -> None:
            state = await made.engine.read()
            assert not made.engine.machine.is_deciding and "default/a" in state.workloads
            turns.append(turn)

        reading = [asyncio.ensure_future(read()) for _ in range(10)]
        await made.until(lambda: len(made.engine._readers) == 10)
        reading[3].cancel()
        store.gate.set()
        while not asking.done() or len(turns) < 9:
            turn += 1
            await asyncio.sleep(0)
        assert len(set(turns)) == 9, turns


async def test_a_commit_that_fails_is_reported_to_all_that_wait_and_nothing_of_it_stays() -> None:
    store = Slow()
    async with inprocess_server(store) as made:
        await made.submit("kept")
        store.gate.clear()
        store.failure = Unavailable("no space left")
        begun = store.begun
        asking = asyncio.ensure_future(
            made.client.post("/v1/workloads", json={"name": "gone", "command": "true"})
        )  # fmt: skip
        await made.until(lambda: store.begun > begun)
        looking = asyncio.ensure_future(made.client.get("/v1/workloads"))
        await made.until(lambda: made.engine._readers)
        store.gate.set()
        answer = await asking
        assert answer.status_code == 503 and "no space left" in answer.json()["message"]
        assert '"gone"' not in (await looking).text
        store.failure = None
        await made.until(lambda: made.engine.ready)
        assert [item["name"] for item in (await made.get("/v1/workloads"))["items"]] == ["kept"]
        assert made.streams.resets == 1
        await made.submit("gone")


@pytest.mark.parametrize(
    "error", [InDoubt("it went away"), Fenced("another leads"), WriteConflict("nothing kept"), Unavailable("not sent")]
)
async def test_what_may_have_been_done_is_not_offered_to_be_asked_again(error: CommitFailure) -> None:
    store = Slow()
    async with inprocess_server(store) as made:
        store.gate.clear()
        store.failure = error
        begun = store.begun
        document = {"name": "first", "command": "true"}
        first = asyncio.ensure_future(made.client.post("/v1/workloads", json=document))
        await made.until(lambda: store.begun > begun)
        later = asyncio.ensure_future(made.client.post("/v1/workloads", json=document | {"name": "later"}))
        await made.until(lambda: made.engine.machine.inbox)
        store.gate.set()
        codes = [response.json()["code"] for response in await asyncio.gather(first, later)]
        doubt = "outcome_unknown" if isinstance(error, InDoubt) else "unavailable"
        assert codes == [doubt, "unavailable"]  # what had not begun can be asked of another server
        store.failure = None


async def test_a_server_with_too_much_to_do_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "INBOX_MAX", 2)
    store = Slow()
    async with inprocess_server(store) as made:
        store.gate.clear()
        begun = store.begun
        asking = [asyncio.ensure_future(made.submit("first"))]
        await made.until(lambda: store.begun > begun)
        asking += [asyncio.ensure_future(made.submit(f"job-{number}")) for number in range(2)]
        await made.until(lambda: len(made.engine.machine.inbox) >= 2)
        answer = await made.client.post("/v1/workloads", json={"name": "more", "command": "true"})
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        store.gate.set()
        await asyncio.gather(*asking)


async def test_a_request_to_a_stopped_engine_is_refused() -> None:
    async with inprocess_server() as made:
        made.engine.stop()
        await made.until(lambda: not made.engine.ready)
        with pytest.raises(NoService, match="stopping"):
            await made.engine.settled()
        with pytest.raises(NoService, match="stopping"):
            await made.engine.ask(lambda number: Uncordon(number, "n1"))


async def test_a_server_whose_commit_waits_for_its_store_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Slow()
    async with inprocess_server(store) as made:
        assert made.engine.unready() == ""
        store.gate.clear()
        begun = store.begun
        asking = asyncio.ensure_future(made.submit("a"))
        await made.until(lambda: store.begun > begun)
        assert made.engine.unready() == "", "commits may take a moment"
        now = made.engine.clock.now_ms()
        monkeypatch.setattr(made.engine.clock, "now_ms", lambda: now + 2_500)
        assert made.engine.unready().startswith("the store has not answered a commit for 2")
        answer = await made.client.get("/readyz")
        assert answer.status_code == 503
        monkeypatch.undo()
        store.gate.set()
        await asking
        assert made.engine.unready() == ""
