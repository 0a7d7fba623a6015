"""Machines that go on from a saved state: one is saved, many are cloned."""

from pathlib import Path

import pytest
from roost_lab.components.plain_qemu import PlainQemu

from tests.keeper.keeper_harness import Event
from tests.keeper.machines.machine_bench import MachineBench

TICKS = "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.1; done"


@pytest.fixture
def saved(bench: MachineBench, tmp_path: Path) -> Event:
    """What a clone has: the parts of the machine that was saved after its fifth tick."""
    path = str(tmp_path / "state")
    with PlainQemu(bench.machine(TICKS)) as qemu:
        qemu.until(b"tick 5\n")
        qemu.save(path)
    return {"state": path}


def first_tick(bench: MachineBench, id: str) -> int:
    bench.writes(id, b"tick ", count=2)
    return int(bench.harness.log(id).split(b"tick ")[1].split()[0])


def test_clones_go_on_where_a_machine_was_saved(bench: MachineBench, saved: Event) -> None:
    for id in ("1", "2", "3"):
        bench.start(id, TICKS, saved | {"dir": str(bench.disks / id)})
    for id in ("1", "2", "3"):
        assert bench.powered(id) == ("running", 0, "")
        assert first_tick(bench, id) in (5, 6, 7), "it has not booted"
    bench.power("1", 1, "stop")
    assert bench.powered("1") == ("stopped", 1, "")
    size = len(bench.harness.log("1"))
    bench.power("1", 2, "start")
    assert bench.powered("1") == ("running", 2, "")
    bench.writes("1", b"tick 1\n")
    assert b"tick 5\n" not in bench.harness.log("1")[size:].split(b"tick 1\n")[0], "it has booted"


def test_a_state_that_does_not_fit_is_a_boot_that_says_so(bench: MachineBench, saved: Event) -> None:
    bench.start("1", TICKS, saved | {"processors": 2})
    power, serial, problem = bench.powered("1")
    assert (power, serial) == ("running", 0)
    assert problem.startswith("it was booted, as its saved state could not be used: "), problem
    assert first_tick(bench, "1") == 1


def test_a_machine_that_has_its_disks_already_does_not_go_back(bench: MachineBench, saved: Event) -> None:
    disks = {"disks": [{"name": "data", "size": 1 << 20}]}
    bench.start("1", "echo ready", disks)
    assert bench.client.ended("1")["code"] == 0
    bench.start("2", TICKS, saved | disks)
    assert bench.powered("2") == ("running", 0, "")
    assert first_tick(bench, "2") == 1
