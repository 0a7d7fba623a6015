"""Metrics: counters, counts over the whole state, and the page that Prometheus reads."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from roost.core.state.state import State
from roost.model.records.project import INSTANCES
from roost.model.states import PoolStatus
from roost.server.engine.engine import Engine
from roost.server.engine.executor import Executor
from roost.server.files.store import Files
from roost.server.logs.hub import LogHub
from roost.server.observability.census import ObjectCounts
from roost.server.views.work import unit_name
from roost.server.webhooks.dispatcher import Hooks

PROJECTS_MAX = 1_000  # on the page, the largest first: every submitter can invent a name


STUCK_MS = 10_000  # shorter is a server that is busy or changes

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

    def __init__(self, engine: Engine, perform: Executor, files: Files) -> None:
        self._engine = engine
        self.perform = perform
        self._files = files
        self._counts: ObjectCounts | None = None

    async def page(self) -> bytes:
        from prometheus_client import generate_latest  # imported on the first request

        self._counts = await self.perform.census.of(self._engine.state)
        return generate_latest(self)  # any object with `collect`

    def collect(self) -> Iterator[Any]:
        """The families of prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for kind, name, help, values, labels in self._tables():
            metric = families[kind](name, help, labels=labels)
            for label, value in values if isinstance(values, Sequence) else [((), values)]:
                metric.add_metric(label, value)
            yield metric
        for name, help, histogram in (
            ("roost_commit_seconds", "Duration of commits.", self._engine.commits),
            ("roost_loop_held_seconds", "How late the loop was, 50 times a second.", self._engine.watchdog.held),
        ):
            bounds, totals = (*map(repr, histogram.bounds), "+Inf"), map(float, accumulate(histogram.counts))
            seconds = HistogramMetricFamily(name, help)
            seconds.add_metric([], list(zip(bounds, totals, strict=True)), histogram.total)
            yield seconds

    def _tables(self) -> Iterator[Table]:
        engine, perform, state = self._engine, self.perform, self._engine.state
        counts = self._counts
        assert counts is not None, "they are made before the page"
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
        worst_s = engine.watchdog.worst_s
        yield gauge("roost_loop_held_max_seconds", "The longest that the loop was held since the start.", worst_s)
        restarts = _by_label(engine.tasks.restarts)
        yield counter("roost_task_restarts", "Restarts of background tasks of the server.", restarts, labels=("task",))
        yield counter("roost_events", "Events processed by the engine.", engine.machine.events)
        yield counter("roost_reports_ignored", "Stale reports of agents.", perform.ignored)
        yield counter("roost_effects_failed", "Failed effects.", perform.failed)
        yield from _log_tables(perform.logs)
        loses_files = engine.leadership is not None and not self._files.root.is_shared
        yield gauge("roost_blobs_unshared", "1 if servers share a store, but not its files.", loses_files)
        yield gauge("roost_files_held", "Contents that uploads in progress hold.", self._files.held_count)
        held = self._files.held_bytes
        yield gauge("roost_files_held_bytes", "Bytes of files that were sent, and that nothing uses yet.", held)
        if perform.history is not None:
            past = perform.history.standing()
            yield gauge("roost_history_revision", "The newest commit in the history.", past.revision)
            yield gauge("roost_history_waiting", "Changes not yet in the history.", past.waiting)
            yield gauge("roost_history_bytes", "Size of the history.", past.bytes)
            yield gauge("roost_history_failed", "1 if it cannot be written.", bool(past.failed))
            yield gauge("roost_history_behind", "1 if it lacks commits that this server knows.", past.is_behind)
            yield gauge("roost_history_unshared", "1 if servers share a store, but not its history.", past.is_apart)
            yield counter("roost_history_gaps", "Gaps in the history.", past.gaps)
        yield gauge("roost_nodes", "Nodes by status.", _by_label(counts.nodes), labels=("status",))
        yield gauge("roost_workloads", "Workloads by state.", _by_label(counts.workloads), labels=("state",))
        yield gauge("roost_instances", "Instances by state.", _by_label(counts.instances), labels=("state",))
        placements = _by_label(perform.placements)
        yield counter("roost_placements", "Placements by strategy.", placements, labels=("strategy",))
        yield from _project_tables(state, counts)
        yield from _file_tables(state)
        unwell = (pool for pool in state.pools.values() if pool.status != PoolStatus.READY)
        pools = nsmallest(PROJECTS_MAX, unwell, key=lambda pool: pool.name)
        statuses = [((pool.name, pool.status), 1) for pool in pools]
        yield gauge("roost_pool_unwell", "Pools that are not ready, by status.", statuses, labels=("pool", "status"))
        yield from _agent_tables(state)
        if perform.hooks is not None:
            yield from _hook_tables(perform.hooks)


def _by_label(counts: Mapping[Any, int]) -> Values:
    return [((label,), number) for label, number in sorted(counts.items())]


def _log_tables(logs: LogHub) -> Iterator[Table]:
    yield gauge("roost_log_local_bytes", "Bytes of logs that are not sealed yet.", logs.machine.local_bytes)
    yield counter("roost_log_sealed_bytes", "Bytes of logs sealed in segments.", logs.sealed_bytes)
    yield counter("roost_log_seal_cpu_seconds", "CPU time for segments of logs.", logs.seal_cpu_s)


def _project_tables(state: State, counts: ObjectCounts) -> Iterator[Table]:
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


def _file_tables(state: State) -> Iterator[Table]:
    """Of the projects with most bytes."""
    kept = sorted(nsmallest(PROJECTS_MAX, state.file_usage.items(), key=lambda item: (-item[1].size, item[0])))
    sizes, numbers = ([((name,), used.size) for name, used in kept], [((name,), used.files) for name, used in kept])
    yield gauge("roost_project_file_bytes", "Bytes of inputs and outputs of a project.", sizes, labels=("project",))
    yield gauge("roost_project_files", "Files in inputs and outputs of a project.", numbers, labels=("project",))


def _agent_tables(state: State) -> Iterator[Table]:
    """Of agents that are not well: others have no rows."""
    measured = sorted((name, contact.usage) for name, contact in state.liveness.items() if contact.usage is not None)
    restarts = [((name, task), count) for name, usage in measured for task, count in usage.task_restarts.items()]
    yield counter("roost_agent_task_restarts", "Failed tasks of agents.", restarts, labels=("node", "task"))
    stuck = [((name,), usage.logs_stuck_ms / 1_000) for name, usage in measured if usage.logs_stuck_ms > STUCK_MS]
    yield gauge("roost_agent_logs_stuck_seconds", "Since when no log could be sent.", stuck, labels=("node",))


def _hook_tables(hooks: Hooks) -> Iterator[Table]:
    channels = sorted(hooks.channels.items())
    outcomes = ("delivered", "failed", "given_up", "dropped")
    events = [((key, name), getattr(channel.counts, name)) for key, channel in channels for name in outcomes]
    yield counter("roost_hook_events", "Events of a webhook by outcome.", events, labels=("hook", "outcome"))
    waiting = [((key,), channel.waiting) for key, channel in channels]
    yield gauge("roost_hook_waiting", "Pending events of a webhook.", waiting, labels=("hook",))
