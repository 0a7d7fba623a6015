"""Metrics: counters, counts over the whole state, and the page that Prometheus reads."""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from roost.core.state.state import State
from roost.model.records.project import INSTANCES
from roost.model.states import InstanceState, NodeStatus, PoolStatus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from roost.server.engine.engine import Engine
    from roost.server.engine.executor import Executor
    from roost.server.webhooks.dispatcher import Hooks

COUNT_SHARE = 50  # counting a large state may take a fiftieth of the time
PROJECTS_MAX = 1_000  # on the page, the largest first: every submitter can invent a name
COUNT_CHEAP_S = 0.005  # a faster count is repeated whenever something changed


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ObjectCounts(NamedTuple):
    nodes: dict[NodeStatus, int]
    workloads: dict[InstanceState, int]
    instances: dict[InstanceState, int]
    waiting: int  # pending instances
    projects: dict[str, int]  # pending instances by project, of those that have workloads


class CountCache:
    """Counts over the whole state, repeated only as often as COUNT_SHARE allows."""

    def __init__(self) -> None:
        self._counts: ObjectCounts | None = None
        self._revision = -1
        self._taken_s = 0.0
        self._cost_s = 0.0

    def of(self, state: State) -> ObjectCounts:
        """Current counts; those of a large state may be some seconds old."""
        now = time.perf_counter()
        fresh = self._cost_s < COUNT_CHEAP_S or now - self._taken_s > self._cost_s * COUNT_SHARE
        if self._counts is None or (fresh and self._revision != state.revision):
            began_s = time.thread_time()  # not perf_counter: on a busy machine a small count takes long as well
            self._counts, self._revision = count(state), state.revision
            self._taken_s = time.perf_counter()
            self._cost_s = time.thread_time() - began_s
        return self._counts


def count(state: State) -> ObjectCounts:
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


Values = Sequence[tuple[tuple[str, ...], float]]  # by label


class Table(NamedTuple):
    kind: Literal["gauge", "counter"]
    name: str
    help: str
    values: float | Values
    labels: tuple[str, ...] = ()


gauge, counter = partial(Table, "gauge"), partial(Table, "counter")


class Metrics:
    """What /metrics shows. Everything is gathered when it is asked for."""

    def __init__(self, engine: "Engine", perform: "Executor", census: CountCache) -> None:
        self._engine = engine
        self.perform = perform
        self._census = census
        self._registry: CollectorRegistry | None = None

    def page(self) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest  # imported on the first request

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return generate_latest(self._registry)

    def collect(self) -> "Iterator[Metric]":
        """The interface of collectors of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for kind, name, help, values, labels in self._tables():
            metric = families[kind](name, help, labels=labels)
            for label, value in values if isinstance(values, Sequence) else [((), values)]:
                metric.add_metric(label, value)
            yield metric
        commits = self._engine.commits
        bounds, totals = (*map(repr, commits.bounds), "+Inf"), map(float, accumulate(commits.counts))
        seconds = HistogramMetricFamily("roost_commit_seconds", "Duration of commits.")
        seconds.add_metric([], list(zip(bounds, totals, strict=True)), commits.total)
        yield seconds

    def _tables(self) -> Iterator[Table]:
        engine, perform, state = self._engine, self.perform, self._engine.state
        counts = self._census.of(state)
        flaky = sum(bool(node.flaky_until_ms) for node in state.nodes.values())
        yield gauge("roost_ready", "1 on the leader, when it can decide.", engine.ready)
        yield gauge("roost_revision", "The newest commit.", state.revision)
        yield gauge("roost_agents_connected", "Agents with an open stream.", perform.connected)
        yield gauge("roost_watchers", "Open streams of changes.", perform.watch.subscribers)
        yield gauge("roost_instances_waiting", "Pending instances.", counts.waiting)
        yield gauge("roost_maintenance", "1 during maintenance.", bool(state.meta.maintenance))
        yield gauge("roost_nodes_flaky", "Flaky nodes.", flaky)
        yield gauge("roost_holds", "Backfill reservations.", len(state.backfill_reservations))
        yield gauge("roost_reservations", "Current and future reservations.", len(state.reservations))
        yield counter("roost_preemptions", "Preempted instances.", state.preemptions)
        yield counter("roost_preemption_cycles", "Cycles of preemption; must be 0.", state.preemption_cycles)
        yield counter("roost_steps", "Steps of the engine.", engine.machine.steps)
        yield counter("roost_events", "Events processed by the engine.", engine.machine.events)
        yield counter("roost_reports_ignored", "Stale reports of agents.", perform.ignored)
        yield counter("roost_effects_failed", "Failed effects.", perform.failed)
        if perform.history is not None:
            past = perform.history.standing()
            yield gauge("roost_history_revision", "The newest commit in the history.", past.revision)
            yield gauge("roost_history_waiting", "Changes not yet in the history.", past.waiting)
            yield gauge("roost_history_bytes", "Size of the history.", past.bytes)
            yield gauge("roost_history_failed", "1 if it cannot be written.", bool(past.failed))
            yield counter("roost_history_gaps", "Gaps in the history.", past.gaps)
        yield gauge("roost_nodes", "Nodes by status.", _by_label(counts.nodes), labels=("status",))
        yield gauge("roost_workloads", "Workloads by state.", _by_label(counts.workloads), labels=("state",))
        yield gauge("roost_instances", "Instances by state.", _by_label(counts.instances), labels=("state",))
        placements = _by_label(perform.placements)
        yield counter("roost_placements", "Placements by strategy.", placements, labels=("strategy",))
        yield from _project_tables(state, counts)
        unwell = (pool for pool in state.pools.values() if pool.status != PoolStatus.READY)
        pools = nsmallest(PROJECTS_MAX, unwell, key=lambda pool: pool.name)
        statuses = [((pool.name, pool.status), 1) for pool in pools]
        yield gauge("roost_pool_unwell", "Pools that are not ready, by status.", statuses, labels=("pool", "status"))
        if perform.hooks is not None:
            yield from _hook_tables(perform.hooks)


def _by_label(counts: Mapping[Any, int]) -> Values:
    return [((label,), number) for label, number in sorted(counts.items())]


def _project_tables(state: State, counts: ObjectCounts) -> Iterator[Table]:
    from roost.server.views.work import unit_name

    usage, pending = state.project_usage, counts.projects
    size = {name: usage.get(name, {}).get(INSTANCES, 0) + pending.get(name, 0) for name in {*usage, *pending}}
    names = sorted(nsmallest(PROJECTS_MAX, size, key=lambda name: (-size[name], name)))
    held = [
        ((name, unit_name(resource)), amount)
        for name in names
        for resource, amount in sorted(usage.get(name, {}).items())
    ]
    yield gauge("roost_project_held", "Allocation of a project, in base units.", held, labels=("project", "resource"))
    waiting = [((name,), pending.get(name, 0)) for name in names]
    yield gauge("roost_project_waiting", "Pending instances of a project.", waiting, labels=("project",))


def _hook_tables(hooks: "Hooks") -> Iterator[Table]:
    channels = sorted(hooks.channels.items())
    outcomes = ("delivered", "failed", "given_up", "dropped")
    events = [((key, name), getattr(channel.counts, name)) for key, channel in channels for name in outcomes]
    yield counter("roost_hook_events", "Events of a webhook by outcome.", events, labels=("hook", "outcome"))
    waiting = [((key,), channel.waiting) for key, channel in channels]
    yield gauge("roost_hook_waiting", "Pending events of a webhook.", waiting, labels=("hook",))
