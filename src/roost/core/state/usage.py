"""Usage: what each attempt used, and what attempts have had and used, added up by day, project and workload.

An attempt counts in the commit that releases its allocation, once: a report that comes again finds it released. So the
sums survive what that commit survives, and need no history. They are bounded: old days lose their names and then go.
"""

import re

import msgspec

from roost.core.state.needs import learn_need
from roost.core.state.state import State
from roost.model.protocol import Report
from roost.model.records.instance import Instance
from roost.model.records.usage import DayUsage, RunUsage, UsageTotals
from roost.model.records.workload import Workload

DAY_MS = 86_400_000
DAYS_MAX = 400  # kept: a year can be compared with the one before it
NAMED_DAYS = 35  # by workload: a month, and some
NAMES_MAX = 100  # workloads of a project and day: 5 KB in one record, which every commit of that day may write
ENTRIES_MAX = 200_000  # of all projects: some 60 MB
OTHERS = ""
_MADE_SUFFIX = re.compile(r"-[0-9a-f]{6}\Z")  # as `roost run` gives its jobs


def usage_of(instance: Instance, report: Report) -> RunUsage | None:
    """What an attempt used whose end is reported; None: it never began."""
    if not instance.started_ms and report.usage is None:
        return None
    wall_ms = max(0, report.started_ago_ms - report.ended_ago_ms)
    return msgspec.structs.replace(report.usage or RunUsage(), wall_ms=wall_ms)


def charge_usage(state: State, spec: Workload, instance: Instance, now: int) -> None:
    """Count an attempt that has ended or is lost; to be called when its allocation is released."""
    used = instance.usage
    if used is None and not instance.started_ms:
        return  # it never began
    wall_ms = used.wall_ms if used is not None else max(0, now - instance.started_ms)
    name, parts = recurring_name(spec), by_day(spec, used, now - wall_ms, now)
    if used is not None:
        learn_need(state, spec, name, used, well=instance.exit_code == 0, now=now)
    last = parts[-1]
    parts[-1] = last[0], msgspec.structs.replace(last[1], attempts=1, unreported=int(used is None))
    for day, totals in parts:
        _add(state, spec.project, day, name, totals)


def by_day(spec: Workload, used: RunUsage | None, begin_ms: int, end_ms: int) -> list[tuple[int, UsageTotals]]:
    """What an attempt had and used on each day: what was measured is taken as spread evenly."""
    wall_ms = end_ms - begin_ms
    whole, done = totals_of(spec, used, wall_ms), UsageTotals()
    parts: list[tuple[int, UsageTotals]] = []
    for midnight_ms in range((begin_ms // DAY_MS + 1) * DAY_MS, end_ms + 1, DAY_MS)[-DAYS_MAX:]:
        so_far = _share(whole, midnight_ms - begin_ms, wall_ms)
        parts.append((midnight_ms // DAY_MS - 1, _without(so_far, done)))
        done = so_far
    return [*parts, (end_ms // DAY_MS, _without(whole, done))]


def totals_of(spec: Workload, used: RunUsage | None, wall_ms: int) -> UsageTotals:
    """What an attempt has had for so long, and what it used of that."""
    ask = dict(spec.policy.ask.resources)
    cpu_ms, memory_kib_s = ask.get("cpu", 0) * wall_ms // 1_000, (ask.get("memory", 0) >> 10) * wall_ms // 1_000
    gpu_ms = ask.get("gpu", 0) * wall_ms // 1_000
    if used is None:
        return UsageTotals(wall_ms=wall_ms, cpu_ms=cpu_ms, memory_kib_s=memory_kib_s, gpu_ms=gpu_ms)
    has_cpu, has_memory = used.cpu_ms is not None, used.memory_max is not None
    return UsageTotals(
        wall_ms=wall_ms, cpu_ms=cpu_ms, memory_kib_s=memory_kib_s, gpu_ms=gpu_ms,
        cpu_used_ms=used.cpu_ms or 0, cpu_measured_ms=cpu_ms if has_cpu else 0,
        memory_used_kib_s=((used.memory_max or 0) >> 10) * wall_ms // 1_000,
        memory_measured_kib_s=memory_kib_s if has_memory else 0,
        io_read=used.io_read or 0, io_written=used.io_written or 0,
    )  # fmt: skip


def recurring_name(spec: Workload) -> str:
    """The name that runs of the same work share: of their schedule, their pipeline and action, their template, or
    their own without the suffix that makes it unique."""
    if spec.parent:
        return spec.parent.partition("/")[2]
    labels = dict([label.split("=", 1) for label in spec.policy.labels if "=" in label])
    if labels.get("run") and (run := f"-{labels['run']}-") in spec.name:
        return spec.name.replace(run, "-", 1)
    return labels.get("template") or _MADE_SUFFIX.sub("", spec.name)


def set_day(state: State, project: str, day: int, record: DayUsage | None) -> None:
    projects = state.usage.setdefault(day, {})
    before = projects.pop(project, None)
    if record is not None:
        projects[project] = record
    elif not projects:
        del state.usage[day]
    state.usage_entries += len(record.workloads if record else ()) - len(before.workloads if before else ())


def _add(state: State, project: str, day: int, name: str, totals: UsageTotals) -> None:
    record = state.usage.get(day, {}).get(project)
    if record is None:
        _make_room(state, project, day)
        record = DayUsage(project, day)
    if name not in record.workloads and (len(record.workloads) >= NAMES_MAX or state.usage_entries >= ENTRIES_MAX):
        name = OTHERS
    known = record.workloads.get(name)
    workloads = {**record.workloads, name: known + totals if known is not None else totals}
    _put(state, DayUsage(project, day, workloads))


def _make_room(state: State, project: str, day: int) -> None:
    """On the first attempt of a project on a day: its old days lose their names, and the oldest go."""
    for old in sorted(state.usage):
        record = state.usage[old].get(project)
        if old <= day - DAYS_MAX or (state.usage_entries >= ENTRIES_MAX and old < day - NAMED_DAYS):
            for gone in sorted(state.usage[old]):
                set_day(state, gone, old, None)
                state.dirty["usage", f"{gone}/{old}"] = None
        elif old < day - NAMED_DAYS and record is not None and record.workloads.keys() != {OTHERS}:
            _put(state, DayUsage(project, old, {OTHERS: sum(record.workloads.values(), UsageTotals())}))


def _put(state: State, record: DayUsage) -> None:
    set_day(state, record.project, record.day, record)
    state.dirty["usage", f"{record.project}/{record.day}"] = record


def _share(whole: UsageTotals, part_ms: int, wall_ms: int) -> UsageTotals:
    return UsageTotals(*[amount * part_ms // wall_ms for amount in msgspec.structs.astuple(whole)])


def _without(whole: UsageTotals, part: UsageTotals) -> UsageTotals:
    return UsageTotals(*map(int.__sub__, msgspec.structs.astuple(whole), msgspec.structs.astuple(part)))
