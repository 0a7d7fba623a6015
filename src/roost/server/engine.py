"""The engine: the only loop that decides. Drain the inbox, step, commit, then act. Persist first, then act."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from roost.core.effects import Step
from roost.core.load import follow, mirror, take_over
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.audit import By
from roost.model.errors import NoService, RoostError
from roost.model.events import Asked, Event, Heard, Request, inner
from roost.model.frames import Usage
from roost.ports.store import ANYBODY, Change, Fenced, News, Snapshot, Store, StoreError
from roost.server import say
from roost.server.journal import Journal, records_of
from roost.server.leadership import Leadership
from roost.server.metrics import Histogram

INBOX_MAX = 20_000  # events waiting: beyond this, requests are refused rather than kept waiting for seconds
TICK_MS = 20  # how exact timers are: a thousand leases looked at in turn are fifty steps a second, not two hundred
BATCH_MAX = 2_000  # events per step: keeps a step below some 100 ms, so that leases are looked at in time

FOLLOWING = "another server leads"  # why this one decides nothing

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

    def followed(self, state: State, changes: Sequence[Change]) -> None:
        """Another server has committed this: tell watchers."""

    def reset(self) -> None:
        """The state is being loaded anew: end all streams, so that agents say hello again."""


class Engine:
    """One writer, one state. Doors put events in; the performer acts on what is durable.

    With a leadership it is one of several servers: it mirrors what the leader commits until it leads itself.
    """

    def __init__(
        self, store: Store, settings: Settings, perform: Performer, clock: Clock, journal: Journal | None = None,
        leadership: Leadership | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._journal = journal
        self._settings = settings
        self._perform = perform
        self.leadership = leadership
        self.clock = clock
        self.state = State(settings)
        self.epoch = 0
        self.ready = False  # it leads, and decides
        self.readable = False  # the state shows what is durable, and nothing else
        self.failed = ""  # why nothing can be decided, in words
        self._inbox: list[Event] = []
        self._heard: dict[str, tuple[int, int]] = {}
        self._usage: dict[str, Usage] = {}
        self._holding = False  # the store is away, and agents are answered all the same:
        self._sessions: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._requests = 0
        self._batch: list[Event] = []  # what is being decided and committed
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._committing = False
        self._readers: list[asyncio.Future[None]] = []  # who waits for the commit under way
        self._heir = ""
        self._identity = ""
        self.steps = 0
        self.events = 0
        self.commits = Histogram(COMMIT_SECONDS)

    async def open(self, identity: str) -> None:
        """Take the lead and load what is stored. One of several does so when its turn has come."""
        self._identity = identity
        if self.leadership is None:
            self.epoch = await self._store.lead(identity)
            self._begin(mirror(await self._store.load(), self._settings), sudden=False)

    async def run(self) -> None:
        """Decide whenever this server leads, until stopped. A commit that fails throws the state away: it was never
        acted on, and what is stored is loaded again."""
        while not self._stop.is_set():
            if not self.ready:
                await self._before_stop(self._recover() if self.leadership is None else self._stand_by())
            if self.ready:
                await self._decide()
        self.ready = self.readable = False
        self.failed = "the server is stopping"
        self._refuse_waiting(NoService(self.failed))

    async def _decide(self) -> None:
        """Lead until the store says otherwise, or until somebody else is to lead."""
        team, keeping = self.leadership, None
        if team is not None:
            keeping = asyncio.ensure_future(team.keep(self.epoch))
            keeping.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._stop.is_set() and not self._heir:
                if keeping is not None and keeping.done():
                    keeping.result()
                await self._sleep_until(await self._turn())
            if team is not None:
                self.ready = False
                await team.let_go(self.epoch, self._heir or ANYBODY)
                self._fall(None)
        except StoreError as error:
            self._fall(error)
        finally:
            self._heir = ""
            if keeping is not None:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    async def _before_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that may take for ever, but end when the server is to stop."""
        doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        doing.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        with contextlib.suppress(asyncio.CancelledError):
            await doing

    def stop(self) -> None:
        """Finish the step under way, then end."""
        self._stop.set()
        self._wake.set()

    def let_go(self, heir: str) -> None:
        """Let another server lead: the one of this name, or whoever is first."""
        self._heir = heir
        self._wake.set()

    async def ask(self, make: Callable[[int], Event], by: By | None = None) -> Any:
        """Put a request in and wait for its answer, which comes after the commit. Who asks for a change is noted."""
        if not self.ready:
            raise NoService(self.failed or "the server is starting")
        if self.leadership is not None and not self.leadership.is_sure():
            raise NoService("the store does not answer: whether this server still leads is not known")
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

    @property
    def is_following(self) -> bool:
        """Whether another server leads, and this one shows what it commits."""
        return self.readable and not self.ready and self.failed == FOLLOWING

    async def settled(self) -> State:
        """The state with nothing in it that is not durable, good until the caller awaits something else."""
        if self._committing:
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            await reader
        if not self.readable:
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
        While the store is away nobody can declare a node lost, and agents are answered for a while all the same.
        """
        if self.leadership is not None and not self.leadership.may_answer():
            return False
        if not self.ready:
            return self._sessions.get(node) == session
        known = self.state.nodes.get(node)
        if known is None or known.session != session or known.status == "lost":
            return False
        self._heard[node] = (session, self.clock.now_ms())
        if usage is not None:
            self._usage[node] = usage
        return True

    async def _turn(self) -> int | None:
        batch = self._batch = self._take_batch()
        done = step(self.state, batch, self.clock.now_ms())
        if done.changes:
            await self._commit(done)
        self._batch = []
        self.steps += 1
        self.events += len(batch)
        self._answer(done)
        self._perform.act(self.state, done)
        if self._journal is not None:
            self._journal.record(self.state, batch, done.changes)  # last: nobody waits for history
        return 0 if self._inbox else done.wake_at_ms

    async def _commit(self, done: Step) -> None:
        began, sent_ms = time.perf_counter(), self.clock.now_ms()
        self._committing = True
        try:
            await self._store.commit(self.epoch, done.changes)
            if self.leadership is not None:
                self.leadership.proved(sent_ms)
        except StoreError:
            self.readable = False  # before anybody who waits can look at what was not made durable
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

    def _fall(self, error: StoreError | None) -> None:
        """This server leads no more: what is in memory is worth nothing. If only the store is away, agents are kept."""
        self.ready = self.readable = False
        self.failed = f"the store cannot be written: {error}" if error else "this server has let go of the lead"
        self._refuse_waiting(NoService(self.failed), in_doubt=error is not None and not isinstance(error, Fenced))
        self._inbox.clear()
        if error is not None:
            log.error("not leading any more", error=str(error), kind=type(error).__name__)
        if error is None or isinstance(error, Fenced):
            self._perform.reset()
        else:
            self._holding = True
            self._sessions = {name: node.session for name, node in self.state.nodes.items() if node.status != "lost"}

    async def _recover(self) -> None:
        """A store of its own has failed: nobody else can have led meanwhile."""
        pause = 0.1
        while not self.ready:
            try:
                self.epoch = await self._store.lead(self._identity)
                self._begin(mirror(await self._store.load(), self._settings), sudden=False)
            except StoreError as again:
                self.out_of_touch(again)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    async def _stand_by(self) -> None:
        assert self.leadership is not None
        self.failed = FOLLOWING
        elected = await self.leadership.until_elected(self)
        self.epoch = elected.epoch
        log.warning("this server leads now", epoch=elected.epoch, revision=self.state.revision)
        self._begin(self.state, sudden=elected.sudden)

    def _begin(self, state: State, *, sudden: bool) -> None:
        """Decide from now on. Agents say hello again, and the same orders are derived again."""
        now = self.clock.now_ms()
        self._hold_no_more()
        if self._journal is not None:
            self._journal.begin(Snapshot(state.revision, records_of(state)), now, self._settings, sudden=sudden)
        take_over(state, now, sudden=sudden)
        self.state = state
        self.ready = self.readable = True
        self.failed = ""
        self._wake.set()

    def _hold_no_more(self) -> None:
        if self._holding:
            self._holding, self._sessions = False, {}
            self._perform.reset()

    # for the leadership, while another server leads

    def mirrored(self, snapshot: Snapshot) -> None:
        """Everything as it is stored."""
        self.state = mirror(snapshot, self._settings)
        self.readable = True

    def followed(self, news: News) -> None:
        """What another server has committed. If there is another, agents are not ours any more."""
        if news.lead.epoch > self.epoch:
            self._hold_no_more()
        self.failed = FOLLOWING
        if news.changes or news.revision != self.state.revision:
            follow(self.state, news.revision, news.changes)
            self._perform.followed(self.state, news.changes)

    def out_of_touch(self, error: StoreError) -> None:
        """The store cannot be read; it is tried again."""
        self.failed = f"the store is away: {error}"
        log.error("the store is away", error=str(error), kind=type(error).__name__)

    def _refuse_waiting(self, error: RoostError, *, in_doubt: bool = False) -> None:
        """`in_doubt`: what was being committed may have been, so nobody may ask for it again without a look."""
        unsure = NoService(f"{error.message}; whether this was done is not known", code="outcome_unknown")
        taken = {happened.request for event in self._batch if isinstance(happened := inner(event), Request)}
        for number, future in self._waiting.items():
            if not future.done():
                future.set_result(unsure if in_doubt and number in taken else error)
