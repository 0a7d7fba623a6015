"""Batch logs in the Standard Workload Format: read them, replay them under a queue order, say how long jobs waited."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha512
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roost.model.errors import Invalid, TooMuch
from roost.sim.report import POINTS, Replay, Series
from roost_lab.traces.queues import Job, Order, Progress, run_log, run_window
from roost_lab.traces.tables import VALUE_MAX, open_text
from roost_lab.traces.urgency import AGEING, KEYS, SHORT_S

QUEUES = tuple(KEYS)

COLUMNS = 18  # of the format, version 2.2
JOBS_MAX = 5_000_000  # ten times the longest log of the archive; about 1 GB of memory
LINE_CHARS_MAX = 65_536  # headers have notes; no line is longer by far

WINDOWS = 10
WINDOW_JOBS = 1_024
WINDOWS_LOG_JOBS = 10_000  # the paper takes its windows from the beginning of a log
WINDOWS_JOBS_MIN = 2 * WINDOW_JOBS + 2  # the first possible window begins after one window and ends one before the end
SEED = 1  # of the published windows
UNKNOWN_NOW = -1  # what the published rows of wfp3 and uni took for the present


Floats = NDArray[np.float64]


class Log(NamedTuple):
    """A log that can be replayed: jobs by number; `skipped` ran for no time or on no processor, as far as is known."""

    name: str
    procs: int
    jobs: list[Job]
    skipped: int


class Ran(NamedTuple):
    jobs: Sequence[Job]
    starts: Sequence[int]


def replay_swf(
    log: Log, queue: str, backfill: bool, protocol: str, progress: Progress, true_wait: bool = False, seed: int = SEED
) -> Replay:
    """One log under one queue order. `true_wait` and `seed` belong to the windows."""
    order = Order(KEYS[queue], queue in AGEING)
    if protocol == "log":
        jobs = sorted(log.jobs, key=lambda job: (job.submitted, job.number))
        ran = Ran(jobs, run_log(jobs, log.procs, order, backfill, progress))
        return Replay("swf", queue, _metrics([ran], log), series=(*_over_time(ran, log.procs), _waits([ran])))
    if order.ages and not true_wait:
        order = Order(lambda submitted, request, procs, _: KEYS[queue](submitted, request, procs, UNKNOWN_NOW), False)
    windows = []
    for number, start in enumerate(window_starts(len(log.jobs), seed)):
        jobs = log.jobs[start : start + WINDOW_JOBS]
        windows.append(Ran(jobs, run_window(jobs, log.procs, order, backfill)))
        progress((number + 1) / WINDOWS)
    means = [float(_slowdowns(window).mean()) for window in windows]
    other_series = Series("bounded_slowdown", "", [(float(i + 1), mean) for i, mean in enumerate(means)], "window")
    spread = {"bounded_slowdown_mean": float(np.std(means))}
    return Replay("swf", queue, _metrics(windows, log), spread, (other_series, _waits(windows)))


def window_starts(jobs: int, seed: int = SEED) -> list[int]:
    """Where the ten windows begin in a log of this many jobs; drawn as by the simulator of the paper."""
    jobs = min(jobs, WINDOWS_LOG_JOBS)
    if jobs < WINDOWS_JOBS_MIN:
        raise Invalid(
            "", f"windows take a log of at least {WINDOWS_JOBS_MIN:,} jobs, this has {jobs:,}; use the protocol log"
        )
    drawn = sha512(str(seed).encode()).digest()
    stream = np.random.RandomState([int.from_bytes(drawn[at : at + 4], "little") for at in (0, 4)])
    return [int(stream.randint(WINDOW_JOBS, jobs - WINDOW_JOBS - 1)) for _ in range(WINDOWS)]


def read_log(path: Path, procs: int | None = None) -> Log:
    """Read a log, compressed or not. `procs` overrides the number of processors in its header."""
    with open_text(path, errors="replace") as file:
        return _read(path.name, file, procs)


def _read(name: str, file: IO[str], procs: int | None) -> Log:
    header: dict[str, int] = {}
    jobs: list[Job] = []
    widest = (0, 0)  # processors, line
    skipped = 0
    for number, line in _lines(name, file):
        if line.startswith(";"):
            if found := re.match(r";\s*(MaxProcs|MaxNodes):\s*(\d{1,9})\b", line):
                header[found[1]] = int(found[2])
            continue
        job = _job(line.split(), f"{name}:{number}")
        if job is None:
            skipped += 1
            continue
        jobs.append(job)
        widest = max(widest, (job.procs, -number))
        if len(jobs) > JOBS_MAX:
            raise TooMuch(f"more than {JOBS_MAX:,} jobs", path=name)
    if not jobs:
        raise Invalid(name, "no job that ran")
    total = procs or header.get("MaxProcs") or header.get("MaxNodes")
    if not total:
        raise Invalid(name, "the header says neither MaxProcs nor MaxNodes; give --procs")
    if widest[0] > total:
        raise Invalid(f"{name}:{-widest[1]}", f"asks for {widest[0]:,} processors, there are {total:,}; see --procs")
    jobs.sort(key=lambda job: job.number)
    return Log(name, total, jobs, skipped)


def _lines(name: str, file: IO[str]) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(LINE_CHARS_MAX):
        number += 1
        if len(line) == LINE_CHARS_MAX:
            raise Invalid(f"{name}:{number}", f"longer than {LINE_CHARS_MAX:,} characters; this is no SWF log")
        if line := line.strip():
            yield number, line


def _job(message: list[str], at: str) -> Job | None:
    """A line as a job; None if it never ran. Unknown values are -1."""
    if len(message) < COLUMNS:
        raise Invalid(at, f"{len(message)} columns; a line of a log has {COLUMNS}")
    number, submitted, run, allocated, asked, request = (_number(message, column, at) for column in (1, 2, 4, 5, 8, 9))
    procs = max(allocated, asked)
    if run <= 0 or procs <= 0 or submitted < 0:
        return None
    return Job(number, submitted, run, procs, request if request > 0 else run)


def _number(message: list[str], column: int, at: str) -> int:
    """A whole number; some converters write 12.0 or 12.7, which is cut to seconds."""
    word = message[column - 1]
    try:
        value = int(float(word)) if "." in word else int(word)
    except (ValueError, OverflowError):
        raise Invalid(at, f"column {column} is {word[:40]!r}, not a number") from None
    if not -1 <= value <= VALUE_MAX:
        raise Invalid(at, f"column {column} is {word[:40]}; it is -1 (unknown) or 0 to {VALUE_MAX:,}")
    return value


def _metrics(parts: list[Ran], log: Log) -> dict[str, float]:
    """Means over jobs; over several windows (all of one size) of each window's utilisation."""
    waits = np.concatenate([_wait(part) for part in parts])
    return {
        "bounded_slowdown_mean": float(np.mean([_slowdowns(part).mean() for part in parts])),
        "utilisation": float(np.mean([_utilisation(part, log.procs) for part in parts])),
        "wait_mean_s": float(waits.mean()),
        "wait_p95_s": float(np.percentile(waits, 95)),
        "wait_max_s": float(waits.max()),
        "jobs": len(waits),
        "jobs_skipped": log.skipped,
    }


def _wait(ran: Ran) -> Floats:
    return np.array([start - job.submitted for start, job in zip(ran.starts, ran.jobs, strict=True)], dtype=float)


def _slowdowns(ran: Ran) -> Floats:
    """(wait + run) / run, where runs below ten seconds count as ten, and never below one."""
    runs = np.array([job.run for job in ran.jobs], dtype=float)
    return np.asarray(np.maximum(1.0, (_wait(ran) + runs) / np.maximum(runs, SHORT_S)))


def _utilisation(ran: Ran, procs: int) -> float:
    """Processor-seconds used, of those there were from the first submission to the last end."""
    ends = [start + job.run for start, job in zip(ran.starts, ran.jobs, strict=True)]
    span = max(ends) - min(job.submitted for job in ran.jobs)
    return sum(job.run * job.procs for job in ran.jobs) / (span * procs)


def _over_time(ran: Ran, procs: int) -> tuple[Series, Series]:
    submitted = np.array([job.submitted for job in ran.jobs], dtype=float)
    starts = np.array(ran.starts, dtype=float)
    ends = starts + np.array([job.run for job in ran.jobs], dtype=float)
    widths = np.array([job.procs for job in ran.jobs], dtype=float)
    edges = np.linspace(submitted.min(), ends.max(), POINTS + 1)
    slice_s = edges[1] - edges[0]
    hours = (edges[1:] - edges[0]) / 3_600
    used = np.diff(_spent(starts, ends, widths, edges)) / slice_s / procs * 100
    waiting = np.diff(_spent(submitted, starts, np.ones_like(starts), edges)) / slice_s
    return (
        Series("utilisation", "%", list(zip(hours.tolist(), used.tolist(), strict=True))),
        Series("waiting", "jobs", list(zip(hours.tolist(), waiting.tolist(), strict=True))),
    )


def _spent(begins: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """The sum of amount x time passed between begin and end, up to each edge."""
    return np.array([amounts @ (np.minimum(ends, edge) - np.minimum(begins, edge)) for edge in edges])


def _waits(parts: list[Ran]) -> Series:
    """How long the share x of the jobs waited at most."""
    waits = np.concatenate([_wait(part) for part in parts])
    shares = np.linspace(0, 100, POINTS + 1)
    hours = np.percentile(waits, shares) / 3_600
    return Series("wait", "hours", list(zip(shares.tolist(), hours.tolist(), strict=True)), "% of the jobs")
