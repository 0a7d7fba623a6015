"""Two published ways to run a batch queue on one machine of equal processors, each from its own paper.

`run_window` is what RLScheduler (SC'20) compares with: the picked job stays picked, its reserved start is fixed once,
and others pass it in the order of submission. `run_log` is textbook EASY over a whole log. Both give each job's start.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from roost.core.queue.easy import after_backfill, reserve
from roost_lab.traces.urgency import Key, Rank

Progress = Callable[[float], None]
PROGRESS_EVERY = 1_000  # events; often enough for a line every two seconds, rare enough to cost nothing


class Job(NamedTuple):
    """One line of a log; times in whole seconds."""

    number: int
    submitted: int
    run: int
    procs: int
    request: int


class Order(NamedTuple):
    key: Key
    ages: bool  # ranks change while jobs wait


def run_window(jobs: Sequence[Job], procs: int, order: Order, backfill: bool) -> list[int]:
    """The starts of these jobs on an empty machine, picked one after the other."""
    window = _Window(jobs, procs, order)
    while window.has_pending():
        picked = window.pick()
        if not window.fits(picked):
            by = window.reserved_start(picked) if backfill else None
            while not window.fits(picked):
                if by is not None:
                    window.pass_by(by)
                window.next_event()
        window.start(picked)
    return window.starts


class _Batch:
    """A machine and its queue. Jobs are their index in the list, so age is order."""

    def __init__(self, jobs: Sequence[Job], procs: int, order: Order) -> None:
        self.jobs = jobs
        self.starts = [0] * len(jobs)
        self.come = 0  # how many have been submitted
        self._order = order
        self._free = procs
        self._now = jobs[0].submitted if jobs else 0
        self._queue: list[tuple[Rank, int]] = []  # a heap of (rank, index)
        self._running: list[tuple[int, int]] = []  # a heap of (end, index)
        self._waiting: dict[int, None] = {}  # pending jobs of a window, oldest first
        self._ends: list[tuple[int, int]] = []  # of a log: sorted (requested end, processors)

    def start(self, index: int) -> None:
        job = self.jobs[index]
        self.starts[index] = self._now
        self._free -= job.procs
        heappush(self._running, (self._now + job.run, index))

    def _rank(self, index: int) -> Rank:
        job = self.jobs[index]
        return self._order.key(job.submitted, job.request, job.procs, self._now)


class _Window(_Batch):
    """The machine between two events. Its queue is not used where ranks age, and keeps jobs that backfill started."""

    def has_pending(self) -> bool:
        """Advance until a job is pending; False when all have started."""
        while not self._waiting and self.come < len(self.jobs):
            self.next_event()
        return bool(self._waiting)

    def pick(self) -> int:
        if self._order.ages:
            return min(self._waiting, key=lambda index: (self._rank(index), index))
        while (index := heappop(self._queue)[1]) not in self._waiting:
            pass
        return index

    def fits(self, index: int) -> bool:
        return self.jobs[index].procs <= self._free

    def reserved_start(self, index: int) -> int:
        """When it can start at the latest, by the requested ends of running jobs."""
        ends = sorted((self.starts[item] + self.jobs[item].request, self.jobs[item].procs) for _, item in self._running)
        free = self._free
        for end, amount in ends:  # not `reserve`: the paper takes an end that is past as it is
            free += amount
            if free >= self.jobs[index].procs:
                return end
        raise AssertionError(f"job {self.jobs[index].number} is wider than the machine")

    def pass_by(self, by: int) -> None:
        """Start pending jobs that fit and end before the reserved start, oldest first."""
        for index in list(self._waiting):
            if self._free == 0:
                return
            job = self.jobs[index]
            if job.procs <= self._free and self._now + job.request < by:
                self.start(index)

    def start(self, index: int) -> None:
        super().start(index)
        del self._waiting[index]

    def next_event(self) -> None:
        """One submission or one end, in order of time; of equal times, the submission first."""
        come = self.come
        if come < len(self.jobs) and (not self._running or self.jobs[come].submitted <= self._running[0][0]):
            self._now = max(self._now, self.jobs[come].submitted)
            self._waiting[come] = None
            self.come += 1
            if not self._order.ages:
                heappush(self._queue, (self._rank(come), come))
            return
        end, index = heappop(self._running)
        self._now = max(self._now, end)
        self._free += self.jobs[index].procs


def run_log(jobs: Sequence[Job], procs: int, order: Order, backfill: bool, progress: Progress) -> list[int]:
    """The starts of all jobs, given by submission: ends, then submissions, then one pass over the queue."""
    machine = _Machine(jobs, procs, order)
    events = 0
    while machine.next_moment():
        machine.start_heads()
        if backfill:
            machine.pass_head()
        events += 1
        if events % PROGRESS_EVERY == 0:
            progress(machine.come / len(jobs))
    return machine.starts


class _Machine(_Batch):
    """The machine at one moment. Its queue is sorted where jobs may pass the head."""

    def next_moment(self) -> bool:
        """Advance to the next submission or end and apply all of that moment; False when none is left."""
        moments = [self._running[0][0]] if self._running else []
        if self.come < len(self.jobs):
            moments.append(self.jobs[self.come].submitted)
        if not moments:
            return False
        self._now = min(moments)
        while self._running and self._running[0][0] <= self._now:
            self._end(heappop(self._running)[1])
        while self.come < len(self.jobs) and self.jobs[self.come].submitted <= self._now:
            heappush(self._queue, (self._rank(self.come), self.come))
            self.come += 1
        return True

    def start_heads(self) -> None:
        if self._order.ages and self._free:
            self._queue = [(self._rank(index), index) for _, index in self._queue]
            heapify(self._queue)
        while self._queue and self.jobs[self._queue[0][1]].procs <= self._free:
            self.start(heappop(self._queue)[1])

    def pass_head(self) -> None:
        """Start jobs that do not delay the head, in the order of the queue."""
        if not self._free or len(self._queue) < 2:
            return
        self._queue.sort()  # still a heap, and nearly sorted from the last time
        reserved = reserve(self.jobs[self._queue[0][1]].procs, self._free, self._ends, self._now)
        assert reserved is not None, "the head is wider than the machine"
        passed = set()
        for _, index in islice(self._queue, 1, None):
            job = self.jobs[index]
            if job.procs > self._free:
                continue
            after = after_backfill(reserved, self._now, job.request, job.procs)
            if after is not None:
                reserved = after
                self.start(index)
                passed.add(index)
                if not self._free:
                    break
        if passed:
            self._queue = [item for item in self._queue if item[1] not in passed]

    def start(self, index: int) -> None:
        super().start(index)
        job = self.jobs[index]
        insort(self._ends, (self._now + job.request, job.procs))

    def _end(self, index: int) -> None:
        job = self.jobs[index]
        self._free += job.procs
        del self._ends[bisect_left(self._ends, (self.starts[index] + job.request, job.procs))]
