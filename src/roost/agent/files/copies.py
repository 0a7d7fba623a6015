"""Copies into and out of runs: asks the server which it wants, carries them out in threads, tells their outcomes."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import grpc

from roost.agent.files.client import Call, FileClient, TransferRefused
from roost.agent.files.copy import Places, carry_out
from roost.agent.files.copy_progress import BeginCopy, CopyEffect, CopyProgress, IsRunning, LeaveCopy, SendReport
from roost.agent.files.fetch import Fetch, Flights, remove_tree
from roost.agent.files.job import TransferJob, in_thread
from roost.agent.log import log
from roost.agent.prepare import work_folder
from roost.files.cache import InputCache
from roost.files.select import TransferStopped
from roost.model.protocol import CopyOrder, CopyProblem, CopyReport
from roost.wire import agent_pb2 as pb
from roost.wire.codec import unpack_copy

LOOK_S = 0.5  # between looks at the runs of copies that are under way

OpenCache = Callable[[], Awaitable[InputCache]]


class Copies:
    """The copies of one agent. `look` is called when the server has some for it; `run` does the rest."""

    def __init__(
        self, directory: str, open_cache: OpenCache, flights: Flights, call: Call, is_running: IsRunning,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._directory = directory
        self._staging = Path(directory, "copies")
        self._open_cache = open_cache
        self._flights = flights
        self._call = call
        self._now_ms = now_ms
        self._is_running = is_running
        self._progress = CopyProgress(is_running)
        self._jobs: dict[str, TransferJob] = {}
        self._reporting: dict[str, CopyReport] = {}
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Copy until cancelled. What an earlier run of this task left, the server asks for again."""
        self._progress = CopyProgress(self._is_running)
        self._jobs, self._reporting = {}, {}
        self._wanted.set()
        await asyncio.to_thread(remove_tree, self._staging)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wait()
                    if self._wanted.is_set():
                        self._wanted.clear()
                        orders = await self._ask()
                        if orders is not None:
                            self._perform(self._progress.wanted(orders, self._now_ms()), group)
                    self._perform(self._progress.tick(self._now_ms()), group)
        finally:
            for job in self._jobs.values():
                job.stop()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(None if self._progress.is_idle else LOOK_S):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _ask(self) -> list[CopyOrder] | None:
        """All that the server wants; None: it does not answer, and will say again that there is something."""
        try:
            data = await self._call("TakeCopies", pb.TakeCopiesRequest().SerializeToString())
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, OSError):
            return None
        return [unpack_copy(order) for order in pb.TakeCopiesReply.FromString(data).copies]

    def _perform(self, effects: Iterable[CopyEffect], group: asyncio.TaskGroup) -> None:
        for effect in effects:
            match effect:
                case BeginCopy(order):
                    job = self._jobs[order.id] = TransferJob(asyncio.get_running_loop())
                    group.create_task(self._carry_out(order, job, group))
                case LeaveCopy(id):
                    self._jobs.pop(id).stop()
                case SendReport(report) if report.id not in self._reporting:
                    self._reporting[report.id] = report
                    group.create_task(self._report(report))

    async def _carry_out(self, order: CopyOrder, job: TransferJob, group: asyncio.TaskGroup) -> None:
        client = FileClient(job, order.token, self._call)
        places = Places(Path(work_folder(self._directory, order.token)), self._staging / str(order.token) / order.id)
        try:
            cache = await self._open_cache()
            fetch = Fetch(job, client, cache, self._flights, owner=None)
            report = await in_thread(f"copy-{order.id}", lambda: carry_out(order, places, job, client, fetch))
        except TransferStopped:
            return
        except Exception as error:  # a defect: others go on, and the client gets the error
            log(f"a copy failed: {''.join(traceback.format_exception(error))}")
            report = CopyReport(order.id, order.token, CopyProblem.FAILED, f"{type(error).__name__}: {error}")
        if self._jobs.get(order.id) is job:
            del self._jobs[order.id]
            self._perform(self._progress.finished(report, self._now_ms()), group)

    async def _report(self, report: CopyReport) -> None:
        """In a job of its own: the copy is over, and its outcome is reported even when the server is away."""
        job = TransferJob(asyncio.get_running_loop())
        self._jobs[f"report-{report.id}"] = job
        try:
            client = FileClient(job, report.token, self._call)
            await in_thread(f"report-{report.id}", lambda: client.report_copy(report))
        except TransferStopped:
            pass
        except TransferRefused as error:
            log(f"the outcome of copy {report.id} was not taken: {error}")
        finally:
            self._jobs.pop(f"report-{report.id}", None)
            self._reporting.pop(report.id, None)
