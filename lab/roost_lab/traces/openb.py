"""openb: a trace of shared GPUs (Alibaba, 2023) under the protocol of the FGD paper (USENIX ATC 2023).

Pods arrive one by one in random order until they ask for 130 % of all GPUs. No pod leaves; a pod that fits nowhere is
dropped. After each arrival: how much is asked for so far, how much of the GPUs is allocated, how much is fragmented.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from roost.core.placement.gpu.fragmentation import FreeResources, device_class, typical_of
from roost.core.placement.score_cache import ScoreCaches
from roost.core.placement.select import choose
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import GPU, Fleet, Ints
from roost.model.errors import Invalid
from roost.model.limits import GPUS_MAX
from roost.model.records.node import Facts
from roost.model.records.workload import Ask
from roost.sim.report import Replay, Series
from roost_lab.traces.openb_policies import Policy, policy_of
from roost_lab.traces.queues import Progress
from roost_lab.traces.tables import Row, check_known, read_table

OPENB_STRATEGIES = (
    "random", "dot_product", "gpu_clustering", "gpu_packing", "best_fit", "fgd", "first_fit", "least_loaded", "balanced"
)  # fmt: skip

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MEMORY = "memory_mib"  # not "memory": it must fit, but takes no part in any score of the paper
TARGET_PERCENT = 130  # of all GPUs are asked for in the end
SEED = 42  # of the first run, as in the paper
ALLOCATED_AT = (80, 90, 95, 100, 110, 120, 130)
FRAGMENTED_AT = (50, 80, 100)
PROGRESS_EVERY = 256  # arrivals: some times a second
DRAWN_BITS = 62  # more than enough nodes to draw from


class Pod(NamedTuple):
    name: str
    ask: Ask
    gpu: int  # thousandths of all its devices


class Curve(NamedTuple):
    """One run, after each arrival, in hundredths of all GPUs."""

    arrived: list[float]
    allocated: list[float]
    fragmented: list[float]


def replay_openb(nodes: Path, workloads: Path, strategy: str, seeds: int, progress: Progress) -> Replay:
    check_known(strategy, OPENB_STRATEGIES)
    machines, pods = read_nodes(nodes), read_pods(workloads)

    def curve(number: int) -> Curve:
        return run(machines, pods, strategy, SEED + number, lambda part: progress((number + part) / seeds))

    return _summary(strategy, [curve(number) for number in range(seeds)])


def run(nodes: list[Facts], pods: list[Pod], strategy: str, seed: int, progress: Progress = lambda _: None) -> Curve:
    """One run: its seed decides the order of arrivals and the order of equal nodes."""
    chance = Random(seed)
    gpus = sum(node.resources["gpu"] for node in nodes)
    arriving = arrivals(pods, gpus * TARGET_PERCENT // 100, chance)
    ranked = list(nodes)
    chance.shuffle(ranked)
    world = World(ranked, pods, policy_of(strategy, len(nodes), chance), chance)
    curve = Curve([], [], [])
    arrived = 0
    for number, pod in enumerate(arriving):
        world.arrive(pod)
        arrived += pod.gpu
        curve.arrived.append(100 * arrived / gpus)
        curve.allocated.append(100 * world.allocated / gpus)
        curve.fragmented.append(100 * world.fragmented / gpus / world.weight)
        if number % PROGRESS_EVERY == 0:
            progress(number / len(arriving))
    return curve


def arrivals(pods: list[Pod], target: int, chance: Random) -> list[Pod]:
    """The pods in random order, cut at random or extended by copies of random pods until they ask for the target."""
    result = sorted(pods, key=lambda pod: pod.name)
    chance.shuffle(result)
    asked = sum(pod.gpu for pod in result)
    while asked > target:
        asked -= result.pop(chance.randrange(len(result))).gpu
    if not asked:
        return result
    drawn = sorted(pods, key=lambda pod: pod.name)
    while asked + (pod := drawn[chance.randrange(len(drawn))]).gpu <= target:
        result.append(pod)
        asked += pod.gpu
    return result


class World:
    """A fleet that fills up. Nodes are named by rank, so that ties go to the first of a random order."""

    def __init__(self, ranked: list[Facts], pods: list[Pod], policy: Policy, chance: Random) -> None:
        self.fleet = Fleet()
        for rank, node in enumerate(ranked):
            self.fleet.join(f"{rank:06d}", node)
            self.fleet.set_open(f"{rank:06d}", is_open=True, is_online=True)
        self.fleet.expect(typical_of(Counter(pod.ask for pod in pods).items()))
        self.weight = max(1, sum(weight for _, weight in self.fleet.typical.shapes))
        self.allocated = 0
        self.free = int(self.fleet.devices.sum())
        self._policy = policy
        self._chance = chance
        self._shortlists = ScoreCaches()
        self._lost = [self._lost_on(row) for row in range(len(self.fleet))]
        self.fragmented = sum(self._lost)

    def arrive(self, pod: Pod) -> None:
        strategy = self._policy.strategy
        drawn = self._chance.getrandbits(DRAWN_BITS) if strategy.chance else 0
        row = choose(self.fleet, self._shortlists, pod.ask, strategy, drawn=drawn).row
        if row < 0:
            return
        devices = strategy.devices(self.fleet, pod.ask, row) if pod.ask.gpu_count else ()
        self.fleet.take(self.fleet.names[row], Allocation(pod.ask.resources, devices, pod.ask.gpu_milli))
        self._policy.reported(row, pod.ask)
        self.allocated += pod.gpu
        self.free -= pod.gpu
        lost = self._lost_on(row)
        self.fragmented += lost - self._lost[row]
        self._lost[row] = lost
        self._check(row)

    def _lost_on(self, row: int) -> int:
        """Free GPU that typical pods cannot use, times their weight."""
        cpu = self.fleet.total["cpu"].item(row) - self.fleet.used["cpu"].item(row)
        kind = device_class(self.fleet.typical, self.fleet.facts[row].gpu_model)
        return kind.lost_now(FreeResources(cpu, 0, tuple(self.fleet.devices[row].tolist())))

    def _check(self, row: int) -> None:
        """Invariants after every arrival; only this row has changed."""
        fleet = self.fleet
        for resource, used in fleet.used.items():
            is_within = 0 <= used.item(row) <= fleet.total[resource].item(row)
            assert is_within, f"{resource} of {fleet.names[row]} is overfull"
        free = fleet.devices[row].tolist()
        assert min(free) >= 0, f"a device of {fleet.names[row]} is overfull"
        taken = fleet.device_total[row].sum() - sum(free)
        assert taken == fleet.used["gpu"].item(row), f"the devices of {fleet.names[row]} do not add up"
        assert 0 <= self.fragmented <= self.free * self.weight, "more is fragmented than is free"


def read_nodes(path: Path) -> list[Facts]:
    nodes = []
    for row in read_table(path, NODE_COLUMNS):
        gpu = row.whole("gpu", most=GPUS_MAX) * GPU
        resources = {"cpu": row.whole("cpu_milli"), MEMORY: row.whole("memory_mib"), "gpu": gpu}
        nodes.append(Facts(resources, gpu_model=row.text("model")))
    if not any(node.resources["gpu"] for node in nodes):
        raise Invalid(path.name, "no node with a GPU")
    return nodes


def read_pods(path: Path) -> list[Pod]:
    pods = [_pod(row) for row in read_table(path, POD_COLUMNS)]
    if not any(pod.gpu for pod in pods):
        raise Invalid(path.name, "no pod asks for a GPU")
    return pods


def _pod(row: Row) -> Pod:
    count = row.whole("num_gpu", most=GPUS_MAX)
    milli = row.whole("gpu_milli", least=1 if count else 0, most=GPU) if count else 0
    if count > 1 and milli < GPU:
        raise Invalid(row.at, f"column gpu_milli is {milli}; a share is of one GPU, this asks for {count}")
    models = tuple(sorted(set(filter(None, row.text("gpu_spec", "").split("|")))))
    amounts = {"cpu": row.whole("cpu_milli"), MEMORY: row.whole("memory_mib"), "gpu": milli * count}
    resources = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
    ask = Ask(resources, gpu_milli=milli, gpu_count=count, gpu_models=models if count else ())
    return Pod(row.text("name"), ask, milli * count)


def _summary(strategy: str, curves: list[Curve]) -> Replay:
    allocated = np.array([_by_percent(curve.arrived, curve.allocated) for curve in curves])
    fragmented = np.array([_by_percent(curve.arrived, curve.fragmented) for curve in curves])
    columns = {f"allocated_at_{at}": allocated[:, at] for at in ALLOCATED_AT}
    columns |= {f"fragmented_at_{at}": fragmented[:, at] for at in FRAGMENTED_AT}
    return Replay(
        "openb",
        strategy,
        {name: float(column.mean()) for name, column in columns.items()},
        {name: float(column.std(ddof=min(1, len(column) - 1))) for name, column in columns.items()},
        (_series("allocated", allocated), _series("fragmented", fragmented)),
    )


def _by_percent(arrived: list[float], values: list[float]) -> np.ndarray:
    """Means over the arrivals whose demand so far rounds to 0, 1, ... 130 %; the value before where there is none."""
    at: Ints = np.rint(arrived).astype(np.int64)
    means = np.zeros(TARGET_PERCENT + 1)
    before = 0.0
    for percent in range(TARGET_PERCENT + 1):
        first, end = np.searchsorted(at, [percent, percent + 1])
        means[percent] = np.mean(values[first:end]) if end > first else before
        before = values[end - 1] if end else before
    return means


def _series(name: str, values: np.ndarray) -> Series:
    points = [(float(at), float(mean)) for at, mean in enumerate(values.mean(axis=0))]
    return Series(name, "% of GPUs", points, "% of GPUs asked for")
