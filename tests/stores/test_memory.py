"""The memory store keeps the contract, also without asyncio and with several servers on one memory."""

import pytest

from roost.ports.store import Change, Fenced, Snapshot
from roost.stores.memory import Memory, MemoryStore
from tests.stores.contract import Opener, gone, put
from tests.stores.shared import SharedStoreContract


class TestMemory(SharedStoreContract):
    @pytest.fixture
    def opener(self) -> Opener:
        memories: dict[str, Memory] = {}
        return lambda place="here": MemoryStore(memories.setdefault(place, Memory()))


async def test_a_store_without_a_memory_has_its_own() -> None:
    one, other = MemoryStore(), MemoryStore()
    await one.commit(await one.lead("server-1"), [put("1")])
    assert await other.load() == Snapshot(0, [])


async def test_a_server_is_fenced_when_another_takes_the_lead() -> None:
    memory = Memory()
    one, other = MemoryStore(memory), MemoryStore(memory)
    old = await one.lead("server-1")
    new = await other.lead("server-2")
    with pytest.raises(Fenced, match="server-2 leads with epoch 2"):
        await one.commit(old, [put("1")])
    assert await other.commit(new, [put("2")]) == 1
    assert await one.load() == Snapshot(1, [put("2")])


def test_the_core_needs_no_event_loop() -> None:
    memory = Memory()
    epoch = memory.lead("server-1")
    assert memory.apply(epoch, [put("1"), put("2")]) == 1
    assert memory.apply(epoch, [gone("1")]) == 2
    assert memory.snapshot() == Snapshot(2, [put("2")])
    with pytest.raises(Fenced):
        memory.apply(epoch - 1, [put("3")])
    assert memory.snapshot() == Snapshot(2, [put("2")])


def test_a_snapshot_does_not_change_when_the_store_does() -> None:
    memory = Memory()
    epoch = memory.lead("server-1")
    memory.apply(epoch, [put("1")])
    snapshot = memory.snapshot()
    memory.apply(epoch, [Change("node", "n", b"new"), gone("1")])
    assert snapshot == Snapshot(1, [put("1")])
