"""Needs: what the last runs of the same work used. Nothing is placed by this: it is for people who ask for too much."""

from roost.core.state.records import StoredRecords
from roost.model.reasons.needs import RequestAboveUse
from roost.model.records.usage import RunUsage, TypicalNeed
from roost.model.records.workload import Workload

RUNS_MAX = 12  # kept of each: two of twelve that used much stay known for a while, and then are forgotten
RUNS_MIN = 5  # fewer tell nothing
LEARN_MS_MIN = 1_000  # shorter runs say little of cores, and would be one more record for each of thousands a second
STEADY_MS = 60_000  # whatever has run that long counts, also if it was stopped or failed
NEEDS_MAX = 4_096  # of all projects, some 300 bytes each; an eighth is forgotten at a time, the oldest first
FAR_ABOVE = (("cpu", 3, 1_000), ("memory", 2, 256 << 20))  # so many times the use, and so much more than it
UNKNOWN = -1


def learn_need(state: StoredRecords, spec: Workload, name: str, used: RunUsage, *, well: bool, now: int) -> None:
    """Remember what a run used that ended by itself, and well, or ran for long."""
    is_measured = used.cpu_ms is not None or used.memory_max is not None
    if not is_measured or used.wall_ms < (LEARN_MS_MIN if well else STEADY_MS):
        return
    key = f"{spec.project}/{name}"
    known = state.needs.get(key)
    if known is None and len(state.needs) >= NEEDS_MAX:
        _forget(state)
    cpu_milli = used.cpu_ms * 1_000 // used.wall_ms if used.cpu_ms is not None else UNKNOWN
    run = (cpu_milli, used.memory_max if used.memory_max is not None else UNKNOWN)
    runs = (*(known.runs if known is not None else ())[1 - RUNS_MAX :], run)
    state.needs[key] = state.dirty["need", key] = TypicalNeed(spec.project, name, now, runs)


def above_use(need: TypicalNeed | None, spec: Workload) -> tuple[RequestAboveUse, ...]:
    """Where a workload asks for far more than its last runs used."""
    found: list[RequestAboveUse] = []
    for number, (name, factor, least) in enumerate(FAR_ABOVE):
        asked = dict(spec.policy.ask.resources).get(name, 0)
        used = [run[number] for run in (need.runs if need is not None else ()) if run[number] != UNKNOWN]
        most = max(used, default=0)
        if len(used) >= RUNS_MIN and asked >= factor * most and asked - most >= least:
            found.append(RequestAboveUse(name, asked, most, len(used)))
    return tuple(found)


def _forget(state: StoredRecords) -> None:
    oldest = sorted((need.last_ms, key) for key, need in state.needs.items())
    for _, key in oldest[: NEEDS_MAX // 8]:
        del state.needs[key]
        state.dirty["need", key] = None
