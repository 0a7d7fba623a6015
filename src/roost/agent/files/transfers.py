"""Transfers of files: carries out what the agent's machine asks for, some at a time, each in a thread."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from roost.agent.files.caching import NOTE_NAME, CacheRestore, save_cache
from roost.agent.files.client import Call, FileClient
from roost.agent.files.collect import Collect
from roost.agent.files.failure import failure_of
from roost.agent.files.fetch import Fetch, Flights
from roost.agent.files.job import TransferJob, in_thread
from roost.agent.files.progress import CollectOutputs, FetchInputs, FileEffect, LeaveInputs, LeaveOutputs
from roost.agent.log import log
from roost.agent.prepare import RESULT_NAME
from roost.drivers.container.images import ImageFound
from roost.drivers.qemu.request import find_files
from roost.files.cache import InputCache
from roost.files.select import TransferStopped, gap
from roost.model.records.files import InputFailure, OutputProblem, Outputs
from roost.model.spec.files import CacheBlock
from roost.ports.driver import Machine

FETCHES_MAX = 4  # at a time: more share the same network and disk, and each holds two chunks of 8 MiB
COLLECTIONS_MAX = 4  # likewise
SAVE_S_MAX = 900.0  # for a cache: 10 GiB at 12 MB/s

Found = ImageFound | Machine  # the image of a container, or a machine with its files
Fetched = Callable[[int, InputFailure | None, Found | None], None]  # the attempt, why it failed, what it is made of
EnsureImage = Callable[[TransferJob, FetchInputs], ImageFound]  # blocks; raises ImageUnavailable
Collected = Callable[[int, Outputs], None]


class Transfers:
    """The files of one agent. Answers come while `run` does; none for what was left."""

    def __init__(
        self, directory: str, cache_bytes: int, call: Call, fetched: Fetched, collected: Collected,
        ensure_image: EnsureImage, stored: Collected = lambda token, outputs: None,
    ) -> None:  # fmt: skip
        """`stored`: the outputs of a run are stored, and its cache is not saved so far."""
        self._ensure_image = ensure_image
        self._cache_folder = Path(directory, "inputs")
        self._cache_bytes = cache_bytes
        self._call = call
        self._fetched = fetched
        self._collected = collected
        self._stored = stored
        self._cache: InputCache | None = None  # opened for the first fetch
        self.flights = Flights()
        self.pulling: dict[int, int] = {}  # attempts whose images are being fetched, and how many percent have come
        self._orders: asyncio.Queue[tuple[FetchInputs | CollectOutputs, TransferJob]] = asyncio.Queue()
        self._jobs: dict[tuple[type[FetchInputs | CollectOutputs], int], TransferJob] = {}
        self._opening = asyncio.Lock()
        self._fetches = asyncio.Semaphore(FETCHES_MAX)
        self._collections = asyncio.Semaphore(COLLECTIONS_MAX)

    def perform(self, effect: FileEffect) -> None:
        match effect:
            case FetchInputs() | CollectOutputs():
                job = self._jobs[type(effect), effect.token] = TransferJob(asyncio.get_running_loop())
                self._orders.put_nowait((effect, job))
            case LeaveInputs(token):
                self._leave(FetchInputs, token)
            case LeaveOutputs(token):
                self._leave(CollectOutputs, token)

    async def run(self) -> None:
        """Transfer until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    effect, job = await self._orders.get()
                    if isinstance(effect, FetchInputs):
                        group.create_task(self._fetch(effect, job))
                    else:
                        group.create_task(self._collect(effect, job))
        finally:
            for job in self._jobs.values():
                job.stop()

    def _leave(self, kind: type[FetchInputs | CollectOutputs], token: int) -> None:
        job = self._jobs.pop((kind, token), None)
        if job is not None:
            job.stop()

    async def _fetch(self, effect: FetchInputs, job: TransferJob) -> None:
        async with self._fetches:
            if job.is_stopped:
                return
            failure: InputFailure | None = None
            found: Found | None = None
            try:
                if effect.image is not None:
                    found = await in_thread(f"image-{effect.token}", lambda: self._ensure_image(job, effect))
                if effect.inputs or effect.cache is not None:
                    cache, client = await self.open_cache(), FileClient(job, effect.token, self._call)
                    restore = CacheRestore(effect.cache, dict(effect.env), client) if effect.cache is not None else None
                    owner = effect.owner if effect.owner != os.geteuid() else None
                    fetch = Fetch(job, client, cache, self.flights, owner)
                    work = lambda: fetch.run(effect.inputs, Path(effect.folder), restore)  # noqa: E731
                    await in_thread(f"fetch-{effect.token}", work)
                if (machine := effect.machine) is not None:
                    found = await in_thread(f"machine-{effect.token}", partial(find_files, machine))
            except TransferStopped:
                return
            except Exception as error:  # also of a defect: others go on, and the run does not wait until its deadline
                failure = failure_of(error)
            finally:
                self.pulling.pop(effect.token, None)
        if self._jobs.pop((FetchInputs, effect.token), None) is job:
            self._fetched(effect.token, failure, found)

    async def _collect(self, effect: CollectOutputs, job: TransferJob) -> None:
        async with self._collections:
            if job.is_stopped:
                return
            try:
                collect = Collect(job, FileClient(job, effect.token, self._call), frozenset({RESULT_NAME, NOTE_NAME}))
                work = lambda: collect.run(effect.outputs, Path(effect.folder))  # noqa: E731
                outputs = await in_thread(f"collect-{effect.token}", work)
            except TransferStopped:
                return
            except Exception as error:
                log(f"outputs of run {effect.token} were not stored: {failure_of(error).detail}")
                blocks = effect.outputs
                outputs = Outputs(
                    gaps=tuple(gap(OutputProblem.NOT_STORED, item.path, item.required) for item in blocks)
                )
            if effect.cache is not None:
                self._stored(effect.token, outputs)
                await self._save(effect, effect.cache, job)
        if self._jobs.pop((CollectOutputs, effect.token), None) is job:
            self._collected(effect.token, outputs)

    async def _save(self, effect: CollectOutputs, block: CacheBlock, job: TransferJob) -> None:
        """A run waits for its cache, but not for long, and ends the same way without it."""
        client = FileClient(job, effect.token, self._call)
        work = lambda: save_cache(job, client, block, Path(effect.folder))  # noqa: E731
        try:
            async with asyncio.timeout(SAVE_S_MAX):
                await in_thread(f"cache-{effect.token}", work)
        except TimeoutError:
            job.stop()
            log(f"the cache of run {effect.token} was not saved in {SAVE_S_MAX / 60:g} min")
        except TransferStopped:
            pass
        except Exception as error:
            log(f"the cache of run {effect.token} was not saved: {failure_of(error).detail}")

    async def open_cache(self) -> InputCache:
        """Its folder is read once, which takes a moment."""
        async with self._opening:
            if self._cache is None:
                self._cache = await in_thread("cache", lambda: InputCache(self._cache_folder, self._cache_bytes))
            return self._cache
