"""Group commit: commits that wait together are one write, in order; every caller gets its own outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from roost.ports.store import Committed, Fenced, InDoubt, StoreError, Unavailable
from roost.stores.group_commit import (
    GroupCommit,
    Outcome,
    TaskGroupCommit,
    ThreadGroupCommit,
    Weight,
    committed,
    in_doubt,
)

FULL = Weight(3)


class Writer:
    """Remembers what was written as one; epoch 1 is fenced, epoch 9 breaks."""

    closed = False

    def __init__(self) -> None:
        self.writes: list[list[str]] = []
        self.revision = 0
        self.tidied = 0

    def weigh(self, changes: str) -> Weight:
        return Weight(len(changes))

    def commit(self, epoch: int, group: Sequence[str]) -> Sequence[Outcome]:
        if epoch == 1:
            return [Fenced("epoch 2 leads")] * len(group)
        if epoch == 9:
            return [in_doubt(StoreError(Unavailable("no answer")))] * len(group)
        self.writes.append(list(group))
        self.revision += len(group)
        return committed(self.revision - len(group) + 1, len(group))

    def perform(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:
            return error

    def tidy(self) -> None:
        self.tidied += 1


class AsyncWriter(Writer):
    async def commit(self, epoch: int, group: Sequence[str]) -> Sequence[Outcome]:  # type: ignore[override]
        return super().commit(epoch, group)

    async def perform(self, work: Callable[[], Awaitable[object]]) -> object:  # type: ignore[override]
        try:
            return await work()
        except Exception as error:
            return error

    async def tidy(self) -> None:  # type: ignore[override]
        super().tidy()


@pytest.fixture
def writer() -> AsyncWriter:
    return AsyncWriter()


@pytest.fixture
def jobs(writer: AsyncWriter) -> TaskGroupCommit[str]:
    return TaskGroupCommit(writer, FULL)


async def fail(error: Exception) -> None:
    raise error


async def test_commits_that_wait_are_written_together_up_to_a_full_group(
    jobs: TaskGroupCommit[str], writer: AsyncWriter
) -> None:
    outcomes = await asyncio.gather(*(jobs.commit(2, key) for key in "abcde"))
    assert outcomes == [Committed(number) for number in (1, 2, 3, 4, 5)]
    assert writer.writes == [["a", "b", "c"], ["d", "e"]] and writer.tidied == 2


async def test_a_group_has_one_epoch(jobs: TaskGroupCommit[str], writer: AsyncWriter) -> None:
    outcomes = await asyncio.gather(jobs.commit(2, "a"), jobs.commit(1, "b"), jobs.commit(2, "c"))
    assert outcomes == [Committed(1), Fenced("epoch 2 leads"), Committed(2)]
    assert writer.writes == [["a"], ["c"]]


async def test_other_jobs_run_alone_and_in_order(jobs: TaskGroupCommit[str], writer: AsyncWriter) -> None:
    async def written() -> int:
        return len(writer.writes)

    first, between, second = jobs.commit(2, "a"), jobs.call(written), jobs.commit(2, "b")
    assert await asyncio.gather(first, between, second) == [Committed(1), 1, Committed(2)]
    assert writer.writes == [["a"], ["b"]]


async def test_failures_are_values_and_defects_are_raised(jobs: TaskGroupCommit[str]) -> None:
    assert await jobs.commit(9, "a") == InDoubt("no answer")
    assert await jobs.call(lambda: fail(StoreError(Unavailable("away")))) == Unavailable("away")
    with pytest.raises(ZeroDivisionError):
        await jobs.call(lambda: fail(ZeroDivisionError()))
    assert await jobs.commit(2, "b") == Committed(1)


async def test_a_cancelled_caller_does_not_take_its_commit_back(
    jobs: TaskGroupCommit[str], writer: AsyncWriter
) -> None:
    first, second = jobs.commit(2, "a"), jobs.commit(2, "b")
    first.cancel()
    assert await second == Committed(2)
    assert writer.writes == [["a", "b"]]


async def test_closing_waits_for_the_jobs_and_refuses_later_ones(jobs: TaskGroupCommit[str]) -> None:
    under_way = jobs.commit(2, "a")
    await jobs.close()
    assert under_way.result() == Committed(1)
    assert isinstance(await jobs.commit(2, "b"), Unavailable)


async def test_a_thread_serves_the_same_jobs() -> None:
    writer = Writer()
    jobs: GroupCommit[str] = ThreadGroupCommit(writer, FULL)
    outcomes = await asyncio.gather(*(jobs.commit(2, key) for key in "abcde"), jobs.commit(1, "f"))
    assert outcomes == [*(Committed(number) for number in (1, 2, 3, 4, 5)), Fenced("epoch 2 leads")]
    assert [key for group in writer.writes for key in group] == list("abcde")
    assert all(len(group) <= 3 for group in writer.writes)
    assert await jobs.call(lambda: writer.revision) == 5

    def end() -> None:
        writer.closed = True

    await jobs.call(end)
