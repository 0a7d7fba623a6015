"""Safety rules of leadership switched off, one at a time; see mutants.py."""

from typing import Any

from roost.core import load
from roost.sim.mutants import Patch, mutant
from roost.sim.standing import Standing
from roost.stores.memory import Memory


@mutant
def nobody_is_fenced() -> list[Patch]:
    """The store takes commits of whoever led once."""
    return [(Memory, "_check", lambda self, epoch: None)]


@mutant
def answers_for_ever() -> list[Patch]:
    """A leader without a store answers agents for as long as it likes."""
    return [(Standing, "may_answer", lambda self: True)]


@mutant
def takes_over_without_grace() -> list[Patch]:
    """A new leader counts leases from now, though the old one may still be answering."""
    return [(load, "_grace_ms", lambda state, now, sudden: 0)]


@mutant
def takes_over_behind() -> list[Patch]:
    """A standby leads with what it has followed so far, not with all that was committed."""
    take = Standing._take

    def hasty(self: Standing, seen: Any, sudden: bool, asked_ms: int) -> None:
        take(self, seen, sudden, asked_ms)
        if self._won is not None:
            (epoch, _, _), self._won = self._won, None
            self._lead(epoch, sudden, asked_ms)

    return [(Standing, "_take", hasty)]
