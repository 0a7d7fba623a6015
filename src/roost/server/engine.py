"""The engine: the only loop that decides. Drain the inbox, step, commit, then act. Persist first, then act."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from roost.core.effects import Step
from roost.core.load import load
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.audit import By
from roost.model.errors import NoService, RoostError
from roost.model.events import Asked, Event, Heard, Request
from roost.model.frames import Usage
from roost.ports.store import Store, StoreError
from roost.server import say
from roost.server.journal import Journal
from roost.server.metrics import Histogram

INBOX_MAX = 20_000  # events waiting: beyond this, requests are refused rather than kept waiting for seconds
TICK_MS = 20  # how exact timers are: a thousand leases looked at in turn are fifty steps a second, not two hundred
BATCH_MAX = 2_000  # events per step: keeps a step below some 100 ms, so that leases are looked at in time

COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

log = say.logger("engine")


class Clock:
    """Milliseconds since the epoch that never jump: the wall clock at start, then the monotonic one."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """The time."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class Performer(Protocol):
    """Whoever acts. Called with each step once it is durable, and when the state was thrown away."""

    def act(self, state: State, done: Step) -> None:
        """Send orders, tell watchers, drop logs. Must not block and must not raise."""

    def reset(self) -> None:
        """The state is being loaded anew: end all streams, so that agents say hello again."""


class Engine:
    """One writer, one state. Doors put events in; the performer acts on what is durable."""

    def __init__(
        self, store: Store, settings: Settings, perform: Performer, clock: Clock, journal: Journal | None = None
    ) -> None:
        self._store = store
        self._journal = journal
        self._settings = settings
        self._perform = perform
        self.clock = clock
        self.state = State(settings)
        self.epoch = 0
        self.ready = False
        self.failed = ""  # why nothing can be decided, in words
        self._inbox: list[Event] = []
        self._heard: dict[str, tuple[int, int]] = {}
        self._usage: dict[str, Usage] = {}
        self._wake = asyncio.Event()
        self._requests = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._committing = False
        self._readers: list[asyncio.Future[None]] = []  # who waits for the commit under way
        self._stopping = False
        self._identity = ""
        self.steps = 0
        self.events = 0
        self.commits = Histogram(COMMIT_SECONDS)

    async def open(self, identity: str) -> None:
        """Take the lead and load what is stored."""
        self._identity = identity
        self.epoch = await self._store.lead(identity)
        await self._load()

    async def run(self) -> None:
        """Decide until stopped. A commit that fails throws the state away and loads it again: nothing was acted on."""
        while not self._stopping:
            wake_at = await self._turn()
            await self._sleep_until(wake_at)
        self.ready, self.failed = False, "the server is stopping"
        self._refuse_waiting(NoService(self.failed))

    def stop(self) -> None:
        """Finish the step under way, then end."""
        self._stopping = True
        self._wake.set()

    async def ask(self, make: Callable[[int], Event], by: By | None = None) -> Any:
        """Put a request in and wait for its answer, which comes after the commit. Who asks for a change is noted."""
        if not self.ready:
            raise NoService(self.failed or "the server is starting")
        if len(self._inbox) >= INBOX_MAX:
            raise NoService("the server has more requests than it can take; try again in a moment", code="busy")
        self._requests += 1
        request = self._requests
        future = self._waiting[request] = asyncio.get_running_loop().create_future()
        event = make(request)
        self.tell(Asked(by, event) if by is not None and isinstance(event, Request) else event)
        try:
            answer = await future
        finally:
            self._waiting.pop(request, None)
        if isinstance(answer, RoostError):
            raise answer
        return answer

    async def settled(self) -> State:
        """The state with nothing in it that is not durable, good until the caller awaits something else."""
        if self._committing:
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            await reader
        if not self.ready:
            raise NoService(self.failed or "the server is starting")
        return self.state

    def tell(self, event: Event) -> None:
        """Put an event in that nobody waits for."""
        self._inbox.append(event)
        self._wake.set()

    def heard(self, node: str, session: int, usage: Usage | None) -> bool:
        """A sign of life. It goes into the next step, whenever that is; False: this session is over, do not answer.

        The answer renews the agent's lease, so it must not be given for a node that the core has declared lost: the
        state is asked at this very moment, and the sign is in the next step's events before any loss is decided.
        """
        known = self.state.nodes.get(node)
        if known is None or known.session != session or known.status == "lost" or not self.ready:
            return False
        self._heard[node] = (session, self.clock.now_ms())
        if usage is not None:
            self._usage[node] = usage
        return True

    async def _turn(self) -> int | None:
        batch = self._take_batch()
        try:
            done = step(self.state, batch, self.clock.now_ms())
            if done.changes:
                await self._commit(done)
        except StoreError as error:
            await self._recover(error)
            return 0
        self.steps += 1
        self.events += len(batch)
        self._answer(done)
        self._perform.act(self.state, done)
        if self._journal is not None:
            self._journal.record(self.state, batch, done.changes)  # last: nobody waits for history
        return 0 if self._inbox else done.wake_at_ms

    async def _commit(self, done: Step) -> None:
        began = time.perf_counter()
        self._committing = True
        try:
            await self._store.commit(self.epoch, done.changes)
        except StoreError:
            self.ready = False  # before anybody who waits can look at what was not made durable
            raise
        finally:
            self._committing = False
            readers, self._readers = self._readers, []
            for reader in readers:
                if not reader.done():
                    reader.set_result(None)
        self.commits.observe(time.perf_counter() - began)

    def _take_batch(self) -> list[Event]:
        self._wake.clear()
        batch, self._inbox = self._inbox[:BATCH_MAX], self._inbox[BATCH_MAX:]
        if self._heard or self._usage:
            beats = tuple((node, session, at_ms) for node, (session, at_ms) in self._heard.items())
            batch.insert(0, Heard(beats, tuple(self._usage.items())))
            self._heard, self._usage = {}, {}
        return batch

    def _answer(self, done: Step) -> None:
        for request, value in done.replies:
            future = self._waiting.get(request)
            if future is not None and not future.done():
                future.set_result(value)

    async def _sleep_until(self, wake_at: int | None) -> None:
        """Always lets the loop turn once, so that those who were answered look at the state before it changes again."""
        if wake_at is None:
            await self._wake.wait()
            return
        delay = (wake_at + -wake_at % TICK_MS - self.clock.now_ms()) / 1_000
        if delay <= 0:
            await asyncio.sleep(0)
            return
        timer = asyncio.get_running_loop().call_later(delay, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _recover(self, error: StoreError) -> None:
        """The store did not take a commit: what is in memory is worth nothing. Load again, or say why not and retry."""
        self.ready = False
        self.failed = str(error)
        self._refuse_waiting(NoService(f"the store cannot be written: {error}"))
        self._inbox.clear()
        log.error("store failed; loading again", error=str(error), kind=type(error).__name__)
        self._perform.reset()
        pause = 0.1
        while not self._stopping:
            try:
                self.epoch = await self._store.lead(self._identity)
                await self._load()
                return
            except StoreError as again:
                self.failed = str(again)
                log.error("store still fails", error=str(again))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _load(self) -> None:
        snapshot = await self._store.load()
        now = self.clock.now_ms()
        self.state = load(snapshot, now, self._settings)
        if self._journal is not None:
            self._journal.begin(snapshot, now, self._settings)
        self.ready = True
        self.failed = ""

    def _refuse_waiting(self, error: RoostError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_result(error)
