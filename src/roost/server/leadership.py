"""Leadership: follow the store until this server leads, and keep the lead while it does.

A server that starts, one that has lost its store and one that was overtaken all come through here, and nobody else
ever takes the lead of a shared store.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from roost.ports.store import Behind, Fenced, Lead, News, SharedStore, Snapshot, StoreError, Unavailable
from roost.server import say
from roost.server.election import Election, Identity, Timing

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0  # between attempts to reach a store that is away

log = say.logger("leader")


class Follower(Protocol):
    """Who keeps the mirror."""

    def mirrored(self, snapshot: Snapshot) -> None:
        """Everything as it is stored."""

    def followed(self, news: News) -> None:
        """What was committed since."""

    def out_of_touch(self, error: StoreError) -> None:
        """The store cannot be read; it is tried again."""


class Elected(NamedTuple):
    """This server leads."""

    epoch: int
    sudden: bool  # whoever led before has not let go


class Leadership:
    """One server's place among several: standing by, leading, letting go."""

    def __init__(
        self, store: SharedStore, identity: Identity, timing: Timing, now_ms: Callable[[], int],
        attend: Callable[[Identity], Awaitable[bool]] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self.identity = identity
        self.timing = timing
        self._now_ms = now_ms
        self._attend = attend  # be with a leader until its stream breaks; True: its process is gone
        self.election = Election(identity, timing, now_ms())
        self._news = asyncio.Event()
        self._another = asyncio.Event()  # somebody else leads
        self._renewed_ms = 0

    async def until_elected(self, follower: Follower) -> Elected:
        """Follow until this server leads; the mirror then holds everything that was ever committed."""
        pause_s = PAUSE_S_MIN
        while True:
            try:
                snapshot = await self._store.load()
                follower.mirrored(snapshot)
                pause_s = PAUSE_S_MIN
                return await self._compete(follower, snapshot.revision)
            except Behind as error:
                log.warning("too far behind to follow; loading again", reason=str(error))
            except StoreError as error:
                follower.out_of_touch(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _compete(self, follower: Follower, revision: int) -> Elected:
        """Listen, attend the leader and wait for the time to take its place."""
        self._news.clear()
        listening = asyncio.ensure_future(self._listen(follower, revision))
        attending = asyncio.ensure_future(self._attend_leaders())
        winning = asyncio.ensure_future(self._win())
        tasks = (listening, attending, winning)
        try:
            await asyncio.wait((listening, winning), return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not winning.done():
                listening.result()  # raises
                raise Unavailable("the store has ended the stream of changes")
            return winning.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, follower: Follower, revision: int) -> None:
        async for news in self._store.follow(revision):
            follower.followed(news)
            leader = self.election.leader
            self.election.saw(news.lead, self._now_ms())
            self._news.set()
            if self.election.leader != leader:
                self._another.set()

    async def _win(self) -> Elected:
        while True:
            seen = await self._until_due()
            sudden, asked_ms = self.election.is_sudden(), self._now_ms()
            try:
                epoch = await self._store.lead(self.identity.signed(), seen)
            except Fenced:
                await self._until_changed(seen)  # somebody was faster; the news is on its way
                continue
            # Whatever the leader before has committed is told before our own lead is.
            while self.election.seen is None or self.election.seen.epoch < epoch:
                await self._until_changed(self.election.seen)
            self._renewed_ms = asked_ms
            return Elected(epoch, sudden)

    async def _until_due(self) -> Lead:
        while True:
            due = self.election.due_ms()
            if due is not None and due <= self._now_ms():
                assert self.election.seen is not None
                return self.election.seen
            await self._wait(None if due is None else (due - self._now_ms()) / 1_000)

    async def _until_changed(self, seen: Lead | None) -> None:
        while self.election.seen == seen:
            await self._wait(None)

    async def _wait(self, seconds: float | None) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _attend_leaders(self) -> None:
        """Be with whoever leads. A process that is gone is noticed at once, and need not be waited for."""
        if self._attend is None:
            return
        while True:
            self._another.clear()
            leader = self.election.leader
            if leader is None or leader.life == self.identity.life:
                await self._another.wait()
                continue
            if await self._is_gone(leader) and leader == self.election.leader:
                log.warning("the leader is gone", leader=leader.name)
                self.election.found_dead()
                self._news.set()
                await self._another.wait()
            elif leader == self.election.leader:
                await asyncio.sleep(self.timing.retry_ms / 1_000)

    async def _is_gone(self, leader: Identity) -> bool:
        """Be with a leader until it is gone (True), cannot be reached any more, or another one leads."""
        assert self._attend is not None
        attending = asyncio.ensure_future(self._attend(leader))
        changing = asyncio.ensure_future(self._another.wait())
        try:
            await asyncio.wait((attending, changing), return_when=asyncio.FIRST_COMPLETED)
            return attending.done() and attending.result()
        finally:
            for task in (attending, changing):
                task.cancel()
            await asyncio.gather(attending, changing, return_exceptions=True)

    # while leading

    def is_sure(self) -> bool:
        """Whether nobody else can lead yet."""
        return self._now_ms() < self._renewed_ms + self.timing.acting_ms

    def may_answer(self) -> bool:
        """Whether agents may still be answered: whoever else leads waits for as long as this."""
        return self._now_ms() < self._renewed_ms + self.timing.acting_ms + self.timing.hold_ms

    def proved(self, sent_ms: int) -> None:
        """The store took something of ours that was sent then."""
        self._renewed_ms = max(self._renewed_ms, sent_ms)

    async def keep(self, epoch: int) -> None:
        """Renew until fenced."""
        while True:
            sent_ms = self._now_ms()
            pause_ms = self.timing.renew_ms
            try:
                await self._store.renew(epoch)
                self.proved(sent_ms)
            except Fenced:
                raise
            except StoreError as error:
                log.warning("the lead could not be renewed", error=str(error))
                pause_ms = self.timing.retry_ms
            await asyncio.sleep(max(0, sent_ms + pause_ms - self._now_ms()) / 1_000)

    async def let_go(self, epoch: int, heir: str) -> None:
        """Tell the others that one of them may lead. From now on no agent may be answered."""
        self._renewed_ms = 0
        try:
            async with asyncio.timeout(self.timing.ttl_ms / 1_000):
                await self._store.renew(epoch, heir)
        except (StoreError, TimeoutError) as error:
            log.warning("the others will notice only after a while that nobody leads", error=str(error))
