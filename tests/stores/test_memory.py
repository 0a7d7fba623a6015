"""The memory store keeps the contract, also without asyncio and with several servers on one memory."""

import pytest

from roost.ports.store import Change, Committed, Fenced, LeadTaken, Snapshot
from roost.stores.memory import Memory, MemoryStore
from tests.stores.contract import Opener, gone, must, put
from tests.stores.shared import SharedStoreContract


class TestMemory(SharedStoreContract):
    @pytest.fixture
    def opener(self) -> Opener:
        memories: dict[str, Memory] = {}
        return lambda place="here": MemoryStore(memories.setdefault(place, Memory()))


async def test_a_store_without_a_memory_has_its_own() -> None:
    one, other = MemoryStore(), MemoryStore()
    await must(one).commit(await must(one).lead("server-1"), [put("1")])
    assert await must(other).load() == Snapshot(0, [])


async def test_a_server_is_fenced_when_another_takes_the_lead() -> None:
    memory = Memory()
    one, other = MemoryStore(memory), MemoryStore(memory)
    old = await must(one).lead("server-1")
    new = await must(other).lead("server-2")
    assert await one.commit(old, [put("1")]) == Fenced("epoch 1 may not commit: server-2 leads with epoch 2")
    assert await must(other).commit(new, [put("2")]) == 1
    assert await must(one).load() == Snapshot(1, [put("2")])


def test_the_core_needs_no_event_loop() -> None:
    memory = Memory()
    assert memory.lead("server-1") == LeadTaken(1)
    assert memory.apply(1, [put("1"), put("2")]) == Committed(1)
    assert memory.apply(1, [gone("1")]) == Committed(2)
    assert memory.snapshot() == Snapshot(2, [put("2")])
    assert isinstance(memory.apply(0, [put("3")]), Fenced)
    assert memory.snapshot() == Snapshot(2, [put("2")])


def test_a_snapshot_does_not_change_when_the_store_does() -> None:
    memory = Memory()
    memory.lead("server-1")
    memory.apply(1, [put("1")])
    snapshot = memory.snapshot()
    memory.apply(1, [Change("node", "n", b"new"), gone("1")])
    assert snapshot == Snapshot(1, [put("1")])
