"""Batch logs: what is read, what is refused, and the published figures that come out again."""

import gzip
import os
import random
from pathlib import Path

import pytest
from roost_lab.traces.queues import Job, Order, run_log, run_window
from roost_lab.traces.swf import Log, read_log, replay_swf, window_starts
from roost_lab.traces.urgency import KEYS

from roost.model.errors import Invalid, Unreadable
from roost.sim.report import Replay

DATA = Path(os.environ.get("ROOST_SHARED_DATA") or Path(__file__).parents[4] / "shared" / "data") / "swf"
FCFS = Order(KEYS["fcfs"], False)
HEADER = "; MaxNodes: 4\n; MaxProcs: 8\n"
LINE = "{number} {submitted} -1 {run} {procs} -1 -1 {procs} {request} -1 1 1 1 -1 -1 -1 -1 -1\n"


def quiet(share: float) -> None:
    assert 0 <= share <= 1


def real(name: str) -> Log:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the log {name} is not here; it is no part of Roost")
    return read_log(path)


def line(number: int, submitted: int = 0, run: int = 60, procs: int = 1, request: int = 60) -> str:
    return LINE.format(number=number, submitted=submitted, run=run, procs=procs, request=request)


def written(folder: Path, text: str) -> Path:
    path = folder / "some.swf"
    path.write_text(text)
    return path


def test_a_log_is_read_with_what_its_header_says(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, HEADER + "\n" + line(2, 30, 5, 4, 10) + ";note\n" + line(1)))
    assert log == Log("some.swf", 8, [Job(1, 0, 60, 1, 60), Job(2, 30, 5, 4, 10)], 0)


def test_a_packed_log_is_the_same_log(tmp_path: Path) -> None:
    path = tmp_path / "some.swf"
    path.write_bytes(gzip.compress((HEADER + line(1)).encode()))
    assert read_log(path).jobs == [Job(1, 0, 60, 1, 60)]


def test_a_job_without_a_request_is_taken_to_have_asked_for_what_it_took(tmp_path: Path) -> None:
    assert read_log(written(tmp_path, HEADER + line(1, run=70, request=-1))).jobs[0].request == 70


def test_what_never_ran_is_skipped_and_counted(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, HEADER + line(1) + line(2, run=0) + line(3, run=-1) + line(4, procs=-1)))
    assert ([job.number for job in log.jobs], log.skipped) == ([1], 3)


def test_the_caller_may_know_the_processors_better(tmp_path: Path) -> None:
    assert read_log(written(tmp_path, line(1)), procs=5).procs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + line(1) + "1 2 3\n", "some.swf:4: 3 columns"),
        (HEADER + line(1).replace("60", "soon"), "some.swf:3: column 4 is 'soon', not a number"),
        (HEADER + "\n" + line(1).replace("60", "inf"), "some.swf:4: column 4 is 'inf'"),
        (HEADER + line(1, run=-7), "some.swf:3: column 4 is -7"),
        (HEADER + line(1) + line(2, procs=9), "some.swf:4: asks for 9 processors, there are 8"),
        (line(1), "neither MaxProcs nor MaxNodes"),
        (HEADER, "no job that ran"),
        ("x" * 70_000, "some.swf:1: longer than"),
    ],
)
def test_a_wrong_log_is_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_log(written(tmp_path, text))
    assert message in str(refused.value)


def test_a_packed_log_that_is_cut_off_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.swf.gz"
    path.write_bytes(gzip.compress((HEADER + line(1) * 1_000).encode())[:-20])
    with pytest.raises(Unreadable):
        read_log(path)


def test_windows_are_drawn_as_published() -> None:
    assert window_starts(10_000) == [1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085]
    assert window_starts(28_481) == window_starts(10_000) != window_starts(10_000, seed=2)
    with pytest.raises(Invalid, match="at least 2,050 jobs"):
        window_starts(2_049)


def test_a_job_that_is_gone_in_time_passes_and_one_that_is_not_waits() -> None:
    runs, wide = Job(1, 0, 100, 6, 100), Job(2, 1, 50, 8, 50)
    short, long = Job(3, 2, 97, 2, 97), Job(4, 3, 99, 2, 99)
    assert run_log([runs, wide, short], 8, FCFS, False, quiet) == [0, 100, 150]
    assert run_log([runs, wide, short], 8, FCFS, True, quiet) == [0, 100, 2]
    assert run_log([runs, wide, long], 8, FCFS, True, quiet) == [0, 100, 150]
    assert run_window([runs, wide, short], 8, FCFS, True) == [0, 100, 2]
    assert run_window([runs, wide, long], 8, FCFS, True) == [0, 100, 150]


def test_a_narrow_job_uses_what_the_head_leaves_over() -> None:
    jobs = [Job(1, 0, 100, 6, 100), Job(2, 1, 50, 7, 50), Job(3, 2, 500, 1, 500)]
    assert run_log(jobs, 8, FCFS, True, quiet) == [0, 100, 2]


def random_jobs(seed: int, exact: bool) -> list[Job]:
    chance = random.Random(seed)
    jobs = []
    submitted = 0
    for number in range(120):
        submitted += chance.choice((0, 1, 5, 20))
        run = chance.choice((1, 5, 20, 60, 200))
        request = run if exact else run * chance.randint(1, 5)
        jobs.append(Job(number, submitted, run, chance.choice((1, 1, 2, 4, 9, 16)), request))
    return jobs


def reserved_start(jobs: list[Job], starts: list[int], head: int, procs: int) -> int:
    """From outside: when the head could start at the latest, by what ran when it became the head."""
    since = max([jobs[head].submitted, *starts[:head]])
    ran = [i for i in range(len(jobs)) if starts[i] < since or (starts[i] == since and i < head)]
    for moment in sorted({since, *(starts[i] + jobs[i].run for i in ran)}):
        used = sum(jobs[i].procs for i in ran if starts[i] + jobs[i].run > moment)
        if moment >= since and procs - used >= jobs[head].procs:
            return moment
    raise AssertionError("an empty machine has room")


@pytest.mark.parametrize("seed", range(20))
def test_backfill_never_delays_the_reserved_start_of_the_head(seed: int) -> None:
    jobs = random_jobs(seed, exact=True)
    for starts in (run_log(jobs, 16, FCFS, True, quiet), run_window(jobs, 16, FCFS, True)):
        assert starts != run_log(jobs, 16, FCFS, False, quiet)
        for head in range(len(jobs)):
            assert starts[head] <= reserved_start(jobs, starts, head, 16)


@pytest.mark.parametrize("queue", KEYS)
@pytest.mark.parametrize("backfill", [False, True])
def test_no_job_is_early_or_forgotten_and_the_machine_is_never_overfull(queue: str, backfill: bool) -> None:
    jobs = random_jobs(7, exact=False)
    order = Order(KEYS[queue], True)
    for starts in (run_log(jobs, 16, order, backfill, quiet), run_window(jobs, 16, order, backfill)):
        assert all(start >= job.submitted for start, job in zip(starts, jobs, strict=True))
        for moment in starts:
            running = [i for i, start in enumerate(starts) if start <= moment < start + jobs[i].run]
            assert sum(jobs[i].procs for i in running) <= 16


def slowdown(replay: Replay) -> float:
    return round(replay.metrics["bounded_slowdown_mean"], 2)


@pytest.mark.parametrize(
    ("queue", "plain", "backfilled"),
    [
        ("fcfs", 7273.77, 235.82),
        ("wfp3", 19753.53, 133.87),
        ("uni", 22274.74, 307.23),
        ("sjf", 277.35, 73.31),
        ("f1", 258.37, 75.07),
        ("area", 292.88, 54.00),
    ],
)
def test_published_windows_of_lublin(queue: str, plain: float, backfilled: float) -> None:
    log = real("lublin_256.swf.gz")
    assert slowdown(replay_swf(log, queue, False, "windows", quiet)) == plain
    assert slowdown(replay_swf(log, queue, True, "windows", quiet)) == backfilled


@pytest.mark.parametrize(("queue", "plain", "backfilled"), [("wfp3", 337.34, 126.50), ("uni", 381.71, 103.10)])
def test_windows_of_lublin_with_the_true_wait(queue: str, plain: float, backfilled: float) -> None:
    log = real("lublin_256.swf.gz")
    assert slowdown(replay_swf(log, queue, False, "windows", quiet, true_wait=True)) == plain
    assert slowdown(replay_swf(log, queue, True, "windows", quiet, true_wait=True)) == backfilled


def test_our_order_beats_the_best_known_one_on_lublin() -> None:
    assert slowdown(replay_swf(real("lublin_256.swf.gz"), "ours", True, "windows", quiet)) < 54.0


@pytest.mark.parametrize(
    ("queue", "backfill", "expected"),
    [("fcfs", False, 6818.59), ("fcfs", True, 92.69), ("area", True, 53.03), ("ours", True, 44.72)],
)
def test_the_whole_log_of_kth(queue: str, backfill: bool, expected: float) -> None:
    replay = replay_swf(real("KTH-SP2.swf.gz"), queue, backfill, "log", quiet)
    assert slowdown(replay) == expected
    assert replay.metrics["jobs"] == 28_481
    assert {series.name for series in replay.series} == {"utilisation", "waiting", "wait"}
    if backfill:
        assert round(replay.metrics["utilisation"], 4) == 0.6874


def test_another_log_is_read_too() -> None:
    log = real("NASA-iPSC-1993-3.1-cln.swf.gz")
    assert (log.procs, len(log.jobs) + log.skipped) == (128, 18_239)
    assert slowdown(replay_swf(log, "fcfs", True, "log", quiet)) < 1.1  # the machine is nearly empty
