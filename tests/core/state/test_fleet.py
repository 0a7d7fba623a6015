"""The nodes as columns: rows in order of name, use that survives everything but leaving."""

import gc
from copy import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from roost.core.state import fleet as fleets
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import Fleet
from roost.core.state.liveness import NodeLiveness
from roost.model.records.node import Facts, Node


def fleet_of(**cpus: int) -> Fleet:
    fleet = Fleet()
    for name, cpu in cpus.items():
        fleet.join(name, Facts({"cpu": cpu}))
        fleet.set_open(name, is_open=True, is_online=True)
    return fleet


def test_rows_are_in_order_of_name() -> None:
    fleet = fleet_of(c=3, a=1, b=2)
    assert fleet.names == ["a", "b", "c"]
    assert fleet.total["cpu"].tolist() == [1, 2, 3]
    assert [fleet.row(name) for name in ("a", "b", "c", "d", "")] == [0, 1, 2, -1, -1]


def test_what_is_used_is_kept_when_others_come_and_go_and_when_a_node_tells_anew() -> None:
    fleet = fleet_of(b=4, d=4)
    fleet.take("b", Allocation((("cpu", 3),)))
    fleet.take(
        "d",
        Allocation(
            (
                ("cpu", 1),
                ("gpu", 2),
            )
        ),
    )
    fleet.join("a", Facts({"cpu": 9, "license": 1}))
    fleet.join("c", Facts({}))
    fleet.leave("a")
    fleet.join("b", Facts({"memory": 5}))
    assert fleet.names == ["b", "c", "d"]
    assert {name: column.tolist() for name, column in fleet.used.items()} == {
        "cpu": [3, 0, 1], "gpu": [0, 0, 2], "license": [0, 0, 0], "memory": [0, 0, 0],
    }  # fmt: skip
    assert {name: column.tolist() for name, column in fleet.total.items()} == {
        "cpu": [0, 0, 4], "gpu": [0, 0, 0], "license": [0, 0, 0], "memory": [5, 0, 0],
    }  # fmt: skip
    assert fleet.open.tolist() == [True, False, True]


def columns_of(fleet: Fleet) -> list[NDArray[Any]]:
    columns = [fleet.open, fleet.online, fleet.device_total, fleet.devices]
    return columns + [column for table in (fleet.total, fleet.used, fleet.measured) for column in table.values()]


def test_join_copies_a_column_only_when_its_room_doubles() -> None:
    fleet, rooms = Fleet(), dict[int, NDArray[Any]]()
    for number in range(1_000):
        fleet.join(f"node-{number * 7 % 1_000:04}", Facts({"cpu": number}))  # in no order
        arrays = [column if column.base is None else column.base for column in columns_of(fleet)]
        rooms |= {id(array): array for array in arrays}
    assert len(rooms) <= 8 * len(columns_of(fleet))  # of 16, 32, ... 1,024 rows, not 1,000 copies of each
    assert fleet.total["cpu"].tolist() == [number * 143 % 1_000 for number in range(1_000)]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(0, 2)), max_size=60))
def test_rows_are_those_of_a_mapping_by_name_whatever_comes_and_goes(changes: list[tuple[str, int, int]]) -> None:
    fleet, expected = Fleet(), dict[str, tuple[int, int]]()
    for name, cpu, gpus in changes:
        if name in expected and not cpu:
            fleet.leave(name)
            del expected[name]
        else:
            fleet.join(name, Facts({"cpu": cpu, "gpu": gpus * 1_000}))
            expected[name] = cpu, gpus
    rows = [expected[name] for name in sorted(expected)]
    assert [*zip(fleet.total.get("cpu", ()), fleet.devices.sum(axis=1) // 1_000, strict=True)] == rows
    assert {len(column) for column in columns_of(fleet)} == {len(rows)}
    assert not fleet.open.any()


def test_copy_of_a_fleet_shares_no_room_with_it() -> None:
    fleet = fleet_of(a=1, c=3)
    trial = copy(fleet)
    trial.join("b", Facts({"cpu": 2}))
    fleet.join("d", Facts({"cpu": 4}))
    assert (fleet.total["cpu"].tolist(), trial.total["cpu"].tolist()) == ([1, 3, 4], [1, 2, 3])


def test_mask_over_a_field_asks_once_per_value_until_the_nodes_change() -> None:
    fleet, asked = Fleet(), list[str]()
    for number in range(60):
        fleet.join(f"node-{number:02}", Facts({"cpu": 1}, zone="abc"[number % 3], labels={"rank": str(number)}))

    def is_b(zone: str) -> bool:
        asked.append(zone)
        return zone == "b"

    expected = [number % 3 == 1 for number in range(60)]
    assert fleet.field_mask(("zone",), "zone", is_b).tolist() == expected
    assert fleet.field_mask(("zone",), "zone", is_b).tolist() == expected
    assert sorted(asked) == ["a", "b", "c"]
    fleet.join("node-60", Facts({"cpu": 1}, zone="d"))
    assert fleet.field_mask(("zone",), "zone", is_b).tolist() == [*expected, False]
    assert sorted(asked) == ["a", "a", "b", "b", "c", "c", "d"]
    assert fleet.kinds("labels", "rank")[0] == [*map(str, range(60)), None]


def test_numbered_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "KINDS_MAX", 4)
    fleet = Fleet()
    fleet.join("a", Facts({"cpu": 1}, labels={"label-7": "x"}))
    for number in range(20):
        values, kinds = fleet.kinds("labels", f"label-{number}")
        assert (values, kinds.tolist()) == (["x" if number == 7 else None], [0])
        assert len(fleet._kinds) <= 4


def test_nodes_are_no_work_for_the_garbage_collector() -> None:
    facts = Facts({"cpu": 1}, labels={"a": "b"})
    assert not any(map(gc.is_tracked, (facts, Node("a", "id", facts), NodeLiveness(0))))


def test_free_is_what_is_left_and_nothing_where_no_node_has_any() -> None:
    fleet = fleet_of(a=4, b=1)
    fleet.take("a", Allocation((("cpu", 3),)))
    assert fleet.free("cpu").tolist() == [1, 1]
    assert fleet.free("gpu").tolist() == [0, 0]


def test_freed_counts_only_what_may_let_something_fit() -> None:
    fleet = fleet_of(a=4)
    before = fleet.freed
    fleet.take("a", Allocation((("cpu", 1),)))
    fleet.join("a", Facts({"cpu": 4}))
    fleet.set_open("a", is_open=True, is_online=True)
    assert fleet.freed == before
    fleet.take("a", Allocation((("cpu", 1),)), -1)
    fleet.join("b", Facts({"cpu": 4}))
    fleet.set_open("a", is_open=False, is_online=True)
    fleet.leave("b")
    assert fleet.freed == before + 4


def test_the_log_of_changes_is_bounded_and_says_when_it_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "LOG_MAX", 10)
    fleet = fleet_of(a=4, b=4)
    start = fleet.position
    fleet.take("b", Allocation((("cpu", 1),)))
    assert fleet.changed_since(start) == (1,)
    assert fleet.changed_since(fleet.position) == ()
    for _ in range(20):
        fleet.take("a", Allocation((("cpu", 1),)))
    assert fleet.changed_since(start) is None
    assert len(fleet.log) <= 10


def test_an_unknown_node_is_a_defect() -> None:
    fleet = fleet_of(a=4)
    for wrong in (
        lambda: fleet.take("x", Allocation()),
        lambda: fleet.leave("x"),
        lambda: fleet.set_open("x", is_open=True, is_online=True),
    ):
        with pytest.raises(AssertionError, match="x is not in the fleet"):
            wrong()
