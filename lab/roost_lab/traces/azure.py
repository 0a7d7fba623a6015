"""Virtual machines of a public cloud (Azure, 2017): arrivals and lifetimes on a pool of equal hosts without end.

A host opens only when no open one has room, and closes when its last machine leaves. A machine that stays beyond the
end of the trace never leaves. Measured: how many hosts are in use at once, and for how many hours in all.
"""

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from roost.core.placement.gpu.fragmentation import typical_of
from roost.core.placement.score_cache import ScoreCaches
from roost.core.placement.select import choose
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import Fleet
from roost.model.errors import Invalid
from roost.model.records.node import Facts
from roost.model.records.workload import Ask
from roost.sim.report import Replay, Series
from roost_lab.traces.openb import DRAWN_BITS
from roost_lab.traces.queues import Progress
from roost_lab.traces.tables import VALUE_MAX, Row, check_known, read_table

AZURE_STRATEGIES = ("first_fit", "best_fit", "dot_product", "random", "worst_fit", "balanced")

COLUMNS = ("vm", "arrive_s", "vcpu", "mem_gb", "life_max_s", "censored")
HOST_CPU = 64_000  # milli-cores
HOST_MIB = 128 * 1_024
MIB = 1_024 * 1_024
LIFE_MIN_S = 300  # the grid of the trace
HOUR_S = 3_600
HOSTS_AT_ONCE = 64  # join together when none is left: joining one looks at all rows again
OUTLOOK_S = 3_600  # how often the mix of running machines is measured; it changes over hours
SEED = 42
PROGRESS_EVERY = 4_096


class Machine(NamedTuple):
    """A virtual machine: when it arrives, how much it asks for, when it leaves (never: -1)."""

    arrive_s: int
    leave_s: int
    ask: Ask


def replay_azure(path: Path, strategy: str, progress: Progress) -> Replay:
    check_known(strategy, AZURE_STRATEGIES)
    machines = read_machines(path)
    hosts = Hosts(strategy)
    for number, machine in enumerate(machines):
        hosts.arrive(machine)
        if number % PROGRESS_EVERY == 0:
            progress(number / len(machines))
    bound = fluid_bound(machines)
    metrics = {
        "peak_nodes": hosts.peak,
        "node_hours": hosts.node_s / HOUR_S,
        "lower_bound_nodes": bound,
        "peak_over_bound": hosts.peak / bound,
        "cpu_density": hosts.cpu_s / max(1, hosts.node_s * HOST_CPU),
    }
    by_hour = [(float(hour), float(most)) for hour, most in sorted(hosts.by_hour.items())]
    return Replay("azure-vm", strategy, metrics, series=(Series("nodes", "nodes in use", by_hour),))


class Hosts:
    def __init__(self, strategy: str) -> None:
        self.fleet = Fleet()
        self.peak = 0
        self.node_s = 0  # seconds of hosts in use, summed
        self.cpu_s = 0  # seconds of milli-cores in use, summed
        self._strategy = STRATEGIES[strategy]
        self._shortlists = ScoreCaches()
        self._chance = Random(SEED)
        self._lingering = strategy == "worst_fit"  # spreading looks at every host that was ever open
        self._held: list[int] = []  # machines by row
        self._in_use = 0
        self._cpu = 0
        self._now = 0
        self._told_s = -OUTLOOK_S
        self._running: Counter[Ask] = Counter()
        self._leaving: list[tuple[int, int, int, Ask]] = []  # time, number of the arrival, row, ask
        self._numbers = count()
        self.by_hour: Counter[int] = Counter()  # most hosts in use

    def arrive(self, machine: Machine) -> None:
        while self._leaving and self._leaving[0][0] <= machine.arrive_s:
            when, _, row, ask = heappop(self._leaving)
            self._pass(when)
            self._count(row, ask, -1)
        self._pass(machine.arrive_s)
        if self._now - self._told_s >= OUTLOOK_S:
            self._told_s = self._now
            self.fleet.expect(typical_of(sorted(self._running.items(), key=lambda pair: pair[0].resources)))
        row = self._choose(machine.ask)
        row = row if row >= 0 else self._open_one()
        self._count(row, machine.ask, 1)
        if machine.leave_s >= 0:
            heappush(self._leaving, (machine.leave_s, next(self._numbers), row, machine.ask))

    def _choose(self, ask: Ask) -> int:
        drawn = self._chance.getrandbits(DRAWN_BITS) if self._strategy.chance else 0
        return choose(self.fleet, self._shortlists, ask, self._strategy, drawn=drawn).row if self._held else -1

    def _open_one(self) -> int:
        if self._in_use == len(self.fleet):
            facts = Facts({"cpu": HOST_CPU, "memory": HOST_MIB * MIB})
            for number in range(len(self.fleet), len(self.fleet) + HOSTS_AT_ONCE):
                self.fleet.join(f"{number:08d}", facts)
                self._held.append(0)
        row = self._held.index(0)
        self.fleet.set_open(self.fleet.names[row], is_open=True, is_online=True)
        return row

    def _count(self, row: int, ask: Ask, sign: int) -> None:
        self.fleet.take(self.fleet.names[row], Allocation(ask.resources), sign)
        self._running[ask] += sign
        self._cpu += sign * ask.resources[0][1]
        self._in_use -= bool(self._held[row])
        self._held[row] += sign
        self._in_use += bool(self._held[row])
        if not self._held[row] and not self._lingering:
            self.fleet.set_open(self.fleet.names[row], is_open=False, is_online=True)
        self.peak = max(self.peak, self._in_use)
        hour = self._now // HOUR_S
        self.by_hour[hour] = max(self.by_hour[hour], self._in_use)

    def _pass(self, now: int) -> None:
        self.node_s += self._in_use * (now - self._now)
        self.cpu_s += self._cpu * (now - self._now)
        self._now = now


def fluid_bound(machines: list[Machine]) -> int:
    """Hosts that are needed even if machines could be split: at the peak, by the scarcer resource."""
    events = [(machine.arrive_s, 1, machine.ask.resources) for machine in machines]
    events += [(machine.leave_s, -1, machine.ask.resources) for machine in machines if machine.leave_s >= 0]
    events.sort()
    used = {"cpu": 0, "memory": 0}
    most = 0
    for _, sign, resources in events:
        for resource, amount in resources:
            used[resource] += sign * amount
        most = max(most, -(-used["cpu"] // HOST_CPU), -(-used["memory"] // (HOST_MIB * MIB)))
    return most


def read_machines(path: Path) -> list[Machine]:
    asks: dict[tuple[int, int], Ask] = {}
    machines: list[Machine] = []
    for row in read_table(path, COLUMNS):
        machine = _machine(row, asks)
        if machines and machine.arrive_s < machines[-1].arrive_s:
            raise Invalid(row.at, f"column arrive_s is {machine.arrive_s}, before the line above it")
        machines.append(machine)
    if not machines:
        raise Invalid(path.name, "no machine in it")
    return machines


def _machine(row: Row, asks: dict[tuple[int, int], Ask]) -> Machine:
    arrive_s = row.whole("arrive_s")
    cpu = row.thousandths("vcpu", least=1, most=HOST_CPU)
    memory = row.thousandths("mem_gb", least=1, most=HOST_MIB * 1_000 // 1_024) * 1_024 * MIB // 1_000
    ask = asks.setdefault((cpu, memory), Ask((("cpu", cpu), ("memory", memory))))
    if row.whole("censored", most=1):
        return Machine(arrive_s, -1, ask)
    return Machine(arrive_s, arrive_s + max(LIFE_MIN_S, row.whole("life_max_s", most=VALUE_MAX)), ask)
