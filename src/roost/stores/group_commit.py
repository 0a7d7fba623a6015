"""Group commit: jobs run one at a time in the order of the calls, and commits that wait together are written as one.

A store gives a writer, which talks to its database, and runs the jobs either in a task or in a thread of their own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from roost.ports import store as port

CLOSED = port.Unavailable("the store is closed")

Outcome = port.CommitResult | Exception
P = TypeVar("P")  # a commit as the store writes it
T = TypeVar("T")
Q = TypeVar("Q", contravariant=True)


class WaitingCommit(NamedTuple):
    future: "asyncio.Future[port.CommitResult]"
    epoch: int
    changes: Any


class WaitingCall(NamedTuple):
    """Any other job: `work` runs alone."""

    future: "asyncio.Future[Any]"
    work: Callable[[], Any]


class Weight(NamedTuple):
    """The size of a commit, and the limit of a group, which always takes one commit."""

    changes: int
    bytes: int = 0


class TaskWriter(Protocol[Q]):
    """What a store does in a task."""

    def weigh(self, changes: Q) -> Weight:
        """What one commit adds to a transaction."""

    async def commit(self, epoch: int, group: Sequence[Q]) -> Sequence[Outcome]:
        """One transaction: the outcome of each commit."""

    async def perform(self, work: Callable[[], Awaitable[object]]) -> object:
        """The result of `work`, or the error that its caller gets."""

    async def tidy(self) -> None:
        """After every job: what can wait until its caller has the outcome."""


class ThreadWriter(Protocol[Q]):
    """What a store does in a thread."""

    closed: bool

    def weigh(self, changes: Q) -> Weight:
        """What one commit adds to a transaction."""

    def commit(self, epoch: int, group: Sequence[Q]) -> Sequence[Outcome]:
        """One transaction: the outcome of each commit."""

    def perform(self, work: Callable[[], object]) -> object:
        """The result of `work`, or the error that its caller gets."""

    def tidy(self) -> None:
        """After commits: what can wait until the callers have their outcome."""


class GroupCommit(Generic[P]):
    """The jobs of one store. For one event loop; a caller that is cancelled does not take its commit back."""

    def __init__(self, weigh: Callable[[P], Weight], limit: Weight) -> None:
        self.closed = False
        self._weigh = weigh
        self._limit = limit
        self._jobs: SimpleQueue[WaitingCommit | WaitingCall] = SimpleQueue()
        self._next: WaitingCommit | WaitingCall | None = None  # taken from the queue, and not part of the last group

    def commit(self, epoch: int, changes: P) -> "asyncio.Future[port.CommitResult]":
        return self._put(WaitingCommit(asyncio.get_running_loop().create_future(), epoch, changes))

    def _call(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        return self._put(WaitingCall(asyncio.get_running_loop().create_future(), work))

    def _put(self, job: WaitingCommit | WaitingCall) -> "asyncio.Future[Any]":
        if self.closed:
            job.future.set_result(CLOSED)
        else:
            self._jobs.put(job)
            self._wake()
        return job.future

    def _wake(self) -> None:
        raise NotImplementedError

    def _take(self) -> WaitingCall | list[WaitingCommit]:
        """Wait for a job. With a commit come those behind it, up to another job, another epoch or a full group."""
        job, self._next = self._next or self._jobs.get(), None
        if isinstance(job, WaitingCall):
            return job
        commits, (changes, size) = [job], self._weigh(job.changes)
        while not self._jobs.empty():
            job = self._jobs.get()
            if isinstance(job, WaitingCall) or job.epoch != commits[0].epoch:
                self._next = job
                break
            more = self._weigh(job.changes)
            changes, size = changes + more.changes, size + more.bytes
            if changes > self._limit.changes or size > self._limit.bytes:
                self._next = job
                break
            commits.append(job)
        return commits


class TaskGroupCommit(GroupCommit[P]):
    """The jobs of a store whose client is asynchronous. The task ends when nothing is left to do."""

    def __init__(self, writer: TaskWriter[P], limit: Weight) -> None:
        super().__init__(writer.weigh, limit)
        self._writer = writer
        self._task: asyncio.Task[None] | None = None

    def call(self, work: Callable[[], Awaitable[T]]) -> "asyncio.Future[T | port.LoadFailure]":
        """Run this after the jobs before it. A StoreError becomes its failure."""
        return self._call(work)

    async def close(self) -> None:
        self.closed = True
        while self._task is not None:
            await asyncio.wait([self._task])

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="store")

    async def _serve(self) -> None:
        try:
            while self._next is not None or not self._jobs.empty():
                job = self._take()
                if isinstance(job, WaitingCall):
                    _resolve([job], [await self._writer.perform(job.work)])
                else:
                    changes = [commit.changes for commit in job]
                    _resolve(job, await self._writer.commit(job[0].epoch, changes))
                await self._writer.tidy()
        finally:
            self._task = None


class ThreadGroupCommit(GroupCommit[P]):
    """The jobs of a store whose library blocks. The thread goes on while the event loop is busy."""

    def __init__(self, writer: ThreadWriter[P], limit: Weight) -> None:
        super().__init__(writer.weigh, limit)
        self._writer = writer
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], T]) -> "asyncio.Future[T | port.LoadFailure]":
        """Run this after the jobs before it. A StoreError becomes its failure."""
        return self._call(work)

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def _wake(self) -> None:
        if self._thread is None:
            # A daemon: a server that dies without closing must not hang on its way out.
            self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._writer.closed:
            job = self._take()
            if isinstance(job, WaitingCall):
                _resolve_in_loop([job], [self._writer.perform(job.work)])
            else:
                changes = [commit.changes for commit in job]
                _resolve_in_loop(job, self._writer.commit(job[0].epoch, changes))
                self._writer.tidy()


def in_doubt(error: Exception) -> Exception:
    """The error of a commit that was sent: without an answer it may have happened."""
    if isinstance(error, port.StoreError) and isinstance(error.failure, port.Unavailable):
        return port.StoreError(port.InDoubt(error.failure.reason))
    return error


def load_failure(error: Exception) -> port.LoadFailure:
    """The failure of a load. Raises what is a defect."""
    if isinstance(error, port.StoreError) and isinstance(error.failure, port.Unavailable | port.Damaged):
        return error.failure
    raise error


def committed(first: int, count: int) -> list[port.Committed]:
    return [port.Committed(revision) for revision in range(first, first + count)]


def fenced(epoch: int, lead: port.Lead) -> port.Fenced:
    return port.Fenced(f"epoch {epoch} may not commit: {lead.identity or 'no server'} leads with epoch {lead.epoch}")


def lead_changed(lead: port.Lead) -> port.Fenced:
    return port.Fenced(f"{lead.identity or 'no server'} leads with epoch {lead.epoch} by now")


def load_first(failure: Exception) -> port.Unavailable:
    return port.Unavailable(f"the last commit failed, load first: {failure}")


def check_storable(changes: Sequence[port.Change]) -> None:
    """Raises TypeError or ValueError for what no store can keep."""
    for change in changes:
        if change.value is not None and not isinstance(change.value, bytes):
            raise TypeError(f"{change.kind} {change.key}: a value is bytes, not {type(change.value).__name__}")
        (change.kind + change.key).encode()


def _resolve_in_loop(jobs: Sequence[WaitingCommit | WaitingCall], outcomes: Sequence[object]) -> None:
    """Wake the event loop once for all. There is one, except where an earlier one ended with commits under way."""
    for loop in {job.future.get_loop() for job in jobs}:
        with contextlib.suppress(RuntimeError):  # that loop is closed, and no caller is left
            loop.call_soon_threadsafe(_resolve, jobs, outcomes, loop)


def _resolve(
    jobs: Sequence[WaitingCommit | WaitingCall],
    outcomes: Sequence[object],
    loop: asyncio.AbstractEventLoop | None = None,
) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        future: asyncio.Future[Any] = job.future
        if future.done() or (loop is not None and future.get_loop() is not loop):
            continue
        if isinstance(outcome, port.StoreError):
            future.set_result(outcome.failure)
        elif isinstance(outcome, Exception):  # a defect, or changes that cannot be stored
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
