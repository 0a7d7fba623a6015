"""On one node, with no patience, the queue is textbook EASY: it starts every job when the replay of batch logs does."""

from hypothesis import assume, given
from hypothesis import strategies as st

from roost.model.events import Reported, Submit
from roost.model.frames import Report
from roost.sim.traces.queues import Job, Order, run_log
from roost.sim.traces.urgency import KEYS
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
    ends = [start + each.request for start, each in zip(expected, jobs, strict=True)]
    assume(len(set(ends)) == len(ends))  # of ends at one moment the textbook counts only as many as it needs
    assert starts_of(jobs) == expected


def starts_of(jobs: list[Job]) -> list[int]:
    """When the queue starts each job: at every moment first what ends, then what comes, then one pass."""
    scene = Scene("a", cpu=PROCS, patience_ms=0, preempt_margin=0, ahead_max=0, lease_ms=1 << 40)
    origin = scene.now
    starts: dict[int, int] = {}
    come = 0
    while len(starts) < len(jobs) or any(each.state == "placed" for each in scene.state.instances.values()):
        live = {int(each.workload.rpartition("-")[2]): each for each in scene.state.instances.values() if each.node}
        live = {number: each for number, each in live.items() if each.state == "placed"}
        moments = [starts[number] + jobs[number].run for number in live]
        moments += [jobs[come].submitted] if come < len(jobs) else []
        now = min(moments)
        scene.now = origin + now * UNIT_MS
        over = [each for number, each in live.items() if starts[number] + jobs[number].run == now]
        session = scene.state.nodes["a"].session
        events = [Reported("a", session, 1, (Report(each.token, "ended", cause="exited", code=0),)) for each in over]
        new = [each for each in jobs[come:] if each.submitted == now]
        come += len(new)
        asked = tuple(
            wanted(job(f"j-{each.number}", resources={"cpu": each.procs}, timeout=f"{each.request}m")) for each in new
        )
        scene.step(*events, *([Submit(1, asked)] if asked else []))
        while scene.steps[-1].wake_at_ms == scene.now:
            scene.step()
        for each in scene.state.instances.values():
            if each.state == "placed":
                starts.setdefault(int(each.workload.rpartition("-")[2]), now)
    return [starts[each.number] for each in jobs]
