"""Classes that are still blocked, found for all of them at once: with 10,000 classes a freed slot is no walk over all.

A class that fitted nowhere can fit only on nodes that changed since. If none of these has the resources of its ask, and
it could neither preempt nor get a backfill reservation now, then nothing has changed for it.
"""

import numpy as np

from roost.core.queue.backfill import BACKFILL_RESERVATIONS_MAX
from roost.core.queue.fair_share import exceeds_quota
from roost.core.state.fleet import Fleet, Mask
from roost.core.state.queue import FOREVER, EquivalenceClass
from roost.core.state.state import State

CLASSES_MIN = 256  # with fewer classes each is checked by itself, some 10 us
ROWS_MAX = 32  # changed nodes; with more, most classes are likely to fit somewhere


def split_blocked(
    state: State, lines: list[EquivalenceClass], now: int
) -> tuple[list[EquivalenceClass], list[EquivalenceClass]]:
    """The classes that have to be checked, and those that are still blocked."""
    fleet = state.fleet
    if len(lines) < CLASSES_MIN or any(exceeds_quota(state, name) for name in state.projects):
        return lines, []
    known = _known_blocked(state, lines, now)
    rows = fleet.changed_since(min(line.position for line in known)) if known else None
    if rows is None or len(rows) > ROWS_MAX:
        return lines, []
    freed, position = fleet.freed, fleet.position
    blocked = [known[place] for place in np.flatnonzero(~_fits_on(fleet, known, rows)).tolist()]
    for line in blocked:
        line.blocked_at, line.position = freed, position
    return [line for line in lines if not line.is_blocked(fleet)], blocked


def _known_blocked(state: State, lines: list[EquivalenceClass], now: int) -> list[EquivalenceClass]:
    """Classes that only nodes block, and for which a full check would neither preempt nor reserve anything."""
    layout, reserved, margin = state.fleet.layout, state.backfill_reservations, state.settings.preempt_margin
    preempting = min(state.priorities) + margin if margin and state.priorities else FOREVER
    is_full = len(reserved) >= BACKFILL_RESERVATIONS_MAX
    return [
        line
        for line in lines
        if line.layout == layout
        and line.priority < preempting
        and (is_full or now < line.overdue_ms)
        and not line.is_gang
        and line not in reserved
    ]


def _fits_on(fleet: Fleet, lines: list[EquivalenceClass], rows: tuple[int, ...]) -> Mask:
    """Whether one of these nodes has the resources that each class asks for."""
    asks = [dict(line.ask.resources) for line in lines]
    columns = {resource: [ask.get(resource, 0) for ask in asks] for resource in fleet.total}
    fits = np.ones((len(lines), len(rows)), np.bool_)
    for resource, amounts in columns.items():
        fits &= np.array(amounts, np.int64)[:, None] <= fleet.free(resource)[list(rows)]
    fits &= fleet.open[list(rows)]
    return np.asarray(fits.any(axis=1))
