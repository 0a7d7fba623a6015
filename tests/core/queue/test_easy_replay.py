"""On one node, with no patience, the queue is textbook EASY: it starts every job when the replay of batch logs does."""

from hypothesis import assume, given
from hypothesis import strategies as st
from roost_lab.traces.queues import Job, Order, run_log
from roost_lab.traces.urgency import KEYS

from roost.model.events import ReportsReceived, Submit
from roost.model.protocol import Report
from tests.core.scene import Scene, job, wanted

PROCS = 8
UNIT_MS = 60_000  # starts that are closer than ten seconds are the same to the queue
JOBS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, PROCS), st.integers(1, 200), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)


@given(JOBS)
def test_the_queue_starts_jobs_when_easy_does(lines: list[tuple[int, int, int, int]]) -> None:
    submitted, jobs = 0, []
    for number, (pause, procs, run, spare) in enumerate(lines):
        submitted += pause
        jobs.append(Job(number, submitted, run, procs, run + spare))
    expected = run_log(jobs, PROCS, Order(KEYS["fcfs"], False), True, lambda share: None)
    ends = [start + other_job.request for start, other_job in zip(expected, jobs, strict=True)]
    assume(len(set(ends)) == len(ends))  # of ends at one moment the textbook counts only as many as it needs
    assert starts_of(jobs) == expected


def starts_of(jobs: list[Job]) -> list[int]:
    """When the queue starts each job: at every moment first what ends, then what comes, then one pass."""
    scene = Scene("a", cpu=PROCS, backfill_after_ms=0, preempt_margin=0, prefill_max=0, lease_ms=1 << 40)
    origin = scene.now
    starts: dict[int, int] = {}
    come = 0
    while len(starts) < len(jobs) or any(instance.state == "placed" for instance in scene.state.instances.values()):
        live = {
            int(instance.workload.rpartition("-")[2]): instance
            for instance in scene.state.instances.values()
            if instance.node
        }
        live = {number: instance for number, instance in live.items() if instance.state == "placed"}
        moments = [starts[number] + jobs[number].run for number in live]
        moments += [jobs[come].submitted] if come < len(jobs) else []
        now = min(moments)
        scene.now = origin + now * UNIT_MS
        over = [instance for number, instance in live.items() if starts[number] + jobs[number].run == now]
        session = scene.state.nodes["a"].session
        events = [
            ReportsReceived("a", session, 1, (Report(instance.token, "ended", cause="exited", code=0),))
            for instance in over
        ]
        new = [other_job for other_job in jobs[come:] if other_job.submitted == now]
        come += len(new)
        asked = tuple(
            wanted(job(f"j-{other_job.number}", resources={"cpu": other_job.procs}, timeout=f"{other_job.request}m"))
            for other_job in new
        )
        scene.step(*events, *([Submit(1, asked)] if asked else []))
        while scene.steps[-1].wake_at_ms == scene.now:
            scene.step()
        for instance in scene.state.instances.values():
            if instance.state == "placed":
                starts.setdefault(int(instance.workload.rpartition("-")[2]), now)
    return [starts[other_job.number] for other_job in jobs]
