"""The formulas of the openb paper that are no strategies of Roost: whole hundredths, and ties go to the first node.

Constants are the paper's: all nodes are measured against one of 128 cores and 8 GPUs.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np

from roost.core.placement.scorers import SCORE_MAX
from roost.core.placement.strategies import STRATEGIES, Strategy, pick_best, pick_drawn
from roost.core.state.fleet import GPU, Fleet, Ints
from roost.model.records.workload import Ask

CORES = 128_000  # milli-cores of the largest node
GPUS = 8_000  # thousandths of GPUs of the largest node
PERCENT = SCORE_MAX // 100
SIZES = (1, 2, 4, 8)  # of asks for whole devices; with shares these are the shapes that clustering tells apart

Formula = Callable[[Fleet, Ask, slice], Ints]  # hundredths of some rows


class Policy(NamedTuple):
    """A strategy for one run, and a function that is called with every placement."""

    strategy: Strategy
    reported: Callable[[int, Ask], None] = lambda row, ask: None


def policy_of(name: str, nodes: int, chance: Random) -> Policy:
    if name == "gpu_clustering":
        clustering = Clustering(nodes)
        return Policy(Strategy(name, ((Percent(clustering.percent), 1),), pick_best), clustering.reported)
    if name == "random":
        return Policy(Strategy(name, (), pick_drawn, chance=True, devices=_drawn(chance)))
    if name in FORMULAS:
        return Policy(Strategy(name, ((Percent(FORMULAS[name]), 1),), pick_best))
    return Policy(STRATEGIES[name])


class Percent(NamedTuple):
    """A scorer in whole hundredths; one row is a slice of one, because its speed does not matter."""

    formula: Formula  # any number where the ask does not fit

    def score(self, fleet: Fleet, ask: Ask) -> Ints:
        return np.clip(self.formula(fleet, ask, slice(0, len(fleet))), 0, 100) * PERCENT

    def score_one(self, fleet: Fleet, ask: Ask, row: int) -> int:
        return int(np.clip(self.formula(fleet, ask, slice(row, row + 1)), 0, 100)[0]) * PERCENT


def best_fit(fleet: Fleet, ask: Ask, rows: slice) -> Ints:
    """100 (1 - half of the cpu left - half of the GPU left)."""
    whole = 2 * CORES * GPUS
    return 100 * (whole - _left(fleet, ask, rows)) // whole


def least_allocated(fleet: Fleet, ask: Ask, rows: slice) -> Ints:
    """The usual default of other schedulers: 100 (half of the cpu left + half of the GPU left)."""
    return 100 * _left(fleet, ask, rows) // (2 * CORES * GPUS)


def packing(fleet: Fleet, ask: Ask, rows: slice) -> Ints:
    """First shared devices, the fullest most; then free devices of nodes in use; then whole nodes."""
    devices = fleet.devices[rows]
    there = np.count_nonzero(fleet.device_total[rows], axis=1)
    if not ask.gpu_count:
        return np.zeros(len(devices), np.int64)
    unused = (devices == fleet.device_total[rows]).all(axis=1)
    tightest = np.where(devices >= ask.gpu_milli, devices, GPU).min(axis=1, initial=GPU)
    shared = np.maximum(100 - -(-tightest // 100), 50)
    taken = np.where(tightest >= GPU, max(50 - ask.gpu_count, 33), shared)
    return np.where(unused, np.maximum(33 - there, there), taken)


FORMULAS: dict[str, Formula] = {"best_fit": best_fit, "least_loaded": least_allocated, "gpu_packing": packing}


class Clustering:
    """First nodes that run only asks of this shape, then those that run it among others, then unused ones."""

    def __init__(self, nodes: int) -> None:
        self._run = np.zeros((nodes, 1 + len(SIZES)), np.int64)

    def reported(self, row: int, ask: Ask) -> None:
        if ask.gpu_count:
            self._run[row, _column(ask)] += 1

    def percent(self, fleet: Fleet, ask: Ask, rows: slice) -> Ints:
        run = self._run[rows]
        if not ask.gpu_count:
            return np.zeros(len(run), np.int64)
        mine = run[:, _column(ask)] > 0
        others = run.sum(axis=1) > run[:, _column(ask)]
        affinity = np.where(mine, np.where(others, 50, 75), np.where(others, 0, 25))
        free = fleet.total["gpu"][rows] - fleet.used["gpu"][rows]
        return np.asarray(affinity + 25 * (GPUS - free) // GPUS)


def _left(fleet: Fleet, ask: Ask, rows: slice) -> Ints:
    """What is left of cpu and GPU after placing, each as a part of the largest node, times 2 CORES GPUS / 2."""
    cpu = fleet.total["cpu"][rows] - fleet.used["cpu"][rows] - dict(ask.resources).get("cpu", 0)
    gpu = fleet.total["gpu"][rows] - fleet.used["gpu"][rows] - ask.gpu_milli * ask.gpu_count
    return np.asarray(cpu * GPUS + gpu * CORES)


def _column(ask: Ask) -> int:
    """The shape of an ask for clustering: all shares are one shape; more devices than any size count as the largest."""
    if ask.gpu_milli < GPU:
        return 0
    return 1 + next((index for index, size in enumerate(SIZES) if ask.gpu_count <= size), len(SIZES) - 1)


def _drawn(chance: Random) -> Callable[[Fleet, Ask, int], tuple[int, ...]]:
    def devices(fleet: Fleet, ask: Ask, row: int) -> tuple[int, ...]:
        """Whole devices in their order; for a share, any device that has it left."""
        fitting = [device for device, left in enumerate(fleet.devices[row].tolist()) if left >= ask.gpu_milli]
        return tuple(fitting[: ask.gpu_count]) if ask.gpu_milli >= GPU else (chance.choice(fitting),)

    return devices
