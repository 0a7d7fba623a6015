"""Virtual machines on a pool without end: what is counted on traces made by hand, what is refused, the figures."""

import gzip
import os
from pathlib import Path

import pytest
from roost_lab.traces.azure import AZURE_STRATEGIES, fluid_bound, read_machines, replay_azure

from roost.model.errors import Invalid

DATA = Path(os.environ.get("ROOST_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data") / "azure-v1-vm"
HEADER = "vm,batch,arrive_s,vcpu,mem_gb,life_min_s,life_max_s,censored\n"


def quiet(share: float) -> None:
    assert 0 <= share <= 1


def written(folder: Path, *machines: tuple[int, float, float, int]) -> Path:
    """When it comes, cores, gigabytes, how long it lives (-1: forever)."""
    lines = [
        f"{number},0,{arrive},{cpu},{memory},0,{'' if life < 0 else life},{int(life < 0)}\n"
        for number, (arrive, cpu, memory, life) in enumerate(machines)
    ]
    path = folder / "some.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "".join(lines)).encode()))
    return path


def test_hosts_in_use_are_counted_over_time(tmp_path: Path) -> None:
    replay = replay_azure(
        written(tmp_path, (0, 64, 64, 3_600), (0, 32, 16, 7_200), (7_200, 1, 1, -1)), "first_fit", quiet
    )
    assert replay.metrics == {
        "peak_nodes": 2,
        "node_hours": 3.0,
        "lower_bound_nodes": 2,
        "peak_over_bound": 1.0,
        "cpu_density": pytest.approx((64 + 2 * 32) / (3 * 64)),
    }
    assert replay.series[0].points == [(0.0, 2.0), (1.0, 1.0), (2.0, 1.0)]


def test_a_host_that_is_empty_is_used_again_before_another_opens(tmp_path: Path) -> None:
    machines = [(hour * 3_600, 64.0, 1.0, 3_600) for hour in range(200)]
    replay = replay_azure(written(tmp_path, *machines), "best_fit", quiet)
    assert replay.metrics["peak_nodes"] == 1  # who leaves goes before who comes


def test_lives_are_at_least_five_minutes(tmp_path: Path) -> None:
    replay = replay_azure(written(tmp_path, (0, 1, 1, 60), (600, 1, 1, -1)), "first_fit", quiet)
    assert replay.metrics["node_hours"] == pytest.approx(300 / 3_600)


def test_spreading_uses_every_host_that_was_ever_open(tmp_path: Path) -> None:
    machines = [(0, 40.0, 1.0, 300), (0, 40.0, 1.0, 300), (300, 1.0, 1.0, -1), (300, 1.0, 1.0, -1)]
    peaks = {}
    for strategy in ("first_fit", "worst_fit"):
        series = replay_azure(written(tmp_path, *machines, (3_600, 1.0, 1.0, -1)), strategy, quiet).series[0]
        peaks[strategy] = series.points[-1][1]
    assert peaks == {"first_fit": 1.0, "worst_fit": 2.0}


@pytest.mark.parametrize("strategy", AZURE_STRATEGIES)
def test_every_strategy_stays_above_the_bound(tmp_path: Path, strategy: str) -> None:
    shapes = ((8.0, 14.0), (1.0, 0.75), (2.0, 3.5), (8.0, 56.0), (4.0, 7.0))
    machines = [(number // 20 * 300, *shapes[number % 5], 300 + number % 7 * 900) for number in range(1_000)]
    path = written(tmp_path, *machines)
    replay = replay_azure(path, strategy, quiet)
    assert replay.metrics["peak_nodes"] >= replay.metrics["lower_bound_nodes"] == fluid_bound(read_machines(path))
    assert 0 < replay.metrics["cpu_density"] <= 1
    assert replay == replay_azure(path, strategy, quiet)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ((-1, 1, 1, 300), "some.csv.gz:3: column arrive_s is -1"),
        ((0, 65, 1, 300), "some.csv.gz:3: column vcpu is 65; it is 0.001 to 64.0"),
        ((0, 1, 200, 300), "some.csv.gz:3: column mem_gb is 200; it is 0.001 to 128.0"),
    ],
)
def test_a_malformed_line_is_refused_by_number_and_column(
    tmp_path: Path, machine: tuple[int, float, float, int], message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        read_machines(written(tmp_path, (0, 1, 1, 300), machine))
    assert message in str(refused.value)


def test_machines_come_in_order_of_time(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="column arrive_s is 0, before the line above it"):
        read_machines(written(tmp_path, (300, 1, 1, 300), (0, 1, 1, 300)))


@pytest.mark.parametrize(
    ("strategy", "peak", "hours", "density"), [("best_fit", 1_003, 40_322, 0.828), ("balanced", 980, 40_286, 0.829)]
)
def test_measured_figures_come_out_again(strategy: str, peak: int, hours: int, density: float) -> None:
    path = DATA / "dev.csv.gz"
    if not path.exists():
        pytest.skip("the trace of virtual machines is not here; it is no part of Roost")
    metrics = replay_azure(path, strategy, quiet).metrics
    assert metrics["lower_bound_nodes"] == 920
    assert metrics["peak_nodes"] == pytest.approx(peak, rel=0.005)
    assert metrics["node_hours"] == pytest.approx(hours, rel=0.005)
    assert metrics["cpu_density"] == pytest.approx(density, rel=0.005)
