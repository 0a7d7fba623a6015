"""Leadership without I/O: events in, effects out. Follow the store until this server leads, and renew while it does.

A server that starts, one that has lost its store and one that was overtaken all come through here, and no other code
ever takes the lead of a shared store. Time is an argument, in milliseconds of the server's own clock.
"""

from typing import NamedTuple

from roost.ports.store import Lead
from roost.server.cluster.election import Election, LeaderTiming, ServerIdentity

PAUSE_MS_MIN, PAUSE_MS_MAX = 100, 2_000  # between attempts to reach a store that is away


class Load(NamedTuple):
    """Load everything that is stored, after a pause."""

    after_ms: int


class Take(NamedTuple):
    """Ask the store for the lead, if that is still as it was seen; then say `taken`, `refused` or `away`."""

    identity: str
    seen: Lead


class WakeAt(NamedTuple):
    """Nothing is due before then; None: not before something happens."""

    at_ms: int | None


class Renew(NamedTuple):
    """Renew the lead; then say `renewed` or `renewal_failed`."""

    epoch: int
    sent_ms: int


class Elected(NamedTuple):
    """This server leads, and its mirror holds everything that was ever committed."""

    epoch: int
    unclean: bool  # the previous leader has not let go


class Backoff:
    def __init__(self) -> None:
        self._pause_ms = PAUSE_MS_MIN

    def again(self) -> Load:
        pause_ms, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, PAUSE_MS_MAX)
        return Load(pause_ms)

    def reset(self) -> None:
        self._pause_ms = PAUSE_MS_MIN


class LeadershipMachine:
    def __init__(self, identity: ServerIdentity, timing: LeaderTiming, now: int) -> None:
        self.identity = identity
        self.timing = timing
        self.election = Election(identity, timing, now)
        self._backoff = Backoff()
        self._is_following = False
        self._asked: Lead | None = None  # the lead was asked for when it was this; not again before it has changed
        self._asked_ms = 0
        self._is_asking = False
        self._is_unclean = False
        self._is_unstored = False  # our last takeover was unclean, and no commit has made that durable
        self._won: Elected | None = None  # the store says so, and what was committed before is still to come
        self._renewed_ms = 0
        self._renewal_ms = 0  # when the next renewal is due

    # standing by

    def stand_by(self) -> Load:
        self._is_following, self._won = False, None
        return Load(0)

    def loaded(self) -> None:
        self._backoff.reset()
        self._is_following, self._is_asking = True, False
        self._won = self._asked = None

    def away(self) -> Load:
        """The store cannot be reached, or did not answer whether it gave us the lead."""
        self.stand_by()
        self.election.lost_sight()
        return self._backoff.again()

    def saw(self, lead: Lead, now: int) -> Elected | None:
        """The commits of the store were followed up to this lead."""
        self.election.saw(lead, now)
        return self._elected()

    def found_dead(self, epoch: int) -> bool:
        """The process that led with this epoch has ended. False: another one leads."""
        seen = self.election.seen
        if not self._is_following or seen is None or seen.epoch != epoch:
            return False
        self.election.found_dead()
        return True

    def due(self, now: int) -> Take | WakeAt:
        seen, due_ms = self.election.seen, self.election.due_ms()
        is_waiting = self._is_asking or self._won is not None or seen == self._asked
        if not self._is_following or seen is None or is_waiting:
            return WakeAt(None)
        if due_ms is None or due_ms > now:
            return WakeAt(due_ms)
        self._asked, self._asked_ms = seen, now
        is_again = self._is_unstored and self.election.is_mine()
        self._is_asking, self._is_unclean = True, is_again or self.election.is_unclean()
        return Take(self.identity.signed(), seen)

    def taken(self, epoch: int) -> Elected | None:
        self._is_asking, self._won = False, Elected(epoch, self._is_unclean)
        return self._elected()

    def refused(self) -> None:
        """Another server took the lead first; the change stream will show it."""
        self._is_asking = False

    def _elected(self) -> Elected | None:
        """What the previous leader committed is reported before our own lead is."""
        won, seen = self._won, self.election.seen
        if won is None or seen is None or seen.epoch < won.epoch:
            return None
        self._won = None
        if seen.epoch > won.epoch:
            return None  # another server was elected since
        self._is_following = False
        self._is_unstored = won.unclean
        self._renewal_ms = 0
        self.proved(self._asked_ms)
        return won

    # leading

    def committed(self, sent_ms: int) -> None:
        """A commit that was sent then is durable, and with it how the lead was taken."""
        self._is_unstored = False
        self.proved(sent_ms)

    def is_sure(self, now: int) -> bool:
        """Whether no other server can lead yet."""
        return now < self._renewed_ms + self.timing.acting_ms

    def may_answer(self, now: int) -> bool:
        """Whether agents may still be answered: another leader waits for as long as this."""
        return now < self._renewed_ms + self.timing.acting_ms + self.timing.store_outage_grace_ms

    def proved(self, sent_ms: int) -> None:
        """The store accepted a write that was sent then."""
        self._renewed_ms = max(self._renewed_ms, sent_ms)

    def renewal(self, epoch: int, now: int) -> Renew | WakeAt:
        return Renew(epoch, now) if self._renewal_ms <= now else WakeAt(self._renewal_ms)

    def renewed(self, sent_ms: int) -> None:
        self.proved(sent_ms)
        self._renewal_ms = sent_ms + self.timing.renew_ms

    def renewal_failed(self, sent_ms: int) -> None:
        """A renewal did not reach the store, or its outcome is unknown."""
        self._renewal_ms = sent_ms + self.timing.retry_ms

    def let_go(self) -> None:
        """The lead is given up: from now on no agent may be answered."""
        self._renewed_ms = 0
