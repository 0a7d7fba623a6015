"""Safety rules of leadership switched off, one at a time; see core.py."""

from roost.core import replica
from roost.server.cluster.machine import Elected, LeadershipMachine
from roost.sim.mutants.core import Rule, mutant, without
from roost.stores.memory import Memory

without("nobody_is_fenced", "The store takes commits of former leaders.", (Memory, "_leads", lambda self, epoch: True))
without(
    "answers_for_ever",
    "A leader without a store answers agents without end.",
    (LeadershipMachine, "may_answer", lambda self, now: True),
)
without(
    "takes_over_without_grace",
    "A new leader counts leases from now, though the old one may still be answering.",
    (replica, "_grace_ms", lambda state, now, unclean: 0),
)


@mutant(LeadershipMachine, "_elected")
def takes_over_behind(_: Rule, self: LeadershipMachine) -> Elected | None:
    """A standby leads with what it has followed so far, not with all that was committed."""
    won, self._won = self._won, None
    if won is not None:
        self._is_following = False
        self.proved(self._asked_ms)
    return won
