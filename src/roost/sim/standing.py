"""A server's place among several, in the simulated world: rule by rule as in server/leadership.py."""

from collections.abc import Callable
from typing import Any, Protocol

from roost.ports.store import ANYBODY, Behind, Fenced, News, Snapshot
from roost.server.election import Election, Identity, Timing
from roost.sim.disk import Disk
from roost.sim.world import World

NEWS_MS = (0, 15)
LAG, LAG_MS_MAX = 0.02, 1_500  # sometimes a stream of news falls behind
AGAIN_MS = (100, 1_000)


class Follower(Protocol):
    """The server whose place it is."""

    name: str

    def now_ms(self) -> int:
        """The time on its clock."""

    def awake(self, action: Callable[..., None], *given: Any) -> None:
        """Do something, or later if it hangs."""

    def mirrored(self, snapshot: Snapshot) -> None:
        """Everything as it is stored."""

    def followed(self, news: News) -> None:
        """What was committed since."""

    def elected(self, epoch: int, sudden: bool) -> None:
        """It leads."""

    def fell(self, *, fenced: bool) -> None:
        """It leads no more."""


class Standing:
    """For one life of a server on a store that others share."""

    def __init__(self, world: World, server: Follower, disk: Disk, identity: Identity, timing: Timing) -> None:
        self._world = world
        self._server = server
        self._disk = disk
        self.timing = timing
        self.identity = identity
        self.election = Election(identity, timing, server.now_ms())
        self.over = False  # the process is gone
        self.epoch = 0  # not 0: it leads
        self._following = False
        self._cursor = 0
        self._lag_until_ms = 0
        self._won: tuple[int, bool, int] | None = None  # epoch, sudden, when it was asked for
        self._renewed_ms = 0

    # standing by

    def stand_by(self) -> None:
        """Load, and follow from there."""
        if self.over or self._following or self.epoch:
            return
        if self._away():
            self._later(self._world.between(*AGAIN_MS), self.stand_by)
            return
        snapshot = self._disk.memory.snapshot()
        self._following, self._won, self._cursor = True, None, snapshot.revision
        self._server.mirrored(snapshot)
        self._pull()

    def notified(self) -> None:
        """Something is new in the store."""
        if self._following:
            if self._world.happens(LAG):
                self.lag(self._world.between(0, LAG_MS_MAX))
            delay_ms = max(self._world.between(*NEWS_MS), self._lag_until_ms - self._world.now)
            self._later(delay_ms, self._pull)

    def lag(self, for_ms: int) -> None:
        """The stream of news falls behind for a while."""
        self._lag_until_ms = self._world.now + for_ms

    def found_dead(self, epoch: int) -> None:
        """Nothing listens any more where the leader of this epoch was."""
        if self._following and self.election.seen is not None and self.election.seen.epoch == epoch:
            self.election.found_dead()
            self._look()

    def _pull(self) -> None:
        if self.over or not self._following:
            return
        try:
            news = None if self._away() else self._disk.memory.since(self._cursor)
        except Behind:
            news = None
        if news is None:
            self._following = False
            self._later(self._world.between(*AGAIN_MS), self.stand_by)
            return
        self._cursor = news.revision
        self._server.followed(news)
        self.election.saw(news.lead, self._server.now_ms())
        if self._won is not None and news.lead.epoch >= self._won[0]:
            (epoch, sudden, asked_ms), self._won = self._won, None
            if news.lead.epoch == epoch:
                self._lead(epoch, sudden, asked_ms)
                return
        self._look()

    def _look(self) -> None:
        due = self.election.due_ms()
        if due is not None and self._won is None:
            self._later(max(0, due - self._server.now_ms()), self._due)

    def _due(self) -> None:
        due = self.election.due_ms()
        if self.over or not self._following or self._won or due is None:
            return
        if due > self._server.now_ms():
            self._look()
            return
        asked_ms, sudden = self._server.now_ms(), self.election.is_sudden()
        self._world.after(self._world.between(0, 10), self._take, self.election.seen, sudden, asked_ms)

    def _take(self, seen: Any, sudden: bool, asked_ms: int) -> None:
        """The request reaches the store, whether or not whoever sent it still lives."""
        if self._away():
            self._later(0, self._pull)  # which finds the store away, too, and begins anew
            return
        try:
            epoch = self._disk.memory.lead(self.identity.signed(), seen)
        except Fenced:
            return
        if not self.over and not self._world.happens(self._disk.unsure):
            self._won = (epoch, sudden, asked_ms)
        self._disk.announce()

    # leading

    def _lead(self, epoch: int, sudden: bool, asked_ms: int) -> None:
        self._following = False
        self.epoch, self._renewed_ms = epoch, asked_ms
        self._server.elected(epoch, sudden)
        self._later(self.timing.renew_ms, self._renew, epoch)

    def is_sure(self) -> bool:
        """Whether nobody else can lead yet."""
        return bool(self.epoch) and self._server.now_ms() < self._renewed_ms + self.timing.acting_ms

    def may_answer(self) -> bool:
        """Whether agents may still be answered."""
        return self._server.now_ms() < self._renewed_ms + self.timing.acting_ms + self.timing.hold_ms

    def proved(self, sent_ms: int) -> None:
        """The store took something of ours that was sent then."""
        self._renewed_ms = max(self._renewed_ms, sent_ms)

    def fall(self) -> None:
        """The state was thrown away; what is stored is loaded again, and another may lead by then."""
        self.epoch = 0
        self._later(self._world.between(0, AGAIN_MS[0]), self.stand_by)

    def let_go(self) -> None:
        """Hand over in order: agents are not answered any more, and the others are told."""
        if not self.epoch:
            return
        epoch, self._renewed_ms = self.epoch, 0
        heir = self._world.one_of((ANYBODY, ANYBODY, "s0", "s1", "s2"))
        self._world.after(self._world.between(0, 10), self._release, epoch, heir)
        self._server.fell(fenced=True)
        self.fall()

    def _release(self, epoch: int, heir: str) -> None:
        if not self._away():
            try:
                self._disk.memory.renew(epoch, heir)
            except Fenced:
                return
            self._disk.announce()

    def _renew(self, epoch: int) -> None:
        if epoch == self.epoch and not self.over:
            disk, world = self._disk, self._world
            slow = disk.slow_ms_max if world.happens(disk.slow) else 5
            world.after(world.between(0, slow), self._reach, epoch, self._server.now_ms())

    def _reach(self, epoch: int, sent_ms: int) -> None:
        """The renewal reaches the store, or does not; the answer comes back, or does not."""
        disk, world = self._disk, self._world
        outcome = "failed"
        if not self._away() and not world.happens(disk.fails):
            try:
                disk.memory.renew(epoch)
                outcome = "failed" if world.happens(disk.unsure) else "renewed"
            except Fenced:
                outcome = "fenced"
            disk.announce()
        self._later(world.between(0, 3), self._renewed, epoch, sent_ms, outcome)

    def _renewed(self, epoch: int, sent_ms: int, outcome: str) -> None:
        if epoch != self.epoch:
            return
        if outcome == "fenced":
            self._server.fell(fenced=True)
            self.fall()
            return
        if outcome == "renewed":
            self.proved(sent_ms)
        pause_ms = self.timing.renew_ms if outcome == "renewed" else self.timing.retry_ms
        self._later(max(0, sent_ms + pause_ms - self._server.now_ms()), self._renew, epoch)

    def _away(self) -> bool:
        return self._disk.broken or self._server.name in self._disk.cut_off

    def _later(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self._world.after(delay_ms, self._awake, action, *given)

    def _awake(self, action: Callable[..., None], *given: Any) -> None:
        if not self.over:
            self._server.awake(action, *given)
