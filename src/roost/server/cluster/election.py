"""Election: when a server may take the lead, and until when it may act as if it had it. Pure: time is passed in.

The store keeps one lead record, which its leader renews. Clocks are not compared: a server that has seen the record
unchanged for `ttl` on its own clock takes the lead, if the record is then still the same. The epoch in the store
fences every commit of an older leader, so two never both write, whatever clocks and networks do.

What a fence cannot stop is an old leader that goes on answering agents: their leases would be renewed by one server
while another counts them as ended. So a leader answers only for so long after its last renewal was *sent*: the `ttl`,
and `hold`, because its store may be away, and then no other server can lead either. A server that takes the lead from
one that has not let go gives every node that much more time before it is lost (`grace`). So work goes on through
an outage of the store, and still nothing runs twice.
"""

from typing import NamedTuple

import msgspec

from roost.model.errors import Invalid
from roost.ports.store import ANYBODY, Lead

DRIFT_SHARE = 10  # a tenth of the ttl is left for clocks that run at different speeds, and for being late
RETRIES_MIN = 2  # renewals that may fail in a row before a leader has to fall silent

# After an outage of the store its leader goes first: agents have their leases from it, and a change of leaders right
# then may cost them. It needs a connection (1.2 s), one attempt at a member that does not answer yet (3 s), a pause.
AFTER_OUTAGE_MS = 5_000

TTL_MS_MIN, TTL_MS_MAX = 500, 60_000
STORE_OUTAGE_GRACE_MS_MAX = 3_600_000


class LeaderTiming(NamedTuple):
    """How fast leadership changes hands, in milliseconds."""

    ttl_ms: int = 1_500  # a lead that was not renewed for so long is over
    renew_ms: int = 400
    retry_ms: int = 150  # after a renewal that failed
    store_outage_grace_ms: int = 60_000  # how long agents are answered while the store is away

    @property
    def acting_ms(self) -> int:
        return self.ttl_ms - self.ttl_ms // DRIFT_SHARE

    @property
    def grace_ms(self) -> int:
        """How much longer than a lease agents may rely on a leader that did not let go."""
        return self.ttl_ms + self.store_outage_grace_ms


def check_timing(timing: LeaderTiming, lease_ms: int) -> None:
    """Refuse times with which leadership would flap, or agents would lose their leases at every change of it."""
    if not TTL_MS_MIN <= timing.ttl_ms <= TTL_MS_MAX:
        message = f"the lead lasts {TTL_MS_MIN:,} to {TTL_MS_MAX:,} ms without being renewed"
        raise Invalid("leader_ttl_ms", f"{message}, not {timing.ttl_ms:,}")
    if timing.renew_ms < 1 or timing.retry_ms < 1:
        raise Invalid("leader_renew_ms", "renewals and retries are at least a millisecond apart")
    if timing.renew_ms + RETRIES_MIN * timing.retry_ms >= timing.acting_ms:
        rule = f"renew + {RETRIES_MIN} x retry must be less than nine tenths of the ttl"
        numbers = f"{timing.renew_ms} + {RETRIES_MIN} x {timing.retry_ms} >= {timing.acting_ms} ms"
        reason = f"so that {RETRIES_MIN} renewals may fail before the lead is lost"
        raise Invalid("leader_renew_ms", f"{rule}, {reason}: {numbers}")
    if 2 * timing.ttl_ms > lease_ms:
        message = "the lead's ttl is at most half of the agents' lease, so that a failover fits into a lease"
        raise Invalid("leader_ttl_ms", f"{message}: 2 x {timing.ttl_ms} > {lease_ms} ms")
    if not 0 <= timing.store_outage_grace_ms <= STORE_OUTAGE_GRACE_MS_MAX:
        message = f"agents are held for 0 to {STORE_OUTAGE_GRACE_MS_MAX:,} ms, not {timing.store_outage_grace_ms:,}"
        raise Invalid("store_outage_grace_ms", message)


class ServerIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a server is, as it signs the lead: a name, one life of its process, and where it is reached."""

    name: str
    life: str
    api: str = ""  # URL
    agents: str = ""  # HOST:PORT
    controller: str = ""  # HOST:PORT

    def signed(self) -> str:
        return msgspec.json.encode(self).decode()


def read_identity(signed: str) -> ServerIdentity | None:
    """The server that signed; None if no server of Roost did."""
    try:
        return msgspec.json.decode(signed, type=ServerIdentity) if signed else None
    except msgspec.MsgspecError:
        return None


class Election:
    """What one server has seen of the lead, and since when on its own clock."""

    def __init__(self, identity: ServerIdentity, timing: LeaderTiming, now: int) -> None:
        self._identity = identity
        self._timing = timing
        self.seen: Lead | None = None  # None: nothing is known yet
        self._since_ms = now
        self._is_dead = False
        self._is_out_of_sight = self._is_after_outage = False

    @property
    def leader(self) -> ServerIdentity | None:
        return read_identity(self.seen.identity) if self.seen is not None and not self.seen.successor else None

    def saw(self, lead: Lead, now: int) -> None:
        """The store has this lead. Commits count also: their leader is alive."""
        if self._is_out_of_sight:  # it may have been renewed before the outage, unseen
            self._is_out_of_sight, self._is_after_outage = False, True
        elif lead != self.seen:
            self._is_after_outage = False
        self.seen = lead
        self._since_ms = now
        self._is_dead = False

    def lost_sight(self) -> None:
        """The store is away: its leader cannot renew either."""
        self._is_out_of_sight = True

    def found_dead(self) -> None:
        """The process of the leader has ended: the ttl need not pass."""
        self._is_dead = True

    def is_current(self, now: int) -> bool:
        """Whether a leader was seen of late: within two ttls, so that a failover is no reason to doubt."""
        return self.seen is not None and bool(self.seen.epoch) and now < self._since_ms + 2 * self._timing.ttl_ms

    def due_ms(self) -> int | None:
        """When to take the lead if nothing else is seen until then; None: not before something is seen."""
        if self.seen is None:
            return None
        if self._is_free():
            return self._since_ms
        return self._since_ms + self._timing.ttl_ms + (AFTER_OUTAGE_MS if self._is_after_outage else 0)

    def is_unclean(self) -> bool:
        """Whether the lead would be taken from a leader that has not let go and may still answer agents."""
        assert self.seen is not None
        return bool(self.seen.epoch) and not self.seen.successor and not self.is_mine()

    def _is_free(self) -> bool:
        assert self.seen is not None
        if self.seen.successor:
            leader = read_identity(self.seen.identity)
            if leader is not None and leader.life == self._identity.life:
                return False  # we have just let go ourselves: others first
            return self.seen.successor in (ANYBODY, self._identity.name)
        return self._is_dead or not self.seen.epoch or self.is_mine()

    def is_mine(self) -> bool:
        """Whether the lead is our own, or of an ended process that had our port."""
        assert self.seen is not None
        leader = read_identity(self.seen.identity)
        return leader is not None and bool(leader.agents) and leader.agents == self._identity.agents
