"""A server's leadership in the simulated world: the machine of the product, a store that is slow, cut off or unsure."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from roost.ports.store import Behind, Fenced, LeadRenewed, Unavailable
from roost.server.cluster.election import LeaderTiming, ServerIdentity
from roost.server.cluster.machine import Elected, LeadershipMachine, Load, Renew, Take
from roost.sim.world.world import World

if TYPE_CHECKING:
    from roost.sim.world.server import Disk, SimulatedServer

NEWS_MS = (0, 15)
LAG, LAG_MS_MAX = 0.02, 1_500  # sometimes a stream of news falls behind
LOAD_MS_MAX = 100


class SimulatedLeadership:
    def __init__(
        self, world: World, server: "SimulatedServer", disk: "Disk", identity: ServerIdentity, timing: LeaderTiming
    ) -> None:
        self._world = world
        self._server = server
        self._disk = disk
        self.machine = LeadershipMachine(identity, timing, server.clock.now_ms())
        self.over = False  # the process is gone
        self._epoch = 0  # not 0: it leads
        self._cursor: int | None = None  # not None: it follows from there
        self._due_ms: int | None = None
        self._lag_until_ms = 0

    # standing by

    def stand_by(self) -> None:
        self._epoch, self._cursor = 0, None
        self._load_after(self.machine.stand_by())

    def _load_after(self, load: Load) -> None:
        self._cursor = None
        self._later(load.after_ms + self._world.between(0, LOAD_MS_MAX), self._load)

    def _load(self) -> None:
        if self._epoch or self._cursor is not None:
            return
        if self._away():
            self._load_after(self.machine.away())
            return
        snapshot = self._disk.memory.snapshot()
        self._cursor = snapshot.revision
        self._server.machine.mirrored(snapshot)
        self.machine.loaded()
        self._pull()

    def notified(self) -> None:
        if self._cursor is not None:
            if self._world.happens(LAG):
                self.lag(self._world.between(0, LAG_MS_MAX))
            self._later(max(self._world.between(*NEWS_MS), self._lag_until_ms - self._world.now), self._pull)

    def lag(self, for_ms: int) -> None:
        self._lag_until_ms = self._world.now + for_ms

    def found_dead(self, epoch: int) -> None:
        if not self.over and self.machine.found_dead(epoch):
            self._inspect()

    def _pull(self) -> None:
        if self._cursor is None:
            return
        if self._away():
            self._load_after(self.machine.away())
            return
        update = self._disk.memory.since(self._cursor)
        if isinstance(update, Behind):
            self._load_after(self.machine.stand_by())
            return
        self._cursor = update.revision
        self._server.followed(update)
        self._go_on(self.machine.saw(update.lead, self._server.clock.now_ms()))

    def _go_on(self, elected: Elected | None) -> None:
        if elected is None:
            self._inspect()
            return
        self._epoch, self._cursor = elected.epoch, None
        self._server.elected(elected.epoch, elected.unclean)
        self._renew(elected.epoch)

    def _inspect(self) -> None:
        effect = self.machine.due(self._server.clock.now_ms())
        if isinstance(effect, Take):
            self._world.after(self._world.between(0, 10), self._take, effect)
        elif effect.at_ms is not None and effect.at_ms != self._due_ms:
            self._due_ms = effect.at_ms
            self._later(effect.at_ms - self._server.clock.now_ms(), self._look_at, effect.at_ms)

    def _look_at(self, due_ms: int) -> None:
        if due_ms == self._due_ms:
            self._due_ms = None
            self._inspect()

    def _take(self, take: Take) -> None:
        """The request reaches the store, even if its sender has died."""
        if self._away():
            self._later(0, self._in_doubt)
            return
        taken = self._disk.memory.lead(take.identity, take.seen)
        if isinstance(taken, Fenced):
            self._later(0, self.machine.refused)
            return
        if self._world.happens(self._disk.unsure):
            self._later(0, self._in_doubt)
        elif not self.over:
            self._later(0, self._taken, taken.epoch)
        self._disk.announce()

    def _taken(self, epoch: int) -> None:
        if self._cursor is not None:
            self._go_on(self.machine.taken(epoch))

    def _in_doubt(self) -> None:
        if self._cursor is not None:
            self._load_after(self.machine.away())

    # leading

    def release(self, epoch: int, successor: str) -> None:
        self._world.after(self._world.between(0, 10), self._release, epoch, successor)

    def _release(self, epoch: int, successor: str) -> None:
        if not self._away() and isinstance(self._disk.memory.renew(epoch, successor), LeadRenewed):
            self._disk.announce()

    def _renew(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        disk, world, now = self._disk, self._world, self._server.clock.now_ms()
        effect = self.machine.renewal(epoch, now)
        if isinstance(effect, Renew):
            slow = disk.slow_ms_max if world.happens(disk.slow) else 5
            world.after(world.between(0, slow), self._reach, effect)
        elif effect.at_ms is not None:
            self._later(effect.at_ms - now, self._renew, epoch)

    def _reach(self, renew: Renew) -> None:
        disk, world = self._disk, self._world
        outcome: LeadRenewed | Fenced | Unavailable = Unavailable("the store does not answer")
        if not self._away() and not world.happens(disk.fails):
            renewed = disk.memory.renew(renew.epoch)
            if isinstance(renewed, Fenced) or not world.happens(disk.unsure):
                outcome = renewed
            disk.announce()
        late_ms = world.between(0, 3) + disk.late_ms.get(self._server.name, 0)
        self._later(late_ms, self._renewed, renew, outcome)

    def _renewed(self, renew: Renew, outcome: LeadRenewed | Fenced | Unavailable) -> None:
        if renew.epoch != self._epoch:
            return
        if isinstance(outcome, Fenced):
            self._server.overtaken(outcome)
            return
        if isinstance(outcome, LeadRenewed):
            self.machine.renewed(renew.sent_ms)
        else:
            self.machine.renewal_failed(renew.sent_ms)
        self._renew(renew.epoch)

    def _away(self) -> bool:
        return self._disk.broken or self._server.name in self._disk.cut_off

    def _later(self, delay_ms: int, action: Callable[..., None], *given: Any) -> None:
        self._world.after(delay_ms, self._awake, action, *given)

    def _awake(self, action: Callable[..., None], *given: Any) -> None:
        if not self.over:
            self._server.awake(action, *given)
