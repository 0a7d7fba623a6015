"""The plan of a chaos run: the same seed gives the same faults, and each kind occurs."""

import pytest
from roost_lab.chaos.nemesis import Nemesis
from roost_lab.chaos.plan import KINDS, STORES, plan_faults


def test_a_seed_gives_one_plan() -> None:
    assert plan_faults(7, "etcd", 60) == plan_faults(7, "etcd", 60)
    assert plan_faults(7, "etcd", 60) != plan_faults(8, "etcd", 60)


@pytest.mark.parametrize("store", STORES)
def test_every_kind_of_a_store_occurs_and_ends_in_time(store: str) -> None:
    faults = plan_faults(1, store, 120)
    assert {fault.kind for fault in faults} == {kind for kind, (stores, _) in KINDS.items() if store in stores}
    assert all(fault.at_s + fault.for_s <= 120 for fault in faults)


def test_the_nemesis_knows_every_kind() -> None:
    assert [kind for kind in KINDS if not hasattr(Nemesis, f"_{kind}")] == []


def test_a_run_too_short_for_a_fault_has_none() -> None:
    assert plan_faults(1, "sqlite", 4) == []
