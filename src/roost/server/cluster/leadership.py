"""Leadership with I/O: asyncio around the machine that competes for the lead and renews it (see machine.py)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, assert_never

from roost.ports import store as port
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.machine import Elected, LeadershipMachine, Renew, Take
from roost.server.observability import logging
from roost.server.waiting import cancel, unless, wait_for

log = logging.logger("leader")


class Follower(Protocol):
    """The engine while another server leads."""

    def mirrored(self, snapshot: port.Snapshot) -> None: ...
    def followed(self, update: port.News) -> None: ...
    def out_of_touch(self, failure: port.LoadFailure) -> object: ...


class Leadership:
    def __init__(
        self, store: port.SharedStore, identity: ServerIdentity, timing: LeaderTiming, now_ms: Callable[[], int],
        attend: Callable[[ServerIdentity], Awaitable[bool]] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self.machine = LeadershipMachine(identity, timing, now_ms())
        self.identity = identity
        self.timing = timing
        self._now_ms = now_ms
        self._attend = attend  # be with a leader until its stream breaks; True: its process is gone
        self.election = self.machine.election
        self._news = asyncio.Event()
        self._another = asyncio.Event()  # another server leads
        self._elected: asyncio.Future[Elected]
        self._first: port.LoadResult | None = None  # of the start, until it is used; the follower has it

    async def begin(self, follower: Follower) -> port.LoadFailure | None:
        """Load once before the server starts. What waiting cannot mend is an error then: a store that refuses the user,
        and records that this release cannot read."""
        first = self._first = await self._store.load()
        if not isinstance(first, port.Snapshot):
            return first if isinstance(first, port.Unavailable) and first.denied else None
        try:
            follower.mirrored(first)
        except port.StoreError as error:
            return port.Damaged(str(error))
        return None

    async def until_elected(self, follower: Follower) -> Elected:
        """Follow until this server leads; the mirror then holds everything that was ever committed."""
        load = self.machine.stand_by()
        while True:
            await asyncio.sleep(load.after_ms / 1_000)
            outcome = await self._load_and_compete(follower)
            match outcome:
                case Elected():
                    return outcome
                case port.Behind():
                    log.warning("too far behind to follow; loading again", reason=str(outcome))
                    load = self.machine.stand_by()
                case port.Unavailable() | port.Damaged():
                    follower.out_of_touch(outcome)
                    load = self.machine.away()
                case _:
                    assert_never(outcome)

    async def _load_and_compete(self, follower: Follower) -> Elected | port.Behind | port.LoadFailure:
        first, self._first = self._first, None
        snapshot = await self._store.load() if first is None else first
        if not isinstance(snapshot, port.Snapshot):
            return snapshot
        try:
            if first is None:
                follower.mirrored(snapshot)
            self.machine.loaded()
            return await self._compete(follower, snapshot.revision)
        except port.StoreError as error:  # a record that this release cannot read
            return port.Damaged(str(error))

    async def _compete(self, follower: Follower, revision: int) -> Elected | port.Behind | port.LoadFailure:
        self._news.clear()
        self._elected = asyncio.get_running_loop().create_future()
        listening = asyncio.ensure_future(self._listen(follower, revision))
        taking = asyncio.ensure_future(self._take())
        attending = asyncio.ensure_future(self._attend_leaders())
        tasks = (listening, taking, attending)
        try:
            await asyncio.wait((self._elected, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if attending.done():
                attending.result()  # raises what is a bug
            if self._elected.done():
                return self._elected.result()
            return listening.result() if listening.done() else taking.result()
        finally:
            await cancel(*tasks)

    async def _listen(self, follower: Follower, revision: int) -> port.Behind | port.LoadFailure:
        async for update in self._store.follow(revision):
            if not isinstance(update, port.News):
                return update
            follower.followed(update)
            leader = self.election.leader
            self._lead(self.machine.saw(update.lead, self._now_ms()))
            self._news.set()
            if self.election.leader != leader:
                self._another.set()
        return port.Unavailable("the store has ended the stream of changes")

    async def _take(self) -> port.LoadFailure:
        while True:
            effect = self.machine.due(self._now_ms())
            if not isinstance(effect, Take):
                self._news.clear()
                await wait_for(self._news, None if effect.at_ms is None else (effect.at_ms - self._now_ms()) / 1_000)
                continue
            outcome = await self._store.lead(effect.identity, effect.seen)
            match outcome:
                case port.LeadTaken(epoch=epoch):
                    self._lead(self.machine.taken(epoch))
                case port.Fenced():
                    self.machine.refused()
                case port.Unavailable() | port.Damaged():
                    return outcome
                case _:
                    assert_never(outcome)

    def _lead(self, elected: Elected | None) -> None:
        if elected is not None:
            self._elected.set_result(elected)

    async def _attend_leaders(self) -> None:
        """Hold a stream to the leader: when its process ends, the ttl need not pass."""
        if self._attend is None:
            await asyncio.Event().wait()
        assert self._attend is not None
        while True:
            self._another.clear()
            leader = self.election.leader
            if leader is None or leader.life == self.identity.life or self.election.seen is None:
                await self._another.wait()
                continue
            epoch = self.election.seen.epoch
            if await unless(self._another, self._attend(leader)) and self.machine.found_dead(epoch):
                log.warning("the leader is gone", leader=leader.name)
                self._news.set()
                await self._another.wait()
            elif leader == self.election.leader:
                await asyncio.sleep(self.timing.retry_ms / 1_000)

    # while leading

    def is_sure(self) -> bool:
        return self.machine.is_sure(self._now_ms())

    async def renew(self, epoch: int) -> port.Fenced:
        while True:
            effect = self.machine.renewal(epoch, self._now_ms())
            if not isinstance(effect, Renew):
                assert effect.at_ms is not None
                await asyncio.sleep(max(0, effect.at_ms - self._now_ms()) / 1_000)
                continue
            outcome = await self._store.renew(epoch)
            match outcome:
                case port.LeadRenewed():
                    self.machine.renewed(effect.sent_ms)
                case port.Fenced():
                    return outcome
                case port.Unavailable() | port.Damaged():
                    log.warning("the lead could not be renewed", error=str(outcome))
                    self.machine.renewal_failed(effect.sent_ms)
                case _:
                    assert_never(outcome)

    async def let_go(self, epoch: int, successor: str) -> None:
        try:
            async with asyncio.timeout(self.timing.ttl_ms / 1_000):
                outcome = await self._store.renew(epoch, successor)
        except TimeoutError as error:
            outcome = port.Unavailable(str(error))
        if not isinstance(outcome, port.LeadRenewed):
            log.warning("the others will notice only after a while that no server leads", error=str(outcome))
