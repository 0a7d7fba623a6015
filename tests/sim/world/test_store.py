"""The store that lies: every loss of something acknowledged is noticed, and nothing else is."""

import pytest

from roost.ports.store import Change
from roost.sim.world.store import DAMAGES, HARMLESS, SimulatedStore
from roost.sim.world.world import SideChance
from roost.stores.memory import Memory
from roost.stores.sqlite.high_water import StoreLoss

COMMITS = 8


def written(damage: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[SimulatedStore, Memory]:
    store, memory = SimulatedStore(SideChance(seed)), Memory()
    memory.lead("server")
    store.wrote(1, 0)
    for number in range(1, COMMITS + 1):
        changes = [Change("node", f"n{number}", b"%d" % number)]
        memory.apply(1, changes)
        store.wrote(1, number, changes)
    monkeypatch.setattr("roost.sim.world.store.DAMAGES", (damage,))
    store.hurt()
    return store, memory


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_refused_and_can_be_brought_back(
    damage: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, memory = written(damage, seed, monkeypatch)
    found = store.open()
    assert isinstance(found, StoreLoss) == (damage not in HARMLESS)
    if isinstance(found, StoreLoss):
        assert isinstance(store.open(), StoreLoss), "also at the next start"
        store.restore()
    else:
        assert found is not None and found.snapshot() == memory.snapshot()
    assert store.open() is None


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage not in HARMLESS])
def test_an_accepted_loss_goes_on_with_what_is_left_at_a_later_revision(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, memory = written(damage, 1, monkeypatch)
    left = store.accept_loss(1_000).snapshot()
    assert left.revision > COMMITS
    assert set(left.records) <= set(memory.snapshot().records)
    assert store.open() is None
