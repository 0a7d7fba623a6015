"""The engine: asyncio around the machine that decides (see machine.py). It only waits, and carries out effects."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never

from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import NoService, RoostError
from roost.model.events import Event
from roost.model.protocol import Usage
from roost.model.records.opaque import By
from roost.ports import store as port
from roost.server.background import server_tasks
from roost.server.cluster.leadership import Leadership
from roost.server.cluster.machine import Load
from roost.server.engine.machine import (
    Act,
    AnswerRequest,
    Began,
    CommitChanges,
    Effect,
    EngineMachine,
    Mirrored,
    Pause,
    Release,
    ResetExecutor,
    SleepUntil,
    StandBy,
)  # fmt: skip
from roost.server.engine.recording import Journal, records_of
from roost.server.observability import logging
from roost.server.observability.histogram import Histogram
from roost.server.observability.watchdog import LoopWatchdog
from roost.server.waiting import cancel, resume, unless, wait_for

TICK_MS = 20  # how exact timers are: a thousand leases looked at in turn are fifty steps a second, not two hundred

COMMIT_MS_MAX = 2_000  # a commit that takes longer: the store is away, whatever it will say

READ_S = 0.02  # of CPU time between two steps for those that wait to read

MIRROR_S_MAX = 2.0  # a mirror that is further behind than this: its store is away

COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

log = logging.logger("engine")


class Clock:
    """Milliseconds since the epoch that never jump: the wall clock at start, then the monotonic one."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class Performer(Protocol):
    """Carries out what is durable, such as the executor. It must not block and must not raise."""

    async def act(self, state: State, done: Step) -> None:
        """Send orders, notify watchers, drop logs. Nothing is decided or read meanwhile."""

    def followed(self, state: State, changes: Sequence[port.Change]) -> None:
        """Notify watchers of a commit of another server."""

    def reset(self) -> None:
        """The state is being loaded again: end all streams, so that agents register again."""


class Engine:
    """One writer, one state. The performer acts on what is durable.

    With a leadership it is one of several servers: it mirrors what the leader commits until it leads itself.
    """

    def __init__(
        self, store: port.Store, settings: Settings, perform: Performer, clock: Clock, journal: Journal | None = None,
        leadership: Leadership | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._journal = journal
        self._settings = settings
        self._perform = perform
        self.leadership = leadership
        self.clock = clock
        self.machine = EngineMachine(
            settings, leadership.machine if leadership else None, records_of if journal is not None else None
        )
        self.commits = Histogram(COMMIT_SECONDS)
        self.watchdog = LoopWatchdog()
        self.tasks = server_tasks()
        self._identity = ""
        self._is_stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._settled = asyncio.Event()  # nothing is being decided
        self._readers: deque[asyncio.Future[None]] = deque()  # that wait for it, and for their turn
        self._is_acting = False  # on what was decided and is durable
        self._commit_sent_ms = 0  # 0: none is in progress
        self._has_followed = asyncio.Event()  # set once, by the next commit of another server

    @property
    def state(self) -> State:
        """The state, including what is being decided: readers use `settled`."""
        return self.machine.state

    @property
    def ready(self) -> bool:
        return self.machine.is_leading

    def sure_epoch(self) -> int:
        """The epoch of this server's lead; 0: another server leads, or may by now. For any thread."""
        is_sure = self.leadership is None or self.leadership.is_sure()
        return self.machine.epoch if self.ready and is_sure else 0

    @property
    def readable(self) -> bool:
        return self.machine.is_readable

    @property
    def failed(self) -> str:
        return self.machine.trouble

    def unready(self) -> str:
        """Why no commit can be expected now; empty: this server can commit, or follows one that can."""
        if not self.ready and not self.machine.is_following:
            return self.failed or "the server is starting"
        now = self.clock.now_ms()
        if self.ready and self._commit_sent_ms and now - self._commit_sent_ms > COMMIT_MS_MAX:
            return f"the store has not answered a commit for {now - self._commit_sent_ms} ms"
        if self.leadership is None:
            return ""
        if self.ready:
            return "" if self.leadership.is_sure() else "the store does not answer: the lead could not be renewed"
        return "" if self.leadership.election.is_current(now) else "no leader has renewed its lead of late"

    async def open(self, identity: str) -> None:
        """Take the lead and load what is stored. One of several servers does so when it is elected."""
        self._identity = identity
        failure = await (self._open() if self.leadership is None else self.leadership.begin(self))
        if failure is not None:
            raise port.StoreError(failure)

    async def run(self) -> None:
        if self.leadership is not None:
            self._carry_out(self.machine.start())
        while not self._is_stopping.is_set():
            if not self.ready:
                await unless(self._is_stopping, self._recover() if self.leadership is None else self._stand_by())
            if self.ready:
                await self._decide()
        self._carry_out(self.machine.stopped())

    async def _decide(self) -> None:
        renewing = None
        if self.leadership is not None:
            renewing = asyncio.ensure_future(self._renew(self.leadership, self.machine.epoch))
            renewing.add_done_callback(lambda _: self._wake.set())
        try:
            following: Effect | None = SleepUntil(0)
            while following is not None:
                effects = await self._wait_for(following)
                if effects and isinstance(first := effects[0], Act):
                    await self._act(first)
                    effects = effects[1:]
                if self.machine.is_deciding:
                    self._settled.clear()
                else:
                    self._settled.set()
                following = self._carry_out(effects)
                if not self.machine.is_deciding:
                    await self._let_read()
                if renewing is not None and renewing.done():
                    renewing.result()  # raises what is a bug
        finally:
            self._settled.set()
            while self._readers:
                resume(self._readers.popleft())
            if renewing is not None:
                await cancel(renewing)

    async def _wait_for(self, effect: Effect) -> list[Effect]:
        """Carry out an effect that takes time, and tell the machine its outcome."""
        machine = self.machine
        match effect:
            case SleepUntil(at_ms):
                await self._sleep_until(at_ms)
                self._wake.clear()
                machine.unread(self.watchdog.unread_ms())
                return machine.turn(self.clock.now_ms())
            case Pause():
                await asyncio.sleep(0)
                return machine.go_on()
            case CommitChanges(epoch, changes):
                return await self._commit(epoch, changes)
            case Release(epoch, successor):
                assert self.leadership is not None
                await self.leadership.let_go(epoch, successor)
                return machine.released()
            case _:
                raise AssertionError(f"nothing to wait for: {effect}")

    async def _act(self, decided: Act) -> None:
        """Act on a step. Readers wait meanwhile: watchers may not know its revision yet."""
        self._is_acting = True
        try:
            await self._perform.act(self.state, decided.done)
            if self._journal is not None:
                self._journal.record(self.state, decided.batch, decided.done.changes)
        finally:
            self._is_acting = False

    def _carry_out(self, effects: Sequence[Effect]) -> Effect | None:
        """Carry out effects, and return the one that takes time; None: this server no longer leads."""
        for effect in effects:
            match effect:
                case AnswerRequest(request, value):
                    future = self._waiting.get(request)
                    if future is not None and not future.done():
                        future.set_result(value)
                case Mirrored(changes):
                    self._perform.followed(self.state, changes)
                case ResetExecutor():
                    self._perform.reset()
                case Began(snapshot, unclean):
                    if self._journal is not None and snapshot is not None:
                        self._journal.begin(snapshot, self.state.now_ms, self._settings, unclean=unclean)
                case Pause() | CommitChanges() | SleepUntil() | Release():
                    return effect
                case Load() | StandBy():
                    return None
                case Act():
                    raise AssertionError("only the loop that decides acts on its steps")
                case _:
                    assert_never(effect)
        return None

    def stop(self) -> None:
        self.machine.stop()
        self._is_stopping.set()
        self._wake.set()

    def let_go(self, successor: str) -> None:
        self.machine.let_go(successor)
        self._wake.set()

    async def ask(self, make: Callable[[int], Event], by: By | None = None) -> Any:
        """Put a request in and wait for its answer, which comes after the commit. `by` goes into the audit log."""
        request = self.machine.ask(make, by, self.clock.now_ms())
        if isinstance(request, NoService):
            raise request
        future = self._waiting[request] = asyncio.get_running_loop().create_future()
        self._wake.set()
        try:
            answer = await future
        finally:
            self._waiting.pop(request, None)
        if isinstance(answer, RoostError):
            raise answer
        return answer

    async def settled(self) -> State:
        """The state with nothing in it that is not durable, good until the caller awaits something else."""
        if self.machine.is_deciding or self._is_acting:
            await self._settled.wait()
        if not self.readable:
            raise self.machine.refusal()
        return self.state

    async def read(self) -> State:
        """As `settled`, for work of unknown cost: of those that have waited, each turn of the loop has one."""
        if self.machine.is_deciding or self._is_acting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(turn)
            await turn
        return await self.settled()

    async def _let_read(self) -> None:
        """Let those read who have waited, for a while, before the next step."""
        until_s = time.thread_time() + READ_S
        while self._readers and time.thread_time() < until_s:
            if resume(self._readers.popleft()):
                await asyncio.sleep(0)  # it reads in the next turn, before this goes on

    async def mirrors(self, revision: int) -> bool:
        """Wait until the state of this server has what its leader has committed. False: it stays behind."""
        try:
            async with asyncio.timeout(MIRROR_S_MAX):
                while self.state.revision < revision and not self.ready:
                    await self._has_followed.wait()
        except TimeoutError:
            log.warning("reads are behind the leader", revision=self.state.revision, leader=revision)
            return False
        return True

    async def reach(self, revision: int) -> None:
        """As above, for a reader that has seen this revision elsewhere. Raises NoService: another server knows more."""
        if self.leadership is not None and not await self.mirrors(revision):
            raise NoService(f"this server is behind: it has revision {self.state.revision}; ask another one")

    def tell(self, event: Event) -> None:
        self.machine.tell(event)
        self._wake.set()

    @property
    def lease_ms(self) -> int:
        return self.state.sent_lease_ms

    def heard(self, node: str, session: int, usage: Usage | None) -> bool:
        """A heartbeat; False: this session has ended, do not answer."""
        return self.machine.heard(node, session, usage, self.clock.now_ms())

    async def _commit(self, epoch: int, changes: Sequence[port.Change]) -> list[Effect]:
        began, sent_ms = time.perf_counter(), self.clock.now_ms()
        self._commit_sent_ms = sent_ms
        try:
            outcome = await self._store.commit(epoch, changes)
            match outcome:
                case port.Committed():
                    self.commits.observe(time.perf_counter() - began)
                    return self.machine.committed(sent_ms)
                case port.Fenced() | port.WriteConflict() | port.InDoubt() | port.Unavailable() | port.Damaged():
                    log.error("no longer leading", error=str(outcome), kind=type(outcome).__name__)
                    return self.machine.commit_failed(outcome)
                case _:
                    assert_never(outcome)
        finally:
            self._commit_sent_ms = 0

    async def _sleep_until(self, wake_at: int | None) -> None:
        """Always lets the loop turn once, so that answered callers read the state before it changes again."""
        delay = None if wake_at is None else (wake_at + -wake_at % TICK_MS - self.clock.now_ms()) / 1_000
        if self._wake.is_set() or (delay is not None and delay <= 0):
            await asyncio.sleep(0)
            return
        await wait_for(self._wake, delay)

    async def _open(self) -> port.Fenced | port.LoadFailure | None:
        """Nothing is written before all records were read: another release may have written them."""
        snapshot = await self._store.load()
        if not isinstance(snapshot, port.Snapshot):
            return snapshot
        try:
            self.machine.mirrored(snapshot)
        except port.StoreError as error:  # a record that this release cannot read
            return port.Damaged(str(error))
        taken = await self._store.lead(self._identity)
        if not isinstance(taken, port.LeadTaken):
            return taken
        self._carry_out(self.machine.elected(taken.epoch, self.clock.now_ms(), unclean=False))
        return None

    async def _recover(self) -> None:
        """A store of its own has failed: no other server can have led since."""
        while not self.ready:
            failure = await self._open()
            if failure is not None:
                await asyncio.sleep(self.out_of_touch(failure).after_ms / 1_000)

    async def _stand_by(self) -> None:
        assert self.leadership is not None
        elected = await self.leadership.until_elected(self)
        log.warning("this server leads now", epoch=elected.epoch, revision=self.state.revision)
        self._carry_out(self.machine.elected(elected.epoch, self.clock.now_ms(), unclean=elected.unclean))

    async def _renew(self, leadership: Leadership, epoch: int) -> None:
        fenced = await leadership.renew(epoch)
        log.error("no longer leading", error=str(fenced), kind=type(fenced).__name__)
        self.machine.overtaken(fenced)

    # for the leadership, while another server leads

    def mirrored(self, snapshot: port.Snapshot) -> None:
        self.machine.mirrored(snapshot)

    def followed(self, update: port.News) -> None:
        self._carry_out(self.machine.followed(update))
        self._has_followed.set()
        self._has_followed = asyncio.Event()

    def out_of_touch(self, failure: port.Fenced | port.LoadFailure) -> Load:
        log.error("the store is away", error=str(failure), kind=type(failure).__name__)
        return self.machine.out_of_touch(failure)
