"""Views of usage: what an attempt used, and sums over attempts by project, workload or day."""

from collections.abc import Iterator
from datetime import date
from typing import Literal, NamedTuple

import msgspec

from roost.core.state.state import State
from roost.core.state.usage import by_day, recurring_name
from roost.model.records.usage import RunUsage, UsageTotals
from roost.schema.projects import UsageRow
from roost.schema.work import RunUsageView


def run_usage_view(usage: RunUsage | None) -> RunUsageView | None:
    if usage is None:
        return None
    found = {"cpu": usage.cpu_ms, "memory": usage.memory_max, "io": usage.io_read}
    return RunUsageView(
        wall_ms=usage.wall_ms,
        cpu_ms=usage.cpu_ms,
        memory_max=usage.memory_max,
        memory_is_bound=usage.memory_is_bound,
        io_read=usage.io_read,
        io_written=usage.io_written,
        unmeasured=[name for name, amount in found.items() if amount is None],
    )


By = Literal["project", "workload", "day"]
EPOCH = date(1970, 1, 1).toordinal()


class UsageQuery(NamedTuple):
    now_ms: int
    projects: frozenset[str] | None  # that the caller may see; None: all
    project: str = ""  # only of this one
    by: By = "project"
    first_day: int = 0
    last_day: int = 1 << 62


def usage_rows(state: State, query: UsageQuery) -> dict[str, UsageRow]:
    """By a key in their order: the project, PROJECT/WORKLOAD, or the day. What still runs counts up to now."""
    found: dict[tuple[str, str, str], list[UsageTotals]] = {}
    running: dict[tuple[str, str, str], int] = {}
    for project, name, day, totals in _ended(state):
        if query.last_day >= day >= query.first_day and _is_wanted(project, query):
            found.setdefault(_key(project, name, day, query.by), []).append(totals)
    for project, name, day, totals, is_last in _running(state, query):
        if query.last_day >= day >= query.first_day:
            key = _key(project, name, day, query.by)
            found.setdefault(key, []).append(totals)
            running[key] = running.get(key, 0) + is_last
    rows: dict[str, UsageRow] = {}
    for key, parts in found.items():
        project, name, day_name = key
        total = msgspec.structs.asdict(sum(parts, UsageTotals()))
        row = UsageRow(project=project, workload=name, day=day_name, running=running.get(key, 0), **total)
        rows[day_name or f"{project}/{name}".removesuffix("/" if query.by == "project" else "")] = row
    return rows


def day_name(day: int) -> str:
    return date.fromordinal(EPOCH + day).isoformat()


def _ended(state: State) -> Iterator[tuple[str, str, int, UsageTotals]]:
    for day, projects in state.usage.items():
        for project, record in projects.items():
            for name, totals in record.workloads.items():
                yield project, name, day, totals


def _running(state: State, query: UsageQuery) -> Iterator[tuple[str, str, int, UsageTotals, bool]]:
    for held in state.allocated.values():
        for instance in held.values():
            spec = state.spec_of(instance)
            if not instance.started_ms or not _is_wanted(spec.project, query):
                continue
            parts = by_day(spec, None, min(instance.started_ms, query.now_ms), query.now_ms)
            for number, (day, totals) in enumerate(parts, start=1):
                yield spec.project, recurring_name(spec), day, totals, number == len(parts)


def _is_wanted(project: str, query: UsageQuery) -> bool:
    return (query.projects is None or project in query.projects) and query.project in ("", project)


def _key(project: str, name: str, day: int, by: By) -> tuple[str, str, str]:
    if by == "day":
        return "", "", day_name(day)
    return project, name if by == "workload" else "", ""
