"""Metrics: counters kept while working, counts taken when asked, and the page that Prometheus reads."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.core.state.state import State
from roost.model.records.project import INSTANCES
from roost.model.states import InstanceState, NodeStatus, PoolStatus

if TYPE_CHECKING:
    from roost.server.engine.engine import Engine
    from roost.server.engine.executor import Executor
    from roost.server.webhooks.dispatcher import Hooks

COUNT_SHARE = 50  # counting a large state may take a fiftieth of the time
PROJECTS_MAX = 1_000  # on the page, those with the most first: every submitter can make up a name
COUNT_CHEAP_S = 0.005  # a count that takes less than this is made anew whenever something changed


class Histogram:
    """How often values fell below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ObjectCounts(NamedTuple):
    """How many there are of what, in which state."""

    nodes: dict[NodeStatus, int]
    workloads: dict[InstanceState, int]
    instances: dict[InstanceState, int]
    waiting: int  # instances that wait for a place
    projects: dict[str, int]  # the same project by project; those that have workloads


class CountCache:
    """Counts over the whole state, taken at most so often that counting stays cheap."""

    def __init__(self) -> None:
        self._counts: ObjectCounts | None = None
        self._revision = -1
        self._taken_s = 0.0
        self._cost_s = 0.0

    def of(self, state: State) -> ObjectCounts:
        """The counts now; of a large state, as they were some moments ago."""
        now = time.perf_counter()
        fresh = self._cost_s < COUNT_CHEAP_S or now - self._taken_s > self._cost_s * COUNT_SHARE
        if self._counts is None or (fresh and self._revision != state.revision):
            self._counts, self._revision = count(state), state.revision
            self._taken_s = time.perf_counter()
            self._cost_s = self._taken_s - now
        return self._counts


def count(state: State) -> ObjectCounts:
    """Count everything there is."""
    from roost.server.views.work import counts_of, workload_state

    workloads: Counter[InstanceState] = Counter()
    instances: Counter[InstanceState] = Counter()
    projects: dict[str, int] = {}
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        counts = counts_of(workload, progress.placed_count if progress else 0, progress.counts if progress else {})
        workloads[workload_state(workload, counts)] += 1
        instances.update(counts)
        projects[workload.project] = projects.get(workload.project, 0) + counts.get(InstanceState.QUEUED, 0)
    nodes = Counter(node.status for node in state.nodes.values())
    return ObjectCounts(dict(nodes), dict(workloads), dict(instances), instances[InstanceState.QUEUED], projects)


class Metrics:
    """What /metrics shows. Everything is gathered when it is asked for."""

    def __init__(self, engine: "Engine", perform: "Executor", census: CountCache) -> None:
        self._engine = engine
        self._perform = perform
        self._census = census
        self._registry: Any = None

    @property
    def connected(self) -> int:
        """How many agents have an open stream."""
        return self._perform.connected

    def page(self) -> bytes:
        """The page in Prometheus' text form."""
        from prometheus_client import CollectorRegistry, generate_latest  # only where it is asked for

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks a collector for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        engine, perform = self._engine, self._perform
        counts = self._census.of(engine.state)
        is_held = bool(engine.state.meta.maintenance)
        flaky = sum(bool(node.flaky_until_ms) for node in engine.state.nodes.values())
        plain = [
            (GaugeMetricFamily, "roost_ready", "1 on the leader, when it can decide.", int(engine.ready)),
            (GaugeMetricFamily, "roost_revision", "The newest commit.", engine.state.revision),
            (GaugeMetricFamily, "roost_agents_connected", "Agents with an open stream.", perform.connected),
            (GaugeMetricFamily, "roost_watchers", "Open streams of changes.", perform.watch.subscribers),
            (GaugeMetricFamily, "roost_instances_waiting", "Pending instances.", counts.waiting),
            (GaugeMetricFamily, "roost_maintenance", "1 during maintenance.", int(is_held)),
            (GaugeMetricFamily, "roost_nodes_flaky", "Flaky nodes.", flaky),
            (GaugeMetricFamily, "roost_holds", "Backfill reservations.", len(engine.state.backfill_reservations)),
            (
                GaugeMetricFamily,
                "roost_reservations",
                "Current and future reservations.",
                len(engine.state.reservations),
            ),
            (CounterMetricFamily, "roost_preemptions", "Preempted instances.", engine.state.preemptions),
            (
                CounterMetricFamily,
                "roost_preemption_cycles",
                "Cycles of preemption; must be 0.",
                engine.state.preemption_cycles,
            ),
            (CounterMetricFamily, "roost_steps", "Steps of the engine.", engine.machine.steps),
            (CounterMetricFamily, "roost_events", "Events processed by the engine.", engine.machine.events),
            (CounterMetricFamily, "roost_reports_ignored", "Stale reports of agents.", perform.ignored),
            (CounterMetricFamily, "roost_effects_failed", "Failed effects.", perform.failed),
        ]
        if perform.history is not None:
            past = perform.history.standing()
            plain += [
                (GaugeMetricFamily, "roost_history_revision", "The newest commit in the history.", past.revision),
                (GaugeMetricFamily, "roost_history_waiting", "Changes not yet in the history.", past.waiting),
                (GaugeMetricFamily, "roost_history_bytes", "Size of the history.", past.bytes),
                (GaugeMetricFamily, "roost_history_failed", "1 if it cannot be written.", int(bool(past.failed))),
                (CounterMetricFamily, "roost_history_gaps", "Gaps in the history.", past.gaps),
            ]
        for family, name, message, value in plain:
            yield family(name, message, value=value)
        tables: list[tuple[Any, str, str, str, Mapping[Any, int]]] = [
            (GaugeMetricFamily, "roost_nodes", "Nodes by status.", "status", counts.nodes),
            (GaugeMetricFamily, "roost_workloads", "Workloads by state.", "state", counts.workloads),
            (GaugeMetricFamily, "roost_instances", "Instances by state.", "state", counts.instances),
            (CounterMetricFamily, "roost_placements", "Placements by strategy.", "strategy", perform.placements),
        ]
        for family, name, message, label, table in tables:
            metric = family(name, message, labels=[label])
            for word, number in sorted(table.items()):
                metric.add_metric([word], number)
            yield metric
        yield from _project_tables(engine.state, counts)
        yield _pool_table(engine.state)
        if perform.hooks is not None:
            yield from _hook_tables(perform.hooks)
        commits = HistogramMetricFamily("roost_commit_seconds", "Duration of commits.")
        commits.add_metric([], _buckets(engine.commits), engine.commits.total)
        yield commits


def _project_tables(state: State, counts: ObjectCounts) -> Iterator[Any]:
    """What each project holds, and how many of its instances wait."""
    from prometheus_client.core import GaugeMetricFamily

    from roost.server.views.work import unit_name

    size = {
        name: state.project_usage.get(name, {}).get(INSTANCES, 0) + counts.projects.get(name, 0)
        for name in {*state.project_usage, *counts.projects}
    }
    names = nsmallest(PROJECTS_MAX, size, key=lambda name: (-size[name], name))
    gauge_metric_family = GaugeMetricFamily(
        "roost_project_held", "Allocation of a project, in base units.", labels=["project", "resource"]
    )
    waiting = GaugeMetricFamily("roost_project_waiting", "Pending instances of a project.", labels=["project"])
    for name in sorted(names):
        waiting.add_metric([name], counts.projects.get(name, 0))
        for resource, amount in sorted(state.project_usage.get(name, {}).items()):
            gauge_metric_family.add_metric([name, unit_name(resource)], amount)
    yield gauge_metric_family
    yield waiting


def _hook_tables(hooks: "Hooks") -> Iterator[Any]:
    """Deliveries of hooks by outcome, and how many are queued."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    events = CounterMetricFamily("roost_hook_events", "Events of a webhook by outcome.", labels=["hook", "outcome"])
    waiting = GaugeMetricFamily("roost_hook_waiting", "Pending events of a webhook.", labels=["hook"])
    for key, (counts, number) in sorted(hooks.counts().items()):
        for outcome in ("delivered", "failed", "given_up", "dropped"):
            events.add_metric([key, outcome], getattr(counts, outcome))
        waiting.add_metric([key], number)
    yield events
    yield waiting


def _pool_table(state: State) -> Any:
    """Pools that are being emptied or have failed."""
    from prometheus_client.core import GaugeMetricFamily

    table = GaugeMetricFamily("roost_pool_unwell", "Pools that are not ready, by status.", labels=["pool", "status"])
    unwell = (pool for pool in state.pools.values() if pool.status != PoolStatus.READY)
    for pool in nsmallest(PROJECTS_MAX, unwell, key=lambda pool: pool.name):
        table.add_metric([pool.name, pool.status], 1)
    return table


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += number
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return buckets
